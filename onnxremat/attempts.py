"""Plans for one limit: of whole ops, and in tiles where those do not do.

Subject -> substituted -> plan_within (whole ops)
             -> choose_regions -> tiled_subject -> plan_within (tiles)

All of it shares the seconds of one `PlanningTime`. Whole ops come first, with a share of them, or
with none if one op alone exceeds the limit. Then tiles; and where those come to nothing, whole ops
go on with what is left.
"""

from collections.abc import Callable
from dataclasses import dataclass

from onnxremat.bounds import PeakBound, peak_bound
from onnxremat.errors import InfeasibleError, NoPlanFoundError
from onnxremat.plan import Limits, Plan, Problem, Progress, make_plan
from onnxremat.planners import PLANNERS
from onnxremat.planning import PlanMissedError, PlanningTime, plan_within
from onnxremat.prepare import CHOOSING, PLANNING, Options, ProgressReport, Subject, with_substitutes
from onnxremat.runtimes.recipe import ExecutionOrder
from onnxremat.runtimes.rules import RECIPE_RULES
from onnxremat.schedule import Schedule
from onnxremat.targets import Made, Target, own_schedule
from onnxremat.tiling import (
    TilingPlan,
    choose_regions,
    ordered_subject,
    tileable_subject,
    tiled_subject,
)
from onnxremat.training import NotTrainingError, split_training
from onnxremat.units import format_bytes, format_seconds
from onnxremat_rewriters.substitutes import EXACT, ROUNDING, Substitution

TILING_TARGETS = (1.0, 0.95, 0.88)
"""Shares of the limit that tiles are chosen for in turn: the runtime may take more than predicted.
"""

WHOLE_SHARE, WHOLE_SHARE_SMALLEST = 0.6, 0.4
"""Of the seconds, for whole ops if tiles may follow: within a limit, and for the smallest peak."""

TRAINING_SHARE, TRAINING_SHARE_SMALLEST = 0.85, 0.6
"""In training graphs, whose peak is what the backward pass still reads: tiles seldom lower it."""

ORDER_SHARE = 0.2
"""Of the seconds left then, for an order of whole ops before tiles are chosen."""

REGIONS_SHARE, TILED_SHARE = 0.75, 0.7
"""Of the seconds left then, for choosing regions, and then for planning the model in those tiles;
each target takes the same shares of what the one before it left."""

CUT_SHORT = 0.8
"""Whole ops that took this share of their seconds would have been searched on."""


@dataclass(frozen=True)
class Planned:
    """A plan of a subject, measured; `tiling` is how the subject was cut, None for whole ops."""

    subject: Subject
    plan: Plan
    made: Made
    tiling: TilingPlan | None = None

    @property
    def extra_time(self) -> float:
        """The share of a run of the whole ops that tiles and recomputation add."""
        if self.tiling is None or not self.tiling.one_pass:
            return self.plan.extra_time
        repeated = self.plan.time_cost - self.plan.one_pass
        return self.tiling.extra_time + repeated / self.tiling.one_pass


