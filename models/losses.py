"""Losses in standard ONNX operators, appended to the one output of a forward model.

The target is a new graph input of the prediction's shape; the loss has rank 0.
"""

from collections.abc import Callable
from typing import Any

from onnx import NodeProto, helper

Loss = Callable[[str, str], list[NodeProto]]
"""(prediction, target) to the operators that compute the tensor `loss` from them."""


def mean_squared_error(prediction: str, target: str) -> list[NodeProto]:
    """The mean over all elements of (prediction - target) ** 2."""
    return [
        _node("Sub", [prediction, target], "loss/difference"),
        _node("Mul", ["loss/difference", "loss/difference"], "loss/square"),
        _node("ReduceMean", ["loss/square"], "loss", keepdims=0),
    ]


def cross_entropy(prediction: str, target: str) -> list[NodeProto]:
    """The mean over samples (and pixels) of -sum(target * log softmax(prediction)) over axis 1.

    `target` holds probabilities: a one-hot vector is the usual label. Dividing by the number of
    samples is left to ReduceMean, which averages over what is left when axis 1 is gone.
    """
    return [
        _node("LogSoftmax", [prediction], "loss/log_softmax", axis=1),
        _node("Mul", [target, "loss/log_softmax"], "loss/product"),
        _node("ReduceSum", ["loss/product", "loss/axis"], "loss/sum", keepdims=0),
        _node("Neg", ["loss/sum"], "loss/entropy"),
        _node("ReduceMean", ["loss/entropy"], "loss", keepdims=0),
    ]


LOSSES: dict[str, tuple[str, Loss]] = {
    "mse": ("target", mean_squared_error),
    "cross_entropy": ("target_probabilities", cross_entropy),
}
"""Name of a loss to (name of its target input, its operators)."""

CONSTANTS = {"loss/axis": [1]}
"""int64 constants that the losses read."""


def _node(op_type: str, inputs: list[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(op_type, inputs, [output], output, **attributes)
