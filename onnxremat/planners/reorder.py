"""Orders without recomputation.

Greedy and depth-first orders, then annealing over topological orders with the compiled evaluator
of `local_search`. An exact dynamic program over downsets (Ahn et al. 2020) is to come.
"""

from dataclasses import replace

from onnxremat.bounds import peak_bound
from onnxremat.plan import Limits, Plan, Problem, make_plan
from onnxremat.planners._engine import Clock, Cooling, Engine, Score, admissible, best_of, report
from onnxremat.planners._orders import candidate_orders
from onnxremat.schedule import given_order

CYCLES = (0.1, 0.3, 0.6)
RANDOM_ORDERS = 4


def reorder(problem: Problem, limits: Limits) -> Plan:
    """The order of the smallest peak found; with a budget, the first that meets it.

    Such a plan takes the time of one pass, which is optimal. With `fixed_order` it is the given
    order.
    """
    clock = Clock(limits)
    bound = peak_bound(problem.graph, problem.rules).nbytes
    single = replace(problem, max_copies=1)
    best = best_of(single, [given_order(problem.graph)])
    if not problem.fixed_order and not _done(problem, best, bound):
        best = _search(single, best, clock, bound)
    return make_plan(problem, best.schedule, "reorder", peak_bound_bytes=bound)


def _search(problem: Problem, best: Score, clock: Clock, bound: int) -> Score:
    starts = [best.schedule, *(s for s in problem.starts if admissible(problem, s))]
    starts += candidate_orders(problem.graph, problem.rules, clock.limits.seed, RANDOM_ORDERS)
    best = best_of(problem, starts)
    report(clock, best)
    if _done(problem, best, bound):
        return best
    engine = Engine(problem, best, clock, Cooling(copying=0.0))
    for share in CYCLES:
        if clock.over() or _done(problem, engine.best, bound):
            break
        engine.cycle(share)
    return engine.best


def _done(problem: Problem, best: Score, bound: int) -> bool:
    budget = problem.budget_bytes
    if budget is None:
        return best.peak_bytes <= bound
    return best.peak_bytes <= budget or bound > budget
