"""Resize and Upsample by whole factors.

A tile begins and ends at whole multiples of the factor and has a border of input elements around
it (as many as the interpolation looks at), so that what the kernel does at the ends of the tile
falls into what is cut off. Positions are then the same but for a whole number; with factors that
are powers of two their fractions have the same bits. Other positions of linear interpolation in
pictures are worked out beforehand (`bilinear`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnxremat_rewriters.tile.bilinear import bilinear, is_bilinear
from onnxremat_rewriters.tile.boxes import Box, Range, extent
from onnxremat_rewriters.tile.view import CannotTile, Rule, Site, TileStep

_BORDER = {"nearest": 1, "linear": 1, "cubic": 2}
_MODES = ("half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "asymmetric")


@dataclass(frozen=True)
class Factor:
    """One axis: `size` inputs, `made` outputs; `up` outputs for an input or `down` inputs for an
    output. `border`: inputs on either side that a tile reads besides its own."""

    size: int
    made: int
    up: int
    down: int
    border: int

    def need(self, wanted: Range) -> tuple[Range, Range]:
        """Inputs read, and outputs made from them, for a range of outputs."""
        if wanted == (0, self.made):
            return (0, self.size), wanted
        lo = wanted[0] * self.down // self.up - self.border
        hi = -(-wanted[1] * self.down // self.up) + self.border
        lo = max(0, lo) // self.down * self.down
        hi = -(-hi // self.down) * self.down
        if hi >= self.size // self.down * self.down:
            return (lo, self.size), (lo * self.up // self.down, self.made)
        return (lo, hi), (lo * self.up // self.down, hi * self.up // self.down)


def border(mode: str) -> int:
    """How many inputs on either side the interpolation looks at."""
    return _BORDER[mode]


def resize(site: Site) -> Rule:
    """Resize and Upsample. Axes whose factor is not handled must be whole."""
    size, made = site.shape(0), site.made()
    mode, transform = _mode(site)
    scales = _scales(site, size, made)
    by_sizes = site.op == "Resize" and site.has(3)
    axes = [a % len(size) for a in site.integers("axes")] or list(range(len(size)))
    others = {i: None for i in range(1, len(site.node.input)) if site.has(i) and i != 3}
    factors: list[Factor | str] = []
    for a in range(len(size)):
        try:
            factors.append(_factor(site, mode, transform, size[a], made[a], scales[a]))
        except CannotTile as error:
            factors.append(str(error))
    sampled = None
    if mode == "linear" and is_bilinear(site, size, scales):
        sampled = bilinear(transform, size, made, scales)

    def rule(_: int, box: Box) -> TileStep:
        if sampled is not None and any(
            isinstance(factor, str) and r != (0, m)
            for factor, r, m in zip(factors, box, made, strict=True)
        ):
            return sampled(box)
        source, target = [], []
        for factor, r, n, m in zip(factors, box, size, made, strict=True):
            if r == (0, m):
                read, makes = (0, n), r
            elif isinstance(factor, str):
                raise CannotTile(factor)
            else:
                read, makes = factor.need(r)
            source.append(read)
            target.append(makes)
        constants = {}
        if by_sizes:
            shape = extent(tuple(target))
            constants[3] = np.array([shape[a] for a in axes], np.int64)
        return TileStep(tuple(target), {0: tuple(source), **others}, constants, inner=box)

    return rule


def _mode(site: Site) -> tuple[str, str]:
    mode = site.attributes.get("mode", b"nearest").decode()
    default = b"half_pixel" if site.op == "Resize" and site.opset >= 11 else b"asymmetric"
    transform = site.attributes.get("coordinate_transformation_mode", default).decode()
    if site.attributes.get("antialias", 0):
        raise CannotTile(f"{site.op}: with antialias it looks at as many elements as it likes")
    if site.attributes.get("keep_aspect_ratio_policy", b"stretch") != b"stretch":
        raise CannotTile(f"{site.op}: a policy for the aspect ratio is not handled")
    return mode, transform


def _scales(site: Site, size: Sequence[int], made: Sequence[int]) -> list[float]:
    """The factor of every axis as the runtime takes it."""
    at = 1 if site.op == "Upsample" or site.opset < 11 else 2
    if site.has(at) and site.constant(at).size:
        given = [float(v) for v in site.constant(at).ravel()]
    elif site.op == "Upsample" and "scales" in site.attributes:
        given = [float(v) for v in site.attributes["scales"]]
    else:
        return [float(np.float32(m) / np.float32(n)) for n, m in zip(size, made, strict=True)]
    axes = [a % len(size) for a in site.integers("axes")] or list(range(len(size)))
    found = [1.0] * len(size)
    for a, value in zip(axes, given, strict=True):
        found[a] = value
    return found


def _factor(site: Site, mode: str, transform: str, size: int, made: int, scale: float) -> Factor:
    if scale == 1 and size == made:
        # At the last element the kernel of linear weighs it twice, by a half each, and rounds.
        return Factor(size, made, 1, 1, _BORDER[mode] if mode != "nearest" else 0)
    if transform not in _MODES:
        raise CannotTile(f"{site.op}: positions in mode {transform} depend on the whole length")
    up, down = (int(scale), 1) if scale >= 1 else (1, round(1 / scale))
    power_of_two = (up * down) & (up * down - 1) == 0
    if up / down != scale or not (power_of_two or (mode == "nearest" and down == 1)):
        raise CannotTile(f"{site.op}: tiles at a scale of {scale:.4g} round otherwise")
    if transform == "half_pixel_symmetric" and size * up != made * down:
        raise CannotTile(f"{site.op}: positions in mode {transform} depend on the whole length")
    return Factor(size, made, up, down, _BORDER[mode])
