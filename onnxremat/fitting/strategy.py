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

import time
from dataclasses import dataclass, replace
from functools import partial

from onnxremat.core.attempt import ORIGINAL, TAKEN, Attempt
from onnxremat.core.bounds import PeakBound, peak_bound
from onnxremat.core.deadline import Deadline
from onnxremat.core.errors import InfeasibleError, NoPlanFoundError
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.problem import Planner, Problem, Progress, make_plan
from onnxremat.core.schedule import Schedule
from onnxremat.core.training import NotTrainingError, split_training
from onnxremat.core.units import format_bytes, format_seconds
from onnxremat.fitting.loop import (
    ALIKE,
    Runtime,
    plan_within,
    smallest_within,
)
from onnxremat.fitting.outcomes import (
    Planned,
    Tried,
    TriedTiles,
    plans_of,
    taken_of,
    why_missed,
    words_of,
)
from onnxremat.options import Options
from onnxremat.ort.recipe import ExecutionOrder
from onnxremat.planners import PLANNERS
from onnxremat.stages import CHOOSING, PLANNING, ProgressReport
from onnxremat.subject import Subject, with_substitutes
from onnxremat.targets.target import Made, Target, own_schedule
from onnxremat.tiling import (
    TileSearch,
    Tiling,
    TilingPlan,
    ordered_subject,
    tileable_subject,
    tiled_subject,
    uncut_bound,
)
from onnxremat_rewriters.recompute import Rewritten
from onnxremat_rewriters.substitutes import substitutions

TILING_TARGETS = (1.0, 0.95, 0.88, None)
"""Shares of the limit that tiles are chosen for in turn: the runtime may take more than predicted.
At last (None) the smallest peak is tried, as it is where that is asked for."""


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
UNTILED = Shares(0.5, 0.4, 0.0, 0.0, 0.0)
"""Where nothing may be cut."""
ONLY_TILES = 0.7
"""For choosing tiles where whole ops have nothing to look for: one alone exceeds the limit, or
their smallest peak is proved."""

MOST_OF_LIMIT = 0.8
"""Ops that alone take this share of a limit are replaced: beside them there is always more."""

LEAST_REPLACED_BYTES = 16384
"""Where the smallest peak is asked for, ops that hold less are not replaced: the nodes that would
stand for them take the runtime some hundred bytes each in a run."""

WORTH_REORDERING = 0.9
"""Tiles are chosen in the file's own order unless another one has this share of its peak, or less:
what can be cut together lies together there, as it was written, layer by layer. Where nothing can,
the other one is next."""

CUT_SHORT = 0.8
"""Whole ops that took this share of their seconds would have been searched on."""


@dataclass(frozen=True)
class Search:
    """One search for a plan: of what, in which time, from which orders beside the file's own, and
    whether for the `smallest` peak. `tiling` is how the subject was cut, None for whole ops."""

    subject: Subject
    deadline: Deadline
    tiling: TilingPlan | None = None
    starts: tuple[Schedule, ...] = ()
    smallest: bool = False


