"""A target in one module and one row: a runtime that takes what the model of memory says."""

from dataclasses import dataclass
from typing import Self

from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.problem import Plan
from onnxremat.ort.measuring.measure import PeakMeasurement, PeakMethod
from onnxremat.stages import ProgressReport, silent
from onnxremat.subject import Subject
from onnxremat.target_table import Refusal, TargetInfo
from onnxremat.targets.target import Forecast, Made, Target, own_schedule, write_plan

TOY = TargetInfo(
    "toy",
    session="toy",
    runtime="ort-cpu",
    summary="nothing measures the file",
    figure="toy peak",
    home=f"{__name__}:ToyTarget",
    refuses=(Refusal("optimize", "none", "a toy is not for --optimize"),),
    suffix="toy",
    tiles=False,
)


@dataclass(frozen=True)
class ToyTarget(Target):
    """Limits the peak of a plan by the model of memory."""

    rules = MemoryRules()
    bound_rules = rules
    node_bytes = 0
    tolerance = 0.0

    @classmethod
    def of(cls, subject: Subject, progress: ProgressReport = silent) -> Self:
        recipe = subject.feed.recipe
        own = own_schedule(subject.imported, recipe.execution_order)
        peak = _peak(profile(subject.imported.graph, own, cls.rules).peak_bytes)
        return cls(progress, recipe, peak, peak)

    def forecast(self, subject: Subject, plan: Plan) -> Forecast:
        return Forecast(plan, plan.peak_bytes)

    def make(self, subject: Subject, forecast: Forecast) -> Made:
        rewritten = write_plan(subject.imported, forecast.plan, self.recipe.execution_order)
        return Made(
            rewritten, rewritten.model, _peak(forecast.plan.peak_bytes), forecast.expected_bytes
        )


def _peak(nbytes: int) -> PeakMeasurement:
    return PeakMeasurement(nbytes, (nbytes,), PeakMethod.ARENA)
