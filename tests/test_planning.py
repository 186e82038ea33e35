"""The loop between planner and runtime, with a planner and a runtime made for the test."""

import pytest

from onnxremat.errors import InfeasibleError, NoPlanFoundError
from onnxremat.memory import MemoryRules
from onnxremat.plan import Limits, Plan, PlanStatus, Problem, make_plan
from onnxremat.planning import MAX_ROUNDS, plan_within
from onnxremat.schedule import given_order
from tests.graphs import chain

LIMITS = Limits(seconds=1)
PROBLEM = Problem(chain([500, 500, 100]), MemoryRules(), budget_bytes=1200)


def planner(problem: Problem, limits: Limits) -> Plan:
    return make_plan(problem, given_order(problem.graph), "test", peak_bound_bytes=1000)


def test_a_plan_that_measures_within_the_limit_is_taken() -> None:
    attempt = plan_within(
        PROBLEM, planner, LIMITS, error_bytes=50, measure=lambda plan: plan.peak_bytes + 60, rewriters="r"
    )  # fmt: skip
    assert (attempt.target_bytes, attempt.measured_bytes) == (1150, 1060)


def test_what_measures_too_much_is_planned_again_for_less() -> None:
    targets = []

    def measure(plan: Plan) -> int:
        return 1300 if len(targets) < 3 else 1200

    def spy(problem: Problem, limits: Limits) -> Plan:
        targets.append(problem.budget_bytes)
        return planner(problem, limits)

    attempt = plan_within(PROBLEM, spy, LIMITS, error_bytes=-5, measure=measure, rewriters="r")
    assert targets == [1200, 1100, 1000]
    assert attempt.measured_bytes == 1200


def test_a_runtime_that_always_takes_too_much_is_no_plan() -> None:
    rounds = []

    def measure(plan: Plan) -> int:
        rounds.append(plan)
        return 1230

    with pytest.raises(
        NoPlanFoundError, match=r"smallest peak found is 1\.23 kB.*none below 1\.00 kB"
    ):
        plan_within(PROBLEM, planner, LIMITS, error_bytes=0, measure=measure, rewriters="r")
    assert len(rounds) == MAX_ROUNDS


def test_a_limit_below_the_bound_is_proved_impossible() -> None:
    problem = Problem(PROBLEM.graph, PROBLEM.rules, budget_bytes=900)
    with pytest.raises(InfeasibleError) as error:
        plan_within(
            problem, planner, LIMITS, error_bytes=0, measure=lambda plan: 0, rewriters="reordering"
        )
    for part in (
        "900 B is impossible with reordering",
        "1.00 kB (inputs, outputs and workspace of op1 (Op))",
        "smallest peak found",
    ):
        assert part in str(error.value)


def test_without_a_budget_the_smallest_is_measured_once() -> None:
    problem = Problem(PROBLEM.graph, PROBLEM.rules)
    attempt = plan_within(
        problem, planner, LIMITS, error_bytes=9, measure=lambda plan: 7, rewriters="r"
    )
    assert (attempt.target_bytes, attempt.measured_bytes) == (None, 7)
    assert attempt.plan.status is PlanStatus.OPTIMAL
