"""Checkmate's program against exhaustive search and against the retention intervals."""

import dataclasses
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.core.bounds import peak_bound
from onnxremat.core.graph import Graph, Op, Tensor
from onnxremat.core.memory import PAPER_RULES, profile
from onnxremat.core.problem import Limits, PlanStatus, Problem
from onnxremat.core.schedule import check, given_order
from onnxremat.planners.checkmate import checkmate, checkmate_rounding
from onnxremat.planners.checkmate import solve as solve_program
from onnxremat.planners.moccasin import solve as solve_intervals
from tests.graphs import graphs, memory_rules
from tests.planners.test_moccasin import HARD, best_staged, problems

LIMITS = Limits(seconds=20)


@settings(max_examples=40, deadline=None)
@given(problem=problems(6, plain=True), copies=st.integers(1, 3))
def test_under_the_rules_of_the_paper_it_is_exact(problem: Problem, copies: int) -> None:
    _, fastest = best_staged(problem, copies)
    solved = solve_program(problem, LIMITS, max_copies=copies)
    assert solved.proved
    assert solved.infeasible == (fastest is None)
    assert solved.time_cost == fastest


@settings(max_examples=40, deadline=None)
@given(problem=problems(5), copies=st.integers(1, 2))
def test_nothing_claimed_is_wrong_under_any_rules(problem: Problem, copies: int) -> None:
    problem = dataclasses.replace(problem, max_copies=copies)
    smallest, fastest = best_staged(problem, copies)
    plan = checkmate(problem, LIMITS)
    check(problem.graph, plan.schedule, idle_firsts=True)
    assert plan.peak_bound_bytes <= smallest
    if plan.status is PlanStatus.OPTIMAL:
        assert plan.time_cost == fastest
    if plan.status is PlanStatus.INFEASIBLE:
        assert fastest is None
    rounded = checkmate_rounding(problem, LIMITS)
    check(problem.graph, rounded.schedule, idle_firsts=True)
    met = rounded.peak_bytes <= (problem.budget_bytes or 0)
    assert met == (rounded.status in {PlanStatus.OPTIMAL, PlanStatus.FEASIBLE})


def random_graph(seed: int, ops: int) -> Graph:
    """One output an op, reads near and far."""
    source = random.Random(seed)
    tensors = [Tensor(f"t{v}", (), "uint8", source.randint(1, 50)) for v in range(ops)]
    made = []
    for v in range(ops):
        near = {v - 1} if v else set()
        far = {source.randrange(v) for _ in range(source.randint(0, 2))} if v else set()
        made.append(Op(f"op{v}", "Op", tuple(sorted(near | far)), (v,), source.randint(1, 20)))
    return Graph(tuple(tensors), tuple(made), (), (ops - 1,))


@pytest.mark.parametrize("seed", range(3))
def test_it_agrees_with_the_retention_intervals(seed: int) -> None:
    graph = random_graph(seed, 9)
    peak = profile(graph, given_order(graph), PAPER_RULES).peak_bytes
    low = peak_bound(graph, PAPER_RULES).nbytes
    problem = Problem(graph, PAPER_RULES, (2 * peak + low) // 3, fixed_order=True)
    here = solve_program(problem, LIMITS, max_copies=2)
    there = solve_intervals(problem, LIMITS, max_copies=2)
    assert here.proved
    assert there.proved
    assert (here.time_cost, here.infeasible) == (there.time_cost, there.infeasible)


def test_a_plan_says_for_what_it_is_optimal_and_rounding_claims_nothing() -> None:
    plan = checkmate(HARD, LIMITS)
    assert plan.status is PlanStatus.OPTIMAL
    assert "in the given order" in plan.scope
    rounded = checkmate_rounding(HARD, LIMITS)
    assert rounded.status in {PlanStatus.FEASIBLE, PlanStatus.UNKNOWN}
    assert rounded.time_cost >= plan.time_cost or not rounded.meets(HARD.budget_bytes)


def test_the_same_iterations_give_the_same_plan() -> None:
    limits = Limits(seconds=60, iterations=5)
    assert checkmate(HARD, limits) == checkmate(HARD, limits)


def test_limits_are_kept() -> None:
    for limits in (Limits(stop=lambda: True), Limits(iterations=0)):
        for planner in (checkmate, checkmate_rounding):
            assert planner(HARD, limits).status is PlanStatus.UNKNOWN
    with pytest.raises(ValueError, match="budget"):
        solve_program(dataclasses.replace(HARD, budget_bytes=None), LIMITS)


@settings(max_examples=10, deadline=None)
@given(graph=graphs(max_ops=6), rules=memory_rules())
def test_without_a_budget_the_given_order_is_returned(graph: Graph, rules: object) -> None:
    problem = Problem(graph, rules)  # type: ignore[arg-type]
    assert checkmate(problem, LIMITS).schedule == given_order(graph)
