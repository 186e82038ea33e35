"""The table of receptive-field arithmetic: for each op, which inputs a box of its output needs.

    Site (a node and its shapes) -> rule(site) -> Rule -> Step (input boxes, changed attributes)

Ops that are not in the table cannot be cut: they end a region.
"""

from collections.abc import Callable, Mapping

from onnxremat_rewriters.tile import pointwise, shaping, windows
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
        "Swish",
        "Tan",
        "Tanh",
        "ThresholdedRelu",
        "Where",
        "Xor",
    }
)

RULES: Mapping[str, Callable[[Site], Rule]] = {
    **dict.fromkeys(ELEMENTWISE, pointwise.elementwise),
    "Clip": pointwise.first_only,
    "Dropout": pointwise.first_only,
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
}


def rule(site: Site) -> Rule:
    """How the node makes a part of its output. Raises CannotTile if that is not known."""
    make = RULES.get(site.op)
    if make is None:
        raise CannotTile(f"{site.op}: not known how to make a part of it")
    return make(site)
