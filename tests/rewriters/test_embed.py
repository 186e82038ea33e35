"""Embedded orders: whatever the search can produce is embedded, and nothing else claims to be."""

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.importer.execution_order import default_order
from onnxremat.importer.nodes import is_constant, reads
from onnxremat_rewriters.embed import embed_order
from tests.ort.build import model, node, random_model, value


def arranged(graph: onnx.ModelProto, order: list[int]) -> onnx.ModelProto:
    """A copy with the nodes in another order."""
    copy = onnx.ModelProto()
    copy.CopyFrom(graph)
    del copy.graph.node[:]
    copy.graph.node.extend(graph.graph.node[v] for v in order)
    return copy


def by_default(graph: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose file order is the order in which it runs by default."""
    nodes = graph.graph.node
    constants = [v for v, n in enumerate(nodes) if is_constant(n)]
    return arranged(graph, [*constants, *default_order(nodes)])


def names(graph: onnx.ModelProto) -> list[str]:
    return [n.name for n in graph.graph.node if not is_constant(n)]


def runs_as(graph: onnx.ModelProto) -> list[str]:
    nodes = graph.graph.node
    return [nodes[v].name for v in default_order(nodes)]


@given(st.integers(0, 10**6), st.integers(2, 60))
@settings(max_examples=150, deadline=None)
def test_every_order_that_the_search_produces_is_embedded(seed: int, size: int) -> None:
    plan = by_default(random_model(seed, size))
    found = embed_order(plan)
    assert found.reason == ""
    assert found.model is not None
    assert runs_as(found.model) == names(plan)
    made = {value.name for value in found.model.graph.input}
    for n in found.model.graph.node:
        assert set(reads(n)) <= made
        made.update(n.output)
    assert sorted(found.origin) == list(range(len(plan.graph.node)))
    assert found.model == arranged(plan, list(found.origin))


@given(st.integers(0, 10**6), st.integers(2, 25))
@settings(max_examples=100, deadline=None)
def test_an_embedded_order_is_the_file_order_of_the_argument(seed: int, size: int) -> None:
    plan = random_model(seed, size)
    before = plan.SerializeToString()
    found = embed_order(plan)
    assert plan.SerializeToString() == before
    if found.model is None:
        assert found.reason
    else:
        assert runs_as(found.model) == names(plan)


def skip(order: list[int]) -> onnx.ModelProto:
    """A skip connection with a late copy of its producer."""
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("Neg", ["a"], ["b"]),
        node("Exp", ["x"], ["a2"]),
        node("Add", ["b", "a2"], ["y"]),
    ]
    for n in nodes:
        n.name = n.output[0]
    return arranged(model(nodes, [value("x")], [value("y")]), order)


def test_a_late_copy_is_moved_in_front_so_that_it_runs_late() -> None:
    plan = skip([0, 1, 2, 3])
    assert runs_as(plan) == ["a2", "a", "b", "y"]
    found = embed_order(plan)
    assert found.model is not None
    assert runs_as(found.model) == ["a", "b", "a2", "y"]
    assert [n.name for n in found.model.graph.node].index("a2") < 2


def test_an_order_across_subtrees_is_refused_with_a_reason() -> None:
    found = embed_order(skip([0, 2, 1, 3]))
    assert found.model is None
    assert found.reason.startswith("the order is no depth-first post-order: at step 0 ")


def test_constants_come_first_and_an_empty_graph_is_fine() -> None:
    nodes = [node("Abs", ["x"], ["a"]), node("Constant", [], ["k"], value_float=1.0)]
    nodes.append(node("Add", ["a", "k"], ["y"]))
    found = embed_order(model(nodes, [value("x")], [value("y")]))
    assert found.origin == (1, 0, 2)
    assert embed_order(model([], [value("x")], [])).model is not None


@pytest.mark.parametrize("late", [False, True])
def test_leaves_run_in_the_order_of_the_plan(late: bool) -> None:
    nodes = [node("Abs", ["x"], ["y"]), node("Neg", ["x"], ["z"])]
    for n in nodes:
        n.name = n.output[0]
    plan = arranged(
        model(nodes, [value("x")], [value("y"), value("z")]), [1, 0] if late else [0, 1]
    )
    found = embed_order(plan)
    assert found.model is not None
    assert runs_as(found.model) == (["z", "y"] if late else ["y", "z"])


def test_views_are_no_obstacle() -> None:
    """The plan has a view first that only its last node reads: no search runs it there."""
    nodes = [
        node("Identity", ["x"], ["first"]),
        node("Abs", ["x"], ["a"]),
        node("Neg", ["a"], ["b"]),
        node("Identity", ["a"], ["seen"]),
        node("Add", ["b", "seen"], ["y"]),
        node("Exp", ["x"], ["c"]),
        node("Identity", ["c"], ["out"]),
        node("Add", ["c", "first"], ["z"]),
    ]
    for n in nodes:
        n.name = n.output[0]
    views = {0, 3, 6}
    plan = model(nodes, [value("x")], [value("y"), value("z"), value("out")])
    assert embed_order(plan).model is None
    found = embed_order(plan, free=views)
    assert found.model is not None
    assert sorted(found.origin) == list(range(len(nodes)))
    ran = [name for name in runs_as(found.model) if name not in ("first", "seen", "out")]
    assert ran == ["a", "b", "y", "c", "z"]
