"""The order of a plan, for the nodes that a runtime's optimizations made of the planned ones.

What is optimized before it is chained is fused as the original is: no edge stands between. Then the
nodes are others than the planned ones; a value that is still made tells where its node belongs.
"""

from collections.abc import Mapping, Sequence
from itertools import count
from math import inf

import onnx

from onnxremat.importer.execution_order import least_first
from onnxremat.importer.nodes import (
    has_subgraph,
    made_value,
    reads,
    subgraphs,
    values_of_nodes,
)
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
    sort_as(graph, planned.graph)
    numbers = count(1 + max((mark_of(node) for node in graph.node), default=0))
    seen: set[bytes] = set()
    for node in graph.node:
        alike = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=node.input)
        alike.attribute.extend(node.attribute)
        key = alike.SerializeToString(deterministic=True)
        if key in seen and node.op_type != "Constant":
            set_mark(node, next(numbers))
        seen.add(key)
    return copy


def sort_as(optimized: onnx.GraphProto, planned: onnx.GraphProto) -> None:
    """Put the nodes of a graph that was made of `planned`, and those of its bodies, as far as can
    be in that order, in place. O((n + m) log n)."""
    place = {name: i for i, node in enumerate(planned.node) for name in node.output if name}
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in optimized.node]
    maker = {name: v for v, node in enumerate(nodes) for name in node.output if name}
    producers = {
        v: sorted({maker[name] for name in reads(node) if name in maker})
        for v, node in enumerate(nodes)
    }
    readers: dict[int, list[int]] = {v: [] for v in producers}
    for v, before in producers.items():
        for p in before:
            readers[p].append(v)
    values = values_of_nodes(planned)
    known = [place.get(made_value(node, values)) for node in nodes]
    rank = _ranks(known, producers, readers)
    order = least_first(producers, readers, lambda v: (rank[v], v))
    del optimized.node[:]
    optimized.node.extend(nodes[v] for v in order)
    for node, v in zip(optimized.node, order, strict=True):
        origin = known[v]
        if origin is not None and has_subgraph(node):
            for body, made_of in zip(
                subgraphs(node), subgraphs(planned.node[origin]), strict=False
            ):
                sort_as(body, made_of)


def _ranks(
    known: Sequence[int | None],
    producers: Mapping[int, Sequence[int]],
    readers: Mapping[int, Sequence[int]],
) -> list[float]:
    """Where each node belongs; of the unknown ones, as late as their readers permit."""
    rank = [inf if one is None else float(one) for one in known]
    for v in reversed(least_first(producers, readers, lambda v: (0, v))):
        if known[v] is None:
            rank[v] = min((rank[r] for r in readers[v]), default=inf)
    return rank
