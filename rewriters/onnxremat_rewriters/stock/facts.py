"""What can be told of a model's values before it runs: which are constant, tensors, of known shape.

This is what a runtime can tell too, so it decides what has to be hidden from it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from onnxremat.importer.inference import infer_shapes
from onnxremat.importer.nodes import (
    FIRST_IR_WITH_FREE_INITIALIZERS,
    has_subgraph,
    op_key,
    replaceable,
)
from onnxremat.importer.purity import is_pure
from onnxremat.importer.values import tensor_type

_SHAPE_DATA_BYTES = 4096


@dataclass(frozen=True)
class RuntimeConstants:
    """Values that are the same in every run: `stored` ones, and all `names`.

    `stored` are initializers that a caller cannot override. `nodes` are the indices of Constant
    nodes and of nodes that a runtime folds because they are pure and read constants alone.
    """

    stored: frozenset[str]
    names: frozenset[str]
    nodes: frozenset[int]


def find_constants(model: onnx.ModelProto) -> RuntimeConstants:
    """The constants of the top-level graph. O(nodes + reads)."""
    graph = model.graph
    stored = {tensor.name for tensor in graph.initializer}
    stored.update(tensor.values.name for tensor in graph.sparse_initializer)
    stored -= replaceable(model)
    outputs = {value.name for value in graph.output}
    names = set(stored)
    nodes = set()
    for index, node in enumerate(graph.node):
        inputs = [name for name in node.input if name]
        folded = (
            bool(inputs)
            and names.issuperset(inputs)
            and outputs.isdisjoint(node.output)
            and is_pure(node)
            and not has_subgraph(node)
        )
        if folded or op_key(node) == "Constant":
            nodes.add(index)
            names.update(name for name in node.output if name)
    return RuntimeConstants(frozenset(stored), frozenset(names), frozenset(nodes))


def inferred_types(
    model: onnx.ModelProto, nodes: Sequence[onnx.NodeProto]
) -> dict[str, onnx.TypeProto]:
    """What shape inference says of the values of a graph with these nodes instead of its own.

    Empty if inference fails.
    """
    source = model.graph
    light = onnx.ModelProto(
        ir_version=max(model.ir_version, FIRST_IR_WITH_FREE_INITIALIZERS),
        opset_import=model.opset_import,
        functions=model.functions,
    )
    graph = light.graph
    graph.name = "facts"
    graph.node.extend(nodes)
    stored = set()
    for tensor in source.initializer:
        stored.add(tensor.name)
        kind = tensor_type(tensor)
        external = tensor.data_location == onnx.TensorProto.EXTERNAL
        if kind.has_size and kind.nbytes <= _SHAPE_DATA_BYTES and not external:
            graph.initializer.append(tensor)
        else:
            shape = list(tensor.dims)
            info = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, shape)
            graph.input.append(info)
    graph.input.extend(value for value in source.input if value.name not in stored)
    for value in source.output:
        output = graph.output.add(name=value.name)
        output.type.CopyFrom(value.type)
    graph.value_info.extend(source.value_info)
    inferred = infer_shapes(light, data_prop=True)
    if inferred is None:
        return {}
    done = inferred.graph
    values = (*done.input, *done.value_info, *done.output)
    types = {value.name: value.type for value in values}
    for tensor in done.initializer:
        types[tensor.name] = onnx.helper.make_tensor_type_proto(tensor.data_type, tensor.dims)
    return types


def is_tensor(name: str, types: dict[str, onnx.TypeProto]) -> bool:
    """Whether a value is a tensor; one that nothing is known of counts as one."""
    kind = types[name].WhichOneof("value") if name in types else None
    return kind in (None, "tensor_type")
