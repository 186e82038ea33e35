"""A lower bound on the peak of any order: what must be live around each op, by minimum cuts.

Each op runs once, so when op u runs, everything it depends on has run and nothing that depends on
it has. Which other ops have run is free: some downset D that holds the former and none of the
latter. Whatever D is, at least

    min over D of live(D) + outputs of u + workspace of u - what u could take over in place

is held (`exact_order.downsets` has the terms). live is the cost of a cut: a tensor costs its bytes
if its producer is in D and some reader is not, or if it is held to the end. So the minimum over all
D is a minimum cut, with the producers of an op forced to its side. The bound is the largest over u.
It is exact where one op is the bottleneck, whatever is done before and behind it.

Picard 1976 (closures as minimum cuts) for the construction; the use as a bound on orders is ours.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnxremat.core.deadline import ENDLESS, Deadline
from onnxremat.core.graph import Graph
from onnxremat.core.memory import MemoryRules
from onnxremat.planners.exact_order.downsets import Facts
from onnxremat.planners.search.flat import Ints

_FORCED = 1 << 52
_LOOKS = 16

FLOW_SECONDS = 7e-7
"""Of work, counted for a maximum flow, for each op."""


@dataclass(frozen=True)
class CutBound:
    """No order has a peak below `nbytes`. `op` sets it, `before` are the ops of a cheapest downset
    to run it from, ascending. None and empty if no op was looked at."""

    nbytes: int
    op: int | None
    before: tuple[int, ...]


def cut_bound(
    graph: Graph,
    rules: MemoryRules,
    *,
    deadline: Deadline = ENDLESS,
    most_ops: int | None = None,
) -> CutBound:
    """The bound over all ops, those at the highest points of the given order first.

    The deadline is asked now and then; `most_ops` looks at so many only. A maximum flow for each op
    over a network of its ops, tensors and reads: about a millisecond at 1,000 ops.
    """
    facts = Facts(graph, rules)
    network = Network(facts)
    best = CutBound(0, None, ())
    for count, v in enumerate(by_live_bytes(facts, network.beside)[:most_ops]):
        if count % _LOOKS == 0 and deadline.over():
            break
        deadline.worked(FLOW_SECONDS * len(graph.ops))
        nbytes, before = network.around(v)
        if nbytes > best.nbytes:
            best = CutBound(nbytes, v, before)
    return best


def by_live_bytes(facts: Facts, beside: Sequence[int]) -> list[int]:
    """Ops by what is live when they run in the given order, the most first; then by `beside`."""
    graph = facts.graph
    left = [len(readers) for readers in graph.readers]
    live = 0
    held = []
    for v in range(len(graph.ops)):
        held.append(live)
        live += sum(facts.size[t] for t in facts.kept[v])
        for t in facts.reads[v]:
            left[t] -= 1
            if left[t] == 0 and t not in facts.held:
                live -= facts.size[t]
    return sorted(range(len(graph.ops)), key=lambda v: (-held[v], -beside[v]))


class Network:
    """The cut network: ops and tensors are nodes, on the source's side if they are in D.

    An op draws its producers along. A tensor costs its bytes between its producer and a node of its
    own that draws all its readers along; one that is held costs them towards the sink. `beside` are
    bytes that an op needs beside live(D), at least.
    """

    def __init__(self, facts: Facts) -> None:
        graph = facts.graph
        self._ops = len(graph.ops)
        made = [t for op in graph.ops for t in op.outputs]
        node = {t: self._ops + i for i, t in enumerate(made)}
        self._source = self._ops + len(made)
        self._sink = self._source + 1
        self.constant_bytes = facts.constant_bytes
        arcs: list[tuple[int, int, int]] = []
        for v, op in enumerate(graph.ops):
            arcs += [(v, u, -1) for u in graph.predecessors(v)]
            for t in op.outputs:
                if t in facts.held or (t in facts.kept[v] and not graph.readers[t]):
                    arcs.append((v, self._sink, t))
                elif graph.readers[t]:
                    arcs.append((v, node[t], t))
                    arcs += [(node[t], r, -1) for r in graph.readers[t]]
        self._tails, self._heads, self._tensor = (
            np.array([arc[i] for arc in arcs], dtype=np.int64) for i in range(3)
        )
        self._size = np.array(facts.size, dtype=np.int64)
        reached = [0] * self._ops
        for v in range(self._ops):
            for u in graph.predecessors(v):
                reached[v] |= reached[u] | (1 << u)
        self._reached = reached
        self.beside = [
            sum(facts.size[t] for t in op.outputs)
            + facts.workspace[v]
            - sum(facts.size[t] for t in {t for t, _ in facts.pairs[v]})
            for v, op in enumerate(graph.ops)
        ]

    def around(self, v: int) -> tuple[int, tuple[int, ...]]:
        """The least bytes held while op v runs, and the ops that have run then."""
        live, side = self.least(v, self._size)
        return self.constant_bytes + live + self.beside[v], side

    def least(self, v: int, weights: Ints) -> tuple[int, tuple[int, ...]]:
        """The least weight of what is live when op v runs, given the weight of each tensor, and the
        ops that have run then."""
        needed = [u for u in range(v) if self._reached[v] >> u & 1]
        if not needed:
            return 0, ()
        capacity = np.where(self._tensor < 0, _FORCED, weights[self._tensor])
        # Here, because it takes longer to import than most small graphs to plan.
        from ortools.graph.python import max_flow  # type: ignore[import-untyped]

        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(
            np.concatenate([self._tails, np.full(len(needed), self._source), [v]]).astype(np.int32),
            np.concatenate([self._heads, needed, [self._sink]]).astype(np.int32),
            np.concatenate([capacity, np.full(len(needed) + 1, _FORCED)]).astype(np.int64),
        )
        if flow.solve(self._source, self._sink) != flow.OPTIMAL:
            return 0, ()
        side = sorted(u for u in flow.get_source_side_min_cut() if u < self._ops)
        return flow.optimal_flow(), tuple(side)
