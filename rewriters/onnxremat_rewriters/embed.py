"""`embed`: node positions that make ONNX Runtime's DEFAULT order a given one.

Positions decide, and nothing has to be asked of whoever runs the file, as long as optimizations do
not renumber nodes. Only *depth-first post-orders* can be had (`onnxremat.core.depth_first`).
`reorder` finds the best of them with `Problem.depth_first`; most plans with recomputation are none,
and then only ExecutionOrder.PRIORITY, or added dependencies, keep the order.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

import onnx

from onnxremat.core.depth_first import DepthFirst
from onnxremat.importer.execution_order import default_order
from onnxremat.importer.nodes import is_constant, reads


@dataclass(frozen=True)
class Embedded:
    """A model that runs in the wanted order by default, or why there is none.

    `origin[i]` is the index of node i in the argument. `model` is None if the order cannot be
    embedded; `reason` then says why, and is empty otherwise.
    """

    model: onnx.ModelProto | None
    origin: tuple[int, ...] = ()
    reason: str = ""


def embed_order(model: onnx.ModelProto, free: Collection[int] = ()) -> Embedded:
    """A copy of `model` whose DEFAULT order is the file order of `model`.

    The nodes in `free` may run anywhere (views, which hold nothing and take no time): each comes
    right above the last of what it is made from, where the search comes past it. The nodes of
    `model` stand in a topological order; those of the copy do too. Constant nodes, which do not
    execute, come first. Only `graph.node` differs. O(n²/64 + m) for n nodes and m reads.
    """
    nodes = model.graph.node
    plan = [v for v, node in enumerate(nodes) if not is_constant(node) and v not in free]
    found = placed(nodes, free)
    if found.wrong is not None:
        node = nodes[plan[found.wrong]]
        return Embedded(
            None,
            reason=f"the order is no depth-first post-order: at step {found.wrong} the search does "
            f"not come to {node.name or node.op_type!r}",
        )
    if found.origin is None:
        return Embedded(None, reason="the positions that the search needs contradict the dataflow")
    origin, steps = found.origin, set(plan)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes[v] for v in origin)
    if [v for i in default_order(copy.graph.node) if (v := origin[i]) in steps] != plan:
        return Embedded(None, reason="the search visits the nodes in another order")
    return Embedded(copy, origin)


@dataclass(frozen=True)
class Placed:
    """`origin[i]` is the node to stand at position i, None if no positions are what the search
    needs; `wrong` the first step of the plan that the search does not come to in its turn, None if
    there is none."""

    origin: tuple[int, ...] | None
    wrong: int | None


def placed(nodes: Sequence[onnx.NodeProto], free: Collection[int]) -> Placed:
    """Positions for the nodes of a graph, which stand in the order of a plan, so that the DEFAULT
    order comes as near to it as a search can. `free`: as in `embed_order`."""
    constants = [v for v, node in enumerate(nodes) if is_constant(node)]
    plan = [v for v, node in enumerate(nodes) if not is_constant(node) and v not in free]
    made_from = _producers(nodes, free)
    step_of = {v: step for step, v in enumerate(plan)}
    search = DepthFirst([[step_of[p] for p in made_from[v]] for v in plan])
    visit = search.visit(range(len(plan)))
    wrong = next((i for i, v in enumerate(visit.order) if v != i), None)
    positions = search.positions(replace(visit, pairs=visit.pairs + _below(search)))
    if positions is None:
        return Placed(None, wrong)
    place = {plan[step]: i for i, step in enumerate(positions)}
    above: dict[int, list[int]] = {}
    for v in sorted(free):
        last = max((place[p] for p in made_from[v]), default=-1)
        above.setdefault(last, []).append(v)
    origin = [*constants, *above.get(-1, [])]
    for i, step in enumerate(positions):
        origin += [plan[step], *above.get(i, [])]
    return Placed(tuple(origin), wrong)


def _below(search: DepthFirst) -> tuple[tuple[int, int], ...]:
    """Pairs that put the leaf visited last above every node that is none, so that a free leaf right
    above such a node is visited after all others."""
    if not search.leaves:
        return ()
    last = max(search.leaves)
    others = set(range(len(search.producers))).difference(search.leaves)
    return tuple((last, v) for v in others)


def _producers(nodes: Sequence[onnx.NodeProto], free: Collection[int]) -> list[list[int]]:
    """For each node, those that make what it reads, ascending; through free ones, what those are
    made from. None are constants."""
    maker: dict[str, int] = {}
    producers: list[list[int]] = []
    for v, node in enumerate(nodes):
        direct = {maker[name] for name in reads(node) if name in maker}
        through = {w for p in direct if p in free for w in producers[p]}
        producers.append(sorted(through | {p for p in direct if p not in free}))
        if not is_constant(node):
            maker.update((name, v) for name in node.output if name)
    return producers
