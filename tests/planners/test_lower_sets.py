"""Lower sets: exhaustive search, equations 1 and 2, the approximate family, canonical schedules."""

import random
from collections.abc import Iterator

import pytest

from onnxremat.core.deadline import Deadline
from onnxremat.core.problem import Limits
from onnxremat.planners.chains.strategies import (
    Family,
    ForwardGraph,
    all_lower_sets,
    equation_1,
    equation_2,
    members,
    reachability_family,
)


def random_graph(source: random.Random, nodes: int) -> ForwardGraph:
    made = [tuple(u for u in range(v) if source.random() < 2.0 / (v + 0.5)) for v in range(nodes)]
    sizes = tuple(source.randint(0, 9) for _ in range(nodes))
    return ForwardGraph(sizes, tuple(source.randint(0, 9) for _ in range(nodes)), tuple(made))


def chain_graph(sizes: tuple[int, ...]) -> ForwardGraph:
    made = tuple((v - 1,) if v else () for v in range(len(sizes)))
    return ForwardGraph(sizes, (1,) * len(sizes), made)


def is_lower(graph: ForwardGraph, nodes: int) -> bool:
    return all(graph.before[v] & ~nodes == 0 for v in members(nodes))


def every_sequence(graph: ForwardGraph, lower: int = 0) -> Iterator[list[int]]:
    """Section 4.1: all increasing sequences of lower sets that end with V."""
    if lower == graph.everything:
        yield []
        return
    rest = [v for v in range(len(graph.sizes)) if not lower >> v & 1]
    for choice in range(1, 1 << len(rest)):
        following = lower | sum(1 << v for i, v in enumerate(rest) if choice >> i & 1)
        if is_lower(graph, following):
            for more in every_sequence(graph, following):
                yield [following, *more]


def exhaustive(graph: ForwardGraph) -> list[tuple[int, int]]:
    return [(equation_2(graph, s), equation_1(graph, s)) for s in every_sequence(graph)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("nodes", [1, 2, 4, 5])
def test_exact_equals_exhaustive_search(seed: int, nodes: int) -> None:
    graph = random_graph(random.Random(100 * nodes + seed), nodes)
    compare(graph)


@pytest.mark.parametrize("seed", range(3))
def test_exact_equals_exhaustive_search_on_up_to_nine_nodes(seed: int) -> None:
    """Sparse orders of nine nodes have too many sequences: each node reads the one before."""
    source = random.Random(seed)
    graph = random_graph(source, source.randint(7, 9))
    made = tuple(
        tuple({*reads, v - 1} if v and v % 3 else reads)
        for v, reads in enumerate(graph.predecessors)
    )
    compare(ForwardGraph(graph.sizes, graph.times, made))


def compare(graph: ForwardGraph) -> None:
    known = exhaustive(graph)
    family = Family(graph, all_lower_sets(graph) or [])
    smallest, sequence = family.smallest_budget()
    assert smallest == min(peak for peak, _ in known) == equation_2(graph, sequence)
    assert family.strategy(smallest - 1) is None
    peaks = sorted({peak for peak, _ in known})
    for budget in {smallest, peaks[len(peaks) // 3], peaks[-1]}:
        times = [time for peak, time in known if peak <= budget]
        fast, slow = family.strategy(budget), family.strategy(budget, slowest=True)
        assert fast is not None
        assert slow is not None
        assert equation_1(graph, fast) == min(times)
        assert equation_1(graph, slow) == max(times)
        assert max(equation_2(graph, fast), equation_2(graph, slow)) <= budget


def test_exact_is_never_worse_than_approximate() -> None:
    source = random.Random(0)
    for _ in range(20):
        graph = random_graph(source, 8)
        pruned = reachability_family(graph)
        assert set(pruned) <= set(all_lower_sets(graph) or [])
        approximate, sequence = Family(graph, pruned).smallest_budget()
        exact, _ = Family(graph, all_lower_sets(graph) or []).smallest_budget(sequence)
        assert exact <= approximate == equation_2(graph, sequence)


def test_the_bisection_of_budgets_can_be_stopped() -> None:
    graph = random_graph(random.Random(3), 12)
    family = Family(graph, reachability_family(graph))
    calls = iter([False, False, True])
    budget, sequence = family.smallest_budget(deadline=Deadline(Limits(stop=lambda: next(calls))))
    assert family.smallest_budget()[0] <= budget == equation_2(graph, sequence)
    assert next(calls, None) is None


def test_equations_by_hand() -> None:
    """A chain of four nodes of sizes 1 to 4, cut after the second: Figure 3 of the paper."""
    graph = chain_graph((1, 2, 3, 4))
    cut = [0b0011, 0b1111]
    # Segment 1: 2 (1 + 2), then gradient of node 2 (3), nothing else read. Segment 2: the cached
    # node 1 (2) and 2 (3 + 4).
    assert equation_2(graph, cut) == max(6 + 3, 2 + 14)
    assert equation_1(graph, cut) == 1 + 2
    skipping = ForwardGraph((1, 2, 3, 4), (1,) * 4, ((), (0,), (1,), (0, 2)))
    # Below {0}: gradients of nodes 1 and 3 (6), and node 2 (3), which node 3 reads too.
    assert skipping.beside(0b0001) == 6 + 3


def test_too_many_lower_sets_are_refused() -> None:
    wide = ForwardGraph((1,) * 12, (1,) * 12, ((),) * 12)
    assert all_lower_sets(wide, most=1000) is None
    assert len(all_lower_sets(wide, most=5000) or []) == 4095


def test_families_are_of_lower_sets_and_hold_everything() -> None:
    graph = chain_graph((1, 2, 3))
    with pytest.raises(ValueError, match="all nodes"):
        Family(graph, [0b001])
    with pytest.raises(ValueError, match="before"):
        ForwardGraph((1, 1), (1, 1), ((1,), ()))


def test_times_of_any_size_are_rounded_to_units() -> None:
    graph = ForwardGraph((5, 3, 4, 2), (10**9, 3 * 10**9, 7, 10**10), ((), (0,), (1,), (2,)))
    family = Family(graph, all_lower_sets(graph) or [])
    smallest, _ = family.smallest_budget()
    sequence = family.strategy(smallest)
    assert sequence is not None
    assert equation_2(graph, sequence) <= smallest
