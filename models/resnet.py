"""Residual networks. Source: He, Zhang, Ren & Sun 2016, "Deep Residual Learning for Image
Recognition", table 1.

Deviation: the stride of a bottleneck is in its 3x3 convolution (as all current frameworks have
it; Goyal et al. 2017, section 5.1), which leaves the number of weights as it was.
"""

import onnx

from models import layers
from models.net import Net, Value

BLOCKS: dict[int, tuple[int, ...]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
    152: (3, 8, 36, 3),
}
"""Depth (layers with weights) to blocks in each stage; from 50 on they are bottlenecks."""


def resnet(
    *,
    depth: int = 50,
    blocks: tuple[int, ...] = (),
    bottleneck: bool = True,
    size: int = 224,
    base: int = 64,
    classes: int = 1000,
    batch: int = 1,
    symbolic_batch: bool = False,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """ResNet (He 2016): image (batch, 3, size, size) to logits (batch, classes). ResNet-50 has
    25.56 million weights.

    depth: 18, 34, 50, 101 or 152. blocks: blocks in each stage, of any number and length,
    instead of a depth; `bottleneck` says which kind. size: pixels a side, any. base: channels of
    the first stage, doubled at each of the others.
    """
    if not blocks:
        if depth not in BLOCKS:
            raise ValueError(f"depth is {depth}, it must be in {sorted(BLOCKS)}; or give blocks")
        blocks, bottleneck = BLOCKS[depth], depth >= 50
    net = Net("resnet", batch=batch, symbolic_batch=symbolic_batch, opset=opset, seed=seed)
    x = net.input("image", (3, size, size))
    x = layers.conv_norm_relu(net, x, base, 7, "stem", stride=2)
    x = layers.max_pool(net, x, 3, 2, "stem/pool")
    block = _bottleneck if bottleneck else _basic
    for stage, count in enumerate(blocks, start=1):
        for index in range(1, count + 1):
            stride = 2 if stage > 1 and index == 1 else 1
            x = block(net, x, base * 2 ** (stage - 1), stride, f"stage{stage}/block{index}")
    return net.model({"logits": layers.classifier(net, x, classes, "head")})


def _basic(net: Net, x: Value, width: int, stride: int, name: str) -> Value:
    branch = layers.conv_norm_relu(net, x, width, 3, f"{name}/conv1", stride=stride)
    branch = layers.conv(net, branch, width, 3, f"{name}/conv2", bias=False)
    return _close(net, x, branch, stride, name)


def _bottleneck(net: Net, x: Value, width: int, stride: int, name: str) -> Value:
    branch = layers.conv_norm_relu(net, x, width, 1, f"{name}/conv1")
    branch = layers.conv_norm_relu(net, branch, width, 3, f"{name}/conv2", stride=stride)
    branch = layers.conv(net, branch, 4 * width, 1, f"{name}/conv3", bias=False)
    return _close(net, x, branch, stride, name)


def _close(net: Net, x: Value, branch: Value, stride: int, name: str) -> Value:
    """Normalise the branch, add the shortcut (projected when the shapes differ), ReLU."""
    branch = layers.batch_norm(net, branch, f"{name}/norm", residual=True)
    if stride != 1 or x.shape[1] != branch.shape[1]:
        shortcut = f"{name}/shortcut"
        x = layers.conv(net, x, branch.shape[1], 1, shortcut, stride=stride, bias=False)
        x = layers.batch_norm(net, x, f"{shortcut}/norm")
    return layers.relu(net, net.op("Add", [branch, x], f"{name}/add"), f"{name}/relu")
