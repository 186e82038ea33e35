"""Orders without recomputation.

Greedy and depth-first orders, then annealing over topological orders with the compiled evaluator
of `local_search`. An exact dynamic program over downsets (Ahn et al. 2020) is to come.
"""

import time
from dataclasses import replace
from itertools import chain

from onnxremat.bounds import peak_bound
from onnxremat.plan import Limits, Plan, Problem, make_plan
from onnxremat.planners._engine import (
    Clock,
    Cooling,
    Engine,
    Score,
    admissible,
    best_of,
    lower_peak,
    report,
)
from onnxremat.planners._orders import candidate_orders
from onnxremat.schedule import given_order

CYCLES = (0.1, 0.3, 0.6)
RANDOM_ORDERS = 4


def reorder(problem: Problem, limits: Limits) -> Plan:
    """The order of the smallest peak found; with a budget, the first that meets it.

    Such a plan takes the time of one pass, which is optimal. With `fixed_order` it is the given
    order.
    """
    started = time.monotonic()
    bound = peak_bound(problem.graph, problem.rules).nbytes
    single = replace(problem, max_copies=1)
    target = max(bound, problem.budget_bytes or 0)
    best = best_of(single, [given_order(problem.graph)])
    possible = problem.budget_bytes is None or bound <= problem.budget_bytes
    if not problem.fixed_order and best.peak_bytes > target and possible:
        best = _search(single, best, Clock(limits, started), target)
    return make_plan(problem, best.schedule, "reorder", peak_bound_bytes=bound)


def _search(problem: Problem, best: Score, clock: Clock, target: int) -> Score:
    """An order with a peak of at most `target`, or the smallest peak found."""
    starts = chain(
        (best.schedule,),
        (s for s in problem.starts if admissible(problem, s)),
        candidate_orders(problem.graph, problem.rules, clock.limits.seed, RANDOM_ORDERS),
    )
    best = best_of(problem, starts, clock.started_enough)
    if best.peak_bytes <= target:
        return best
    report(clock, best)
    engine = Engine(problem, best, clock, Cooling(copying=0.0))
    if problem.budget_bytes is None:
        lower_peak(engine, target, 1.0)
        return engine.best
    for share in CYCLES:
        engine.cycle(share, target, until_met=True)
    return engine.best
