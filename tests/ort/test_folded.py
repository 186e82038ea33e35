"""What a session computes of weights alone, and whether everybody's bits are the same."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.core.errors import ModelError
from onnxremat.ort.folded import computed_otherwise, folded_otherwise
from onnxremat.ort.outside import Weights, optimized_outside
from onnxremat.ort.recipe import STOCK
from tests.rewriters.tile.nets import Net

FLOATS = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
INTEGERS = numpy_helper.from_array(np.arange(4), "i")


def model(
    *nodes: onnx.NodeProto, given: bool = False, ir_version: int = 8, output: str = "y"
) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in ("x", output))
    inputs = [x]
    if given:
        inputs += [helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4])]
    last = helper.make_node("Add", ["x", "c"], [output])
    graph = helper.make_graph([*nodes, last], "g", inputs, [y], [FLOATS, INTEGERS])
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=ir_version)


def node(op: str, inputs: str, output: str = "c", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], op.lower(), **attributes)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ([node("MatMul", "w w")], "MatMul (matmul)"),
        ([node("Sin", "w")], "Sin (sin)"),
        ([node("ReduceSum", "w")], "ReduceSum (reducesum)"),
        ([node("Transpose", "w", "t"), node("Exp", "t")], "Exp (exp)"),
        ([node("Cast", "i", "f", to=TensorProto.FLOAT), node("CumSum", "f i")], "CumSum (cumsum)"),
        ([node("ConstantOfShape", "i", "t"), node("Log", "t")], "Log (log)"),
        ([node("Transpose", "w")], ""),
        ([node("Mul", "w w", "t"), node("Sqrt", "t")], ""),
        ([node("CumSum", "i i", "t"), node("Cast", "t", to=TensorProto.FLOAT)], ""),
        ([node("Shape", "w", "t"), node("ReduceProd", "t", "p"), node("Cast", "p", to=1)], ""),
        ([node("MatMul", "x w")], ""),
        ([node("RandomNormalLike", "w", "t"), node("Exp", "t")], ""),
    ],
)
def test_the_first_that_others_compute_otherwise(nodes: list[onnx.NodeProto], found: str) -> None:
    assert computed_otherwise(model(*nodes)) == found


def test_what_a_caller_may_give_is_no_weight() -> None:
    """Since IR version 4; before, all initializers are inputs."""
    product = node("MatMul", "w w")
    assert computed_otherwise(model(product, given=True)) == ""
    assert computed_otherwise(model(product, given=True, ir_version=3)) == "MatMul (matmul)"


def test_bodies_see_the_weights_around_them() -> None:
    for names, found in (("w w", "MatMul (matmul)"), ("x w", "")):
        made = helper.make_tensor_value_info("b", TensorProto.FLOAT, None)
        body = helper.make_graph([node("MatMul", names, "b")], "body", [], [made])
        branch = helper.make_node("If", ["x"], ["c"], then_branch=body, else_branch=body)
        assert computed_otherwise(model(branch)) == found


def test_portable_weights_hold_nothing_of_this_processor() -> None:
    """The product of two weights has other bits in WebAssembly."""
    net = Net()
    adapted = net.add("MatMul", net.weight(64, 8), net.weight(8, 64))
    made = net.model(net.add("MatMul", net.input("x", 1, 64), adapted))
    with pytest.raises(ModelError, match=r"MatMul \(.*\) is computed when a file is"):
        optimized_outside(made, Path(), STOCK, Weights.EXTERNAL)
    assert not optimized_outside(made, Path(), STOCK, Weights.PACKED).data.empty


def sized(*nodes: onnx.NodeProto) -> onnx.ModelProto:
    """A model with an input of 3 x 4 to which a constant is added, which `nodes` make."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 4]) for n in ("x", "y"))
    branch = helper.make_graph(
        [helper.make_node("Identity", ["w"], ["kept"])],
        "branch",
        [],
        [helper.make_tensor_value_info("kept", TensorProto.FLOAT, [3, 4])],
    )
    known = node("If", "yes", "t", then_branch=branch, else_branch=branch)
    weights = [
        numpy_helper.from_array(np.full((3, 4), 0.3, np.float32), "w"),
        numpy_helper.from_array(np.array(True), "yes"),
        numpy_helper.from_array(np.array(0), "axis"),
    ]
    both = [*([known] if any("t" in one.input for one in nodes) else []), *nodes]
    last = node("Add", "x c", "y")
    graph = helper.make_graph([*both, last], "g", [x], [y], weights)
    opset = helper.make_opsetid("", 17)
    return helper.make_model(graph, opset_imports=[opset], ir_version=8)


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ([node("Shape", "x", "s"), node("Cast", "s", "f", to=1), node("Sin", "f", "g"),
          node("ReduceSum", "g", "c")], "Sin (sin)"),
        ([node("Shape", "x", "s"), node("ConstantOfShape", "s", "f"), node("CumSum", "f axis", "g"),
          node("Neg", "g", "c")], "CumSum (cumsum)"),
        ([node("Sin", "t", "c")], "Sin (sin)"),
        ([node("Dropout", "w", "d"), node("Exp", "d", "c")], "Exp (exp)"),
        ([node("Max", "w w", "c")], "Max (max)"),
        ([node("Shape", "x", "s"), node("ReduceProd", "s", "p"),
          node("Cast", "p", "c", to=1)], ""),
        ([node("Neg", "t", "c")], ""),
        ([node("Sin", "x", "c")], ""),
    ],
)  # fmt: skip
def test_what_else_is_constant_is_found_where_it_was_stored(
    nodes: list[onnx.NodeProto], found: str
) -> None:
    """Sizes of inputs, what a branch or Dropout hands on."""
    before = sized(*nodes)
    if found:
        with pytest.raises(ModelError, match=found.split(" ", maxsplit=1)[0]):
            optimized_outside(before, Path(), STOCK, Weights.EXTERNAL)
    else:
        after = optimized_outside(before, Path(), STOCK, Weights.EXTERNAL).model
        assert folded_otherwise(before, after) == ""
