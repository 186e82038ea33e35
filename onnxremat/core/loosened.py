"""`loosened`: of orders with one peak, one that a depth-first search almost comes to by itself.

A planner has no reason to prefer one of many orders that hold the same. A runtime whose own order
is a depth-first search has: where the search would leave the plan, something has to tie two steps
together, and that is a few nodes more to load, hold and run
(`onnxremat_rewriters.stock.body.Edges.NEEDED`).
"""

from collections.abc import Collection, Sequence

from onnxremat.core.depth_first import DepthFirst
from onnxremat.core.graph import Graph
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.schedule import Schedule, without_unread

MOST_STEPS = 1_500
"""Longer schedules stay as they are: each try takes a time that grows with them."""


def loosened(graph: Graph, schedule: Schedule, rules: MemoryRules) -> Schedule:
    """The executions of a valid schedule in an order of at most its peak that needs fewer ties.

    The steps that have to be tied to the one before are found first; then each tie in turn is left
    out for good if the order that the search has without it holds no more, and executes nothing
    twice for nothing: of an op's executions, a reader may come behind another one there.
    O(ties x (n^2/64 + m)) for n steps and m reads.
    """
    if not 0 < len(schedule) <= MOST_STEPS:
        return schedule
    made_from = _made_from(graph, schedule)
    ties = ties_needed(made_from)
    limit, best = profile(graph, schedule, rules).peak_bytes, schedule
    for step in sorted(ties):
        fewer = ties - {step}
        order = _searched(made_from, fewer)
        found = Schedule(tuple(schedule.steps[i] for i in order))
        read = without_unread(graph, found) == found
        if read and profile(graph, found, rules).peak_bytes <= limit:
            ties, best = fewer, found
    return best


def ties_needed(made_from: Sequence[Sequence[int]]) -> frozenset[int]:
    """The steps that have to be tied to the one before, so that a depth-first search comes to all
    steps in the order of their numbers. `made_from`: the steps that each one reads."""
    ties = frozenset[int]()
    while True:
        place = {step: i for i, step in enumerate(_searched(made_from, ties))}
        early = {step for step in range(1, len(made_from)) if place[step] < place[step - 1]}
        if early <= ties:
            return ties
        ties |= early


def _searched(made_from: Sequence[Sequence[int]], ties: Collection[int]) -> tuple[int, ...]:
    """The order of a search that comes to the lowest step first wherever it can choose."""
    tied = [
        sorted({*before, step - 1}) if step in ties else before
        for step, before in enumerate(made_from)
    ]
    return DepthFirst(tied).visit(range(len(tied))).order


def _made_from(graph: Graph, schedule: Schedule) -> list[list[int]]:
    """For each step, those whose outputs it reads: the most recent ones."""
    latest: dict[int, int] = {}
    found = []
    for step, v in enumerate(schedule.steps):
        found.append(sorted({latest[t] for t in graph.ops[v].inputs if t in latest}))
        latest.update(dict.fromkeys(graph.ops[v].outputs, step))
    return found
