"""Small models for the tests of runtimes, and random graphs to compare orders on."""

import random
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT64, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
SHAPE = (1, 4, 64, 256)
TENSOR_BYTES = 4 * 4 * 64 * 256
"""Bytes of a float tensor of SHAPE: far above the bookkeeping of a run."""
SLACK_BYTES = 20_000
"""More than the bookkeeping of a run of these models."""


def value(
    name: str, elem_type: int | None = FLOAT, shape: Sequence[Any] | None = SHAPE
) -> onnx.ValueInfoProto:
    """A graph input or output; elem_type None leaves its type to inference."""
    if elem_type is None:
        return onnx.ValueInfoProto(name=name)
    return helper.make_tensor_value_info(name, elem_type, shape)


def node(
    op: str, inputs: Sequence[str], outputs: Sequence[str], *, domain: str = "", **attributes: Any
) -> onnx.NodeProto:
    """A node without a name."""
    return helper.make_node(op, inputs, outputs, domain=domain, **attributes)


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto | str],
    weights: Mapping[str, Any] | None = None,
    opset: int = 17,
) -> onnx.ModelProto:
    """A model; outputs given by name have their type inferred."""
    graph = helper.make_graph(
        nodes,
        "test",
        inputs,
        [o if isinstance(o, onnx.ValueInfoProto) else value(o, None) for o in outputs],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def random_model(seed: int, size: int) -> onnx.ModelProto:
    """A random graph with Shape, Size, Constant, If nodes, long edges and several outputs."""
    rng = random.Random(seed)
    nodes = [node("Constant", [], ["k"], value_float=1.0)] if rng.random() < 0.5 else []
    names = ["x"]
    for i in range(size):
        nodes.append(_random_node(rng, i, names, bool(nodes) and nodes[0].op_type == "Constant"))
        if nodes[-1].op_type not in ("Shape", "Size"):
            names.append(nodes[-1].output[0])
    read = {name for n in nodes for name in n.input}
    outputs = [n.output[0] for n in nodes if n.output[0] not in read and n.op_type != "Constant"]
    for n in nodes:
        n.name = f"node {n.output[0]}"
    return model(nodes, [value("x", FLOAT, [2]), value("c", BOOL, [])], outputs)


def _random_node(
    rng: random.Random, i: int, names: Sequence[str], constant: bool
) -> onnx.NodeProto:
    near = names if rng.random() < 0.35 else names[-3:]
    kind = rng.random()
    if kind < 0.15:
        return node(rng.choice(["Shape", "Size"]), [rng.choice(near)], [f"v{i}"])
    if kind < 0.2:
        branches = [_branch(f"b{i}{side}", rng.choice(near)) for side in "tf"]
        return node("If", ["c"], [f"v{i}"], then_branch=branches[0], else_branch=branches[1])
    if kind < 0.6:
        return node(rng.choice(["Relu", "Abs", "Neg"]), [rng.choice(near)], [f"v{i}"])
    second = "k" if constant and rng.random() < 0.3 else rng.choice(near)
    return node(rng.choice(["Add", "Mul"]), [rng.choice(near), second], [f"v{i}"])


def _branch(name: str, captured: str) -> onnx.GraphProto:
    """A subgraph that reads one outer value."""
    inner = node("Exp", [captured], [name])
    inner.name = f"inner {name}"
    return helper.make_graph([inner], name, [], [value(name, FLOAT, [2])])
