"""The emulated allocation plan: each rule on a few nodes, and what must hold of every plan.

That the runtime plans the same is tested by what it allocates: see test_predict.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise

import onnx
import pytest

from onnxremat.importer.execution_order import default_order, priority_order
from onnxremat.importer.nodes import reads
from onnxremat.ort.emulation.allocation import AllocationKind, AllocationPlan, plan_allocations
from onnxremat.ort.emulation.rules import VIEW_OPS
from onnxremat.ort.measuring.provable import ProvableType, element_bytes, same_size
from tests.ort.build import BOOL, FLOAT, model, node, random_model, value

FLOATS = ProvableType("float", (4, 8))


def plan(
    nodes: Sequence[onnx.NodeProto],
    outputs: Sequence[str] = ("y",),
    types: Mapping[str, ProvableType] | None = None,
    *,
    mem_reuse: bool = True,
) -> AllocationPlan:
    """The plan in file order; values have type FLOATS if `types` does not say otherwise."""
    graph = model(nodes, [value("x")], [value(name) for name in outputs]).graph
    known = {name: FLOATS for n in nodes for name in n.output} | dict(types or {})
    return plan_allocations(graph, range(len(nodes)), known, mem_reuse=mem_reuse)


def roots(made: AllocationPlan) -> dict[str, str]:
    return {name: value.root for name, value in made.values.items() if name != "x"}


def lives(made: AllocationPlan) -> dict[str, tuple[int, int | None]]:
    return {b.root: (b.allocated, b.released) for b in made.buffers}


def test_buffers_are_held_to_their_last_reader_and_outputs_to_the_end() -> None:
    made = plan(
        [node("Exp", ["x"], ["a"]), node("Abs", ["a"], ["b"]), node("Add", ["a", "b"], ["y"])]
    )
    assert lives(made) == {"a": (0, 2), "b": (1, 2), "y": (2, None)}
    assert [b.kind for b in made.buffers] == ["allocate", "allocate", "output"]
    assert made.values["x"].kind is AllocationKind.GIVEN


def test_a_view_shares_a_buffer_whoever_else_reads_it() -> None:
    made = plan(
        [node("Exp", ["x"], ["a"]), node("Flatten", ["a"], ["v"]), node("Add", ["a", "v"], ["y"])]
    )
    assert roots(made)["v"] == "a"
    assert lives(made)["a"] == (0, 2)
    assert roots(plan([node("Identity", ["x"], ["v"]), node("Exp", ["v"], ["y"])]))["v"] == "x"


def test_in_place_needs_the_last_read_the_size_and_no_caller() -> None:
    start = node("Exp", ["x"], ["a"])
    end = node("Abs", ["b"], ["y"])
    relu = node("Relu", ["a"], ["b"])
    assert roots(plan([start, relu, end], mem_reuse=False))["b"] == "a"
    read_later = node("Add", ["b", "a"], ["y"])
    assert roots(plan([start, relu, read_later]))["b"] == "b"
    other = {"b": ProvableType("float", (4, None))}
    assert roots(plan([start, relu, end], types=other))["b"] == "b"
    assert roots(plan([node("Relu", ["x"], ["b"]), end]))["b"] == "b"
    assert roots(plan([start, node("Relu", ["a"], ["y"])]))["y"] == "y"
    assert roots(plan([start, node("Relu", ["a"], ["b"]), end], ["y", "a"]))["b"] == "b"


def test_a_value_that_is_read_twice_by_a_node_is_not_written_in_place() -> None:
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("ScatterElements", ["a", "x", "a"], ["b"]),
        node("Abs", ["b"], ["y"]),
    ]
    assert roots(plan(nodes))["b"] == "b"


def chain(*names: str) -> list[onnx.NodeProto]:
    """Abs after Abs, which never runs in place; the last one makes y."""
    values = ["x", *names, "y"]
    return [node("Abs", [a], [b]) for a, b in pairwise(values)]


def test_a_dead_buffer_is_used_again_and_held_across_the_gap() -> None:
    made = plan(chain("a", "b", "c", "d"))
    assert roots(made) == {"a": "a", "b": "b", "c": "a", "d": "b", "y": "y"}
    assert lives(made) == {"a": (0, 3), "b": (1, 4), "y": (4, None)}
    separate = plan(chain("a", "b", "c", "d"), mem_reuse=False)
    assert roots(separate) == {name: name for name in ("a", "b", "c", "d", "y")}


def test_the_most_recently_freed_buffer_comes_first() -> None:
    nodes = [
        node("Abs", ["x"], ["a"]), node("Abs", ["x"], ["b"]), node("Abs", ["b"], ["s"]),
        node("Add", ["a", "s"], ["t"]), node("Abs", ["t"], ["u"]), node("Abs", ["u"], ["y"]),
    ]  # fmt: skip
    made = plan(nodes, types={name: ProvableType("float", (9,)) for name in "s"})
    assert roots(made)["t"] == "b"
    assert roots(made)["u"] == "a"


@pytest.mark.parametrize(
    ("shape", "reused"), [((4, 8), True), (("n", 8), True), ((None, 8), False), ((), False)]
)
def test_only_provably_equal_sizes_are_used_again(
    shape: tuple[int | str | None, ...], reused: bool
) -> None:
    kind = ProvableType("float", shape)
    made = plan(chain("a", "b", "c", "d"), types=dict.fromkeys("abcd", kind))
    assert (roots(made)["c"] == "a") is reused


def test_same_size_is_about_elements_and_dimensions_not_about_bytes() -> None:
    assert same_size(FLOATS, ProvableType("int32", (4, 8)))
    assert not same_size(FLOATS, ProvableType("int64", (4, 8)))
    assert not same_size(FLOATS, ProvableType("float", (8, 4)))
    assert not same_size(FLOATS, ProvableType("float", (32,)))
    assert not same_size(ProvableType("float", ("n",)), ProvableType("float", ("m",)))
    assert not same_size(ProvableType("string", (4,)), ProvableType("string", (4,)))
    sizes = {"float": 4, "double": 8, "bool": 1, "float16": 2, "int64": 8, "uint8": 1, "int4": 1}
    assert {name: element_bytes(name) for name in sizes} == sizes


def test_an_unread_value_takes_no_dead_buffer_but_leaves_one() -> None:
    nodes = [
        node("Abs", ["x"], ["a"]), node("Abs", ["a"], ["b"]), node("Abs", ["b"], ["unread"]),
        node("Abs", ["x"], ["c"]), node("Abs", ["c"], ["y"]),
    ]  # fmt: skip
    made = plan(nodes)
    assert roots(made)["unread"] == "unread"
    assert roots(made)["c"] == "unread"
    assert lives(made)["unread"] == (2, 4)
    assert lives(plan([node("Abs", ["x"], ["z"]), *chain()]))["z"] == (0, None)


def test_what_a_subgraph_reads_is_held_for_it() -> None:
    branch = onnx.helper.make_graph([node("Abs", ["a"], ["r"])], "g", [], [value("r", FLOAT, [2])])
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("If", ["c"], ["z"], then_branch=branch, else_branch=branch),
        node("Add", ["b", "z"], ["y"]),
    ]
    graph = model(nodes, [value("x"), value("c", BOOL, [])], [value("y")]).graph
    made = plan_allocations(graph, range(4), dict.fromkeys("abzy", FLOATS))
    assert roots(made)["b"] == "b"
    assert lives(made)["a"] == (0, 2)


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("mem_reuse", [True, False])
def test_no_reader_finds_its_value_overwritten_or_released(seed: int, mem_reuse: bool) -> None:
    graph = random_model(seed, 4 + seed).graph
    nodes = graph.node
    types = {
        name: ProvableType("int64", ()) if n.op_type == "Size" else ProvableType("float", (2,))
        for n in nodes
        for name in n.output
    }
    for order in (default_order(nodes), priority_order(nodes)):
        made = plan_allocations(graph, order, types, mem_reuse=mem_reuse)
        buffers = {b.root: b for b in made.buffers}
        content: dict[str, str] = {}
        for step, v in enumerate(order):
            for name in reads(nodes[v]):
                root = made.values[name].root
                if root not in buffers:
                    continue
                buffer = buffers[root]
                assert buffer.allocated <= step
                assert buffer.released is None or step <= buffer.released
                assert content[root] == name
            for name in nodes[v].output:
                if nodes[v].op_type not in VIEW_OPS:
                    content[made.values[name].root] = name
        assert {name for b in made.buffers for name in b.members} == {
            name for v in order for name in nodes[v].output
        }
