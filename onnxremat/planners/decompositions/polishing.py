"""What the planners over decompositions share: a sweep over schedules, then `local_search`."""

from collections.abc import Callable
from dataclasses import replace

from onnxremat.core.bounds import peak_bound
from onnxremat.core.deadline import Deadline
from onnxremat.core.problem import Limits, Plan, Problem, make_plan
from onnxremat.planners.local_search import local_search
from onnxremat.planners.search.engine import Score, best_start, make_ready

Sweep = Callable[[Problem, Deadline, Score], tuple[Score, str]]
"""The best of a start and the schedules of an algorithm, and what was left out, in words."""


def swept_and_polished(
    problem: Problem, limits: Limits, planner: str, title: str, sweep: Sweep
) -> Plan:
    """The best schedule of a sweep, polished by `local_search` with the limits that are left.

    A given order is only polished: the algorithm, `title`, makes orders of its own.
    """
    deadline = Deadline(limits)
    bound = peak_bound(problem.graph, problem.rules).nbytes
    best = best_start(problem)
    if problem.budget_bytes is not None and bound > problem.budget_bytes:
        return make_plan(problem, best.schedule, planner, peak_bound_bytes=bound)
    make_ready(deadline)
    scope = ""
    if problem.fixed_order:
        scope = f"the given order kept: {title} makes its own, so only the polishing applies"
    elif problem.graph.ops:
        best, scope = sweep(problem, deadline, best)
    plan = make_plan(problem, best.schedule, planner, peak_bound_bytes=bound, scope=scope)
    if deadline.over() or plan.proved or not problem.graph.ops:
        return plan
    limits = replace(limits, seconds=deadline.left_seconds)
    improved = local_search(replace(problem, starts=(best.schedule,)), limits)
    found = Score(improved.schedule, improved.peak_bytes, improved.time_cost)
    if found.better_than(best, problem.budget_bytes):
        return replace(improved, planner=planner, scope=scope)
    return make_plan(
        problem,
        best.schedule,
        planner,
        peak_bound_bytes=improved.peak_bound_bytes,
        time_bound=improved.time_bound,
        scope=scope,
    )
