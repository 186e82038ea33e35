"""onnx's own shape inference and inliner, whose refusals take many forms."""

import onnx
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]
from onnx import GraphProto, ModelProto
from onnx.checker import ValidationError
from onnx.defs import SchemaError
from onnx.shape_inference import InferenceError

from onnxremat.importer.calls import all_graphs

ONNX_ERRORS: tuple[type[Exception], ...] = (
    InferenceError,
    SchemaError,
    ValidationError,
    RuntimeError,
    ValueError,
    TypeError,
    LookupError,
    OverflowError,
    MemoryError,
    DecodeError,
    EncodeError,
)
"""What onnx's compiled parts raise for a model that they do not take; what the C++ standard library
throws becomes one of Python's own errors."""

MOST_PROPAGATED = 1_000_000
"""Elements of a value that inference may compute: with more, it takes seconds and gigabytes."""


def infer_shapes(model: ModelProto, *, data_prop: bool = False) -> ModelProto | None:
    """The model with the types that onnx infers; None if it gives up, which it does on the whole
    model when one node is beyond it.

    `data_prop`: small values are computed, too. onnx then writes down every element of all values
    of one dimension, whether they are shapes or sounds; where types alone show that one is longer
    than MOST_PROPAGATED, nothing is computed.
    """
    plain = _inferred(model, data_prop=False)
    if plain is None or not data_prop or _longest_row(plain.graph) > MOST_PROPAGATED:
        return plain
    return _inferred(model, data_prop=True) or plain


def _inferred(model: ModelProto, *, data_prop: bool) -> ModelProto | None:
    try:
        return onnx.shape_inference.infer_shapes(model, data_prop=data_prop)
    except ONNX_ERRORS:
        return None


def _longest_row(graph: GraphProto) -> int:
    """The most elements of a value of one dimension, in the graph and in bodies."""
    longest = 0
    for one in all_graphs(graph):
        for value in (*one.input, *one.value_info, *one.output):
            dims = value.type.tensor_type.shape.dim
            if len(dims) == 1:
                longest = max(longest, dims[0].dim_value)
        for tensor in one.initializer:
            if len(tensor.dims) == 1:
                longest = max(longest, tensor.dims[0])
    return longest
