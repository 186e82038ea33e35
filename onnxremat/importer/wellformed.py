"""What every later step takes for granted of a model, whatever program or person wrote the file.

Names are text, sizes are numbers of elements, element types and attribute types exist, bodies are
nested as deep as a file can nest them, functions come to an end. A file that breaks one of these
is refused here, in words; the runtime would refuse it, too, or do something else than was meant.
"""

from collections.abc import Iterable, Sequence

from onnx import (
    AttributeProto,
    FunctionProto,
    GraphProto,
    ModelProto,
    NodeProto,
    OperatorSetIdProto,
    TensorProto,
    ValueInfoProto,
)

from onnxremat.core.errors import ModelError
from onnxremat.core.text import printable
from onnxremat.core.units import LARGEST_SIZE
from onnxremat.importer.calls import all_graphs, check_calls
from onnxremat.importer.nodes import subgraphs
from onnxremat.importer.sorting import describe
from onnxremat.importer.values import MOST_DIMENSIONS, dtype_name, tensor_type

_LARGEST_VERSION = 2**31 - 1
_ATTRIBUTE_TYPES = frozenset(AttributeProto.AttributeType.values()) - {AttributeProto.UNDEFINED}
_SHOWN = 60

_NUMBERS = (
    "float_data", "int32_data", "int64_data", "double_data", "uint64_data", "string_data",
)  # fmt: skip
_ELEMENTS_A_NUMBER = 4
"""At most: the smallest elements have two bits, and share the last byte of a number."""


def check_well_formed(model: ModelProto) -> None:
    """Raise ModelError, naming the place, if a later step could not rely on the model. O(size)."""
    _check_opsets(model.opset_import)
    for function in model.functions:
        _check_function(function)
    check_calls(model)
    for graph in all_graphs(model.graph):
        _check_graph(graph)


def check_references(graph: GraphProto) -> None:
    """Raise ModelError for an attribute that refers to one of a function: in a graph, where the
    functions have been expanded, there is none that it could have the value of."""
    for one in all_graphs(graph):
        for index, node in enumerate(one.node):
            for attribute in node.attribute:
                if attribute.ref_attr_name:
                    raise ModelError(
                        f"attribute {attribute.name!r} of {describe(node, index)} refers to "
                        f"{attribute.ref_attr_name!r} of a function, but is in none"
                    )


def _check_graph(graph: GraphProto) -> None:
    _require_text("the name of a graph", [graph.name])
    for value in (*graph.input, *graph.output, *graph.value_info):
        _check_value(value)
    for value in graph.input:
        kind = value.type.tensor_type.elem_type
        if value.type.HasField("tensor_type") and dtype_name(kind) == "undefined":
            raise ModelError(
                f"graph input {value.name!r} has element type {kind}, which does not exist"
            )
    for tensor in graph.initializer:
        _check_tensor(tensor, "initializer")
    for sparse in graph.sparse_initializer:
        _check_tensor(sparse.values, "sparse initializer")
        _check_tensor(sparse.indices, "the indices of sparse initializer")
        _check_dims(sparse.dims, f"sparse initializer {sparse.values.name!r}")
    _check_nodes(graph.node)


def _check_opsets(opsets: Iterable[OperatorSetIdProto]) -> None:
    for opset in opsets:
        _require_text("the domain of an operator set", [opset.domain])
        if not 0 <= opset.version <= _LARGEST_VERSION:
            raise ModelError(f"operator set {opset.domain!r} has version {opset.version}")


def _check_function(function: FunctionProto) -> None:
    _require_text("the name of a function", [function.name, function.domain, function.overload])
    names = (*function.input, *function.output, *function.attribute)
    _require_text(f"a name in function {function.name!r}", names)
    _check_opsets(function.opset_import)
    for value in function.value_info:
        _check_value(value)
    for default in function.attribute_proto:
        _check_attribute(default, f"function {function.name!r}")
    _check_nodes(function.node)
    for node in function.node:
        for body in subgraphs(node):
            for graph in all_graphs(body):
                _check_graph(graph)


