"""The order of a plan, for the nodes that a runtime's optimizations made of the planned ones.

What is optimized before it is chained is fused as the original is: no edge stands between. Then the
nodes are others than the planned ones; a value that is still made tells where its node belongs.
"""

import heapq
from collections.abc import Sequence
from itertools import count
from math import inf

import onnx

from onnxremat.importer.nodes import made_value, reads, values_of_nodes
from onnxremat_rewriters.recompute import mark_of, set_mark


def in_plan_order(optimized: onnx.ModelProto, planned: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `optimized`, made of `planned`, with its nodes as far as can be in that order.

    A node stands where the one stood that made its value (the last one of those that were fused);
    one that makes a value of its own, as a change of the layout, right before its first reader.
    Nodes that are alike are marked, as repetitions are: a runtime would merge them. Inner
    value_info goes. O((n + m) log n).
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(optimized)
    graph = copy.graph
    del graph.value_info[:]
    place = {name: i for i, node in enumerate(planned.graph.node) for name in node.output if name}
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in graph.node]
    maker = {name: v for v, node in enumerate(nodes) for name in node.output if name}
    producers = [sorted({maker[n] for n in reads(node) if n in maker}) for node in nodes]
    readers: list[list[int]] = [[] for _ in nodes]
    for v, before in enumerate(producers):
        for p in before:
            readers[p].append(v)
    values = values_of_nodes(planned.graph)
    known = [place.get(made_value(node, values)) for node in nodes]
    rank = _ranks(known, producers, readers)
    order = _sorted(rank, producers, readers)
    numbers = count(1 + max((mark_of(node) for node in nodes), default=0))
    seen: set[bytes] = set()
    for v in order:
        node = nodes[v]
        alike = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=node.input)
        alike.attribute.extend(node.attribute)
        key = alike.SerializeToString(deterministic=True)
        if key in seen and node.op_type != "Constant":
            set_mark(node, next(numbers))
        seen.add(key)
    del graph.node[:]
    graph.node.extend(nodes[v] for v in order)
    return copy


def _ranks(
    known: Sequence[int | None],
    producers: Sequence[Sequence[int]],
    readers: Sequence[Sequence[int]],
) -> list[float]:
    """Where each node belongs; of the unknown ones, as late as their readers permit."""
    rank = [inf if one is None else float(one) for one in known]
    for v in reversed(_sorted([0.0] * len(known), producers, readers)):
        if known[v] is None:
            rank[v] = min((rank[r] for r in readers[v]), default=inf)
    return rank


def _sorted(
    rank: Sequence[float], producers: Sequence[Sequence[int]], readers: Sequence[Sequence[int]]
) -> list[int]:
    """A topological order, the least rank first where there is a choice."""
    waiting = [len(before) for before in producers]
    ready = [(rank[v], v) for v, n in enumerate(waiting) if n == 0]
    heapq.heapify(ready)
    order = []
    while ready:
        _, v = heapq.heappop(ready)
        order.append(v)
        for r in readers[v]:
            waiting[r] -= 1
            if waiting[r] == 0:
                heapq.heappush(ready, (rank[r], r))
    return order
