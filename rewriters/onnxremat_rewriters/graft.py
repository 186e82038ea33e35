"""`graft`: the nodes that a runtime made of a model, in the model that it made them from.

With optimizations off ONNX Runtime still changes a graph when it opens it: functions become their
nodes, Casts stand around what has no kernel for float16, and Casts that change nothing are gone.
It can write the graph that it executes, but that file has lost documentation, metadata, the place
of constants and the order of the nodes. So only the difference is taken from it: a node that is
still there as it was stays as it is, byte for byte, and a model in which nothing differs is
returned itself.

Nodes are told apart by names: the runtime is given `labelled(model)`, and what it writes has the
labels on the nodes that it kept, at every depth. A new node stands where the node stood that it is
a part of (the one that made its output, or else the first of its readers).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto

from onnxremat.importer.nodes import available_names, op_key, reads, subgraphs
from onnxremat.importer.sorting import sorted_nodes
from onnxremat_rewriters.naming import NameSource, node_names

INSERTED_CAST = "InsertedPrecisionFreeCast_"
"""How ONNX Runtime names a Cast that it inserts. A Cast of such a name it removes again where it
would keep any other one, because precision counts: so no node of a file may be called like that."""

_LABEL = "onnxremat_node_"
_SMALL_BYTES = 65536


@dataclass(frozen=True)
class Grafted:
    """`origin[i]` is the index of the node of the argument that node i stands for or is a part of;
    None for one that belongs to none. `changed` is false if `model` is the argument itself."""

    model: ModelProto
    origin: tuple[int | None, ...]
    changed: bool


def labelled(model: ModelProto) -> ModelProto:
    """A copy to be opened by the runtime: every node has a label for a name, and large weights of
    the main graph are inputs, so that no weight is copied or written. O(nodes)."""
    copy = ModelProto(ir_version=model.ir_version)
    copy.opset_import.extend(model.opset_import)
    copy.functions.extend(model.functions)
    graph = copy.graph
    graph.name = model.graph.name
    graph.node.extend(model.graph.node)
    for field in ("input", "output", "value_info", "sparse_initializer", "quantization_annotation"):
        getattr(graph, field).extend(getattr(model.graph, field))
    declared = {value.name for value in graph.input}
    for tensor in model.graph.initializer:
        if _data_bytes(tensor) <= _SMALL_BYTES:
            graph.initializer.append(tensor)
        elif tensor.name not in declared:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    for number, node in enumerate(_all_nodes(graph)):
        prefix = INSERTED_CAST if node.name.startswith(INSERTED_CAST) else ""
        node.name = f"{prefix}{_LABEL}{number}"
    return copy


def graft(model: ModelProto, asked: ModelProto, executed: ModelProto) -> Grafted:
    """`model` with the nodes of `executed`, which the runtime wrote of `asked`, `labelled(model)`.

    Inputs, outputs and weights stay; constants of function bodies are added. O(nodes + reads).
    """
    grafting = _Grafting(NameSource(node_names(model.graph)))
    made = grafting.graph(model.graph, asked.graph, executed.graph)
    if made is None:
        return Grafted(model, tuple(range(len(model.graph.node))), False)
    result = ModelProto()
    result.CopyFrom(model)
    _take(result.graph, made)
    known = {opset.domain for opset in result.opset_import}
    used = {node.domain for node in _all_nodes(result.graph)} - known - {"ai.onnx"}
    result.opset_import.extend(o for o in executed.opset_import if o.domain in used)
    return Grafted(result, made.origin, True)


@dataclass(frozen=True)
class _Made:
    """What changes in a graph: its nodes, what they stand for, new weights, types of values."""

    nodes: Sequence[NodeProto]
    origin: tuple[int | None, ...]
    weights: Sequence[TensorProto]
    value_info: Sequence[onnx.ValueInfoProto]


def _take(graph: GraphProto, made: _Made) -> None:
    del graph.node[:]
    graph.node.extend(made.nodes)
    graph.initializer.extend(made.weights)
    del graph.value_info[:]
    graph.value_info.extend(made.value_info)


class _Grafting:
    """Goes through a model and its two images at once; `names` of nodes are those in use."""

    def __init__(self, names: NameSource) -> None:
        self._names = names

    def graph(self, ours: GraphProto, asked: GraphProto, executed: GraphProto) -> _Made | None:
        """What is to change in `ours`, None if nothing is."""
        index = {node.name: i for i, node in enumerate(asked.node)}
        changed = False
        found: list[tuple[NodeProto, int | None]] = []
        for node in executed.node:
            i = index.get(node.name)
            if i is None:
                found.append((node, None))
                changed = True
            else:
                kept = self._node(ours.node[i], asked.node[i], node)
                found.append((kept or ours.node[i], i))
                changed = changed or kept is not None
        there = {i for _, i in found}
        constants = {i for i, node in enumerate(ours.node) if op_key(node) == "Constant"}
        if not changed and there | constants == set(range(len(ours.node))):
            return None
        found = [(ours.node[i], i) for i in sorted(constants - there)] + found
        return self._made(ours, executed, found)

    def _node(self, ours: NodeProto, asked: NodeProto, executed: NodeProto) -> NodeProto | None:
        """Our node as the runtime has it; None if it is the same."""
        copy = NodeProto()
        copy.CopyFrom(ours)
        changed = False
        for old, new in ((copy.input, executed.input), (copy.output, executed.output)):
            if _without_absent(old) != _without_absent(new):
                del old[:]
                old.extend(new)
                changed = True
        if ours.name.startswith(INSERTED_CAST):
            copy.name = self._names.fresh(ours.name.removeprefix(INSERTED_CAST))
            changed = True
        return copy if self._attributes(copy, asked, executed) or changed else None

    def _attributes(self, copy: NodeProto, asked: NodeProto, executed: NodeProto) -> bool:
        """Give `copy` the runtime's attributes where they differ; whether any did."""
        sent = {attribute.name: attribute for attribute in asked.attribute}
        theirs = {attribute.name: attribute for attribute in executed.attribute}
        changed = False
        for mine in copy.attribute:
            if mine.name not in theirs:
                continue
            before, after = sent[mine.name], theirs[mine.name]
            if mine.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
                bodies = zip(_bodies(mine), _bodies(before), _bodies(after), strict=True)
                for body, ask, made in bodies:
                    new = self.graph(body, ask, made)
                    if new is not None:
                        _take(body, new)
                        changed = True
            elif _value(before) != _value(after):
                mine.CopyFrom(after)
                changed = True
        return changed

    def _made(
        self, ours: GraphProto, executed: GraphProto, found: list[tuple[NodeProto, int | None]]
    ) -> _Made:
        place = _places(ours, found)
        ranked = sorted(range(len(found)), key=lambda k: place[k])
        nodes = [found[k][0] for k in ranked]
        own = {name for node in nodes for name in node.output if name}
        outside = {name for node in nodes for name in reads(node)} - own
        order = [ranked[k] for k in sorted_nodes(nodes, outside)]
        placed = [self._named(*found[k], place[k], ours) for k in order]
        origin = tuple(place[k] if place[k] < len(ours.node) else None for k in order)
        before = available_names(ours) | own | {n for node in ours.node for n in node.output}
        read = {name for node in nodes for name in reads(node)}
        read.update(value.name for value in ours.output)
        weights = [t for t in executed.initializer if t.name in read and t.name not in before]
        return _Made(placed, origin, weights, _value_info(ours, executed, own))

    def _named(
        self, node: NodeProto, origin: int | None, place: int, ours: GraphProto
    ) -> NodeProto:
        """A new node under a name that says what it is a part of; others as they are."""
        if origin is not None:
            return node
        copy = NodeProto()
        copy.CopyFrom(node)
        part_of = ours.node[place] if place < len(ours.node) else node
        base = part_of.name.removeprefix(INSERTED_CAST) or part_of.op_type
        copy.name = self._names.fresh(f"{base}/{node.op_type}")
        for inner in _inner_nodes(copy):
            inner.name = self._names.fresh(f"{copy.name}/{inner.op_type}")
        return copy


