"""Ops that only move elements: Slice, Split, Concat, Transpose, DepthToSpace, Gather,
GatherElements; and GridSample, which looks for them anywhere."""

from collections.abc import Sequence

import numpy as np

from onnxremat_rewriters.tile.boxes import Box, Range, whole
from onnxremat_rewriters.tile.pointwise import read
from onnxremat_rewriters.tile.view import CannotTile, Rule, Site, TileStep

_LEAST = -(2**63) + 1
"""As the end of a backward slice: past the first element."""


def concat(site: Site) -> Rule:
    """Concat: on its own axis only the inputs that a tile touches are read."""
    shapes = [site.shape(i) for i in range(len(site.node.input))]
    axis = site.attributes["axis"] % len(site.made())
    starts = [sum(shape[axis] for shape in shapes[:i]) for i in range(len(shapes))]

    def rule(_: int, box: Box) -> TileStep:
        lo, hi = box[axis]
        reads: dict[int, Box | None] = {}
        for i, (shape, start) in enumerate(zip(shapes, starts, strict=True)):
            part = max(lo - start, 0), min(hi - start, shape[axis])
            if part[0] < part[1]:
                reads[i] = (*box[:axis], part, *box[axis + 1 :])
        return TileStep(box, reads, crop=len(reads) == 1)

    return rule


def split(site: Site) -> Rule:
    """Split: an output is a crop of the input."""
    axis = site.attributes.get("axis", 0) % len(site.shape(0))
    sizes = [site.made(i)[axis] for i in range(len(site.node.output))]

    def rule(output: int, box: Box) -> TileStep:
        start = sum(sizes[:output])
        lo, hi = box[axis]
        return TileStep(
            box, {0: (*box[:axis], (lo + start, hi + start), *box[axis + 1 :])}, crop=True
        )

    return rule


def slice_(site: Site) -> Rule:
    """Slice: a crop if its steps are 1, else a Slice of what it steps over."""
    shape = site.shape(0)
    starts, steps = _slice_parameters(site, shape)
    made = site.made()

    def rule(_: int, box: Box) -> TileStep:
        ranges: list[Range] = []
        for (lo, hi), start, step in zip(box, starts, steps, strict=True):
            first, last = start + lo * step, start + (hi - 1) * step
            ranges.append((min(first, last), max(first, last) + 1))
        if all(step == 1 for step in steps):
            return TileStep(box, {0: tuple(ranges)}, crop=True)
        axes = [a for a in range(len(made)) if steps[a] != 1]
        begin = [0 if steps[a] > 0 else ranges[a][1] - ranges[a][0] - 1 for a in axes]
        end = [ranges[a][1] - ranges[a][0] if steps[a] > 0 else _LEAST for a in axes]
        values = (begin, end, axes, [steps[a] for a in axes])
        constants = {i + 1: np.array(v, np.int64) for i, v in enumerate(values)}
        return TileStep(box, {0: tuple(ranges)}, constants)

    return rule


def _slice_parameters(site: Site, shape: Sequence[int]) -> tuple[list[int], list[int]]:
    """Start and step on every axis."""
    rank = len(shape)
    if site.opset < 10:
        given_starts = list(site.integers("starts"))
        axes = list(site.integers("axes")) or list(range(len(given_starts)))
        given_steps = [1] * len(axes)
    else:
        given_starts = site.constant(1).ravel().tolist()
        n = len(given_starts)
        axes = site.constant(3).ravel().tolist() if site.has(3) else list(range(n))
        given_steps = site.constant(4).ravel().tolist() if site.has(4) else [1] * n
    starts, steps = [0] * rank, [1] * rank
    for axis, start, step in zip(axes, given_starts, given_steps, strict=True):
        size = shape[axis]
        start += size if start < 0 else 0
        starts[axis] = min(max(start, 0), size if step > 0 else size - 1)
        steps[axis] = step
    return starts, steps


def transpose(site: Site) -> Rule:
    """Transpose: the axes of the box change places."""
    rank = len(site.shape(0))
    perm = site.integers("perm") or tuple(reversed(range(rank)))
    inverse = [perm.index(a) for a in range(rank)]

    def rule(_: int, box: Box) -> TileStep:
        return TileStep(box, {0: tuple(box[a] for a in inverse)})

    return rule


def depth_to_space(site: Site) -> Rule:
    """DepthToSpace: tiles are blown up to whole blocks; channels and images are not cut."""
    block = int(site.attributes["blocksize"])
    channels = (0, site.shape(0)[1])

    def rule(_: int, box: Box) -> TileStep:
        if box[1] != (0, site.made()[1]):
            raise CannotTile(f"{site.op}: channels cannot be cut")
        small = tuple((lo // block, -(-hi // block)) for lo, hi in box[2:])
        large = tuple((lo * block, hi * block) for lo, hi in small)
        return TileStep((*box[:2], *large), {0: (box[0], channels, *small)})

    return rule


def space_to_depth(site: Site) -> Rule:
    """SpaceToDepth: the blocks of a tile are read whole."""
    block = int(site.attributes["blocksize"])
    channels = (0, site.shape(0)[1])

    def rule(_: int, box: Box) -> TileStep:
        if box[1] != (0, site.made()[1]):
            raise CannotTile(f"{site.op}: channels cannot be cut")
        large = tuple((lo * block, hi * block) for lo, hi in box[2:])
        return TileStep(box, {0: (box[0], channels, *large)})

    return rule


def gather(site: Site) -> Rule:
    """Gather: every axis but the gathered one, and the axes of the indices if it does not."""
    data = site.shape(0)
    indices = site.shape(1)
    axis = site.attributes.get("axis", 0) % len(data)
    n = len(indices)

    def rule(_: int, box: Box) -> TileStep:
        chosen = box[axis : axis + n]
        source = (*box[:axis], (0, data[axis]), *box[axis + n :])
        full = source == whole(data) and site.fixed[0]
        whole_indices = chosen == whole(indices) and site.fixed[1]
        return TileStep(box, {0: None if full else source, 1: None if whole_indices else chosen})

    return rule


def gather_elements(site: Site) -> Rule:
    """GatherElements: the indices of a tile; their box of the data, whole on the gathered axis."""
    data = site.shape(0)
    axis = site.attributes.get("axis", 0) % len(data)

    def rule(_: int, box: Box) -> TileStep:
        source = (*box[:axis], (0, data[axis]), *box[axis + 1 :])
        return TileStep(box, {0: read(site, 0, source), 1: read(site, 1, box)})

    return rule


def grid_sample(site: Site) -> Rule:
    """GridSample: the positions of a tile; they lie anywhere in the image, which stays whole."""
    size = site.shape(0)

    def rule(_: int, box: Box) -> TileStep:
        image = (*box[:2], *whole(size[2:]))
        positions = (box[0], *box[2:], (0, len(size) - 2))
        return TileStep(box, {0: read(site, 0, image), 1: read(site, 1, positions)})

    return rule
