"""The exact order against brute force over all topological orders, and what it proves on models."""

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.core.bounds import peak_bound
from onnxremat.core.deadline import ENDLESS
from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.problem import Limits, PlanStatus, Problem
from onnxremat.core.schedule import Schedule, given_order
from onnxremat.planners.auto import auto
from onnxremat.planners.exact_order.cuts import CutBound, cut_bound
from onnxremat.planners.exact_order.downsets import DownsetWalk, Facts, units
from onnxremat.planners.exact_order.rising_threshold import exact_order
from onnxremat.planners.reorder import reorder
from tests.graphs import chain, graphs, memory_rules

pytestmark = pytest.mark.slow


def every_order(graph: Graph) -> Iterator[Schedule]:
    """All topological orders."""
    steps: list[int] = []
    done: set[int] = set()

    def extend() -> Iterator[Schedule]:
        if len(steps) == len(graph.ops):
            yield Schedule(tuple(steps))
        for v in range(len(graph.ops)):
            if v not in done and done.issuperset(graph.predecessors(v)):
                steps.append(v)
                done.add(v)
                yield from extend()
                done.discard(steps.pop())

    return extend()


def smallest(graph: Graph, rules: MemoryRules) -> int:
    return min(profile(graph, order, rules).peak_bytes for order in every_order(graph))


@settings(max_examples=400, deadline=None)
@given(graphs(max_ops=7), memory_rules())
def test_the_exact_order_is_the_best_of_all(graph: Graph, rules: MemoryRules) -> None:
    bound = peak_bound(graph, rules).nbytes
    found = exact_order(graph, rules, bound, deadline=ENDLESS)
    assert found.complete
    assert found.order is not None
    reached = profile(graph, Schedule(found.order), rules).peak_bytes
    assert reached == smallest(graph, rules)
    assert bound <= reached <= found.peak_bytes


@settings(max_examples=300, deadline=None)
@given(graphs(max_ops=7), memory_rules())
def test_the_cut_bound_holds_for_all_orders(graph: Graph, rules: MemoryRules) -> None:
    bound = cut_bound(graph, rules)
    assert bound.nbytes <= smallest(graph, rules)
    done = set(bound.before)
    assert all(done.issuperset(graph.predecessors(v)) for v in done)
    if done and bound.op is not None:
        assert bound.op not in done
        assert done.issuperset(graph.predecessors(bound.op))


def test_the_cut_bound_sees_what_is_held_across_an_op() -> None:
    """A residual: its first value is live while the two ops beside it run."""
    tensors = [Tensor("x", (), "uint8", 1, TensorKind.INPUT)]
    tensors += [Tensor(f"t{i}", (), "uint8", n) for i, n in enumerate((10, 9, 9, 1))]
    reads = ((0,), (1,), (2,), (1, 3))
    ops = [Op(f"op{v}", "Op", read, (v + 1,)) for v, read in enumerate(reads)]
    graph = Graph(tuple(tensors), tuple(ops), (0,), (4,))
    assert peak_bound(graph, MemoryRules()).nbytes == 20
    assert cut_bound(graph, MemoryRules()) == CutBound(28, 2, (0, 1))
    assert smallest(graph, MemoryRules()) == 28


@settings(max_examples=60, deadline=None)
@given(graphs(max_ops=9), memory_rules())
def test_nine_ops(graph: Graph, rules: MemoryRules) -> None:
    found = exact_order(graph, rules, peak_bound(graph, rules).nbytes, deadline=ENDLESS)
    assert found.order is not None
    assert profile(graph, Schedule(found.order), rules).peak_bytes == smallest(graph, rules)


@settings(max_examples=300, deadline=None)
@given(graphs(max_ops=7), memory_rules(), st.data())
def test_what_a_walk_counts_is_what_the_simulator_counts(
    graph: Graph, rules: MemoryRules, data: st.DataObject
) -> None:
    walk = DownsetWalk(graph, rules)
    begin = walk.live_bytes
    peak = begin
    while walk.ready:
        i = data.draw(st.sampled_from(sorted(walk.ready)))
        peak = max(peak, walk.step_bytes(i))
        walk.run(i)
    assert peak == profile(graph, Schedule(walk.order()), rules).peak_bytes
    walk.back_to(0)
    assert walk.live_bytes == begin
    assert walk.done == 0


