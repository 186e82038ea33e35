"""The retention-interval model against all sequences of its scope, by exhaustive search."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import chain, combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.core.bounds import peak_bound
from onnxremat.core.graph import Graph
from onnxremat.core.memory import PAPER_RULES, profile
from onnxremat.core.problem import Limits, PlanStatus, Problem, Progress
from onnxremat.core.schedule import Schedule, ScheduleError, check, given_order
from onnxremat.planners.moccasin import is_exact, lowest_peak, moccasin, solve
from tests.core.test_bounds import every_schedule
from tests.graphs import chain as chain_of
from tests.graphs import graphs, memory_rules

pytestmark = pytest.mark.slow

LIMITS = Limits(seconds=20)


def staged_sequences(graph: Graph, copies: int) -> Iterator[Schedule]:
    """All sequences of the staged domain, those with idle executions among them."""

    def extend(stage: int, steps: tuple[int, ...]) -> Iterator[Schedule]:
        if stage == len(graph.ops):
            yield Schedule(steps)
            return
        earlier = [v for v in range(stage) if graph.ops[v].recomputable and steps.count(v) < copies]
        for again in chain.from_iterable(combinations(earlier, n) for n in range(len(earlier) + 1)):
            yield from extend(stage + 1, (*steps, *again, stage))

    return extend(0, ())


def is_valid(graph: Graph, schedule: Schedule) -> bool:
    try:
        check(graph, schedule, idle_firsts=True)
    except ScheduleError:
        return False
    return True


def best_staged(problem: Problem, copies: int) -> tuple[int, int | None]:
    """The smallest peak, and the least time within the budget."""
    graph = problem.graph
    peaks, times = [], []
    for schedule in staged_sequences(graph, copies):
        peak = profile(graph, schedule, problem.rules).peak_bytes
        peaks.append(peak)
        if problem.budget_bytes is None or peak <= problem.budget_bytes:
            times.append(schedule.cost(graph))
    return min(peaks), min(times, default=None)


@st.composite
def problems(draw: st.DrawFn, max_ops: int, *, plain: bool = False) -> Problem:
    graph = draw(graphs(max_ops=max_ops))
    rules = PAPER_RULES if plain else draw(memory_rules())
    own = profile(graph, given_order(graph), rules).peak_bytes
    low = peak_bound(graph, rules).nbytes
    return Problem(graph, rules, draw(st.integers(low, max(low, own))), fixed_order=True)


@settings(max_examples=40, deadline=None)
@given(problem=problems(6, plain=True), copies=st.integers(2, 3))
def test_under_the_rules_of_the_paper_it_is_exact(problem: Problem, copies: int) -> None:
    smallest, fastest = best_staged(problem, copies)
    solved = solve(problem, LIMITS, max_copies=copies)
    assert solved.proved
    assert solved.infeasible == (fastest is None)
    assert solved.time_cost == fastest
    assert solved.peak_bound_bytes <= smallest
    if fastest is not None:
        assert solved.time_bound == fastest
    if copies == 2:
        assert solve(problem, LIMITS, reservoir=True).time_cost == fastest
    peak = lowest_peak(problem, LIMITS, max_copies=copies)
    assert peak.proved
    assert peak.peak_bound_bytes == smallest


@settings(max_examples=80, deadline=None)
@given(problem=problems(5), without_budget=st.booleans())
def test_nothing_claimed_is_wrong_under_any_rules(problem: Problem, without_budget: bool) -> None:
    """In-place, workspace, alignment, unread values held, several outputs."""
    if without_budget:
        problem = dataclasses.replace(problem, budget_bytes=None)
    smallest, fastest = best_staged(problem, 2)
    plan = moccasin(problem, LIMITS)
    assert is_valid(problem.graph, plan.schedule)
    assert plan.peak_bound_bytes <= smallest
    if not is_exact(problem):
        assert plan.status is not PlanStatus.INFEASIBLE or plan.peak_bound_bytes > (
            problem.budget_bytes or 0
        )
        return
    if without_budget:
        assert (plan.peak_bytes == smallest) == (plan.status is PlanStatus.OPTIMAL)
    elif plan.status is PlanStatus.OPTIMAL:
        assert plan.time_cost == fastest
    elif plan.status is PlanStatus.INFEASIBLE:
        assert fastest is None
    else:
        assert plan.status is PlanStatus.UNKNOWN
        assert problem.max_copies is None
        assert fastest is None


@settings(max_examples=40, deadline=None)
@given(problem=problems(4), without_budget=st.booleans(), ordered=st.booleans())
def test_without_an_input_order_it_is_exact(
    problem: Problem, without_budget: bool, ordered: bool
) -> None:
    budget = None if without_budget else problem.budget_bytes
    problem = dataclasses.replace(problem, budget_bytes=budget, fixed_order=False)
    found = [
        (profile(problem.graph, s, problem.rules).peak_bytes, s.cost(problem.graph))
        for s in every_schedule(problem.graph)
    ]
    times = [cost for peak, cost in found if budget is None or peak <= budget]
    plan = moccasin(problem, LIMITS)
    if budget is None:
        assert plan.peak_bytes == min(found)[0]
    elif times:
        assert (plan.status, plan.time_cost) == (PlanStatus.OPTIMAL, min(times))
    else:
        limited = problem.max_copies is not None
        assert plan.status is (PlanStatus.INFEASIBLE if limited else PlanStatus.UNKNOWN)


def held_and_needed_again() -> Graph:
    """Three wide values made early and read again late."""
    graph = chain_of([10, 40, 10, 40, 10, 40, 10, 60, 10, 10, 10, 10])
    ops = list(graph.ops)
    for late, early in ((9, 2), (10, 4), (11, 6)):
        ops[late] = dataclasses.replace(ops[late], inputs=(*ops[late].inputs, early))
    return Graph(graph.tensors, tuple(ops), graph.inputs, graph.outputs)


HARD = Problem(held_and_needed_again(), PAPER_RULES, budget_bytes=110, fixed_order=True)


def test_an_optimal_plan_says_for_what() -> None:
    plan = moccasin(HARD, LIMITS)
    assert plan.status is PlanStatus.OPTIMAL
    assert plan.schedule.recomputations() > 0
    assert "in the given order" in plan.scope
    assert "at most 2 executions" in plan.scope


def test_a_budget_below_the_smallest_peak_is_proved_impossible() -> None:
    once = dataclasses.replace(HARD, max_copies=1)
    given_peak = profile(HARD.graph, given_order(HARD.graph), HARD.rules).peak_bytes
    assert given_peak > peak_bound(HARD.graph, HARD.rules).nbytes
    plan = moccasin(dataclasses.replace(once, budget_bytes=given_peak - 1), LIMITS)
    assert plan.status is PlanStatus.INFEASIBLE
    assert "in the given order" in plan.scope


def test_stop_is_honoured_and_no_iterations_change_nothing() -> None:
    for limits in (Limits(stop=lambda: True), Limits(iterations=0)):
        plan = moccasin(HARD, limits)
        assert plan.schedule == given_order(HARD.graph)
        assert plan.status is PlanStatus.UNKNOWN


SOLVE_AND_INTERRUPT = """
import signal
from onnxremat.core.problem import Limits
from onnxremat.planners.moccasin import moccasin
from tests.planners.test_moccasin import HARD
moccasin(HARD, Limits(seconds=1))
try:
    signal.raise_signal(signal.SIGINT)
