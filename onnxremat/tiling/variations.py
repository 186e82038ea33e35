"""Variations of a sequence, and in which parts two of them are the same.

A variation drops some values and opens others. Most parts of a model see nothing of it, and what is
found out about tiles there holds for both.
"""

from bisect import bisect_left
from collections.abc import Iterable
from typing import NamedTuple

from onnxremat.tiling.sequence import Drop, Sequence


class Variation(NamedTuple):
    """What is otherwise than in the sequence as it is: what is dropped, and what is opened."""

    drops: tuple[Drop, ...] = ()
    opened: frozenset[int] = frozenset()

    def extends(self, other: "Variation") -> bool:
        """Whether all that is otherwise in `other` is here, too, and more."""
        return self != other and set(self.drops) >= set(other.drops) and self.opened >= other.opened


AS_IT_IS = Variation()


class Difference:
    """Where two variations of a sequence are not the same."""

    def __init__(self, one: Sequence, other: Sequence) -> None:
        graph, opened = one.imported.graph, one.opened ^ other.opened
        self._otherwise = sorted((one.lacking ^ other.lacking) | one.touching(opened))
        self._again = sorted(one.lacking | other.lacking)
        self._opened = bool(opened)
        self._lives = [
            (graph.producer[t], here, there)
            for t, (here, there) in enumerate(zip(one.last_read, other.last_read, strict=True))
            if here != there
        ]

    def touches(self, i: int, j: int) -> bool:
        """Whether a tile of ops i to j - 1 may be another. O(log ops + values that differ)."""
        if _any_within(self._otherwise, i, j):
            return True
        if any(i <= made < j and (a >= j) != (b >= j) for made, a, b in self._lives):
            return True  # what leaves is not the same
        if not _any_within(self._again, i, j):
            return False
        # Values are made again of what is there at i.
        return self._opened or any(made < i and (a >= i) != (b >= i) for made, a, b in self._lives)


def _any_within(ops: list[int], i: int, j: int) -> bool:
    place = bisect_left(ops, i)
    return place < len(ops) and ops[place] < j


def nearest(variation: Variation, known: Iterable[Variation]) -> Variation | None:
    """Of some variations the one that a variation adds least to; None if it adds to none."""
    below = (one for one in known if variation.extends(one))
    return max(below, key=lambda one: len(one.drops) + len(one.opened), default=None)
