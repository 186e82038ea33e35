"""Beam search: orders are valid and better than what was known, wide beams are exact."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.core.bounds import peak_bound
from onnxremat.core.deadline import ENDLESS, Deadline
from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.problem import Limits, Problem
from onnxremat.core.schedule import Schedule, check, given_order
from onnxremat.planners.exact_order.beam import _Beam, beam_order
from onnxremat.planners.exact_order.rising_threshold import exact_order
from onnxremat.planners.reorder import reorder
from tests.graphs import graphs, memory_rules
from tests.planners.exact_order.test_rising_threshold import smallest

pytestmark = pytest.mark.slow

ANY = 1 << 40


def layered(seed: int, layers: int, across: int) -> Graph:
    """Each op reads up to three of the two layers before its own; all ends are joined."""
    rng = random.Random(seed)
    tensors = [Tensor("x", (), "uint8", 1, TensorKind.INPUT)]
    ops = []
    rows: list[list[int]] = [[0]]
    for layer in range(layers):
        row = []
        for k in range(across):
            near = [t for earlier in rows[-2:] for t in earlier]
            reads = tuple(rng.sample(near, min(len(near), rng.randint(1, 3))))
            row.append(len(tensors))
            tensors.append(Tensor(f"t{layer}_{k}", (), "uint8", rng.randint(1, 99)))
            ops.append(Op(f"op{layer}_{k}", "Op", reads, (row[-1],)))
        rows.append(row)
    read = {t for op in ops for t in op.inputs}
    ends = tuple(t for t in range(1, len(tensors)) if t not in read)
    tensors.append(Tensor("y", (), "uint8", 1))
    ops.append(Op("join", "Op", ends, (len(tensors) - 1,)))
    return Graph(tuple(tensors), tuple(ops), (0,), (len(tensors) - 1,))


@settings(max_examples=400, deadline=None)
@given(graphs(max_ops=7), memory_rules())
def test_a_wide_beam_is_exact(graph: Graph, rules: MemoryRules) -> None:
    best = smallest(graph, rules)
    found = beam_order(graph, rules, 0, ANY, deadline=ENDLESS, first_width=4096)
    assert found.order is not None
    schedule = Schedule(found.order)
    check(graph, schedule)
    assert profile(graph, schedule, rules).peak_bytes == found.peak_bytes == best
    assert found.bound_bytes == best
    assert beam_order(graph, rules, 0, best, deadline=ENDLESS).bound_bytes == best


@settings(max_examples=400, deadline=None)
@given(graphs(max_ops=7), memory_rules(), st.booleans(), st.booleans())
def test_each_direction_is_exact(
    graph: Graph, rules: MemoryRules, partial: bool, backward: bool
) -> None:
    search = _Beam(graph, rules, ENDLESS, None)
    peak = ANY
    while (found := search.run(4096, peak, partial=partial, backward=backward)) is not None:
        check(graph, Schedule(found[0]))
        assert profile(graph, Schedule(found[0]), rules).peak_bytes == found[1] < peak
        peak = found[1]
    assert peak == smallest(graph, rules) <= search.proved_bytes


@settings(max_examples=300, deadline=None)
@given(graphs(max_ops=9), memory_rules(), st.integers(1, 4), st.integers(0, 60))
def test_a_narrow_beam_counts_and_proves_no_more_than_is_true(
    graph: Graph, rules: MemoryRules, width: int, states: int
) -> None:
    own = profile(graph, given_order(graph), rules).peak_bytes
    bound = peak_bound(graph, rules).nbytes
    found = beam_order(
        graph, rules, bound, own, deadline=ENDLESS, first_width=width, most_states=states
    )
    if found.order is None:
        assert found.peak_bytes == own
    else:
        schedule = Schedule(found.order)
        check(graph, schedule)
        assert profile(graph, schedule, rules).peak_bytes == found.peak_bytes < own
    exact = exact_order(graph, rules, bound, deadline=ENDLESS)
    assert exact.order is not None
    assert found.bound_bytes <= profile(graph, Schedule(exact.order), rules).peak_bytes


def test_it_proves_the_order_of_a_layered_graph() -> None:
    graph = layered(1, 6, 5)
    own = profile(graph, given_order(graph), MemoryRules()).peak_bytes
    found = beam_order(graph, MemoryRules(), 0, own, deadline=ENDLESS)
    exact = exact_order(graph, MemoryRules(), 1, deadline=ENDLESS)
    assert exact.complete
    assert found.bound_bytes == found.peak_bytes == exact.peak_bytes


def test_many_ops_in_more_than_one_word_of_bits() -> None:
    graph = layered(2, 60, 6)
    own = profile(graph, given_order(graph), MemoryRules()).peak_bytes
    found = beam_order(graph, MemoryRules(), 0, own, deadline=ENDLESS, most_states=200_000)
    again = beam_order(graph, MemoryRules(), 0, own, deadline=ENDLESS, most_states=200_000)
    assert found == again
    assert found.order is not None
    check(graph, Schedule(found.order))
    assert profile(graph, Schedule(found.order), MemoryRules()).peak_bytes == found.peak_bytes < own


def test_wide_graphs_do_not_take_all_memory() -> None:
    """A thousand ops that are all ready at once."""
    tensors = [Tensor("x", (), "uint8", 1, TensorKind.INPUT)]
    tensors += [Tensor(f"t{v}", (), "uint8", 1 + v % 7) for v in range(1000)]
    ops = tuple(Op(f"op{v}", "Op", (0,), (v + 1,), workspace_bytes=v % 11) for v in range(1000))
    graph = Graph(tuple(tensors), ops, (0,), tuple(range(1, 1001)))
    found = beam_order(graph, MemoryRules(), 0, ANY, deadline=ENDLESS, most_states=70_000)
    assert found.order is not None
    check(graph, Schedule(found.order))


def test_nothing_is_found_once_it_is_to_stop() -> None:
    graph = layered(3, 4, 3)
    assert (
        beam_order(graph, MemoryRules(), 0, ANY, deadline=Deadline(Limits(seconds=0))).order is None
    )


def test_reorder_is_deterministic_with_iterations() -> None:
    problem = Problem(layered(4, 40, 8), MemoryRules(), max_copies=1)
    limits = Limits(seconds=600, iterations=20_000, seed=3)
    first, second = (reorder(problem, limits) for _ in range(2))
    assert first == second
    own = profile(problem.graph, given_order(problem.graph), MemoryRules()).peak_bytes
    assert first.peak_bytes <= own
