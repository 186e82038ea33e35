"""ONNX Runtime with the session options that are stored in the file."""

from dataclasses import dataclass
from typing import Self

from onnxremat.core.problem import Plan
from onnxremat.core.units import format_bytes
from onnxremat.ort.child.process import ModelSource
from onnxremat.ort.child.watching import Listener
from onnxremat.ort.emulation.predict import BOOKKEEPING_NODE_BYTES, predict
from onnxremat.ort.emulation.rules import RECIPE_RULES
from onnxremat.ort.measuring.measure import PeakMeasurement, in_memory, measure_activation
from onnxremat.ort.measuring.measure_time import PEAK_SHARE
from onnxremat.ort.measuring.provable import provable_types
from onnxremat.stages import NOTE, ProgressReport, silent, stage
from onnxremat.subject import Feed, Subject
from onnxremat.targets.target import (
    ANYTHING,
    Forecast,
    Made,
    Target,
    Wanted,
    expected_profile,
    write_plan,
)

COUNTING_NOISE_BYTES = 4096
"""What the heap of a process may have beside a run, now and then: 64 bytes in one of twenty."""
_AGAIN = 3
"""So often a plan is measured again that misses its limit by no more than that."""


@dataclass(frozen=True)
class RecipeTarget(Target):
    """Limits the activation peak: the heap that a run takes, weights and inputs apart."""

    rules = RECIPE_RULES
    bound_rules = RECIPE_RULES
    node_bytes = BOOKKEEPING_NODE_BYTES
    tolerance = 0.02

    @classmethod
    def of(cls, subject: Subject, progress: ProgressReport = silent) -> Self:
        """Original and released model are measured."""
        feed = subject.feed
        original = released = _measured(
            feed, feed.source(), stage(progress, "measuring the original")
        )
        if subject.released.changed:
            listener = stage(progress, "measuring the original with no unread value held")
            released = _measured(feed, subject.released_source(), listener)
        progress(NOTE, f"original: {format_bytes(original.peak_bytes)} activation peak")
        return cls(progress, feed.recipe, original, released)

    def forecast(self, subject: Subject, plan: Plan) -> Forecast:
        """By the emulation of the runtime's allocation (0.02% off in the median)."""
        self.progress("predicting the plan")
        mode = self.recipe.execution_order
        rewritten = write_plan(subject.imported, plan, mode)
        profile = expected_profile(subject, rewritten, mode)
        folder = subject.feed.loaded.base_dir
        types = provable_types(rewritten.model, folder, self.recipe, profile)
        expected = predict(rewritten.model, profile, self.recipe, types, order=profile.order)
        return Forecast(plan, expected.heap_bytes, rewritten)

    def make(self, subject: Subject, forecast: Forecast, wanted: Wanted = ANYTHING) -> Made:
        """The model of the forecast, run; again where it misses the limit by no more than what
        counting may err."""
        rewritten, feed = forecast.rewritten, subject.feed
        assert rewritten is not None
        source = in_memory(rewritten.model, feed.loaded.base_dir)
        listener = stage(self.progress, "measuring the plan")
        measured, limit = _measured(feed, source, listener), wanted.limit_bytes
        for _ in range(_AGAIN):
            if limit is None or not limit < measured.peak_bytes <= limit + COUNTING_NOISE_BYTES:
                break
            measured = measured.least(_measured(feed, source, listener))
        return Made(rewritten, rewritten.model, measured, forecast.expected_bytes)


def _measured(feed: Feed, source: ModelSource, listener: Listener) -> PeakMeasurement:
    seconds = PEAK_SHARE * feed.options.measure_limit
    return measure_activation(source, feed.inputs, feed.recipe, seconds=seconds, listener=listener)
