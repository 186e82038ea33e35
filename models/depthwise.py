"""Gradients of depthwise convolution weights, for which onnx-ad has no rule.

Before differentiation a *probe*, an input of zeros, is added to the output y of each depthwise
convolution: the gradient of the probe is the gradient dy of y. Afterwards the probe is removed and

    dW[c, 0, i, j] = sum over n, p, q of  dy[n, c, p, q] * x[n, c, p * stride + i, q * stride + j]

(x padded) is computed as a depthwise convolution of x with dy as its filter, samples and channels
taken together as groups, stride and dilation exchanged, cropped to the kernel, summed over n.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from models.folding import Shape


@dataclass(frozen=True)
class Probe:
    """One depthwise convolution: its node, and the name of the added input (shaped like its
    output)."""

    node: NodeProto
    name: str


def is_grouped(node: NodeProto) -> bool:
    """Whether `node` is a convolution in groups."""
    return node.op_type == "Conv" and int(_attribute(node, "group", 1)) > 1


def probed(
    nodes: Iterable[NodeProto], weights: Collection[str], shapes: Mapping[str, Shape]
) -> tuple[list[NodeProto], list[Probe]]:
    """The nodes with a probe after every depthwise convolution whose weight is in `weights`.

    ValueError for a convolution in groups that is not depthwise with one filter a channel.
    """
    result: list[NodeProto] = []
    probes: list[Probe] = []
    for node in nodes:
        if is_grouped(node) and node.input[1] in weights:
            _check(node, shapes)
            probe = Probe(node, f"probe/{node.output[0]}")
            probes.append(probe)
            result.extend(_with_probe(probe))
        else:
            result.append(node)
    return result, probes


def unprobed(nodes: Iterable[NodeProto], probes: Iterable[Probe]) -> list[NodeProto]:
    """The nodes as they were before `probed`, in the same order."""
    originals = {f"{probe.node.output[0]}/unprobed": probe.node for probe in probes}
    probe_names = {probe.name for probe in probes}
    kept = (node for node in nodes if probe_names.isdisjoint(node.input))
    return [originals.get(node.output[0], node) for node in kept]


def weight_gradient(
    probe: Probe, gradient: str, output: str, shapes: Mapping[str, Shape]
) -> tuple[list[NodeProto], list[onnx.TensorProto]]:
    """Operators that compute `output`, the gradient of the weight, from `gradient`, that of the
    convolution's result; and the constants they read."""
    node = probe.node
    samples, channels, height, width = shapes[node.input[0]]
    kernel = list(shapes[node.input[1]][2:])
    out_height, out_width = shapes[node.output[0]][2:]
    groups = samples * channels
    constants: list[onnx.TensorProto] = []

    def ints(*values: int) -> str:
        name = f"{output}/constant{len(constants) + 1}"
        constants.append(numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def op(op_type: str, inputs: list[str], step: str, **attributes: Any) -> str:
        name = f"{output}/{step}" if step else output
        nodes.append(helper.make_node(op_type, inputs, [name], "", **attributes))
        return name

    nodes: list[NodeProto] = []
    x = op("Reshape", [node.input[0], ints(1, groups, height, width)], "x")
    dy = op("Reshape", [gradient, ints(groups, 1, out_height, out_width)], "dy")
    full = op(
        "Conv",
        [x, dy],
        "conv",
        group=groups,
        pads=list(_attribute(node, "pads", [0, 0, 0, 0])),
        strides=list(_attribute(node, "dilations", [1, 1])),
        dilations=list(_attribute(node, "strides", [1, 1])),
    )
    cropped = op("Slice", [full, ints(0, 0), ints(*kernel), ints(2, 3)], "crop")
    split = op("Reshape", [cropped, ints(samples, channels, 1, *kernel)], "split")
    op("ReduceSum", [split, ints(0)], "", keepdims=0)
    return nodes, constants


def _with_probe(probe: Probe) -> tuple[NodeProto, NodeProto]:
    """The convolution under another output name, and the sum that makes its former output."""
    convolution = NodeProto()
    convolution.CopyFrom(probe.node)
    convolution.output[0] += "/unprobed"
    operands = [convolution.output[0], probe.name]
    name = f"{probe.name}/add"
    return convolution, helper.make_node("Add", operands, list(probe.node.output), name)


def _check(node: NodeProto, shapes: Mapping[str, Shape]) -> None:
    groups = int(_attribute(node, "group", 1))
    channels, filters = shapes[node.input[0]][1], shapes[node.input[1]][0]
    if len(shapes[node.input[0]]) != 4 or not groups == channels == filters:
        raise ValueError(
            f"{node.name!r}: the weight of a convolution in {groups} groups with {channels} "
            f"channels and {filters} filters has no gradient here (only depthwise ones do)"
        )


def _attribute(node: NodeProto, name: str, default: Any) -> Any:
    found = (a for a in node.attribute if a.name == name)
    return next((helper.get_attribute_value(a) for a in found), default)
