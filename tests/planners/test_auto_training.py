"""`auto` on training graphs: no worse than the planners made for them, and none where they are no
use."""

import sys

import pytest

from onnxremat.core.graph import Graph
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.problem import Limits, Plan, PlanStatus, Problem
from onnxremat.core.schedule import check, given_order
from onnxremat.core.work import WorkClock
from onnxremat.planners.auto import OPS_A_SECOND, STARTERS, auto
from onnxremat.planners.given_order import given_order as plan_given_order
from onnxremat.planners.local_search import local_search
from tests.training_graphs import training_net

pytestmark = pytest.mark.slow

MODULE = sys.modules[auto.__module__]


def problem_at(graph: Graph, percent: int | None, **options: object) -> Problem:
    rules = MemoryRules()
    peak = profile(graph, given_order(graph), rules).peak_bytes
    return Problem(graph, rules, None if percent is None else peak * percent // 100, **options)  # type: ignore[arg-type]


class Counted:
    """A planner that keeps the given order and counts its calls."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, problem: Problem, limits: Limits) -> Plan:
        self.calls += 1
        return plan_given_order(problem, limits)


@pytest.fixture
def starter(monkeypatch: pytest.MonkeyPatch) -> Counted:
    counted = Counted()
    monkeypatch.setattr(MODULE, "STARTERS", ((counted, 0.01),))
    return counted


ENOUGH = Limits(seconds=600, iterations=200_000)
"""No time: what is done in some seconds depends on what else runs on the machine."""


@pytest.mark.parametrize("skips", [0, 8])
def test_the_smallest_peak_is_no_worse_than_that_of_any_start(skips: int) -> None:
    problem = problem_at(training_net(30, skips=skips), None)
    plan = auto(problem, ENOUGH)
    check(problem.graph, plan.schedule)
    for planner in (*(one for one, _ in STARTERS), local_search):
        assert plan.peak_bytes <= planner(problem, Limits(iterations=2000)).peak_bytes


@pytest.mark.parametrize("percent", [70, 40])
def test_the_time_is_no_worse_than_that_of_any_start(percent: int) -> None:
    problem = problem_at(training_net(30), percent)
    plan = auto(problem, ENOUGH)
    assert plan.meets(problem.budget_bytes)
    for planner, _ in STARTERS:
        other = planner(problem, Limits(iterations=200))
        assert not other.meets(problem.budget_bytes) or plan.time_cost <= other.time_cost


@pytest.mark.parametrize("percent", [None, 50])
def test_iterations_make_plans_repeatable(percent: int | None) -> None:
    problem = problem_at(training_net(20, skips=4), percent)
    limits = Limits(seconds=60, iterations=3000, seed=3)
    assert auto(problem, limits) == auto(problem, limits)


@pytest.mark.parametrize("percent", [None, 40])
def test_seconds_are_kept(percent: int | None) -> None:
    """Seconds of counted work, with no real ones: whatever does not count would never end."""
    problem = problem_at(training_net(40), percent)
    clock = WorkClock(lambda: 0.0)
    auto(problem, Limits(seconds=2, work=clock))
    assert 0 < clock() <= 2.2


@pytest.mark.parametrize("percent", [None, 40])
@pytest.mark.parametrize("options", [{"fixed_order": True}, {"max_copies": 2}])
def test_orders_and_copies_are_kept(percent: int | None, options: dict[str, object]) -> None:
    problem = problem_at(training_net(16), percent, **options)
    plan = auto(problem, Limits(seconds=2))
    firsts = list(dict.fromkeys(plan.schedule.steps))
    assert "fixed_order" not in options or firsts == sorted(firsts)
    assert "max_copies" not in options or max(map(plan.schedule.steps.count, firsts)) <= 2


def test_training_graphs_get_more_starts(starter: Counted) -> None:
    auto(problem_at(training_net(20), None), Limits(seconds=1))
    assert starter.calls == 1


def test_other_graphs_do_not(starter: Counted) -> None:
    auto(problem_at(training_net(20, gradients=False), None), Limits(seconds=1))
    assert starter.calls == 0


def test_nor_do_graphs_too_large_for_the_time(starter: Counted) -> None:
    graph = training_net(40)
    auto(problem_at(graph, 50), Limits(seconds=0.9 * len(graph.ops) / OPS_A_SECOND))
    assert starter.calls == 0


def test_nor_do_those_that_may_not_recompute(starter: Counted) -> None:
    auto(problem_at(training_net(20), 50, max_copies=1), Limits(seconds=1))
    assert starter.calls == 0


def test_a_stop_ends_it_and_progress_never_worsens() -> None:
    problem = problem_at(training_net(30, skips=4), None)
    assert auto(problem, Limits(stop=lambda: True)).status is not PlanStatus.INFEASIBLE
    peaks: list[int] = []
    auto(problem, Limits(seconds=2, on_progress=lambda found: peaks.append(found.peak_bytes)))
    assert peaks
    assert min(peaks) == peaks[-1]
