"""`StockTrial`: build the variants of a stock model, measure them, keep the best that is exact.

Which parts pay depends on the model. A training graph gains most from its plan, an inference model
of convolutions most from keeping the layout optimisation that hidden shapes would cost. Nothing is
predicted: each variant is opened and run in a child with default options.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import onnx

from onnxremat.core.errors import ModelError
from onnxremat.ort.child.process import ModelSource
from onnxremat.ort.child.wire import Array
from onnxremat.ort.measuring.compare import different_names
from onnxremat.ort.measuring.executed_steps import OrderCheck, check_order
from onnxremat.ort.measuring.measure import (
    TimeComparison,
    in_memory,
    measure_activation,
    measure_times,
    run_outputs,
)
from onnxremat.ort.measuring.session_memory import SessionMemory, measure_session
from onnxremat.ort.outside import ModelPair, Weights, with_weights_outside
from onnxremat.ort.recipe import STOCK, OptimizationLevel, Recipe
from onnxremat_rewriters.stock.build import StockModel, is_stock, stock

LONGEST_TIME_RATIO = 1.10
"""How much longer a variant may take than the original, where nothing else is asked."""
_CLOSE_TIME_RATIO = 0.10
_WORTHWHILE = 0.99
FIRST_RUN_NOISE_BYTES = 512 * 1024
"""How far the first runs of one file in several processes are apart."""


class Variant(StrEnum):
    """Which parts of the rewrite a candidate has; all of them have wrap."""

    WRAP = "wrap"
    """Nothing else: order and optimisations stay the runtime's own."""
    CAPTURE = "capture"
    """Wrap, and all weights outside: no layout optimisation, which holds weights of its own."""
    CHAIN = "chain"
    """Chain, and a warm block; shapes stay known."""
    PLAN = "plan"
    """Hide and chain."""
    WARM_PLAN = "warm plan"
    """Hide and chain, and a warm block: the arena gets one region for all of the run."""


_BUILD: Mapping[Variant, Callable[[onnx.ModelProto, int], StockModel]] = {
    Variant.WRAP: lambda model, _: stock(model, hide=False, chain=False),
    Variant.CAPTURE: lambda model, _: stock(model, hide=False, chain=False, local_weights=False),
    Variant.CHAIN: lambda model, warm: stock(model, hide=False, warm_bytes=warm),
    Variant.PLAN: lambda model, _: stock(model),
    Variant.WARM_PLAN: lambda model, warm: stock(model, warm_bytes=warm),
}
_WARM = frozenset({Variant.CHAIN, Variant.WARM_PLAN})
_CHAINED = _WARM | {Variant.PLAN}
_COMPARED_LEVELS = (OptimizationLevel.NONE, OptimizationLevel.ALL)


@dataclass(frozen=True)
class Candidate:
    """A variant that was tried.

    `memory` is None if it could not be built or run, `reason` says why it was not taken ("" for
    the one that was, and for those that were not needed). `times` are the original's and its own
    under the same options. `same_as_unoptimized` and `same_as_stock`: its outputs are
    the original's, bit for bit, as run without optimisations and with default options. `order`
    tells of the steps of the plan, for variants that keep it. All None where it was not asked.
    """

    variant: Variant
    made: StockModel | None = None
    memory: SessionMemory | None = None
    reason: str = ""
    times: TimeComparison | None = None
    same_as_unoptimized: bool | None = None
    same_as_stock: bool | None = None
    order: OrderCheck | None = None

    @property
    def time_ratio(self) -> float | None:
        """Its time divided by the original's."""
        return None if self.times is None else self.times.ratios[1]


@dataclass(frozen=True)
class Beside:
    """A model with its weights in a file beside it: `reason` says why it was not taken ("": it
    was), the others are None where that was not found out."""

    weights: Weights
    made: ModelPair | None = None
    memory: SessionMemory | None = None
    times: TimeComparison | None = None
    reason: str = ""


@dataclass(frozen=True)
class StockResult:
    """`model` is the best variant, or the original itself if none was better (`chosen` None).

    `original` is the original's memory with default options; `candidates` are in order of their
    memory, least first. `outside`: what became of putting the weights of that model in a file
    beside it, None where that was not asked; if it was done, `model` has them there.
    """

    model: onnx.ModelProto
    chosen: Candidate | None
    original: SessionMemory
    candidates: tuple[Candidate, ...]
    outside: Beside | None = None

    @property
    def pair(self) -> Beside | None:
        """The model with its weights in a file beside it, if it was taken."""
        return None if self.outside is None or self.outside.reason else self.outside

    @property
    def memory(self) -> SessionMemory:
        """What the resulting model takes."""
        if self.pair is not None:
            assert self.pair.memory is not None
            return self.pair.memory
        if self.chosen is None or self.chosen.memory is None:
            return self.original
        return self.chosen.memory

    @property
    def saved(self) -> float:
        """The part of the original's steady memory above the loaded level that is saved."""
        return 1 - self.memory.steady_bytes / max(self.original.steady_bytes, 1)


