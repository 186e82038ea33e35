"""Tiles for one limit: chosen, and the model in them planned and measured like any other."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from functools import cached_property

from onnxremat.core.bounds import PeakBound
from onnxremat.core.deadline import Deadline
from onnxremat.core.schedule import Schedule
from onnxremat.core.units import format_bytes
from onnxremat.fitting.loop import ALLOWED, PlanMissedError
from onnxremat.fitting.outcomes import Tried, TriedTiles, plans_of
from onnxremat.fitting.searches import Search, Searches
from onnxremat.stages import CHOOSING, NOTE
from onnxremat.subject import Subject
from onnxremat.tiling import (
    TileSearch,
    Tiling,
    TilingPlan,
    ordered_subject,
    tileable_subject,
    tiled_subject,
    uncut_bound,
)

TILING_TARGETS = (1.0, 0.95, 0.88, None)
"""Shares of the limit that tiles are chosen for in turn: the runtime may take more than predicted.
At last (None) the smallest peak is tried, as it is where that is asked for."""

ONLY_TILES = 0.7
"""Of all seconds, for choosing tiles where whole ops have nothing to look for: one alone exceeds
the limit, or their smallest peak is proved."""

HALVINGS, PREDICTED_HALVINGS = 3, 3
"""Of a step to smaller tiles that takes too long: measured, and looked at before."""

BETWEEN = 0.15
"""Of all seconds, for looking at tiles between such a step's."""

FEWER_NODES = 0.95
"""Of those that tiles add whose file takes too long to open, at most, for all after them: that time
is for nodes, and what runs in about as much time may have many or few. Fewer, by as much as that
time is too long."""

NEAR_LIMIT = 1.05
"""What is predicted to take at most this share of a limit may keep it."""

WORTH_REORDERING = 0.8
"""Tiles are chosen in the file's own order unless another one has this share of its peak, or less:
what can be cut together lies together there, as it was written, layer by layer. Where nothing can,
the other one is next."""


