"""The dynamic program over cut points: which parts run whole, which in tiles, at least extra cost.

Ops run one by one where that fits; between candidate cuts a segment may run in tiles instead.
With least(c) the least cost of getting to cut c, least(j) = min over i < j of least(i) +
segment(i, j), and least(c) if op c - 1 may run whole. O(ops + segments asked for).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf


@dataclass(frozen=True)
class Route:
    """The segments that run in tiles, in order, and their cost together."""

    segments: tuple[tuple[int, int], ...]
    cost: int


@dataclass(frozen=True)
class Stuck:
    """There is no route. `reached` is the last cut there is a way to."""

    reached: int


def cheapest_route(
    whole: Sequence[bool],
    starts: Sequence[int],
    ends: Sequence[int],
    segment: Callable[[int, int, float], int | None],
    below_ns: float = inf,
    too_dear: Callable[[], None] = lambda: None,
) -> Route | Stuck:
    """The cheapest way from cut 0 to the last cut; how far there is one, if there is none of less
    than `below_ns` to the end.

    `whole[v]`: op v may run whole, at no extra cost. `starts` and `ends`: ascending cuts where a
    segment may begin and end. `segment(i, j, below)`: its cost, not negative; None if it cannot be
    or costs `below` or more. Asked only for segments with an op that cannot run whole, and where
    the answer can matter. `too_dear()` is called where no segment was asked for since the way to it
    costs `below_ns` already.
    """
    count = len(whole)
    least: list[int | None] = [0] + [None] * count
    back: list[tuple[int, int] | None] = [None] * (count + 1)
    hot = [0] * (count + 1)
    ending = set(ends)
    for c in range(1, count + 1):
        hot[c] = hot[c - 1] + (not whole[c - 1])
        if whole[c - 1] and least[c - 1] is not None:
            least[c] = least[c - 1]
        if c not in ending:
            continue
        for i in reversed([s for s in starts if s < c]):
            before, so_far = least[i], least[c]
            if before is None or hot[i] == hot[c]:
                continue
            below = (below_ns if so_far is None else min(so_far, below_ns)) - before
            if below <= 0 and so_far is None:
                too_dear()
            cost = segment(i, c, below) if below > 0 else None
            if cost is not None and cost < below:
                least[c] = before + cost
                back[c] = (i, c)
    total = least[count]
    if total is None:
        return Stuck(max(c for c, cost in enumerate(least) if cost is not None))
    segments = []
    c = count
    while c > 0:
        taken = back[c]
        if taken is None:
            c -= 1
        else:
            segments.append(taken)
            c = taken[0]
    return Route(tuple(reversed(segments)), total)
