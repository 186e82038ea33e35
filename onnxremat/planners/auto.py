"""The portfolio: what is cheap and proves something first, the long search last."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from onnxremat.core.bounds import peak_bound
from onnxremat.core.deadline import Deadline
from onnxremat.core.graph import Graph
from onnxremat.core.problem import Limits, Plan, Planner, PlanStatus, Problem, make_plan
from onnxremat.core.schedule import Schedule
from onnxremat.core.schedule import given_order as order_of_file
from onnxremat.core.training import NotTrainingError, split_training
from onnxremat.planners.chain import chain
from onnxremat.planners.chen import chen
from onnxremat.planners.given_order import given_order
from onnxremat.planners.local_search import local_search
from onnxremat.planners.lower_sets import lower_sets
from onnxremat.planners.pwremat import pwremat
from onnxremat.planners.reorder import reorder
from onnxremat.planners.retention.staged import BETWEEN
from onnxremat.planners.revolve import revolve
from onnxremat.planners.search.engine import Score, admissible, make_ready, report
from onnxremat.planners.search.repeated_blocks import block_plan, repeats
from onnxremat.planners.twremat import twremat
from onnxremat.planners.windows import WHOLE, settle

REORDER_SHARE, REORDER_SHARE_SMALLEST = 0.2, 0.3
"""With a budget, and for the smallest peak."""
BLOCKS_SHARE, BLOCKS_FROM = 0.2, 3000
"""For graphs of so many ops; smaller ones are searched as well without."""
SEARCH_SHARE, SEARCH_SHARE_LARGE = 0.75, 0.92
"""Of what is left after reordering; the rest is for proofs, which larger graphs seldom get."""

OPS_A_SECOND = 70
"""Training graphs of so many ops for each second of the limits, or fewer, are searched from several
starts. In larger ones a single search gets further."""
REORDER_SHARE_TRAINING = 0.05
STARTERS: tuple[tuple[Planner, float], ...] = (
    (chen, 0.02),
    (revolve, 0.02),
    (lower_sets, 0.03),
    (chain, 0.05),
    (twremat, 0.02),
    (pwremat, 0.02),
)
"""What else a search of a training graph starts from, with shares of the seconds left then."""
POLISHED = (twremat, pwremat)
"""Those that would search on; without iterations they do not."""
MOST_STARTS = 5
"""Beside the best order, the best of what those planners found."""
HEATS_SHARE = 0.3
"""For the smallest peak, the share of what is left then for a short search from each start."""
LONG_SHARE = 0.6
"""With a budget, the share of what is left for each of the first two searches; the others have what
is left then, if those end early."""


def auto(problem: Problem, limits: Limits) -> Plan:
    """The best plan of the portfolio within the limits.

    In turn: the lower bound on the peak (above the budget: infeasible at once), the given order, in
    large graphs a plan that treats repeated blocks alike (`search.repeated_blocks`), an order
    without recomputation (if it meets the budget it is optimal, for it takes the time of one pass),
    then `local_search` from what was found (in training graphs from what the planners for those
    find, too), and at last constraint programming on its plan (`windows`), which proves small ones
    and improves others (its work cannot be counted: it is left out where `Limits.work` is).

    Parts on both sides of a cut are not planned alone: the whole may make the value that crosses
    again, which the part behind cannot (tests/planners/search/test_repeated_blocks.py has an
    example). That would be exact where the part behind repeats no more than making that value
    costs; graphs with gradients have no such cut.
    """
    best = _best_of_parts(problem, limits)
    return replace(best, planner=f"auto/{best.planner}")


def _best_of_parts(problem: Problem, limits: Limits) -> Plan:
    deadline, better = Deadline(limits), partial(_rank, problem)
    plan = given_order(problem, limits)
    if plan.status in (PlanStatus.OPTIMAL, PlanStatus.INFEASIBLE):
        return plan
    make_ready(deadline)
    may_copy = problem.max_copies != 1 and not problem.depth_first
    if may_copy and problem.budget_bytes is not None and len(problem.graph.ops) >= BLOCKS_FROM:
        blocks = _from_blocks(problem, deadline.limited(BLOCKS_SHARE))
        plan = min(plan, blocks, key=better)
    ordered: tuple[Schedule, ...] = ()
    training = may_copy and _is_training(problem.graph, limits)
    if not problem.fixed_order:
        share = REORDER_SHARE if problem.budget_bytes is not None else REORDER_SHARE_SMALLEST
        share = REORDER_SHARE_TRAINING if training else share
        share = share if may_copy else 1.0
        order = reorder(problem, deadline.limited(share))
        plan, ordered = min(plan, order, key=better), (order.schedule,)
    proved = plan.status in (PlanStatus.OPTIMAL, PlanStatus.INFEASIBLE)
    if proved or not may_copy or deadline.over():
        return plan
    if training:
        plan = _trained(problem, plan, ordered, deadline)
    else:
        share = SEARCH_SHARE if len(problem.graph.ops) <= WHOLE else SEARCH_SHARE_LARGE
        share = share if problem.budget_bytes is not None else 1.0
        starts = dict.fromkeys((plan.schedule, *ordered, *problem.starts))
        warm = replace(problem, starts=tuple(starts))
        found = local_search(warm, deadline.limited(share))
        plan = min(plan, found, key=better)
    if (
        plan.status is not PlanStatus.FEASIBLE
        or problem.budget_bytes is None
        or limits.work is not None
        or deadline.over()
    ):
        return plan
    return _settled(problem, plan, deadline)


def _is_training(graph: Graph, limits: Limits) -> bool:
    """Whether it is a training graph, and small enough for several searches."""
    if len(graph.ops) > OPS_A_SECOND * limits.seconds:
        return False
    try:
        split_training(graph)
    except NotTrainingError:
        return False
    return True


def _trained(problem: Problem, plan: Plan, ordered: Sequence[Schedule], deadline: Deadline) -> Plan:
    """The best plan of a training graph: from planners of such graphs, then `local_search`.

    A search stays near what it starts from, and which start is good shows only once it has run. So
    there are several: within a budget long ones, from orders first (less is recomputed near them),
    the caller's before the best; for the smallest peak a short one from each start and a long one
    from the start of the best. It begins where the short one began, for what a short search ends in
    is hard to leave.
    """
    orders = (*ordered, *problem.starts)
    if problem.budget_bytes is not None:
        orders = (*problem.starts, *ordered)
    starts = list(dict.fromkeys((*orders, plan.schedule)))
    made = []
    for planner, share in STARTERS:
        if deadline.over():
            return plan
        part = _quiet(deadline, share)
        made.append(planner(problem, replace(part, iterations=0) if planner in POLISHED else part))
        plan = _reported(problem, plan, made[-1], deadline)
    made.sort(key=partial(_rank, problem))
    if problem.budget_bytes is None:
        starts = starts[:1]
    starts = list(dict.fromkeys((*starts, *(one.schedule for one in made))))[:MOST_STARTS]
    if problem.budget_bytes is None:
        plan, starts = _raced(problem, plan, starts, deadline)
    for turn, start in enumerate(starts):
        if deadline.over():
            break
        long = LONG_SHARE if problem.budget_bytes is not None and turn < 2 else 1.0
        found = local_search(replace(problem, starts=(start,)), _quiet(deadline, long))
        plan = _reported(problem, plan, found, deadline)
    return plan


def _raced(
    problem: Problem, plan: Plan, starts: Sequence[Schedule], deadline: Deadline
) -> tuple[Plan, list[Schedule]]:
    """The best plan after a short search from each start, and the starts, the most promising
    first."""
    ends: list[tuple[tuple[bool, int, int, int], Schedule]] = []
    for done, start in enumerate(starts):
        if deadline.over():
            break
        left = 1 - HEATS_SHARE * done / len(starts)
        part = _quiet(deadline, HEATS_SHARE / len(starts) / left)
        found = local_search(replace(problem, starts=(start,)), part)
        ends.append((_rank(problem, found), start))
        plan = _reported(problem, plan, found, deadline)
    return plan, [start for _, start in sorted(ends, key=lambda end: end[0])]


def _reported(problem: Problem, old: Plan, new: Plan, deadline: Deadline) -> Plan:
    """The better one of two, told to the caller if it is the new one."""
    better = min(old, new, key=partial(_rank, problem))
    if better is not old:
        report(deadline, Score(new.schedule, new.peak_bytes, new.time_cost))
    return better


def _from_blocks(problem: Problem, limits: Limits) -> Plan:
    """A plan that treats all copies of a block alike; the given order if there is none in time."""
    deadline = Deadline(limits)
    order = order_of_file(problem.graph)
    found = None
    if repeats(problem.graph, problem.rules):
        found = block_plan(problem, order, deadline)
    if found is None or not admissible(problem, found):
        found = order
    bound = peak_bound(problem.graph, problem.rules).nbytes
    return make_plan(problem, found, "blocks", peak_bound_bytes=bound)


def _settled(problem: Problem, plan: Plan, deadline: Deadline) -> Plan:
    """The plan proved or improved by constraint programming.

    Where the order is free, the fastest plan of one order is not called optimal; the scope says
    what it is the fastest of.
    """
    best = Score(plan.schedule, plan.peak_bytes, plan.time_cost)
    found = settle(problem, best, deadline, plan.time_bound)
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


def _quiet(deadline: Deadline, share: float) -> Limits:
    """`Deadline.limited` for planners that tell nobody what they find."""
    return replace(deadline.limited(share), on_progress=None)


def _rank(problem: Problem, plan: Plan) -> tuple[bool, int, int, int]:
    """Small for good plans."""
    if problem.budget_bytes is not None and plan.meets(problem.budget_bytes):
        return False, plan.time_cost, plan.peak_bytes, 0
    return True, plan.peak_bytes, plan.time_cost, -plan.peak_bound_bytes
