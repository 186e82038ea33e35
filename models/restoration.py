"""Image restoration at full resolution: ESPCN and SRVGG (super-resolution), DnCNN (denoising).

Sources: Shi et al. 2016, "Real-Time Single Image and Video Super-Resolution Using an Efficient
Sub-Pixel Convolutional Neural Network", section 3.1; Zhang, Zuo, Chen, Meng & Zhang 2017, "Beyond a
Gaussian Denoiser: Residual Learning of Deep CNN for Image Denoising", section III; Wang, Xie, Dong
and Shan 2021, "Real-ESRGAN: Training Real-World Blind Super-Resolution with Pure Synthetic Data"
(the compact network of its code: convolutions and PReLU at the resolution of the input, a sub-pixel
convolution, and the input enlarged by its nearest pixels added).

Deviations: ESPCN has four convolutions by default, one more than the paper's (`widths=(64, 32)` is
the paper's network); convolutions are padded with zeros.
"""

import onnx

from models import layers
from models.net import Net


def espcn(
    *,
    size: int = 256,
    scale: int = 2,
    channels: int = 1,
    widths: tuple[int, ...] = (64, 64, 32),
    batch: int = 1,
    symbolic_batch: bool = False,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """ESPCN (Shi 2016): image (batch, channels, size, size) to enlarged (batch, channels,
    scale x size, scale x size).

    size: pixels a side. scale: factor of the enlargement. widths: channels behind each convolution
    but the last, of which the first is 5x5, the others 3x3, each with tanh.
    """
    net = Net("espcn", batch=batch, symbolic_batch=symbolic_batch, opset=opset, seed=seed)
    x = net.input("image", (channels, size, size))
    for index, width in enumerate(widths, start=1):
        x = layers.conv(net, x, width, 5 if index == 1 else 3, f"conv{index}")
        x = net.op("Tanh", [x], f"conv{index}/tanh")
    x = layers.conv(net, x, channels * scale**2, 3, f"conv{len(widths) + 1}")
    x = net.op("DepthToSpace", [x], "shuffle", blocksize=scale, mode="CRD")
    return net.model({"enlarged": x})


def dncnn(
    *,
    size: int = 128,
    depth: int = 17,
    width: int = 64,
    channels: int = 1,
    norm: bool = True,
    batch: int = 1,
    symbolic_batch: bool = False,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """DnCNN (Zhang 2017): image (batch, channels, size, size) to clean, same shape: the image less
    what `depth` 3x3 convolutions take for noise.

    size: pixels a side. width: channels between the convolutions. norm: batch normalisation
    (inference) behind each but the first and the last.
    """
    if depth < 2:
        raise ValueError(f"depth is {depth}, it must be 2 or more")
    net = Net("dncnn", batch=batch, symbolic_batch=symbolic_batch, opset=opset, seed=seed)
    image = net.input("image", (channels, size, size))
    x = layers.relu(net, layers.conv(net, image, width, 3, "conv1"), "conv1/relu")
    for index in range(2, depth):
        x = layers.conv_norm_relu(net, x, width, 3, f"conv{index}", norm=norm)
    noise = layers.conv(net, x, channels, 3, f"conv{depth}")
    return net.model({"clean": net.op("Sub", [image, noise], "subtract")})


def srvgg(
    *,
    size: int = 724,
    scale: int = 4,
    depth: int = 18,
    width: int = 16,
    batch: int = 1,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """SRVGG (Wang 2021): image (batch, 3, size, size) to enlarged (batch, 3, scale x size, scale x
    size). The output and what is shuffled into it set the memory.

    size: pixels a side. depth, width: 3x3 convolutions between the first and the last, and their
    channels.
    """
    net = Net("srvgg", batch=batch, opset=opset, seed=seed)
    image = net.input("image", (3, size, size))
    x = image
    for index in range(1, depth + 2):
        x = layers.conv(net, x, width, 3, f"conv{index}")
        slope = net.weight(f"conv{index}/prelu", "residual_scale", (width, 1, 1))
        x = net.op("PRelu", [x, slope], f"conv{index}/prelu")
    x = layers.conv(net, x, 3 * scale**2, 3, f"conv{depth + 2}")
    x = net.op("DepthToSpace", [x], "shuffle", blocksize=scale, mode="CRD")
    base = layers.upsample(net, image, "enlarge", factor=scale)
    return net.model({"enlarged": net.op("Add", [x, base], "add")})
