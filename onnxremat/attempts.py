"""Plans for one limit: of whole ops, and in tiles where those do not do.

Subject -> substituted -> plan_within (whole ops)
             -> choose_regions -> tiled_subject -> plan_within (tiles)
"""

from collections.abc import Callable
from dataclasses import dataclass

from onnxremat.bounds import peak_bound
from onnxremat.errors import InfeasibleError, NoPlanFoundError
from onnxremat.plan import Limits, Plan, Problem, Progress, make_plan
from onnxremat.planners import PLANNERS
from onnxremat.planning import plan_within
from onnxremat.prepare import Options, ProgressReport, Subject, with_substitutes
from onnxremat.runtimes.recipe import ExecutionOrder
from onnxremat.runtimes.rules import RECIPE_RULES
from onnxremat.targets import Made, Target, own_schedule
from onnxremat.tiling import TilingPlan, choose_regions, ordered_subject, tiled_subject
from onnxremat.units import format_bytes, format_seconds
from onnxremat_rewriters.substitutes import EXACT, ROUNDING, Substitution

TILING_TARGETS = (1.0, 0.95, 0.88)
"""Shares of the limit that tiles are chosen for in turn: the runtime may take more than predicted.
"""

TILING_SHARE = 2.0
"""Of the seconds, for choosing regions: where one op exceeds the limit, whole ops need none."""

ORDER_SHARE = 0.2
"""The share of the seconds for an order of whole ops before tiles are chosen."""


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
    progress: ProgressReport
    stop: Callable[[], bool] | None

    def best(self, whole: Subject) -> Planned:
        """Whole ops if they keep the limit in the time of one pass, else whichever is better:
        whole ops or tiles. Raises as `plan_within`."""
        planned = None
        missed: InfeasibleError | NoPlanFoundError | None = None
        try:
            planned = self.planned(whole)
        except (InfeasibleError, NoPlanFoundError) as error:
            missed = error
        stopped = self.stop is not None and self.stop()
        met = planned is not None and self.budget is not None and planned.extra_time <= 0
        if met or stopped or not self.options.tiles:
            return _found(planned, missed)
        tiled = self._tiled(whole, planned, missed)
        if planned is None or tiled is None:
            return tiled or _found(planned, missed)
        return min(planned, tiled, key=self._rank)

    def _rank(self, planned: Planned) -> tuple[float, float]:
        peak = planned.made.measured.peak_bytes
        if self.budget is None:
            return peak, planned.extra_time
        return planned.extra_time, peak

    def planned(self, subject: Subject, tiling: TilingPlan | None = None) -> Planned:
        """A plan of the subject that keeps the limit where it is measured."""
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
            starts=(as_given,),
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
            bound=None if target.bound_rules is None else peak_bound(graph, target.bound_rules),
            error_bytes=target.expected_bytes(own_order) - own_order.peak_bytes,
            expect=target.expected_bytes,
            tolerance=target.tolerance,
            measure=measure,
            rewriters=_allowed(options),
        )
        return Planned(subject, attempt.plan, candidates[id(attempt.plan)], tiling)

    def _tiled(
        self,
        whole: Subject,
        planned: Planned | None,
        missed: InfeasibleError | NoPlanFoundError | None,
    ) -> Planned | None:
        """A plan of the model in tiles; None if `planned`, of whole ops, is as good. Raises
        `missed`, with what tiles reach, if those miss the limit as well."""
        options, graph = self.options, whole.imported.graph
        outputs = sum(self.target.rules.nbytes(graph.tensors[t]) for t in set(graph.outputs))
        if missed is not None and self.budget is not None and outputs > self.budget:
            raise missed
        self.progress("choosing regions to tile")
        base = whole
        if options.planner != "given_order":
            seconds = ORDER_SHARE * options.time_limit
            limits = Limits(seconds=seconds, seed=options.seed, stop=self.stop)
            problem = Problem(graph, RECIPE_RULES, max_copies=1)
            order = PLANNERS["reorder"].function(problem, limits).schedule
            base = ordered_subject(whole, order, options)
        for share in TILING_TARGETS:
            self.progress("choosing regions to tile")
            tiling = choose_regions(
                base,
                None if self.budget is None else int(share * self.budget),
                threads=options.exact_threads,
                allow_rounding=options.allow_rounding,
                seconds=TILING_SHARE * options.time_limit,
                stop=self.stop,
            )
            if not tiling.regions or (planned is not None and not self._pays(tiling, planned)):
                break
            self.progress("running the tiled model to learn sizes, workspace and times")
            try:
                return self.planned(tiled_subject(base, tiling, options), tiling)
            except (InfeasibleError, NoPlanFoundError):
                continue
        if missed is None:
            return None
        raise self._with_tiles(missed, tiling)

    def _with_tiles(
        self, missed: InfeasibleError | NoPlanFoundError, tiling: TilingPlan
    ) -> InfeasibleError | NoPlanFoundError:
        """The error of whole ops with what is known of tiles. What whole ops cannot do is
        impossible only if no op can be cut."""
        if tiling.regions:
            found = f"the smallest peak found in tiles is about {format_bytes(tiling.peak_bytes)}"
        elif tiling.late:
            found = "no tiles were found that help"
        else:
            return type(missed)("; ".join((str(missed), *tiling.reasons[:1])))
        return NoPlanFoundError(
            f"no plan within {format_bytes(self.budget or 0)} was found: {found}; try a longer "
            f"--time-limit (whole ops: {missed})"
        )

    def _pays(self, tiling: TilingPlan, planned: Planned) -> bool:
        if self.budget is None:
            return tiling.peak_bytes < planned.made.measured.peak_bytes
        return tiling.meets(self.budget) and tiling.extra_time < planned.extra_time


def _found(planned: Planned | None, missed: InfeasibleError | NoPlanFoundError | None) -> Planned:
    if planned is None:
        assert missed is not None
        raise missed
    return planned


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
            "planning",
            f"{format_bytes(better.peak_bytes)}, {extra:+.1f}% time, "
            f"after {format_seconds(better.seconds)}",
        )

    progress("planning")
    return Limits(seconds=options.time_limit, seed=options.seed, on_progress=report, stop=stop)
