"""The cheapest tiles for a budget: routes over the cuts, with more and more values dropped.

    Sequence (what is held at each cut) -> cheapest route over the cuts (`cut_program`), its
    segments from `segments` -> Choice, or the cut where it ends
                             -> without a value that is held there (`made_again`), and once more

Values that are dropped have a gap in their life, skip connections for example: tiles behind the gap
make their part of them again, of what is held instead.
"""

from bisect import bisect_right
from collections.abc import Callable, Collection
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import cached_property
from math import inf
from typing import NamedTuple

from onnxremat.core.deadline import Deadline
from onnxremat.core.memory import MemoryRules
from onnxremat.tiling.cut_program import Stuck, cheapest_route
from onnxremat.tiling.made_again import blocking, droppable, dropping
from onnxremat.tiling.segments import Option, Segments
from onnxremat.tiling.sequence import Drop, Sequence
from onnxremat.tiling.tiling_plan import most_nodes
from onnxremat_rewriters.tile import never_cut

MOST_DROPPED, MOST_LARGEST = 12, 6
"""At most so many values are dropped: where the way ends, and of the largest."""
SMALL = 0.05
"""Values of less than this share of the budget are not dropped."""
MOST_CUTS = 160
"""At most so many cuts are ends of segments."""
MOST_OPS = 400
"""A segment has at most so many ops."""
NEAR_CUTS = 8
"""A segment starts and ends at most so many cuts from an op that cannot run whole."""
CHEAP = 0.005
"""With a plan that adds no more than this share of a run, no more values are dropped: estimates
are compared no finer (see TOLERANCE)."""
TOLERANCE = 0.005
"""A route that costs this share of a run more than was estimated is compared again."""
EXTRA_SHARES = (0.03, 0.12, 0.4, 1.0)
"""Plans that add less than these shares of a run are looked for, one after the other; what adds
more than the last is no plan."""


class Tiling(NamedTuple):
    """How tiles are to be, whatever the budget: the rules of memory, what the runtime keeps for
    each node, the threads that bits must be the same at, and whether they need not. `fused`:
    values that no region has in it or ends at, for the runtime fuses what makes with what reads
    them. `joined`: values that a region has in it only with what makes their inputs."""

    rules: MemoryRules
    node_bytes: int
    threads: int
    allow_rounding: bool
    fused: frozenset[str] = frozenset()
    joined: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Choice:
    """A route for one set of dropped values, all its segments planned exactly."""

    sequence: Sequence
    options: tuple[Option, ...]
    peak_bytes: int
    extra_ns: int
    nodes: int


