"""In which order ONNX Runtime executes the nodes of a graph.

Two orders exist. DEFAULT is a reverse depth-first search from the leaves: leaves are pushed in
the order of the file and producers in ascending index order on one stack, so the highest index
is visited first. PRIORITY_BASED is Kahn's algorithm with a heap: Shape and Size first, then the
lowest index. The index is the position in the file, if nothing renumbers the nodes: that needs
optimizations off and no node that the runtime expands (see `onnxremat.ort.measuring.profile`).

Constant nodes become initializers when a model is loaded and do not execute, and a node with a
subgraph depends on the outer values that its subgraph reads.
Source: `Graph::ReverseDFSFrom` and `Graph::KahnsTopologicalSort` of ONNX Runtime; both
emulations equal 1.31.1 on random graphs.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence

import onnx

from onnxremat.importer.nodes import is_constant, reads

EAGER_OPS = frozenset({"Shape", "Size"})
"""Started as soon as their input exists in PRIORITY_BASED, whatever the order of the file says."""


def priority_order(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """Indices of the nodes that execute, as PRIORITY_BASED runs them. O((n + m) log n).

    `nodes` are the top level of a graph, in the order of the file. Nodes of a cycle are left out.
    """
    producers, readers = _edges(nodes)

    def key(v: int) -> tuple[bool, int]:
        return (nodes[v].op_type not in EAGER_OPS, v)

    return least_first(producers, readers, key)


def least_first(
    producers: Mapping[int, Sequence[int]],
    readers: Mapping[int, Sequence[int]],
    key: Callable[[int], tuple[float, int]],
) -> list[int]:
    """A topological order, the node of the least `key`, which ends with it, first wherever there is
    a choice (Kahn). Nodes of a cycle are left out. O((n + m) log n)."""
    waiting = {v: len(made_by) for v, made_by in producers.items()}
    ready = [key(v) for v, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, v = heapq.heappop(ready)
        order.append(v)
        for reader in readers[v]:
            waiting[reader] -= 1
            if waiting[reader] == 0:
                heapq.heappush(ready, key(reader))
    return order


def default_order(nodes: Sequence[onnx.NodeProto]) -> list[int]:
    """Indices of the nodes that execute, as DEFAULT runs them. O(n + m).

    `nodes` are the top level of a graph, in the order of the file; the graph has no cycle.
    """
    producers, readers = _edges(nodes)
    stack = [(v, False) for v in producers if not readers[v]]
    seen: set[int] = set()
    order = []
    while stack:
        v, done = stack.pop()
        if done:
            order.append(v)
        elif v not in seen:
            seen.add(v)
            stack.append((v, True))
            stack.extend((p, False) for p in producers[v] if p not in seen)
    return order


def _edges(nodes: Sequence[onnx.NodeProto]) -> tuple[dict[int, list[int]], dict[int, list[int]]]:
    """Producers and readers of every node that executes, each ascending, without repetition."""
    executed = [v for v, node in enumerate(nodes) if not is_constant(node)]
    maker = {name: v for v in executed for name in nodes[v].output if name}
    producers = {v: _unique(maker.get, reads(nodes[v])) for v in executed}
    readers: dict[int, list[int]] = {v: [] for v in executed}
    for v, made_by in producers.items():
        for p in made_by:
            readers[p].append(v)
    return producers, readers


def _unique(find: Callable[[str], int | None], names: Iterable[str]) -> list[int]:
    return sorted({v for name in names if (v := find(name)) is not None})
