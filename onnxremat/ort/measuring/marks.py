"""A copy of a model in which the end of every node shows in a record of its allocations.

After each node stands a mark: an Add whose output has a size that no value of the model has, and
which reads the mark before it and the Size of something that the node made. So marks are made in
the order of the nodes, each after its node, wherever the runtime puts the nodes that it adds
itself; and whoever sees the allocations of a run sees from the marks which node was running (see
`heap_trace`). Buffers are given back when they were without marks: Size starts as soon as its
input is there.
"""

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

import onnx
from onnx import TensorProto, helper

from onnxremat.importer.execution_order import EAGER_OPS
from onnxremat.importer.nodes import is_constant, reads
from onnxremat.importer.values import ValueType

_PREFIX = "onnxremat_mark_"
_FEWEST_ELEMENTS = 1032
_ITEM_BYTES = 8
_ALIGNED_BYTES = 64
"""The runtime's allocator rounds sizes up to a multiple of this; those of marks are one."""
_OLDEST_OPSET = 7
"""From here on Add broadcasts."""
_NEW_OPSET = 17


@dataclass(frozen=True)
class MarkedModel:
    """`model` makes a value of `mark_bytes` after each of `nodes` (indices into the nodes of the
    model that was marked), in this order. What runs between one mark and the next is the node, and
    Shape and Size nodes, which have no marks."""

    model: onnx.ModelProto
    mark_bytes: int
    nodes: tuple[int, ...]


def marked_copy(
    model: onnx.ModelProto,
    order: Sequence[int],
    outputs: Mapping[int, Sequence[ValueType | None]],
) -> MarkedModel | None:
    """`model` with marks, its nodes in `order` (indices, as they execute, without Constants).

    `outputs` are the types of what nodes make, None for what is no tensor. None if the model is of
    an opset without marks (before 7). O(nodes + values).
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    if not _has_marks(copy):
        return None
    nodes = model.graph.node
    values = [kind for made in outputs.values() for kind in made if kind and kind.has_size]
    taken = {-(-kind.nbytes // _ALIGNED_BYTES) * _ALIGNED_BYTES for kind in values}
    elements = _FEWEST_ELEMENTS
    while elements * _ITEM_BYTES in taken:
        elements += _ALIGNED_BYTES // _ITEM_BYTES
    read = {name for node in nodes for name in reads(node)}
    read.update(value.name for value in model.graph.output)
    placed = [node for node in nodes if is_constant(node)]
    last, marked = f"{_PREFIX}start", []
    copy.graph.initializer.append(
        helper.make_tensor(last, TensorProto.INT64, [elements], [1] * elements)
    )
    for v in order:
        placed.append(nodes[v])
        if nodes[v].op_type in EAGER_OPS:
            continue
        other, mark = last, f"{_PREFIX}{v}"
        shown = _shown_output(nodes[v], outputs.get(v, ()), read)
        if shown is not None:
            other = f"{_PREFIX}size_{v}"
            placed.append(helper.make_node("Size", [shown], [other], name=other))
        placed.append(helper.make_node("Add", [last, other], [mark], name=mark))
        last = mark
        marked.append(v)
    placed = [_copied(node) for node in placed]
    del copy.graph.node[:]
    copy.graph.node.extend(placed)
    return MarkedModel(copy, elements * _ITEM_BYTES, tuple(marked))


def _has_marks(model: onnx.ModelProto) -> bool:
    """Whether Add broadcasts in the model's opset; without any opset of ONNX it gets one."""
    versions = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if not versions:
        model.opset_import.append(helper.make_opsetid("", _NEW_OPSET))
    return min(versions, default=_NEW_OPSET) >= _OLDEST_OPSET


def _shown_output(
    node: onnx.NodeProto, types: Sequence[ValueType | None], read: Container[str]
) -> str | None:
    """An output whose Size changes nothing: a tensor that others read, too (the runtime holds what
    nobody reads to the end). None if there is none; the mark is then only behind the last one."""
    outputs: Sequence[str] = node.output
    for name, kind in zip(outputs, types, strict=False):
        if name and kind is not None and name in read:
            return name
    return None


def _copied(node: onnx.NodeProto) -> onnx.NodeProto:
    """Nodes of a graph cannot be cleared and added again."""
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy
