"""A small training graph as ONNX Runtime's training makes them, with its gradient ops."""

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto

from tests.importer.build import model, node, value

DOMAIN = "com.microsoft"
_CONV = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
_POOL = {"kernel_shape": [2, 2], "strides": [2, 2]}


def convolutions(layers: int = 6, channels: int = 4, size: int = 8) -> ModelProto:
    """`layers` times Conv and Relu, then MaxPool, a linear layer, a loss and all gradients.

    No type of an inner value is stated.
    """
    features = channels * (size // 2) ** 2
    inputs = [value("x", [2, channels, size, size]), value("labels", [2], TensorProto.INT64)]
    inputs.append(value("w", [3, features]))
    inputs += [value(f"w{i}", [channels, channels, 3, 3]) for i in range(layers)]
    inputs += [value(f"b{i}", [channels]) for i in range(layers)]
    parameters = ["w", *(f"{kind}{i}" for i in range(layers) for kind in "wb")]
    inputs += [value(f"{p}.buffer", _shape(inputs, p)) for p in parameters]
    nodes = [*_forward(layers), *_backward(layers)]
    nodes += [
        node("InPlaceAccumulatorV2", [f"{p}.buffer", f"{p}_grad"], [f"{p}_grad.out"], domain=DOMAIN)
        for p in parameters
    ]
    outputs = ["loss", *(value(f"{p}_grad.out", [1], TensorProto.BOOL) for p in parameters)]
    one = {"loss_grad": np.ones((), np.float32)}
    return model(nodes, inputs, outputs, one, opset=17, domains=[DOMAIN])


def _shape(inputs: list, name: str) -> list[int]:
    (found,) = (v for v in inputs if v.name == name)
    return [d.dim_value for d in found.type.tensor_type.shape.dim]


def _forward(layers: int) -> list[NodeProto]:
    nodes = []
    for i in range(layers):
        nodes.append(node("Conv", [f"a{i}" if i else "x", f"w{i}", f"b{i}"], [f"z{i}"], **_CONV))
        nodes.append(node("Relu", [f"z{i}"], [f"a{i + 1}"]))
    return [
        *nodes,
        node("MaxPool", [f"a{layers}"], ["p", "indices"], **_POOL),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w"], ["logits"], transB=1),
        node("SoftmaxCrossEntropyLoss", ["logits", "labels"], ["loss", "log_prob"]),
    ]


def _backward(layers: int) -> list[NodeProto]:
    read = ["loss_grad", "log_prob", "labels"]
    nodes = [
        node("SoftmaxCrossEntropyLossGrad", read, ["logits_grad"], domain=DOMAIN),
        node("FusedMatMul", ["logits_grad", "f"], ["w_grad"], domain=DOMAIN, transA=1),
        node("FusedMatMul", ["logits_grad", "w"], ["f_grad"], domain=DOMAIN),
        node("Shape", ["p"], ["p_shape"]),
        node("Reshape", ["f_grad", "p_shape"], ["p_grad"]),
        node("MaxPoolGrad", ["p_grad", "indices"], [f"a{layers}_grad"], **_POOL),
    ]
    for i in reversed(range(layers)):
        read = [f"z{i}_grad", f"a{i}" if i else "x", f"w{i}"]
        made = [f"a{i}_grad" if i else "", f"w{i}_grad", f"b{i}_grad"]
        nodes.append(node("ReluGrad", [f"a{i + 1}_grad", f"z{i}"], [f"z{i}_grad"], domain=DOMAIN))
        nodes.append(node("ConvGrad", read, made, domain=DOMAIN, **_CONV))
    return nodes
