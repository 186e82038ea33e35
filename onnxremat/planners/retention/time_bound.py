"""Lower bounds on the time of any schedule within a budget, recomputation included.

Look at the first execution of an op u. What has run by then is a downset D: all that u depends on,
nothing that depends on u. Of the values that somebody outside D has to read, or that are outputs,
some are in memory; the others have to be made again later, by executions beyond the first ones.
With c the time of the op that makes a value (shared evenly by its outputs) and s its bytes, the
time beyond one pass is at least

    min over D, and over what is kept within the room beside u, of the sum of c over the rest

With recomputation an instance of a graph output that is not its last one may be taken over in
place, so what u may take over is that of any schedule (`bounds.could_be_taken_over`).

In a given order D is known, and the relaxed knapsack (values kept in part) is solved by sorting.
In a free order it is relaxed by a price of p per byte, which for every p >= 0 gives

    min over D of sum over live(D) of min(c, p s)  -  p room

and the minimum over D is a minimum cut (`exact_order.cuts`). The best price is found by bisection,
for the sum is concave in it. What u reads must be in memory, and what must not run again has to be
kept: both count p s. The bound is the largest over u, so it grows with what is lacking at one
point, not with how many points lack it. Ours; for the relaxation see Lagrangian duality.
"""

import numpy as np

from onnxremat.core.bounds import could_be_taken_over
from onnxremat.core.deadline import ENDLESS, Deadline
from onnxremat.core.graph import Graph
from onnxremat.core.memory import MemoryRules
from onnxremat.core.problem import Problem
from onnxremat.planners.exact_order.cuts import FLOW_SECONDS, Network, by_live_bytes
from onnxremat.planners.exact_order.downsets import Facts
from onnxremat.planners.search.flat import Floats

_SCALE = 1 << 40
"""Weights of a cut are whole numbers: the largest is about this."""

_PRICES = 12
_LOOKED_AT = 64
_MOST_OPS = 24


def extra_time_bound(
    graph: Graph,
    rules: MemoryRules,
    budget_bytes: int,
    *,
    fixed_order: bool,
    deadline: Deadline = ENDLESS,
) -> int:
    """No schedule within `budget_bytes` takes less than this beyond one pass, as `Op.cost`.

    The deadline is asked now and then: what was found by then holds. In a given order O(n (live log
    live)); else a maximum flow for each of the _LOOKED_AT highest points of the given order, and
    one for each price at those with the least room.
    """
    facts = Facts(graph, rules)
    rooms = [budget_bytes - facts.constant_bytes - n for n in _beside(facts, rules)]
    if fixed_order:
        return _given_order_bound(facts, rooms)
    network = Network(facts)
    size = np.array(facts.size, dtype=np.int64)
    lacking = []
    for v in by_live_bytes(facts, network.beside)[:_LOOKED_AT]:
        if deadline.over():
            break
        deadline.worked(FLOW_SECONDS * len(graph.ops))
        live, _ = network.least(v, size)
        if live > rooms[v]:
            lacking.append((rooms[v] - live, v))
    best = 0.0
    cost = _shared_costs(facts)
    for _, v in sorted(lacking)[:_MOST_OPS]:
        if deadline.over():
            break
        deadline.worked(_PRICES * FLOW_SECONDS * len(graph.ops))
        best = max(best, _priced_bound(facts, network, v, rooms[v], cost))
    return int(np.ceil(best - 1e-6 * max(best, 1.0)))


def least_time_of(problem: Problem, deadline: Deadline = ENDLESS) -> int:
    """No plan of a problem takes less time; without a budget that is the time of one pass."""
    once = problem.graph.total_cost()
    if problem.budget_bytes is None:
        return once
    return once + extra_time_bound(
        problem.graph,
        problem.rules,
        problem.budget_bytes,
        fixed_order=problem.fixed_order,
        deadline=deadline,
    )


def _beside(facts: Facts, rules: MemoryRules) -> list[int]:
    """The least that each op needs beside what is live before it, in any schedule."""
    return [
        sum(facts.size[t] for t in op.outputs)
        + facts.workspace[v]
        - sum(facts.size[t] for t in could_be_taken_over(facts.graph, rules, v))
        for v, op in enumerate(facts.graph.ops)
    ]


def _shared_costs(facts: Facts) -> Floats:
    """The time to make each tensor again, infinite for what is not made twice."""
    graph = facts.graph
    cost = np.full(len(graph.tensors), np.inf)
    for op in graph.ops:
        if op.recomputable:
            cost[list(op.outputs)] = op.cost / len(op.outputs) if op.outputs else 0.0
    return cost


def _given_order_bound(facts: Facts, rooms: list[int]) -> int:
    """The relaxed knapsack at every op of the given order."""
    graph = facts.graph
    cost = _shared_costs(facts)
    last = np.full(len(graph.tensors), -1)
    for v in range(len(graph.ops)):
        last[list(facts.reads[v])] = v
    last[[t for t in facts.held if graph.producer[t] >= 0]] = len(graph.ops)
    live: set[int] = set()
    best = 0.0
    for v, op in enumerate(graph.ops):
        reads = facts.reads[v]
        lacking = sum(facts.size[t] for t in live) - rooms[v]
        if lacking > 0:
            choice = [t for t in live if t not in reads and facts.size[t]]
            best = max(best, _cheapest(facts, cost, choice, lacking))
        live.difference_update(t for t in reads if last[t] == v)
        live.update(t for t in op.outputs if last[t] > v)
    return int(np.ceil(best - 1e-6 * max(best, 1.0)))


def _cheapest(facts: Facts, cost: Floats, choice: list[int], lacking: int) -> float:
    """The least time to make again values of `lacking` bytes, the last one in part."""
    total = 0.0
    for t in sorted(choice, key=lambda t: cost[t] / facts.size[t]):
        if not np.isfinite(cost[t]):
            break
        if facts.size[t] >= lacking:
            return total + float(cost[t]) * lacking / facts.size[t]
        total += float(cost[t])
        lacking -= facts.size[t]
    return total


def _priced_bound(facts: Facts, network: Network, v: int, room: int, cost: Floats) -> float:
    """The best bound around op v over some prices of a byte."""
    size = np.array(facts.size, dtype=np.float64)
    cost = cost.copy()
    cost[list(facts.reads[v])] = np.inf
    finite = np.isfinite(cost) & (size > 0) & (cost > 0)
    if not finite.any():
        return 0.0
    prices = cost[finite] / size[finite]
    low, high = np.log(prices.min()), np.log(prices.max())
    best = 0.0
    for _ in range(_PRICES):
        price = float(np.exp((low + high) / 2))
        weights = np.minimum(cost, price * size)
        scale = _SCALE / max(weights.max(), 1e-300) / len(weights)
        whole = np.floor(weights * scale).astype(np.int64)
        least, before = network.least(v, whole)
        best = max(best, least / scale - price * room)
        kept = _kept_bytes(facts, before, cost, price)
        if kept > room:
            low = np.log(price)
        else:
            high = np.log(price)
    return best


def _kept_bytes(facts: Facts, before: tuple[int, ...], cost: Floats, price: float) -> int:
    """Bytes of what is cheaper to keep at a price, of the values live behind some ops."""
    graph = facts.graph
    done = set(before)
    total = 0
    for v in before:
        for t in graph.ops[v].outputs:
            needed = t in facts.held or any(r not in done for r in graph.readers[t])
            if needed and price * facts.size[t] < cost[t]:
                total += facts.size[t]
    return total
