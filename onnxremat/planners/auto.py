"""The portfolio: what is cheap and proves something first, the long search last."""

import time
from dataclasses import replace

from onnxremat.bounds import peak_bound
from onnxremat.plan import Limits, Plan, PlanStatus, Problem, make_plan
from onnxremat.planners._blocks import block_plan, repeats
from onnxremat.planners._engine import Clock, Score, admissible
from onnxremat.planners._staged import BETWEEN
from onnxremat.planners._windows import WHOLE, settle
from onnxremat.planners.given_order import given_order
from onnxremat.planners.local_search import local_search
from onnxremat.planners.reorder import reorder
from onnxremat.schedule import Schedule
from onnxremat.schedule import given_order as order_of_file

REORDER_SHARE, REORDER_SHARE_SMALLEST = 0.2, 0.3
"""With a budget, and for the smallest peak."""
BLOCKS_SHARE, BLOCKS_FROM = 0.2, 3000
"""For graphs of so many ops; smaller ones are searched as well without."""
SEARCH_SHARE, SEARCH_SHARE_LARGE = 0.75, 0.92
"""Of what is left after reordering; the rest is for proofs, which larger graphs seldom get."""


def auto(problem: Problem, limits: Limits) -> Plan:
    """The best plan of the portfolio within the limits.

    In turn: the lower bound on the peak (above the budget: infeasible at once), the given order,
    in large graphs a plan that treats repeated blocks alike (`_blocks`), an order without
    recomputation (if it meets the budget it is optimal, for it takes the time of one pass), then
    `local_search` from what was found, and at last constraint programming on its plan
    (`_windows`), which proves small ones and improves others.

    Parts on both sides of a cut are not planned alone: the whole may make the value that crosses
    again, which the part behind cannot (tests/planners/test_blocks.py has an example). That would
    be exact where the part behind repeats no more than making that value costs; graphs with
    gradients have no such cut.
    """
    started = time.monotonic()
    plan = given_order(problem, limits)
    if plan.status in (PlanStatus.OPTIMAL, PlanStatus.INFEASIBLE):
        return _named(plan)
    clock = Clock(limits, started)
    may_copy = problem.max_copies != 1 and not problem.depth_first
    if may_copy and problem.budget_bytes is not None and len(problem.graph.ops) >= BLOCKS_FROM:
        plan = _better(problem, plan, _from_blocks(problem, _share(limits, clock, BLOCKS_SHARE)))
    ordered: tuple[Schedule, ...] = ()
    if not problem.fixed_order:
        share = REORDER_SHARE if problem.budget_bytes is not None else REORDER_SHARE_SMALLEST
        share = share if may_copy else 1.0
        order = reorder(problem, _share(limits, clock, share))
        plan, ordered = _better(problem, plan, order), (order.schedule,)
    proved = plan.status in (PlanStatus.OPTIMAL, PlanStatus.INFEASIBLE)
    if proved or not may_copy or clock.over():
        return _named(plan)
    starts = dict.fromkeys((plan.schedule, *ordered, *problem.starts))
    warm = replace(problem, starts=tuple(starts))
    share = SEARCH_SHARE if len(problem.graph.ops) <= WHOLE else SEARCH_SHARE_LARGE
    share = share if problem.budget_bytes is not None else 1.0
    plan = _better(problem, plan, local_search(warm, _share(limits, clock, share)))
    if plan.status is not PlanStatus.FEASIBLE or problem.budget_bytes is None or clock.over():
        return _named(plan)
    return _named(_settled(problem, plan, _share(limits, clock, 1.0), clock))


def _from_blocks(problem: Problem, limits: Limits) -> Plan:
    """A plan that treats all copies of a block alike; the given order if there is none in time."""
    clock = Clock(limits, time.monotonic())
    order = order_of_file(problem.graph)
    found = None
    if repeats(problem.graph, problem.rules):
        found = block_plan(problem, order, clock.over)
    if found is None or not admissible(problem, found):
        found = order
    bound = peak_bound(problem.graph, problem.rules).nbytes
    return make_plan(problem, found, "blocks", peak_bound_bytes=bound)


def _settled(problem: Problem, plan: Plan, limits: Limits, clock: Clock) -> Plan:
    """The plan proved or improved by constraint programming.

    Where the order is free, the fastest plan of one order is not called optimal; the scope says
    what it is the fastest of.
    """
    best = Score(plan.schedule, plan.peak_bytes, plan.time_cost)
    found = settle(problem, best, limits, clock.over, plan.time_bound)
    if not found.proved and found.best is best:
        return plan
    scope = ""
    if found.proved:
        given = "given" if problem.fixed_order else "plan's"
        scope = (
            f"the fastest with first executions in the {given} order, {BETWEEN}, and at most "
            f"{found.copies} executions an op"
        )
    return make_plan(
        problem,
        found.best.schedule,
        plan.planner if found.best is best else "windows",
        peak_bound_bytes=plan.peak_bound_bytes,
        time_bound=plan.time_bound,
        proved=found.proved and problem.fixed_order,
        scope=scope,
    )


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
