"""Reshape, Squeeze, Unsqueeze, Flatten, Expand: axes that are merged, split, added or repeated.

A box of the output is followed as a range of elements in memory: both shapes fall into groups of
axes with the same number of elements, and within a group a part is a box in both shapes if its
elements are consecutive and it begins and ends with whole inner axes. A part that does not is
blown up until it does.
"""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from onnxremat_rewriters.tile.boxes import Box, Range, extent
from onnxremat_rewriters.tile.pointwise import broadcast_box, read
from onnxremat_rewriters.tile.view import CannotTile, Rule, Site, TileStep

Groups = tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]
"""(axes before, axes after) with the same number of elements; axes of size 1 are in no group."""


def groups(before: Sequence[int], after: Sequence[int]) -> Groups:
    """The smallest groups of axes with equal products, in order."""
    left = [a for a, size in enumerate(before) if size != 1]
    right = [a for a, size in enumerate(after) if size != 1]
    found = []
    i = j = 0
    while i < len(left) and j < len(right):
        start, begin = i, j
        m, n = before[left[i]], after[right[j]]
        i, j = i + 1, j + 1
        while m != n:
            if m < n:
                m, i = m * before[left[i]], i + 1
            else:
                n, j = n * after[right[j]], j + 1
        found.append((tuple(left[start:i]), tuple(right[begin:j])))
    return tuple(found)


def _span(box: Sequence[Range], sizes: Sequence[int]) -> Range:
    """The elements that the smallest consecutive range around a box has."""
    lo, hi = 0, prod(sizes)
    for (start, stop), size in zip(box, sizes, strict=True):
        inner = (hi - lo) // size
        lo, hi = lo + start * inner, lo + stop * inner
        if stop - start > 1:
            break
    return lo, hi


def _cover(span: Range, sizes: Sequence[int]) -> Box:
    """The smallest box of consecutive elements that holds a range of them."""
    lo, hi = span
    box = []
    inner = prod(sizes)
    for a, size in enumerate(sizes):
        inner //= size
        start, stop = lo // inner, -(-hi // inner)
        box.append((start, stop))
        if stop - start > 1:
            return (*box, *((0, s) for s in sizes[a + 1 :]))
        lo, hi = lo - start * inner, hi - start * inner
    return tuple(box)


def same_elements(before: Sequence[int], after: Sequence[int], box: Box) -> tuple[Box, Box]:
    """A box around `box` of the shape `after`, and the box of `before` with the same elements."""
    source: list[Range] = [(0, 1)] * len(before)
    target: list[Range] = [(0, 1)] * len(after)
    for left, right in groups(before, after):
        sizes, made = [before[a] for a in left], [after[a] for a in right]
        part = tuple(box[a] for a in right)
        if len(left) == len(right) == 1:
            source[left[0]] = target[right[0]] = part[0]
            continue
        span = _span(part, made)
        while True:
            inner = _cover(span, sizes)
            outer = _cover(_span(inner, sizes), made)
            if _span(outer, made) == span:
                break
            span = _span(outer, made)
        for a, r in zip(left, inner, strict=True):
            source[a] = r
        for a, r in zip(right, outer, strict=True):
            target[a] = r
    return tuple(source), tuple(target)


def reshape(site: Site) -> Rule:
    """Reshape, with the shape of the tile in place of the given one."""
    before, after = site.shape(0), site.made()
    by_input = site.opset >= 5

    def rule(_: int, box: Box) -> TileStep:
        source, target = same_elements(before, after, box)
        shape = np.array(extent(target), np.int64)
        if by_input:
            return TileStep(target, {0: source}, {1: shape})
        return TileStep(target, {0: source}, attributes={"shape": shape.tolist()})

    return rule


def keeps_its_form(site: Site) -> Rule:
    """Unsqueeze and Flatten: the same node does for a part."""
    before, after = site.shape(0), site.made()
    others = {i: None for i in range(1, len(site.node.input)) if site.has(i)}

    def rule(_: int, box: Box) -> TileStep:
        source, target = same_elements(before, after, box)
        return TileStep(target, {0: source, **others})

    return rule


def squeeze(site: Site) -> Rule:
    """Squeeze, with its axes named: an axis of the tile may have one element by chance."""
    before, after = site.shape(0), site.made()
    rank = len(before)
    if site.has(1):
        axes = [int(a) % rank for a in site.constant(1).ravel()]
    elif site.integers("axes"):
        axes = [a % rank for a in site.integers("axes")]
    else:
        axes = [a for a, size in enumerate(before) if size == 1]

    def rule(_: int, box: Box) -> TileStep:
        source, target = same_elements(before, after, box)
        if site.opset >= 13:
            return TileStep(target, {0: source}, {1: np.array(axes, np.int64)})
        return TileStep(target, {0: source}, attributes={"axes": axes})

    return rule


def expand(site: Site) -> Rule:
    """Expand to the shape of the tile."""
    shape = site.shape(0)
    if len(shape) > len(site.made()):
        raise CannotTile(f"{site.op}: its input has more axes than its output")

    def rule(_: int, box: Box) -> TileStep:
        size = np.array(extent(box), np.int64)
        return TileStep(box, {0: read(site, 0, broadcast_box(shape, box))}, {1: size})

    return rule


def pad(site: Site) -> Rule:
    """Pad: a tile pads where it reaches over the border, and holds the border if it does."""
    shape, made = site.shape(0), site.made()
    mode = site.attributes.get("mode", b"constant").decode()
    before = _pads_before(site, len(shape))
    mirrored = mode == "reflect"
    if mode not in ("constant", "edge", "reflect"):
        raise CannotTile(f"{site.op}: mode {mode} takes elements from the other end")

    def one(lo: int, hi: int, size: int, p: int, whole: int) -> tuple[Range, Range, Range]:
        """What is made, what is read, and the pads, of one axis."""
        if (lo, hi) == (0, whole):
            return (lo, hi), _clip(0 - p, whole - p, size), (max(0, p), max(0, whole - p - size))
        # Positions in the input, negative before it. The border itself has to be in the tile.
        start, stop = min(lo - p, size - 1), max(hi - p, 1)
        low, high = max(0, -start), max(0, stop - size)
        first, last = max(0, start), min(size, stop)
        if mirrored:
            last = max(last, min(size, low + 1))
            first = min(first, max(0, size - 1 - high))
        return (p + first - low, p + last + high), (first, last), (low, high)

    def rule(_: int, box: Box) -> TileStep:
        parts = [one(*r, *sizes) for r, *sizes in zip(box, shape, before, made, strict=True)]
        pads = [q[2][0] for q in parts] + [q[2][1] for q in parts]
        target, source = tuple(q[0] for q in parts), tuple(q[1] for q in parts)
        if site.opset < 11:
            return TileStep(target, {0: source}, attributes={"pads": pads})
        value: dict[int, Box | None] = {2: None} if site.has(2) else {}
        return TileStep(target, {0: source, **value}, {1: np.array(pads, np.int64)})

    return rule


def _clip(lo: int, hi: int, size: int) -> Range:
    return max(0, lo), min(size, hi)


def _pads_before(site: Site, rank: int) -> list[int]:
    if site.opset < 11:
        given: Sequence[Any] = site.integers("pads")
        axes: Sequence[Any] = range(rank)
    else:
        given = site.constant(1).ravel().tolist()
        axes = site.constant(3).ravel().tolist() if site.has(3) else range(rank)
    found = [0] * rank
    for i, axis in enumerate(axes):
        found[axis % rank] = int(given[i])
    return found
