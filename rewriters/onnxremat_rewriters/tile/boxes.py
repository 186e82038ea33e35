"""Boxes: a half-open range of indices on every axis of a tensor."""

from collections.abc import Sequence
from itertools import pairwise

Range = tuple[int, int]
Box = tuple[Range, ...]


def whole(shape: Sequence[int]) -> Box:
    """The box of all elements."""
    return tuple((0, size) for size in shape)


def extent(box: Box) -> tuple[int, ...]:
    """The shape of what is in the box."""
    return tuple(stop - start for start, stop in box)


def hull(a: Box, b: Box) -> Box:
    """The smallest box that holds both."""
    return tuple((min(p[0], q[0]), max(p[1], q[1])) for p, q in zip(a, b, strict=True))


def common(a: Box, b: Box) -> Box | None:
    """What lies in both; None if nothing does."""
    found = tuple((max(p[0], q[0]), min(p[1], q[1])) for p, q in zip(a, b, strict=True))
    return found if all(start < stop for start, stop in found) else None


def holds(outer: Box, inner: Box) -> bool:
    """Whether all of `inner` lies in `outer`."""
    return all(o[0] <= i[0] and i[1] <= o[1] for o, i in zip(outer, inner, strict=True))


def partial_axes(box: Box, shape: Sequence[int]) -> tuple[int, ...]:
    """The axes on which the box leaves out a part of the tensor."""
    return tuple(a for a, (r, size) in enumerate(zip(box, shape, strict=True)) if r != (0, size))


def cuts(size: int, tiles: int, step: int = 1) -> tuple[Range, ...]:
    """`tiles` ranges that cover `size`, nearly equal, with bounds that are multiples of `step`.

    Raises ValueError if there are fewer multiples than tiles.
    """
    steps = -(-size // step)
    if not 1 <= tiles <= steps:
        raise ValueError(f"{size} elements in steps of {step} cannot be cut into {tiles} tiles")
    bounds = [min(size, steps * i // tiles * step) for i in range(tiles + 1)]
    return tuple(pairwise(bounds))
