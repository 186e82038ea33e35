"""Find offsets for blocks: greedy rules, then repaired orders, then search within smaller arenas."""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from onnxremat.offsets._problem import Ints, Problem, as_problem
from onnxremat.offsets.blocks import Block, Placement

SEARCHED_BLOCKS = 4000
"""Above this many blocks one dive of the search takes too long."""

FIRST_NODES = 3000
"""Nodes of a search attempt in the first round; each later round has twice as many."""

SLICE_WORK = 2_000_000
"""Steps of inner loops between two looks at the clock: some milliseconds."""

NOISE = (0.0, 0.1, 0.3)
"""How much of a block's priority is random, by round."""

CLOSER_AIMS = 4
"""How often the aim is moved half the way up to the best arena before it starts again."""


def place(
    blocks: Sequence[Block],
    *,
    alignment_bytes: int = 64,
    seconds: float = 10.0,
    capacity_bytes: int | None = None,
    iterations: int | None = None,
    seed: int = 0,
) -> Placement:
    """A placement of `blocks` in a small arena, the smallest if it says `proved`.

    `capacity_bytes` ends the work as soon as the arena is no larger, or that is proved impossible
    (`bound_bytes` is above it); without it the work ends when the arena is proved the smallest.
    It also ends after `seconds`, with the best found, and after `iterations` attempts of the
    search (None: only the time limits). The same blocks, options, seed and iterations give the
    same placement; the clock only cuts it short.

    Raises ValueError if the alignment is not positive. O(n^2) for the greedy rules; the search is
    exponential. It compiles on first use, which may take half a minute, cached on disk.
    """
    if alignment_bytes < 1:
        raise ValueError(f"the alignment is {alignment_bytes} bytes")
    deadline = time.monotonic() + seconds
    problem = as_problem(blocks, alignment_bytes)
    enough = None if capacity_bytes is None else capacity_bytes // problem.unit_bytes
    best = _Best(problem, enough)
    if len(problem.size):
        for found in _greedy(problem):
            best.offer(*found)
            if best.is_enough or time.monotonic() >= deadline:
                break
        if not best.is_enough and len(problem.size) <= SEARCHED_BLOCKS:
            _search(problem, best, deadline, math.inf if iterations is None else iterations, seed)
    offsets = [0] * len(blocks)
    for i, offset in zip(problem.index, best.offsets, strict=True):
        offsets[i] = int(offset) * problem.unit_bytes
    return Placement(
        tuple(offsets),
        best.arena * problem.unit_bytes,
        best.bound * problem.unit_bytes,
        best.method,
        alignment_bytes,
    )


class _Best:
    """The best offsets so far, in units, and the proved bound."""

    def __init__(self, problem: Problem, enough: int | None) -> None:
        """`enough` is the capacity in units, if there is one."""
        self.bound = problem.peak
        self.arena = int(problem.size.sum())
        self.offsets: Ints = np.cumsum(problem.size) - problem.size
        self.method = "one after the other"
        self._enough = enough

    @property
    def is_enough(self) -> bool:
        """Whether nothing is left to find."""
        if self.arena <= self.bound:
            return True
        return self._enough is not None and (
            self.arena <= self._enough or self.bound > self._enough
        )

    def offer(self, offsets: Ints, method: str) -> None:
    	...
