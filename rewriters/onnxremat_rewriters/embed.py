"""`embed`: node positions that make ONNX Runtime's DEFAULT order a given one.

DEFAULT is a depth-first search from the leaves (`onnxremat.runtimes.order`): leaves, and the
producers of a node, are visited from the highest position in the file to the lowest, and a node
executes when all its producers have. So positions decide, and nothing has to be asked of whoever
runs the file, as long as optimizations do not renumber nodes.

The search can produce an order only if that is a *depth-first post-order* of the graph: a node
executes right behind the last of its producers' subtrees. Then what must be visited first is forced
at every node, each choice is a relation between two positions, and any order of positions that
keeps all of them, and the dataflow, will do. Most plans with recomputation are none; then only
ExecutionOrder.PRIORITY, or added dependencies, keep the order.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import onnx

from onnxremat.runtimes.order import default_order, is_constant, node_reads


@dataclass(frozen=True)
class Embedded:
    """A model that runs in the wanted order by default, or why there is none.

    `origin[i]` is the index of node i in the argument. `model` is None if the order cannot be
    embedded; `reason` then says why, and is empty otherwise.
    """

    model: onnx.ModelProto | None
    origin: tuple[int, ...] = ()
    reason: str = ""


def embed_order(model: onnx.ModelProto) -> Embedded:
    """A copy of `model` whose DEFAULT order is the file order of `model`.

    The nodes of `model` stand in a topological order; those of the copy do too. Constant nodes,
    which do not execute, come first. Only `graph.node` differs. O(n²/64 + m) for n nodes and m
    reads.
    """
    nodes = model.graph.node
    plan = [v for v, node in enumerate(nodes) if not is_constant(node)]
    producers = _producers(nodes, plan)
    visited, pairs = _search(producers)
    if visited != list(range(len(plan))):
        step = next(i for i, v in enumerate(visited) if v != i)
        node = nodes[plan[step]]
        return Embedded(
            None,
            reason=f"the order is no depth-first post-order: at step {step} the search does not "
            f"come to {node.name or node.op_type!r}",
        )
    positions = _positions(producers, pairs)
    if positions is None:
        return Embedded(None, reason="the positions that the search needs contradict the dataflow")
    constants = [v for v, node in enumerate(nodes) if is_constant(node)]
    origin = (*constants, *(plan[v] for v in positions))
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes[v] for v in origin)
    if [origin[i] for i in default_order(copy.graph.node)] != plan:
        return Embedded(None, reason="the search visits the nodes in another order")
    return Embedded(copy, origin)


def _producers(nodes: Sequence[onnx.NodeProto], plan: Sequence[int]) -> list[list[int]]:
    """For each step of the plan, the earlier steps whose outputs it reads, ascending."""
    maker: dict[str, int] = {}
    producers = []
    for step, v in enumerate(plan):
        producers.append(sorted({maker[name] for name in node_reads(nodes[v]) if name in maker}))
        maker.update((name, step) for name in nodes[v].output if name)
    return producers


def _search(producers: Sequence[Sequence[int]]) -> tuple[list[int], list[tuple[int, int]]]:
    """The search that, wherever it can choose, visits first what the plan executes first.

    Answers the steps in the order of execution, and pairs of steps of which the first must have the
    higher position. A producer that another one depends on is reached through that one, whatever
    the positions are: nothing is chosen there.
    """
    ancestors: list[int] = []  # sets of steps, as bits
    for made_by in producers:
        bits = 0
        for p in made_by:
            bits |= ancestors[p] | (1 << p)
        ancestors.append(bits)
    read = {p for made_by in producers for p in made_by}
    leaves = [v for v in range(len(producers)) if v not in read]
    pairs = list(pairwise(leaves))
    seen: set[int] = set()
    visited: list[int] = []
    stack = [(v, False) for v in reversed(leaves)]
    while stack:
        v, done = stack.pop()
        if done:
            visited.append(v)
        elif v not in seen:
            seen.add(v)
            fresh = [p for p in producers[v] if p not in seen]
            below = 0
            for p in fresh:
                below |= ancestors[p]
            choice = [p for p in fresh if not below >> p & 1]
            pairs.extend(pairwise(choice))
            stack.append((v, True))
            stack.extend((p, False) for p in reversed(choice))
    return visited, pairs


def _positions(
    producers: Sequence[Sequence[int]], pairs: Iterable[tuple[int, int]]
) -> list[int] | None:
    """Steps by position: producers before readers, and in every pair the second before the first.
    None if that is impossible."""
    behind: list[list[int]] = [[] for _ in producers]
    waiting = [len(made_by) for made_by in producers]
    for v, made_by in enumerate(producers):
        for p in made_by:
            behind[p].append(v)
    for higher, lower in pairs:
        behind[lower].append(higher)
        waiting[higher] += 1
    ready = [v for v, count in enumerate(waiting) if count == 0]
    heapq.heapify(ready)
    positions = []
    while ready:
        v = heapq.heappop(ready)
        positions.append(v)
        for w in behind[v]:
            waiting[w] -= 1
            if waiting[w] == 0:
                heapq.heappush(ready, w)
    return positions if len(positions) == len(producers) else None
