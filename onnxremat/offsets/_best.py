"""The best offsets found so far, and when to stop looking for better ones."""

import time

import numpy as np

from onnxremat.offsets._problem import Ints, PlacementProblem


class Best:
    """Offsets, arena and proved bound in units of the problem; a clock.

    `enough` is an arena that ends the work, if there is one.
    """

    def __init__(self, problem: PlacementProblem, enough: int | None, seconds: float) -> None:
        """Start with the blocks one after the other, which is always a placement."""
        self.bound = problem.peak
        self.offsets: Ints = np.cumsum(problem.size) - problem.size
        self.arena = int(problem.size.sum())
        self.method = "one after the other"
        self._size = problem.size
        self._enough = enough
        self._deadline = time.monotonic() + seconds

    def offer(self, offsets: Ints, method: str) -> None:
        """Keep a copy of `offsets` if their arena is smaller."""
        arena = int((offsets + self._size).max(initial=0))
        if arena < self.arena:
            self.arena, self.offsets, self.method = arena, offsets.copy(), method

    def refute(self, arena: int) -> None:
        """Note that no placement lies within `arena`."""
        self.bound = max(self.bound, arena + 1)

    def aim(self, fraction: float) -> int:
        """The arena to search in: what is enough, or that fraction of the way from the bound to
        the best arena, which it is always below."""
        if self._enough is not None:
            return self._enough
        return self.bound + int(fraction * (self.arena - self.bound))

    @property
    def is_smallest(self) -> bool:
        """Whether it is proved that no arena is smaller."""
        return self.arena <= self.bound

    @property
    def is_enough(self) -> bool:
        """Whether nothing is left to find: proved smallest, small enough, or proved too large."""
        if self.is_smallest or self._enough is None:
            return self.is_smallest
        return self.arena <= self._enough or self.bound > self._enough

    @property
    def is_late(self) -> bool:
        """Whether time is up."""
        return time.monotonic() >= self._deadline

    def forgive(self, seconds: float) -> None:
        """Do not count these seconds, which went into compiling."""
        self._deadline += seconds
