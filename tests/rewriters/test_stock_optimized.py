"""`in_plan_order`: the nodes that a runtime made of planned ones, in the order of the plan."""

import random

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.importer.nodes import LAYOUT_DOMAIN, made_value, reads, values_of_nodes
from onnxremat.ort.optimize import optimize_offline
from onnxremat.ort.recipe import STOCK, OptimizationLevel
from onnxremat_rewriters.recompute import mark_of, set_mark
from onnxremat_rewriters.stock.optimized import in_plan_order
from tests.ort.build import random_model

node = helper.make_node


def planned() -> onnx.ModelProto:
    """Two branches whose parts are planned in turn, one of them made again behind the other."""
    rng = np.random.default_rng(1)
    again = node("Conv", ["x", "w"], ["a__recompute1"], "again", pads=[1] * 4)
    set_mark(again, 1)
    nodes = [
        node("Conv", ["x", "v"], ["b"], "b", pads=[1] * 4),
        node("Conv", ["x", "w"], ["a"], "a", pads=[1] * 4),
        node("Relu", ["a"], ["a1"], "a1"),
        node("Relu", ["b"], ["b1"], "b1"),
        node("MaxPool", ["a1"], ["a2"], "a2", kernel_shape=[2, 2]),
        node("MaxPool", ["b1"], ["b2"], "b2", kernel_shape=[2, 2]),
        again,
        node("Relu", ["a__recompute1"], ["a1__recompute1"], "again1"),
        node("ReduceMax", ["a1__recompute1"], ["most"], "most", axes=[1, 2, 3], keepdims=1),
        node("Add", ["a2", "b2"], ["sum"], "sum"),
        node("Mul", ["sum", "most"], ["y"], "y"),
    ]
    stored = [numpy_helper.from_array(rng.standard_normal((16, 3, 3, 3), "f"), n) for n in "vw"]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 16, 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 8, 8])
    graph = helper.make_graph(nodes, "g", [x], [y], stored)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def topological(model: onnx.ModelProto) -> bool:
    known = {v.name for v in model.graph.input} | {t.name for t in model.graph.initializer} | {""}
    for one in model.graph.node:
        if not known.issuperset(reads(one)):
            return False
        known.update(one.output)
    return True


@pytest.mark.parametrize("level", [OptimizationLevel.EXTENDED, OptimizationLevel.ALL])
def test_what_is_still_made_is_made_in_the_order_of_the_plan(level: OptimizationLevel) -> None:
    model = planned()
    optimized = optimize_offline(model, ".", level, STOCK).model
    made = in_plan_order(optimized, model)
    assert topological(made)
    assert not made.graph.value_info
    place = {name: i for i, one in enumerate(model.graph.node) for name in one.output}
    names = values_of_nodes(model.graph)
    values = [made_value(one, names) for one in made.graph.node]
    known = [place[name] for name in values if name in place]
    assert known == sorted(known)
    assert {"b2", "a1__recompute1", "y"} <= set(values)
    # Fused with its Relu, the repetition is the same node again, but for its mark.
    again = next(n for n in made.graph.node if made_value(n, names) == "a1__recompute1")
    assert mark_of(again) > 0
    if any(n.domain == LAYOUT_DOMAIN for n in made.graph.node):
        changes = [i for i, n in enumerate(made.graph.node) if n.op_type == "ReorderInput"]
        assert all(made.graph.node[i].output[0] in made.graph.node[i + 1].input for i in changes)
    optimized_again = optimize_offline(made, ".", level, STOCK).model
    assert "a1__recompute1" in {made_value(n, names) for n in optimized_again.graph.node}


@pytest.mark.parametrize("seed", range(10))
def test_the_planned_nodes_themselves_come_back_in_their_order(seed: int) -> None:
    model = random_model(seed, 40)
    shuffled = onnx.ModelProto()
    shuffled.CopyFrom(model)
    nodes = list(shuffled.graph.node)
    random.Random(seed).shuffle(nodes)
    del shuffled.graph.node[:]
    shuffled.graph.node.extend(nodes)
    made = in_plan_order(shuffled, model)
    assert [n.output[0] for n in made.graph.node] == [n.output[0] for n in model.graph.node]
