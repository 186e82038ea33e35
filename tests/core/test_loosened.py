"""`loosened`: the same executions at no higher peak, with fewer ties."""

from hypothesis import given
from hypothesis import strategies as st

from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.loosened import loosened, ties_needed
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.schedule import Schedule, check
from tests.graphs import graphs, memory_rules, schedules


@given(st.data())
def test_the_same_is_executed_and_no_more_is_held(data: st.DataObject) -> None:
    graph, rules = data.draw(graphs()), data.draw(memory_rules())
    schedule = data.draw(schedules(graph))
    found = loosened(graph, schedule, rules)
    check(graph, found)
    assert sorted(found.steps) == sorted(schedule.steps)
    before, after = (profile(graph, one, rules).peak_bytes for one in (schedule, found))
    assert after <= before


def two_chains(length: int) -> Graph:
    """Of equal values, joined at the end; the ops of one have the numbers below `length`."""
    tensors = [Tensor("x", (2,), "float", 8, TensorKind.INPUT)]
    ops = []
    for number in range(2 * length):
        read = 0 if number % length == 0 else number
        ops.append(Op(f"op{number}", "Op", (read,), (number + 1,)))
        tensors.append(Tensor(f"t{number}", (2,), "float", 8))
    ops.append(Op("join", "Op", (length, 2 * length), (len(tensors),)))
    tensors.append(Tensor("y", (2,), "float", 8))
    return Graph(tuple(tensors), tuple(ops), (0,), (len(tensors) - 1,))


def test_what_is_run_in_turn_runs_one_after_the_other_where_that_holds_no_more() -> None:
    length = 6
    graph = two_chains(length)

    def made_from(schedule: Schedule) -> list[list[int]]:
        place = {v: i for i, v in enumerate(schedule.steps)}
        return [sorted(place[p] for p in graph.predecessors(v)) for v in schedule.steps]

    in_turn = Schedule((*(v for i in range(length) for v in (i, length + i)), 2 * length))
    assert len(ties_needed(made_from(in_turn))) == length - 1
    found = loosened(graph, in_turn, MemoryRules())
    assert not ties_needed(made_from(found))
    assert found != in_turn
