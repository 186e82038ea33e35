"""onnx's own shape inference and inliner, whose refusals take many forms."""

import onnx
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]
from onnx import ModelProto

ONNX_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    MemoryError,
    DecodeError,
    EncodeError,
)
"""What onnx's compiled parts raise for a model that they do not take: its own errors are among
these, and whatever the C++ standard library throws becomes one of them."""


def infer_shapes(model: ModelProto, *, data_prop: bool = False) -> ModelProto | None:
    """The model with the types that onnx infers; None if it gives up, which it does on the whole
    model when one node is beyond it."""
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=data_prop)
    except ONNX_ERRORS:
        return None