@dataclass(frozen=True)
class Attempts:
    """What planning for one limit needs, however the model is cut."""

    target: Target
    options: Options
    budget: int | None
    clock: PlanningTime
    progress: ProgressReport
    stop: Callable[[], bool] | None

    def best(self, whole: Subject) -> Planned:
        """Whole ops if they keep the limit in the time of one pass, else whichever is better:
        whole ops or tiles. Raises as `plan_within`."""
        if not self.options.tiles:
            return self.planned(whole, self.clock)
        part = self.clock.part(self._whole_share(whole))
        first = self._tried(whole, part) if self._possible(whole) else _Tried()
        planned = first.planned
        one_pass = self.budget is not None and planned is not None and planned.extra_time <= 0
        if planned is not None and (one_pass or self._stopped()):
            return planned
        fit, tiling = self._outputs_fit(whole), None
        if fit and not self._stopped():
            tiled, tiling = self._tiled(whole, planned)
            if tiled is not None:
                return tiled if planned is None else min(planned, tiled, key=self._rank)
        last = first
        if first.nothing or (first.may_go_on(part) and not (self.clock.over or self._stopped())):
            last = self._tried(whole, self.clock, starts=first.starts)
        plans = [one.planned for one in (first, last) if one.planned is not None]
        if plans:
            return min(plans, key=self._rank)
        missed = last.missed or first.missed
        assert missed is not None
        raise self._with_tiles(missed, tiling) if fit else missed

    def _whole_share(self, whole: Subject) -> float:
        try:
            split_training(whole.imported.graph)
        except NotTrainingError:
            return WHOLE_SHARE_SMALLEST if self.budget is None else WHOLE_SHARE
        return TRAINING_SHARE_SMALLEST if self.budget is None else TRAINING_SHARE

    def _stopped(self) -> bool:
        return self.stop is not None and self.stop()

    def _bound(self, subject: Subject) -> PeakBound | None:
        rules = self.target.bound_rules
        return None if rules is None else peak_bound(subject.imported.graph, rules)

    def _possible(self, subject: Subject) -> bool:
        """Whether no op alone exceeds the limit, as far as anything is proved."""
        bound = self._bound(subject)
        return bound is None or self.budget is None or bound.nbytes <= self.budget

    def _outputs_fit(self, subject: Subject) -> bool:
        """Whether the outputs, which tiles make whole too, are within the limit."""
        graph = subject.imported.graph
        outputs = sum(self.target.rules.nbytes(graph.tensors[t]) for t in set(graph.outputs))
        return self.budget is None or outputs <= self.budget

    def _tried(
        self,
        subject: Subject,
        clock: PlanningTime,
        *,
        tiling: TilingPlan | None = None,
        starts: tuple[Schedule, ...] = (),
    ) -> "_Tried":
        try:
            return _Tried(self.planned(subject, clock, tiling=tiling, starts=starts))
        except (InfeasibleError, NoPlanFoundError) as error:
            return _Tried(missed=error)

    def _rank(self, planned: Planned) -> tuple[float, float]:
        peak = planned.made.measured.peak_bytes
        if self.budget is None:
            return peak, planned.extra_time
        return planned.extra_time, peak

    def planned(
        self,
        subject: Subject,
        clock: PlanningTime,
        *,
        tiling: TilingPlan | None = None,
        starts: tuple[Schedule, ...] = (),
    ) -> Planned:
        """A plan of the subject that keeps the limit where it is measured, looked for in the time
        of `clock`, from the file's order and `starts`."""
        target, options = self.target, self.options
        target.subject = subject
        graph = subject.imported.graph
        mode = ExecutionOrder(options.order)
        as_given = own_schedule(subject.imported, mode)
        problem = Problem(
            graph,
            target.rules,
            budget_bytes=self.budget,
            max_copies=None if options.recompute else 1,
            depth_first=mode is ExecutionOrder.DEFAULT,
            starts=(*starts, as_given),
        )
        own_order = make_plan(problem, as_given, "given_order", peak_bound_bytes=0)
        candidates: dict[int, Made] = {}

        def measure(plan: Plan) -> int:
            made = candidates[id(plan)] = target.make(plan)
            return made.measured.peak_bytes

        attempt = plan_within(
            problem,
            PLANNERS[options.planner].function,
            _limits(graph.total_cost(), options, self.progress, self.stop),
            clock,
            bound=self._bound(subject),
            error_bytes=target.expected_bytes(own_order) - own_order.peak_bytes,
            expect=target.expected_bytes,
            tolerance=target.tolerance,
            measure=measure,
            rewriters=_allowed(options),
        )
        return Planned(subject, attempt.plan, candidates[id(attempt.plan)], tiling)

    def _tiled(
        self, whole: Subject, planned: Planned | None
    ) -> tuple[Planned | None, TilingPlan | None]:
        """A plan of the model in tiles, None if those miss the limit or `planned`, of whole ops, is
        as good; and the last tiling that was looked at, None if time was over before."""
        self.progress(CHOOSING)
        base = self._ordered(tileable_subject(whole, self.options, self.budget))
        tiling = None
        for share in TILING_TARGETS:
            if self.clock.over:
                break
            self.progress(CHOOSING)
            part = self.clock.part(REGIONS_SHARE)
            with part.passing():
                tiling = choose_regions(
                    base,
                    None if self.budget is None else int(share * self.budget),
                    threads=self.options.exact_threads,
                    allow_rounding=self.options.allow_rounding,
                    seconds=part.seconds,
                    stop=self.stop,
                )
            if not tiling.regions or (planned is not None and not self._pays(tiling, planned)):
                break
            self.progress("running the tiled model to learn sizes, workspace and times")
            tiled = tiled_subject(base, tiling, self.options)
            seconds = self.clock.part(1.0 if self.budget is None else TILED_SHARE)
            if self._possible(tiled):
                tried = self._tried(tiled, seconds, tiling=tiling)
                if tried.planned is not None:
                    return tried.planned, tiling
            if not tiling.meets(self.budget):
                break
        return None, tiling

    def _ordered(self, whole: Subject) -> Subject:
        """Whole ops in an order of a small peak, for regions are parts of an order."""
        if self.options.planner == "given_order":
            return whole
        part = self.clock.part(ORDER_SHARE)
        limits = Limits(seconds=part.seconds, seed=self.options.seed, stop=self.stop)
        problem = Problem(whole.imported.graph, RECIPE_RULES, max_copies=1)
        with part.passing():
            order = PLANNERS["reorder"].function(problem, limits).schedule
        return ordered_subject(whole, order, self.options)

    def _with_tiles(
        self, missed: InfeasibleError | NoPlanFoundError, tiling: TilingPlan | None
    ) -> InfeasibleError | NoPlanFoundError:
        """The error of whole ops with what is known of tiles. What whole ops cannot do is
        impossible only if no op can be cut; `tiling` is None if there was no time to look."""
        late = tiling is None or tiling.late
        if tiling is not None and tiling.regions:
            found = f"the smallest peak found in tiles is about {format_bytes(tiling.peak_bytes)}"
        elif tiling is None or late:
            found = "no tiles were found that help"
        else:
            kind = InfeasibleError if isinstance(missed, InfeasibleError) else NoPlanFoundError
            return kind("; ".join((str(missed), *tiling.reasons[:1])))
        advice = (
            "; try a longer --time-limit" if late or self.clock.over else "; try a higher --mem"
        )
        whole = missed.found if isinstance(missed, PlanMissedError) else missed
        return NoPlanFoundError(
            f"no plan within {format_bytes(self.budget or 0)} was found {self.clock.said()}: "
            f"{found}{advice} (whole ops: {whole})"
        )

    def _pays(self, tiling: TilingPlan, planned: Planned) -> bool:
        if self.budget is None:
            return tiling.peak_bytes < planned.made.measured.peak_bytes
        return tiling.meets(self.budget) and tiling.extra_time < planned.extra_time


