"""Topological order of a file's nodes.

Valid ONNX files list producers before readers, and some real files do not. The order made here
is the smallest valid one: of the nodes that are ready, always the first in the file. A valid
file order is therefore kept as it is.
"""

from collections.abc import Collection, Sequence
from heapq import heapify, heappop, heappush

from onnx import NodeProto

from onnxremat.core.errors import ModelError
from onnxremat.importer.nodes import reads


def sorted_nodes(nodes: Sequence[NodeProto], available: Collection[str]) -> tuple[int, ...]:
    """Indices of `nodes` in topological order, stable. O(n log n + reads).

    `available` are the values that exist before any node runs: graph inputs and initializers.
    Raises ModelError if a value is made twice, is read but never made, or depends on itself.
    """
    producer = _producers(nodes, available)
    waiting = [0] * len(nodes)
    readers: list[list[int]] = [[] for _ in nodes]
    for index, node in enumerate(nodes):
        for name in set(reads(node)):
            if name in producer:
                readers[producer[name]].append(index)
                waiting[index] += 1
            elif name not in available:
                raise ModelError(f"{describe(node, index)} reads {name!r}, which nothing makes")
    ready = [index for index, count in enumerate(waiting) if count == 0]
    heapify(ready)
    order = []
    while ready:
        index = heappop(ready)
        order.append(index)
        for reader in readers[index]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heappush(ready, reader)
    if len(order) < len(nodes):
        stuck = _on_cycle(nodes, producer, {i for i, count in enumerate(waiting) if count > 0})
        raise ModelError(
            f"the graph has a cycle: {describe(nodes[stuck], stuck)} waits for its own result"
        )
    return tuple(order)


def describe(node: NodeProto, index: int) -> str:
    """How messages name a node."""
    name = f" {node.name!r}" if node.name else ""
    return f"node {index} ({node.op_type}{name})"


def _producers(nodes: Sequence[NodeProto], available: Collection[str]) -> dict[str, int]:
    producer: dict[str, int] = {}
    for index, node in enumerate(nodes):
        for name in node.output:
            if not name:
                continue
            if name in producer or name in available:
                raise ModelError(f"value {name!r} is made twice, again by {describe(node, index)}")
            producer[name] = index
    return producer


def _on_cycle(nodes: Sequence[NodeProto], producer: dict[str, int], stuck: set[int]) -> int:
    """A node that waits for itself: walk from one that is stuck to what it waits for, and so on."""
    index, seen = min(stuck), set[int]()
    while index not in seen:
        seen.add(index)
        made_by = (producer.get(name, -1) for name in reads(nodes[index]))
        index = next(maker for maker in made_by if maker in stuck)
    return index
