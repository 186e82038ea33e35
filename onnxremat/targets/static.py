"""A runtime without an allocator: every buffer at a fixed offset of one arena."""

from dataclasses import replace

import onnx

from onnxremat.plan import Plan
from onnxremat.prepare import Options, ProgressReport, Subject
from onnxremat.runtimes.generic import GENERIC_RULES, StaticPlan, emit_plan
from onnxremat.runtimes.measure import PeakMeasurement, PeakMethod
from onnxremat.schedule import Schedule
from onnxremat.targets.target import (
    Made,
    Target,
    as_executed,
    own_schedule,
    verify_in_recipe,
    write_plan,
)
from onnxremat.verification import Verification

_OFFSET_SECONDS = 10.0


class StaticTarget(Target):
    """Limits the size of the arena.

    Scratch of ONNX Runtime's kernels does not count: another runtime has kernels of its own. The
    file is verified in ONNX Runtime all the same, for its bits and its order. It declares its
    sizes: the offsets beside it hold for no others.
    """

    figure = "arena"
    rules = replace(GENERIC_RULES, count_workspace=False, alignment_bytes=64)
    bound_rules = rules
    node_bytes = 0
    tolerance = 0.1
    sized = True

    def __init__(self, subject: Subject, options: Options, progress: ProgressReport) -> None:
        self.subject, self._progress, self._options = subject, progress, options
        self.recipe = subject.feed.recipe
        progress("placing the buffers of the model's own order")
        plan = self._placed(own_schedule(subject.imported, self.recipe.execution_order))
        self.original = self.released = _arena(plan)

    def _placed(self, schedule: Schedule) -> StaticPlan:
        return emit_plan(
            self.subject.imported.graph,
            schedule,
            self.rules,
            alignment_bytes=self.rules.alignment_bytes,
            seconds=_OFFSET_SECONDS,
            seed=self._options.seed,
        )

    def expected_bytes(self, plan: Plan) -> int:
        """The live peak: no arena is smaller, and few need to be larger."""
        return plan.peak_bytes

    def make(self, plan: Plan) -> Made:
        self._progress("placing the buffers")
        mode = self.recipe.execution_order
        rewritten = write_plan(self.subject.imported, plan, mode)
        static = self._placed(as_executed(self.subject.imported.graph, plan.schedule, mode))
        return Made(rewritten, rewritten.model, _arena(static), static=static)

    def verify(self, made: Made, final: onnx.ModelProto) -> Verification:
        return verify_in_recipe(
            self.subject, made, final, self.original, self._options, self._progress
        )


def _arena(plan: StaticPlan) -> PeakMeasurement:
    return PeakMeasurement(plan.arena_bytes, (plan.arena_bytes,), PeakMethod.ARENA)
