"""Greedy rules that place one block after the other, compiled. Each call is O(n^2), no memory.

Sizes and offsets are in any one unit. No kernel here calls another file's: numba checks only the
file of a kernel for changes before it loads compiled code from its cache.
"""

import numpy as np

from onnxremat.offsets._jit import Floats, Ints, entry

FIRST_FIT, BEST_FIT = range(2)


@entry
def fit_in_order(
    start: Ints, end: Ints, size: Ints, order: Ints, rule: int, offset: Ints, placed: Ints
) -> int:
    """Place blocks in the given order, each in a gap between those placed; the arena.

    FIRST_FIT takes the lowest gap that is large enough, BEST_FIT the smallest; a block that fits
    in no gap goes on top. `placed` is scratch, one entry a block: those placed, by offset.
    """
    arena = np.int64(0)
    for count in range(len(order)):
        b = order[count]
        free = np.int64(0)
        best = np.int64(-1)
        best_gap = np.int64(0)
        for i in range(count):
            p = placed[i]
            if end[p] <= start[b] or end[b] <= start[p]:
                continue
            gap = offset[p] - free
            if gap >= size[b] and (best < 0 or gap < best_gap):
                best = free
                best_gap = gap
                if rule == FIRST_FIT:
                    break
            free = max(free, offset[p] + size[p])
        offset[b] = free if best < 0 else best
        arena = max(arena, offset[b] + size[b])
        i = count
        while i > 0 and offset[placed[i - 1]] > offset[b]:
            placed[i] = placed[i - 1]
            i -= 1
        placed[i] = b
    return int(arena)


@entry
def fit_lowest(
    start: Ints, end: Ints, size: Ints, priority: Floats, offset: Ints, waiting: Ints
) -> int:
    """Fill the arena from the bottom; the arena.

    Next is always the block that can lie lowest on those placed, of several the one of the highest
    priority (the best-fit rule for strip packing: Burke, Kendall & Whitwell 2004, Operations
    Research 52(4), here with the place along the strip given). `waiting` is scratch.
    """
    arena = np.int64(0)
    for b in range(len(size)):
        waiting[b] = b
        offset[b] = 0
    for count in range(len(size), 0, -1):
        next_one = 0
        for i in range(1, count):
            b, c = waiting[i], waiting[next_one]
            if offset[b] < offset[c] or (offset[b] == offset[c] and priority[b] > priority[c]):
                next_one = i
        b = waiting[next_one]
        waiting[next_one] = waiting[count - 1]
        top = offset[b] + size[b]
        arena = max(arena, top)
        for i in range(count - 1):
            c = waiting[i]
            if start[c] < end[b] and start[b] < end[c]:
                offset[c] = max(offset[c], top)
    return int(arena)
