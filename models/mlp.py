"""Multilayer perceptrons: a plain chain of dense layers, and a residual chain of feed-forward
parts. Source of the chain: Rumelhart, Hinton & Williams 1986, "Learning representations by
back-propagating errors"; of the feed-forward part: Vaswani et al. 2017, section 3.3.
"""

import onnx

from models import layers
from models.net import Net, Value

ACTIVATIONS = {"relu": layers.relu, "gelu": layers.gelu, "silu": layers.silu}


def mlp(
    *,
    depth: int = 8,
    width: int = 256,
    features: int = 256,
    classes: int = 10,
    activation: str = "relu",
    batch: int = 32,
    symbolic_batch: bool = False,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """Multilayer perceptron: x (batch, features) to logits (batch, classes).

    depth: hidden dense layers, each of `width` features and followed by the activation: "relu",
    "gelu" or "silu".
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation is {activation!r}, it must be in {sorted(ACTIVATIONS)}")
    net = Net("mlp", batch=batch, symbolic_batch=symbolic_batch, opset=opset, seed=seed)
    x: Value = net.input("x", (features,))
    for layer in range(1, depth + 1):
        x = layers.dense(net, x, width, f"layer{layer}")
        x = ACTIVATIONS[activation](net, x, f"layer{layer}/{activation}")
    return net.model({"logits": layers.dense(net, x, classes, "head")})


def ffn(
    *,
    depth: int = 4,
    width: int = 256,
    expansion: int = 4,
    batch: int = 32,
    symbolic_batch: bool = False,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """Residual feed-forward network: x (batch, width) to y, same shape; each of the `depth` blocks
    is x + dense(gelu(dense(layer_norm(x)))) (the pre-norm half of a transformer layer).

    width: features. expansion: hidden features, as a multiple of width.
    """
    net = Net("ffn", batch=batch, symbolic_batch=symbolic_batch, opset=opset, seed=seed)
    x: Value = net.input("x", (width,))
    for block in range(1, depth + 1):
        name = f"block{block}"
        normed = layers.layer_norm(net, x, f"{name}/norm")
        x = net.op("Add", [x, layers.feed_forward(net, normed, expansion, name)], f"{name}/add")
    return net.model({"y": x})
