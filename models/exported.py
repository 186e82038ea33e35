"""Transformers as they are exported with `dynamo=False`: sizes computed, Casts that change nothing.

Sources: the GPT-2 decoder with cache of Radford et al. 2019, "Language Models are Unsupervised
Multitask Learners"; the image encoder of Kirillov et al. 2023, "Segment Anything" (windowed
attention with relative positions, Li et al. 2022), its MLP gated as in Shazeer 2020, "GLU Variants
Improve Transformer"; the encoder of Vaswani et al. 2017. Structure and idioms are those of
exported files, the weights are seeded.
"""

import math

import numpy as np
import onnx
from onnx import TensorProto

from models.export import Export

HALF, FULL = TensorProto.FLOAT16, TensorProto.FLOAT
SOFTMAX = ("float", "half")


def gpt_cache(
    *,
    depth: int = 4,
    width: int = 256,
    heads: int = 8,
    vocabulary: int = 512,
    context: int = 1024,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """GPT decoder with a cache (Radford 2019): input_ids (batch, sequence) and, for every layer,
    past.I.key and .value (batch, heads, past, width / heads) to logits and present.I.key, .value.

    All of batch, sequence and past are open. width: divisible by heads. context: the most
    positions, past and new, for the table of positions and the causal mask.
    """
    _require_divisible(width, heads)
    net = Export("gpt_cache", opset=opset, seed=seed)
    ids = net.input("input_ids", ["batch", "sequence"], TensorProto.INT64)
    cached = ["batch", heads, "past", width // heads]
    past = [
        [net.input(f"past.{layer}.{part}", cached) for part in ("key", "value")]
        for layer in range(depth)
    ]
    with net.scope("transformer"):
        x = _embedded(net, ids, past[0][0], width, vocabulary, context)
        present = []
        for layer in range(depth):
            with net.scope(f"h.{layer}"):
                with net.scope("ln_1"):
                    inner = net.layer_norm(x, width)
                with net.scope("attn"):
                    mixed, *kept = _cached_attention(net, inner, past[layer], width, heads, context)
                present.append(kept)
                x = net.op("Add", mixed, x)
                x = _mlp(net, x, width, "ln_2")
        with net.scope("ln_f"):
            x = net.layer_norm(x, width)
    with net.scope("lm_head"):
        logits = net.op("MatMul", x, net.weight("weight", width, vocabulary))
    net.output(logits, "logits", ["batch", "sequence", vocabulary])
    for layer, kept in enumerate(present):
        for part, value in zip(("key", "value"), kept, strict=True):
            shape = ["batch", heads, "total", width // heads]
            net.output(value, f"present.{layer}.{part}", shape)
    return net.model()


def sam_encoder(
    *,
    depth: int = 4,
    width: int = 192,
    heads: int = 6,
    window: int = 8,
    global_every: int = 4,
    patch: int = 16,
    size: int = 512,
    channels: int = 64,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """Image encoder of SAM (Kirillov 2023): image (batch, 3, size, size) to features (batch,
    channels, size / patch, size / patch); batch is open.

    depth: blocks, of which every one of global_every attends globally and the others in windows of
    `window` patches, padded where they do not fit. The MLP is gated (chunk). width: divisible by
    heads.
    """
    _require_divisible(width, heads)
    if size % patch:
        raise ValueError(f"size is {size}, it must be divisible by patch = {patch}")
    grid = size // patch
    net = Export("sam_encoder", opset=opset, seed=seed)
    x = net.input("image", ["batch", 3, size, size])
    with net.scope("patch_embed"):
        weights = net.weight("weight", width, 3, patch, patch), net.weight("bias", width)
        x = net.op("Conv", x, *weights, kernel_shape=[patch] * 2, strides=[patch] * 2)
        x = net.op("Transpose", x, perm=[0, 2, 3, 1])
    with net.scope("pos_embed"):
        x = net.op("Add", x, net.weight("residual_weight", 1, grid, grid, width))
    for block in range(depth):
        with net.scope(f"blocks.{block}"):
            everywhere = block % global_every == global_every - 1
            x = _window_block(net, x, width, heads, 0 if everywhere else window, grid)
    with net.scope("neck"):
        x = net.op("Transpose", x, perm=[0, 3, 1, 2])
        x = net.op("Conv", x, net.weight("weight", channels, width, 1, 1), kernel_shape=[1, 1])
    net.output(x, "features", ["batch", channels, grid, grid])
    return net.model()


def half_attention(
    *,
    width: int = 256,
    heads: int = 8,
    sequence: int = 256,
    batch: int = 1,
    softmax: str = "float",
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """Attention block in float16: x (batch, sequence, width) to y, same shape and type.

    softmax: "float" for a Softmax in float32 between two Casts, "half" without. width: divisible
    by heads. All sizes are fixed.
    """
    _require_divisible(width, heads)
    if softmax not in SOFTMAX:
        raise ValueError(f"softmax is {softmax!r}, it must be one of {', '.join(SOFTMAX)}")
    net = Export("half_attention", opset=opset, seed=seed, half=True)
    x = net.input("x", [batch, sequence, width], HALF)
    with net.scope("norm"):
        inner = net.layer_norm(x, width)
    with net.scope("attn"):
        query, key, value = (
            _projected(net, inner, f"{part}_proj", width, heads) for part in ("q", "k", "v")
        )
        turned = net.op("Transpose", key, perm=[0, 1, 3, 2])
        scores = net.op("MatMul", query, turned)
        scores = net.op("Mul", scores, net.scalar(1 / math.sqrt(width // heads)))
        if softmax == "float":
            wide = net.op("Softmax", net.op("Cast", scores, to=FULL), axis=-1)
            shares = net.op("Cast", wide, to=HALF)
        else:
            shares = net.op("Softmax", scores, axis=-1)
        mixed = _merged(net, net.op("MatMul", shares, value), width)
        with net.scope("out_proj"):
            mixed = net.linear(mixed, width, width, kind="residual_weight")
    y = net.op("Add", x, mixed)
    net.output(y, "y", [batch, sequence, width], HALF)
    return net.model()


def open_encoder(
    *,
    depth: int = 4,
    width: int = 256,
    heads: int = 8,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """Encoder (Vaswani 2017): tokens (batch, sequence, width) and mask (batch, sequence, int64) to
    encoded, like tokens; batch and sequence are open.

    depth: layers. width: divisible by heads.
    """
    _require_divisible(width, heads)
    net = Export("open_encoder", opset=opset, seed=seed)
    x = net.input("tokens", ["batch", "sequence", width])
    mask = net.input("mask", ["batch", "sequence"], TensorProto.INT64)
    added = _added_mask(net, mask)
    for layer in range(depth):
        with net.scope(f"layers.{layer}"):
            with net.scope("self_attn"):
                mixed = _open_attention(net, x, added, width, heads)
            x = net.op("Add", x, mixed)
            with net.scope("norm1"):
                x = net.layer_norm(x, width)
            x = _mlp(net, x, width, "norm2")
    net.output(x, "encoded", ["batch", "sequence", width])
    return net.model()


def _require_divisible(width: int, heads: int) -> None:
    if width % heads:
        raise ValueError(f"width is {width}, it must be divisible by heads = {heads}")


def _mlp(net: Export, x: str, width: int, norm: str) -> str:
    """x + MLP(norm(x)) with a GELU."""
    with net.scope(norm):
        inner = net.layer_norm(x, width)
    with net.scope("mlp"):
        with net.scope("fc1"):
            inner = net.linear(inner, width, 4 * width)
        inner = net.gelu(inner)
        with net.scope("fc2"):
            inner = net.linear(inner, 4 * width, width, kind="residual_weight")
    made: str = net.op("Add", x, inner)
    return made


def _projected(net: Export, x: str, name: str, width: int, heads: int) -> str:
    """A linear layer split into heads: (batch, heads, sequence, width / heads), sizes computed."""
    batch, sequence = net.size(x, 0), net.size(x, 1)
    with net.scope(name):
        x = net.linear(x, width, width)
        per_head = net.floor_divide(net.size(x, 2), heads)
    split = net.view(x, batch, sequence, heads, per_head)
    made: str = net.op("Transpose", split, perm=[0, 2, 1, 3])
    return made


def _merged(net: Export, x: str, width: int) -> str:
    """Heads side by side again: (batch, sequence, width)."""
    x = net.op("Transpose", x, perm=[0, 2, 1, 3])
    return net.view(x, net.size(x, 0), net.size(x, 1), width)


def _added_mask(net: Export, mask: str) -> str:
    """(1 - mask) times the smallest number: (batch, 1, 1, sequence)."""
    wide = net.op("Unsqueeze", net.op("Unsqueeze", mask, net.integers(1)), net.integers(2))
    kept = net.op("Cast", wide, to=FULL)
    hidden = net.op("Sub", net.scalar(1.0), kept)
    lowest = float(np.finfo(np.float32).min)
    made: str = net.op("Mul", hidden, net.scalar(lowest))
    return made


def _open_attention(net: Export, x: str, mask: str, width: int, heads: int) -> str:
    query, key, value = (
        _projected(net, x, f"{part}_proj", width, heads) for part in ("q", "k", "v")
    )
    turned = net.op("Transpose", key, perm=[0, 1, 3, 2])
    scores = net.op("MatMul", query, turned)
    scores = net.op("Div", scores, net.scalar(math.sqrt(width // heads)))
    shares = net.op("Softmax", net.op("Add", scores, mask), axis=-1)
    mixed = _merged(net, net.op("MatMul", shares, value), width)
    with net.scope("out_proj"):
        return net.linear(mixed, width, width, kind="residual_weight")


def _embedded(net: Export, ids: str, key: str, width: int, vocabulary: int, context: int) -> str:
    """Token and position embeddings; positions go on behind the past."""
    flat = net.view(ids, -1, net.size(ids, 1))
    begin = net.size(key, 2)
    end = net.op("Add", net.size(ids, 1), begin)
    positions = net.op("Range", begin, end, net.integer(1))
    positions = net.op("Unsqueeze", positions, net.integers(0))
    with net.scope("wte"):
        words = net.op("Gather", net.weight("weight", vocabulary, width), flat)
    with net.scope("wpe"):
        places = net.op("Gather", net.weight("weight", context, width), positions)
    made: str = net.op("Add", words, places)
    return made


def _cached_attention(
    net: Export, x: str, past: list[str], width: int, heads: int, context: int
) -> tuple[str, str, str]:
    """Attention over past and new positions; what it gives, and the keys and values to keep."""
    with net.scope("c_attn"):
        joined = net.linear(x, width, 3 * width)
    parts = net.op("Split", joined, net.integers(width, width, width), outputs=3, axis=2)
    query, key, value = (_cut(net, part, heads) for part in parts)
    key = net.op("Concat", past[0], key, axis=2)
    value = net.op("Concat", past[1], value, axis=2)
    scores = net.op("MatMul", query, net.op("Transpose", key, perm=[0, 1, 3, 2]))
    scores = net.op("Div", scores, net.scalar(math.sqrt(width // heads)))
    new, total = net.size(query, 2), net.size(key, 2)
    causal = net.constant(np.tril(np.ones((1, 1, context, context), np.bool_)))
    rows = net.slice(causal, 2, net.op("Sub", total, new), total)
    seen = net.slice(rows, 3, 0, total)
    seen = net.op("Cast", seen, to=TensorProto.BOOL)
    scores = net.op("Where", seen, scores, net.scalar(float(np.finfo(np.float32).min)))
    shares = net.op("Softmax", scores, axis=-1)
    mixed = _merged(net, net.op("MatMul", shares, value), width)
    with net.scope("c_proj"):
        return net.linear(mixed, width, width, kind="residual_weight"), key, value


def _cut(net: Export, x: str, heads: int) -> str:
    """`x.view(*x.size()[:-1], heads, x.size(-1) // heads).permute(0, 2, 1, 3)`."""
    per_head = net.floor_divide(net.size(x, 2), heads)
    split = net.view(x, net.size(x, 0), net.size(x, 1), heads, per_head)
    made: str = net.op("Transpose", split, perm=[0, 2, 1, 3])
    return made


def _window_block(net: Export, x: str, width: int, heads: int, window: int, grid: int) -> str:
    """A block of SAM; `window` 0 attends to all patches."""
    with net.scope("norm1"):
        inner = net.layer_norm(x, width)
    height, across = net.size(inner, 1), net.size(inner, 2)
    side = window or grid
    if window:
        inner, padded = _partitioned(net, inner, window, width)
    with net.scope("attn"):
        inner = _relative_attention(net, inner, width, heads, side)
    if window:
        inner = _unpartitioned(net, inner, window, padded, width)
        inner = net.slice(net.slice(inner, 1, 0, height), 2, 0, across)
    x = net.op("Add", x, inner)
    with net.scope("norm2"):
        inner = net.layer_norm(x, width)
    with net.scope("mlp"):
        with net.scope("lin1"):
            inner = net.linear(inner, width, 4 * width)
        gate, inner = net.chunk(inner, 3)
        inner = net.op("Mul", net.gelu(gate), inner)
        with net.scope("lin2"):
            inner = net.linear(inner, 2 * width, width, kind="residual_weight")
    made: str = net.op("Add", x, inner)
    return made


def _partitioned(net: Export, x: str, window: int, width: int) -> tuple[str, tuple[str, str]]:
    """Windows (batch x windows, window, window, width), and the padded height and width."""
    sizes = [net.size(x, axis) for axis in (1, 2)]
    batch = net.size(x, 0)
    missing = []
    for size in sizes:
        rest = net.op(
            "Mod",
            net.op("Sub", net.integer(window), net.op("Mod", size, net.integer(window))),
            net.integer(window),
        )
        missing.append(rest)
    pads = net.vector(0, 0, 0, 0, 0, missing[0], missing[1], 0)
    pads = net.op("Cast", pads, to=TensorProto.INT64)
    x = net.op("Pad", x, pads, mode="constant")
    high, wide = (net.op("Add", a, b) for a, b in zip(sizes, missing, strict=True))
    rows, columns = net.floor_divide(high, window), net.floor_divide(wide, window)
    x = net.view(x, batch, rows, window, columns, window, width)
    x = net.op("Transpose", x, perm=[0, 1, 3, 2, 4, 5])
    return net.view(x, -1, window, window, width), (high, wide)


def _unpartitioned(net: Export, x: str, window: int, padded: tuple[str, str], width: int) -> str:
    """The image that the windows were cut from: (batch, height, width, features), padded."""
    area = net.op("Mul", *padded)
    each = net.floor_divide(net.floor_divide(area, window), window)
    count = net.op("Div", net.size(x, 0), each)
    batch = net.op("Cast", net.op("Cast", count, to=TensorProto.INT64), to=TensorProto.INT64)
    rows, columns = (net.floor_divide(size, window) for size in padded)
    x = net.view(x, batch, rows, columns, window, window, width)
    x = net.op("Transpose", x, perm=[0, 1, 3, 2, 4, 5])
    return net.view(x, batch, *padded, width)


def _relative_attention(net: Export, x: str, width: int, heads: int, side: int) -> str:
    """Attention over side x side patches with decomposed relative positions."""
    per_head = width // heads
    batch = net.size(x, 0)
    with net.scope("qkv"):
        joined = net.linear(x, width, 3 * width)
    joined = net.view(joined, batch, side * side, 3, heads, per_head)
    joined = net.op("Transpose", joined, perm=[2, 0, 3, 1, 4])
    count = net.op("Mul", batch, net.integer(heads))
    joined = net.view(joined, 3, count, side * side, per_head)
    parts = net.op("Split", joined, net.integers(1, 1, 1), outputs=3, axis=0)
    query, key, value = (net.op("Squeeze", part, net.integers(0)) for part in parts)
    scaled = net.op("Mul", query, net.scalar(1 / math.sqrt(per_head)))
    scores = net.op("MatMul", scaled, net.op("Transpose", key, perm=[0, 2, 1]))
    scores = _with_positions(net, scores, query, side, per_head)
    shares = net.op("Softmax", scores, axis=-1)
    mixed = net.view(net.op("MatMul", shares, value), batch, heads, side, side, per_head)
    mixed = net.op("Transpose", mixed, perm=[0, 2, 3, 1, 4])
    mixed = net.view(mixed, batch, side, side, width)
    with net.scope("proj"):
        return net.linear(mixed, width, width, kind="residual_weight")


def _with_positions(net: Export, scores: str, query: str, side: int, per_head: int) -> str:
    """Scores and what query and relative row and column add to them."""
    count = net.size(query, 0)
    image = net.view(query, count, side, side, per_head)
    apart = np.arange(side)[:, None] - np.arange(side)[None, :] + side - 1
    scores = net.view(scores, count, side, side, side, side)
    for axis, equation in ((4, "bhwc,hkc->bhwk"), (3, "bhwc,wkc->bhwk")):
        with net.scope("rel_pos_h" if axis == 4 else "rel_pos_w"):
            table = net.weight("residual_weight", 2 * side - 1, per_head)
        near = net.op("Gather", table, net.constant(apart), axis=0)
        added = net.op("Einsum", image, near, equation=equation)
        scores = net.op("Add", scores, net.op("Unsqueeze", added, net.integers(axis)))
    return net.view(scores, count, side * side, side * side)