def _places(ours: GraphProto, found: Sequence[tuple[NodeProto, int | None]]) -> list[int]:
    """For each node the index of ours beside which it stands."""
    maker = {name: i for i, node in enumerate(ours.node) for name in node.output if name}
    first_read: dict[str, int] = {}
    places = [0] * len(found)
    for k in range(len(found) - 1, -1, -1):
        node, origin = found[k]
        if origin is not None:
            places[k] = origin
        else:
            made = [maker[name] for name in node.output if name in maker]
            read = [first_read[name] for name in node.output if name in first_read]
            places[k] = min(made or read, default=len(ours.node))
        for name in reads(node):
            first_read[name] = min(first_read.get(name, places[k]), places[k])
    return places


def _value_info(
    ours: GraphProto, executed: GraphProto, own: set[str]
) -> Sequence[onnx.ValueInfoProto]:
    """Our statements about values that are still there, with the types that they have now."""
    gone = {name for node in ours.node for name in node.output} - own
    theirs = {value.name: value for value in executed.value_info}
    return [
        theirs[value.name] if _other_type(value, theirs.get(value.name)) else value
        for value in ours.value_info
        if value.name not in gone
    ]


def _other_type(ours: onnx.ValueInfoProto, theirs: onnx.ValueInfoProto | None) -> bool:
    return (
        theirs is not None and ours.type.tensor_type.elem_type != theirs.type.tensor_type.elem_type
    )


def _data_bytes(tensor: TensorProto) -> int:
    """Bytes that the data of a tensor takes at most, wherever it is; of text what the file has."""
    if tensor.data_type == TensorProto.STRING:
        return 0
    count = 16
    for size in tensor.dims:
        count *= size
    return count


def _without_absent(names: Sequence[str]) -> list[str]:
    """Names of inputs or outputs, less the absent ones at the end."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept


def _value(attribute: AttributeProto) -> bytes:
    copy = AttributeProto()
    copy.CopyFrom(attribute)
    copy.ClearField("doc_string")
    copy.ClearField("type")
    content: bytes = copy.SerializeToString(deterministic=True)
    return content


def _bodies(attribute: AttributeProto) -> list[GraphProto]:
    return [attribute.g] if attribute.type == AttributeProto.GRAPH else list(attribute.graphs)


def _inner_nodes(node: NodeProto) -> Iterator[NodeProto]:
    for body in subgraphs(node):
        yield from _all_nodes(body)


def _all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph and of the bodies in it, at every depth."""
    for node in graph.node:
        yield node
        yield from _inner_nodes(node)
