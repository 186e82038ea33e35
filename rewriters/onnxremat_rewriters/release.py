"""`release`: no value without a reader.

ONNX Runtime derives the release of a buffer from its readers, so a value that nobody reads is
held until the run ends (seen on 1.20 to 1.32). Such values stand in ordinary models: outputs of
dead nodes, the Indices of a MaxPool of which only the values are used, the mask of a Dropout; and
duplicating nodes makes more. Three repairs, all exact and free:

1. a node none of whose outputs is read is dropped, and again until there is none;
2. an optional output that nobody reads is left out;
3. any other unread output gets a `Size` reader right behind its node, which ONNX Runtime runs at
   once: the value is freed there and 8 bytes are held instead.
"""

from collections.abc import Collection
from dataclasses import dataclass

import onnx
from onnx import helper
from onnx.defs import OpSchema

from onnxremat.importer.nodes import reads
from onnxremat_rewriters.naming import NameSource, node_names, value_names


@dataclass(frozen=True)
class Released:
    """A model in which every value is read.

    `origin[i]` is the index of the node of the argument that node i stands for, None for a `Size`
    reader. The counts say how often each repair was made.
    """

    model: onnx.ModelProto
    origin: tuple[int | None, ...]
    dropped_nodes: int
    dropped_outputs: int
    size_readers: int

    @property
    def changed(self) -> bool:
        """Whether anything had to be repaired."""
        return bool(self.dropped_nodes or self.dropped_outputs or self.size_readers)


def release(model: onnx.ModelProto, apart: Collection[str] = ()) -> Released:
    """A copy of `model` in which ONNX Runtime can free every value. O(nodes + reads).

    Values in `apart` get a `Size` reader although they are read: one with a single reader may be
    fused with it, which changes bits. The order of the nodes is kept; it must be topological.
    Subgraph bodies are left as they are.
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    outputs = {value.name for value in graph.output}
    versions = {opset.domain: opset.version for opset in model.opset_import}
    kept = _live_nodes(graph, outputs)
    read = outputs.union(*(set(reads(graph.node[i])) for i in kept)) if kept else outputs
    values, labels = NameSource(value_names(graph)), NameSource(node_names(graph))
    nodes: list[onnx.NodeProto] = []
    origin: list[int | None] = []
    dropped_outputs = 0
    for index in kept:
        node = graph.node[index]
        dropped_outputs += _drop_optional_outputs(node, read, versions.get(node.domain, 1))
        nodes.append(node)
        origin.append(index)
        for name in (*_unread(node, read), *(n for n in node.output if n in apart)):
            wanted = f"{name}__release"
            size = helper.make_node("Size", [name], [values.fresh(wanted)], labels.fresh(wanted))
            nodes.append(size)
            origin.append(None)
    dropped_nodes = len(graph.node) - len(kept)
    nodes = [_copy(node) for node in nodes]
    del graph.node[:]
    graph.node.extend(nodes)
    return Released(result, tuple(origin), dropped_nodes, dropped_outputs, origin.count(None))


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy


def _live_nodes(graph: onnx.GraphProto, outputs: set[str]) -> list[int]:
    """Indices of the nodes that a graph output depends on, ascending.

    A `Size` reader placed by an earlier pass counts as a reader: what it frees stays.
    """
    needed = set(outputs)
    kept: list[int] = []
    for index in range(len(graph.node) - 1, -1, -1):
        node = graph.node[index]
        if any(name in needed for name in node.output if name) or _is_release(node):
            kept.append(index)
            needed.update(reads(node))
    return kept[::-1]


def _is_release(node: onnx.NodeProto) -> bool:
    return node.op_type == "Size" and not node.domain and "__release" in node.output[0]


def _unread(node: onnx.NodeProto, read: set[str]) -> list[str]:
    if node.op_type == "Constant" or _is_release(node):
        return []
    return [name for name in node.output if name and name not in read]


def _drop_optional_outputs(node: onnx.NodeProto, read: set[str], version: int) -> int:
    """Leave out, in place, the optional outputs of `node` that nobody reads; how many."""
    unread = set(_unread(node, read))
    if not unread:
        return 0
    optional = _optional_outputs(node, version)
    dropped = 0
    for i in range(len(node.output) - 1, -1, -1):
        if not optional[i] or (node.output[i] and node.output[i] not in unread):
            continue
        dropped += bool(node.output[i])
        if i == len(node.output) - 1:
            del node.output[i]
        else:
            node.output[i] = ""
    return dropped


def _optional_outputs(node: onnx.NodeProto, version: int) -> list[bool]:
    """For each output of the node, whether its schema says that it may be absent.

    An op without a known schema has none.
    """
    try:
        schema = onnx.defs.get_schema(node.op_type, version, node.domain)
    except onnx.defs.SchemaError:
        return [False] * len(node.output)
    formal = schema.outputs
    optional = OpSchema.FormalParameterOption.Optional
    return [
        formal[min(i, len(formal) - 1)].option == optional if formal else False
        for i in range(len(node.output))
    ]
