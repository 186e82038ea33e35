"""Planners of training graphs: valid plans, budgets met, and the order given where none fits."""

from collections.abc import Callable
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.core.graph import Graph
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.problem import Limits, Plan, PlanStatus, Problem
from onnxremat.core.schedule import check, given_order
from onnxremat.core.training import cut, split_training
from onnxremat.planners.chain import chain, store_all
from onnxremat.planners.chains.chain_model import ChainStep, chain_of, simulate
from onnxremat.planners.chains.chain_stages import halving, schedule_of, with_early_masks
from onnxremat.planners.chen import chen, chen_sqrt, segments
from onnxremat.planners.lower_sets import lower_sets
from onnxremat.planners.revolve import forward_steps, reversal, revolve
from onnxremat.planners.search.engine import Score
from tests.graphs import graphs, memory_rules
from tests.models.sizes import tiny
from tests.planners.guarantees import imported_graph
from tests.training_graphs import Net, training_net

pytestmark = pytest.mark.slow

PLANNERS: list[Callable[[Problem, Limits], Plan]] = [chain, lower_sets, chen, chen_sqrt, revolve]

each = pytest.mark.parametrize("planner", PLANNERS)


def problem_at(graph: Graph, percent: int | None, **options: object) -> Problem:
    rules = MemoryRules()
    peak = profile(graph, given_order(graph), rules).peak_bytes
    return Problem(graph, rules, None if percent is None else peak * percent // 100, **options)  # type: ignore[arg-type]


@each
@pytest.mark.parametrize("skips", [0, 6])
def test_a_budget_is_met_for_little_time(planner, skips: int) -> None:  # type: ignore[no-untyped-def]
    problem = problem_at(training_net(24, skips=skips), 75 if not skips else 90)
    plan = planner(problem, Limits(seconds=20))
    check(problem.graph, plan.schedule)
    assert plan.peak_bytes == profile(problem.graph, plan.schedule, problem.rules).peak_bytes
    assert plan.status is PlanStatus.FEASIBLE
    assert plan.time_cost <= 1.7 * plan.time_bound


@each
def test_without_a_budget_the_peak_falls(planner) -> None:  # type: ignore[no-untyped-def]
    problem = problem_at(training_net(30), None)
    plan = planner(problem, Limits(seconds=20))
    given_peak = profile(problem.graph, given_order(problem.graph), problem.rules).peak_bytes
    assert plan.peak_bytes <= 0.55 * given_peak


@pytest.mark.parametrize("percent", [None, 80, 60])
@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(training_net(24, skips=6, seed=1), id="skips"),
        pytest.param(imported_graph("densenet_train", **tiny("densenet_train")), id="densenet"),
    ],
)
def test_a_chain_is_no_worse_than_equal_segments(graph: Graph, percent: int | None) -> None:
    """The best of the model is not the best of the graph: at 60% equal segments are faster."""
    problem = problem_at(graph, percent)
    best, equal = (planner(problem, Limits(seconds=60)) for planner in (chain, chen))
    assert not scored(equal).better_than(scored(best), problem.budget_bytes)


def scored(plan: Plan) -> Score:
    return Score(plan.schedule, plan.peak_bytes, plan.time_cost)


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


def pooled_net(layers: int) -> Graph:
    """A chain of layers; the gradient of each in the first half reads a small mask, made of a large
    value that is made of the layer's."""
    net = Net()
    made = [0]
    for i in range(layers):
        made.append(net.add(f"a{i}", [made[-1]], 80, cost=5))
    net.outputs.append(net.add("loss", [made[-1]], 4, scalar=True))
    flow = net.add("grad_last", [made[-1]], 80)
    for i in reversed(range(layers)):
        reads = [flow, made[i]]
        if i < layers // 2:
            places = net.add(f"places{i}", [made[i + 1]], 640)
            reads.append(net.add(f"mask{i}", [places, made[i + 1]], 8))
        flow = net.add(f"grad_{i}", reads, 80)
    net.outputs.append(flow)
    return net.graph()


