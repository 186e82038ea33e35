"""Constant folding and complete static shapes for a graph whose inputs have static shapes.

ONNX shape inference cannot see through every computed shape; once the operators that depend on
no input are replaced by their results, it can.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper, shape_inference
from onnx.reference import ReferenceEvaluator

from models.weights import Array

Shape = tuple[int, ...]

FOLDED_ELEMENTS = 1 << 18
"""A result of more elements is not stored in the file but left to the runtime."""


def fold(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `model` in which what depends on no input is stored, every value with its shape.

    ValueError names a value whose shape is still not static then.
    """
    model = with_shapes(model)
    count = len(model.graph.node) + 1
    while len(model.graph.node) < count:
        count = len(model.graph.node)
        model = _fold_once(model)
    complete_shapes(model)
    return model


def with_shapes(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `model` with all the shapes that ONNX can infer."""
    inferred: onnx.ModelProto = shape_inference.infer_shapes(
        model, strict_mode=True, data_prop=True
    )
    return inferred


def value_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """The static shape of every value that `model` declares; symbolic ones are left out."""
    graph = model.graph
    shapes: dict[str, Shape] = {t.name: tuple(t.dims) for t in graph.initializer}
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        if value.type.tensor_type.HasField("shape") and all(d.HasField("dim_value") for d in dims):
            shapes[value.name] = tuple(d.dim_value for d in dims)
    return shapes


def complete_shapes(model: onnx.ModelProto) -> dict[str, Shape]:
    """`value_shapes`, when every input and every result has one; ValueError names one without."""
    shapes = value_shapes(model)
    values = [value.name for value in model.graph.input]
    values += [name for node in model.graph.node for name in node.output if name]
    unknown = [name for name in values if name not in shapes]
    if unknown:
        raise ValueError(f"{unknown[0]!r} has no static shape; fix every dimension first")
    return shapes


def rebuilt(
    model: onnx.ModelProto, nodes: Sequence[NodeProto], values: dict[str, Array]
) -> onnx.ModelProto:
    """`model` with other nodes and those constants that they read; shapes inferred again."""
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    for field in ("node", "initializer", "value_info"):
        graph.ClearField(field)
    graph.node.extend(nodes)
    read = {name for node in nodes for name in node.input}
    graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in values.items() if name in read
    )
    return with_shapes(result)


def _fold_once(model: onnx.ModelProto) -> onnx.ModelProto:
    shapes = value_shapes(model)
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    outputs = {output.name for output in model.graph.output}
    kept = []
    for node in model.graph.node:
        result = None
        if outputs.isdisjoint(node.output):
            result = _constant_result(node, model.opset_import, shapes, values)
        if result is None:
            kept.append(node)
        else:
            values[node.output[0]] = result
    return rebuilt(model, kept, values)


def _constant_result(
    node: NodeProto, opsets: Any, shapes: dict[str, Shape], values: dict[str, Array]
) -> Array | None:
    """The value of `node` when it is known, has one output and is small enough to store."""
    if node.op_type == "Size" and node.input[0] in shapes:
        return np.array(math.prod(shapes[node.input[0]]), np.int64)
    if node.op_type == "Shape" and node.input[0] in shapes and not node.attribute:
        return np.array(shapes[node.input[0]], np.int64)
    known = all(name in values for name in node.input if name)
    if not known or len(node.output) != 1 or node.op_type == "ConstantOfShape":
        return None
    if math.prod(shapes.get(node.output[0], ())) > FOLDED_ELEMENTS:
        return None
    return _evaluated(node, opsets, values)


def _evaluated(node: NodeProto, opsets: Any, values: dict[str, Array]) -> Array:
    """The result of one node with known inputs, by ONNX's reference implementation."""
    names = [name for name in dict.fromkeys(node.input) if name]
    inputs = [helper.make_empty_tensor_value_info(name) for name in names]
    output = helper.make_empty_tensor_value_info(node.output[0])
    graph = helper.make_graph([node], "constant", inputs, [output])
    evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))
    results: Any = evaluator.run(None, {name: values[name] for name in names})
    return np.asarray(results[0])
