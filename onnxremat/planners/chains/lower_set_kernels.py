"""The inner loops of the search over lower sets, compiled (see `chains.strategies.Family`).

Sets are numbered so that subsets come first, the empty set being 0, in order of size. `mass` and
`span` are the size and time of each set, `beside` terms (iii) and (iv) of equation 2, `rim` the
nodes of all boundaries, those of set i from rim_start[i] on.

Each program fills its rows in turn and can be called for a range of them, `begin` to `end` - 1, so
that the caller may stop between two calls. Rows before `begin` are filled; the first one of all is
the caller's to fill.
"""

import numpy as np

from onnxremat.planners.chains.lower_set_arrays import NO_CACHE, Arrays, Ints
from onnxremat.planners.search.kernels import entry, kernel


@kernel
def is_subset(family: Arrays, small: int, large: int) -> bool:
    """Whether one set lies in another."""
    missing = np.uint64(0)
    for w in range(family.bits.shape[1]):
        missing |= family.bits[small, w] & ~family.bits[large, w]
    return bool(missing == np.uint64(0))


@kernel
def new_rim(family: Arrays, values: Ints, small: int, large: int) -> int:
    """The sum of values over the boundary of the larger set outside the smaller one."""
    total = 0
    for k in range(family.rim_start[large], family.rim_start[large + 1]):
        v = family.rim[k]
        if not (family.bits[small, v >> 6] >> np.uint64(v & 63)) & np.uint64(1):
            total += values[v]
    return total


@entry
def least_cache(
    family: Arrays,
    budget: int,
    cache: Ints,
    origin: Ints,
    begin: int,
    end: int,
) -> int:
    """Fill `cache` with the least size of all that is kept below each set (NO_CACHE: not within
    the budget) and `origin` with the set before. Rows are sets; the first one has 0 and 0. Returns
    the least budget above this one at which another step opens."""
    following = NO_CACHE
    for large in range(begin, end):
        best, best_from = NO_CACHE, 0
        for back in range(large):
            small = large - 1 - back
            need = 2 * (family.mass[large] - family.mass[small]) + family.beside[large]
            if need > budget:
                following = min(following, need)
                break
            if cache[small] >= best:
                continue
            need += cache[small]
            if need > budget:
                if need < following and is_subset(family, small, large):
                    following = need
                continue
            if is_subset(family, small, large):
                kept = cache[small] + new_rim(family, family.sizes, small, large)
                if kept < best:
                    best, best_from = kept, small
        cache[large] = best
        origin[large] = best_from
    return following


@entry
def most_cache(
    family: Arrays,
    budget: int,
    slack: Ints,
    begin: int,
    end: int,
) -> None:
    """Fill `slack` with the most that may be kept below each set so that V can still be reached
    within the budget (-1: it cannot). Rows are sets from V down; V has NO_CACHE."""
    count = family.mass.shape[0]
    for back in range(begin, end):
        small = count - 1 - back
        best = -1
        for large in range(small + 1, count):
            need = 2 * (family.mass[large] - family.mass[small])
            if need > budget:
                break
            most = min(budget - need - family.beside[large], slack[large])
            if most <= best or not is_subset(family, small, large):
                continue
            kept = new_rim(family, family.sizes, small, large)
            best = max(best, min(budget - need - family.beside[large], slack[large] - kept))
        slack[small] = best


@entry
def price_to_go(
    family: Arrays,
    budget: int,
    cache: Ints,
    slack: Ints,
    slowest: bool,
    go: Ints,
    begin: int,
    end: int,
) -> None:
    """Fill `go` with a lower bound on the price (see `fronts`) from each set to V: as if no more
    were kept below a set than the least possible, `cache`. Rows are sets from V down; V has 0."""
    count = family.mass.shape[0]
    for back in range(begin, end):
        small = count - 1 - back
        best = NO_CACHE
        for large in range(small + 1, count):
            need = 2 * (family.mass[large] - family.mass[small])
            if need > budget:
                break
            if go[large] >= best or cache[small] + need + family.beside[large] > budget:
                continue
            if not is_subset(family, small, large):
                continue
            price = new_rim(family, family.times, small, large)
            if not slowest:
                price = family.span[large] - family.span[small] - price
            if price + go[large] < best:
                kept = new_rim(family, family.sizes, small, large)
                if cache[small] + kept <= slack[large]:
                    best = price + go[large]
        go[small] = best


@entry
def fronts(  # noqa: PLR0912 - one loop nest
    family: Arrays,
    budget: int,
    slack: Ints,
    go: Ints,
    slowest: bool,
    stored: Ints,
    starts: Ints,
    scratch: Ints,
    begin: int,
    end: int,
) -> int:
    """For each set the (price, cache) pairs that no other pair dominates, best price first.

    The price of a segment is the time of what is recomputed, or if `slowest` of what is kept; less
    is better, and so is less cache, which must not exceed `slack`. What costs more in the end, with
    the lower bound `go`, than `scratch` has room for is left out. `stored` gets prices, caches and
    the entry before; entries of set i start at starts[i]. Rows are sets; the first one has one
    entry of zeros. Returns the number of entries, or -1 if they do not fit: then `starts` and
    `stored` are as they were for the rows before `begin`.
    """
    most = scratch.shape[1] - 1
    used = int(starts[begin])
    least, entry_of = scratch[0], scratch[1]
    for large in range(begin, end):
        least[:] = NO_CACHE
        rim_time = 0
        for k in range(family.rim_start[large], family.rim_start[large + 1]):
            rim_time += family.times[family.rim[k]]
        for back in range(large):
            small = large - 1 - back
            need = 2 * (family.mass[large] - family.mass[small]) + family.beside[large]
            if need > budget:
                break
            if starts[small] == starts[small + 1]:
                continue
            if (
                not slowest
                and family.span[large] - family.span[small] - rim_time + go[large] > most
            ):
                continue
            if not is_subset(family, small, large):
                continue
            price = new_rim(family, family.times, small, large)
            if not slowest:
                price = family.span[large] - family.span[small] - price
            if price + go[large] > most:
                continue
            kept = new_rim(family, family.sizes, small, large)
            cache = min(budget - need, slack[large] - kept)
            for k in range(starts[small], starts[small + 1]):
                at = stored[0, k] + price
                if at + go[large] > most:
                    break
                if stored[1, k] <= cache and stored[1, k] + kept < least[at]:
                    least[at] = stored[1, k] + kept
                    entry_of[at] = k
        best = NO_CACHE
        for at in range(most + 1):
            if least[at] < best:
                best = least[at]
                if used == stored.shape[1]:
                    return -1
                stored[0, used] = at
                stored[1, used] = best
                stored[2, used] = entry_of[at]
                used += 1
        starts[large + 1] = used
    return used
