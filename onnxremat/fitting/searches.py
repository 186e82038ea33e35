"""One search for a plan: of what is given, within a part of the time, measured."""

from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from onnxremat.core.bounds import PeakBound, peak_bound
from onnxremat.core.deadline import Deadline
from onnxremat.core.errors import InfeasibleError, NoPlanFoundError
from onnxremat.core.graph import TensorKind
from onnxremat.core.memory import profile
from onnxremat.core.problem import Limits, Plan, Planner, Problem, Progress, make_plan
from onnxremat.core.schedule import Schedule
from onnxremat.core.units import format_bytes, format_seconds
from onnxremat.fitting.loop import ALIKE, Outcome, Runtime, plan_within, smallest_within
from onnxremat.fitting.outcomes import Planned, Tried, plans_of, words_of
from onnxremat.options import Options
from onnxremat.ort.recipe import ExecutionOrder
from onnxremat.planners import PLANNERS
from onnxremat.stages import NOTE, PLANNING, Detail, ProgressReport
from onnxremat.subject import Subject
from onnxremat.targets.target import Forecast, Made, Target, Wanted, own_schedule
from onnxremat.tiling import TilingPlan

MEASURED_ALIKE = 0.01
"""The share by which two measurements of one file may differ."""


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
class Searches:
    """What every search for one limit needs.

    `taken`: what plans of a subject were measured to take, by the identity of the subject, which is
    kept with them: a search that is begun again ends at plans that were measured before.
    """

    target: Target
    options: Options
    budget: int | None
    deadline: Deadline
    progress: ProgressReport
    taken: dict[int, tuple[Subject, dict[Schedule, Outcome]]] = field(default_factory=dict)

    def tried(self, search: Search) -> Tried:
        """What becomes of a search."""
        try:
            return Tried(self.planned(search))
        except (InfeasibleError, NoPlanFoundError) as error:
            return Tried(missed=error)

    def planned(self, search: Search) -> Planned:
        """A plan that keeps the limit where it is measured. Raises as `plan_within`."""
        target, options = self.target, self.options
        subject, tiling = search.subject, search.tiling
        graph = subject.imported.graph
        as_given = self.own(subject)
        problem = Problem(
            graph,
            target.rules,
            budget_bytes=self.budget,
            max_copies=1 if not options.recompute or self._in_a_hurry(search) else None,
            depth_first=ExecutionOrder(options.order) is ExecutionOrder.DEFAULT,
            starts=(*search.starts, as_given),
        )
        own_order = make_plan(problem, as_given, "given_order", peak_bound_bytes=0)
        forecast = partial(target.forecast, subject)
        runtime = Runtime(
            bound=self.bound(subject),
            error_bytes=forecast(own_order).expected_bytes - own_order.peak_bytes,
            tolerance=target.tolerance,
            forecast=forecast,
            make=partial(self._made, search),
            taken=self.taken.setdefault(id(subject), (subject, {}))[1],
            of=words_of(tiling),
            slowdown=options.max_slowdown,
            ended=lambda one: self.progress(NOTE, str(one)),
            extra_time=None if tiling is None else tiling.extra_time_with,
        )
        planner = PLANNERS[options.planner].function
        planner = self._telling(planner, graph.total_cost())
        if search.smallest:
            found = smallest_within(problem, planner, search.deadline, runtime)
        else:
            found = plan_within(problem, planner, search.deadline, runtime, rewriters=self._allowed)
        return Planned(subject, found.plan, found.made, tiling, found.attempts)

    def tell(self, stage: str, text: str = "") -> None:
        """Say what is done in the seconds of planning, and how many of them have passed."""
        options = self.options
        if options.iterations is not None:
            self.progress(stage, text or f"at most {options.iterations} iterations a plan")
            return
        passed = min(self.deadline.passed_seconds, options.time_limit)
        self.progress(stage, Detail.limited(text, passed, options.time_limit))

    def _telling(self, planner: Planner, one_pass: int) -> Planner:
        """The planner, telling that it begins, and of each better plan that it finds."""

        def report(better: Progress) -> None:
            extra = 100 * (better.time_cost / one_pass - 1) if one_pass else 0.0
            self.tell(
                PLANNING,
                f"{format_bytes(better.peak_bytes)}, {extra:+.1f}% time, "
                f"after {format_seconds(better.seconds)}",
            )

        def telling(problem: Problem, limits: Limits) -> Plan:
            self.tell(PLANNING)
            return planner(problem, replace(limits, on_progress=report))

        return telling

    def _in_a_hurry(self, search: Search) -> bool:
        """Whether tiles take the time that is allowed, so that recomputation has none."""
        return search.tiling is not None and self.options.max_slowdown is not None

    def _made(self, search: Search, forecast: Forecast) -> Made:
        """A plan as a file, measured."""
        plan, tiling = forecast.plan, search.tiling
        extra = plan.extra_time if tiling is None else tiling.extra_time_with(plan.extra_cost)
        wanted = Wanted(self.budget, extra, tiling is not None)
        return self.target.make(search.subject, forecast, wanted)

    @cached_property
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

    def enough(self, tried: list[Tried]) -> bool:
        """Whether nothing better is looked for: a plan keeps the limit in the time of one pass, or
        there is one and planning is to stop."""
        plans = plans_of(tried)
        return bool(plans) and (self.deadline.stopped() or self.best_of(plans).extra_time <= 0)

    def best_of(self, plans: list[Planned]) -> Planned:
        """The fastest within the limit; without one, of those about as small as the smallest, or no
        further from it than two measurements of a file, where it was said what time may cost."""
        peaks = [one.made.compared_bytes for one in plans]
        alike = ALIKE if self.options.max_slowdown is None else MEASURED_ALIKE
        most = max(peaks) if self.budget is not None else (1 + alike) * min(peaks)
        small = [one for one, peak in zip(plans, peaks, strict=True) if peak <= most]
        return min(small, key=lambda one: (one.extra_time, one.made.compared_bytes))

    def same_each_time(self, share: float) -> Deadline:
        """A share of all seconds, of counted work if the planner counts it: what `--mem min` does
        in it, and planning for a limit does again."""
        if self.options.iterations is None and PLANNERS[self.options.planner].counts_work:
            return self.deadline.counting_work(share)
        return self.deadline.share(share)

    def bound(self, subject: Subject) -> PeakBound | None:
        """What no schedule goes below, None if nothing is proved."""
        rules = self.target.bound_rules
        if rules is None:
            return None
        bound = peak_bound(subject.imported.graph, rules)
        changed = subject.replaced or subject.sized
        return None if not changed and self.target.refutes(bound.nbytes) else bound

    def bound_above_limit(self, subject: Subject) -> PeakBound | None:
        """The bound of an op that alone exceeds the limit, None if none is proved to do so."""
        bound = self.bound(subject)
        if bound is None or self.budget is None or bound.nbytes <= self.budget:
            return None
        return bound

    def outputs_above_limit(self, subject: Subject) -> InfeasibleError | None:
        """What a limit below the outputs is answered with where nothing else is proved: whatever
        runs, they are made and handed over together."""
        graph, budget, target = subject.imported.graph, self.budget, self.target
        tensors = [graph.tensors[t] for t in set(graph.outputs)]
        outputs = sum(one.nbytes for one in tensors if one.kind is TensorKind.ACTIVATION)
        otherwise = target.bound_rules is not None or target.refutes(outputs)
        if budget is None or budget >= outputs or otherwise:
            return None
        figure = self.options.figure.split(" with ", maxsplit=1)[0]
        return InfeasibleError(
            f"a {figure} of {format_bytes(budget)} is impossible: the outputs of the model alone "
            f"are {format_bytes(outputs)}"
        )

    def is_least(self, whole: Subject, smallest: Tried) -> bool:
        """Whether the smallest peak of whole ops is proved."""
        bound = self.bound(whole)
        peak = None if smallest.planned is None else smallest.planned.plan.peak_bytes
        return bound is not None and peak is not None and peak <= bound.nbytes

    def own(self, subject: Subject) -> Schedule:
        """The order in which the runtime executes the subject as it was imported."""
        return own_schedule(subject.imported, ExecutionOrder(self.options.order))

    def order(self, whole: Subject, share: float) -> Schedule:
        """An order of whole ops with a small peak, searched in a share of all seconds: regions are
        parts of an order."""
        if self.options.planner == "given_order":
            return self.own(whole)
        part = self.same_each_time(share)
        problem = Problem(whole.imported.graph, self.target.rules, max_copies=1)
        with part.passing():
            return PLANNERS["reorder"].function(problem, part.granting(part.left_seconds)).schedule

    def keeps(self, whole: Subject, order: Schedule) -> bool:
        """Whether an order keeps the limit, by the model of memory."""
        return self.budget is not None and self.peak(whole, order) <= self.budget

    def peak(self, whole: Subject, order: Schedule) -> int:
        """Bytes of an order's peak, by the model of memory."""
        return profile(whole.imported.graph, order, self.target.rules).peak_bytes
