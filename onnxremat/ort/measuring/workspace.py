"""Kernel workspace: what ONNX Runtime's own memory statistics show, and what they do not.

The statistics add up what a kernel takes from the session's allocator. Some kernels also use C++
containers, and some take the same workspace again and again. For the operators of
`STATISTICS_EXACT` the statistics, with `known_workspace_bytes` added, equal the heap of the
operator run alone, within a few KB (ONNX Runtime 1.31.1, CPU). Others are counted on the heap
(see `node_heap`).
"""

from collections.abc import Sequence
from math import prod

from onnxremat.importer.values import ValueType

_INDEX_BYTES = 8
_FLOAT_BYTES = 4

VARIADIC = frozenset({"Max", "Mean", "Min", "Sum"})
"""Fold their inputs two by two, each partial result in a new buffer: with more than three inputs
the statistics add up buffers of which two are held at a time, and none beside the output but
one."""

STATISTICS_EXACT = frozenset(
    {
        "Abs",
        "Acos",
        "Acosh",
        "Add",
        "And",
        "ArgMax",
        "ArgMin",
        "Asin",
        "Asinh",
        "Atan",
        "Atanh",
        "Attention",
        "AveragePool",
        "BatchNormalization",
        "BiasGelu",
        "BitShift",
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "Cast",
        "CastLike",
        "Ceil",
        "Celu",
        "Clip",
        "Compress",
        "Concat",
        "ConstantOfShape",
        "Conv",
        "ConvInteger",
        "ConvTranspose",
        "Cos",
        "Cosh",
        "CumSum",
        "DeformConv",
        "DepthToSpace",
        "DequantizeLinear",
        "Div",
        "DynamicQuantizeLinear",
        "DynamicQuantizeMatMul",
        "Einsum",
        "Elu",
        "Equal",
        "Erf",
        "Exp",
        "Expand",
        "EyeLike",
        "FastGelu",
        "Flatten",
        "Floor",
        "FusedConv",
        "FusedGemm",
        "FusedMatMul",
        "GRU",
        "Gather",
        "GatherElements",
        "GatherND",
        "Gelu",
        "Gemm",
        "GlobalAveragePool",
        "GlobalLpPool",
        "GlobalMaxPool",
        "Greater",
        "GreaterOrEqual",
        "HardSigmoid",
        "Hardmax",
        "Identity",
        "InstanceNormalization",
        "IsInf",
        "IsNaN",
        "LRN",
        "LSTM",
        "LayerNormalization",
        "LeakyRelu",
        "Less",
        "LessOrEqual",
        "Log",
        "LogSoftmax",
        "LpNormalization",
        "LpPool",
        "MatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "Max",
        "MaxPool",
        "Mean",
        "MeanVarianceNormalization",
        "Min",
        "Mod",
        "Mul",
        "MultiHeadAttention",
        "Neg",
        "NonZero",
        "Not",
        "OneHot",
        "Or",
        "PRelu",
        "Pad",
        "Pow",
        "QLinearAdd",
        "QLinearAveragePool",
        "QLinearConv",
        "QLinearGlobalAveragePool",
        "QLinearMatMul",
        "QLinearSigmoid",
        "QuantizeLinear",
        "QuickGelu",
        "RMSNormalization",
        "RNN",
        "Range",
        "Reciprocal",
        "ReduceL1",
        "ReduceL2",
        "ReduceLogSum",
        "ReduceLogSumExp",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
        "Relu",
        "ReorderInput",
        "ReorderOutput",
        "Reshape",
        "ReverseSequence",
        "Round",
        "Scatter",
        "ScatterElements",
        "ScatterND",
        "Selu",
        "Shape",
        "Shrink",
        "Sigmoid",
        "Sign",
        "SimplifiedLayerNormalization",
        "Sin",
        "Sinh",
        "Size",
        "SkipLayerNormalization",
        "Slice",
        "Softmax",
        "Softplus",
        "Softsign",
        "SpaceToDepth",
        "Split",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Sum",
        "Tan",
        "Tanh",
        "ThresholdedRelu",
        "Tile",
        "Transpose",
        "Trilu",
        "Unsqueeze",
        "Where",
        "Xor",
    }
)
"""Op types whose workspace the statistics and `known_workspace_bytes` tell."""


def known_workspace_bytes(op_type: str, inputs: Sequence[ValueType]) -> int:
    """Bytes of workspace beyond the statistics, from the types of the inputs a node has.

    ScatterElements keeps an offset for each index; ScatterND and GatherND one for each slice;
    NonZero reserves all coordinates of all elements; MeanVarianceNormalization squares a copy.
    """
    if op_type in ("Scatter", "ScatterElements") and len(inputs) > 1:
        return _INDEX_BYTES * inputs[1].elements
    if op_type in ("ScatterND", "GatherND") and len(inputs) > 1:
        return _INDEX_BYTES * prod(inputs[1].shape[:-1])
    if op_type == "NonZero" and inputs:
        return _INDEX_BYTES * inputs[0].elements * max(len(inputs[0].shape), 1)
    if op_type == "MeanVarianceNormalization" and inputs:
        return _FLOAT_BYTES * inputs[0].elements
    return 0
