"""Values that are the same in every run: stored tensors, Constant nodes, ops on those alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, SparseTensorProto, TensorProto, numpy_helper
from onnx.helper import get_attribute_value

from onnxremat.core.errors import ModelError
from onnxremat.importer.external import with_data
from onnxremat.importer.load import LoadedModel
from onnxremat.importer.nodes import has_subgraph, op_key
from onnxremat.importer.purity import is_pure
from onnxremat.importer.values import ValueType, tensor_type

SMALL_BYTES = 4096
"""Tensors up to this size may be looked at: they hold shapes, axes and flags, not weights."""


@dataclass(frozen=True)
class Constants:
    """`types` of all constant values by name; `nodes` that make them; `stored` small tensors.

    `nodes` are the indices of Constant nodes and, if constants are folded, of ops on constants
    alone. The types of folded values are not in `types`: shape inference finds them.
    """

    names: frozenset[str]
    nodes: frozenset[int]
    types: dict[str, ValueType]
    stored: dict[str, TensorProto]


def find_constants(loaded: LoadedModel, fold: bool = False) -> Constants:
    """Constants of a model; with `fold` also what pure ops make from constants alone.

    A folded node never runs in a session that optimises, and runs in every run of one that does
    not. Nodes that make a graph output are not folded: their bytes are a result of the run.
    """
    graph = loaded.model.graph
    types = {t.name: tensor_type(t) for t in graph.initializer}
    stored = {t.name: t for t in graph.initializer}
    for sparse in graph.sparse_initializer:
        types[sparse.values.name] = _sparse_type(sparse)
    nodes = set()
    for index, node in enumerate(graph.node):
        if op_key(node) == "Constant":
            nodes.add(index)
            name = node.output[0]
            types[name], tensor = _constant_node(node)
            if tensor is not None:
                stored[name] = tensor
    names = set(types)
    if fold:
        outputs = {value.name for value in graph.output}
        nodes |= _fold(graph.node, names, outputs)
    return Constants(frozenset(names), frozenset(nodes), types, stored)


def small_value(
    tensor: TensorProto, loaded: LoadedModel, limit_bytes: int = SMALL_BYTES
) -> NDArray[np.generic] | None:
    """The data of a small tensor, read from its own file if it is stored there; None if large.

    Raises ModelError if the data is not there or does not fit the tensor's shape.
    """
    kind = tensor_type(tensor)
    if not kind.has_size or kind.nbytes > limit_bytes:
        return None
    try:
        if tensor.data_location == TensorProto.EXTERNAL:
            tensor = with_data(tensor, loaded.base_dir, kind.nbytes)
        value: NDArray[np.generic] = numpy_helper.to_array(tensor)
    except (OSError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise ModelError(f"the data of {tensor.name!r} cannot be read: {reason}") from None
    return value


def _fold(nodes: Sequence[NodeProto], names: set[str], outputs: set[str]) -> set[int]:
    """Nodes that are pure and read constants alone; their outputs are added to `names`."""
    folded = set()
    for index, node in enumerate(nodes):
        inputs = [name for name in node.input if name]
        if (
            inputs
            and names.issuperset(inputs)
            and outputs.isdisjoint(node.output)
            and is_pure(node)
            and not has_subgraph(node)
        ):
            folded.add(index)
            names.update(name for name in node.output if name)
    return folded


def _sparse_type(sparse: SparseTensorProto) -> ValueType:
    """Runtimes hold sparse initializers as dense tensors."""
    return ValueType(tensor_type(sparse.values).dtype, tuple(sparse.dims))


def _constant_node(node: NodeProto) -> tuple[ValueType, TensorProto | None]:
    """The type of what a Constant node makes, and its data unless it is sparse or of strings."""
    for candidate in node.attribute:
        match candidate.name:
            case "value":
                return tensor_type(candidate.t), candidate.t
            case "sparse_value":
                return _sparse_type(candidate.sparse_tensor), None
            case "value_string" | "value_strings":
                single = candidate.name == "value_string"
                return ValueType("string", () if single else (len(candidate.strings),)), None
            case "value_float" | "value_floats":
                return _stored(np.array(get_attribute_value(candidate), np.float32))
            case "value_int" | "value_ints":
                return _stored(np.array(get_attribute_value(candidate), np.int64))
    raise ModelError(f"Constant node {node.name or node.output[0]!r} has no value")


def _stored(value: NDArray[np.generic]) -> tuple[ValueType, TensorProto]:
    tensor = numpy_helper.from_array(value)
    return tensor_type(tensor), tensor
