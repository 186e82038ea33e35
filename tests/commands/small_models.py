"""Models of a few nodes that several tests of commands run."""

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


def perceptron(width: int = 64) -> onnx.ModelProto:
    """Two products with an Exp behind each, for any number of rows n."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((width, width)).astype("f") / 16, f"w{i}")
        for i in range(2)
    ]
    nodes, last = [], "x"
    for i in range(2):
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], f"product{i}"))
        nodes.append(helper.make_node("Exp", [f"m{i}"], [f"e{i}"], f"exp{i}"))
        last = f"e{i}"
    values = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", width]) for n in ("x", last)
    ]
    graph = helper.make_graph(nodes, "perceptron", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def saved_perceptron(path: Path) -> Path:
    """The same as a file."""
    onnx.save(perceptron(), path)
    return path


def wide(rows: int = 2048, width: int = 512) -> onnx.ModelProto:
    """Two products with a wide value between them, which strips of rows do without: it has
    4 * rows * width bytes, and all the rest together has an eighth of it."""
    rng = np.random.default_rng(0)
    narrow = width // 32
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype("f") / 16, name)
        for name, shape in (("up", (narrow, width)), ("down", (width, narrow)))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "up"], ["wide"], "widen"),
        helper.make_node("Exp", ["wide"], ["exp"], "exp"),
        helper.make_node("Mul", ["exp", "wide"], ["mixed"], "mix"),
        helper.make_node("MatMul", ["mixed", "down"], ["y"], "narrow"),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, narrow]) for n in "xy"]
    graph = helper.make_graph(nodes, "wide", values[:1], values[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
