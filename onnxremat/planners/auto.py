"""The portfolio: what is cheap and proves something first, the long search last."""

import time
from dataclasses import replace

from onnxremat.plan import Limits, Plan, PlanStatus, Problem
from onnxremat.planners._engine import Clock
from onnxremat.planners.given_order import given_order
from onnxremat.planners.local_search import local_search
from onnxremat.planners.reorder import reorder

REORDER_SHARE = 0.1


def auto(problem: Problem, limits: Limits) -> Plan:
    """The best plan of the portfolio within the limits.

    In turn: the lower bound on the peak (above the budget: infeasible at once), the given order,
    an order without recomputation (either one takes the time of one pass, so that meeting the
    budget is optimal), then `local_search` from what was found, with the rest of the limits.
    """
    started = time.monotonic()
    plan = given_order(problem, limits)
    if plan.status in (PlanStatus.OPTIMAL, PlanStatus.INFEASIBLE):
        return _named(plan)
    clock = Clock(limits, started)
    may_copy = problem.max_copies != 1 and not problem.depth_first
    if not problem.fixed_order:
        share = REORDER_SHARE if may_copy else 1.0
        plan = _better(problem, plan, reorder(problem, _share(limits, clock, share)))
    proved = plan.status in (PlanStatus.OPTIMAL, PlanStatus.INFEASIBLE)
    if proved or not may_copy or clock.over():
        return _named(plan)
    warm = replace(problem, starts=(*problem.starts, plan.schedule))
    return _named(_better(problem, plan, local_search(warm, _share(limits, clock, 1.0))))


def _share(limits: Limits, clock: Clock, share: float) -> Limits:
    """A share of the seconds left, and the same share of the iterations."""
    iterations = None if limits.iterations is None else max(1, int(limits.iterations * share))
    return replace(limits, seconds=max(clock.left(), 0.0) * share, iterations=iterations)


def _better(problem: Problem, old: Plan, new: Plan) -> Plan:
    def key(plan: Plan) -> tuple[bool, int, int, int]:
        if problem.budget_bytes is not None and plan.meets(problem.budget_bytes):
            return False, plan.time_cost, plan.peak_bytes, 0
        return True, plan.peak_bytes, plan.time_cost, -plan.peak_bound_bytes

    return new if key(new) < key(old) else old


def _named(plan: Plan) -> Plan:
    return replace(plan, planner=f"auto/{plan.planner}")
