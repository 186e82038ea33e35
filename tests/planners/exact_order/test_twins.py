"""Twin branches: exchanges keep every step, and the exact search visits orbits once."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.core.deadline import ENDLESS
from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.schedule import Schedule
from onnxremat.planners.exact_order import rising_threshold as _exact
from onnxremat.planners.exact_order.downsets import DownsetWalk
from onnxremat.planners.exact_order.rising_threshold import exact_order
from onnxremat.planners.exact_order.twins import Twins, canonical, twins
from tests.graphs import memory_rules
from tests.planners.exact_order.test_rising_threshold import smallest

pytestmark = pytest.mark.slow


@st.composite
def planted(draw: st.DrawFn) -> Graph:
    """A head, equal branches of up to three ops, now and then a stranger, and a join or none.

    Branches have workspace, in-place ops, second outputs and held outputs; the join reads their
    ends in any order. Some tensors of a branch differ, so that it is no twin."""
    tensors = [
        Tensor("x", (), "uint8", 4, TensorKind.INPUT),
        Tensor("head", (), "uint8", draw(st.integers(0, 6))),
    ]
    ops = [Op("head", "Plain", (0,), (1,))]
    outputs = []
    sizes = st.integers(0, 6)
    shape = draw(
        st.lists(
            st.tuples(
                sizes,
                st.sampled_from([None, None, 2]),
                st.sampled_from([0, 0, 3]),
                st.sampled_from(["Plain", "InPlace"]),
                st.booleans(),
            ),
            min_size=1,
            max_size=2,
        )
    )
    held = draw(st.sampled_from([False, False, True]))
    ends = []
    for branch in range(draw(st.integers(2, 3))):
        odd = draw(st.sampled_from([0, 0, 0, 1]))
        last = 1
        for k, (nbytes, second, scratch, kind, reads_head) in enumerate(shape):
            makes = [len(tensors)]
            tensors.append(Tensor(f"t{branch}_{k}", (), "uint8", nbytes + odd))
            if second is not None:
                makes.append(len(tensors))
                tensors.append(Tensor(f"s{branch}_{k}", (), "uint8", second))
            reads = (last, 1) if reads_head else (last,)
            ops.append(Op(f"op{branch}_{k}", kind, reads, tuple(makes), workspace_bytes=scratch))
            last = makes[0]
        ends.append(last)
        if held:
            outputs.append(last)
    if draw(st.booleans()):
        tensors.append(Tensor("stranger", (), "uint8", draw(sizes)))
        ops.append(Op("stranger", "Plain", (1,), (len(tensors) - 1,)))
        ends.append(len(tensors) - 1)
    tensors.append(Tensor("y", (), "uint8", draw(sizes)))
    reads = tuple(draw(st.permutations(ends)))
    ops.append(Op("join", draw(st.sampled_from(["Plain", "InPlace"])), reads, (len(tensors) - 1,)))
    outputs.append(len(tensors) - 1)
    return Graph(tuple(tensors), tuple(ops), (0,), tuple(outputs))


def towers(count: int, sizes: tuple[int, ...]) -> Graph:
    """Equal chains between one read and one reader."""
    tensors = [Tensor("x", (), "uint8", 1, TensorKind.INPUT), Tensor("h", (), "uint8", 1)]
    ops, ends = [Op("head", "Op", (0,), (1,))], []
    for branch in range(count):
        last = 1
        for k, nbytes in enumerate(sizes):
            tensors.append(Tensor(f"t{branch}_{k}", (), "uint8", nbytes))
            ops.append(Op(f"op{branch}_{k}", "Op", (last,), (len(tensors) - 1,)))
            last = len(tensors) - 1
        ends.append(last)
    tensors.append(Tensor("y", (), "uint8", 1))
    ops.append(Op("join", "Op", tuple(ends), (len(tensors) - 1,)))
    return Graph(tuple(tensors), tuple(ops), (0,), (len(tensors) - 1,))


def no_twins(*_: object) -> tuple[Twins, ...]:
    return ()


@settings(max_examples=300, deadline=None)
@given(planted(), memory_rules())
def test_the_order_is_the_best_of_all(graph: Graph, rules: MemoryRules) -> None:
    found = exact_order(graph, rules, 0, deadline=ENDLESS)
    assert found.order is not None
    reached = profile(graph, Schedule(found.order), rules).peak_bytes
    assert reached == found.peak_bytes == smallest(graph, rules)


@settings(max_examples=300, deadline=None)
@given(planted(), memory_rules(), st.randoms(use_true_random=False))
def test_an_exchange_keeps_every_step(
    graph: Graph, rules: MemoryRules, source: random.Random
) -> None:
    walk, other = DownsetWalk(graph, rules), DownsetWalk(graph, rules)
    for group in twins(graph, rules, walk.units):
        a, b = source.sample(group.branches, 2)
        swap = dict(zip(a + b, b + a, strict=True))
        while walk.ready:
            i = source.choice(sorted(walk.ready))
            j = swap.get(i, i)
            assert walk.step_bytes(i) == other.step_bytes(j)
            walk.run(i)
            other.run(j)
            assert walk.live_bytes == other.live_bytes
            assert group.sorted(walk.done) == group.sorted(other.done)
        walk.back_to(0)
        other.back_to(0)


def test_equal_towers_are_one_group() -> None:
    graph = towers(5, (4, 1, 6, 2))
    units = [(v,) for v in range(len(graph.ops))]
    (group,) = twins(graph, MemoryRules(), units)
    assert group.branches == tuple(tuple(range(1 + 4 * k, 5 + 4 * k)) for k in range(5))
    some = 1 | 1 << 5 | 1 << 6 | 1 << 9
    assert canonical(some, [group]) == 1 | 1 << 1 | 1 << 2 | 1 << 5


def test_branches_need_not_be_chains_and_may_hold_twins() -> None:
    """Two branches, each a fork into two equal ops and their sum."""
    tensors = [Tensor("x", (), "uint8", 1, TensorKind.INPUT), Tensor("h", (), "uint8", 1)]
    ops, ends = [Op("head", "Op", (0,), (1,))], []
    for branch in range(2):
        at = len(tensors)
        tensors += [Tensor(f"t{branch}_{k}", (), "uint8", 3) for k in range(4)]
        reads = ((1,), (at,), (at,), (at + 1, at + 2))
        ops += [Op(f"op{branch}_{k}", "Op", read, (at + k,)) for k, read in enumerate(reads)]
        ends.append(at + 3)
    tensors.append(Tensor("y", (), "uint8", 1))
    ops.append(Op("join", "Op", tuple(ends), (len(tensors) - 1,)))
    graph = Graph(tuple(tensors), tuple(ops), (0,), (len(tensors) - 1,))
    groups = twins(graph, MemoryRules(), [(v,) for v in range(len(ops))])
    assert {group.branches for group in groups} == {
        ((2,), (3,)),
        ((6,), (7,)),
        ((1, 2, 3, 4), (5, 6, 7, 8)),
    }


@pytest.mark.parametrize("change", ["size", "workspace", "read", "held"])
def test_what_differs_is_no_twin(change: str) -> None:
    graph = towers(2, (4, 1, 6))
    tensors, ops, outputs = list(graph.tensors), list(graph.ops), list(graph.outputs)
    if change == "size":
        tensors[3] = Tensor("odd", (), "uint8", 2)
    elif change == "workspace":
        ops[2] = Op("odd", "Op", ops[2].inputs, ops[2].outputs, workspace_bytes=1)
    elif change == "read":
        ops[2] = Op("odd", "Op", (*ops[2].inputs, 1), ops[2].outputs)
    else:
        outputs.append(ops[2].outputs[0])
    other = Graph(tuple(tensors), tuple(ops), graph.inputs, tuple(outputs))
    units = [(v,) for v in range(len(ops))]
    assert twins(graph, MemoryRules(), units)
    assert not twins(other, MemoryRules(), units)


def test_the_order_of_in_place_pairs_counts() -> None:
    """The join takes over its first input for the first output only: ends are not alike."""
    graph = towers(2, (4,))
    join = Op("join", "Join", graph.ops[-1].inputs, graph.ops[-1].outputs)
    tensors = (*graph.tensors[:-1], Tensor("y", (), "uint8", 4))
    graph = Graph(tensors, (*graph.ops[:-1], join), graph.inputs, graph.outputs)
    reader = Op("end", "Op", graph.outputs, (len(tensors),))
    tensors = (*tensors, Tensor("z", (), "uint8", 1))
    graph = Graph(tensors, (*graph.ops, reader), graph.inputs, (len(tensors) - 1,))
    units = [(v,) for v in range(len(graph.ops))]
    either = MemoryRules(inplace={"Join": ((0, 0), (1, 0))})
    first = MemoryRules(inplace={"Join": ((0, 0),)})
    assert len(twins(graph, either, units)) == 1
    assert not twins(graph, first, units)


def test_the_search_looks_at_orbits_once(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = towers(8, (7, 3, 11, 5))
    found = exact_order(graph, MemoryRules(), 1, deadline=ENDLESS)
    monkeypatch.setattr(_exact, "twins", no_twins)
    plain = exact_order(graph, MemoryRules(), 1, deadline=ENDLESS, most_states=50_000)
    assert found.complete
    assert plain.states > 50 * found.states
    assert plain.peak_bytes <= found.peak_bytes
