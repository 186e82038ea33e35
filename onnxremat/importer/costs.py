"""How long one execution of a node takes, in nanoseconds: a roofline model.

    time = max(FLOP / FLOP rate, bytes / bandwidth) + overhead        (Williams et al. 2009)

A planner needs ratios between nodes rather than times: which ops are cheap to repeat for the bytes
they free. The constants are those of a few cores of a present server CPU under ONNX Runtime in
float32; measured durations, where there are some, win over all of this.

FLOP formulas count a multiply-add as two, as the field does. `bytes` are those read and written,
each operand once (caches are assumed to serve repetitions). Ops without a formula move bytes only:
for data movement (Transpose, Concat, Gather) that is the truth, for unknown ops the best guess.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from onnx import NodeProto

from onnxremat.importer.nodes import DEFAULT_DOMAINS, LAYOUT_DOMAIN
from onnxremat.importer.values import ValueType

Types = Sequence[ValueType | None]
Flops = Callable[["_Call"], int]


@dataclass(frozen=True)
class CostModel:
    """Machine constants. Units: floating-point operations, and bytes, per microsecond."""

    flop_per_us: int = 50_000
    bytes_per_us: int = 20_000
    overhead_ns: int = 3_000


_KNOWN_DOMAINS = (*DEFAULT_DOMAINS, "com.microsoft", LAYOUT_DOMAIN)

_SELECTIONS = frozenset(
    {
        "Gather",
        "GatherElements",
        "GatherND",
        "Slice",
        "Shape",
        "Size",
    }
)
"""Ops that read of their first input only as many bytes as they write."""

DEFAULT_COSTS = CostModel()
"""50 GFLOP/s, 20 GB/s, and 3 microseconds for dispatch, allocation and wake-up of a kernel.

Set by ONNX Runtime 1.31 profiles of five models on two cores. Against those, matrix products and
elementwise ops come out at 1 to 1.5 times what was measured, convolutions at 0.3 to 1.1 times (the
odd filter sizes of gradients are the slow ones), transpositions at a quarter to 0.6 times."""


def op_ns(node: NodeProto, inputs: Types, outputs: Types, costs: CostModel = DEFAULT_COSTS) -> int:
    """Nanoseconds of one execution, at least the overhead.

    `inputs` and `outputs` are the types of the node's inputs and outputs in its own order, None for
    absent or unknown ones; what is unknown counts nothing.
    """
    busy_ns = max(
        flop_count(node, inputs, outputs) * 1_000 // costs.flop_per_us,
        moved_bytes(node, inputs, outputs) * 1_000 // costs.bytes_per_us,
    )
    return busy_ns + costs.overhead_ns


def moved_bytes(node: NodeProto, inputs: Types, outputs: Types) -> int:
    """Bytes read and written: all operands, but of a selection's first input only what it takes."""
    written = _total_bytes(outputs)
    if node.op_type in _SELECTIONS:
        return 2 * written + _total_bytes(inputs[1:])
    return written + _total_bytes(inputs)


def _total_bytes(types: Types) -> int:
    return sum(t.nbytes for t in types if t is not None and t.has_size)


def flop_count(node: NodeProto, inputs: Types, outputs: Types) -> int:
    """Operations of one execution by the formula of the op type; 0 if it has none."""
    if node.domain not in _KNOWN_DOMAINS:
        return 0
    call = _Call(node, inputs, outputs)
    if node.op_type == "Attention":
        formula = _attention_with_projection if node.domain == "com.microsoft" else _attention(0, 1)
        return formula(call)
    return _FORMULAS.get(node.op_type, _nothing)(call)


@dataclass(frozen=True)
class _Call:
    """A node with the types of its operands, and what formulas ask of them."""

    node: NodeProto
    inputs: Types
    outputs: Types

    def shape(self, position: int) -> tuple[int, ...]:
        """Shape of an input; () if it is absent or unknown."""
        kind = self.inputs[position] if position < len(self.inputs) else None
        return kind.shape if kind is not None else ()

    def out_shape(self) -> tuple[int, ...]:
        """Shape of the first output; () if it is unknown."""
        kind = self.outputs[0] if self.outputs else None
        return kind.shape if kind is not None else ()

    def number(self, name: str, default: int) -> int:
        """An integer attribute."""
        return next((a.i for a in self.node.attribute if a.name == name), default)

    def numbers(self, name: str) -> list[int]:
        """An attribute that is a list of integers, empty if absent."""
        return next((list(a.ints) for a in self.node.attribute if a.name == name), [])

    def text(self, name: str) -> str:
        """A text attribute, empty if absent."""
        return next(
            (a.s.decode(errors="replace") for a in self.node.attribute if a.name == name), ""
        )


