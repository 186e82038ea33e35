"""TWRemat: the promises of theorem 5 on every step, and its plans."""

import dataclasses
from importlib import import_module
from itertools import pairwise

import pytest
from hypothesis import given, settings

from onnxremat.core.graph import Graph, Op, Tensor
from onnxremat.core.memory import PAPER_RULES, MemoryRules, profile
from onnxremat.core.problem import Limits, PlanStatus, Problem
from onnxremat.core.schedule import check, given_order
from onnxremat.planners.decompositions.recursion import tree_schedule
from onnxremat.planners.twremat import recursion_limits, twremat
from tests.graphs import chain
from tests.models.sizes import tiny
from tests.planners.guarantees import (
    LIGHT,
    check_tree_schedule,
    decomposed,
    imported_graph,
    random_graph,
)
from tests.planners.retention.test_windows import certify, problems

ONE_MOVE = Limits(seconds=20, iterations=1)


def figure_1() -> Graph:
    """A, B, C, D, E in a chain; D reads B and E reads A, too. One unit each."""
    tensors = tuple(Tensor(name, (), "uint8", 1) for name in "ABCDE")
    reads = ((), (0,), (1,), (1, 2), (0, 3))
    ops = tuple(Op("ABCDE"[v], "Op", read, (v,)) for v, read in enumerate(reads))
    return Graph(tensors, ops, (), (4,))


def test_figure_1_gives_three_units() -> None:
    graph = figure_1()
    assert profile(graph, given_order(graph), PAPER_RULES).peak_bytes == 4
    plan = twremat(Problem(graph, PAPER_RULES), ONE_MOVE)
    assert plan.peak_bytes == 3


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("k", [1, 3, 10])
def test_theorem_5_on_random_graphs(k: int, early: bool) -> None:
    for seed in range(100):
        graph = random_graph(seed)
        width, _, parts = decomposed(graph)
        check_tree_schedule(graph, parts, width, k, early)


@pytest.mark.parametrize("early", [True, False])
@pytest.mark.parametrize("name", LIGHT)
def test_theorem_5_on_builders(name: str, early: bool) -> None:
    graph = imported_graph(name, **tiny(name))
    width, _, parts = decomposed(graph)
    check_tree_schedule(graph, parts, width, 1, early)


def test_with_more_bags_than_there_are_nothing_is_repeated() -> None:
    for seed in range(20):
        graph = random_graph(seed)
        _, bags, parts = decomposed(graph)
        made = tree_schedule(graph, parts, bags + 1)
        assert made is not None
        assert sorted(made.steps) == list(range(len(graph.ops)))


def backward(count: int) -> Graph:
    """A chain of `count` ops and its way back: op i is read once more on the way."""
    graph = chain([1] * (2 * count))
    ops = list(graph.ops)
    for v in range(count, 2 * count):
        ops[v] = dataclasses.replace(ops[v], inputs=(*ops[v].inputs, 2 * count - v))
    return Graph(graph.tensors, tuple(ops), graph.inputs, graph.outputs)


def test_the_peak_grows_with_the_logarithm_of_the_depth() -> None:
    peaks, steps = [], []
    for count in (32, 64, 128, 256):
        graph = backward(count)
        _, _, parts = decomposed(graph)
        peaks.append(check_tree_schedule(graph, parts, 3, 1, True))
        made = tree_schedule(graph, parts, 1)
        assert made is not None
        steps.append(len(made) / len(graph.ops))
        assert profile(graph, given_order(graph), MemoryRules()).peak_bytes > count
    assert all(b - a <= 4 for a, b in pairwise(peaks))
    assert steps[-1] <= 4


def test_a_deep_graph_needs_no_python_recursion() -> None:
    graph = chain([1] * 3000)
    _, _, parts = decomposed(graph)
    made = tree_schedule(graph, parts, 1)
    assert made is not None
    check(graph, made)


def test_many_pieces_below_one_separator() -> None:
    """One op whose value many read, so many that quadratic time would take minutes."""
    count = 12_000
    tensors = tuple(Tensor(f"t{v}", (), "uint8", 1) for v in range(count))
    ops = tuple(Op(f"op{v}", "Op", (0,) if v else (), (v,)) for v in range(count))
    graph = Graph(tensors, ops, (), tuple(range(1, count)))
    _, _, parts = decomposed(graph)
    assert tree_schedule(graph, parts, 1) == given_order(graph)


def test_ops_that_must_run_once_do_and_copies_are_limited() -> None:
    graph = backward(60)
    once = Graph(
        graph.tensors,
        tuple(
            dataclasses.replace(op, recomputable=v % 3 > 0, eager=v % 5 == 0)
            for v, op in enumerate(graph.ops)
        ),
        graph.inputs,
        graph.outputs,
    )
    _, _, parts = decomposed(once)
    made = tree_schedule(once, parts, 1, max_copies=2)
    assert made is not None
    runs = [made.steps.count(v) for v in range(120)]
    assert all(runs[v] == 1 for v in range(120) if v % 3 == 0 or v % 5 == 0)
    assert max(runs) == 2


def test_too_long_schedules_are_given_up_and_the_plan_says_so(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(import_module("onnxremat.planners.twremat"), "LONGEST", 1)
    graph = backward(60)
    _, _, parts = decomposed(graph)
    assert tree_schedule(graph, parts, 1, most_steps=len(graph.ops)) is None
    plan = twremat(Problem(graph, MemoryRules()), ONE_MOVE)
    assert "more than 1 times the ops" in plan.scope


def test_the_cheapest_that_fits_is_taken() -> None:
    graph = backward(100)
    before = [twremat(Problem(graph, MemoryRules(), budget), ONE_MOVE) for budget in (60, 30, 20)]
    assert all(plan.status is PlanStatus.FEASIBLE for plan in before)
    times = [plan.time_cost for plan in before]
    assert times == sorted(times)
    assert times[0] < times[-1]
    impossible = twremat(Problem(graph, MemoryRules(), 2), ONE_MOVE)
    assert impossible.status is PlanStatus.INFEASIBLE


def test_each_limit_tried_cuts_other_pieces() -> None:
    _, bags, parts = decomposed(backward(100))
    limits = recursion_limits(parts)
    assert min(limits) == 1
    assert bags // 3 <= max(limits) <= bags
    made = {tree_schedule(backward(100), parts, k) for k in limits}
    assert len(made) >= 5
    assert len(set(limits)) == len(limits)
    _, _, one = decomposed(chain([1]))
    assert recursion_limits(one) == [1]


@settings(max_examples=60, deadline=None)
@given(problem=problems(max_ops=9))
def test_a_plan_is_what_it_says(problem: Problem) -> None:
    certify(problem, twremat(problem, ONE_MOVE))


def test_the_same_seed_and_iterations_give_the_same_plan() -> None:
    problem = Problem(backward(40), MemoryRules(), 14)
    limits = Limits(seconds=60, iterations=2000, seed=3)
    assert twremat(problem, limits) == twremat(problem, limits)


def test_a_stop_keeps_the_best() -> None:
    plan = twremat(Problem(backward(40), MemoryRules()), Limits(stop=lambda: True))
    assert plan.schedule == given_order(backward(40))
