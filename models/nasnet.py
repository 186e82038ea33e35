"""NASNet-A. Source: Zoph, Vasudevan, Shlens & Le 2018, "Learning Transferable Architectures for
Scalable Image Recognition", figure 4 (cells) and figure 2 (how they are stacked).
"""

import onnx

from models import layers
from models.net import Net, Value


def nasnet(
    *,
    cells: int = 4,
    channels: int = 44,
    size: int = 224,
    classes: int = 1000,
    batch: int = 1,
    symbolic_batch: bool = False,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """NASNet-A (Zoph 2018), mobile size: image (batch, 3, size, size) to logits (batch, classes).
    Each cell reads the two cells before it and joins what its five blocks make.

    cells: normal cells in each of three stages. channels: of a block in the first stage; each
    next stage has twice as many. size: pixels a side.
    """
    net = Net("nasnet", batch=batch, symbolic_batch=symbolic_batch, opset=opset, seed=seed)
    x = net.input("image", (3, size, size))
    x = layers.conv(net, x, 32, 3, "stem", stride=2, bias=False)
    before, now = None, layers.batch_norm(net, x, "stem/norm")
    for stage, width in enumerate((channels // 4, channels // 2)):
        before, now = now, _reduction(net, before, now, max(1, width), f"stem/cell{stage}")
    for stage in range(3):
        width = channels * 2**stage
        if stage:
            before, now = now, _reduction(net, before, now, width, f"stage{stage}/reduce")
        for index in range(cells):
            before, now = now, _normal(net, before, now, width, f"stage{stage}/cell{index}")
    now = layers.relu(net, now, "last")
    return net.model({"logits": layers.classifier(net, now, classes, "head")})


def _normal(net: Net, before: Value | None, now: Value, channels: int, name: str) -> Value:
    """The normal cell (figure 4, left)."""
    b = _fitted(net, now if before is None else before, now, channels, f"{name}/before")
    n = _squeezed(net, now, channels, f"{name}/now")
    blocks = [
        b,
        _add(net, _twice(net, n, channels, 3, f"{name}/1a"), n, f"{name}/1"),
        _add(
            net,
            _twice(net, b, channels, 3, f"{name}/2a"),
            _twice(net, n, channels, 5, f"{name}/2b"),
            f"{name}/2",
        ),
        _add(net, _average(net, n, f"{name}/3a"), b, f"{name}/3"),
        _add(net, _average(net, b, f"{name}/4a"), _average(net, b, f"{name}/4b"), f"{name}/4"),
        _add(
            net,
            _twice(net, b, channels, 5, f"{name}/5a"),
            _twice(net, b, channels, 3, f"{name}/5b"),
            f"{name}/5",
        ),
    ]
    return net.op("Concat", blocks, f"{name}/concat", axis=1)


def _reduction(net: Net, before: Value | None, now: Value, channels: int, name: str) -> Value:
    """The reduction cell (figure 4, right): height and width halve."""
    b = _fitted(net, now if before is None else before, now, channels, f"{name}/before")
    n = _squeezed(net, now, channels, f"{name}/now")
    first = _add(
        net,
        _twice(net, n, channels, 5, f"{name}/1a", stride=2),
        _twice(net, b, channels, 7, f"{name}/1b", stride=2),
        f"{name}/1",
    )
    second = _add(
        net,
        layers.max_pool(net, n, 3, 2, f"{name}/2a"),
        _twice(net, b, channels, 7, f"{name}/2b", stride=2),
        f"{name}/2",
    )
    third = _add(
        net,
        _average(net, n, f"{name}/3a", stride=2),
        _twice(net, b, channels, 5, f"{name}/3b", stride=2),
        f"{name}/3",
    )
    fourth = _add(net, _average(net, first, f"{name}/4a"), second, f"{name}/4")
    fifth = _add(
        net,
        _twice(net, first, channels, 3, f"{name}/5a"),
        layers.max_pool(net, n, 3, 2, f"{name}/5b"),
        f"{name}/5",
    )
    return net.op("Concat", [second, third, fourth, fifth], f"{name}/concat", axis=1)


def _squeezed(net: Net, x: Value, channels: int, name: str, stride: int = 1) -> Value:
    """ReLU, a 1x1 convolution to `channels`, batch normalisation."""
    x = layers.relu(net, x, f"{name}/relu")
    x = layers.conv(net, x, channels, 1, name, stride=stride, bias=False)
    return layers.batch_norm(net, x, f"{name}/norm")


def _fitted(net: Net, before: Value, now: Value, channels: int, name: str) -> Value:
    """The output of the cell before the last, at the size of the last one's."""
    stride = before.shape[2] // now.shape[2]
    return _squeezed(net, before, channels, name, stride)


def _twice(net: Net, x: Value, channels: int, kernel: int, name: str, *, stride: int = 1) -> Value:
    """The separable convolution of the paper: applied twice, the stride in the first."""
    x = layers.separable(net, x, channels, kernel, f"{name}/first", stride=stride)
    return layers.separable(net, x, channels, kernel, f"{name}/second")


def _average(net: Net, x: Value, name: str, *, stride: int = 1) -> Value:
    """Mean of 3x3 windows, at the border of those pixels that there are."""
    return net.op(
        "AveragePool",
        [x],
        name,
        kernel_shape=[3, 3],
        strides=[stride, stride],
        pads=[1] * 4,
        count_include_pad=0,
    )


def _add(net: Net, a: Value, b: Value, name: str) -> Value:
    return net.op("Add", [a, b], name)
