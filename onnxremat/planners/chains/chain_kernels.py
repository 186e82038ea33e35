"""The inner loops of C_MP, compiled (see `chains.chain_dp.PersistentTable`)."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onnxremat.planners.chains.chain_times import LONGEST_TIME, NO_TIME
from onnxremat.planners.search.kernels import entry, kernel

Ints = npt.NDArray[np.int64]
Times = npt.NDArray[np.int32]

TILE = 8
BLOCK = 16
"""A tile of a table is TILE parts of the chain by TILE, and looks at BLOCK cuts at once: what they
read stays in a core's cache."""


class Costs(NamedTuple):
    """By stage: the forward times `before` it, its `backward` time, the slots of a[s]
    (`activation`), how many slots fewer are left once its abar is held (`after_saving`). By part of
    the chain, from s to t: from how many slots on F_ck (`keeping`) and F_all (`saving`) of stage s
    are open."""

    before: Ints
    backward: Ints
    activation: Ints
    after_saving: Ints
    keeping: Ints
    saving: Ints


@kernel
def cut_between(
    table: Times, columns: Times, s: int, t: int, cuts: tuple[int, int], first: int, held: int
) -> None:
    """Take the ways from s to t that begin with F_ck of stage s and store next the input of a
    stage from cuts[0] to cuts[1] - 1. The row misses -before[s] so far."""
    total = table.shape[2]
    if first >= total:
        return
    target = table[s, t, first:]
    for cut in range(cuts[0], cuts[1]):
        deep = columns[t, cut, first - held : total - held]
        rest = table[s, cut - 1, first:]
        for m in range(total - first):
            value = deep[m] + rest[m]
            target[m] = value if value < target[m] else target[m]


@kernel
def fill_corner(
    table: Times,
    columns: Times,
    s: int,
    t: int,
    cuts: tuple[int, int],
    costs: Costs,
) -> None:
    """Equations 6 and 7 for the part from s to t, the cuts in `cuts` being done."""
    total = table.shape[2]
    row, first, held = table[s, t], costs.keeping[s, t], costs.activation[s]
    if s == t:
        time = np.int32(costs.before[s + 1] + costs.backward[s])
        for m in range(total):
            row[m] = time if m >= costs.saving[s, t] else NO_TIME
            columns[t, s, m] = row[m]
        return
    cut_between(table, columns, s, t, (s + 1, min(cuts[0], t + 1)), first, held)
    cut_between(table, columns, s, t, (max(cuts[1], s + 1), t + 1), first, held)
    offset, time, after = (
        np.int32(costs.before[s]),
        np.int32(costs.backward[s]),
        costs.after_saving[s],
    )
    inner = columns[t, s + 1]
    open_from = max(costs.saving[s, t], after)
    for m in range(total):
        # The table holds times from the start of the chain, so stage s counts once already.
        value = row[m] - offset
        if m >= open_from:
            value = min(value, inner[m - after] + time)
        row[m] = value if value < LONGEST_TIME + LONGEST_TIME // 4 else NO_TIME
        columns[t, s, m] = row[m]


@entry
def fill_tiles(
    table: Times,
    columns: Times,
    diagonal: int,
    first_tile: int,
    step: int,
    costs: Costs,
) -> None:
    """Fill every `step`-th tile of a diagonal of tiles. All shorter parts are done.

    [s, t, m]: the forward times before stage s, and the makespan from s to t in m slots, a[s]
    included; `columns` is the same with s and t exchanged.
    """
    n = table.shape[0]
    tiles = (n + TILE - 1) // TILE
    for tile in range(first_tile, tiles - diagonal, step):
        low, low_end = tile * TILE, min((tile + 1) * TILE, n)
        high, high_end = (tile + diagonal) * TILE, min((tile + diagonal + 1) * TILE, n)
        for s in range(low, low_end):
            for t in range(max(s, high), high_end):
                table[s, t, :] = NO_TIME
        for cut in range(low_end, high + 1, BLOCK):
            end = min(cut + BLOCK, high + 1)
            for s in range(low, low_end):
                for t in range(max(s, high), high_end):
                    cut_between(
                        table, columns, s, t, (cut, end), costs.keeping[s, t], costs.activation[s]
                    )
        for back in range(low_end - low):
            s = low_end - 1 - back
            for t in range(max(s, high), high_end):
                fill_corner(table, columns, s, t, (low_end, max(high + 1, low_end)), costs)
