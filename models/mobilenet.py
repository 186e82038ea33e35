"""MobileNetV2. Source: Sandler, Howard, Zhu, Zhmoginov & Chen 2018, "MobileNetV2: Inverted
Residuals and Linear Bottlenecks", table 2 and figure 4.
"""

import onnx

from models import layers
from models.net import Net, Value

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""(expansion t, channels c, blocks n, stride s of the first block): table 2 of the paper."""


def mobilenet(
    *,
    width: float = 1.0,
    size: int = 224,
    classes: int = 1000,
    batch: int = 1,
    symbolic_batch: bool = False,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """MobileNetV2 (Sandler 2018): image (batch, 3, size, size) to logits (batch, classes). At
    width 1.0 it has 3.50 million weights.

    width: factor on every channel count, rounded to a multiple of 8 (the last convolution never
    shrinks below 1280). size: pixels a side.
    """
    net = Net("mobilenet", batch=batch, symbolic_batch=symbolic_batch, opset=opset, seed=seed)
    x = net.input("image", (3, size, size))
    x = _conv_relu6(net, x, _channels(32 * width), 3, "stem", stride=2)
    for stage, (expansion, channels, count, stride) in enumerate(STAGES, start=1):
        for index in range(1, count + 1):
            x = _inverted_residual(
                net,
                x,
                _channels(channels * width),
                f"stage{stage}/block{index}",
                expansion=expansion,
                stride=stride if index == 1 else 1,
            )
    x = _conv_relu6(net, x, _channels(1280 * max(width, 1.0)), 1, "last")
    return net.model({"logits": layers.classifier(net, x, classes, "head")})


def _inverted_residual(
    net: Net, x: Value, channels: int, name: str, *, expansion: int, stride: int
) -> Value:
    hidden = x.shape[1] * expansion
    branch = x
    if expansion != 1:
        branch = _conv_relu6(net, branch, hidden, 1, f"{name}/expand")
    branch = _conv_relu6(net, branch, hidden, 3, f"{name}/depthwise", stride=stride, groups=hidden)
    branch = layers.conv(net, branch, channels, 1, f"{name}/project", bias=False)
    residual = stride == 1 and x.shape[1] == channels
    branch = layers.batch_norm(net, branch, f"{name}/project/norm", residual=residual)
    return net.op("Add", [x, branch], f"{name}/add") if residual else branch


def _conv_relu6(
    net: Net, x: Value, channels: int, kernel: int, name: str, *, stride: int = 1, groups: int = 1
) -> Value:
    x = layers.conv(net, x, channels, kernel, name, stride=stride, groups=groups, bias=False)
    return layers.relu6(net, layers.batch_norm(net, x, f"{name}/norm"), f"{name}/relu6")


def _channels(wanted: float) -> int:
    """The nearest multiple of 8, never more than 10% below `wanted` (the authors' code)."""
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded + 8 if rounded < 0.9 * wanted else rounded
