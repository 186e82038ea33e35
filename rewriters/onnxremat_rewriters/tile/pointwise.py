"""Ops that make each element of the output from the elements at the same place."""

from collections.abc import Sequence

from onnxremat_rewriters.tile.boxes import Box
from onnxremat_rewriters.tile.view import CannotTile, Rule, Site, TileStep


def broadcast_box(shape: Sequence[int], box: Box) -> Box:
    """What an operand of `shape` gives to `box` of the result (aligned at the last axis)."""
    behind = box[len(box) - len(shape) :]
    return tuple((0, 1) if size == 1 else r for size, r in zip(shape, behind, strict=True))


def read(site: Site, i: int, box: Box) -> Box | None:
    """`box` of input i; None if that is all of it and the input is a constant."""
    shape = site.shape(i)
    full = all(r == (0, size) for r, size in zip(box, shape, strict=True))
    return None if full and site.fixed[i] else box


def elementwise(site: Site) -> Rule:
    """All inputs are broadcast to the output."""
    given = [i for i in range(len(site.node.input)) if site.has(i)]
    shapes = {i: site.shape(i) for i in given}
    if any(len(shape) > len(site.made()) for shape in shapes.values()):
        raise CannotTile(f"{site.op}: an input has more axes than the output")

    def rule(output: int, box: Box) -> TileStep:
        if output:
            raise CannotTile(f"{site.op}: output {output} cannot be cut")
        return TileStep(box, {i: read(site, i, broadcast_box(shapes[i], box)) for i in given})

    return rule


def first_only(site: Site) -> Rule:
    """The first input has the shape of the output; the others are whole (bounds, ratios)."""
    others = {i: None for i in range(1, len(site.node.input)) if site.has(i)}

    def rule(output: int, box: Box) -> TileStep:
        if output:
            raise CannotTile(f"{site.op}: output {output} cannot be cut")
        return TileStep(box, {0: box, **others})

    return rule


def dropout(site: Site) -> Rule:
    """Dropout out of training: a copy."""
    if site.has(2) and bool(site.constant(2).any()):
        raise CannotTile(f"{site.op}: in training mode it is random")
    return first_only(site)


def per_channel(site: Site) -> Rule:
    """BatchNormalization: the other inputs are vectors along axis 1."""
    if site.attributes.get("training_mode", 0):
        raise CannotTile(f"{site.op}: in training mode it needs statistics of the whole tensor")
    return _along(site, 1, range(1, len(site.node.input)))


def quantize(site: Site) -> Rule:
    """QuantizeLinear, DequantizeLinear: one scale, or a vector of them along an axis."""
    if site.attributes.get("block_size", 0):
        raise CannotTile(f"{site.op}: blocks of scales cannot be followed")
    rank = len(site.shape(0))
    return _along(site, site.attributes.get("axis", 1) % max(rank, 1), range(1, 3))


def _along(site: Site, axis: int, vectors: Sequence[int]) -> Rule:
    given = [i for i in vectors if site.has(i)]
    long = {i: len(site.shape(i)) == 1 and site.shape(i)[0] > 1 for i in given}

    def rule(output: int, box: Box) -> TileStep:
        if output:
            raise CannotTile(f"{site.op}: output {output} cannot be cut")
        others = {i: read(site, i, (box[axis],)) if long[i] else None for i in given}
        return TileStep(box, {0: box, **others})

    return rule
