"""Blocks as arrays: padded sizes in their common unit, lifetimes in maximal sections."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onnxremat.offsets.blocks import Block, padded

Ints = npt.NDArray[np.int64]


class PlacementProblem(NamedTuple):
    """Blocks that take room, as arrays.

    `source[i]` is where block i stands among all blocks. It lives in sections
    `[first[i], stop[i])` and takes `size[i]` units of `unit_bytes`. Two blocks live at the same
    step if and only if they share a section. `peak` is the live peak in units.
    """

    source: Ints
    first: Ints
    stop: Ints
    size: Ints
    sections: int
    unit_bytes: int
    peak: int


def as_problem(blocks: Sequence[Block], alignment_bytes: int) -> PlacementProblem:
    """The arrays of `blocks`, empty blocks left out. O(n log n).

    A section is a start of a block such that a block ends before the next start: there the set of
    blocks alive is maximal, so no other step need be looked at. Some justified placement has the
    smallest arena, and its offsets are sums of sizes: nothing is lost by counting in units.
    """
    index = [i for i, block in enumerate(blocks) if block.nbytes]
    size = np.array([padded(blocks[i].nbytes, alignment_bytes) for i in index], dtype=np.int64)
    start = np.array([blocks[i].start for i in index], dtype=np.int64)
    end = np.array([blocks[i].end for i in index], dtype=np.int64)
    unit = int(np.gcd.reduce(size)) or alignment_bytes
    size //= unit
    steps = np.unique(start)
    earliest_end = np.searchsorted(np.sort(end), steps, side="right")
    ends_between = np.diff(earliest_end, append=len(end))
    steps = steps[ends_between > 0]
    first = np.searchsorted(steps, start)
    stop = np.searchsorted(steps, end)
    change = np.zeros(len(steps) + 1, dtype=np.int64)
    np.add.at(change, first, size)
    np.subtract.at(change, stop, size)
    peak = int(np.cumsum(change).max(initial=0))
    return PlacementProblem(
        np.array(index, dtype=np.int64), first, stop, size, len(steps), unit, peak
    )
