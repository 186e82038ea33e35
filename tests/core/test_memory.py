"""The simulator against a slow, literal reading of the memory semantics, and by hand."""

from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.memory import MemoryRules, live_at, profile
from onnxremat.core.schedule import NEVER, Schedule, check, given_order, instances
from tests.graphs import chain, graphs, memory_rules, schedules


def literal_live_bytes(graph: Graph, schedule: Schedule, rules: MemoryRules) -> list[int]:
    """Bytes at each step by asking of every instance, for every step, whether somebody needs it."""
    steps = schedule.steps
    made = [(s, t) for s, v in enumerate(steps) for t in graph.ops[v].outputs]

    def source(t: int, step: int) -> tuple[int, int] | None:
        return max((m for m in made if m[1] == t and m[0] < step), default=None)

    readers = {
        m: [s for s, v in enumerate(steps) for t in graph.ops[v].inputs if source(t, s) == m]
        for m in made
    }
    pinned = {source(t, len(steps)) for t in graph.outputs}
    last_step = {}
    for m in made:
        if m in pinned or (not readers[m] and rules.unread_held):
            last_step[m] = len(steps) - 1
        else:
            last_step[m] = max(readers[m], default=m[0])
    for step, v in enumerate(steps):
        op = graph.ops[v]
        given, received = set(), set()
        for i, o in rules.inplace.get(op.op_type, ()):
            if i >= len(op.inputs) or o >= len(op.outputs):
                continue
            a, b = source(op.inputs[i], step), (step, op.outputs[o])
            if a is None or a in pinned or b in pinned or a in given or b in received:
                continue
            same = (graph.tensors[a[1]].nbytes, graph.tensors[a[1]].dtype) == (
                graph.tensors[b[1]].nbytes, graph.tensors[b[1]].dtype)  # fmt: skip
            if same and readers[a].count(step) == 1 and max(readers[a]) == step:
                given.add(a)
                received.add(b)
                last_step[a] = step - 1
    base = sum(
        rules.nbytes(t) for t in graph.tensors
        if (t.kind is TensorKind.INPUT and rules.count_inputs)
        or (t.kind is TensorKind.WEIGHT and rules.count_weights)
    )  # fmt: skip
    return [
        base
        + sum(rules.nbytes(graph.tensors[m[1]]) for m in made if m[0] <= step <= last_step[m])
        + (graph.ops[v].workspace_bytes if rules.count_workspace else 0)
        for step, v in enumerate(steps)
    ]


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_profile_is_the_literal_semantics(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    rules = data.draw(memory_rules())
    check(graph, schedule)
    result = profile(graph, schedule, rules)
    expected = literal_live_bytes(graph, schedule, rules)
    assert list(result.live_bytes) == expected
    assert result.peak_bytes == max(expected)
    assert result.peak_step == expected.index(max(expected))
    step = result.peak_step
    held = sum(b.nbytes for b in live_at(graph, schedule, rules, step))
    workspace = graph.ops[schedule.steps[step]].workspace_bytes if rules.count_workspace else 0
    assert held + workspace + rules.constant_bytes(graph) == result.peak_bytes


def test_chain_holds_two_neighbours() -> None:
    graph = chain([5, 7, 3])
    assert profile(graph, given_order(graph), MemoryRules()).live_bytes == (5, 12, 10)


def test_recomputing_lets_the_first_instance_go() -> None:
    """a is read by b and, late, by d: recomputed, it need not be held while c runs."""
    tensors = tuple(Tensor(n, (), "uint8", b) for n, b in zip("abcd", (10, 1, 20, 1), strict=True))
    ops = (Op("a", "Op", (), (0,)), Op("b", "Op", (0,), (1,)), Op("c", "Op", (1,), (2,)),
           Op("c2", "Op", (2, 0), (3,)))  # fmt: skip
    graph = Graph(tensors, ops, (), (3,))
    rules = MemoryRules()
    assert profile(graph, given_order(graph), rules).live_bytes == (10, 11, 31, 31)
    again = Schedule((0, 1, 2, 0, 3))
    check(graph, again)
    assert profile(graph, again, rules).live_bytes == (10, 11, 21, 30, 31)
    first, *_, second, _ = instances(graph, again)
    assert (first.last_read, second.last_read, second.step) == (1, 4, 3)


def test_unread_values_are_held_only_where_the_rules_say_so() -> None:
    tensors = (
        Tensor("a", (), "uint8", 8),
        Tensor("unread", (), "uint8", 100),
        Tensor("b", (), "uint8", 1),
    )
    graph = Graph(tensors, (Op("p", "Op", (), (0, 1)), Op("q", "Op", (0,), (2,))), (), (2,))
    schedule = given_order(graph)
    assert instances(graph, schedule)[1].last_read == NEVER
    assert profile(graph, schedule, MemoryRules()).live_bytes == (108, 9)
    assert profile(graph, schedule, MemoryRules(unread_held=True)).live_bytes == (108, 109)


def test_in_place_takes_over_a_dying_input() -> None:
    graph = chain([8, 8, 8])
    graph = Graph(
        graph.tensors, tuple(Op(o.name, "Relu", o.inputs, o.outputs) for o in graph.ops), (0,), (3,)
    )
    rules = MemoryRules(inplace={"Relu": ((0, 0),)})
    # The caller's input and the graph output are not taken over; t0 -> t1 is.
    assert profile(graph, given_order(graph), rules).live_bytes == (8, 8, 16)
