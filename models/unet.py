"""U-Net. Sources: Ronneberger, Fischer & Brox 2015, "U-Net: Convolutional Networks for Biomedical
Image Segmentation", figure 1; Çiçek, Abdulkadir, Lienkamp, Brox & Ronneberger 2016, "3D U-Net:
Learning Dense Volumetric Segmentation from Sparse Annotation", figure 2, with the normalisation of
Isensee et al. 2021, "nnU-Net" (of instances, with leaky ReLU).

Deviations: convolutions are padded (no cropping at the skips); up-sampling is the paper's 2x2
transposed convolution or a nearest Resize with a 3x3 convolution; batch normalisation on request.
The paper's network is `unet(size=572, levels=4, base=64, channels=1, up="transpose")`.
"""

from collections.abc import Callable
from functools import partial

import onnx

from models import layers
from models.net import Net, Value

Layer = Callable[[Net, Value, int, str], Value]
"""Adds operators to a net: of a value, the channels that it makes, and its name."""


def unet(
    *,
    size: int = 256,
    levels: int = 4,
    base: int = 32,
    channels: int = 3,
    classes: int = 2,
    up: str = "resize",
    norm: bool = False,
    batch: int = 1,
    symbolic_batch: bool = False,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """U-Net (Ronneberger 2015): image (batch, channels, size, size) to logits (batch, classes,
    size, size).

    size: pixels a side, divisible by 2 ** levels. levels: halvings of the resolution. base:
    channels at full resolution, doubled at each level. up: "resize" or "transpose". norm: batch
    normalisation (inference) after each 3x3 convolution.
    """
    if size % 2**levels:
        raise ValueError(f"size is {size}, it must be divisible by 2 ** levels = {2**levels}")
    if up not in ("resize", "transpose"):
        raise ValueError(f'up is {up!r}, it must be "resize" or "transpose"')
    net = Net("unet", batch=batch, symbolic_batch=symbolic_batch, opset=opset, seed=seed)
    x = net.input("image", (channels, size, size))
    double = partial(_double_conv, norm=norm)
    x = _u_shaped(net, x, levels, base, double, partial(_up, up=up))
    return net.model({"logits": layers.conv(net, x, classes, 1, "head")})


def unet3d(
    *,
    size: tuple[int, ...] = (128, 128, 64),
    levels: int = 3,
    base: int = 8,
    channels: int = 1,
    classes: int = 2,
    norm: bool = True,
    batch: int = 1,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """3-D U-Net (Çiçek 2016, Isensee 2021): volume (batch, channels, *size) to logits (batch,
    classes, *size).

    size: three numbers of voxels, divisible by 2 ** levels. levels: halvings of the resolution.
    base: channels at full resolution, doubled at each level. norm: normalisation of instances
    behind each 3x3x3 convolution.
    """
    if any(side % 2**levels for side in size):
        raise ValueError(f"size is {size}, it must be divisible by 2 ** levels = {2**levels}")
    net = Net("unet3d", batch=batch, opset=opset, seed=seed)
    x = net.input("volume", (channels, *size))
    double = partial(_double_conv3d, norm=norm)
    x = _u_shaped(net, x, levels, base, double, layers.conv_transpose)
    return net.model({"logits": layers.conv(net, x, classes, 1, "head")})


def _u_shaped(net: Net, x: Value, levels: int, base: int, double: Layer, up: Layer) -> Value:
    """Down and up again, what was seen on the way down beside what comes up."""
    skips = []
    for level in range(1, levels + 1):
        x = double(net, x, base * 2 ** (level - 1), f"enc{level}")
        skips.append(x)
        x = layers.max_pool(net, x, 2, 2, f"enc{level}/pool")
    x = double(net, x, base * 2**levels, "middle")
    for level in range(levels, 0, -1):
        width = base * 2 ** (level - 1)
        x = up(net, x, width, f"dec{level}/up")
        x = net.op("Concat", [skips[level - 1], x], f"dec{level}/concat", axis=1)
        x = double(net, x, width, f"dec{level}")
    return x


def _double_conv3d(net: Net, x: Value, width: int, name: str, norm: bool) -> Value:
    for number in (1, 2):
        own = f"{name}/conv{number}"
        x = layers.conv(net, x, width, 3, own)
        if norm:
            x = layers.instance_norm(net, x, f"{own}/norm")
        x = net.op("LeakyRelu", [x], f"{own}/relu", alpha=0.01)
    return x


def _double_conv(net: Net, x: Value, width: int, name: str, norm: bool) -> Value:
    x = layers.conv_norm_relu(net, x, width, 3, f"{name}/conv1", norm=norm)
    return layers.conv_norm_relu(net, x, width, 3, f"{name}/conv2", norm=norm)


def _up(net: Net, x: Value, width: int, name: str, up: str) -> Value:
    if up == "transpose":
        return layers.conv_transpose(net, x, width, name)
    return layers.conv(net, layers.upsample(net, x, f"{name}/resize"), width, 3, name)
