"""Joint search over order and recomputation, with the memory rules themselves as the objective.

Our own method. The state is a sequence of executions. Moves: free an instance held across a step
above the budget and recompute it before its next reader, with inputs that are gone by then; undo a
recomputation; move it; shift an execution between what it reads and its readers. Simulated
annealing accepts by the time of the schedule plus a price on bytes above the budget, which rises
while the budget is exceeded and falls while it is met.

The price of a move is the length of the lifetimes it changes (`search.state`), 3 to 10 microseconds
for 1,000 ops.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from onnxremat.core.bounds import peak_bound
from onnxremat.core.deadline import Deadline
from onnxremat.core.problem import Limits, Plan, Problem, make_plan
from onnxremat.core.schedule import Schedule, given_order
from onnxremat.planners.exact_order.fast_orders import candidate_orders
from onnxremat.planners.retention.time_bound import least_time_of
from onnxremat.planners.search.engine import (
    STARTS_SHARE,
    Cooling,
    Engine,
    Score,
    admissible,
    lower_peak,
    make_ready,
    report,
    score,
    usable_processors,
)

ROUND = ((0.3, True), (0.1, True), (1.0, True), (0.1, False))
"""The cooling cycles of a round: first temperature, and whether to start over or from the best.

Short cycles end in plans of very different time; the best of several beats one long cycle."""

HOT_ROUND = ((0.3, True), (0.3, True), (3.0, True), (1.0, True))
"""Every other round from the third on, and in a large graph every one but the first: it has basins
that cooler cycles do not leave."""

LARGE = 500

FIRST_SHARE = 0.015
"""The share of the limits of each cycle of the first round; it doubles from round to round."""

MOST_STARTS = 3
"""Sequences that cycles start from: the best one known, and others, often from other basins."""

FEWEST_ROUNDS = 3
"""Rounds before lack of improvement ends the search: the first ones are short."""

FEW_MOVES = 100
"""With fewer moves an op than this in a round, nothing is started over."""

BOUND_SHARE = 0.04
"""The share of the seconds for a lower bound on the time."""

MOST_THREADS = 2
"""Searches at a time where the seconds are limited, on as many processors."""

LOWERING = 0.75
"""The share of the limits for lowering the peak; the rest makes that plan faster."""


def local_search(problem: Problem, limits: Limits) -> Plan:
    """A plan that meets the budget in little time, or the smallest peak found.

    Without a budget: the smallest peak found, then little time. Starts from `problem.starts`, or
    else from fast orders. Stops before its limits when the budget is met in the least time that is
    proved to be needed, when the peak reaches its lower bound, and when two rounds in a row
    improved nothing though the budget is met.
    """
    deadline = Deadline(limits)
    bound = peak_bound(problem.graph, problem.rules).nbytes
    target = bound if problem.budget_bytes is None else problem.budget_bytes
    least_time = 0
    if not problem.graph.ops or bound > target:
        best = score(problem, given_order(problem.graph))
    else:
        make_ready(deadline)
        least_time = least_time_of(problem, deadline.until(BOUND_SHARE))
        best = _search(problem, deadline, bound, target, least_time)
    return make_plan(
        problem, best.schedule, "local_search", peak_bound_bytes=bound, time_bound=least_time
    )


def _search(
    problem: Problem, deadline: Deadline, bound: int, target: int, least_time: int
) -> Score:
    starts = _scored(problem, _starts(problem, deadline.limits.seed), deadline)
    best = starts[0]
    report(deadline, best)
    engine = Engine(problem, best, deadline, Cooling(), least_time)
    if problem.budget_bytes is None:
        lower_peak(engine, bound, LOWERING)
        target = engine.best.peak_bytes
    engines = [engine]
    for stream in range(1, _threads(deadline.limits)):
        engines.append(Engine(problem, engine.best, deadline, Cooling(), least_time, stream))
    if problem.budget_bytes is None:
        starts = [engine.best]
    _hasten(engines, starts, target)
    return engines[0].best


def _threads(limits: Limits) -> int:
    """One where iterations or work are limited: what threads do by then differs from run to run."""
    if limits.iterations is not None or limits.work is not None:
        return 1
    return min(MOST_THREADS, usable_processors())


def _starts(problem: Problem, seed: int) -> Iterator[Schedule]:
    """The caller's starts and the given order; fast orders if the caller has none."""
    yield from (s for s in problem.starts if admissible(problem, s))
    yield given_order(problem.graph)
    if not problem.starts and not problem.fixed_order:
        yield from candidate_orders(problem.graph, problem.rules, seed, 0)


def _scored(problem: Problem, schedules: Iterable[Schedule], deadline: Deadline) -> list[Score]:
    """The best of the schedules, and behind it others that cycles start from, too."""
    found, enough = [], deadline.until(STARTS_SHARE)
    for schedule in dict.fromkeys(schedules):
        deadline.evaluated(len(problem.graph.ops))
        found.append(score(problem, schedule))
        if enough.over():
            break
    best = found[0]
    for other in found[1:]:
        best = other if other.better_than(best, problem.budget_bytes) else best
    return [best, *(other for other in found if other is not best)][:MOST_STARTS]


def _hasten(engines: Sequence[Engine], starts: Sequence[Score], target: int) -> None:
    """Meet the target in little time: rounds of cycles, until two rounds improve nothing.

    The engines run as many cycles of a round at a time as there are of them, each in a thread, and
    then go on from the best of all. Cycles that start over take turns at the starts.
    """
    turns = itertools.cycle(starts)
    deadline = engines[0].deadline
    ops = len(engines[0].problem.graph.ops)
    few, large = FEW_MOVES * ops, ops >= LARGE
    best = engines[0].best
    share, idle, rounds = FIRST_SHARE, 0, 0
    with ThreadPoolExecutor(len(engines)) as pool:
        while (
            (idle < 2 or rounds < FEWEST_ROUNDS)
            and not deadline.over()
            and not engines[0].finished(target)
        ):
            before, moves = best, deadline.iterations
            hot_round = rounds > 0 if large else rounds >= 2 and rounds % 2 == 0
            cycles = HOT_ROUND if hot_round else ROUND
            for first in range(0, len(cycles), len(engines)):
                running = [
                    pool.submit(
                        engine.cycle, share, target, start=next(turns) if fresh else best, hot=hot
                    )
                    for engine, (hot, fresh) in zip(engines, cycles[first:], strict=False)
                ]
                for cycle in running:
                    cycle.result()
                for engine in engines:
                    best = engine.best if engine.best.better_than(best, target) else best
                for engine in engines:
                    engine.best = best
            if deadline.iterations - moves < few:
                turns = itertools.cycle([best])
            met = best.peak_bytes <= target
            idle = idle + 1 if met and best is before else 0
            share *= 2
            rounds += 1
