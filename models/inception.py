"""GoogLeNet. Source: Szegedy et al. 2015, "Going Deeper with Convolutions", table 1 and figure 3.

Without the auxiliary classifiers and the dropout, which only training uses.
"""

import onnx

from models import layers
from models.net import Net, Value

MODULES: dict[str, tuple[int, int, int, int, int, int]] = {
    "3a": (64, 96, 128, 16, 32, 32),
    "3b": (128, 128, 192, 32, 96, 64),
    "4a": (192, 96, 208, 16, 48, 64),
    "4b": (160, 112, 224, 24, 64, 64),
    "4c": (128, 128, 256, 24, 64, 64),
    "4d": (112, 144, 288, 32, 64, 64),
    "4e": (256, 160, 320, 32, 128, 128),
    "5a": (256, 160, 320, 32, 128, 128),
    "5b": (384, 192, 384, 48, 128, 128),
}
"""Channels of the 1x1, 3x3 reduction, 3x3, 5x5 reduction, 5x5 and pooling branches (table 1)."""


def inception(
    *,
    width: float = 1.0,
    size: int = 224,
    lrn: bool = True,
    classes: int = 1000,
    batch: int = 1,
    symbolic_batch: bool = False,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """GoogLeNet (Szegedy 2015): image (batch, 3, size, size) to logits (batch, classes); about 7
    million weights at width 1.0. Four parallel branches a module, joined by Concat.

    width: factor on every channel count. size: pixels a side. lrn: the two local response
    normalisations of the paper.
    """
    net = Net("inception", batch=batch, symbolic_batch=symbolic_batch, opset=opset, seed=seed)
    x = net.input("image", (3, size, size))
    x = _stem(net, x, width, lrn)
    for name, channels in MODULES.items():
        if name in ("4a", "5a"):
            x = layers.max_pool(net, x, 3, 2, f"inception{name}/downsample")
        scaled = [_scaled(count, width) for count in channels]
        x = _module(net, x, scaled, f"inception{name}")
    return net.model({"logits": layers.classifier(net, x, classes, "head")})


def _stem(net: Net, x: Value, width: float, lrn: bool) -> Value:
    x = _conv(net, x, _scaled(64, width), 7, "stem/conv1", stride=2)
    x = layers.max_pool(net, x, 3, 2, "stem/pool1")
    x = _response_norm(net, x, "stem/lrn1") if lrn else x
    x = _conv(net, x, _scaled(64, width), 1, "stem/conv2")
    x = _conv(net, x, _scaled(192, width), 3, "stem/conv3")
    x = _response_norm(net, x, "stem/lrn2") if lrn else x
    return layers.max_pool(net, x, 3, 2, "stem/pool2")


def _module(net: Net, x: Value, channels: list[int], name: str) -> Value:
    single, reduce3, conv3, reduce5, conv5, pool = channels
    branches = [
        _conv(net, x, single, 1, f"{name}/single"),
        _conv(net, _conv(net, x, reduce3, 1, f"{name}/reduce3"), conv3, 3, f"{name}/conv3"),
        _conv(net, _conv(net, x, reduce5, 1, f"{name}/reduce5"), conv5, 5, f"{name}/conv5"),
        _conv(net, layers.max_pool(net, x, 3, 1, f"{name}/pool"), pool, 1, f"{name}/project"),
    ]
    return net.op("Concat", branches, f"{name}/concat", axis=1)


def _conv(net: Net, x: Value, channels: int, kernel: int, name: str, *, stride: int = 1) -> Value:
    return layers.conv_norm_relu(net, x, channels, kernel, name, stride=stride, norm=False)


def _response_norm(net: Net, x: Value, name: str) -> Value:
    """Krizhevsky et al. 2012, section 3.3, with the constants of the authors' network file."""
    return net.op("LRN", [x], name, size=5, alpha=1e-4, beta=0.75, bias=1.0)


def _scaled(channels: int, width: float) -> int:
    return max(1, round(channels * width))
