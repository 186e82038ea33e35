"""ONNX Runtime with default session options: nothing is asked of whoever opens the file."""

from dataclasses import dataclass, replace

import onnx

from onnxremat.plan import Plan
from onnxremat.prepare import Options, ProgressReport, Subject
from onnxremat.runtimes.compare import Rounding, rounding
from onnxremat.runtimes.measure import in_memory, run_outputs
from onnxremat.runtimes.predict import BOOKKEEPING_NODE_BYTES, Prediction, predict
from onnxremat.runtimes.recipe import STOCK, ExecutionOrder, OptimizationLevel
from onnxremat.runtimes.rules import STOCK_RULES
from onnxremat.targets.stock_trial import LONGEST_TIME_RATIO, StockResult, StockTrial
from onnxremat.targets.target import Made, Target, expected_profile, write_plan
from onnxremat.verification import (
    WITH_DEFAULTS,
    WITHOUT_OPTIMIZATIONS,
    Verification,
    resident_peak,
)
from onnxremat_rewriters.recompute import Rewritten

_WARM_PERCENTS = (0, 1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 30)


@dataclass(frozen=True)
class _Forecast:
    """A plan written down, what it is expected to take, and the best size of the warm block."""

    plan: Plan
    rewritten: Rewritten
    resident_bytes: int
    warm_bytes: int


class StockTarget(Target):
    """Limits the resident peak: the most that any run adds to what the loaded session holds.

    Nothing is proved here: default options fuse ops, so that bounds of single ops do not hold.
    """

    figure = "resident peak with default session options"
    rules = STOCK_RULES
    bound_rules = None
    node_bytes = BOOKKEEPING_NODE_BYTES
    tolerance = 0.12

    def __init__(self, subject: Subject, options: Options, progress: ProgressReport) -> None:
        feed = subject.feed
        self.subject, self._progress = subject, progress
        self._last: _Forecast | None = None
        self.recipe = STOCK.with_threads(options.threads)
        self._trial = StockTrial(
            feed.loaded.model,
            feed.loaded.base_dir,
            feed.inputs,
            threads=options.threads,
            progress=progress,
        )
        self.original = self.released = resident_peak(self._trial.before)

    def expected_bytes(self, plan: Plan) -> int:
        """By the emulation of the arena, for the two variants that hide all shapes: no size is
        provable there, so that every value has a buffer of its own; there is no memory pattern."""
        self._progress("predicting the plan")
        return self._forecast(plan).resident_bytes

    def make(self, plan: Plan) -> Made:
        """A plan that takes longer on purpose is not held against the variants."""
        forecast = self._forecast(plan)
        rewritten = forecast.rewritten
        longer = 1 + plan.extra_time
        result = self._trial.rewrite(
            rewritten.model,
            LONGEST_TIME_RATIO * longer,
            warm_bytes=forecast.warm_bytes,
            reference=None if self.subject.exact else self.subject.released.model,
        )
        if result.chosen is None:
            nodes = result.model.graph.node
            rewritten = Rewritten(result.model, tuple(range(len(nodes))), 0)
        return Made(rewritten, result.model, resident_peak(result.memory), stock=result)

    def _forecast(self, plan: Plan) -> _Forecast:
        """Made once for a plan: it is asked for before and when the plan is measured."""
        if self._last is not None and self._last.plan is plan:
            return self._last
        rewritten = write_plan(self.subject.imported, plan, ExecutionOrder.PRIORITY)
        profile = expected_profile(self.subject, rewritten, ExecutionOrder.PRIORITY)
        recipe = replace(self.recipe, optimization=OptimizationLevel.NONE, mem_pattern=False)

        def expected(warm_bytes: int) -> Prediction:
            return predict(
                rewritten.model, profile, recipe, {}, order=profile.order, warm_bytes=warm_bytes
            )

        plain = expected(0)
        warm = {size: expected(size).resident_bytes for size in _warm_sizes(plain)}
        warm_bytes = min(warm, key=lambda size: warm[size])
        resident = min(plain.resident_bytes, warm[warm_bytes])
        self._last = _Forecast(plan, rewritten, resident, warm_bytes)
        return self._last

    def verify(self, made: Made, final: onnx.ModelProto) -> Verification:
        """What the trial found already: it takes nothing that is not exact and in order."""
        result = made.stock
        assert result is not None
        chosen = result.chosen
        seconds: tuple[float | None, ...] = (None, None)
        ratio = None
        if chosen is not None and chosen.times is not None:
            seconds, ratio = chosen.times.median_seconds, chosen.times.ratios[1]
        return Verification(
            different_outputs=(),
            deterministic=True,
            order_as_planned=True,
            original=self.original,
            rewritten=made.measured,
            original_seconds=seconds[0],
            rewritten_seconds=seconds[-1],
            time_ratio=ratio,
            compared_with=_compared_with(result),
            rounding=self._rounding(final),
        )

    def _rounding(self, final: onnx.ModelProto) -> Rounding | None:
        if self.subject.exact:
            return None
        feed = self.subject.feed
        source = in_memory(final, feed.loaded.base_dir)
        return rounding(
            run_outputs(feed.source(), feed.inputs, self.recipe),
            run_outputs(source, feed.inputs, self.recipe),
        )


def _warm_sizes(plain: Prediction) -> list[int]:
    """Sizes of the warm block worth trying. In one region as large as what is held at once the
    arena may still not find room for everything, for it leaves gaps: a little more may be less."""
    return [plain.first.live_bytes * (100 + percent) // 100 for percent in _WARM_PERCENTS]


def _compared_with(result: StockResult) -> str:
    if result.chosen is None:
        return "the original itself"
    return WITHOUT_OPTIMIZATIONS if result.chosen.same_as_unoptimized else WITH_DEFAULTS
