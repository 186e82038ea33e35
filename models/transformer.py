"""Transformer encoder. Source: Vaswani et al. 2017, "Attention Is All You Need", section 3; the
GELU is that of BERT (Devlin et al. 2019, section 3), `norm_first` the pre-norm variant of Xiong
et al. 2020, "On Layer Normalization in the Transformer Architecture", figure 1b.

Without dropout and embedding: the input is a sequence of vectors. The attention scores are
materialised (MatMul, Softmax, MatMul), so memory is quadratic in the sequence.
"""

import math

import onnx

from models import layers
from models.net import Net, Value


def transformer(
    *,
    depth: int = 4,
    width: int = 256,
    heads: int = 8,
    sequence: int = 128,
    expansion: int = 4,
    norm_first: bool = False,
    batch: int = 1,
    symbolic_batch: bool = False,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """Transformer encoder (Vaswani 2017): tokens (batch, sequence, width) to encoded, same shape.

    depth: layers. width: features of a position (d_model), divisible by heads. expansion: hidden
    features of the feed-forward part, as a multiple of width. norm_first: normalise before each
    part instead of after each sum. opset: from 20 on the GELU is one operator.
    """
    if width % heads:
        raise ValueError(f"width is {width}, it must be divisible by heads = {heads}")
    net = Net("transformer", batch=batch, symbolic_batch=symbolic_batch, opset=opset, seed=seed)
    x = net.input("tokens", (sequence, width))
    for layer in range(1, depth + 1):
        x = encoder_layer(net, x, heads, expansion, f"layer{layer}", norm_first=norm_first)
    if norm_first:
        x = layers.layer_norm(net, x, "final/norm")
    return net.model({"encoded": x})


def encoder_layer(
    net: Net, x: Value, heads: int, expansion: int, name: str, *, norm_first: bool = True
) -> Value:
    """Attention and feed-forward part of (batch, position, feature), each in a residual sum."""
    x = _attention_part(net, x, heads, norm_first, f"{name}/attention")
    return _feed_forward_part(net, x, expansion, norm_first, f"{name}/feed_forward")


def _attention_part(net: Net, x: Value, heads: int, norm_first: bool, name: str) -> Value:
    inner = layers.layer_norm(net, x, f"{name}/norm") if norm_first else x
    x = net.op("Add", [x, _attention(net, inner, heads, name)], f"{name}/add")
    return x if norm_first else layers.layer_norm(net, x, f"{name}/norm")


def _feed_forward_part(net: Net, x: Value, expansion: int, norm_first: bool, name: str) -> Value:
    inner = layers.layer_norm(net, x, f"{name}/norm") if norm_first else x
    x = net.op("Add", [x, layers.feed_forward(net, inner, expansion, name)], f"{name}/add")
    return x if norm_first else layers.layer_norm(net, x, f"{name}/norm")


def _attention(net: Net, x: Value, heads: int, name: str) -> Value:
    """Multi-head self-attention (section 3.2 of the paper): softmax(Q K' / sqrt(d)) V."""
    _, sequence, width = x.shape
    query = _heads(net, x, heads, [0, 2, 1, 3], f"{name}/query")
    key = _heads(net, x, heads, [0, 2, 3, 1], f"{name}/key")
    value = _heads(net, x, heads, [0, 2, 1, 3], f"{name}/value")
    scores = net.op("MatMul", [query, key], f"{name}/scores")
    scale = net.scalar(1 / math.sqrt(width // heads))
    scaled = net.op("Mul", [scores, scale], f"{name}/scaled")
    weights = net.op("Softmax", [scaled], f"{name}/softmax", axis=-1)
    mixed = net.op("MatMul", [weights, value], f"{name}/mixed")
    merged = net.op("Transpose", [mixed], f"{name}/merge", perm=[0, 2, 1, 3])
    flat = net.op("Reshape", [merged, net.ints([0, sequence, width])], f"{name}/flat")
    return layers.dense(net, flat, width, f"{name}/output", residual=True)


def _heads(net: Net, x: Value, heads: int, perm: list[int], name: str) -> Value:
    """A dense projection, split into heads; `perm` puts (batch, head) first."""
    _, sequence, width = x.shape
    projected = layers.dense(net, x, width, name)
    shape = net.ints([0, sequence, heads, width // heads])
    split = net.op("Reshape", [projected, shape], f"{name}/split")
    return net.op("Transpose", [split], f"{name}/heads", perm=perm)
