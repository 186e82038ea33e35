"""A stop ends every planner, wherever it comes, and what was left out for it stands in the scope."""

import math
import random
from collections.abc import Callable
from importlib import import_module

import pytest

from onnxremat.core.deadline import CUT_SHORT, Deadline, StoppedError
from onnxremat.core.graph import Graph
from onnxremat.core.memory import PAPER_RULES, profile
from onnxremat.core.problem import Limits, Plan, Problem
from onnxremat.core.schedule import given_order
from onnxremat.planners import PLANNERS
from onnxremat.planners.chains.chain_dp import FloatingTable, PersistentTable
from onnxremat.planners.chains.chain_model import chain_of
from onnxremat.planners.chains.strategies import Family, all_lower_sets, reachability_family
from onnxremat.planners.decompositions.tree_decomposition import (
    check_tree,
    dependency_edges,
    separators,
    tree_decomposition,
)
from tests.planners.decompositions.test_tree_decomposition import WAYS
from tests.planners.retention.test_windows import certify
from tests.planners.test_lower_sets import random_graph as random_forward
from tests.training_graphs import training_net

SECONDS = 30.0
"""More than anything here needs: it is the stop that ends the work."""


class StopAfter:
    """A stop that is true from the question after `calls` others on."""

    def __init__(self, calls: int) -> None:
        self.calls, self.asked = calls, 0

    def __call__(self) -> bool:
        self.asked += 1
        return self.asked > self.calls


