"""PWRemat: path decompositions with spines, the claims of theorem 22, and its plans."""

import random
from importlib import import_module
from itertools import pairwise

import pytest
from hypothesis import given, settings

from onnxremat.core.graph import Graph
from onnxremat.core.memory import PAPER_RULES, MemoryRules, profile
from onnxremat.core.problem import Limits, PlanStatus, Problem
from onnxremat.core.schedule import check, given_order
from onnxremat.planners.decompositions.path_decomposition import (
    PathDecomposition,
    Spined,
    add_spine,
    along_tree,
    check_path,
    cuthill_mckee,
    from_layout,
    given_spine,
    layouts,
)
from onnxremat.planners.decompositions.tree_decomposition import (
    DecompositionError,
    dependency_edges,
    tree_decomposition,
)
from onnxremat.planners.pwremat import path_schedule, pwremat, spined_paths
from tests.graphs import chain
from tests.models.sizes import tiny
from tests.planners.guarantees import LIGHT, check_path_schedule, imported_graph, random_graph
from tests.planners.retention.test_windows import certify, problems
from tests.planners.test_twremat import ONE_MOVE, backward, figure_1

pytestmark = pytest.mark.slow


def certified_paths(graph: Graph) -> list[Spined]:
    """Every path decomposition of a graph with both spines, certified."""
    count, edges = len(graph.ops), dependency_edges(graph)
    made = []
    for _, layout in layouts(graph, tree_decomposition(count, edges)):
        assert sorted(layout) == list(range(count))
        path = from_layout(edges, layout)
        check_path(edges, path)
        bags = [set(bag) for bag in path.bags()]
        assert not any(a <= b or b <= a for a, b in pairwise(bags))
        assert max(len(bag) for bag in bags) == path.width + 1
        own, given_order_spine = add_spine(count, edges, path), given_spine(count, edges, layout)
        for spined in (own, given_order_spine):
            check_spine(count, edges, spined)
        check_doubling(path, own)
        made += [own, given_order_spine]
    return made


def check_spine(count: int, edges: tuple[tuple[int, int], ...], spined: Spined) -> None:
    """A topological order of all vertices, each sharing a bag with the next."""
    place = {v: i for i, v in enumerate(spined.spine)}
    assert sorted(place) == list(range(count))
    assert all(place[u] < place[v] for u, v in edges)
    check_path([*edges, *spined.edges()], spined.path)


def check_doubling(path: PathDecomposition, spined: Spined) -> None:
    """Theorem 8: a bag gains at most one vertex for each that it had, and one for the root."""
    for before, after in zip(path.bags(), spined.path.bags(), strict=True):
        assert set(before) <= set(after)
        assert len(after) <= 2 * len(before) + 1
    assert spined.path.width + 1 <= 2 * path.width + 3


def test_random_graphs_have_certified_paths_and_spines() -> None:
    for seed in range(50):
        certified_paths(random_graph(seed))


@pytest.mark.parametrize("name", LIGHT)
def test_builders_have_certified_paths_and_spines(name: str) -> None:
    certified_paths(imported_graph(name, **tiny(name)))


def test_spines_on_any_path_decomposition() -> None:
    """Random intervals, so that vertices may end long after those that branch to them."""
    rng = random.Random(0)
    for _ in range(3000):
        count, bags = rng.randint(2, 9), rng.randint(1, 8)
        left = [rng.randrange(bags) for _ in range(count)]
        right = [min(bags - 1, a + rng.randrange(4)) for a in left]
        path = PathDecomposition(tuple(left), tuple(right), bags)
        edges = tuple(
            (u, v)
            for u in range(count)
            for v in range(u + 1, count)
            if max(left[u], left[v]) <= min(right[u], right[v]) and rng.random() < 0.6
        )
        spined = add_spine(count, edges, path)
        check_spine(count, edges, spined)
        check_doubling(path, spined)


def test_the_published_spine_can_miss_a_bag() -> None:
    """The gap in the proof of theorem 8: the published spine is 0, 2, 3, 1, but 3 begins behind all
    bags of 1. Here 2 waits, since it ends after 0."""
    path = PathDecomposition((0, 1, 1, 4), (1, 2, 4, 5), 6)
    edges = ((0, 2), (2, 3))
    check_path(edges, path)
    spined = add_spine(4, edges, path)
    assert spined.spine == (0, 1, 2, 3)
    check_spine(4, edges, spined)
    check_doubling(path, spined)


def test_a_wide_graph_has_a_spine_as_narrow_as_theorem_8_says() -> None:
    """Large enough for the published search to break the bound."""
    graph = imported_graph("randwire_train")
    count, edges = len(graph.ops), dependency_edges(graph)
    path = from_layout(edges, along_tree(tree_decomposition(count, edges)))
    check_doubling(path, add_spine(count, edges, path))


