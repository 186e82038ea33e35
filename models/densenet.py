"""Densely connected networks. Source: Huang, Liu, van der Maaten & Weinberger 2017, "Densely
Connected Convolutional Networks", table 1 (DenseNet-BC: bottlenecks and compression 0.5).
"""

import onnx

from models import layers
from models.net import Net, Value


def densenet(
    *,
    blocks: tuple[int, ...] = (6, 12, 24, 16),
    growth: int = 32,
    size: int = 224,
    classes: int = 1000,
    batch: int = 1,
    symbolic_batch: bool = False,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """DenseNet (Huang 2017): image (batch, 3, size, size) to logits (batch, classes). The default
    is DenseNet-121: 7.98 million weights.

    blocks: layers in each dense block. growth: channels that a layer adds (the paper's k); the
    stem has 2 k channels, bottlenecks 4 k. size: pixels a side; each transition halves it.
    """
    net = Net("densenet", batch=batch, symbolic_batch=symbolic_batch, opset=opset, seed=seed)
    x = net.input("image", (3, size, size))
    x = layers.conv_norm_relu(net, x, 2 * growth, 7, "stem", stride=2)
    x = layers.max_pool(net, x, 3, 2, "stem/pool")
    for block, count in enumerate(blocks, start=1):
        if block > 1:
            x = _transition(net, x, f"transition{block - 1}")
        for layer in range(1, count + 1):
            x = _dense_layer(net, x, growth, f"block{block}/layer{layer}")
    x = _norm_relu(net, x, "head")
    return net.model({"logits": layers.classifier(net, x, classes, "head")})


def _dense_layer(net: Net, x: Value, growth: int, name: str) -> Value:
    """Normalise-ReLU-convolve twice (1x1, 3x3), then concatenate with the input."""
    branch = _norm_relu(net, x, f"{name}/conv1")
    branch = layers.conv(net, branch, 4 * growth, 1, f"{name}/conv1", bias=False)
    branch = _norm_relu(net, branch, f"{name}/conv2")
    branch = layers.conv(net, branch, growth, 3, f"{name}/conv2", bias=False)
    return net.op("Concat", [x, branch], f"{name}/concat", axis=1)


def _transition(net: Net, x: Value, name: str) -> Value:
    x = _norm_relu(net, x, f"{name}/conv")
    x = layers.conv(net, x, x.shape[1] // 2, 1, f"{name}/conv", bias=False)
    return layers.average_pool(net, x, f"{name}/pool")


def _norm_relu(net: Net, x: Value, name: str) -> Value:
    return layers.relu(net, layers.batch_norm(net, x, f"{name}/norm"), f"{name}/relu")
