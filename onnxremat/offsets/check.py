"""Whether a placement is right, by a sweep that shares nothing with the solver."""

from bisect import bisect_left, insort
from collections.abc import Sequence

from onnxremat.offsets.blocks import Block, Placement, live_peak_bytes


def check_placement(blocks: Sequence[Block], placement: Placement) -> None:
    """Raise ValueError, saying why, unless `placement` places `blocks`.

    Checked: one offset per block, not negative and aligned; no two blocks that live at the same
    step share a byte (the message names both); the arena is the highest end of a block, rounded
    up, and the bound is neither above it nor below the live peak.

    Steps are swept in order, keeping the blocks alive sorted by offset. As long as those are
    disjoint a new one can only meet its two neighbours. O(n log n) comparisons.
    """
    alignment = placement.alignment_bytes
    if alignment < 1:
        raise ValueError(f"the alignment is {alignment} bytes")
    if len(placement.offsets) != len(blocks):
        raise ValueError(f"{len(placement.offsets)} offsets for {len(blocks)} blocks")
    for index, offset in enumerate(placement.offsets):
        if offset < 0 or offset % alignment:
            raise ValueError(
                f"block {index} is at {offset}, which is not a multiple of {alignment} bytes"
            )
    _check_disjoint(blocks, placement.offsets)
    ends = [o + b.nbytes for o, b in zip(placement.offsets, blocks, strict=True) if b.nbytes]
    highest = max(ends, default=0)
    if placement.arena_bytes != highest + -highest % alignment:
        raise ValueError(
            f"the arena is given as {placement.arena_bytes} bytes, but the highest block ends at "
            f"{highest}"
        )
    peak = live_peak_bytes(blocks, alignment)
    if not peak <= placement.bound_bytes <= placement.arena_bytes:
        raise ValueError(
            f"the bound of {placement.bound_bytes} bytes is not between the live peak, {peak}, "
            f"and the arena, {placement.arena_bytes}"
        )


def _check_disjoint(blocks: Sequence[Block], offsets: Sequence[int]) -> None:
    """Raise ValueError, naming both, if two blocks share a byte at the same step."""
    # An end at a step comes before a start at it: lifetimes are half-open.
    events = sorted(
        event
        for index, block in enumerate(blocks)
        if block.nbytes
        for event in ((block.start, True, index), (block.end, False, index))
    )
    alive: list[tuple[int, int]] = []
    for step, starts, index in events:
        entry = (offsets[index], index)
        if not starts:
            del alive[bisect_left(alive, entry)]
            continue
        position = bisect_left(alive, entry)
        for _, other in alive[max(position - 1, 0) : position + 1]:
            low, high = sorted((index, other), key=lambda i: offsets[i])
            if offsets[low] + blocks[low].nbytes > offsets[high]:
                raise ValueError(
                    f"blocks {min(index, other)} and {max(index, other)} overlap at step {step}: "
                    f"[{offsets[low]}, {offsets[low] + blocks[low].nbytes}) and "
                    f"[{offsets[high]}, {offsets[high] + blocks[high].nbytes})"
                )
        insort(alive, entry)
