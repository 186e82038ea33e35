"""What is placed, and where it went."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Block:
    """`nbytes` held over the half-open interval of steps `[start, end)`, which is not empty.

    Raises ValueError for a negative size or an empty lifetime.
    """

    nbytes: int
    start: int
    end: int

    def __post_init__(self) -> None:
        if self.nbytes < 0:
            raise ValueError(f"a block has a negative size: {self.nbytes}")
        if self.start >= self.end:
            raise ValueError(f"a block lives over no step: [{self.start}, {self.end})")


@dataclass(frozen=True, slots=True)
class Placement:
    """The offset in bytes of each block, in the order of the blocks.

    Every size counts rounded up to `alignment_bytes`, and every offset is a multiple of it.
    `arena_bytes` is the highest end of a block. `bound_bytes` is proved: no placement has a
    smaller arena. It is the live peak, or more where exhaustive search has shown that the live
    peak cannot be reached. `method` names the rule that found the offsets.
    """

    offsets: tuple[int, ...]
    arena_bytes: int
    bound_bytes: int
    method: str
    alignment_bytes: int

    @property
    def proved(self) -> bool:
        """Whether the arena is the smallest there is."""
        return self.arena_bytes == self.bound_bytes


def padded(nbytes: int, alignment_bytes: int) -> int:
    """`nbytes` rounded up to a multiple of `alignment_bytes`."""
    return -(-nbytes // alignment_bytes) * alignment_bytes


def live_peak_bytes(blocks: Sequence[Block], alignment_bytes: int = 1) -> int:
    """The most bytes alive at one step, each size rounded up. O(n log n)."""
    changes: dict[int, int] = {}
    for block in blocks:
        nbytes = padded(block.nbytes, alignment_bytes)
        changes[block.start] = changes.get(block.start, 0) + nbytes
        changes[block.end] = changes.get(block.end, 0) - nbytes
    return max(accumulate((changes[step] for step in sorted(changes)), initial=0))
