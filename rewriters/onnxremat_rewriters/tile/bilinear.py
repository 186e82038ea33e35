"""Resize of pictures, linear, at any scale and with corners aligned: a tile out of other nodes.

A kernel that is given a part of a picture works out positions from the part's own length, and
rounds them otherwise. But positions and weights depend on lengths alone, so they are computed here
as the kernel does (float32, each operation rounded; 300 random sizes and scales).

Rows with aligned corners: mode tf_crop_and_resize takes a first position and a step for the rows,
and with a region from 0 to 1 makes columns as align_corners does. Positions are rounded, so steps
differ in their last bits: the tile is made in short runs of rows with the same step, by a Resize
each (two rows always have one), at little cost.

Anything else: Gather, Mul and Add in the order of the kernel,

    (dx2 dy2) X11 + (dx1 dy2) X21 + (dx2 dy1) X12 + (dx1 dy1) X22

which takes several times as long.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnxremat_rewriters.tile.boxes import Box, Range, extent
from onnxremat_rewriters.tile.view import Given, Site, TileStep, ValuePart

Floats = NDArray[np.float32]
Places = NDArray[np.int64]
Read = Given | int | NDArray[Any] | None
MODES = ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel")
LONGEST_RUN = 9
_F = np.float32


@dataclass(frozen=True)
class Axis:
    """For each output of an axis its position, as computed and within the picture, the two inputs
    before and behind it, and its distance from each: the weight of the other."""

    unclipped: Floats
    at: Floats
    first: Places
    second: Places
    from_first: Floats
    from_second: Floats

    def need(self, wanted: Range) -> Range:
        """The inputs that a range of outputs reads."""
        lo, hi = wanted
        return int(self.first[lo:hi].min()), int(self.second[lo:hi].max()) + 1


def is_bilinear(site: Site, size: Sequence[int], scales: Sequence[float]) -> bool:
    """Whether the kernel for pictures in planes, of floats, runs; and Gather is there to take its
    place."""
    kind = site.inputs[0]
    planes = len(size) == 4 and scales[0] == scales[1] == 1
    return planes and kind is not None and kind.dtype == "float" and site.op == "Resize"


def bilinear(
    transform: str, size: Sequence[int], made: Sequence[int], scales: Sequence[float]
) -> Callable[[Box], TileStep] | None:
    """From a box to the step that makes it; None if positions of that kind are not known."""
    if transform not in MODES:
        return None
    rows, columns = (axis(transform, size[a], made[a], scales[a]) for a in (2, 3))
    aligned = transform == "align_corners" and float(columns.unclipped.max()) <= size[3] - 1

    def step(box: Box) -> TileStep:
        down, across = rows.need(box[2]), columns.need(box[3])
        parts = None
        if aligned and box[3] == (0, made[3]):
            across = (0, size[3])
            parts = _in_runs(extent(box), size[3], rows, box[2], down)
        parts = parts or _one_by_one(extent(box), (rows, columns), box[2:], (down, across))
        return TileStep(box, {0: (*box[:2], down, across)}, parts=parts)

    return step


def axis(transform: str, size: int, made: int, scale: float) -> Axis:
    """Positions of the outputs of one axis, as the kernel rounds them."""
    at = np.arange(made, dtype=_F)
    if scale != 1:
        at = _positions(transform, at, size, made, _F(scale))
    unclipped = at
    at = np.clip(at, _F(0), _F(size - 1))
    first = at.astype(np.int64)
    second = np.minimum(first + 1, size - 1)
    before, behind = np.abs(at - first.astype(_F)), np.abs(at - second.astype(_F))
    before[first == second] = behind[first == second] = _F(0.5)
    return Axis(unclipped, at, first, second, before, behind)


def _positions(transform: str, at: Floats, size: int, made: int, scale: np.float32) -> Floats:
    if transform == "align_corners":
        return at * _F(0) if made == 1 else at * _F(size - 1) / _F(made - 1)
    if transform == "asymmetric":
        return at / scale
    if transform == "pytorch_half_pixel" and made == 1:
        return at * _F(0)
    return (at + _F(0.5)) / scale - _F(0.5)


def _in_runs(
    made: tuple[int, ...], width: int, rows: Axis, wanted: Range, read: Range
) -> tuple[ValuePart, ...] | None:
    """Runs of rows, each cut off and resized, and joined; None if a row cannot be hit."""
    found: list[ValuePart] = []
    pieces: list[int] = []
    start, stop = wanted
    while start < stop:
        run = next(
            (
                one
                for count in range(min(LONGEST_RUN, stop - start), 0, -1)
                if (one := _run(rows, (start, start + count), read)) is not None
            ),
            None,
        )
        if run is None:
            return None
        found += run.parts(made, width, len(found))
        pieces.append(len(found) - 1)
        start += run.made
    if len(pieces) > 1:
        found.append(ValuePart("Concat", tuple(pieces), made, {"axis": 2}))
    return tuple(found)


@dataclass(frozen=True)
class _BilinearRun:
    """`made` rows from the rows `read` of what the tile reads, at the positions that the region
    from `start` to `end` of those means."""

    made: int
    read: Range
    start: np.float32
    end: np.float32

    def parts(self, shape: tuple[int, ...], width: int, before: int) -> tuple[ValuePart, ValuePart]:
        """A Slice of lines of `width`, and a Resize, behind so many parts."""
        lo, hi = self.read
        size = (*shape[:2], self.made, shape[3])
        region = [0, 0, self.start, 0, 1, 1, self.end, 1 if shape[3] > 1 else 0]
        cut: tuple[Read, ...] = (Given(0), *(np.array([v], np.int64) for v in (lo, hi, 2)))
        resize = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
        reads: tuple[Read, ...] = (before, np.array(region, _F), None, np.array(size, np.int64))
        return ValuePart("Slice", cut, (*size[:2], hi - lo, width)), ValuePart(
            "Resize", reads, size, resize
        )


def _run(rows: Axis, wanted: Range, read: Range) -> _BilinearRun | None:
    """The run of rows `wanted`; None if the kernel would put one elsewhere."""
    lo, hi = rows.need(wanted)
    count = wanted[1] - wanted[0]
    gaps = 1
    while gaps < hi - lo - 1 or gaps + 1 == count:
        gaps *= 2
    lo = min(lo, read[1] - gaps - 1)
    if lo < read[0]:
        return None
    at = rows.at[slice(*wanted)] - _F(lo)
    start = at[0] / _F(gaps)
    end = start if count == 1 else start + (at[-1] - at[0]) / _F(gaps)
    if not np.array_equal(_cropped(count, gaps + 1, start, end), at):
        return None
    return _BilinearRun(count, (lo - read[0], lo - read[0] + gaps + 1), start, end)


def _cropped(made: int, size: int, start: np.float32, end: np.float32) -> Floats:
    """Positions in mode tf_crop_and_resize, as the kernel rounds them."""
    last = _F(size - 1)
    if made == 1:
        return np.array([_F(0.5) * (start + end) * last], _F)
    index = np.arange(made, dtype=_F)
    return start * last + (index * (end - start) * last) / _F(made - 1)


def _one_by_one(
    made: tuple[int, ...], axes: tuple[Axis, Axis], wanted: Sequence[Range], read: Sequence[Range]
) -> tuple[ValuePart, ...]:
    """The nodes of a tile: two Gathers of columns, of each of them two of rows; weights; sums."""
    rows, columns = axes
    (top, bottom), (left, right) = wanted
    height = read[0][1] - read[0][0]
    found: list[ValuePart] = []

    def add(op: str, reads: tuple[Read, ...], shape: tuple[int, ...], **attributes: Any) -> int:
        found.append(ValuePart(op, reads, shape, attributes))
        return len(found) - 1

    lines = [(columns.first, columns.from_second), (columns.second, columns.from_first)]
    wide = [
        add(
            "Gather",
            (Given(0), side[left:right] - read[1][0]),
            (*made[:2], height, made[3]),
            axis=3,
        )
        for side, _ in lines
    ]
    total = None
    for near, down in ((rows.first, rows.from_second), (rows.second, rows.from_first)):
        for taken, (_, across) in zip(wide, lines, strict=True):
            corner = add("Gather", (taken, near[top:bottom] - read[0][0]), made, axis=2)
            factors = across[None, left:right], down[top:bottom, None]
            share = add("Mul", factors, made[2:])
            product = add("Mul", (share, corner), made)
            total = product if total is None else add("Add", (total, product), made)
    return tuple(found)
