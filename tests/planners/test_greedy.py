"""Greedy recomputation: valid plans, limits kept, and budgets met where that is easy."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.core.graph import Graph, Op, Tensor
from onnxremat.core.memory import PAPER_RULES, profile
from onnxremat.core.problem import Limits, PlanStatus, Problem, Progress
from onnxremat.core.schedule import check, given_order
from onnxremat.planners.greedy import greedy
from tests.graphs import graphs, memory_rules


def skips(pairs: int) -> Graph:
    """A forward chain of wide values and a backward chain that reads them in reverse."""
    tensors = [Tensor(f"f{i}", (), "uint8", 100) for i in range(pairs)]
    tensors += [Tensor(f"b{i}", (), "uint8", 10) for i in range(pairs)]
    ops = [Op(f"f{i}", "F", (i - 1,) if i else (), (i,), 10) for i in range(pairs)]
    ops += [
        Op(f"b{i}", "B", (pairs + i - 1, pairs - 1 - i), (pairs + i,), 20) for i in range(pairs)
    ]
    return Graph(tuple(tensors), tuple(ops), (), (2 * pairs - 1,))


def at(graph: Graph, percent: int | None) -> Problem:
    peak = profile(graph, given_order(graph), PAPER_RULES).peak_bytes
    return Problem(graph, PAPER_RULES, None if percent is None else peak * percent // 100)


@pytest.mark.parametrize("percent", [90, 70, 60])
@pytest.mark.parametrize("fixed_order", [True, False])
def test_a_training_chain_meets_its_budget(percent: int, fixed_order: bool) -> None:
    problem = dataclasses.replace(at(skips(20), percent), fixed_order=fixed_order)
    plan = greedy(problem, Limits())
    assert plan.meets(problem.budget_bytes)
    assert plan.time_cost <= 1.35 * plan.one_pass


def test_without_a_budget_the_peak_is_lowered() -> None:
    problem = at(skips(20), None)
    given_peak = profile(problem.graph, given_order(problem.graph), PAPER_RULES).peak_bytes
    seen: list[Progress] = []
    plan = greedy(problem, Limits(on_progress=seen.append))
    assert plan.peak_bytes <= 0.6 * given_peak
    assert seen[-1].peak_bytes == plan.peak_bytes


def test_the_cheaper_of_two_equal_savings_is_recomputed() -> None:
    graph = skips(4)
    ops = [dataclasses.replace(op, cost=1 if v == 1 else op.cost) for v, op in enumerate(graph.ops)]
    plan = greedy(at(Graph(graph.tensors, tuple(ops), (), graph.outputs), 90), Limits())
    assert plan.schedule.recomputations() == 1
    assert plan.schedule.steps.count(1) == 2


@settings(max_examples=60, deadline=None)
@given(graph=graphs(max_ops=9), rules=memory_rules(), data=st.data())
def test_plans_are_schedules_of_the_problem(
    graph: Graph, rules: object, data: st.DataObject
) -> None:
    own = profile(graph, given_order(graph), rules).peak_bytes  # type: ignore[arg-type]
    share = data.draw(st.sampled_from([None, 40, 70, 90]))
    problem = Problem(
        graph,
        rules,  # type: ignore[arg-type]
        None if share is None else own * share // 100,
        fixed_order=True,
        max_copies=data.draw(st.sampled_from([None, 1, 2])),
    )
    plan = greedy(problem, Limits(seconds=20))
    check(graph, plan.schedule, idle_firsts=True)
    assert plan.peak_bytes <= own
    firsts = list(dict.fromkeys(plan.schedule.steps))
    assert firsts == sorted(firsts)
    if problem.max_copies is not None:
        assert max(plan.schedule.steps.count(v) for v in firsts) <= problem.max_copies


def test_stop_and_iterations_are_kept() -> None:
    problem = at(skips(20), 50)
    assert greedy(problem, Limits(stop=lambda: True)).status is PlanStatus.UNKNOWN
    assert greedy(problem, Limits(iterations=0)).schedule == given_order(problem.graph)
    some = greedy(problem, Limits(iterations=3))
    assert some.schedule.recomputations() <= 3 * 8