def _nothing(call: _Call) -> int:
    """Data movement, and ops that nothing is known of."""
    return 0


def _per_output(operations: int) -> Flops:
    """Elementwise: so many operations for each element made."""
    return lambda call: operations * prod(call.out_shape())


def _per_input(operations: int) -> Flops:
    """Reductions and normalisations: so many operations for each element of the first input."""
    return lambda call: operations * prod(call.shape(0))


def _convolution(w: int) -> Flops:
    """Every output element is a dot product over the filter's taps: 2 * out * (C/group * kernel).

    The filter, input `w`, is (M, C/group, kernel...): its product without M is that length.
    """
    return lambda call: 2 * prod(call.out_shape()) * prod(call.shape(w)[1:])


def _transposed_convolution(call: _Call) -> int:
    """Every input element is spread over (M/group * kernel) outputs: 2 * in * that.

    The filter is (C, M/group, kernel...).
    """
    return 2 * prod(call.shape(0)) * prod(call.shape(1)[1:])


def _convolution_gradient(call: _Call) -> int:
    """ConvGrad(dY, X, W): one convolution each for dX and dW, both as long as the forward one."""
    wanted = sum(1 for kind in call.outputs[:2] if kind is not None)
    return wanted * 2 * prod(call.shape(0)) * prod(call.shape(2)[1:])


def _matrix_product(call: _Call) -> int:
    """2 * output elements * contracted length, the last axis of A (last but one with `transA`)."""
    shape = call.shape(0)
    axis = -2 if call.number("transA", 0) else -1
    return 2 * prod(call.out_shape()) * shape[axis] if len(shape) >= -axis else 0


def _einsum(call: _Call) -> int:
    """2 * the product of all index sizes: the nested loops of the definition.

    What an ellipsis covers counts once, as the largest that any operand has there.
    """
    equation = call.text("equation").replace(" ", "")
    sizes: dict[str, int] = {}
    covered = 1
    for position, term in enumerate(equation.split("->")[0].split(",")):
        head, dots, tail = term.partition("...")
        shape = call.shape(position)
        sizes.update(zip(head, shape, strict=False))
        sizes.update(zip(reversed(tail), reversed(shape), strict=False))
        if dots:
            covered = max(covered, prod(shape[len(head) : len(shape) - len(tail)]))
    return 2 * prod(sizes.values()) * covered if sizes else 0


def _attention(q: int, k: int) -> Flops:
    """Scores and weighted sum: 2 products of 2 * |Q| * (length of K), whatever the head count.

    Q is (..., S, hidden), K is (..., T, hidden), heads apart or not.
    """

    def flops(call: _Call) -> int:
        keys = call.shape(k) or call.shape(q)
        return 4 * prod(call.shape(q)) * keys[-2] if len(keys) >= 2 else 0

    return flops


def _attention_with_projection(call: _Call) -> int:
    """com.microsoft Attention(X (B,S,D), W (D,3H)): projection, then S by S attention over H."""
    x, w = call.shape(0), call.shape(1)
    if len(x) != 3 or len(w) != 2:
        return 0
    batch, length, width = x
    return 2 * batch * length * width * w[1] + 4 * batch * length * length * w[1] // 3


def _pooling(call: _Call) -> int:
    """One operation for each tap of each window."""
    return prod(call.out_shape()) * prod(call.numbers("kernel_shape"))


def _interpolation(call: _Call) -> int:
    """So many operations an element as the kernels take time for (measured): they look up where
    each lies, and work out the weights of a cubic for every one."""
    mode = call.text("mode") or ("linear" if call.node.op_type == "GridSample" else "nearest")
    return _INTERPOLATION.get(mode, 40) * prod(call.out_shape())


_INTERPOLATION = {"linear": 100, "bilinear": 100, "cubic": 6_000, "bicubic": 6_000}


def _local_response(call: _Call) -> int:
    """A window of `size` squares for each element, a power and a division."""
    return prod(call.shape(0)) * (2 * call.number("size", 5) + _FUNCTION)


def _recurrent(call: _Call) -> int:
    """Every step multiplies input and state by W and R: 2 * steps * batch * (|W| + |R|).

    X is (steps, batch, input), or batch first with layout 1. W holds all gates (4 LSTM, 3 GRU, 1
    RNN) of all directions.
    """
    return 2 * prod(call.shape(0)[:2]) * (prod(call.shape(1)) + prod(call.shape(2)))


