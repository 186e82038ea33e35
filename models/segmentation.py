"""Images to maps of their size: DeepLab, U²-Net, and matting by a transformer and convolutions.

Sources: Chen, Zhu, Papandreou, Schroff & Adam 2018, "Encoder-Decoder with Atrous Separable
Convolution for Semantic Image Segmentation" (DeepLabv3+), figure 2; Qin, Zhang, Huang, Dehghan,
Zaiane & Jagersand 2020, "U²-Net: Going Deeper with Nested U-Structure for Salient Object
Detection", figures 2 and 5; Yao, Wang, Yang & Wang 2024, "ViTMatte: Boosting Image Matting with
Pre-trained Plain Vision Transformers", section 3.

Deviations: widths are as told; ViTMatte has global attention only.
"""

import onnx

from models import layers
from models.net import Net, Value
from models.transformer import encoder_layer


def deeplab(
    *,
    size: int = 1024,
    base: int = 16,
    blocks: tuple[int, ...] = (2, 2, 3, 2),
    classes: int = 21,
    batch: int = 1,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """DeepLabv3+ (Chen 2018): image (batch, 3, size, size) to classes (batch, 1, size, size).

    size: pixels a side, divisible by 16. base: channels of the first residual stage, doubled at
    each of the others. blocks: residual blocks of each stage; the last keeps the resolution and
    spreads its taps.
    """
    if size % 16:
        raise ValueError(f"size is {size}, it must be divisible by 16")
    net = Net("deeplab", batch=batch, opset=opset, seed=seed)
    x = net.input("image", (3, size, size))
    x = layers.conv_norm_relu(net, x, base, 7, "stem", stride=2)
    x = layers.max_pool(net, x, 3, 2, "stem/pool")
    low = x
    for stage, count in enumerate(blocks, start=1):
        last = stage == len(blocks)
        for index in range(1, count + 1):
            stride = 2 if 1 < stage < len(blocks) and index == 1 else 1
            width = base * 2 ** (stage - 1)
            name = f"stage{stage}/block{index}"
            x = _spread_block(net, x, width, stride, 2 if last else 1, name)
        if stage == 1:
            low = x
    x = _pyramid(net, x, 4 * base, "aspp")
    x = layers.bilinear(net, x, 4, "decoder/resize")
    low = layers.conv_norm_relu(net, low, base, 1, "decoder/low")
    x = net.op("Concat", [x, low], "decoder/concat", axis=1)
    for number in (1, 2):
        x = layers.conv_norm_relu(net, x, 4 * base, 3, f"decoder/conv{number}")
    x = layers.conv(net, x, classes, 1, "logits")
    x = layers.bilinear(net, x, 4, "full")
    return net.model({"classes": net.op("ArgMax", [x], "choice", axis=1)})


def _spread_block(net: Net, x: Value, width: int, stride: int, dilation: int, name: str) -> Value:
    """Two 3x3 convolutions in a residual sum."""
    branch = layers.conv_norm_relu(net, x, width, 3, f"{name}/conv1", stride=stride)
    branch = layers.conv(net, branch, width, 3, f"{name}/conv2", bias=False, dilation=dilation)
    branch = layers.batch_norm(net, branch, f"{name}/norm", residual=True)
    if stride > 1 or x.shape[1] != width:
        x = layers.conv(net, x, width, 1, f"{name}/shortcut", stride=stride)
    return layers.relu(net, net.op("Add", [x, branch], f"{name}/add"), f"{name}/relu")


def _pyramid(net: Net, x: Value, width: int, name: str) -> Value:
    """Convolutions of several dilations beside the mean of the picture."""
    branches = [layers.conv_norm_relu(net, x, width, 1, f"{name}/point")]
    for rate in (6, 12, 18):
        branch = layers.conv(net, x, width, 3, f"{name}/rate{rate}", bias=False, dilation=rate)
        branch = layers.batch_norm(net, branch, f"{name}/rate{rate}/norm")
        branches.append(layers.relu(net, branch, f"{name}/rate{rate}/relu"))
    pooled = net.op("GlobalAveragePool", [x], f"{name}/pool")
    pooled = layers.relu(
        net, layers.conv(net, pooled, width, 1, f"{name}/mean"), f"{name}/mean/relu"
    )
    sizes = net.ints([1, 1, *x.shape[2:]])
    branches.append(net.op("Expand", [pooled, sizes], f"{name}/everywhere"))
    joined = net.op("Concat", branches, f"{name}/concat", axis=1)
    return layers.conv_norm_relu(net, joined, width, 1, f"{name}/join")


def u2net(
    *,
    size: int = 1024,
    middle: int = 2,
    width: int = 3,
    batch: int = 1,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """U²-Net (Qin 2020): image (batch, 3, size, size) to saliency (batch, 1, size, size).

    size: pixels a side, divisible by 512. middle, width: channels inside and behind each
    block (16 and 64 in the paper's small variant).
    """
    if size % 512:
        raise ValueError(f"size is {size}, it must be divisible by 512")
    net = Net("u2net", batch=batch, opset=opset, seed=seed)
    x = net.input("image", (3, size, size))
    skips = []
    for stage, depth in enumerate((7, 6, 5, 4), start=1):
        x = _nested(net, x, depth, middle, width, f"enc{stage}")
        skips.append(x)
        x = layers.max_pool(net, x, 2, 2, f"enc{stage}/pool")
    x = _spread(net, x, middle, width, "enc5")
    skips.append(x)
    x = layers.max_pool(net, x, 2, 2, "enc5/pool")
    x = _spread(net, x, middle, width, "enc6")
    sides = [_side(net, x, 32, "side6")]
    for stage, depth in ((5, 0), (4, 4), (3, 5), (2, 6), (1, 7)):
        x = layers.bilinear(net, x, 2, f"dec{stage}/up")
        x = net.op("Concat", [x, skips[stage - 1]], f"dec{stage}/concat", axis=1)
        name = f"dec{stage}"
        x = (
            _nested(net, x, depth, middle, width, name)
            if depth
            else _spread(net, x, middle, width, name)
        )
        sides.append(_side(net, x, 2 ** (stage - 1), f"side{stage}"))
    fused = layers.conv(net, net.op("Concat", sides, "sides", axis=1), 1, 1, "fuse")
    return net.model({"saliency": net.op("Sigmoid", [fused], "sigmoid")})


def _side(net: Net, x: Value, factor: int, name: str) -> Value:
    """A map of the picture's size."""
    x = layers.conv(net, x, 1, 3, name)
    return layers.bilinear(net, x, factor, f"{name}/full") if factor > 1 else x


def _nested(net: Net, x: Value, depth: int, middle: int, width: int, name: str) -> Value:
    """RSU-`depth`: a U of its own, added to what goes into it (figure 2 of the paper)."""
    start = layers.conv_norm_relu(net, x, width, 3, f"{name}/in")
    x, inner = start, list[Value]()
    for level in range(1, depth):
        if level > 1:
            x = layers.max_pool(net, x, 2, 2, f"{name}/pool{level}")
        x = layers.conv_norm_relu(net, x, middle, 3, f"{name}/down{level}")
        inner.append(x)
    x = _dilated(net, x, middle, 2, f"{name}/bottom")
    for level in range(depth - 1, 0, -1):
        joined = net.op("Concat", [x, inner[level - 1]], f"{name}/concat{level}", axis=1)
        x = layers.conv_norm_relu(
            net, joined, middle if level > 1 else width, 3, f"{name}/up{level}"
        )
        if level > 1:
            x = layers.bilinear(net, x, 2, f"{name}/resize{level}")
    return net.op("Add", [x, start], name)


def _spread(net: Net, x: Value, middle: int, width: int, name: str) -> Value:
    """RSU-4F: the same with dilations instead of smaller pictures."""
    start = layers.conv_norm_relu(net, x, width, 3, f"{name}/in")
    x, inner = start, list[Value]()
    for level, dilation in enumerate((1, 2, 4), start=1):
        x = _dilated(net, x, middle, dilation, f"{name}/down{level}")
        inner.append(x)
    x = _dilated(net, x, middle, 8, f"{name}/bottom")
    for level, dilation in ((3, 4), (2, 2), (1, 1)):
        joined = net.op("Concat", [x, inner[level - 1]], f"{name}/concat{level}", axis=1)
        channels = middle if level > 1 else width
        x = _dilated(net, joined, channels, dilation, f"{name}/up{level}")
    return net.op("Add", [x, start], name)


def _dilated(net: Net, x: Value, channels: int, dilation: int, name: str) -> Value:
    x = layers.conv(net, x, channels, 3, name, bias=False, dilation=dilation)
    return layers.relu(net, layers.batch_norm(net, x, f"{name}/norm"), f"{name}/relu")


def matting(
    *,
    size: int = 1024,
    patch: int = 16,
    width: int = 96,
    depth: int = 4,
    heads: int = 2,
    detail: int = 16,
    batch: int = 1,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """ViTMatte (Yao 2024): picture and trimap (batch, 4, size, size) to alpha (batch, 1, size,
    size).

    size: pixels a side, divisible by patch, a power of two. width, depth, heads: of the transformer
    over patches. detail: channels of the convolutions that bring details of the picture.
    """
    if size % patch or patch & (patch - 1):
        raise ValueError(f"size is {size} and patch {patch}: patch must be a power of 2 in size")
    net = Net("matting", batch=batch, opset=opset, seed=seed)
    image = net.input("picture", (4, size, size))
    x = layers.conv(net, image, width, patch, "patches", stride=patch, pad=0)
    side = size // patch
    x = net.op("Reshape", [x, net.ints([0, width, side * side])], "tokens/flat")
    x = net.op("Transpose", [x], "tokens", perm=[0, 2, 1])
    for layer in range(1, depth + 1):
        x = encoder_layer(net, x, heads, 4, f"layer{layer}")
    x = net.op("Transpose", [layers.layer_norm(net, x, "final/norm")], "map/flat", perm=[0, 2, 1])
    x = net.op("Reshape", [x, net.ints([0, width, side, side])], "map")
    levels = patch.bit_length() - 1
    details = [image]
    for level in range(1, levels):
        name = f"detail{level}"
        details.append(layers.conv_norm_relu(net, details[-1], detail * level, 3, name, stride=2))
    for level in range(levels - 1, -1, -1):
        x = layers.bilinear(net, x, 2, f"up{level}/resize")
        x = net.op("Concat", [x, details[level]], f"up{level}/concat", axis=1)
        x = layers.conv_norm_relu(net, x, max(detail, x.shape[1] // 3), 3, f"up{level}")
    x = layers.conv_norm_relu(net, x, detail, 3, "head/conv")
    return net.model({"alpha": net.op("Sigmoid", [layers.conv(net, x, 1, 1, "head")], "sigmoid")})