class _Expected(NamedTuple):
    """The outputs of a model at each of _COMPARED_LEVELS."""

    reference: onnx.ModelProto
    unoptimized: Mapping[str, Array]
    optimized: Mapping[str, Array]


@dataclass(frozen=True)
class StockTrial:
    """Rewrites models that were planned from one original, and compares each with it.

    External data is found in `base_dir`. `weights`: where those of the result lie. `threads` is the
    only session option that may differ from the runtime's own; every memory figure is the median of
    `repeats` processes. Raises ModelError if the original was made by `stock`, and, where it is
    measured, if the runtime refuses it.
    """

    original: onnx.ModelProto
    base_dir: Path
    inputs: Mapping[str, Array]
    _: KW_ONLY
    threads: int | None = None
    weights: Weights = Weights.EMBEDDED
    variants: Sequence[Variant] = tuple(Variant)
    repeats: int = 2
    progress: Callable[[str], None] = lambda stage: None
    _seen: dict[int, _Expected] = field(default_factory=dict, init=False, repr=False)
    """By the id of the reference, which is kept so that no other model can have it."""

    def __post_init__(self) -> None:
        if is_stock(self.original):
            raise ModelError("the model was already rewritten for stock options")

    @cached_property
    def before(self) -> SessionMemory:
        """What the original takes with default options."""
        self.progress("measuring the original with default options")
        return self._measured(self.original)

    @property
    def _recipe(self) -> Recipe:
        return STOCK.with_threads(self.threads)

    def rewrite(
        self,
        model: onnx.ModelProto,
        max_time_ratio: float = LONGEST_TIME_RATIO,
        *,
        warm_bytes: int | None = None,
        reference: onnx.ModelProto | None = None,
    ) -> StockResult:
        """The variant of `model`, whose nodes are in plan order, that takes least memory.

        A variant is taken only if: outputs are the original's bit for bit, run either without
        optimisations or with default options (optimisations may round differently; the candidate
        says which); neither the first run (within 0.5 MB, the noise of it) nor later ones take more
        than the original's, and all of it with loading less; time is at most `max_time_ratio` of
        the original's; the steps of the plan run in order, where it keeps them. `warm_bytes` is the
        size of the warm block, by default the most that the model holds at once. `reference`: the
        model whose bits count, if that is not the original. A variant that cannot be built says so
        in its reason.
        """
        before, built = self.before, []
        warm = [] if warm_bytes is None else [warm_bytes]
        for variant in self.variants:
            self.progress(f"measuring the variant '{variant}'")
            built.append(self._build(model, variant, warm))
        built.sort(key=_total)
        candidates: list[Candidate] = []
        chosen = None
        for candidate in built:
            if chosen is None and candidate.memory is not None:
                self.progress(f"checking the variant '{candidate.variant}'")
                candidate = self._judged(
                    candidate, max_time_ratio, self.original if reference is None else reference
                )
                if not candidate.reason:
                    chosen = candidate
            candidates.append(candidate)
        best = self.original if chosen is None or chosen.made is None else chosen.made.model
        result = StockResult(best, chosen, before, tuple(candidates))
        if self.weights is Weights.EMBEDDED:
            return result
        self.progress(f"measuring the model with {self.weights} weights")
        beside = self._beside(best, result.memory, max_time_ratio)
        if beside.made is not None and not beside.reason:
            best = beside.made.model
        return replace(result, model=best, outside=beside)

    def _beside(
        self, model: onnx.ModelProto, memory: SessionMemory, max_time_ratio: float
    ) -> Beside:
        """The model with its weights outside; with a reason if it must not be taken: it has to give
        the bits of `model` and to take no more than `memory` in no more than the time asked for."""
        one = Beside(self.weights)
        try:
            made = with_weights_outside(model, self.base_dir, self._recipe, self.weights)
            if made is None:
                return replace(one, reason="there are none of 1 KB or more")
            measured = measure_session(
                made.model, made.base_dir, self.inputs, self._recipe, repeats=self.repeats
            )
            outputs = run_outputs(made.source(), self.inputs, self._recipe)
        except ModelError as error:
            return replace(one, reason=str(error))
        one = replace(one, made=made, memory=measured)
        if different_names(self._outputs(model, OptimizationLevel.ALL), outputs):
            return replace(one, reason="outputs differ from the original's")
        if reason := self._dearer(measured, memory):
            return replace(one, reason=reason)
        one = replace(one, times=self._times(made.source(), max_time_ratio))
        return replace(one, reason=_slower(one.times, max_time_ratio))

    def _dearer(self, measured: SessionMemory, memory: SessionMemory) -> str:
        """Where weights outside take more than those inside (`memory`), or ""."""
        if measured.total_bytes > memory.total_bytes:
            return "no less memory in all"
        if measured.steady_bytes > self.before.steady_bytes + self._released(measured):
            return "later runs take more memory"
        return ""

    def _released(self, measured: SessionMemory) -> int:
        """What loading leaves freed for runs to use, where it holds weights twice for a while: runs
        of the original take that much less above the loaded level."""
        return max(0, self.before.loaded_bytes - measured.loaded_bytes)

    def _measured(self, model: onnx.ModelProto) -> SessionMemory:
        return measure_session(
            model, self.base_dir, self.inputs, self._recipe, repeats=self.repeats
        )

    def _build(self, model: onnx.ModelProto, variant: Variant, warm: list[int]) -> Candidate:
        """A variant and its memory, or the reason why there is none. `warm`: bytes, once known."""
        try:
            if variant in _WARM and not warm:
                warm.append(self._warm_bytes(model))
            made = _BUILD[variant](model, warm[0] if warm else 0)
            return Candidate(variant, made, self._measured(made.model))
        except ModelError as error:
            return Candidate(variant, reason=str(error))

    def _warm_bytes(self, model: onnx.ModelProto) -> int:
        """The most that the planned model holds at once, arena off."""
        source = in_memory(stock(model).model, self.base_dir)
        recipe = replace(self._recipe, cpu_arena=False)
        return measure_activation(source, self.inputs, recipe, 2).peak_bytes

    def _judged(
        self, candidate: Candidate, max_time_ratio: float, reference: onnx.ModelProto
    ) -> Candidate:
        """The candidate with everything asked that decides; `reason` if it must not be taken."""
        made, memory = candidate.made, candidate.memory
        assert made is not None
        assert memory is not None
        if reason := _more_memory(memory, self.before):
            return replace(candidate, reason=reason)
        outputs = self._outputs(made.model, OptimizationLevel.ALL)
        expected = self._expected(reference)
        candidate = replace(
            candidate,
            same_as_unoptimized=not different_names(expected.unoptimized, outputs),
            same_as_stock=not different_names(expected.optimized, outputs),
        )
        if not (candidate.same_as_unoptimized or candidate.same_as_stock):
            return replace(candidate, reason="outputs differ from the original's")
        if candidate.variant in _CHAINED:
            order = check_order(made, self.base_dir, self.inputs, threads=self.threads)
            candidate = replace(candidate, order=order)
            if not order.as_planned:
                return replace(candidate, reason=f"{order.inversions} steps ran out of order")
        source = in_memory(made.model, self.base_dir)
        candidate = replace(candidate, times=self._times(source, max_time_ratio))
        return replace(candidate, reason=_slower(candidate.times, max_time_ratio))

    def _outputs(self, model: onnx.ModelProto, level: OptimizationLevel) -> Mapping[str, Array]:
        source = in_memory(model, self.base_dir)
        return run_outputs(source, self.inputs, replace(self._recipe, optimization=level))

    def _expected(self, reference: onnx.ModelProto) -> _Expected:
        if id(reference) not in self._seen:
            made = (self._outputs(reference, level) for level in _COMPARED_LEVELS)
            self._seen[id(reference)] = _Expected(reference, *made)
        return self._seen[id(reference)]

    def _times(self, source: ModelSource, max_time_ratio: float) -> TimeComparison:
        """Original, then candidate; a second, longer look decides close cases."""
        sources = [in_memory(self.original, self.base_dir), source]
        times = measure_times(sources, self.inputs, [self._recipe] * 2, pairs=7)
        if abs(times.ratios[1] - max_time_ratio) < _CLOSE_TIME_RATIO:
            times = measure_times(sources, self.inputs, [self._recipe] * 2, pairs=21)
        return times


def _slower(times: TimeComparison | None, max_time_ratio: float) -> str:
    """How much longer a model takes than the original, if that is too long, or ""."""
    if times is None or times.ratios[1] <= max_time_ratio:
        return ""
    return f"{100 * (times.ratios[1] - 1):+.0f}% time"


def _total(candidate: Candidate) -> float:
    return float("inf") if candidate.memory is None else candidate.memory.total_bytes


def _more_memory(memory: SessionMemory, before: SessionMemory) -> str:
    """Where a candidate takes more than the original, or "".

    Loading leaves freed blocks to the allocator, and a first run within them seems to take next
    to nothing: it counts as more only if it is more with loading included, too.
    """
    if memory.steady_bytes > before.steady_bytes:
        return "later runs take more memory"
    first = memory.first_bytes - before.first_bytes
    with_loading = first + memory.loaded_bytes - before.loaded_bytes
    if min(first, with_loading) > FIRST_RUN_NOISE_BYTES:
        return "the first run takes more memory"
    if memory.total_bytes > _WORTHWHILE * before.total_bytes:
        return "no less memory in all"
    return ""