@settings(max_examples=300, deadline=None)
@given(graphs(max_ops=7), memory_rules())
def test_units_hold_every_op_once_and_lose_nothing(graph: Graph, rules: MemoryRules) -> None:
    joined = units(Facts(graph, rules))
    assert sorted(v for unit in joined for v in unit) == list(range(len(graph.ops)))
    walk = DownsetWalk(graph, rules)
    best: list[int] = []

    def extend(peak: int) -> None:
        if not walk.ready:
            best.append(peak)
        for i in sorted(walk.ready):
            length = len(walk.trail)
            held = walk.step_bytes(i)
            walk.run(i)
            extend(max(peak, held))
            walk.back_to(length)

    extend(0)
    assert max(min(best), rules.constant_bytes(graph)) == smallest(graph, rules)


@settings(max_examples=200, deadline=None)
@given(graphs(max_ops=7), memory_rules(), st.sampled_from([None, 50, 70, 85, 95]))
def test_reorder_and_auto_prove_it(graph: Graph, rules: MemoryRules, share: int | None) -> None:
    own = profile(graph, given_order(graph), rules).peak_bytes
    budget = None if share is None else own * share // 100
    problem = Problem(graph, rules, budget_bytes=budget, max_copies=1)
    best = smallest(graph, rules)
    for planner in (reorder, auto):
        plan = planner(problem, Limits(seconds=20))
        if budget is None:
            assert (plan.peak_bytes, plan.status) == (best, PlanStatus.OPTIMAL)
        elif best <= budget:
            assert plan.status is PlanStatus.OPTIMAL
            assert plan.peak_bytes <= budget
        else:
            assert plan.status is PlanStatus.INFEASIBLE
            assert plan.peak_bound_bytes == plan.peak_bytes == best or (
                budget < plan.peak_bound_bytes <= best
            )


def test_a_search_that_is_cut_short_proves_what_it_can() -> None:
    """Eight branches of odd sizes that only meet in the end."""
    tensors = [Tensor("x", (), "uint8", 1, TensorKind.INPUT)]
    ops, ends = [], []
    for branch in range(8):
        last = 0
        for k, nbytes in enumerate((7 + branch, 3 + 2 * branch, 11 - branch, 5 + branch % 3)):
            made = len(tensors)
            tensors.append(Tensor(f"t{branch}_{k}", (), "uint8", nbytes))
            ops.append(Op(f"op{branch}_{k}", "Op", (last,), (made,)))
            last = made
        ends.append(last)
    tensors.append(Tensor("y", (), "uint8", 1))
    ops.append(Op("join", "Op", tuple(ends), (len(tensors) - 1,)))
    graph = Graph(tuple(tensors), tuple(ops), (0,), (len(tensors) - 1,))
    whole = exact_order(graph, MemoryRules(), 1, deadline=ENDLESS)
    assert whole.order is not None
    short = exact_order(graph, MemoryRules(), 1, deadline=ENDLESS, most_states=1)
    assert short.peak_bytes <= whole.peak_bytes
    known = exact_order(graph, MemoryRules(), 1, below_bytes=whole.peak_bytes, deadline=ENDLESS)
    assert (known.order, known.peak_bytes, known.complete) == (None, whole.peak_bytes, True)


def test_chains_need_no_search() -> None:
    found = exact_order(chain([5, 9, 2, 7, 1] * 40), MemoryRules(), 1, deadline=ENDLESS)
    assert found.order == tuple(range(200))
    assert found.states == 0


def test_a_budget_that_no_order_meets_is_told_from_one_that_recomputation_might() -> None:
    graph = chain([5, 9, 2])
    reads = Op("join", "Op", (1, 3), (4,))
    graph = Graph((*graph.tensors, Tensor("y", (), "uint8", 1)), (*graph.ops, reads), (0,), (4,))
    free = Problem(graph, MemoryRules(), budget_bytes=14)
    assert reorder(free, Limits(seconds=5)).status is PlanStatus.UNKNOWN
    fixed = Problem(graph, MemoryRules(), budget_bytes=14, max_copies=1)
    plan = reorder(fixed, Limits(seconds=5))
    assert (plan.status, plan.peak_bound_bytes) == (PlanStatus.INFEASIBLE, 16)
    assert plan.scope == "orders without recomputation"
