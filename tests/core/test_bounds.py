"""No bound is above what some schedule reaches: every sequence with up to two copies is tried."""

import time
from collections.abc import Iterator

from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.core.bounds import held_outputs_bound, op_bytes, peak_bound, single_op_bound
from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.schedule import Schedule, ScheduleError, check, given_order
from tests.graphs import chain, graphs, memory_rules

COPIES = 2


def every_schedule(graph: Graph) -> Iterator[Schedule]:
    """All valid schedules in which no op runs more than COPIES times."""

    def extend(steps: list[int]) -> Iterator[Schedule]:
        done = set(steps)
        if len(done) == len(graph.ops):
            schedule = Schedule(tuple(steps))
            try:
                check(graph, schedule)
            except ScheduleError:
                return
            yield schedule
        for v, op in enumerate(graph.ops):
            allowed = COPIES if op.recomputable else 1
            if steps.count(v) < allowed and done.issuperset(graph.predecessors(v)):
                yield from extend([*steps, v])

    yield from extend([])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_bounds_are_below_the_best_schedule(data: st.DataObject) -> None:
    graph = data.draw(graphs(max_ops=4))
    rules = data.draw(memory_rules())
    best = min(profile(graph, s, rules).peak_bytes for s in every_schedule(graph))
    assert single_op_bound(graph, rules).nbytes <= best
    assert held_outputs_bound(graph, rules).nbytes <= best
    bound = peak_bound(graph, rules)
    assert bound.nbytes <= best
    if bound.op is not None:
        assert op_bytes(graph, rules)[bound.op] == bound.nbytes
        assert graph.ops[bound.op].name in bound.reason


def test_the_widest_op_sets_the_bound_of_a_chain() -> None:
    graph = chain([5, 70, 30, 2])
    bound = peak_bound(graph, MemoryRules())
    assert (bound.nbytes, bound.op) == (100, 2)
    assert profile(graph, given_order(graph), MemoryRules()).peak_bytes == 100


def test_outputs_held_together_set_the_bound_of_a_fan() -> None:
    x = Tensor("x", (), "uint8", 1, TensorKind.INPUT)
    made = [Tensor(f"t{i}", (), "uint8", 10) for i in range(4)]
    ops = tuple(Op(f"op{i}", "Op", (0,), (i + 1,)) for i in range(4))
    graph = Graph((x, *made), ops, (0,), (1, 2, 3, 4))
    bound = peak_bound(graph, MemoryRules())
    assert (bound.nbytes, bound.op) == (40, None)
    assert "outputs" in bound.reason


def test_in_place_and_workspace_count() -> None:
    tensors = tuple(Tensor(n, (), "uint8", 8) for n in "abc")
    ops = (
        Op("a", "Op", (), (0,)),
        Op("b", "Relu", (0,), (1,)),
        Op("c", "Op", (1,), (2,), workspace_bytes=3),
    )
    graph = Graph(tensors, ops, (), (2,))
    rules = MemoryRules(inplace={"Relu": ((0, 0),)})
    assert op_bytes(graph, rules) == (8, 8, 19)
    assert op_bytes(graph, MemoryRules(count_workspace=False))[2] == 16
    assert op_bytes(graph, MemoryRules())[1] == 16


def test_all_ops_of_a_long_graph_are_asked_at_once() -> None:
    began = time.thread_time()
    found = op_bytes(chain([8] * 20_000), MemoryRules())
    assert time.thread_time() - began < 5.0
    assert set(found[1:]) == {16}