@dataclass(frozen=True)
class Tiles:
    """Tiles of a subject for the limit of `searches`."""

    searches: Searches

    def allowed(self, whole: Subject) -> bool:
        """Whether tiles are allowed, and the outputs, which they make whole too, fit the limit."""
        graph, rules = whole.imported.graph, self.searches.target.rules
        outputs = sum(rules.nbytes(graph.tensors[t]) for t in set(graph.outputs))
        budget = self.searches.budget
        return self.searches.options.tiles and (budget is None or outputs <= budget)

    def tileable(self, whole: Subject) -> Subject:
        """The subject with its ops in forms that tiles can go through."""
        searches = self.searches
        return tileable_subject(
            whole,
            searches.budget,
            searches.target.rules,
            allow_rounding=searches.options.allow_rounding,
        )

    def tried(
        self,
        whole: Subject,
        order: Schedule,
        tried: list[Tried],
        planning: float,
        choosing: float,
    ) -> TriedTiles:
        """A plan of the model in tiles, none if those miss the limit or plans of whole ops are as
        good; `choosing` and `planning` are the shares of all seconds for them, and for planning
        the model in them each time."""
        searches = self.searches
        searches.tell(CHOOSING)
        budget, part = searches.budget, searches.deadline.share(choosing, busy=True)

        def searched_in(order: Schedule) -> tuple[Subject, TileSearch]:
            subject = ordered_subject(whole, order, searches.target.rules)
            target = searches.target
            tiling = self._tiling._replace(
                fused=target.fused(subject), joined=target.joined(subject)
            )
            return subject, TileSearch(subject, tiling, part)

        orders = list(dict.fromkeys((self._order_of_tiles(whole, order), order)))
        base, search = searched_in(orders.pop(0))
        if searches.target.tile_shares:
            return self._measured(base, search, part, tried, planning)
        found = TriedTiles()
        for share in (None,) if budget is None else TILING_TARGETS:
            if share is not None and found.tiling is not None and not found.tiling.meets(budget):
                continue
            searches.tell(CHOOSING)
            began, asked = time.perf_counter(), self._part_of_budget(share)
            tiling = _chosen(search, asked, part)
            if orders and not (tiling.regions or tiling.late):
                base, search = searched_in(orders.pop())
                tiling = _chosen(search, asked, part)
            if budget is None and choosing < ONLY_TILES and self._only_tiles(whole, tiling):
                tiling = self._descended(search, ONLY_TILES - choosing)
            untried = self._untried(found, tiling, asked, began)
            met = tiling.meets(budget)
            why = "no better than whole ops" if met else "predicted above the limit"
            if not tiling.regions or not self._pays(tiling, tried):
                return untried(why)
            again = found.tiling is not None and found.tiling.regions == tiling.regions
            if share is not None and (again or not met):
                found = found if again else untried(why)
                continue
            tiled = self._learned(base, tiling)
            bound = searches.bound_above_limit(tiled)
            if bound is not None:
                least = format_bytes(bound.nbytes)
                found = untried(f"in tiles no schedule goes below {least} ({bound.reason})")
                continue
            smallest = asked is None
            seconds = (searches.same_each_time if smallest else searches.deadline.share)(planning)
            one = searches.tried(Search(tiled, seconds, tiling, smallest=smallest))
            found = found.with_tried(tiling, one)
            if one.planned is not None:
                break
        if asked is None or found.last.planned is None or found.tiling is None:
            return found
        return self._cheaper(base, search, part, found, planning)

    def _cheaper(
        self, base: Subject, search: TileSearch, part: Deadline, found: TriedTiles, planning: float
    ) -> TriedTiles:
        """The same and the plan of the smallest peak in tiles, if that may keep the limit too, and
        is predicted to take less time than what was found (perhaps in the same tiles: there, what
        was planned for the limit may compute more again, only to be predicted below it)."""
        searches, taken = self.searches, found.last.planned
        assert taken is not None
        least = _chosen(search, None, part)
        near = int(NEAR_LIMIT * (searches.budget or 0))
        if not least.regions or least.extra_time >= taken.extra_time or least.peak_bytes > near:
            return found
        tiled, seconds = self._learned(base, least), searches.same_each_time(planning)
        search_of_least = Search(tiled, seconds, least, smallest=True)
        return found.with_tried(least, searches.tried(search_of_least))

    def _measured(
        self,
        base: Subject,
        search: TileSearch,
        part: Deadline,
        tried: list[Tried],
        planning: float,
    ) -> TriedTiles:
        """Tiles where only measuring tells what they take: more and more of them, as long as what
        is measured gets less; until the limit is kept, if there is one. A step that takes too
        long is halved a few times; where the first ones do, smaller tiles, which stay in the
        processor's caches, may take less."""
        own = self.searches.peak(base, self.searches.own(base))
        measuring = _Measuring(base, search, part, tried, planning, own)
        found, fast = TriedTiles(), None
        for share in self.searches.target.tile_shares:
            found, became = self._measured_at(share, found, measuring)
            if became is _Became.LESS:
                fast = share
            elif became is _Became.SLOW and fast is not None:
                return self._between(fast, share, found, measuring)
            elif became is _Became.NO_BETTER:
                break
        return found

    def _between(self, fast: float, slow: float, found: TriedTiles, of: "_Measuring") -> TriedTiles:
        """The same and tiles for shares between one that was fast enough and one that was not."""
        of = replace(of, part=self.searches.deadline.share(BETWEEN, busy=True))
        share = self._promising(fast, slow, of)
        for _ in range(HALVINGS):
            found, became = self._measured_at(share, found, of)
            if became is _Became.NO_BETTER:
                break
            fast, slow = (share, slow) if became is _Became.LESS else (fast, share)
            share = math.sqrt(fast * slow)
        return found

    def _promising(self, fast: float, slow: float, of: "_Measuring") -> float:
        """The least share between two, by halvings too, whose tiles are predicted to be fast
        enough; that in their middle, if none is. Time goes up in steps, by what is made again, and
        predictions know where."""
        slowdown, middle = self.searches.options.max_slowdown, math.sqrt(fast * slow)
        promising = share = middle
        for _ in range(PREDICTED_HALVINGS):
            tiling = _chosen(of.search, int(share * of.own_bytes), of.part)
            if slowdown is not None and tiling.extra_time <= slowdown:
                promising = fast = share
            else:
                slow = share
            share = math.sqrt(fast * slow)
        return promising

    def _measured_at(
        self, share: float, found: TriedTiles, of: "_Measuring"
    ) -> tuple[TriedTiles, "_Became"]:
        """The tiles for a share of the own peak, measured, and what became of them."""
        searches = self.searches
        budget, slowdown = searches.budget, searches.options.max_slowdown
        searches.tell(CHOOSING)
        began, asked = time.perf_counter(), int(share * of.own_bytes)
        tiling = _chosen(of.search, asked, of.part)
        untried = self._untried(found, tiling, asked, began)
        if not tiling.regions or tiling.regions in of.seen:
            return untried("the same as before"), _Became.SAME
        of.seen.add(tiling.regions)
        if budget is not None and not self._is_faster(tiling, of.tried):
            return untried("no better than whole ops"), _Became.NO_BETTER
        if slowdown is not None and tiling.extra_time > ALLOWED[0] * slowdown:
            return untried(f"predicted {100 * tiling.extra_time:+.1f}% time"), _Became.SLOW
        tiled, seconds = self._learned(of.base, tiling), searches.deadline.share(of.planning)
        one = searches.tried(Search(tiled, seconds, tiling))
        best, taken = self._best_bytes([*of.tried, *found.tried]), self._best_bytes([one])
        found = found.with_tried(tiling, one)
        if one.load_share is not None:
            of.search.narrow(int(min(FEWER_NODES, one.load_share) * tiling.nodes_added))
        if one.refused:
            return found, _Became.SLOW
        kept = one.planned is not None and budget is not None
        more = taken is not None and best is not None and taken > best
        return found, _Became.NO_BETTER if kept or more else _Became.LESS

    def _untried(
        self, found: TriedTiles, tiling: TilingPlan, asked: int | None, began: float
    ) -> Callable[[str], TriedTiles]:
        """What makes of a reason the same and a tiling that is not tried for it."""
        seconds = time.perf_counter() - began

        def ended(why: str) -> TriedTiles:
            result = found.with_untried(tiling, asked, seconds, why)
            self.searches.progress(NOTE, str(result.attempts[-1]))
            return result

        return ended

    def _best_bytes(self, tried: list[Tried]) -> int | None:
        """The least that was measured, of plans and of what missed the limit."""
        plans = [one.made.compared_bytes for one in plans_of(tried)]
        missed = [one.missed.peak_bytes for one in tried if isinstance(one.missed, PlanMissedError)]
        return min(plans + missed, default=None)

    def uncut_bound(self, whole: Subject) -> PeakBound | None:
        """What tiles cannot go below, as far as anything is proved."""
        proved = self.searches.target.bound_rules is not None
        return uncut_bound(whole, self._tiling) if proved else None

    def _descended(self, search: TileSearch, share: float) -> TilingPlan:
        """The smallest peak after a share of all seconds more."""
        more = self.searches.deadline.share(share, busy=True)
        search.extend(more.limits.seconds)
        return _chosen(search, None, more)

    def _only_tiles(self, whole: Subject, tiling: TilingPlan) -> bool:
        """Whether tiles go below all whole ops: a limit there would leave them more seconds."""
        bound = self.searches.bound(whole)
        return bool(tiling.regions) and bound is not None and tiling.peak_bytes < bound.nbytes

    def _part_of_budget(self, share: float | None) -> int | None:
        budget = self.searches.budget
        return None if share is None or budget is None else int(share * budget)

    @cached_property
    def _tiling(self) -> Tiling:
        options, target = self.searches.options, self.searches.target
        return Tiling(
            target.rules, target.added_node_bytes, options.exact_threads, options.allow_rounding
        )

    def _order_of_tiles(self, whole: Subject, found: Schedule) -> Schedule:
        """The order that regions are parts of: the file's own, or the one that was found."""
        searches = self.searches
        own = searches.own(whole)
        smaller = searches.peak(whole, found) <= WORTH_REORDERING * searches.peak(whole, own)
        return found if smaller else own

    def _pays(self, tiling: TilingPlan, tried: list[Tried]) -> bool:
        """Whether tiles are worth a try beside the plans of whole ops."""
        plans, budget = plans_of(tried), self.searches.budget
        if not plans:
            return True
        if budget is None:
            return tiling.peak_bytes < self.searches.best_of(plans).made.measured.peak_bytes
        return tiling.meets(budget) and self._is_faster(tiling, tried)

    def _is_faster(self, tiling: TilingPlan, tried: list[Tried]) -> bool:
        """Whether tiles are predicted to take less time than the plans of whole ops that keep the
        limit, if there are any."""
        plans = plans_of(tried)
        return not plans or tiling.extra_time < self.searches.best_of(plans).extra_time

    def _learned(self, base: Subject, tiling: TilingPlan) -> Subject:
        """The subject in tiles."""
        self.searches.progress("running the tiled model to learn sizes, workspace and times")
        return tiled_subject(base, tiling)


class _Became(Enum):
    """Of tiles that are measured, beside those before them: they take less; they are the same; they
    are refused for their time (or their bits); none after them would be any better."""

    LESS = auto()
    SAME = auto()
    SLOW = auto()
    NO_BETTER = auto()


@dataclass(frozen=True)
class _Measuring:
    """What tiles are looked for in, and beside what: `own_bytes` is the peak of the own order."""

    base: Subject
    search: TileSearch
    part: Deadline
    tried: list[Tried]
    planning: float
    own_bytes: int
    seen: set[object] = field(default_factory=set)


def _chosen(search: TileSearch, asked: int | None, part: Deadline) -> TilingPlan:
    """Tiles for so many bytes in the rest of a part of the time; None for the smallest peak, which
    has all of it: it is to be found again for a limit."""
    with part.passing():
        return search.plan(asked, part.limits.seconds if asked is None else part.left_seconds)