@dataclass(frozen=True)
class _Tried:
    """What became of an attempt: a plan, or why there is none, or nothing: not tried yet."""

    planned: Planned | None = None
    missed: InfeasibleError | NoPlanFoundError | None = None

    @property
    def nothing(self) -> bool:
        return self.planned is None and self.missed is None

    @property
    def starts(self) -> tuple[Schedule, ...]:
        """What is worth going on from."""
        if self.planned is not None:
            return (self.planned.plan.schedule,)
        return (self.missed.schedule,) if isinstance(self.missed, PlanMissedError) else ()

    def may_go_on(self, clock: PlanningTime) -> bool:
        """Whether it was the time of `clock` that ended it."""
        return bool(self.starts) and clock.passed(CUT_SHORT)


def substituted(
    subject: Subject, options: Options, budget: int | None, progress: ProgressReport
) -> Subject:
    """Substitutes where they are needed: exact ones, which may take time, for ops that alone exceed
    the limit; those that round differently, if they are allowed, for ops that take half of it."""
    if budget is None:
        graph = subject.imported.graph
        budget = peak_bound(graph, RECIPE_RULES).nbytes - 1
    chosen: list[tuple[tuple[Substitution, ...], int]] = [(EXACT, budget + 1)]
    if options.allow_rounding:
        chosen.append((ROUNDING, budget // 2))
    for substitutions, threshold in chosen:
        progress("looking for kernels that others can replace")
        subject = with_substitutes(subject, options, substitutions, threshold)
    return subject


def _allowed(options: Options) -> str:
    """The rewriters that were allowed, in words."""
    named = ["reordering"]
    if options.recompute:
        named.insert(0, "recomputation")
    named.append("exact substitutes")
    if options.allow_rounding:
        named.append("substitutes that round differently")
    else:
        named[-1] += " (--allow-rounding permits more)"
    return ", ".join(named[:-1]) + " and " + named[-1]


def _limits(
    one_pass: int, options: Options, progress: ProgressReport, stop: Callable[[], bool] | None
) -> Limits:
    def report(better: Progress) -> None:
        extra = 100 * (better.time_cost / one_pass - 1) if one_pass else 0.0
        progress(
            PLANNING,
            f"{format_bytes(better.peak_bytes)}, {extra:+.1f}% time, "
            f"after {format_seconds(better.seconds)}",
        )

    progress(PLANNING)
    return Limits(seed=options.seed, on_progress=report, stop=stop)
