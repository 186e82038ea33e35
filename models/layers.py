"""Layers that several architectures share: each adds a few operators to a Net.

Images are (batch, channels, height, width), sequences (batch, position, feature). `name` is the
name of the layer; its weights and inner operators are named after it.
"""

import math

import numpy as np

from models.net import Net, Value


def conv(
    net: Net,
    x: Value,
    channels: int,
    kernel: int,
    name: str,
    *,
    stride: int = 1,
    groups: int = 1,
    bias: bool = True,
    dilation: int = 1,
    pad: int | None = None,
) -> Value:
    """A convolution over all axes behind the channels, of a cube of `kernel` each way, `dilation`
    apart. `pad` is by default what keeps the size where the stride is 1 and the kernel odd."""
    axes = len(x.shape) - 2
    shape = (channels, x.shape[1] // groups, *[kernel] * axes)
    operands = [x, net.weight(name, "weight", shape)]
    if bias:
        operands.append(net.weight(name, "bias", (channels,)))
    pad = dilation * (kernel // 2) if pad is None else pad
    spread = {"dilations": [dilation] * axes} if dilation > 1 else {}
    return net.op(
        "Conv",
        operands,
        name,
        kernel_shape=[kernel] * axes,
        strides=[stride] * axes,
        pads=[pad] * 2 * axes,
        group=groups,
        **spread,
    )


def conv_transpose(
    net: Net, x: Value, channels: int, name: str, *, kernel: int = 2, stride: int = 2
) -> Value:
    """A transposed convolution; all sizes behind the channels become `stride` times as large."""
    axes = len(x.shape) - 2
    operands = [
        x,
        net.weight(name, "weight", (x.shape[1], channels, *[kernel] * axes)),
        net.weight(name, "bias", (channels,)),
    ]
    pad = (kernel - stride) // 2
    pads = {"pads": [pad] * 2 * axes} if pad else {}
    return net.op(
        "ConvTranspose", operands, name, kernel_shape=[kernel] * axes, strides=[stride] * axes,
        **pads,
    )  # fmt: skip


def batch_norm(net: Net, x: Value, name: str, *, residual: bool = False) -> Value:
    """Batch normalisation with stored statistics (Ioffe & Szegedy 2015, algorithm 2).

    `residual` marks the last one in the branch of a residual sum: a smaller scale.
    """
    kinds = ("residual_scale" if residual else "scale", "bias", "mean", "variance")
    operands = [net.weight(name, kind, (x.shape[1],)) for kind in kinds]
    return net.op("BatchNormalization", [x, *operands], name, epsilon=1e-5)


def relu(net: Net, x: Value, name: str) -> Value:
    """max(x, 0)."""
    return net.op("Relu", [x], name)


def relu6(net: Net, x: Value, name: str) -> Value:
    """min(max(x, 0), 6)."""
    return net.op("Clip", [x, net.scalar(0.0), net.scalar(6.0)], name)


def silu(net: Net, x: Value, name: str) -> Value:
    """x * sigmoid(x)."""
    return net.op("Mul", [x, net.op("Sigmoid", [x], f"{name}/sigmoid")], name)


def gelu(net: Net, x: Value, name: str) -> Value:
    """x * (1 + erf(x / sqrt(2))) / 2 (Hendrycks & Gimpel 2016).

    One Gelu operator from opset 20 on; before, the five operators that exporters write.
    """
    if net.opset >= 20:
        return net.op("Gelu", [x], name)
    scaled = net.op("Div", [x, net.scalar(math.sqrt(2.0))], f"{name}/scale")
    error = net.op("Erf", [scaled], f"{name}/erf")
    shifted = net.op("Add", [error, net.scalar(1.0)], f"{name}/shift")
    product = net.op("Mul", [x, shifted], f"{name}/product")
    return net.op("Mul", [product, net.scalar(0.5)], name)


def conv_norm_relu(
    net: Net, x: Value, channels: int, kernel: int, name: str, *, stride: int = 1, norm: bool = True
) -> Value:
    """Convolution, batch normalisation when `norm` (then the convolution has no bias), ReLU."""
    x = conv(net, x, channels, kernel, name, stride=stride, bias=not norm)
    if norm:
        x = batch_norm(net, x, f"{name}/norm")
    return relu(net, x, f"{name}/relu")


def separable(
    net: Net, x: Value, channels: int, kernel: int, name: str, *, stride: int = 1
) -> Value:
    """ReLU, a depthwise and a 1x1 convolution (Chollet 2017), batch normalisation."""
    x = relu(net, x, f"{name}/relu")
    groups = x.shape[1]
    x = conv(net, x, groups, kernel, f"{name}/depthwise", stride=stride, groups=groups, bias=False)
    x = conv(net, x, channels, 1, f"{name}/pointwise", bias=False)
    return batch_norm(net, x, f"{name}/norm")


def max_pool(net: Net, x: Value, kernel: int, stride: int, name: str) -> Value:
    """Maximum over windows; an odd `kernel` is padded by kernel // 2, an even one is not."""
    axes = len(x.shape) - 2
    pads = [kernel // 2 if kernel % 2 else 0] * 2 * axes
    shape = [kernel] * axes
    return net.op("MaxPool", [x], name, kernel_shape=shape, strides=[stride] * axes, pads=pads)


def average_pool(net: Net, x: Value, name: str) -> Value:
    """Mean of 2x2 windows: height and width halve."""
    return net.op("AveragePool", [x], name, kernel_shape=[2, 2], strides=[2, 2])


def upsample(net: Net, x: Value, name: str, *, factor: int = 2) -> Value:
    """Nearest-neighbour Resize: height and width become `factor` times as large."""
    return _enlarged(
        net, x, factor, name,
        mode="nearest", coordinate_transformation_mode="asymmetric", nearest_mode="floor",
    )  # fmt: skip


def bilinear(net: Net, x: Value, factor: int, name: str) -> Value:
    """Bilinear Resize by whole factors, centres of pixels aligned (half_pixel)."""
    return _enlarged(
        net, x, factor, name, mode="linear", coordinate_transformation_mode="half_pixel"
    )


def _enlarged(net: Net, x: Value, factor: int, name: str, **attributes: str) -> Value:
    """A Resize; height and width become `factor` times as large."""
    scales = net.constant(np.array([1, 1, factor, factor], np.float32))
    absent = net.constant(np.zeros(0, np.float32))  # no region of interest
    batch, channels, height, width = x.shape
    return net.op(
        "Resize",
        [x, absent, scales],
        name,
        known_shape=[batch, channels, factor * height, factor * width],
        **attributes,
    )


def instance_norm(net: Net, x: Value, name: str) -> Value:
    """Normalisation of each channel by its own mean and variance (Ulyanov et al. 2016)."""
    operands = [net.weight(name, kind, (x.shape[1],)) for kind in ("scale", "bias")]
    return net.op("InstanceNormalization", [x, *operands], name, epsilon=1e-5)


def gated(net: Net, x: Value, name: str) -> Value:
    """One half of the channels times the sigmoid of the other (Dauphin et al. 2017, GLU)."""
    half, gate = net.split(x, 2, 1, f"{name}/split")
    return net.op("Mul", [half, net.op("Sigmoid", [gate], f"{name}/gate")], name)


def dense(net: Net, x: Value, features: int, name: str, *, residual: bool = False) -> Value:
    """x @ weight + bias over the last axis: one Gemm for a matrix, MatMul and Add for more axes.

    `residual` marks the last one in the branch of a residual sum: smaller weights.
    """
    kind = "residual_weight" if residual else "weight"
    weight = net.weight(name, kind, (x.shape[-1], features))
    bias = net.weight(name, "bias", (features,))
    if len(x.shape) == 2:
        return net.op("Gemm", [x, weight, bias], name)
    return net.op("Add", [net.op("MatMul", [x, weight], f"{name}/matmul"), bias], name)


def layer_norm(net: Net, x: Value, name: str) -> Value:
    """Layer normalisation over the last axis (Ba et al. 2016)."""
    operands = [net.weight(name, kind, (x.shape[-1],)) for kind in ("scale", "bias")]
    return net.op("LayerNormalization", [x, *operands], name, axis=-1, epsilon=1e-5)


def feed_forward(net: Net, x: Value, expansion: int, name: str) -> Value:
    """Dense, GELU, dense over the last axis (Vaswani et al. 2017, section 3.3); same shape."""
    width = x.shape[-1]
    hidden = gelu(net, dense(net, x, width * expansion, f"{name}/up"), f"{name}/gelu")
    return dense(net, hidden, width, f"{name}/down", residual=True)


def classifier(net: Net, x: Value, classes: int, name: str) -> Value:
    """Global average pooling and a dense layer: an image becomes (batch, classes) logits."""
    pooled = net.op("GlobalAveragePool", [x], f"{name}/pool")
    flat = net.op("Flatten", [pooled], f"{name}/flatten", axis=1)
    return dense(net, flat, classes, name)