except KeyboardInterrupt:
    print("interrupted")
"""


def test_ctrl_c_still_works_behind_a_solve() -> None:
    """CP-SAT with its own handler leaves the default one, which kills the process."""
    child = subprocess.run(
        [sys.executable, "-c", SOLVE_AND_INTERRUPT],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (child.returncode, child.stdout) == (0, "interrupted\n"), child.stderr


def test_a_stop_at_the_first_solution_ends_the_search() -> None:
    seen: list[Progress] = []
    moccasin(HARD, Limits(seconds=60, on_progress=seen.append, stop=lambda: bool(seen)))
    assert seen


def test_the_same_seed_and_iterations_give_the_same_plan() -> None:
    limits = Limits(seconds=60, iterations=200, seed=3)
    assert moccasin(HARD, limits) == moccasin(HARD, limits)


def test_only_free_ops_change_their_executions() -> None:
    hint = Schedule(tuple(solve(HARD, LIMITS).steps or ()))
    again = [v for v in range(12) if hint.steps.count(v) > 1]
    kept = solve(HARD, LIMITS, hint=hint, free=())
    assert (kept.steps, kept.proved) == (hint.steps, True)
    once = solve(HARD, LIMITS, free=set(range(12)) - set(again))
    assert once.infeasible or (once.time_cost or 0) >= hint.cost(HARD.graph)
    freed = solve(HARD, LIMITS, hint=hint, free=again)
    assert (freed.time_cost, freed.proved) == (hint.cost(HARD.graph), True)


def test_what_is_not_improved_in_time_is_the_hint() -> None:
    hint = Schedule(tuple(solve(HARD, LIMITS).steps or ()))
    stopped = solve(HARD, Limits(stop=lambda: True), hint=hint)
    assert (stopped.steps, stopped.proved) == (hint.steps, False)


def test_options_that_exclude_each_other_are_an_error() -> None:
    with pytest.raises(ValueError, match="reservoirs"):
        solve(HARD, LIMITS, reservoir=True, idle_firsts=False)
    with pytest.raises(ValueError, match="budget"):
        solve(dataclasses.replace(HARD, budget_bytes=None), LIMITS)
