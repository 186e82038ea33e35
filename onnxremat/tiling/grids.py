"""Which grids of tiles are tried for a value, in families of more and more tiles.

Strips on one axis first; where two axes can be cut, both: above four tiles that recomputes less.
Strips that carry what neighbours share recompute nothing, but hold it and copy all to put it
together; in columns of their own they hold a part of it only.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod


@dataclass(frozen=True)
class Grid:
    """(axis, tiles) for one or two axes, outer loop first; whether tiles along the last one carry
    what they share (see `Region`)."""

    axes: tuple[tuple[int, int], ...]
    carry: bool = False

    @property
    def tiles(self) -> int:
        """How many tiles it has."""
        return prod(count for _, count in self.axes)

    @property
    def columns(self) -> int:
        """How many runs of tiles along the last axis there are."""
        return self.tiles // self.axes[-1][1]


Family = tuple[Grid, ...]

COUNTS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
SQUARES = (
    (2, 2), (3, 2), (3, 3), (4, 3), (4, 4), (6, 4), (6, 6), (8, 6), (8, 8), (12, 8), (12, 12),
    (16, 12), (16, 16),
)  # fmt: skip
COLUMNS = (2, 4)
"""So many columns are tried for strips that carry."""
LONG = ((4, 2), (8, 2), (8, 3), (12, 3), (16, 4), (24, 4), (32, 4), (32, 8))
"""More rows than columns: rows of tiles are joined first, and shorter ones need less for it."""


def single_axes(shape: Sequence[int]) -> tuple[int, ...]:
    """The axes worth trying alone: all of more than one element but the last of a matrix, which is
    summed over or has weights of its own. The last of three is time in [batch, channels, time]."""
    last = len(shape) - 1
    return tuple(a for a, size in enumerate(shape) if size > 1 and (a < last or last >= 2))


def strips(shape: Sequence[int], axis: int) -> Family:
    """Strips on one axis, one for each element at the end if they are few."""
    size = shape[axis]
    counts = [k for k in COUNTS if k < size]
    if size <= 2 * COUNTS[-1]:
        counts.append(size)
    return tuple(Grid(((axis, k),)) for k in counts)


def pairs(shape: Sequence[int], axes: Sequence[int]) -> tuple[Family, ...]:
    """Grids on two of the axes that can be cut alone."""
    found: list[Family] = []
    for a, b in pairwise(axes):
        if b == a + 1 and a >= 2:
            for kinds in (SQUARES, LONG):
                fits = [(x, y) for x, y in kinds if x < shape[a] and y < shape[b]]
                found.append(tuple(Grid(((a, x), (b, y))) for x, y in fits))
        elif shape[a] <= COUNTS[-1]:
            found.append(tuple(Grid(((a, shape[a]), (b, k))) for k in COUNTS if k < shape[b]))
    return tuple(family for family in found if family)


def carrying(shape: Sequence[int], axes: Sequence[int]) -> tuple[Family, ...]:
    """Strips that carry, on the first axis of a picture or sequence that can be cut; also in a few
    columns."""
    spatial = [a for a in axes if a >= 2]
    if not spatial:
        return ()
    rows = spatial[0]
    plain = strips(shape, rows)
    found = [tuple(Grid(grid.axes, True) for grid in plain)]
    for columns in COLUMNS:
        if len(spatial) > 1 and columns < shape[spatial[1]]:
            outer = (spatial[1], columns)
            found.append(tuple(Grid((outer, *grid.axes), True) for grid in plain))
    return tuple(found)
