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


def test_what_is_executed_twice_is_read_both_times() -> None:
    """Of what a search comes to without its tie the second execution stands right behind the first,
    which nobody reads then."""
    tensors = [Tensor("x", (), "float", 4, TensorKind.INPUT)]
    tensors += [Tensor(f"t{v}", (0,), "uint8", 0) for v in range(7)]
    reads = ((0,), (0,), (0,), (1,), (0,), (4,), (1, 6))
    ops = tuple(Op(f"op{v}", "Plain", read, (v + 1,)) for v, read in enumerate(reads))
    graph = Graph(tuple(tensors), ops, (0,), (1,))
    schedule = Schedule((1, 2, 0, 4, 3, 0, 5, 6))
    check(graph, schedule)
    found = loosened(graph, schedule, MemoryRules())
    check(graph, found)
    assert sorted(found.steps) == sorted(schedule.steps)