_FUNCTION = 10
"""Operations of an exponential or the like: a vectorised polynomial with range reduction."""


def _table(*groups: tuple[Flops, str]) -> dict[str, Flops]:
    return {name: formula for formula, names in groups for name in names.split()}


_FORMULAS = _table(
    (_convolution(1), "Conv FusedConv NhwcConv NhwcFusedConv ConvInteger DeformConv"),
    (_convolution(3), "QLinearConv"),
    (_transposed_convolution, "ConvTranspose ConvTransposeWithDynamicPads"),
    (_convolution_gradient, "ConvGrad"),
    (
        _matrix_product,
        "MatMul Gemm FusedMatMul FusedGemm FusedMatMulActivation TransposeMatMul GemmFastGelu "
        "MatMulInteger MatMulInteger16 MatMulIntegerToFloat DynamicQuantizeMatMul QLinearMatMul "
        "QGemm MatMulNBits MatMulBnb4 MatMulFpQ4",
    ),
    (_einsum, "Einsum"),
    (_attention(0, 1), "MultiHeadAttention PackedMultiHeadAttention GroupQueryAttention"),
    (_attention_with_projection, "QAttention PackedAttention"),
    (_recurrent, "LSTM GRU RNN DynamicQuantizeLSTM"),
    (_pooling, "MaxPool AveragePool LpPool QLinearAveragePool NhwcMaxPool"),
    (_local_response, "LRN"),
    # One pass over the input.
    (
        _per_input(1),
        "GlobalAveragePool GlobalMaxPool QLinearGlobalAveragePool ReduceSum ReduceMean ReduceMax "
        "ReduceMin ReduceProd ArgMax ArgMin CumSum ReduceSumInteger QLinearReduceMean",
    ),
    (_per_input(2), "BatchNormalization ReduceL1 ReduceL2 ReduceSumSquare GlobalLpPool"),
    (_per_input(_FUNCTION), "ReduceLogSum ReduceLogSumExp TopK Hardmax Unique"),
    # Mean, variance, scale and shift.
    (
        _per_input(8),
        "LayerNormalization InstanceNormalization GroupNormalization RMSNormalization "
        "MeanVarianceNormalization LpNormalization SimplifiedLayerNormalization "
        "SkipLayerNormalization SkipSimplifiedLayerNormalization GroupNorm SkipGroupNorm",
    ),
    (
        _per_input(16),
        "LayerNormalizationGrad SimplifiedLayerNormalizationGrad BatchNormalizationGrad",
    ),
    # Maximum, exponential, sum, division.
    (
        _per_input(_FUNCTION + 4),
        "Softmax LogSoftmax BiasSoftmax QLinearSoftmax SoftmaxCrossEntropyLoss "
        "SoftmaxCrossEntropyLossInternal",
    ),
    (
        _per_input(4),
        "SoftmaxGrad SoftmaxGrad_13 LogSoftmaxGrad LogSoftmaxGrad_13 "
        "SoftmaxCrossEntropyLossGrad SoftmaxCrossEntropyLossInternalGrad",
    ),
    # Elementwise arithmetic and comparisons.
    (
        _per_output(1),
        "Add Sub Mul Sum Mean Max Min Neg Abs Not And Or Xor Where Equal Less Greater LessOrEqual "
        "GreaterOrEqual Relu Clip Floor Ceil Round Sign Cast LeakyRelu PRelu ThresholdedRelu "
        "BitwiseAnd BitwiseOr BitwiseXor BitwiseNot BitShift ReluGrad IsNaN IsInf BiasAdd",
    ),
    (
        _per_output(4),
        "Div Sqrt Reciprocal Mod HardSigmoid HardSwish QuantizeLinear DequantizeLinear "
        "DynamicQuantizeLinear QLinearAdd QLinearMul Shrink Softsign RotaryEmbedding DivGrad "
        "SigmoidGrad TanhGrad",
    ),
    (
        _per_output(_FUNCTION),
        "Exp Log Erf Tanh Sigmoid Softplus Elu Selu Celu Mish Swish Pow Sin Cos Tan Asin Acos Atan "
        "Sinh Cosh Asinh Acosh Atanh Gelu BiasGelu FastGelu QuickGelu GeluGrad FastGeluGrad "
        "QLinearSigmoid",
    ),
    (_interpolation, "Resize Upsample GridSample"),
)
