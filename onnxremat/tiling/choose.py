"""`choose_regions`: which parts of a model run in tiles so that its peak keeps a budget.

    Subject -> Sequence (what is held at each cut) -> for prefixes of the droppable values:
    cheapest route over the cuts (`program`), its segments from `segments` -> TilingPlan

The first values dropped are the largest with a gap in their life, skip connections for example:
tiles behind the gap make their part of them again. Without a budget the smallest peak is looked
for by halving.
"""

import time
from bisect import bisect_right
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from math import inf

from onnxremat.prepare import Subject
from onnxremat.runtimes.predict import BOOKKEEPING_NODE_BYTES
from onnxremat.tiling.plan import TilingPlan, most_nodes
from onnxremat.tiling.program import cheapest_route
from onnxremat.tiling.segments import Option, Segments
from onnxremat.tiling.sequence import Sequence, droppable
from onnxremat.units import format_bytes
from onnxremat_rewriters.tile import view

MOST_DROPPED = 6
"""At most so many values are dropped."""
MOST_CUTS = 160
"""At most so many cuts are ends of segments."""
MOST_EXPLAINED = 8
"""So many ops are asked at most why they cannot be cut."""
MOST_OPS = 160
"""A segment has at most so many ops."""
NEAR_CUTS = 8
"""A segment starts and ends at most so many cuts from an op that cannot run whole."""
PRECISION = 0.01
"""The smallest peak is looked for to this share."""
CHEAP = 0.01
"""With a plan that adds no more than this share of a run, no more values are dropped."""
TOLERANCE = 0.005
"""A route that costs this share of a run more than was estimated is compared again."""
EXTRA_SHARES = (0.03, 0.12, 0.4, 1.0)
"""Plans that add less than these shares of a run are looked for, one after the other; what adds
more than the last is no plan."""


@dataclass(frozen=True)
class _Choice:
    """A route for one set of dropped values, all its segments planned exactly."""

    sequence: Sequence
    options: tuple[Option, ...]
    peak_bytes: int
    cost: int
    nodes: int


def choose_regions(
    subject: Subject,
    budget_bytes: int | None,
    *,
    threads: int,
    allow_rounding: bool,
    seconds: float,
    stop: Callable[[], bool] | None = None,
) -> TilingPlan:
    """The regions with which a subject's peak is predicted to keep `budget_bytes` at least extra
    cost; None: those with the smallest peak, to 1%, that add no more than another run's time.

    If no regions reach the budget, the plan has the smallest peak found, and `reasons` say so. The
    tiled model has at most `most_nodes` nodes. `seconds`, and `stop()` turning true, may only cut
    the search short: without that the same arguments give the same plan.
    """
    end = time.monotonic() + seconds

    def late() -> bool:
        return time.monotonic() > end or (stop is not None and stop())

    chooser = _Chooser(subject, threads, allow_rounding, late)
    return chooser.plan(budget_bytes)


