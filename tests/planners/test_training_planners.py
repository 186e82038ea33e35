"""Planners of training graphs: valid plans, budgets met, and the order given where none fits."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.graph import Graph
from onnxremat.memory import MemoryRules, profile
from onnxremat.plan import Limits, Plan, PlanStatus, Problem
from onnxremat.planners.chain import chain, halving
from onnxremat.schedule import check, given_order
from tests.graphs import graphs, memory_rules
from tests.training_graphs import training_net

PLANNERS: list[Callable[[Problem, Limits], Plan]] = [chain]

each = pytest.mark.parametrize("planner", PLANNERS)


def problem_at(graph: Graph, percent: int | None, **options: object) -> Problem:
    rules = MemoryRules()
    peak = profile(graph, given_order(graph), rules).peak_bytes
    return Problem(graph, rules, None if percent is None else peak * percent // 100, **options)  # type: ignore[arg-type]


@each
@pytest.mark.parametrize("skips", [0, 6])
def test_a_budget_is_met_for_little_time(planner, skips: int) -> None:  # type: ignore[no-untyped-def]
    problem = problem_at(training_net(24, skips=skips), 75)
    plan = planner(problem, Limits(seconds=20))
    check(problem.graph, plan.schedule)
    assert plan.peak_bytes == profile(problem.graph, plan.schedule, problem.rules).peak_bytes
    assert plan.status is PlanStatus.FEASIBLE
    assert plan.time_cost <= 1.4 * plan.time_bound


@each
def test_without_a_budget_the_peak_falls(planner) -> None:  # type: ignore[no-untyped-def]
    problem = problem_at(training_net(30), None)
    plan = planner(problem, Limits(seconds=20))
    given_peak = profile(problem.graph, given_order(problem.graph), problem.rules).peak_bytes
    assert plan.peak_bytes <= 0.55 * given_peak


@each
@settings(max_examples=40, deadline=None)
@given(graph=graphs(max_ops=8), rules=memory_rules(), share=st.sampled_from([None, 50, 90]))
def test_no_training_graph_keeps_its_order(planner, graph, rules, share) -> None:  # type: ignore[no-untyped-def]
    own = profile(graph, given_order(graph), rules).peak_bytes
    plan = planner(Problem(graph, rules, None if share is None else own * share // 100), Limits())
    assert plan.peak_bytes <= own
    assert plan.scope


@each
@pytest.mark.parametrize("fixed_order", [False, True])
@pytest.mark.parametrize("max_copies", [1, 2])
def test_orders_and_copies_are_kept(planner, fixed_order: bool, max_copies: int) -> None:  # type: ignore[no-untyped-def]
    problem = problem_at(training_net(16), 60, fixed_order=fixed_order, max_copies=max_copies)
    plan = planner(problem, Limits(seconds=20))
    firsts = list(dict.fromkeys(plan.schedule.steps))
    assert not fixed_order or firsts == sorted(firsts)
    assert max(plan.schedule.steps.count(v) for v in firsts) <= max_copies


@each
def test_iterations_make_plans_repeatable_and_stop_ends_them(planner) -> None:  # type: ignore[no-untyped-def]
    problem = problem_at(training_net(20, skips=4), 60)
    first, second = (planner(problem, Limits(seconds=60, iterations=9)) for _ in range(2))
    assert first == second
    stopped = planner(problem, Limits(stop=lambda: True))
    assert stopped.schedule == given_order(problem.graph)


def test_halving_covers_all() -> None:
    for count in range(9):
        assert sorted(halving(count)) == list(range(count))
    assert halving(9)[:4] == [8, 0, 4, 2]
