"""ONNX Runtime with the session options that are stored in the file."""

import onnx

from onnxremat.plan import Plan
from onnxremat.prepare import Options, ProgressReport, Subject
from onnxremat.runtimes.measure import in_memory, measure_activation
from onnxremat.runtimes.predict import BOOKKEEPING_NODE_BYTES, predict
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
        self.subject, self._progress = subject, progress
        self.recipe = feed.recipe
        progress("measuring the original")
        self.original = measure_activation(feed.source(), feed.inputs, feed.recipe)
        self.released = self.original
        if subject.released.changed:
            source = subject.released_source()
            self.released = measure_activation(source, feed.inputs, feed.recipe)

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
        self._progress("measuring the plan")
        feed = self.subject.feed
        rewritten = write_plan(self.subject.imported, plan, self.recipe.execution_order)
        source = in_memory(rewritten.model, feed.loaded.base_dir)
        measured = measure_activation(source, feed.inputs, self.recipe)
        return Made(rewritten, rewritten.model, measured)

    def verify(self, made: Made, final: onnx.ModelProto) -> Verification:
        return verify_in_recipe(self.subject, made, final, self.original, self._progress)