def test_masks_are_made_early_where_making_them_takes_much() -> None:
    graph = pooled_net(12)
    split, rules = split_training(graph), MemoryRules()
    late = cut(split)
    early = with_early_masks(late, rules)
    moved = {graph.ops[v].name for ops in early.forward for v in ops if not split.is_forward[v]}
    assert moved >= {f"op_{name}{i}" for name in ("places", "mask") for i in range(6)}
    for stages in (late, early):
        ran = [v for ops in (*stages.forward, *stages.backward) for v in ops]
        assert sorted(ran) == list(range(len(graph.ops)))
    once = store_all(len(late.forward))
    schedules = [schedule_of(stages, once, None) for stages in (late, early)]
    for schedule in schedules:
        check(graph, schedule)
    peaks = [profile(graph, schedule, rules).peak_bytes for schedule in schedules]
    assert peaks[1] < peaks[0]


def test_the_scope_names_a_number_of_stages_once() -> None:
    plan = chain(problem_at(pooled_net(12), None), Limits(seconds=20))
    assert plan.scope == "chains of 13 stages"


def test_small_masks_stay_where_they_are_read() -> None:
    stages = cut(split_training(training_net(12, skips=4)))
    assert with_early_masks(stages, MemoryRules()) == stages


def test_what_reads_a_gradient_of_the_last_stage_is_no_mask() -> None:
    """That gradient itself reads forward values only, but another of that stage reads it."""
    net = Net()
    made = [0]
    for i in range(4):
        made.append(net.add(f"a{i}", [made[-1]], 80, cost=5))
    loss = net.add("loss", [made[-1]], 4, scalar=True)
    flow = net.add("grad_last", [made[-1]], 80)
    net.outputs += [loss, net.add("grad_scale", [flow, loss], 4)]
    large = net.add("grad_large", [flow, made[3]], 640)
    small = net.add("grad_small", [large], 8)
    net.outputs.append(net.add("grad_x", [small, made[1]], 80))
    stages = cut(split_training(net.graph()))
    early = with_early_masks(stages, MemoryRules())
    check(net.graph(), schedule_of(early, store_all(len(early.forward)), None))
    assert early == stages


def test_halving_covers_all() -> None:
    for count in range(9):
        assert sorted(halving(count)) == list(range(count))
    assert halving(9)[:4] == [8, 0, 4, 2]


@pytest.mark.parametrize("stages", [1, 2, 7, 30])
def test_segments_and_snapshots_are_sequences(stages: int) -> None:
    unit = chain_of([1] * stages, [1] * stages, [0] * (stages + 1))
    for count in range(1, stages + 1):
        run = simulate(unit, segments(stages, count))
        assert run.makespan == 2 * stages + stages * (count - 1) // count
        sequence = reversal(stages, count)
        assert simulate(unit, sequence).makespan == 2 * stages + forward_steps(stages, count)
        for i in range(stages):
            assert sequence.count((ChainStep.FORWARD_ALL, i)) == 1


def test_snapshots_store_no_more_values_than_allowed() -> None:
    """Beside the snapshots there are the value at hand and the one that is made of it."""
    stages = 20
    unit = chain_of([1] * stages, [1] * stages, [1] * (stages + 1), None, [0] * (stages + 1))
    for count in range(1, stages + 1):
        assert simulate(unit, reversal(stages, count)).peak_bytes <= count + 2


@pytest.mark.parametrize("stages", range(1, 13))
@pytest.mark.parametrize("snapshots", [1, 2, 3, 5])
def test_the_number_of_forward_steps_is_least(stages: int, snapshots: int) -> None:
    @cache
    def least(n: int, c: int) -> int:
        if n == 1:
            return 0
        if c == 1:
            return n * (n - 1) // 2
        return min(m + least(n - m, c - 1) + least(m, c) for m in range(1, n))

    assert forward_steps(stages, snapshots) == least(stages, snapshots)
