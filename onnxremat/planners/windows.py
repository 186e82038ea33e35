"""Proofs and improvements of a plan by constraint programming, its first executions in order.

The ops are numbered anew by when the plan first runs them; in that order the model of MOCCASIN
(`moccasin.solve`, staged) starts from the plan itself. A small graph is solved whole, and then the
plan is proved to be the fastest of all with these first executions and so few copies. In a larger
one most recomputations stay as they are and those of a window of consecutive ops are free (large
neighbourhood search, Shaw 1998); windows follow one another, each half a window further on.
"""

from collections import Counter
from dataclasses import dataclass, replace

from onnxremat.core.deadline import Deadline
from onnxremat.core.graph import Graph
from onnxremat.core.memory import profile
from onnxremat.core.problem import Limits, Problem
from onnxremat.core.schedule import Schedule, without_unread
from onnxremat.planners.retention.staged import staged
from onnxremat.planners.search.engine import Score, score

WHOLE = 150
"""The most ops of a graph that is solved whole."""

WINDOW = 60
"""Ops whose recomputations are free at a time."""

WINDOW_SECONDS = 4.0

MOST_ITERATIONS = 1000
"""Of `moccasin`, about a second, where iterations are limited; then windows are left out."""

MODEL_SECONDS = 0.004
"""The time to state the model, for each op; with iterations limited none is asked for."""


@dataclass(frozen=True)
class Settled:
    """The best plan now; `proved` to be the fastest with its order of first executions and at most
    `copies` executions of an op."""

    best: Score
    proved: bool
    copies: int


def settle(problem: Problem, best: Score, deadline: Deadline, least_time: int) -> Settled:
    """Prove or improve a plan that meets the budget, until the deadline.

    Nothing is begun for which the seconds do not suffice.
    """
    # Here, because the solver takes longer to import than most small graphs to plan.
    from onnxremat.planners.moccasin import COPIES, is_exact, solve

    copies = max(COPIES, *Counter(best.schedule.steps).values())
    if problem.max_copies is not None:
        copies = min(copies, problem.max_copies)
    order, graph = _in_its_order(problem.graph, best.schedule)
    place = {v: i for i, v in enumerate(order)}
    hint = staged(Schedule(tuple(place[v] for v in best.schedule.steps)))
    budget = problem.budget_bytes
    if hint is None or budget is None or not is_exact(problem):
        return Settled(best, False, copies)
    if profile(graph, hint, problem.rules).peak_bytes > budget:
        return Settled(best, False, copies)
    inner = replace(problem, graph=graph, fixed_order=True, max_copies=copies, starts=())
    whole = len(order) <= WHOLE
    iterations = deadline.limits.iterations
    if iterations is not None:
        if not whole:
            return Settled(best, False, copies)
        iterations = min(iterations, MOST_ITERATIONS)
    begin, idle = 0, 0
    needed = MODEL_SECONDS * len(order) if iterations is None else 0.0
    while not deadline.over() and best.time_cost > least_time:
        if deadline.left_seconds < needed:
            break
        window = None if whole else range(begin, min(begin + WINDOW, len(order)))
        left = deadline.left_seconds - needed
        seconds = left if whole else min(WINDOW_SECONDS, left)
        limits = Limits(seconds, iterations, deadline.limits.seed, stop=deadline.over)
        solved = solve(
            inner,
            limits,
            hint=hint,
            free=window,
            idle_firsts=problem.fixed_order,
        )
        if solved.steps is not None:
            found = Schedule(tuple(order[i] for i in solved.steps))
            found = without_unread(problem.graph, found, idle_firsts=problem.fixed_order)
            other = score(problem, found)
            if other.peak_bytes <= budget and other.time_cost < best.time_cost:
                best, hint, idle = other, Schedule(solved.steps), 0
        if whole:
            proved = solved.proved and not solved.infeasible
            return Settled(best, proved and best.time_cost <= solved.time_bound, copies)
        begin += WINDOW // 2
        if begin + WINDOW // 2 >= len(order):
            begin, idle = 0, idle + 1
        if idle == 2:
            break
    return Settled(best, False, copies)


def _in_its_order(graph: Graph, schedule: Schedule) -> tuple[list[int], Graph]:
    """The ops by their first execution, and the graph with its ops in that order."""
    order = list(dict.fromkeys(schedule.steps))
    ops = tuple(graph.ops[v] for v in order)
    return order, Graph(graph.tensors, ops, graph.inputs, graph.outputs)
