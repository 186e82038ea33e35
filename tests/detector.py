"""A small detector in the way of SSD (Liu et al. 2016): sizes behind its heads depend on values.

Convolutions make class scores and boxes for a grid of anchors; NonMaxSuppression picks boxes,
NonZero finds all scores above a threshold, whose rows are gathered and worked on, TopK takes the
best, a Loop adds up a score for each class.
"""

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CLASSES, ANCHORS = 8, 6


def detector(size: int = 32, width: int = 8, seed: int = 0) -> onnx.ModelProto:
    """A detector for images of `size` pixels a side; nearly all scores are above its threshold."""
    made = _Builder(seed)
    features = made.conv("image", 3, width, "stem")
    features = made.op("Relu", [features], "features")
    anchors = ANCHORS * size * size
    heads = []
    for name, channels in (("boxes", 4), ("classes", CLASSES)):
        head = made.conv(features, width, ANCHORS * channels, f"{name}/conv")
        head = made.op("Transpose", [head], f"{name}/last", perm=[0, 2, 3, 1])
        shape = made.ints([1, anchors, channels])
        heads.append(made.op("Reshape", [head, shape], name))
    boxes, scores = heads[0], made.op("Sigmoid", [heads[1]], "scores")
    rows = _candidates(made, scores)
    _picked(made, boxes, scores)
    made.op("TopK", [rows, made.ints([20])], ["best", "best/index"], axis=0)
    _class_sums(made, rows)
    outputs = ["picked", "best", "sums"]
    graph = helper.make_graph(
        made.nodes,
        "detector",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, size, size])],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in made.weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _candidates(made: "_Builder", scores: str) -> str:
    """Rows of scores, one for each that is above the threshold, through functions that the runtime
    could run in place if it knew their size."""
    above = made.op("Greater", [scores, made.value(np.float32(1e-3))], "above")
    found = made.op("NonZero", [above], "found")
    row = made.op("Gather", [found, made.value(np.int64(1))], "found/row", axis=0)
    table = made.op("Squeeze", [scores, made.ints([0])], "table")
    rows = made.op("Gather", [table, row], "rows", axis=0)
    for op_type in ("Sigmoid", "Tanh"):
        rows = made.op(op_type, [rows], f"rows/{op_type}")
    return rows


def _picked(made: "_Builder", boxes: str, scores: str) -> None:
    by_class = made.op("Transpose", [scores], "scores/by_class", perm=[0, 2, 1])
    limits = [made.ints([10]), made.value(np.float32([0.5])), made.value(np.float32([0.1]))]
    made.op("NonMaxSuppression", [boxes, by_class, *limits], "picked")


def _class_sums(made: "_Builder", rows: str) -> None:
    """The sum of each column of `rows`, in a Loop."""
    body = helper.make_graph(
        [
            helper.make_node("Gather", [rows, "index"], ["column"], axis=1),
            helper.make_node("ReduceSum", ["column"], ["sum"], keepdims=0),
            helper.make_node("Identity", ["go_on"], ["still"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("index", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
        ],
        [
            helper.make_tensor_value_info("still", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", TensorProto.FLOAT, []),
        ],
    )
    made.op("Loop", [made.value(np.int64(CLASSES)), ""], "sums", body=body)


class _Builder:
    """Nodes and weights while they are being added. A node is called like its first output."""

    def __init__(self, seed: int) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, Any] = {}
        self._random = np.random.default_rng(seed)

    def op(self, kind: str, inputs: list[str], outputs: str | list[str], **attributes: Any) -> str:
        names = [outputs] if isinstance(outputs, str) else outputs
        self.nodes.append(helper.make_node(kind, inputs, names, name=names[0], **attributes))
        return names[0]

    def value(self, value: Any) -> str:
        name = f"constant{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def ints(self, values: list[int]) -> str:
        return self.value(np.int64(values))

    def conv(self, x: str, before: int, after: int, name: str) -> str:
        weights = self._random.standard_normal((after, before, 3, 3)).astype(np.float32) * 0.1
        return self.op("Conv", [x, self.value(weights)], name, pads=[1] * 4)
