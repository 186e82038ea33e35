"""The closed table of tiling: one row for each op that can be cut, which says how and why exactly.

    Site (a node and its shapes) -> rule(site) -> Rule -> Step (input boxes, changed attributes)
                                 -> guard(site, rule, threads) -> Guard (boxes with the same bits)

A `Row` has the arithmetic of receptive fields (`make`), what makes a tile's bits those of the whole
(`why`), the guard that sees to it where not every tile has them, and the element types that this is
known for. Ops that are not in the table cannot be cut: they end a region. `tests/rewriters/tile`
has random tiles at 1 to 4 threads for each row, and a test that demands them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from onnxremat_rewriters.tile import (
    blocked,
    exactness,
    matrices,
    pointwise,
    reshaping,
    resizing,
    shaping,
    sliding,
    tails,
)
from onnxremat_rewriters.tile.exactness import Guard
from onnxremat_rewriters.tile.view import CannotTile, Rule, Site

MakeGuard = Callable[[Site, Rule, int], Guard]
Types = frozenset[str] | None

ANY: Types = None
"""Whatever the elements are."""
FLOAT: Types = frozenset({"float"})
COUNTS = frozenset({"int8", "int32", "int64", "uint8", "uint32", "uint64"})
"""Of floats the greater of two zeros is the first or the second, in vectors and at their end."""
HALVES: Types = frozenset({"float", "float16"})
"""The kernel is that of float32, between two Casts if the elements are float16."""

MOVED = "elements are copied, compared or chosen, none is computed"
ROUNDED_ONCE = "an IEEE operation or two for each element, in vectors and at their end alike"
ONE_FORMULA = "one formula for each element, at the end of a vector, too (slices of 1 to 5)"
CALLED = "a call of the C library for each element"
INTEGERS = "sums of integers are the same in any order, and each is scaled by itself"
ALONE = "each pixel is computed by itself, channels and taps in one order, whatever is beside it"
WHOLE_LINES = "what is summed for an element is whole in its tile, and starts a loop of its own"


@dataclass(frozen=True)
class Row:
    """How an op is cut (`make`), why that keeps the bits, for which types of its first output, and
    the guard of what keeps them in some tiles only; without a guard every tile has them."""

    make: Callable[[Site], Rule]
    why: str
    types: Types = ANY
    guard: MakeGuard | None = None


def _rows(row: Row, ops: str) -> dict[str, Row]:
    return dict.fromkeys(ops.split(), row)


def _guarded(make: Callable[[Site], Rule], guard: MakeGuard, types: Types = FLOAT) -> Row:
    """A row whose reason is the docstring of its guard."""
    assert guard.__doc__
    return Row(make, " ".join(guard.__doc__.split()), types, guard)


ROWS: Mapping[str, Row] = {
    # Element by element.
    **_rows(
        Row(pointwise.elementwise, MOVED),
        "Abs And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Cast Equal Greater GreaterOrEqual "
        "Identity IsInf IsNaN Less LessOrEqual Neg Not Or Relu Sign Xor",
    ),
    **_rows(Row(pointwise.elementwise, MOVED, COUNTS), "Max Min"),
    "Where": _guarded(pointwise.elementwise, exactness.whole_lines, ANY),
    **_rows(
        Row(pointwise.elementwise, ROUNDED_ONCE),
        "Add Ceil Div Floor Mean Mod Mul Reciprocal Round Sqrt Sub Sum",
    ),
    **_rows(
        Row(pointwise.elementwise, ROUNDED_ONCE, FLOAT),
        "HardSigmoid HardSwish LeakyRelu PRelu Shrink Softsign ThresholdedRelu",
    ),
    **_rows(
        Row(pointwise.elementwise, ONE_FORMULA, HALVES),
        "Erf Exp FastGelu Gelu QuickGelu Sigmoid Tanh",
    ),
    **_rows(Row(pointwise.elementwise, CALLED, FLOAT), "Acosh Asinh Atanh Cosh Sinh Tan"),
    **_rows(
        _guarded(pointwise.elementwise, tails.guard),
        "Acos Asin Atan Celu Cos Elu Log Mish Selu Sin Softplus",
    ),
    "Pow": _guarded(pointwise.elementwise, exactness.power, ANY),
    **_rows(
        Row(pointwise.elementwise, "each element is looked up in a table"),
        "QLinearLeakyRelu QLinearSigmoid",
    ),
    "Clip": Row(pointwise.first_only, MOVED),
    "Dropout": Row(pointwise.dropout, MOVED),
    "BatchNormalization": Row(pointwise.per_channel, ROUNDED_ONCE, FLOAT),
    **_rows(Row(pointwise.quantize, ROUNDED_ONCE), "DequantizeLinear QuantizeLinear"),
    # Windows.
    "Conv": _guarded(sliding.conv, exactness.conv),
    **_rows(Row(sliding.conv, INTEGERS), "ConvInteger QLinearConv"),
    "ConvTranspose": _guarded(sliding.conv_transpose, exactness.conv_transpose),
    "MaxPool": _guarded(sliding.pool, exactness.whole_lines, ANY),
    "AveragePool": _guarded(sliding.pool, exactness.average),
    "GlobalAveragePool": Row(sliding.global_pool, WHOLE_LINES, FLOAT),
    "GlobalMaxPool": Row(sliding.global_pool, MOVED),
    # Ops that move elements.
    "Concat": Row(shaping.concat, MOVED),
    "DepthToSpace": Row(shaping.depth_to_space, MOVED),
    "Expand": Row(reshaping.expand, MOVED),
    "Flatten": Row(reshaping.keeps_its_form, MOVED),
    "Gather": Row(shaping.gather, MOVED),
    "GatherElements": Row(shaping.gather_elements, MOVED),
    "Pad": Row(reshaping.pad, MOVED),
    "Reshape": Row(reshaping.reshape, MOVED),
    "Slice": Row(shaping.slice_, MOVED),
    "SpaceToDepth": Row(shaping.space_to_depth, MOVED),
    "Split": Row(shaping.split, MOVED),
    "Squeeze": Row(reshaping.squeeze, MOVED),
    "Transpose": Row(shaping.transpose, MOVED),
    "Unsqueeze": Row(reshaping.keeps_its_form, MOVED),
    # Interpolation.
    **_rows(
        Row(
            resizing.resize,
            "positions have the bits of the whole: they differ by whole numbers, or are computed "
            "beforehand",
        ),
        "Resize Upsample",
    ),
    "GridSample": Row(
        shaping.grid_sample, "each element is computed by itself, from a position that is given"
    ),
    # Matrix products.
    "Einsum": _guarded(matrices.einsum, exactness.einsum),
    "Gemm": _guarded(matrices.gemm, exactness.product),
    "MatMul": _guarded(matrices.matmul, exactness.product),
    "MatMulInteger": Row(matrices.matmul, INTEGERS),
    "QLinearMatMul": Row(matrices.qlinear_matmul, INTEGERS),
    # Whole along some axes.
    **_rows(Row(matrices.softmax, WHOLE_LINES, FLOAT), "LogSoftmax Softmax"),
    **_rows(
        Row(matrices.layer_norm, WHOLE_LINES, FLOAT),
        "LayerNormalization RMSNormalization SimplifiedLayerNormalization",
    ),
    **_rows(Row(matrices.one_axis, WHOLE_LINES, FLOAT), "CumSum LpNormalization"),
    "InstanceNormalization": _guarded(matrices.instance_norm, exactness.statistics),
    **_rows(Row(matrices.reduction, MOVED), "ArgMax ArgMin"),
    **_rows(
        Row(matrices.reduction, WHOLE_LINES, FLOAT), "ReduceL1 ReduceL2 ReduceProd ReduceSumSquare"
    ),
    **_rows(_guarded(matrices.reduction, exactness.all_of), "ReduceMean ReduceSum"),
    **_rows(
        _guarded(matrices.reduction, exactness.all_of, COUNTS | {"float"}), "ReduceMax ReduceMin"
    ),
    # What the runtime's optimizations make.
    **{blocked.PREFIX + op: Row(make, ALONE, FLOAT) for op, make in blocked.RULES.items()},
    "FusedConv": _guarded(sliding.conv, exactness.conv),
    "FusedGemm": _guarded(matrices.gemm, exactness.product),
    "FusedMatMul": _guarded(matrices.fused_matmul, exactness.product),
    "BiasGelu": Row(pointwise.elementwise, ONE_FORMULA, FLOAT),
    **_rows(
        Row(matrices.skip_layer_norm, WHOLE_LINES, FLOAT),
        "SkipLayerNormalization SkipSimplifiedLayerNormalization",
    ),
}

WHOLE = {
    "GroupNormalization": "its statistics go over channels",
    **dict.fromkeys(
        ("LRN", "MeanVarianceNormalization"), "its statistics or sums go over channels"
    ),
    **dict.fromkeys(("GRU", "LSTM", "RNN"), "a step needs the one before"),
    **dict.fromkeys(("If", "Loop", "Scan"), "it runs a graph of its own"),
    "NonZero": "its shape depends on the data",
    **dict.fromkeys(
        ("QLinearAdd", "QLinearMul"), "what lies between two integers goes up or down by its place"
    ),
    "DynamicQuantizeLinear": "its scale needs the least and greatest of all elements",
}
"""Ops that are always made whole, and why."""


def rule(site: Site) -> Rule:
    """How the node makes a part of its output. Raises CannotTile if that is not known."""
    row = ROWS.get(site.op)
    if row is None:
        raise CannotTile(f"{site.op}: {WHOLE.get(site.op, 'not known how to make a part of it')}")
    if site.blocked and not site.op.startswith(blocked.PREFIX):
        return blocked.transparent(site, row.make)
    return row.make(site)


def guard(site: Site, made_by: Rule, threads: int) -> Guard:
    """The guard of a node that has a rule. Raises CannotTile if no tile of it is known to be
    exact."""
    row = ROWS[site.op]
    if row.types is not None and _type(site) not in row.types:
        raise CannotTile(f"{site.op}: tiles of {_type(site)} were not measured")
    return row.guard(site, made_by, threads) if row.guard else exactness.anything


def may_round(site: Site) -> bool:
    """Whether tiles of a node that has a rule can differ in bits at all."""
    row = ROWS[site.op]
    return row.guard is not None or (row.types is not None and _type(site) not in row.types)


def _type(site: Site) -> str:
    kind = site.outputs[0]
    return "an unknown type" if kind is None else kind.dtype
