"""Joint search over order and recomputation, with the memory rules themselves as the objective.

Our own method. The state is a sequence of executions. Moves: free an instance held across a step
above the budget and recompute it before its next reader, with inputs that are gone by then; undo a
recomputation; move it; shift an execution between what it reads and its readers. Simulated
annealing accepts by the time of the schedule plus a price on bytes above the budget, which rises
while the budget is exceeded and falls while it is met.

The price of a move is the length of the lifetimes it changes (`_state`), 3 to 10 microseconds for
1,000 ops.
"""

from onnxremat.bounds import peak_bound
from onnxremat.plan import Limits, Plan, Problem, make_plan
from onnxremat.planners._engine import Clock, Cooling, Engine, admissible, best_of, lower_peak, report
from onnxremat.planners._orders import candidate_orders
from onnxremat.schedule import given_order

CYCLES = (0.04, 0.08, 0.16, 0.28, 0.44)
"""Shares of the limits that cooling cycles take; each starts from the best schedule so far."""

LOWERING = 0.75
"""The share of the limits for lowering the peak; the rest makes that plan faster."""


def local_search(problem: Problem, limits: Limits) -> Plan:
    """A plan that meets the budget in little time, or the smallest peak found.

    Without a budget: the smallest peak found, then little time. Starts from `problem.starts` and
    from fast orders. Stops before its limits when the budget is met without recomputation, when
    the peak reaches its lower bound, and when two cooling cycles in a row improved nothing though
    the budget is met.
    """
    bound = peak_bound(problem.graph, problem.rules).nbytes
    starts = [given_order(problem.graph)]
    if not problem.fixed_order:
        starts += candidate_orders(problem.graph, problem.rules, limits.seed, 0)
    starts += [s for s in problem.starts if admissible(problem, s)]
    best = best_of(problem, starts)
    target = bound if problem.budget_bytes is None else problem.budget_bytes
    if problem.graph.ops and bound <= target:
        clock = Clock(limits)
        report(clock, best)
        engine = Engine(problem, best, clock, Cooling())
        if problem.budget_bytes is None:
            lower_peak(engine, bound, LOWERING)
            target = engine.best.peak_bytes
        _hasten(engine, target)
        best = engine.best
    return make_plan(problem, best.schedule, "local_search", peak_bound_bytes=bound)


def _hasten(engine: Engine, target: int) -> None:
    """Meet the target in little time."""
    idle = 0
    left = 1.0 - engine.clock.used()
    for share in CYCLES:
        before = engine.best
        engine.cycle(share * left, target)
        met = engine.best.peak_bytes <= target
        idle = idle + 1 if met and engine.best is before else 0
        if idle == 2:
            break