def test_a_long_layout_of_a_path_is_narrow() -> None:
    """So long that quadratic time would take minutes."""
    count = 40_000
    order = cuthill_mckee(count, [(v, v + 1) for v in range(count - 1)])
    assert from_layout([(v, v + 1) for v in range(count - 1)], order).width == 1


def test_widths_of_a_chain_and_of_its_way_back() -> None:
    edges = [(v, v + 1) for v in range(19)]
    assert from_layout(edges, range(20)).width == 1
    assert from_layout(edges, cuthill_mckee(20, edges)).width == 1
    assert spined_paths(backward(40), 0)[0][2].path.width <= 4


def test_what_is_no_path_decomposition_is_refused() -> None:
    with pytest.raises(DecompositionError, match="both ends"):
        check_path([(0, 1)], PathDecomposition((0, 1), (0, 1), 2))
    with pytest.raises(DecompositionError, match="vertex 1"):
        check_path([], PathDecomposition((0, 1), (0, 0), 2))


def test_theorem_22_on_random_graphs() -> None:
    checked = 0
    for seed in range(40):
        graph = random_graph(seed, most_ops=14)
        for spined in certified_paths(graph):
            checked += check_path_schedule(graph, spined) is not None
    assert checked >= 300


@pytest.mark.parametrize("seed", [23, 62, 78, 84])
def test_theorem_22_where_nested_schedules_wait(seed: int) -> None:
    graph = random_graph(seed, most_ops=30)
    for _, _, spined in spined_paths(graph, 0):
        assert check_path_schedule(graph, spined, 20_000) is not None


def test_theorem_22_where_the_spine_leaves_through_what_is_known() -> None:
    """The gap in the proof of theorem 22: lower schedules that do not stop at X' miss inputs."""
    graph = random_graph(1096, most_ops=45)
    for _, _, spined in spined_paths(graph, 0):
        assert check_path_schedule(graph, spined, 20_000) is not None


@pytest.mark.parametrize("name", ["ffn_train", "unet_train"])
def test_theorem_22_on_builders(name: str) -> None:
    graph = imported_graph(name, **tiny(name))
    for _, _, spined in spined_paths(graph, 0)[:2]:
        assert check_path_schedule(graph, spined, 5000) is not None


def test_theorem_22_on_a_way_back() -> None:
    for count in (4, 8, 16, 32):
        graph = backward(count)
        assert check_path_schedule(graph, spined_paths(graph, 0)[0][2], 100_000) is not None


@pytest.mark.parametrize("name", LIGHT)
def test_pruned_schedules_of_builders_are_valid(name: str) -> None:
    graph = imported_graph(name, **tiny(name))
    _, _, spined = spined_paths(graph, 0)[0]
    made = path_schedule(graph, spined)
    if made is not None:
        check(graph, made)
    assert made is not None or spined.path.width > 12


def test_figure_1_gives_three_units() -> None:
    """After polishing: alone, PWRemat keeps A, which shares a bag with what comes between."""
    limits = Limits(seconds=20, iterations=2000)
    assert pwremat(Problem(figure_1(), PAPER_RULES), limits).peak_bytes == 3


def test_the_peak_grows_with_the_logarithm_of_the_depth() -> None:
    peaks = []
    for count in (32, 64, 128, 256):
        graph = backward(count)
        made = path_schedule(graph, spined_paths(graph, 0)[0][2])
        assert made is not None
        assert len(made) <= 5 * len(graph.ops)
        peaks.append(profile(graph, made, MemoryRules()).peak_bytes)
    assert all(b - a <= 4 for a, b in pairwise(peaks))


def test_a_deep_graph_needs_no_python_recursion() -> None:
    graph = chain([1] * 3000)
    made = path_schedule(graph, spined_paths(graph, 0)[0][2])
    assert made is not None
    assert sorted(made.steps) == list(range(3000))


def test_what_is_left_out_stands_in_the_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("onnxremat.planners.pwremat"), "WIDEST", 2)
    plan = pwremat(Problem(backward(30), MemoryRules()), ONE_MOVE)
    assert "left out as too wide or too long: tree with the given spine, bags of" in plan.scope


def test_an_impossible_budget_is_infeasible() -> None:
    plan = pwremat(Problem(backward(30), MemoryRules(), 2), ONE_MOVE)
    assert plan.status is PlanStatus.INFEASIBLE


@settings(max_examples=60, deadline=None)
@given(problem=problems(max_ops=9))
def test_a_plan_is_what_it_says(problem: Problem) -> None:
    certify(problem, pwremat(problem, ONE_MOVE))


def test_the_same_seed_and_iterations_give_the_same_plan() -> None:
    problem = Problem(backward(40), MemoryRules(), 14)
    limits = Limits(seconds=60, iterations=2000, seed=3)
    assert pwremat(problem, limits) == pwremat(problem, limits)


def test_a_stop_keeps_the_best() -> None:
    plan = pwremat(Problem(backward(40), MemoryRules()), Limits(stop=lambda: True))
    assert plan.schedule == given_order(backward(40))
