"""The cheapest tiles for a budget: routes over the cuts, of variations of the sequence.

    Sequence (what is held at each cut) -> cheapest route over the cuts (`cut_program`), its
    segments from `segments` -> Choice, or the cut where it ends
                             -> another variation, in which less is held there, and once more

Values that are opened are left in strips by the tiles that make them, and die strip by strip in
those that read them last. Values that are dropped have a gap in their life, skip connections for
example: tiles behind the gap make their part of them again, of what is held instead
(`made_again`).
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
from onnxremat.tiling.variations import AS_IT_IS, Variation, nearest
from onnxremat_rewriters.tile import Piece, never_cut

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
MADE_BEFORE_CUTS = 2
"""Where the way ends those values are opened that are made at most so many cuts before it."""
CHEAP = 0.005
"""With a plan that adds no more than this share of a run, no more values are dropped: estimates
are compared no finer (see TOLERANCE)."""
TOLERANCE = 0.005
"""A route that costs this share of a run more than was estimated is compared again."""
MOST_ROUNDS = 8
"""So many routes are planned exactly, each with estimates that those before it corrected."""
EXTRA_SHARES = (0.05, 0.3, 1.0)
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


class Kind(NamedTuple):
    """Which tiles are looked at: those that carry, too; those that leave strips, too."""

    carry: bool = False
    opening: bool = False


PLAIN, CARRYING, IN_STRIPS = Kind(), Kind(carry=True), Kind(opening=True)


@dataclass(frozen=True)
class Choice:
    """A route for one set of dropped values, all its segments planned exactly."""

    sequence: Sequence
    options: tuple[Option, ...]
    peak_bytes: int
    extra_ns: int
    nodes: int


@dataclass
class _Opened:
    """What opening values came to: the variation before the last were, how far its way led, and
    which are not opened again."""

    before: Variation | None = None
    reached: int = 0
    closed: frozenset[int] = frozenset()


class Routes:
    """Finds routes through a model of `nodes` nodes; what was looked at is remembered. Not
    thread-safe."""

    def __init__(self, sequence: Sequence, tiling: Tiling, deadline: Deadline, nodes: int) -> None:
        self.sequence = sequence
        self.one_pass_ns = sequence.imported.graph.total_cost()
        self._tiling = tiling
        self._deadline = deadline
        self.room = most_nodes(nodes) - nodes
        """So many nodes may be added."""
        self._apart = sequence.around(tiling.fused)
        self._inner = sequence.into(tiling.joined)
        self._uncut = frozenset(
            v
            for v, node in enumerate(sequence.imported.op_nodes)
            if never_cut(sequence.view, node, tiling.threads, tiling.allow_rounding) is not None
        )
        self._cuts: dict[Variation, tuple[int, ...]] = {}
        self._kinds: dict[Variation, Segments] = {}
        self._pruned = False

    def cheapest(
        self, budget_bytes: int, kind: Kind, below_ns: float = inf, *, first: bool = False
    ) -> Choice | None:
        """The cheapest plan that is found, if it costs less than `below_ns`; with `first`, the
        first one. What is dropped is found where the way ends, and then, for plans that cost less,
        the largest values are."""
        best = self._unblocked(budget_bytes, kind, below_ns)
        if first or best is None or kind.opening:
            return best
        sequence, enough = self.sequence, CHEAP * self.one_pass_ns
        values = [d for d in self._droppable if sequence.nbytes[d[0]] >= SMALL * budget_bytes]
        for number in range(min(MOST_LARGEST, len(values)) + 1):
            if best.extra_ns <= enough or self._deadline.over():
                break
            variation = Variation(tuple(sorted(values[:number])))
            found = self._route(variation, budget_bytes, best.extra_ns, kind.carry)
            if isinstance(found, Choice) and found.extra_ns < best.extra_ns:
                best = found
        return best

    def _unblocked(self, budget_bytes: int, kind: Kind, below_ns: float) -> Choice | None:
        """A plan that is found by dropping what is held where the way ends, one value after the
        other, or by opening it first. Cheap plans are looked for first: tiles that would cost more
        are not followed back, and where that may be what ended the way, they may cost more."""
        shares, variation, opened = iter(EXTRA_SHARES), Variation(), _Opened()
        limit = min(next(shares) * self.one_pass_ns, below_ns)
        while not self._deadline.over():
            self._pruned = False
            found = self._route(variation, budget_bytes, limit, kind.carry)
            if isinstance(found, Choice) and found.extra_ns < limit:
                return found
            if isinstance(found, Stuck) and kind.opening:
                variation, found, more = self._open(variation, found, opened, budget_bytes)
                if more:
                    continue
            share = next(shares, None) if self._pruned and limit < below_ns else None
            if share is not None:
                limit = min(share * self.one_pass_ns, below_ns)
                continue
            if not isinstance(found, Stuck) or len(variation.drops) == MOST_DROPPED:
                return None
            drop = self._blocking(variation, found.reached, budget_bytes)
            if drop is None:
                return None
            variation = variation._replace(drops=tuple(sorted((*variation.drops, drop))))
        return None

    def _open(
        self, variation: Variation, found: Stuck, so_far: "_Opened", budget_bytes: int
    ) -> tuple[Variation, Stuck, bool]:
        """The variation with more values opened where its way ends, and whether there are any. What
        was opened last is closed again, for good, where the way then ended sooner."""
        if so_far.before is not None and found.reached < so_far.reached:
            so_far.closed |= variation.opened - so_far.before.opened
            variation, found = so_far.before, Stuck(so_far.reached)
            self._pruned = True  # It may have been, before they were opened.
        more = self._openable_at(variation, found.reached, budget_bytes)
        more -= variation.opened | so_far.closed
        so_far.before, so_far.reached = variation if more else None, found.reached
        return variation._replace(opened=variation.opened | more), found, bool(more)

    def _near(self, variation: Variation, reached: int) -> tuple[int, ...]:
        """The cut where the way ends, and those behind it."""
        cuts = self.cuts(variation)
        after = bisect_right(cuts, reached)
        return (reached, *cuts[after : after + NEAR_CUTS])

    def _blocking(self, variation: Variation, reached: int, budget_bytes: int) -> Drop | None:
        """The value to drop so that less is held where the way ends."""
        sequence, near = self.segments(variation).sequence, self._near(variation, reached)
        return blocking(sequence, variation.drops, near, SMALL * budget_bytes, self._uncut)

    def _openable_at(self, variation: Variation, reached: int, budget_bytes: int) -> frozenset[int]:
        """Values that are made and held about where the way ends, and can be opened. Those that are
        made long before it are not: all that makes and reads them would have to be in tiles."""
        sequence, near = self.segments(variation).sequence, self._near(variation, reached)
        cuts, graph = self.cuts(variation), self.sequence.imported.graph
        first = cuts[max(0, bisect_right(cuts, reached) - 1 - MADE_BEFORE_CUTS)]
        return frozenset(
            t
            for t in self._openable
            if sequence.nbytes[t] >= SMALL * budget_bytes
            and graph.producer[t] >= first
            and any(graph.producer[t] < c <= sequence.last_read[t] for c in near)
        )

    @cached_property
    def _openable(self) -> list[int]:
        """The values that tiles alone can make and read."""
        sequence, graph = self.sequence, self.sequence.imported.graph
        return [
            t
            for t, nbytes in enumerate(sequence.nbytes)
            if nbytes
            and t not in sequence.held_outputs
            and graph.producer[t] >= 0
            and graph.readers[t]
            and self._uncut.isdisjoint(sequence.touching([t]))
        ]

    def segments(self, variation: Variation = AS_IT_IS) -> Segments:
        """The segments of a variation of the sequence."""
        if variation not in self._kinds:
            parent = nearest(variation, self._kinds)
            self._kinds[variation] = Segments(
                dropping(self.sequence, variation.drops, self._uncut).opening(variation.opened),
                self._tiling.threads,
                self._tiling.allow_rounding,
                self.room,
                self._deadline,
                self._apart,
                self._inner,
                None if parent is None else self._kinds[parent],
            )
        return self._kinds[variation]

    @cached_property
    def _droppable(self) -> list[Drop]:
        return droppable(self.sequence, self._uncut)

    def cuts(self, variation: Variation = AS_IT_IS) -> tuple[int, ...]:
        """Where segments may begin and end in a variation of the sequence."""
        if variation not in self._cuts:
            sequence = self.segments(variation).sequence
            self._cuts[variation] = _cuts(sequence, self._barriers(sequence))
        return self._cuts[variation]

    def _barriers(self, sequence: Sequence) -> set[int]:
        """Ops that are never cut and change how much is held, and those that stay beside others:
        segments end before or start behind them, also where that is no low."""
        held = sequence.cut_bytes
        beside = {v for cut in self._apart | self._inner for v in (cut - 1, cut)}
        return beside | {v for v in self._uncut if held[v] != held[v + 1]}

    def _route(
        self, variation: Variation, budget_bytes: int, below_ns: float, carry: bool
    ) -> Choice | Stuck | None:
        """The cheapest route whose segments keep the budget when they are planned exactly, with
        what the runtime needs for each node that is added."""
        segments = self.segments(variation)
        sequence = segments.sequence
        per_node = reserved = rounds = 0
        while not self._deadline.over() and rounds < MOST_ROUNDS:
            limit = budget_bytes - reserved
            whole = [
                nbytes <= limit and v not in sequence.lacking
                for v, nbytes in enumerate(sequence.step_bytes)
            ]
            chosen: dict[tuple[int, int], Option] = {}
            segments.pruned = False
            cost_of = self._cost(segments, limit, per_node, chosen, carry)
            near = _near(self.cuts(variation), whole)
            route = cheapest_route(whole, *near, cost_of, below_ns, self._too_dear)
            self._pruned |= segments.pruned
            if isinstance(route, Stuck):
                return route
            strips: dict[str, tuple[Piece, ...]] = {}
            exact = [segments.exactly(*part, chosen[part], strips) for part in route.segments]
            options = tuple(one for one in exact if one is not None and one.peak_bytes <= limit)
            estimates = [chosen[part] for part in route.segments]
            if len(options) < len(exact) or self._dearer(options, estimates):
                rounds += 1
                continue
            cost, nodes = sum(one.extra_ns for one in options), sum(one.nodes for one in options)
            if nodes > self.room:
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
