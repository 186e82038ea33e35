import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import NodeProto, helper

from onnxremat.core.errors import ModelError
from onnxremat.importer import sorted_nodes

from .build import model, node, value


def chain_of(predecessors: list[list[int]]) -> list[NodeProto]:
    return [
        node("Sum", ["x", *(f"v{p}" for p in before)], [f"v{i}"])
        for i, before in enumerate(predecessors)
    ]


@st.composite
def dags(draw: st.DrawFn) -> list[list[int]]:
    size = draw(st.integers(1, 12))
    return [
        draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True)) if i else []
        for i in range(size)
    ]


@given(dags())
def test_a_valid_order_is_kept(dag: list[list[int]]) -> None:
    assert sorted_nodes(chain_of(dag), {"x"}) == tuple(range(len(dag)))


@given(dags(), st.integers(0, 1000))
def test_any_order_becomes_valid_and_is_the_smallest(dag: list[list[int]], seed: int) -> None:
    nodes = chain_of(dag)
    random.Random(seed).shuffle(nodes)
    order = sorted_nodes(nodes, {"x"})
    assert sorted(order) == list(range(len(nodes)))
    position = {nodes[index].output[0]: place for place, index in enumerate(order)}
    for place, index in enumerate(order):
        made_before = [position[name] < place for name in nodes[index].input if name != "x"]
        assert all(made_before)
        ready = [
            other
            for other in order[place:]
            if all(position[name] < place for name in nodes[other].input if name != "x")
        ]
        assert index == min(ready)


def test_a_capture_is_a_dependency() -> None:
    body = helper.make_graph([node("Neg", ["late"], ["inner"])], "b", [], [value("inner")])
    nodes = [
        node("If", ["c"], ["y"], then_branch=body, else_branch=body),
        node("Relu", ["x"], ["late"]),
    ]
    assert sorted_nodes(nodes, {"x", "c"}) == (1, 0)


def test_a_cycle_is_named() -> None:
    nodes = [
        node("Relu", ["d"], ["after"], name="innocent"),
        node("Add", ["x", "c"], ["b"], name="first"),
        node("Neg", ["b"], ["c"], name="second"),
        node("Neg", ["c"], ["d"], name="also innocent"),
    ]
    with pytest.raises(ModelError, match=r"cycle: node [12] \((Add 'first'|Neg 'second')\)"):
        sorted_nodes(nodes, {"x"})


def test_reads_of_nothing_and_second_makers_are_named() -> None:
    with pytest.raises(ModelError, match=r"node 0 \(Relu\) reads 'ghost', which nothing makes"):
        sorted_nodes([node("Relu", ["ghost"], ["y"])], {"x"})
    twice = [node("Relu", ["x"], ["y"]), node("Neg", ["x"], ["y"], name="n")]
    with pytest.raises(ModelError, match=r"'y' is made twice, again by node 1 \(Neg 'n'\)"):
        sorted_nodes(twice, {"x"})
    with pytest.raises(ModelError, match="'x' is made twice"):
        sorted_nodes([node("Relu", ["x"], ["x"])], {"x"})


def test_absent_optional_inputs_are_no_dependency() -> None:
    nodes = model([node("Clip", ["x", "", "top"], ["y"]), node("Neg", ["x"], ["top"])]).graph.node
    assert sorted_nodes(nodes, {"x"}) == (1, 0)
