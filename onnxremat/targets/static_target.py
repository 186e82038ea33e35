"""A runtime without an allocator: every buffer at a fixed offset of one arena."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Self

from onnxremat.core.problem import Plan
from onnxremat.core.schedule import Schedule
from onnxremat.ort.measuring.measure import PeakMeasurement, PeakMethod
from onnxremat.stages import ProgressReport, silent
from onnxremat.subject import Subject
from onnxremat.targets.static_plan import GENERIC_RULES, StaticPlan, emit_plan
from onnxremat.targets.target import (
    ANYTHING,
    Forecast,
    Made,
    Target,
    TargetReport,
    Wanted,
    as_executed,
    own_schedule,
    write_plan,
)

if TYPE_CHECKING:
    from onnxremat.commands.rewrite import RewriteResult

_OFFSET_SECONDS = 10.0


@dataclass(frozen=True)
class StaticTarget(Target):
    """Limits the size of the arena.

    Workspace of ONNX Runtime's kernels does not count: another runtime has kernels of its own. The
    file is verified in ONNX Runtime all the same, for its bits and its order. It declares its
    sizes: the offsets beside it hold for no others.
    """

    rules = replace(GENERIC_RULES, count_workspace=False, alignment_bytes=64)
    bound_rules = rules
    node_bytes = 0
    takes_original = False
    tolerance = 0.1

    @classmethod
    def of(cls, subject: Subject, progress: ProgressReport = silent) -> Self:
        """The buffers of the model's own order are placed."""
        recipe = subject.feed.recipe
        progress("placing the buffers of the model's own order")
        own = own_schedule(subject.imported, recipe.execution_order)
        arena = _arena(_placed(subject, own))
        return cls(progress, recipe, arena, arena)

    def forecast(self, subject: Subject, plan: Plan) -> Forecast:
        """The live peak: no arena is smaller, and few need to be larger."""
        return Forecast(plan, plan.peak_bytes)

    def make(self, subject: Subject, forecast: Forecast, wanted: Wanted = ANYTHING) -> Made:
        """The buffers placed: nothing runs."""
        self.progress("placing the buffers")
        mode, plan = self.recipe.execution_order, forecast.plan
        rewritten = write_plan(subject.imported, plan, mode)
        order = as_executed(subject.imported.graph, plan.schedule, mode)
        static = _placed(subject, order)
        return Made(
            rewritten, rewritten.model, _arena(static), forecast.expected_bytes, static=static
        )

    @classmethod
    def reports(cls, result: "RewriteResult") -> TargetReport:
        """The file is for another runtime."""
        usual = super().reports(result)
        opened = f"the runtime that the static plan is for; to compare, {usual.opened}"
        return replace(usual, opened=opened)


def _placed(subject: Subject, schedule: Schedule) -> StaticPlan:
    rules = StaticTarget.rules
    return emit_plan(
        subject.imported.graph,
        schedule,
        rules,
        alignment_bytes=rules.alignment_bytes,
        seconds=_OFFSET_SECONDS,
        seed=subject.feed.options.seed,
    )


def _arena(plan: StaticPlan) -> PeakMeasurement:
    return PeakMeasurement(plan.arena_bytes, (plan.arena_bytes,), PeakMethod.ARENA)