def problem_at(graph: Graph, percent: int | None) -> Problem:
    peak = profile(graph, given_order(graph), PAPER_RULES).peak_bytes
    return Problem(graph, PAPER_RULES, None if percent is None else peak * percent // 100)


def stopped_plan(name: str, problem: Problem, calls: int) -> Plan:
    stop = StopAfter(calls)
    plan = PLANNERS[name].function(problem, Limits(seconds=SECONDS, stop=stop))
    certify(problem, plan)
    return plan


@pytest.mark.parametrize("calls", [0, 1, 10, 100])
@pytest.mark.parametrize("percent", [None, 60])
@pytest.mark.parametrize("name", PLANNERS)
def test_a_stop_ends_every_planner(name: str, percent: int | None, calls: int) -> None:
    stopped_plan(name, problem_at(training_net(30), percent), calls)


@pytest.mark.parametrize("calls", [0, 1, 3])
@pytest.mark.parametrize(
    "name", ["chain", "lower_sets", "chen", "revolve", "twremat", "pwremat", "moccasin"]
)
def test_a_scope_says_that_more_would_have_been_tried(name: str, calls: int) -> None:
    problem = problem_at(training_net(30), 30)
    assert CUT_SHORT in stopped_plan(name, problem, calls).scope


def test_a_program_that_is_not_stated_in_time_is_told() -> None:
    for name in ("checkmate", "checkmate_rounding"):
        plan = stopped_plan(name, problem_at(training_net(30), 60), 5)
        assert plan.scope == f"{CUT_SHORT} before the program was stated"


@pytest.mark.parametrize(
    ("name", "left_out"), [("twremat", "TWRemat("), ("pwremat", "spine, bags of")]
)
def test_what_a_stopped_sweep_left_out_is_named(name: str, left_out: str) -> None:
    problem = problem_at(training_net(30), 20)

    def swept(calls: int) -> tuple[str, int]:
        stop = StopAfter(calls)
        limits = Limits(seconds=SECONDS, iterations=0, stop=stop)
        return PLANNERS[name].function(problem, limits).scope, stop.asked

    whole, asked = swept(1 << 60)
    assert CUT_SHORT not in whole
    assert swept(0)[0] == f"{CUT_SHORT} before the graph was decomposed"
    late = swept(asked - 5)[0]
    assert CUT_SHORT in late
    assert left_out in late


def test_sequences_that_no_time_is_left_for_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_at(training_net(30), None)
    limits = Limits(seconds=SECONDS, iterations=1000)
    whole = PLANNERS["revolve"].function(problem, limits)
    assert CUT_SHORT not in whole.scope
    stages = import_module("onnxremat.planners.chains.chain_stages")
    monkeypatch.setattr(stages, "MADE_AT_ONCE", 0)
    monkeypatch.setattr(stages, "MAKING", 1e12)
    plan = PLANNERS["revolve"].function(problem, limits)
    assert CUT_SHORT in plan.scope
    assert plan.schedule == given_order(problem.graph)


def test_long_schedules_are_given_up_at_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = problem_at(training_net(30), None)
    monkeypatch.setattr(import_module("onnxremat.planners.chains.chain_stages"), "MADE_AT_ONCE", 0)
    for calls in (1, 2):  # Behind the first question: before and behind a check of the schedule.
        plan = stopped_plan("revolve", problem, calls)
        assert CUT_SHORT in plan.scope
        assert plan.schedule == given_order(problem.graph)


def stopping(stop: StopAfter) -> Deadline:
    """A deadline that only the stop makes."""
    return Deadline(Limits(seconds=math.inf, stop=stop))


def every_stop(work: Callable[[Deadline], object]) -> tuple[object, int]:
    """What the work gives without a stop; and how often it asks, stopped at each question once."""
    never = StopAfter(1 << 60)
    made = work(stopping(never))
    for calls in range(never.asked):
        with pytest.raises(StoppedError):
            work(stopping(StopAfter(calls)))
    return made, never.asked


@pytest.mark.parametrize("seed", range(3))
def test_lower_sets_by_rows_are_those_at_once(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = random_forward(random.Random(seed), 9)
    sets = all_lower_sets(graph)
    assert sets is not None
    family = Family(graph, sets)
    budget = family.smallest_budget()[0] * 5 // 4
    at_once = [family.strategy(budget, slowest=slowest) for slowest in (True, False)]
    monkeypatch.setattr(import_module("onnxremat.planners.chains.strategies"), "STEPS_UNASKED", 1)
    monkeypatch.setattr(import_module("onnxremat.planners.chains.strategies"), "FIRST_ENTRIES", 1)
    assert family.smallest_budget()[0] * 5 // 4 == budget
    for slowest, expected in zip((True, False), at_once, strict=True):
        made, asked = every_stop(
            lambda deadline, slowest=slowest: family.strategy(
                budget, slowest=slowest, deadline=deadline
            )
        )
        assert made == expected
        assert asked > 3 * (len(sets) - 1)


def test_a_family_asks_while_it_is_made() -> None:
    graph = random_forward(random.Random(0), 12)
    sets = reachability_family(graph)
    _, asked = every_stop(lambda deadline: Family(graph, sets, deadline))
    assert asked > len(graph.sizes)
    _, asked = every_stop(lambda deadline: all_lower_sets(graph, deadline=deadline))
    assert asked > len(graph.sizes)


@pytest.mark.parametrize("make", [PersistentTable, FloatingTable])
def test_tables_of_chains_ask(make: type[PersistentTable] | type[FloatingTable]) -> None:
    chain = chain_of([1] * 12, [2] * 12, [3] * 13, [5] * 12)
    every_stop(lambda deadline: make(chain, 100, deadline=deadline))


@pytest.mark.parametrize("own", WAYS)
def test_a_decomposition_of_a_dense_graph_is_stopped(own: bool) -> None:
    count = 60
    edges = [(u, v) for v in range(count) for u in range(v) if (u * v) % 7 < 4]
    made = tree_decomposition(count, edges, own=own, deadline=stopping(StopAfter(1 << 60)))
    check_tree(count, edges, made)
    assert made == tree_decomposition(count, edges, own=own)
    for calls in range(10):
        with pytest.raises(StoppedError):
            tree_decomposition(count, edges, own=own, deadline=stopping(StopAfter(calls)))
    parts, _ = every_stop(lambda deadline: separators(count, made, deadline))
    assert parts == separators(count, made)


def test_an_error_of_goatd_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    goatd = pytest.importorskip("goatd")

    def failing(*_: object, **__: object) -> None:
        raise goatd.Error("no")

    monkeypatch.setattr(goatd, "decompose", failing)
    graph = training_net(5)
    with pytest.raises(goatd.Error, match="no"):
        tree_decomposition(len(graph.ops), dependency_edges(graph))