@dataclass(frozen=True)
class Attempts:
    """What planning for one limit needs, however the model is cut."""

    target: Target
    options: Options
    budget: int | None
    deadline: Deadline
    progress: ProgressReport

    def best(self, whole: Subject, given: Subject) -> Planned:
        """Whole ops if they keep the limit in the time of one pass, else whichever is better:
        whole ops or tiles. `given` is what `whole` was before ops were `substituted`. Raises as
        `plan_within`."""
        if self.budget is None:
            return self._smallest_of_all(whole)
        shares = self._shares(whole)
        part = self.deadline.share(shares.whole)
        beyond = self._bound_above_limit(whole)
        first = self._tried(Search(whole, part)) if beyond is None else Tried()
        tried, tiled, base, starts = [first], TriedTiles(), whole, tuple[Schedule, ...]()
        attempts = [*first.attempts]
        if self._may_cut(whole) and not self._enough(tried):
            order = self._order(whole, shares)
            starts = (order,)
            if self._keeps(whole, order):
                seconds = self.deadline.share(shares.tiled)
                tried.append(self._tried(Search(whole, seconds, starts=starts)))
                attempts += tried[-1].attempts
            if not self._enough(tried):
                choosing = ONLY_TILES if first.nothing else shares.tiles
                base = self._tileable(whole)
                order = order if base is whole else self._order(base, shares)
                tiled = self._tiled(base, order, tried, shares.tiled, choosing)
                tried.append(tiled.last)
                attempts += tiled.attempts
        if not self._enough(tried):
            again = self._again(whole, given, first, part, tiled.last, starts)
            attempts += [one for each in again for one in each.attempts]
            tried += again
        plans, cut = plans_of(tried), self.options.tiles
        if not plans and self._keeps_as_it_came():
            plans = [self._as_it_came(given)]
            attempts += plans[0].attempts
        if plans:
            return taken_of(self._best_of(plans), attempts)
        bound = self._uncut_bound(base) if cut else None
        raise why_missed(
            tried, tiled, self.deadline, self.budget, bound, cut=cut, attempts=tuple(attempts)
        )

    def _keeps_as_it_came(self) -> bool:
        """Whether the original keeps the limit, and can be the result: a few bytes that its own
        order takes more without unread values, or with a node for one, are no reason to miss it."""
        target, budget = self.target, self.budget
        return target.takes_original and budget is not None and target.original.peak_bytes <= budget

    def _as_it_came(self, given: Subject) -> Planned:
        """The original, in its own order."""
        problem = Problem(given.imported.graph, self.target.rules, budget_bytes=self.budget)
        own = own_schedule(given.imported, ExecutionOrder(self.options.order))
        plan = make_plan(problem, own, "given_order", peak_bound_bytes=0)
        model, peak = given.feed.loaded.model, self.target.original.peak_bytes
        rewritten = Rewritten(model, tuple(range(len(model.graph.node))), 0)
        made = Made(rewritten, model, self.target.original, peak)
        attempt = Attempt(
            ORIGINAL, plan.planner, self.budget, plan.peak_bytes, peak, peak, 0.0, TAKEN, 0.0
        )
        return Planned(given, plan, made, attempts=(attempt,))

    def _smallest_of_all(self, whole: Subject) -> Planned:
        """The smallest peak of whole ops and tiles: nothing that planning for a limit would not do
        too, in as many seconds."""
        shares = self._shares(whole)
        cut = self._may_cut(whole)
        order = self._order(whole, shares) if cut else None
        starts = () if order is None else (order,)
        part = self._same_each_time(shares.smallest)
        first = Tried(self._planned(Search(whole, part, starts=starts)))
        if order is None or self.deadline.stopped():
            return taken_of(self._best_of(plans_of([first])), first.attempts)
        seconds = ONLY_TILES if self._is_least(whole, first) else shares.tiles
        base = self._tileable(whole)
        order = order if base is whole else self._order(base, shares)
        tiled = self._tiled(base, order, [first], shares.tiled, seconds)
        best = self._best_of(plans_of([first, tiled.last]))
        return taken_of(best, first.attempts + tiled.attempts)

    def _again(
        self,
        whole: Subject,
        given: Subject,
        first: Tried,
        part: Deadline,
        tiled: Tried,
        starts: tuple[Schedule, ...],
    ) -> list[Tried]:
        """Whole ops again: the smallest peak, as where it is asked for, even where a busy machine
        has left no time for it; and from there, in what is left, what keeps the limit, unless that
        was found."""
        if first.nothing:
            found = tiled.planned is not None
            return [] if found else [self._tried(Search(whole, self.deadline))]
        if self.deadline.stopped() or isinstance(first.missed, InfeasibleError):
            return []
        least, shares = self._least(whole, given), self._shares(whole)
        if least is not whole and starts:
            starts = (self._order(least, shares),)
        seconds = self._same_each_time(shares.smallest)
        smallest = self._tried(Search(least, seconds, starts=starts, smallest=True))
        if self.deadline.spent or self._enough([smallest]):
            return [smallest]
        found = first.planned is not None
        if found and (tiled.planned is not None or not part.passed(CUT_SHORT)):
            return [smallest]
        onward = dict.fromkeys((*(smallest.starts if least is whole else ()), *first.starts))
        return [smallest, self._tried(Search(whole, self.deadline, starts=tuple(onward)))]

    def _least(self, whole: Subject, given: Subject) -> Subject:
        """What the smallest peak is looked for in where that is asked for; `whole` itself if the
        same ops are replaced there."""
        rounding = self.options.allow_rounding
        least = substituted(given, None, self.target.rules, self.progress, allow_rounding=rounding)
        return whole if least.replaced == whole.replaced else least

    def _enough(self, tried: list[Tried]) -> bool:
        """Whether nothing better is looked for: a plan keeps the limit in the time of one pass, or
        there is one and planning is to stop."""
        plans = plans_of(tried)
        return bool(plans) and (self.deadline.stopped() or self._best_of(plans).extra_time <= 0)

    def _may_cut(self, whole: Subject) -> bool:
        """Whether tiles are allowed, and the outputs, which they make whole too, fit the limit."""
        graph, rules = whole.imported.graph, self.target.rules
        outputs = sum(rules.nbytes(graph.tensors[t]) for t in set(graph.outputs))
        return self.options.tiles and (self.budget is None or outputs <= self.budget)

    def _shares(self, whole: Subject) -> Shares:
        if not self.options.tiles:
            return UNTILED
        try:
            split_training(whole.imported.graph)
        except NotTrainingError:
            return USUAL
        return TRAINING

    def _same_each_time(self, share: float) -> Deadline:
        """A share of all seconds, of counted work if the planner counts it: what `--mem min` does
        in it, and planning for a limit does again."""
        if self.options.iterations is None and PLANNERS[self.options.planner].counts_work:
            return self.deadline.counting_work(share)
        return self.deadline.share(share)

    def _bound(self, subject: Subject) -> PeakBound | None:
        rules = self.target.bound_rules
        if rules is None:
            return None
        bound = peak_bound(subject.imported.graph, rules)
        return None if self._is_refuted(subject, bound) else bound

    def _is_refuted(self, subject: Subject, bound: PeakBound) -> bool:
        """Whether the model itself takes less, measured, than the bound of its ops says: then the
        rules hold some value that the runtime does not."""
        own = min(self.target.original.peak_bytes, self.target.released.peak_bytes)
        return not (subject.replaced or subject.sized) and own < bound.nbytes

    def _bound_above_limit(self, subject: Subject) -> PeakBound | None:
        """The bound of an op that alone exceeds the limit, None if none is proved to do so."""
        bound = self._bound(subject)
        if bound is None or self.budget is None or bound.nbytes <= self.budget:
            return None
        return bound

    def _is_least(self, whole: Subject, smallest: Tried) -> bool:
        """Whether the smallest peak of whole ops is proved."""
        bound = self._bound(whole)
        peak = None if smallest.planned is None else smallest.planned.plan.peak_bytes
        return bound is not None and peak is not None and peak <= bound.nbytes

    def _tried(self, search: Search) -> Tried:
        try:
            return Tried(self._planned(search))
        except (InfeasibleError, NoPlanFoundError) as error:
            return Tried(missed=error)

    def _best_of(self, plans: list[Planned]) -> Planned:
        """The fastest within the limit; of those about as small as the smallest without one."""
        peaks = [one.made.measured.peak_bytes for one in plans]
        most = max(peaks) if self.budget is not None else (1 + ALIKE) * min(peaks)
        small = [one for one, peak in zip(plans, peaks, strict=True) if peak <= most]
        return min(small, key=lambda one: (one.extra_time, one.made.measured.peak_bytes))

    def _planned(self, search: Search) -> Planned:
        """A plan that keeps the limit where it is measured."""
        target, options = self.target, self.options
        subject, tiling = search.subject, search.tiling
        graph = subject.imported.graph
        mode = ExecutionOrder(options.order)
        as_given = own_schedule(subject.imported, mode)
        problem = Problem(
            graph,
            target.rules,
            budget_bytes=self.budget,
            max_copies=None if options.recompute else 1,
            depth_first=mode is ExecutionOrder.DEFAULT,
            starts=(*search.starts, as_given),
        )
        own_order = make_plan(problem, as_given, "given_order", peak_bound_bytes=0)
        expected_bytes = target.forecast(subject, own_order).expected_bytes
        runtime = Runtime(
            bound=self._bound(subject),
            error_bytes=expected_bytes - own_order.peak_bytes,
            tolerance=target.tolerance,
            forecast=partial(target.forecast, subject),
            make=partial(target.make, subject),
            of=words_of(tiling),
            extra_time=None if tiling is None else tiling.extra_time_with,
        )
        planner = PLANNERS[options.planner].function
        planner = _telling(planner, graph.total_cost(), self.progress)
        count = options.iterations
        most = f"{options.time_limit:g} s in all" if count is None else f"{count} iterations a plan"
        self.progress(PLANNING, f"at most {most}")
        if search.smallest:
            found = smallest_within(problem, planner, search.deadline, runtime)
        else:
            allowed = self._allowed()
            found = plan_within(problem, planner, search.deadline, runtime, rewriters=allowed)
        return Planned(subject, found.plan, found.made, tiling, found.attempts)

    def _allowed(self) -> str:
        """The rewriters that are allowed, in words."""
        named = ["reordering"]
        if self.options.recompute:
            named.insert(0, "recomputation")
        named.append("exact substitutes")
        if self.options.allow_rounding:
            named.append("substitutes that round differently")
        else:
            named[-1] += " (--allow-rounding permits more)"
        return ", ".join(named[:-1]) + " and " + named[-1]

    def _tileable(self, whole: Subject) -> Subject:
        rounding = self.options.allow_rounding
        return tileable_subject(whole, self.budget, self.target.rules, allow_rounding=rounding)

    def _tiled(
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
        self.progress(CHOOSING)
        budget, part = self.budget, self.deadline.share(choosing, busy=True)

        def searched_in(order: Schedule) -> tuple[Subject, TileSearch]:
            subject = ordered_subject(whole, order, self.target.rules)
            return subject, TileSearch(subject, self._tiling, part)

        orders = list(dict.fromkeys((self._order_of_tiles(whole, order), order)))
        base, search = searched_in(orders.pop(0))
        found = TriedTiles()
        for share in TILING_TARGETS:
            if share is not None and found.tiling is not None and not found.tiling.meets(budget):
                continue
            self.progress(CHOOSING)
            began, asked = time.perf_counter(), self._part_of_budget(share)
            with part.passing():
                tiling = search.plan(asked, part.left_seconds)
            if orders and not (tiling.regions or tiling.late):
                base, search = searched_in(orders.pop())
                with part.passing():
                    tiling = search.plan(asked, part.left_seconds)
            if budget is None and choosing < ONLY_TILES and self._only_tiles(whole, tiling):
                tiling = self._descended(search, ONLY_TILES - choosing)
            untried = partial(found.with_untried, tiling, asked, time.perf_counter() - began)
            met = tiling.meets(budget)
            why = "no better than whole ops" if met else "predicted above the limit"
            if not tiling.regions or not self._pays(tiling, tried):
                return untried(why)
            again = found.tiling is not None and found.tiling.regions == tiling.regions
            if share is not None and (again or not met):
                found = found if again else untried(why)
                continue
            self.progress("running the tiled model to learn sizes, workspace and times")
            tiled = tiled_subject(base, tiling)
            bound = self._bound_above_limit(tiled)
            if bound is not None:
                least = format_bytes(bound.nbytes)
                found = untried(f"in tiles no schedule goes below {least} ({bound.reason})")
                continue
            smallest = asked is None
            seconds = self._same_each_time(planning) if smallest else self.deadline.share(planning)
            one = self._tried(Search(tiled, seconds, tiling, smallest=smallest))
            found = found.with_tried(tiling, one)
            if one.planned is not None:
                break
        return found

    def _descended(self, search: TileSearch, share: float) -> TilingPlan:
        """The smallest peak after a share of all seconds more."""
        more = self.deadline.share(share, busy=True)
        search.extend(more.limits.seconds)
        with more.passing():
            return search.plan(None, more.left_seconds)

    def _only_tiles(self, whole: Subject, tiling: TilingPlan) -> bool:
        """Whether tiles go below all whole ops: a limit there would leave them more seconds."""
        bound = self._bound(whole)
        return bool(tiling.regions) and bound is not None and tiling.peak_bytes < bound.nbytes

    def _part_of_budget(self, share: float | None) -> int | None:
        return None if share is None or self.budget is None else int(share * self.budget)

    @property
    def _tiling(self) -> Tiling:
        options, target = self.options, self.target
        return Tiling(
            target.rules, target.node_bytes, options.exact_threads, options.allow_rounding
        )

    def _order(self, whole: Subject, shares: Shares) -> Schedule:
        """An order of whole ops with a small peak: regions are parts of an order."""
        graph = whole.imported.graph
        own = own_schedule(whole.imported, ExecutionOrder(self.options.order))
        if self.options.planner == "given_order":
            return own
        part = self._same_each_time(shares.order)
        problem = Problem(graph, self.target.rules, max_copies=1)
        with part.passing():
            return PLANNERS["reorder"].function(problem, part.granting(part.left_seconds)).schedule

    def _order_of_tiles(self, whole: Subject, found: Schedule) -> Schedule:
        """The order that regions are parts of: the file's own, or the one that was found."""
        own = own_schedule(whole.imported, ExecutionOrder(self.options.order))
        smaller = self._peak(whole, found) <= WORTH_REORDERING * self._peak(whole, own)
        return found if smaller else own

    def _keeps(self, whole: Subject, order: Schedule) -> bool:
        """Whether an order keeps the limit, by the model of memory."""
        return self.budget is not None and self._peak(whole, order) <= self.budget

    def _peak(self, whole: Subject, order: Schedule) -> int:
        """Bytes of an order's peak, by the model of memory."""
        return profile(whole.imported.graph, order, self.target.rules).peak_bytes

    def _pays(self, tiling: TilingPlan, tried: list[Tried]) -> bool:
        """Whether tiles are worth a try beside the plans of whole ops."""
        plans = [one.planned for one in tried if one.planned is not None]
        if not plans:
            return True
        best = self._best_of(plans)
        if self.budget is None:
            return tiling.peak_bytes < best.made.measured.peak_bytes
        return tiling.meets(self.budget) and tiling.extra_time < best.extra_time

    def _uncut_bound(self, whole: Subject) -> PeakBound | None:
        """What tiles cannot go below, as far as anything is proved."""
        proved = self.target.bound_rules is not None
        return uncut_bound(whole, self._tiling) if proved else None


def substituted(
    subject: Subject,
    budget: int | None,
    rules: MemoryRules,
    progress: ProgressReport,
    *,
    allow_rounding: bool,
) -> Subject:
    """Substitutes where they are needed: exact ones, which may take time, for ops that alone take
    most of the limit under `rules`; those that round differently, if they are allowed, for ops that
    take half of it. For the smallest peak those that set the bound are replaced, unless they hold
    little."""
    if budget is None:
        budget = max(peak_bound(subject.imported.graph, rules).nbytes, LEAST_REPLACED_BYTES)
        most = budget
    else:
        most = min(budget + 1, max(int(MOST_OF_LIMIT * budget), LEAST_REPLACED_BYTES))
    chosen = [(substitutions(exact=True), most)]
    if allow_rounding:
        chosen.append((substitutions(exact=False), budget // 2))
    for allowed, threshold in chosen:
        progress("looking for kernels that others can replace")
        subject = with_substitutes(subject, allowed, threshold, rules)
    return subject


def _telling(planner: Planner, one_pass: int, progress: ProgressReport) -> Planner:
    """The planner, telling of each better plan that it finds."""

    def report(better: Progress) -> None:
        extra = 100 * (better.time_cost / one_pass - 1) if one_pass else 0.0
        progress(
            PLANNING,
            f"{format_bytes(better.peak_bytes)}, {extra:+.1f}% time, "
            f"after {format_seconds(better.seconds)}",
        )

    return lambda problem, limits: planner(problem, replace(limits, on_progress=report))
