"""The order of the smallest peak, without recomputation: proved where that can be done in time.

In turn: the given order, greedy and depth-first orders, a lower bound by minimum cuts
(`exact_order.cuts`), the exact search over downsets (`exact_order.rising_threshold`), and, if that
does not end in its share of the limits, beam search over the same downsets (`exact_order.beam`),
which may end with a proof as well, and annealing over orders with the compiled evaluator of
`local_search`. The bound is the largest that was proved.
"""

from dataclasses import replace
from itertools import chain

from onnxremat.core.bounds import peak_bound
from onnxremat.core.deadline import Deadline
from onnxremat.core.problem import Limits, Plan, Problem, make_plan
from onnxremat.core.schedule import Schedule, given_order
from onnxremat.planners.exact_order.cuts import cut_bound
from onnxremat.planners.exact_order.fast_orders import candidate_orders
from onnxremat.planners.exact_order.postorder import depth_first_plan
from onnxremat.planners.exact_order.rising_threshold import exact_order
from onnxremat.planners.search.engine import (
    STARTS_SHARE,
    Cooling,
    Engine,
    Score,
    admissible,
    best_of,
    lower_peak,
    make_ready,
    report,
    score,
)

CYCLES = (0.1, 0.3, 0.6)
RANDOM_ORDERS = 4
CUT_SHARE = 0.15
EXACT_SHARE = 0.15
BEAM_SHARE = 0.75
"""Shares of the seconds that are left."""
MOST_STATES = 2000
MOST_BEAM_STATES = 100_000
"""Downsets looked at where iterations are limited, so that the same ones give the same plan."""


def reorder(problem: Problem, limits: Limits) -> Plan:
    """The order of the smallest peak; with a budget, the first found that meets it.

    Without a budget the plan is optimal if the search ended with a proof, for problems without
    recomputation; with one that no order meets, it is infeasible then. A plan that meets a budget
    takes the time of one pass, which is optimal. With `fixed_order` it is the given order; with
    `depth_first` see `exact_order.postorder`.
    """
    if problem.depth_first:
        return depth_first_plan(problem, limits)
    deadline = Deadline(limits)
    bound = peak_bound(problem.graph, problem.rules).nbytes
    single = replace(problem, max_copies=1)
    target = max(bound, problem.budget_bytes or 0)
    best = best_of(single, [given_order(problem.graph)])
    possible = problem.budget_bytes is None or bound <= problem.budget_bytes
    proved_bytes = bound
    if not problem.fixed_order and best.peak_bytes > target and possible:
        make_ready(deadline)
        best, proved_bytes = _search(single, best, deadline, bound, target)
    if problem.max_copies != 1:
        return make_plan(problem, best.schedule, "reorder", peak_bound_bytes=bound)
    return make_plan(
        problem,
        best.schedule,
        "reorder",
        peak_bound_bytes=proved_bytes,
        scope="orders without recomputation",
    )


def _search(
    problem: Problem, best: Score, deadline: Deadline, bound: int, target: int
) -> tuple[Score, int]:
    """An order with a peak of at most `target`, or of the smallest peak found; and a bound that is
    proved for all orders (target or more only if no order has a smaller peak)."""
    starts = chain(
        (best.schedule,),
        (s for s in problem.starts if admissible(problem, s)),
        candidate_orders(problem.graph, problem.rules, deadline.limits.seed, RANDOM_ORDERS),
    )
    best = best_of(problem, starts, deadline.until(STARTS_SHARE))
    if best.peak_bytes <= target:
        return best, bound
    report(deadline, best)
    limits = deadline.limits
    cut = cut_bound(
        problem.graph,
        problem.rules,
        deadline=deadline.part(CUT_SHARE),
        most_ops=None if limits.iterations is None else MOST_STATES,
    )
    bound = max(bound, cut.nbytes)
    if bound >= best.peak_bytes:
        return best, best.peak_bytes
    if deadline.over():
        return best, bound
    target = max(bound, target)
    found = exact_order(
        problem.graph,
        problem.rules,
        target,
        below_bytes=best.peak_bytes,
        deadline=deadline.part(EXACT_SHARE),
        most_states=None if limits.iterations is None else min(limits.iterations, MOST_STATES),
    )
    proved = max(bound, found.peak_bytes) if found.peak_bytes > target else bound
    if found.order is not None:
        best = score(problem, Schedule(found.order))
        report(deadline, best)
    if found.complete:
        return best, max(bound, proved) if best.peak_bytes > target else bound
    if deadline.over():
        return best, proved
    return _search_on(problem, best, deadline, proved, target)


def _search_on(
    problem: Problem, best: Score, deadline: Deadline, proved: int, target: int
) -> tuple[Score, int]:
    """As `_search`, where the exact search did not end: by beam search and annealing."""
    best, beam_bound = _by_beam(problem, best, deadline, max(target, proved))
    proved = max(proved, beam_bound)
    if best.peak_bytes <= max(target, proved):
        return best, proved
    engine = Engine(problem, best, deadline, Cooling(copying=0.0))
    if problem.budget_bytes is None:
        lower_peak(engine, max(target, proved), 1.0)
        return engine.best, proved
    for share in CYCLES:
        engine.cycle(share, target, until_met=True)
    return engine.best, proved


def _by_beam(problem: Problem, best: Score, deadline: Deadline, target: int) -> tuple[Score, int]:
    """The best order after beam search, and the bound that it proved."""
    from onnxremat.planners.exact_order.beam import beam_order

    iterations = deadline.limits.iterations
    found = beam_order(
        problem.graph,
        problem.rules,
        target,
        best.peak_bytes,
        deadline=deadline.part(BEAM_SHARE),
        most_states=None if iterations is None else min(iterations, MOST_BEAM_STATES),
    )
    if found.order is not None:
        best = score(problem, Schedule(found.order))
        report(deadline, best)
    return best, found.bound_bytes