class Routes:
    """Finds routes through a model of `nodes` nodes; what was looked at is remembered. Not
    thread-safe."""

    def __init__(self, sequence: Sequence, tiling: Tiling, deadline: Deadline, nodes: int) -> None:
        self.sequence = sequence
        self.one_pass_ns = sequence.imported.graph.total_cost()
        self._tiling = tiling
        self._deadline = deadline
        self._room = most_nodes(nodes) - nodes
        self._apart = sequence.around(tiling.fused)
        self._inner = sequence.into(tiling.joined)
        self._uncut = frozenset(
            v
            for v, node in enumerate(sequence.imported.op_nodes)
            if never_cut(sequence.view, node, tiling.threads, tiling.allow_rounding) is not None
        )
        self._cuts: dict[tuple[Drop, ...], tuple[int, ...]] = {}
        self._kinds: dict[tuple[Drop, ...], Segments] = {}
        self._pruned = False

    def cheapest(
        self, budget_bytes: int, carry: bool, below_ns: float = inf, *, first: bool = False
    ) -> Choice | None:
        """The cheapest plan that is found, if it costs less than `below_ns`; with `first`, the
        first one. What is dropped is found where the way ends, and then, for plans that cost less,
        the largest values are."""
        best = self._unblocked(budget_bytes, carry, below_ns)
        if first or best is None:
            return best
        sequence, enough = self.sequence, CHEAP * self.one_pass_ns
        values = [d for d in self._droppable if sequence.nbytes[d[0]] >= SMALL * budget_bytes]
        for number in range(min(MOST_LARGEST, len(values)) + 1):
            if best.extra_ns <= enough or self._deadline.over():
                break
            found = self._route(tuple(sorted(values[:number])), budget_bytes, best.extra_ns, carry)
            if isinstance(found, Choice) and found.extra_ns < best.extra_ns:
                best = found
        return best

    def _unblocked(self, budget_bytes: int, carry: bool, below_ns: float) -> Choice | None:
        """A plan that is found by dropping what is held where the way ends, one value after the
        other. Cheap plans are looked for first: tiles that would cost more are not followed back,
        and where that may be what ended the way, they may cost more."""
        shares, dropped = iter(EXTRA_SHARES), tuple[Drop, ...]()
        limit = min(next(shares) * self.one_pass_ns, below_ns)
        while not self._deadline.over():
            self._pruned = False
            found = self._route(dropped, budget_bytes, limit, carry)
            if isinstance(found, Choice) and found.extra_ns < limit:
                return found
            share = next(shares, None) if self._pruned and limit < below_ns else None
            if share is not None:
                limit = min(share * self.one_pass_ns, below_ns)
                continue
            if not isinstance(found, Stuck) or len(dropped) == MOST_DROPPED:
                return None
            drop = self._blocking(dropped, found.reached, budget_bytes)
            if drop is None:
                return None
            dropped = tuple(sorted((*dropped, drop)))
        return None

    def _blocking(self, dropped: tuple[Drop, ...], reached: int, budget_bytes: int) -> Drop | None:
        """The value to drop so that less is held where the way ends."""
        cuts = self.cuts(dropped)
        after = bisect_right(cuts, reached)
        return blocking(
            self.segments(dropped).sequence,
            dropped,
            (reached, *cuts[after : after + NEAR_CUTS]),
            SMALL * budget_bytes,
            self._uncut,
        )

    def segments(self, dropped: tuple[Drop, ...] = ()) -> Segments:
        """The segments of the sequence without some values."""
        if dropped not in self._kinds:
            self._kinds[dropped] = Segments(
                dropping(self.sequence, dropped, self._uncut),
                self._tiling.threads,
                self._tiling.allow_rounding,
                self._room,
                self._deadline,
                self._apart,
                self._inner,
            )
        return self._kinds[dropped]

    @cached_property
    def _droppable(self) -> list[Drop]:
        return droppable(self.sequence, self._uncut)

    def cuts(self, dropped: tuple[Drop, ...] = ()) -> tuple[int, ...]:
        """Where segments may begin and end in the sequence without some values."""
        if dropped not in self._cuts:
            sequence = self.segments(dropped).sequence
            self._cuts[dropped] = _cuts(sequence, self._barriers(sequence))
        return self._cuts[dropped]

    def _barriers(self, sequence: Sequence) -> set[int]:
        """Ops that are never cut and change how much is held, and those that stay beside others:
        segments end before or start behind them, also where that is no low."""
        held = sequence.cut_bytes
        beside = {v for cut in self._apart | self._inner for v in (cut - 1, cut)}
        return beside | {v for v in self._uncut if held[v] != held[v + 1]}

    def _route(
        self, dropped: tuple[Drop, ...], budget_bytes: int, below_ns: float, carry: bool
    ) -> Choice | Stuck | None:
        """The cheapest route whose segments keep the budget when they are planned exactly, with
        what the runtime needs for each node that is added."""
        segments = self.segments(dropped)
        sequence = segments.sequence
        per_node = reserved = 0
        while not self._deadline.over():
            limit = budget_bytes - reserved
            whole = [
                nbytes <= limit and v not in sequence.lacking
                for v, nbytes in enumerate(sequence.step_bytes)
            ]
            chosen: dict[tuple[int, int], Option] = {}
            segments.pruned = False
            cost_of = self._cost(segments, limit, per_node, chosen, carry)
            near = _near(self.cuts(dropped), whole)
            route = cheapest_route(whole, *near, cost_of, below_ns, self._too_dear)
            self._pruned |= segments.pruned
            if isinstance(route, Stuck):
                return route
            exact = [segments.exactly(*part, chosen[part]) for part in route.segments]
            if any(one is None or one.peak_bytes > limit for one in exact):
                continue
            options = tuple(one for one in exact if one is not None)
            if self._dearer(options, [chosen[part] for part in route.segments]):
                continue
            cost, nodes = sum(one.extra_ns for one in options), sum(one.nodes for one in options)
            if nodes > self._room:
                per_node = per_node * 4 or 10_000
                if per_node > 1 << 40:
                    return None
                continue
            inside = {v for i, j in route.segments for v in range(i, j)}
            peaks = [b for v, b in enumerate(sequence.step_bytes) if v not in inside]
            peaks += [one.peak_bytes for one in options]
            bookkeeping = self._tiling.node_bytes * max(0, nodes)
            peak = max(peaks, default=0) + bookkeeping
            if peak > budget_bytes:  # then more is needed than is reserved
                reserved = bookkeeping
                continue
            return Choice(sequence, options, peak, cost, nodes)
        return None

    def _too_dear(self) -> None:
        self._pruned = True

    def _dearer(self, exact: Many[Option], estimates: Many[Option]) -> bool:
        """Whether a route turned out to cost so much more that another may be better."""
        more = sum(e.extra_ns for e in exact) - sum(e.extra_ns for e in estimates)
        return more > TOLERANCE * self.one_pass_ns

    def _cost(
        self,
        segments: Segments,
        budget_bytes: int,
        per_node: int,
        chosen: dict[tuple[int, int], Option],
        carry: bool,
    ) -> Callable[[int, int, float], int | None]:
        def cost(i: int, j: int, below: float) -> int | None:
            self._deadline.count(1)
            if j - i > MOST_OPS or self._deadline.over():
                return None
            found = segments.within(i, j, budget_bytes, below, carry)
            if found is None:
                return None
            chosen[i, j] = found
            return max(0, found.extra_ns) + per_node * max(0, found.nodes)

        return cost


def _cuts(sequence: Sequence, barriers: Collection[int]) -> tuple[int, ...]:
    """Where segments may begin and end: where less is held than beside, at both ends of a stretch
    where the same is held, and on both sides of `barriers`."""
    held, count = sequence.cut_bytes, sequence.count
    found = [
        c
        for c in range(1, count)
        if c in barriers
        or c - 1 in barriers
        or (
            held[c] <= held[c - 1]
            and held[c] <= held[c + 1]
            and (held[c] < held[c - 1] or held[c] < held[c + 1])
        )
    ]
    if len(found) > MOST_CUTS:
        found = sorted(sorted(found, key=lambda c: (held[c], c))[:MOST_CUTS])
    return (0, *found, count)


def _near(cuts: tuple[int, ...], whole: list[bool]) -> tuple[list[int], list[int]]:
    """Where segments may start and end, given which ops may run whole."""
    hot = [v for v, may in enumerate(whole) if not may]
    starts: set[int] = set()
    ends: set[int] = set()
    for v in hot:
        place = bisect_right(cuts, v)
        starts.update(cuts[max(0, place - NEAR_CUTS) : place])
        ends.update(cuts[place : place + NEAR_CUTS])
    return sorted(starts), sorted(ends)
