"""View ops: nodes whose first output is the bytes of their first input, under another shape.

A view makes no bytes. It is no Op of the graph: a reader of a view reads the view's *root*, the
tensor whose bytes they are, and also what the view itself needed beyond its first input (a
computed shape). Views may stand on views; the root is at the end of the chain.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from onnx import NodeProto

from onnxremat.importer.constants import Constants, small_value
from onnxremat.importer.load import LoadedModel
from onnxremat.importer.nodes import op_key, reads
from onnxremat.importer.purity import inference_dropout
from onnxremat.importer.values import ValueType

VIEW_OPS = frozenset(
    {
        "Reshape",
        "Flatten",
        "Squeeze",
        "Unsqueeze",
        "Identity",
        "Dropout",
        "Cast",
    }
)
"""Standard ops that can be views. A runtime's own set may be smaller. Dropout counts only in
inference and Cast only to the type it has: see `is_view`."""


@dataclass(frozen=True, slots=True)
class View:
    """A value made by view node `node` (an index) from the bytes of value `source`."""

    node: int
    source: str


def find_views(
    loaded: LoadedModel,
    constants: Constants,
    types: Mapping[str, ValueType],
    view_ops: Collection[str],
) -> dict[str, View]:
    """Every value that is a view, by name. Nodes that are constants are none."""
    graph = loaded.model.graph
    outputs = {value.name for value in graph.output}
    read = outputs.union(*(reads(node) for node in graph.node))
    views = {}
    for index, node in enumerate(graph.node):
        if index in constants.nodes or op_key(node) not in view_ops:
            continue
        if is_view(node, loaded, constants, types, read) and node.output[0] not in outputs:
            views[node.output[0]] = View(index, node.input[0])
    return views


def is_view(
    node: NodeProto,
    loaded: LoadedModel,
    constants: Constants,
    types: Mapping[str, ValueType],
    read: Collection[str],
) -> bool:
    """Whether a node of a view op type really is one.

    Its first output must exist and no other output be read; a Dropout must be in inference, a
    Cast must not change the type. (A view that is a graph output is copied by the runtime; that
    is for `find_views` to see.)
    """
    if not node.input or not node.input[0] or not node.output[0]:
        return False
    if any(name in read for name in node.output[1:] if name):
        return False
    if node.op_type == "Dropout":
        return inference_dropout(node, loaded.opset, training_mode(node, loaded, constants))
    if node.op_type == "Cast":
        source, target = types.get(node.input[0]), types.get(node.output[0])
        return source is not None and target is not None and source.dtype == target.dtype
    return True


def training_mode(node: NodeProto, loaded: LoadedModel, constants: Constants) -> bool | None:
    """The constant third input of a Dropout; None if it has none that is constant."""
    if len(node.input) < 3 or node.input[2] not in constants.stored:
        return None
    value = small_value(constants.stored[node.input[2]], loaded)
    return None if value is None else bool(np.any(value))


def chain(name: str, views: Mapping[str, View]) -> Iterator[View]:
    """The views between `name` and its root, from `name` on; empty if `name` is no view."""
    while name in views:
        view = views[name]
        yield view
        name = view.source


def root_of(name: str, views: Mapping[str, View]) -> str:
    """The value whose bytes `name` is: itself, unless it is a view. O(length of the chain)."""
    for view in chain(name, views):
        name = view.source
    return name


def roots(views: Mapping[str, View]) -> dict[str, str]:
    """`root_of` every view; `views` stand in the order of their nodes. O(views)."""
    found: dict[str, str] = {}
    for name, view in views.items():
        found[name] = found.get(view.source, view.source)
    return found


def operands_of(name: str, views: Mapping[str, View], nodes: Sequence[NodeProto]) -> Iterator[str]:
    """Roots of what the chain of `name` needs beside its root (a computed shape), not unique.

    A shape may itself be a view, which has a chain and operands of its own; a view that is met
    again is not followed again.
    """
    waiting, seen = [name], set[str]()
    while waiting:
        one = waiting.pop()
        while one in views and one not in seen:
            seen.add(one)
            view = views[one]
            for operand in nodes[view.node].input[1:]:
                if operand:
                    yield root_of(operand, views)
                    waiting.append(operand)
            one = view.source
