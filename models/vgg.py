"""VGG. Source: Simonyan & Zisserman 2015, "Very Deep Convolutional Networks for Large-Scale Image
Recognition", table 1 (configurations A, B, D and E), without dropout.

The paper's network D is `vgg(depth=16, size=224, hidden=4096)`: 138 million weights.
"""

import onnx

from models import layers
from models.net import Net

CONVOLUTIONS: dict[int, tuple[int, ...]] = {
    11: (1, 1, 2, 2, 2),
    13: (2, 2, 2, 2, 2),
    16: (2, 2, 3, 3, 3),
    19: (2, 2, 4, 4, 4),
}
"""Depth (layers with weights) to 3x3 convolutions in each of the five stages."""


def vgg(
    *,
    depth: int = 11,
    size: int = 64,
    base: int = 64,
    hidden: int = 512,
    classes: int = 1000,
    norm: bool = False,
    batch: int = 1,
    symbolic_batch: bool = False,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """VGG (Simonyan 2015): image (batch, 3, size, size) to logits (batch, classes).

    depth: 11, 13, 16 or 19. size: pixels a side, divisible by 32. base: channels of the first
    stage, doubled three times. hidden: features of the two dense layers. norm: batch
    normalisation (inference) after each convolution.
    """
    if depth not in CONVOLUTIONS:
        raise ValueError(f"depth is {depth}, it must be in {sorted(CONVOLUTIONS)}")
    if size % 32:
        raise ValueError(f"size is {size}, it must be divisible by 32")
    net = Net("vgg", batch=batch, symbolic_batch=symbolic_batch, opset=opset, seed=seed)
    x = net.input("image", (3, size, size))
    for stage, count in enumerate(CONVOLUTIONS[depth], start=1):
        width = base * 2 ** min(stage - 1, 3)
        for index in range(1, count + 1):
            x = layers.conv_norm_relu(net, x, width, 3, f"stage{stage}/conv{index}", norm=norm)
        x = layers.max_pool(net, x, 2, 2, f"stage{stage}/pool")
    x = net.op("Flatten", [x], "flatten", axis=1)
    for index in (1, 2):
        x = layers.dense(net, x, hidden, f"dense{index}")
        x = layers.relu(net, x, f"dense{index}/relu")
    return net.model({"logits": layers.dense(net, x, classes, "head")})
