"""Plans for one limit: of whole ops, and in tiles where those do not do.

Subject -> substituted -> plan_within (whole ops)
             -> TileSearch -> tiled_subject -> plan_within (tiles)
             -> smallest_within (whole ops)

All of it shares the seconds of one `Deadline`. Whole ops come first, with a share of them, or
with none if one op alone exceeds the limit. Then tiles, and what is left is for whole ops again.

Whatever `--mem min` finds keeps every limit that it fits, so the searches for the smallest peak
are a part of planning for a limit: that of whole ops is what ends it, that of tiles what begins
their choice (`onnxremat.tiling.choose`). Both have at least the seconds there that they have where
the smallest peak is asked for.
"""

from dataclasses import dataclass, replace
from typing import Self

from onnxremat.core.attempt import ORIGINAL, TAKEN, Attempt
from onnxremat.core.deadline import Deadline
from onnxremat.core.errors import InfeasibleError
from onnxremat.core.problem import Problem, make_plan
from onnxremat.core.schedule import Schedule
from onnxremat.core.training import NotTrainingError, split_training
from onnxremat.fitting.in_tiles import ONLY_TILES, Tiles
from onnxremat.fitting.outcomes import (
    Planned,
    Tried,
    TriedTiles,
    plans_of,
    taken_of,
    why_missed,
)
from onnxremat.fitting.searches import Search, Searches
from onnxremat.fitting.substitution import substituted
from onnxremat.options import Options
from onnxremat.stages import ProgressReport
from onnxremat.subject import Subject
from onnxremat.targets.target import Made, Target
from onnxremat_rewriters.recompute import Rewritten


@dataclass(frozen=True)
class Shares:
    """Of all seconds. `whole`: for whole ops, directed at a limit; `smallest`: for their smallest
    peak, where that is asked for. `order`: for an order that tiles are chosen in; `tiles`: for
    choosing them; `tiled`: for planning the model in tiles, each time. What is left is for whole
    ops again; where they miss a limit, it must be `smallest` and more."""

    whole: float
    smallest: float
    order: float
    tiles: float
    tiled: float


USUAL = Shares(0.2, 0.17, 0.1, 0.3, 0.05)
TRAINING = Shares(0.3, 0.35, 0.05, 0.1, 0.03)
"""In training graphs the peak is what the backward pass still reads: tiles seldom lower it."""
USUAL_IN_TIME, TRAINING_IN_TIME = replace(USUAL, smallest=0.3), replace(TRAINING, smallest=0.6)
"""Where time is limited as well, and several peaks are planned for."""
UNTILED = Shares(0.5, 0.4, 0.0, 0.0, 0.0)
"""Where nothing may be cut."""

CUT_SHORT = 0.8
"""Whole ops that took this share of their seconds would have been searched on."""


