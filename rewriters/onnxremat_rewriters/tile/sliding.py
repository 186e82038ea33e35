"""Convolutions and pooling: windows that slide over the spatial axes.

Output i of an axis reads the inputs [i s - p, i s - p + (k - 1) d + 1) with stride s, leading pad
p, kernel k and dilation d; a tile pads at the true borders of the tensor only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onnxremat_rewriters.tile.boxes import Box, Range, whole
from onnxremat_rewriters.tile.view import CannotTile, Rule, Site, TileStep


@dataclass(frozen=True)
class Window:
    """The window of one spatial axis: `size` inputs, `made` outputs, `before` and `after` pads."""

    size: int
    made: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int

    @property
    def reach(self) -> int:
        """Inputs from the first to the last that one output reads."""
        return (self.kernel - 1) * self.dilation + 1


def windows(site: Site, kernel: Sequence[int]) -> tuple[Window, ...]:
    """The windows of a Conv or pooling node, automatic pads worked out."""
    n = len(kernel)
    size, made = site.shape(0)[2:], site.made()[2:]
    stride = site.integers("strides") or (1,) * n
    dilation = site.integers("dilations") or (1,) * n
    auto = site.attributes.get("auto_pad", b"NOTSET").decode()
    pads = site.integers("pads") or (0,) * (2 * n)
    found = []
    for a in range(n):
        before, after = pads[a], pads[a + n]
        if auto == "VALID":
            before = after = 0
        elif auto in ("SAME_UPPER", "SAME_LOWER"):
            reach = (kernel[a] - 1) * dilation[a] + 1
            total = max(0, (made[a] - 1) * stride[a] + reach - size[a])
            small, large = total // 2, total - total // 2
            before, after = (small, large) if auto == "SAME_UPPER" else (large, small)
        found.append(Window(size[a], made[a], kernel[a], stride[a], dilation[a], before, after))
    return tuple(found)


def _need(window: Window, made: Range) -> tuple[Range, int, int]:
    """Inputs of a range of outputs, and the pads before and behind them."""
    if made == (0, window.made):
        return (0, window.size), window.before, window.after
    start = made[0] * window.stride - window.before
    stop = (made[1] - 1) * window.stride - window.before + window.reach
    read = max(0, start), min(window.size, stop)
    if read[0] >= read[1]:
        raise CannotTile("a tile would lie in the padding alone")
    after = min(max(0, stop - window.size), window.after)
    return read, max(0, -start), after


def _slide(site: Site, found: tuple[Window, ...], box: Box) -> tuple[Box, dict[str, Any]]:
    """The input box of an output box, and the attributes that change."""
    needs = [_need(w, r) for w, r in zip(found, box[2:], strict=True)]
    pads = [n[1] for n in needs] + [n[2] for n in needs]
    changed: dict[str, Any] = {"pads": pads}
    if "auto_pad" in site.attributes:
        changed["auto_pad"] = None
    return tuple(n[0] for n in needs), changed


def _all_channels(site: Site, box: Box) -> None:
    if box[1] != (0, site.made()[1]):
        raise CannotTile(f"{site.op}: the channels cannot be cut without cutting the weights")


def conv(site: Site) -> Rule:
    """Conv, ConvInteger, QLinearConv: the weights are shared, the channels are never cut. A fused
    Conv adds its fourth input."""
    weights = 3 if site.op == "QLinearConv" else 1
    found = windows(site, site.shape(weights)[2:])
    channels = (0, site.shape(0)[1])
    adds = weights == 1 and site.op != "ConvInteger"

    def rule(_: int, box: Box) -> TileStep:
        _all_channels(site, box)
        spatial, changed = _slide(site, found, box)
        reads: dict[int, Box | None] = {
            i: None for i in range(1, len(site.node.input)) if site.has(i)
        }
        if adds and site.has(3):
            reads[3] = box
        reads[0] = (box[0], channels, *spatial)
        return TileStep(box, reads, attributes=changed)

    return rule


def pool(site: Site) -> Rule:
    """MaxPool, AveragePool, LpPool. Windows that hang over with ceil_mode keep that mode."""
    found = windows(site, site.integers("kernel_shape"))

    def rule(output: int, box: Box) -> TileStep:
        if output:
            raise CannotTile(f"{site.op}: its indices count elements of the whole tensor")
        spatial, changed = _slide(site, found, box)
        return TileStep(box, {0: (*box[:2], *spatial)}, attributes=changed)

    return rule


def global_pool(site: Site) -> Rule:
    """GlobalAveragePool, GlobalMaxPool: images and channels can be cut."""
    spatial = whole(site.shape(0)[2:])

    def rule(_: int, box: Box) -> TileStep:
        return TileStep(box, {0: (*box[:2], *spatial)})

    return rule


def conv_transpose(site: Site) -> Rule:
    """ConvTranspose: input i reaches the outputs [i s - p, i s - p + (k - 1) d + 1)."""
    kernel = site.shape(1)[2:]
    n = len(kernel)
    size, made = site.shape(0)[2:], site.made()[2:]
    stride = site.integers("strides") or (1,) * n
    dilation = site.integers("dilations") or (1,) * n
    extra = site.integers("output_padding") or (0,) * n
    before = _transposed_pads(site, kernel, stride, dilation, extra)
    found = [
        Window(size[a], made[a], kernel[a], stride[a], dilation[a], before[a], 0) for a in range(n)
    ]
    channels = (0, site.shape(0)[1])
    dropped: dict[str, Any] = {
        name: None for name in ("auto_pad", "output_shape") if name in site.attributes
    }

    def rule(_: int, box: Box) -> TileStep:
        _all_channels(site, box)
        needs = [_need_transposed(w, r) for w, r in zip(found, box[2:], strict=True)]
        changed = {
            **dropped,
            "pads": [q[1] for q in needs] + [max(0, q[2]) for q in needs],
            "output_padding": [max(0, -q[2]) for q in needs],
        }
        others = {i: None for i in range(1, len(site.node.input)) if site.has(i)}
        spatial = tuple(q[0] for q in needs)
        return TileStep(box, {0: (box[0], channels, *spatial), **others}, attributes=changed)

    return rule


def _need_transposed(window: Window, made: Range) -> tuple[Range, int, int]:
    """Inputs of a range of outputs, what is cut off before it, and behind it (negative: added)."""
    lo, hi = made[0] + window.before, made[1] + window.before
    s = window.stride
    start = min(max(0, -(-(lo - window.reach + 1) // s)), lo // s, window.size - 1)
    stop = max(start + 1, min(window.size, (hi - 1) // s + 1))
    before = lo - start * s
    full = (stop - start - 1) * s + window.reach
    return (start, stop), before, full - before - (hi - lo)


def _transposed_pads(
    site: Site,
    kernel: Sequence[int],
    stride: Sequence[int],
    dilation: Sequence[int],
    extra: Sequence[int],
) -> tuple[int, ...]:
    """The pads before each axis. Versions of the operator differ in how they split an odd sum."""
    n = len(kernel)
    auto = site.attributes.get("auto_pad", b"NOTSET")
    if auto == b"NOTSET" and not site.integers("output_shape"):
        return (site.integers("pads") or (0,) * (2 * n))[:n]
    size, made = site.shape(0)[2:], site.made()[2:]
    total = [
        (size[a] - 1) * stride[a] + (kernel[a] - 1) * dilation[a] + 1 + extra[a] - made[a]
        for a in range(n)
    ]
    if auto != b"VALID" and any(t < 0 or t % 2 for t in total):
        raise CannotTile(f"{site.op}: its output shape does not give equal pads on both sides")
    return (0,) * n if auto == b"VALID" else tuple(t // 2 for t in total)
