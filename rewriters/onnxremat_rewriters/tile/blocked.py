"""The ops of ONNX Runtime's blocked layout (NCHWc).

With all optimizations the runtime keeps pictures as [batch, channels / c, rows, columns, c] with
blocks of c channels, as wide as the processor's vectors. Their shape is still said to be
[batch, channels, rows, columns], so a part of the rows or columns is cut off, and parts are joined,
between two Reshapes that say how the elements lie. Channels are never cut.

The kernels compute each pixel by itself, channels and taps of a filter in one order, whatever is
beside it: every tile has the bits of the whole.
"""

from collections.abc import Callable

from onnxremat.importer.nodes import LAYOUT_DOMAIN
from onnxremat_rewriters.tile import sliding
from onnxremat_rewriters.tile.boxes import Box, whole
from onnxremat_rewriters.tile.resizing import Factor, border
from onnxremat_rewriters.tile.view import CannotTile, Rule, Site, TileStep

PREFIX = f"{LAYOUT_DOMAIN}::"
TRANSPARENT = frozenset({"Add", "Clip", "Concat", "HardSigmoid", "Mul", "Relu", "Sigmoid", "Sum"})
TRANSPARENT |= frozenset({"Tanh"})
"""Other ops that the runtime leaves among blocked values: all their operands lie alike."""


def with_whole_channels(make: Callable[[Site], Rule]) -> Callable[[Site], Rule]:
    """The rule, for boxes with all channels."""

    def checked(site: Site) -> Rule:
        made_by, channels = make(site), (0, site.made()[1])

        def rule(output: int, box: Box) -> TileStep:
            if box[1] != channels:
                raise CannotTile(f"{site.op}: channels in blocks cannot be cut")
            return made_by(output, box)

        return rule

    return checked


def transparent(site: Site, make: Callable[[Site], Rule]) -> Rule:
    """The rule of an op that reads blocked values without knowing. Raises CannotTile if what it
    does depends on where elements lie."""
    alike = all(kind is not None and len(kind.shape) == 4 for kind in site.inputs if kind)
    axis = site.attributes.get("axis", 1)
    if site.op not in TRANSPARENT or not alike or axis != 1:
        raise CannotTile(f"{site.op}: not known to be the same on channels in blocks")
    return with_whole_channels(make)(site)


def upsample(site: Site) -> Rule:
    """Upsample by whole factors; linear ones by powers of two."""
    size, made = site.shape(0), site.made()
    mode = site.attributes.get("mode", b"nearest").decode()
    transform = site.attributes.get("coordinate_transformation_mode", b"asymmetric").decode()
    scales = site.integers("scales")
    linear = mode != "nearest"
    if linear and (transform == "align_corners" or any(s & (s - 1) for s in scales)):
        raise CannotTile(f"{site.op}: linear tiles at scales of {list(scales)} round otherwise")
    factors = [
        Factor(n, m, s, 1, border(mode) if linear or s > 1 else 0)
        for n, m, s in zip(size, made, scales, strict=True)
    ]

    def rule(_: int, box: Box) -> TileStep:
        needs = [factor.need(r) for factor, r in zip(factors, box, strict=True)]
        source, target = tuple(need[0] for need in needs), tuple(need[1] for need in needs)
        return TileStep(target, {0: source}, inner=box)

    return rule


def reorder_input(site: Site) -> Rule:
    """ReorderInput: from [N, C, H, W], or with channels last, into blocks of all channels."""
    last = bool(site.attributes.get("channels_last", 0))
    channels = (0, site.shape(0)[-1 if last else 1])

    def rule(_: int, box: Box) -> TileStep:
        image, spatial = box[0], box[2:]
        return TileStep(
            box, {0: (image, *spatial, channels) if last else (image, channels, *spatial)}
        )

    return rule


def reorder_output(site: Site) -> Rule:
    """ReorderOutput: out of blocks of all channels."""
    last = bool(site.attributes.get("channels_last", 0))
    at = 3 if last else 1
    every, channels = (0, site.made()[at]), (0, site.shape(0)[1])

    def rule(_: int, box: Box) -> TileStep:
        if box[at] != every:
            raise CannotTile(f"{site.op}: channels in blocks cannot be cut")
        spatial = box[1:3] if last else box[2:]
        return TileStep(box, {0: (box[0], channels, *spatial)})

    return rule


def global_pool(site: Site) -> Rule:
    """GlobalAveragePool, GlobalMaxPool: only images can be cut."""
    size = site.shape(0)
    return lambda _, box: TileStep(box, {0: (box[0], *whole(size[1:]))})


RULES: dict[str, Callable[[Site], Rule]] = {
    "Conv": sliding.conv,
    **dict.fromkeys(("AveragePool", "MaxPool"), with_whole_channels(sliding.pool)),
    **dict.fromkeys(("GlobalAveragePool", "GlobalMaxPool"), with_whole_channels(global_pool)),
    "ReorderInput": with_whole_channels(reorder_input),
    "ReorderOutput": reorder_output,
    "Upsample": with_whole_channels(upsample),
}
