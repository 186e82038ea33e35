"""ONNX Runtime with the session options that are stored in the file."""

import onnx

from onnxremat.plan import Plan
from onnxremat.prepare import Options, ProgressReport, Subject, stage
from onnxremat.runtimes.measure import PeakMeasurement, in_memory, measure_activation
from onnxremat.runtimes.measure_time import PEAK_SHARE
from onnxremat.runtimes.predict import BOOKKEEPING_NODE_BYTES, predict
from onnxremat.runtimes.process import ModelSource
from onnxremat.runtimes.provable import provable_types
from onnxremat.runtimes.rules import RECIPE_RULES
from onnxremat.targets.target import Made, Target, expected_profile, verify_in_recipe, write_plan
from onnxremat.verification import Verification


class RecipeTarget(Target):
    """Limits the activation peak: the heap that a run takes, weights and inputs apart."""

    figure = "activation peak"
    rules = RECIPE_RULES
    bound_rules = RECIPE_RULES
    node_bytes = BOOKKEEPING_NODE_BYTES
    tolerance = 0.02

    def __init__(self, subject: Subject, options: Options, progress: ProgressReport) -> None:
        feed = subject.feed
        self.subject, self._options, self._progress = subject, options, progress
        self.recipe = feed.recipe
        self.original = self._measured(feed.source(), "measuring the original")
        self.released = self.original
        if subject.released.changed:
            what = "measuring the original with no unread value held"
            self.released = self._measured(subject.released_source(), what)

    def _measured(self, source: ModelSource, what: str) -> PeakMeasurement:
        return measure_activation(
            source,
            self.subject.feed.inputs,
            self.recipe,
            seconds=PEAK_SHARE * self._options.measure_limit,
            listener=stage(self._progress, what),
        )

    def expected_bytes(self, plan: Plan) -> int:
        """By the emulation of the runtime's allocation (0.02% off in the median)."""
        self._progress("predicting the plan")
        mode = self.recipe.execution_order
        rewritten = write_plan(self.subject.imported, plan, mode)
        profile = expected_profile(self.subject, rewritten, mode)
        folder = self.subject.feed.loaded.base_dir
        types = provable_types(rewritten.model, folder, self.recipe, profile)
        return predict(rewritten.model, profile, self.recipe, types, order=profile.order).heap_bytes

    def make(self, plan: Plan) -> Made:
        rewritten = write_plan(self.subject.imported, plan, self.recipe.execution_order)
        source = in_memory(rewritten.model, self.subject.feed.loaded.base_dir)
        return Made(rewritten, rewritten.model, self._measured(source, "measuring the plan"))

    def verify(self, made: Made, final: onnx.ModelProto) -> Verification:
        return verify_in_recipe(
            self.subject, made, final, self.original, self._options, self._progress
        )