class _Chooser:
    def __init__(
        self, subject: Subject, threads: int, allow_rounding: bool, late: Callable[[], bool]
    ) -> None:
        looked_at = view(subject.released.model, subject.types)
        self._sequence = Sequence(subject.imported, looked_at)
        self._threads = threads
        self._allow_rounding = allow_rounding
        self._late = late
        self._nodes = len(subject.released.model.graph.node)
        self._one_pass = subject.imported.graph.total_cost()
        self._kinds: dict[tuple[int, ...], Segments] = {}
        self._cuts = _cuts(self._sequence)

    def plan(self, budget_bytes: int | None) -> TilingPlan:
        own_peak = max(self._sequence.step_bytes, default=0)
        if budget_bytes is not None and own_peak <= budget_bytes:
            return self._as_plan(None, ("whole ops keep the limit: nothing has to be cut",))
        if budget_bytes is None:
            found = self._smallest(own_peak)
            return self._as_plan(found, () if found else self._reasons(own_peak - 1))
        found = self._best(budget_bytes)
        if found is not None:
            return self._as_plan(found, ())
        smallest = self._smallest(own_peak, budget_bytes)
        if smallest is None:
            return self._as_plan(None, self._reasons(own_peak - 1))
        if smallest.peak_bytes <= budget_bytes:  # planned exactly, it holds less than estimated
            return self._as_plan(smallest, ())
        missed = (
            f"no tiling within {format_bytes(budget_bytes)} was found, the smallest is "
            f"{format_bytes(smallest.peak_bytes)}"
        )
        return self._as_plan(smallest, (missed,))

    def _smallest(self, own_peak: int, above: int = 0) -> _Choice | None:
        """The smallest peak that any plan reaches, known not to be below `above`."""
        low, high = above, own_peak
        best = None
        while high - low > PRECISION * high and not self._late():
            middle = (low + high) // 2
            found = self._cheapest(middle, False) or self._cheapest(middle, True)
            if found is None:
                low = middle
            else:
                best, high = found, min(middle, found.peak_bytes)
        if best is None:
            return None
        return self._cheapest(best.peak_bytes, True, best.cost) or best

    def _best(self, budget_bytes: int) -> _Choice | None:
        """The cheapest plan. One without carrying is found sooner, and bounds the search for one
        with it."""
        plain = self._cheapest(budget_bytes, False)
        if plain is None:
            return self._cheapest(budget_bytes, True)
        if plain.cost <= CHEAP * self._one_pass:
            return plain
        return self._cheapest(budget_bytes, True, plain.cost) or plain

    def _cheapest(self, budget_bytes: int, carry: bool, below_cost: float = inf) -> _Choice | None:
        """The cheapest plan over the prefixes of droppable values, if it costs less than
        `below_cost`. Cheap plans are looked for first: tiles that would cost more than is asked for
        are not followed back."""
        values = [
            t for t in droppable(self._sequence) if self._sequence.nbytes[t] * 20 >= budget_bytes
        ][:MOST_DROPPED]
        for share in EXTRA_SHARES:
            best: _Choice | None = None
            limit = min(share * self._one_pass, below_cost)
            for count in range(len(values) + 1):
                if best is not None and (self._late() or best.cost <= CHEAP * self._one_pass):
                    break
                found = self._route(tuple(values[:count]), budget_bytes, limit, carry)
                if found is not None and found.cost < limit:
                    best, limit = found, found.cost
            if best is not None or limit == below_cost:
                return best
        return None

    def _segments(self, dropped: tuple[int, ...]) -> Segments:
        if dropped not in self._kinds:
            self._kinds[dropped] = Segments(
                self._sequence.dropping(dropped),
                self._threads,
                self._allow_rounding,
                most_nodes(self._nodes) - self._nodes,
            )
        return self._kinds[dropped]

    def _route(
        self, dropped: tuple[int, ...], budget_bytes: int, below_cost: float, carry: bool
    ) -> _Choice | None:
        """The cheapest route whose segments keep the budget when they are planned exactly, with
        what the runtime needs for each node that is added."""
        segments = self._segments(dropped)
        sequence = segments.sequence
        room = most_nodes(self._nodes) - self._nodes
        per_node = reserved = 0
        while not self._late():
            limit = budget_bytes - reserved
            whole = [
                nbytes <= limit and v not in sequence.lacking
                for v, nbytes in enumerate(sequence.step_bytes)
            ]
            chosen: dict[tuple[int, int], Option] = {}
            cost_of = self._cost(segments, limit, per_node, chosen, carry)
            route = cheapest_route(whole, *_near(self._cuts, whole), cost_of, below_cost)
            if route is None:
                return None
            exact = [segments.exactly(*part, chosen[part]) for part in route.segments]
            if any(one is None or one.peak_bytes > limit for one in exact):
                continue
            options = tuple(one for one in exact if one is not None)
            if self._dearer(options, [chosen[part] for part in route.segments]):
                continue
            cost, nodes = sum(one.cost for one in options), sum(one.nodes for one in options)
            if nodes > room:
                per_node = per_node * 4 or 10_000
                if per_node > 1 << 40:
                    return None
                continue
            inside = {v for i, j in route.segments for v in range(i, j)}
            peaks = [b for v, b in enumerate(sequence.step_bytes) if v not in inside]
            peaks += [one.peak_bytes for one in options]
            bookkeeping = BOOKKEEPING_NODE_BYTES * max(0, nodes)
            peak = max(peaks, default=0) + bookkeeping
            if peak > budget_bytes:  # then more is needed than is reserved
                reserved = bookkeeping
                continue
            return _Choice(sequence, options, peak, cost, nodes)
        return None

    def _dearer(self, exact: Many[Option], estimates: Many[Option]) -> bool:
        """Whether a route turned out to cost so much more that another may be better."""
        more = sum(e.cost for e in exact) - sum(e.cost for e in estimates)
        return more > TOLERANCE * self._one_pass

    def _cost(
        self,
        segments: Segments,
        budget_bytes: int,
        per_node: int,
        chosen: dict[tuple[int, int], Option],
        carry: bool,
    ) -> Callable[[int, int, float], int | None]:
        def cost(i: int, j: int, below: float) -> int | None:
            if j - i > MOST_OPS or self._late():
                return None
            found = segments.within(i, j, budget_bytes, below, carry)
            if found is None:
                return None
            chosen[i, j] = found
            return max(0, found.cost) + per_node * max(0, found.nodes)

        return cost

    def _as_plan(self, found: _Choice | None, reasons: tuple[str, ...]) -> TilingPlan:
        own_peak = max(self._sequence.step_bytes, default=0)
        plan = TilingPlan(
            (),
            own_peak,
            own_peak,
            0,
            self._one_pass,
            0,
            self._threads,
            self._allow_rounding,
            reasons=reasons,
            late=self._late(),
        )
        if found is None:
            return plan
        tensors = self._sequence.imported.graph.tensors
        return replace(
            plan,
            regions=tuple(one.region for one in found.options if one.region is not None),
            peak_bytes=found.peak_bytes,
            extra_cost=found.cost,
            nodes_added=found.nodes,
            recomputed=tuple(tensors[t].name for t in found.sequence.dropped),
        )

    def _reasons(self, budget_bytes: int) -> tuple[str]:
        """Why the ops above a budget stay as they are, in one line: what ended the first walk that
        failed at one of them, or the op that holds most."""
        if self._late():
            return ("the time for planning was over before tiles that help were found",)
        segments = self._segments(())
        held = self._sequence.step_bytes
        hot = [v for v, nbytes in enumerate(held) if nbytes > budget_bytes]
        for v in hot[:MOST_EXPLAINED]:
            segments.families(v + 1)
        failed = next((segments.failures[v] for v in hot if v in segments.failures), None)
        if failed is not None:
            if any(segments.families(v + 1) for v in range(len(held))):
                return (f"no part of the model holds less when it is cut: {failed}",)
            return (f"no part of the model can be cut: {failed}",)
        most = max(range(len(held)), key=lambda v: held[v])
        op = self._sequence.imported.graph.ops[most]
        return (
            f"no part of the model holds less when it is cut: {op.name} ({op.op_type}) has "
            f"{format_bytes(held[most])} around it",
        )


def _cuts(sequence: Sequence) -> tuple[int, ...]:
    """Where segments may begin and end: where less is held than beside, and at both ends of a
    stretch where the same is held."""
    held, count = sequence.cut_bytes, sequence.count
    found = [
        c
        for c in range(1, count)
        if held[c] <= held[c - 1]
        and held[c] <= held[c + 1]
        and (held[c] < held[c - 1] or held[c] < held[c + 1])
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