@dataclass(frozen=True)
class Attempts:
    """What planning for one limit needs, however the model is cut: the model as it was `given`, and
    the `whole` with substitutes where ops hold most of the limit."""

    given: Subject
    whole: Subject
    searches: Searches
    tiles: Tiles

    @classmethod
    def of(
        cls,
        given: Subject,
        target: Target,
        options: Options,
        budget: int | None,
        deadline: Deadline,
        progress: ProgressReport,
    ) -> Self:
        """For a budget in bytes, None for the smallest peak."""
        rounding = options.allow_rounding
        whole = substituted(given, budget, target.rules, progress, allow_rounding=rounding)
        searches = Searches(target, options, budget, deadline, progress)
        return cls(given, whole, searches, Tiles(searches))

    def best(self) -> Planned:
        """Whole ops if they keep the limit in the time of one pass, else whichever is better:
        whole ops or tiles. Raises as `plan_within`."""
        searches, whole = self.searches, self.whole
        budget = searches.budget
        if budget is None:
            return self._smallest_of_all()
        impossible = searches.outputs_above_limit(whole)
        if impossible is not None:
            raise impossible
        shares = self._shares()
        part = searches.deadline.share(shares.whole)
        beyond = searches.bound_above_limit(whole)
        first = searches.tried(Search(whole, part)) if beyond is None else Tried()
        tried, tiled, base, starts = [first], TriedTiles(), whole, tuple[Schedule, ...]()
        attempts = [*first.attempts]
        if self.tiles.allowed(whole) and not searches.enough(tried):
            order = searches.order(whole, shares.order)
            starts = (order,)
            if searches.keeps(whole, order):
                seconds = searches.deadline.share(shares.tiled)
                tried.append(searches.tried(Search(whole, seconds, starts=starts)))
                attempts += tried[-1].attempts
            if not searches.enough(tried):
                choosing = ONLY_TILES if first.nothing else shares.tiles
                base = self.tiles.tileable(whole)
                order = order if base is whole else searches.order(base, shares.order)
                tiled = self.tiles.tried(base, order, tried, shares.tiled, choosing)
                tried += tiled.tried
                attempts += tiled.attempts
        if not searches.enough(tried):
            again = self._again(first, part, tiled, starts)
            attempts += [one for each in again for one in each.attempts]
            tried += again
        plans, cut = plans_of(tried), searches.options.tiles
        if not plans and self._keeps_as_it_came():
            plans = [self._as_it_came()]
            attempts += plans[0].attempts
        if plans:
            return taken_of(searches.best_of(plans), attempts)
        bound = self.tiles.uncut_bound(base) if cut else None
        raise why_missed(
            tried, tiled, searches.deadline, budget, bound, cut=cut, attempts=tuple(attempts)
        )

    def _keeps_as_it_came(self) -> bool:
        """Whether the original keeps the limit, and can be the result: a few bytes that its own
        order takes more without unread values, or with a node for one, are no reason to miss it."""
        target, budget = self.searches.target, self.searches.budget
        return target.takes_original and budget is not None and target.original.peak_bytes <= budget

    def _as_it_came(self) -> Planned:
        """The original, in its own order."""
        given, target, budget = self.given, self.searches.target, self.searches.budget
        problem = Problem(given.imported.graph, target.rules, budget_bytes=budget)
        plan = make_plan(problem, self.searches.own(given), "given_order", peak_bound_bytes=0)
        model, peak = given.feed.as_it_came.model, target.original.peak_bytes
        rewritten = Rewritten(model, tuple(range(len(model.graph.node))), 0)
        made = Made(rewritten, model, target.original, peak)
        attempt = Attempt(
            ORIGINAL, plan.planner, budget, plan.peak_bytes, peak, peak, 0.0, TAKEN, 0.0
        )
        return Planned(given, plan, made, attempts=(attempt,))

    def _smallest_of_all(self) -> Planned:
        """The smallest peak of whole ops and tiles: nothing that planning for a limit would not do
        too, in as many seconds."""
        searches, whole = self.searches, self.whole
        shares = self._shares()
        cut = self.tiles.allowed(whole)
        order = searches.order(whole, shares.order) if cut else None
        starts = () if order is None else (order,)
        part = searches.same_each_time(shares.smallest)
        first = Tried(searches.planned(Search(whole, part, starts=starts)))
        if order is None or searches.deadline.stopped():
            return taken_of(searches.best_of(plans_of([first])), first.attempts)
        seconds = ONLY_TILES if searches.is_least(whole, first) else shares.tiles
        base = self.tiles.tileable(whole)
        order = order if base is whole else searches.order(base, shares.order)
        tiled = self.tiles.tried(base, order, [first], shares.tiled, seconds)
        best = searches.best_of(plans_of([first, *tiled.tried]))
        return taken_of(best, first.attempts + tiled.attempts)

    def _again(
        self,
        first: Tried,
        part: Deadline,
        tiled: TriedTiles,
        starts: tuple[Schedule, ...],
    ) -> list[Tried]:
        """Whole ops again: the smallest peak, as where it is asked for, even where a busy machine
        has left no time for it; and from there, in what is left, what keeps the limit, unless that
        was found."""
        searches, whole = self.searches, self.whole
        if first.nothing:
            return [] if tiled.found else [searches.tried(Search(whole, searches.deadline))]
        if searches.deadline.stopped() or isinstance(first.missed, InfeasibleError):
            return []
        least, shares = self._least(), self._shares()
        if least is not whole and starts:
            starts = (searches.order(least, shares.order),)
        seconds = searches.same_each_time(shares.smallest)
        smallest = searches.tried(Search(least, seconds, starts=starts, smallest=True))
        if searches.deadline.spent or searches.enough([smallest]):
            return [smallest]
        found = first.planned is not None
        if found and (tiled.found or not part.passed(CUT_SHORT)):
            return [smallest]
        onward = dict.fromkeys((*(smallest.starts if least is whole else ()), *first.starts))
        return [smallest, searches.tried(Search(whole, searches.deadline, starts=tuple(onward)))]

    def _least(self) -> Subject:
        """What the smallest peak is looked for in where that is asked for; `whole` itself if the
        same ops are replaced there."""
        searches = self.searches
        least = substituted(
            self.given,
            None,
            searches.target.rules,
            searches.progress,
            allow_rounding=searches.options.allow_rounding,
        )
        return self.whole if least.replaced == self.whole.replaced else least

    def _shares(self) -> Shares:
        if not self.searches.options.tiles:
            return UNTILED
        in_time = self.searches.budget is None and self.searches.options.max_slowdown is not None
        try:
            split_training(self.whole.imported.graph)
        except NotTrainingError:
            return USUAL_IN_TIME if in_time else USUAL
        return TRAINING_IN_TIME if in_time else TRAINING