def _check_nodes(nodes: Sequence[NodeProto]) -> None:
    for index, node in enumerate(nodes):
        if not all(isinstance(name, str) for name in _texts(node)):
            raise ModelError(f"node {index} has text that is not UTF-8: {_not_utf8(_texts(node))}")
        for attribute in node.attribute:
            _check_attribute(attribute, describe(node, index))


def _texts(node: NodeProto) -> tuple[object, ...]:
    """Those strings of a node that are names; protobuf gives the bytes of what is not UTF-8."""
    return (node.op_type, node.domain, node.name, node.overload, *node.input, *node.output)


def _check_attribute(attribute: AttributeProto, where: str) -> None:
    _require_text(f"the name of an attribute of {where}", [attribute.name, attribute.ref_attr_name])
    if attribute.type not in _ATTRIBUTE_TYPES and not attribute.ref_attr_name:
        raise ModelError(f"attribute {attribute.name!r} of {where} has no type")
    if attribute.type == AttributeProto.TENSOR and not attribute.ref_attr_name:
        _check_tensor(attribute.t, f"attribute {attribute.name!r} of {where}, tensor")
    for tensor in attribute.tensors:
        _check_tensor(tensor, f"attribute {attribute.name!r} of {where}, tensor")
    if attribute.type == AttributeProto.SPARSE_TENSOR:
        _check_tensor(attribute.sparse_tensor.values, f"attribute of {where}, sparse tensor")
        _check_dims(attribute.sparse_tensor.dims, f"attribute {attribute.name!r} of {where}")


def _check_value(value: ValueInfoProto) -> None:
    _require_text("the name of a value", [value.name])
    dims = value.type.tensor_type.shape.dim
    _require_text(f"a dimension of value {value.name!r}", (dim.dim_param for dim in dims))


def _check_tensor(tensor: TensorProto, what: str) -> None:
    _require_text(f"the name of {what}", [tensor.name])
    label = f"{what} {tensor.name!r}"
    if dtype_name(tensor.data_type) == "undefined":
        raise ModelError(f"{label} has element type {tensor.data_type}, which does not exist")
    _check_dims(tensor.dims, label)
    if tensor.data_location != TensorProto.EXTERNAL:
        _check_data(tensor, label)
    for entry in tensor.external_data:
        _require_text(f"the external data of {label}", [entry.key, entry.value])
        if entry.key in ("offset", "length"):
            _check_position(entry.key, entry.value, label)


def _check_data(tensor: TensorProto, label: str) -> None:
    """A tensor that does not hold what it declares: the runtime's shape inference makes room for
    all of it (at least twice) before it says so, and does not look at what nobody reads."""
    kind, held = tensor_type(tensor), len(tensor.raw_data)
    if held and kind.has_size:
        fits = held == kind.nbytes
    else:
        numbers = sum(len(getattr(tensor, name)) for name in _NUMBERS)
        fits = kind.elements <= _ELEMENTS_A_NUMBER * numbers
    if not fits:
        shown = printable(str(list(tensor.dims)), _SHOWN)
        raise ModelError(f"{label} has shape {shown}, but not the data of that")


def _check_position(key: str, value: str, label: str) -> None:
    """Offsets and lengths are written as text."""
    digits = value.isascii() and value.isdecimal() and len(value) <= len(str(LARGEST_SIZE))
    if not digits or int(value) > LARGEST_SIZE:
        raise ModelError(f"{label}: the {key} of its external data is {value!r}, no size")


def _check_dims(dims: Iterable[int], label: str) -> None:
    sizes = tuple(dims)
    if any(size < 0 for size in sizes):
        shown = printable(str(list(sizes)), _SHOWN)
        raise ModelError(f"{label} has a negative size: {shown}")
    if len(sizes) > MOST_DIMENSIONS:
        raise ModelError(
            f"{label} has {len(sizes)} dimensions; values of at most {MOST_DIMENSIONS} can be read"
        )


def _require_text(what: str, texts: Iterable[object]) -> None:
    found = tuple(texts)
    if not all(isinstance(text, str) for text in found):
        raise ModelError(f"{what} is not UTF-8: {_not_utf8(found)}")


def _not_utf8(texts: Iterable[object]) -> str:
    return printable(repr(next(text for text in texts if isinstance(text, bytes))), _SHOWN)
