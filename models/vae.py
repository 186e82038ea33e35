"""Decoder of a convolutional variational autoencoder. Sources: Kingma & Welling 2014,
"Auto-Encoding Variational Bayes"; the layout (residual blocks, nearest up-sampling followed by a
convolution, group normalisation, SiLU) is that of Rombach et al. 2022, "High-Resolution Image
Synthesis with Latent Diffusion Models", appendix E.1, without its attention block.
"""

import numpy as np
import onnx

from models import layers
from models.net import Net, Value


def vae_decoder(
    *,
    size: int = 512,
    levels: int = 3,
    blocks: int = 2,
    base: int = 32,
    latent: int = 4,
    groups: int = 8,
    batch: int = 1,
    symbolic_batch: bool = False,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """VAE decoder (Kingma 2014, Rombach 2022): latent (batch, latent, size / 2 ** levels, same) to
    image (batch, 3, size, size). The last operators, at full resolution, set the memory.

    size: pixels a side of the image, divisible by 2 ** levels. levels: doublings of the
    resolution. blocks: residual blocks at each resolution. base: channels at full resolution,
    doubled at each coarser one. latent: channels of the latent. groups: groups of each group
    normalisation (0: no normalisation), a divisor of base.
    """
    if size % 2**levels:
        raise ValueError(f"size is {size}, it must be divisible by 2 ** levels = {2**levels}")
    if groups and base % groups:
        raise ValueError(f"base is {base}, it must be divisible by groups = {groups}")
    net = Net("vae_decoder", batch=batch, symbolic_batch=symbolic_batch, opset=opset, seed=seed)
    x = net.input("latent", (latent, size // 2**levels, size // 2**levels))
    x = layers.conv(net, x, base * 2**levels, 3, "stem")
    for level in range(levels, -1, -1):
        for block in range(1, blocks + 1):
            x = _residual(net, x, base * 2**level, groups, f"level{level}/block{block}")
        if level:
            x = layers.upsample(net, x, f"level{level}/resize")
            x = layers.conv(net, x, x.shape[1], 3, f"level{level}/up")
    x = _norm_silu(net, x, groups, "head")
    return net.model({"image": layers.conv(net, x, 3, 3, "head")})


def _residual(net: Net, x: Value, channels: int, groups: int, name: str) -> Value:
    branch = _norm_silu(net, x, groups, f"{name}/conv1")
    branch = layers.conv(net, branch, channels, 3, f"{name}/conv1")
    branch = _norm_silu(net, branch, groups, f"{name}/conv2")
    branch = layers.conv(net, branch, channels, 3, f"{name}/conv2")
    if x.shape[1] != channels:
        x = layers.conv(net, x, channels, 1, f"{name}/shortcut")
    return net.op("Add", [x, branch], f"{name}/add")


def _norm_silu(net: Net, x: Value, groups: int, name: str) -> Value:
    if groups:
        x = _group_norm(net, x, groups, f"{name}/norm")
    return layers.silu(net, x, f"{name}/silu")


def _group_norm(net: Net, x: Value, groups: int, name: str) -> Value:
    """Group normalisation (Wu & He 2018), in the operators that exporters write below opset 18."""
    channels, height, width = x.shape[1:]
    grouped = net.op("Reshape", [x, net.ints([0, groups, -1])], f"{name}/split")
    ones = net.constant(np.ones(groups, np.float32))
    zeros = net.constant(np.zeros(groups, np.float32))
    normed = net.op(
        "InstanceNormalization", [grouped, ones, zeros], f"{name}/standardize", epsilon=1e-6
    )
    shape = net.ints([0, channels, height, width])
    normed = net.op("Reshape", [normed, shape], f"{name}/join")
    scaled = net.op("Mul", [normed, net.weight(name, "scale", (channels, 1, 1))], f"{name}/scaled")
    return net.op("Add", [scaled, net.weight(name, "bias", (channels, 1, 1))], name)
