"""The table of receptive-field arithmetic: for each op, which inputs a box of its output needs.

    Site (a node and its shapes) -> rule(site) -> Rule -> Step (input boxes, changed attributes)

Ops that are not in the table cannot be cut: they end a region.
"""

from collections.abc import Callable, Mapping

from onnxremat_rewriters.tile import matrices, pointwise, reshaping, resizing, shaping, windows
from onnxremat_rewriters.tile.view import CannotTile, Rule, Site

ELEMENTWISE = frozenset(
    {
        "Abs",
        "Add",
        "And",
        "Atan",
        "BitwiseAnd",
        "BitwiseNot",
        "BitwiseOr",
        "BitwiseXor",
        "Cast",
        "Ceil",
        "Celu",
        "Cos",
        "Div",
        "Elu",
        "Equal",
        "Erf",
        "Exp",
        "FastGelu",
        "Floor",
        "Gelu",
        "Greater",
        "GreaterOrEqual",
        "HardSigmoid",
        "HardSwish",
        "Identity",
        "IsInf",
        "IsNaN",
        "LeakyRelu",
        "Less",
        "LessOrEqual",
        "Log",
        "Max",
        "Mean",
        "Min",
        "Mish",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "PRelu",
        "Pow",
        "QuickGelu",
        "QLinearAdd",
        "QLinearLeakyRelu",
        "QLinearMul",
        "QLinearSigmoid",
        "Reciprocal",
        "Relu",
        "Round",
        "Selu",
        "Sigmoid",
        "Sign",
        "Sin",
        "Softplus",
        "Softsign",
        "Sqrt",
        "Sub",
        "Sum",
        "Tan",
        "Tanh",
        "ThresholdedRelu",
        "Where",
        "Xor",
    }
)

REDUCTIONS = frozenset(
    {
        "ArgMax",
        "ArgMin",
        "ReduceL1",
        "ReduceL2",
        "ReduceMax",
        "ReduceMean",
        "ReduceMin",
        "ReduceProd",
        "ReduceSum",
        "ReduceSumSquare",
    }
)

RULES: Mapping[str, Callable[[Site], Rule]] = {
    **dict.fromkeys(ELEMENTWISE, pointwise.elementwise),
    "Clip": pointwise.first_only,
    "Dropout": pointwise.dropout,
    "BatchNormalization": pointwise.per_channel,
    "QuantizeLinear": pointwise.quantize,
    "DequantizeLinear": pointwise.quantize,
    "Conv": windows.conv,
    "ConvInteger": windows.conv,
    "QLinearConv": windows.conv,
    "ConvTranspose": windows.conv_transpose,
    "MaxPool": windows.pool,
    "AveragePool": windows.pool,
    "GlobalAveragePool": windows.global_pool,
    "GlobalMaxPool": windows.global_pool,
    "Concat": shaping.concat,
    "Split": shaping.split,
    "Slice": shaping.slice_,
    "Transpose": shaping.transpose,
    "DepthToSpace": shaping.depth_to_space,
    "SpaceToDepth": shaping.space_to_depth,
    "Gather": shaping.gather,
    "Reshape": reshaping.reshape,
    "Squeeze": reshaping.squeeze,
    "Unsqueeze": reshaping.keeps_its_form,
    "Flatten": reshaping.keeps_its_form,
    "Expand": reshaping.expand,
    "Pad": reshaping.pad,
    "Resize": resizing.resize,
    "Upsample": resizing.resize,
    "MatMul": matrices.matmul,
    "MatMulInteger": matrices.matmul,
    "QLinearMatMul": matrices.qlinear_matmul,
    "Gemm": matrices.gemm,
    "Softmax": matrices.softmax,
    "LogSoftmax": matrices.softmax,
    "LayerNormalization": matrices.layer_norm,
    "SimplifiedLayerNormalization": matrices.layer_norm,
    "RMSNormalization": matrices.layer_norm,
    "LpNormalization": matrices.one_axis,
    "CumSum": matrices.one_axis,
    "InstanceNormalization": matrices.instance_norm,
    **dict.fromkeys(REDUCTIONS, matrices.reduction),
}


WHOLE = {
    **dict.fromkeys(
        ("GroupNormalization", "LRN", "MeanVarianceNormalization"),
        "its statistics or sums go over channels",
    ),
    "Einsum": "its equation is not looked into",
    **dict.fromkeys(("GRU", "LSTM", "RNN"), "a step needs the one before"),
    **dict.fromkeys(("If", "Loop", "Scan"), "it runs a graph of its own"),
    "NonZero": "its shape depends on the data",
    "DynamicQuantizeLinear": "its scale needs the least and greatest of all elements",
}
"""Ops that are always made whole, and why."""


def rule(site: Site) -> Rule:
    """How the node makes a part of its output. Raises CannotTile if that is not known."""
    make = RULES.get(site.op)
    if make is None:
        raise CannotTile(f"{site.op}: {WHOLE.get(site.op, 'not known how to make a part of it')}")
    return make(site)
