"""`stock_rewrite`: build the variants of a stock model, measure them, keep the best that is exact.

Which parts pay depends on the model. A training graph gains most from its plan, an inference model
of convolutions most from keeping the layout optimisation that hidden shapes would cost. Nothing is
predicted: each variant is opened and run in a child with default options.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import onnx

from onnxremat.errors import ModelError
from onnxremat.runtimes.compare import different_names
from onnxremat.runtimes.measure import (
    TimeComparison,
    in_memory,
    measure_activation,
    measure_times,
    run_outputs,
)
from onnxremat.runtimes.recipe import STOCK, OptimizationLevel
from onnxremat.runtimes.wire import Array
from onnxremat_rewriters.stock.build import StockModel, is_stock, stock
from onnxremat_rewriters.stock.check import OrderCheck, check_order
from onnxremat_rewriters.stock.resident import SessionMemory, measure_session

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
class StockResult:
    """`model` is the best variant, or the original itself if none was better (`chosen` None).

    `original` is the original's memory with default options; `candidates` are in order of their
    memory, least first.
    """

    model: onnx.ModelProto
    chosen: Candidate | None
    original: SessionMemory
    candidates: tuple[Candidate, ...]

    @property
    def memory(self) -> SessionMemory:
        """What the resulting model takes."""
        if self.chosen is None or self.chosen.memory is None:
            return self.original
        return self.chosen.memory

    @property
    def saved(self) -> float:
        """The part of the original's steady memory above the loaded level that is saved."""
        return 1 - self.memory.steady_bytes / max(self.original.steady_bytes, 1)


def stock_rewrite(
    model: onnx.ModelProto,
    base_dir: Path | str,
    inputs: Mapping[str, Array],
    *,
    original: onnx.ModelProto | None = None,
    threads: int | None = None,
    variants: Sequence[Variant] = tuple(Variant),
    max_time_ratio: float = LONGEST_TIME_RATIO,
    repeats: int = 2,
    progress: Callable[[str], None] = lambda stage: None,
) -> StockResult:
    """The variant of `model` that takes least memory with default options.

    `model` has its nodes in the order of its plan; `original` is what it was planned from (itself
    by default). The rest, and what is raised, is that of `StockTrial` and its `rewrite`.
    """
    trial = StockTrial(
        model if original is None else original, Path(base_dir), inputs,
        threads=threads, variants=variants, repeats=repeats, progress=progress,
    )  # fmt: skip
    return trial.rewrite(model, max_time_ratio)


class StockTrial:
    """Rewrites models that were planned from one original, and compares each with it.

    External data is found in `base_dir`. `threads` is the only session option that may differ from
    the runtime's own; every memory figure is the median of `repeats` processes. Raises ModelError
    if the runtime refuses the original, or if it was made by `stock`.
    """

    def __init__(
        self,
        original: onnx.ModelProto,
        base_dir: Path,
        inputs: Mapping[str, Array],
        *,
        threads: int | None = None,
        variants: Sequence[Variant] = tuple(Variant),
        repeats: int = 2,
        progress: Callable[[str], None] = lambda stage: None,
    ) -> None:
        if is_stock(original):
            raise ModelError("the model was already rewritten for stock options")
        self._original = self._reference = original
        self._base_dir = base_dir
        self._inputs = inputs
        self._recipe = STOCK.with_threads(threads)
        self._variants = variants
        self._repeats = repeats
        self._progress = progress
        self._outputs: dict[OptimizationLevel, dict[str, Array]] = {}
        progress("measuring the original with default options")
        self.before = self._measured(original)
        """What the original takes with default options."""

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
        if reference is not None and reference is not self._reference:
            self._reference, self._outputs = reference, {}
        built = []
        warm = [] if warm_bytes is None else [warm_bytes]
        for variant in self._variants:
            self._progress(f"measuring the variant '{variant}'")
            built.append(self._build(model, variant, warm))
        built.sort(key=_total)
        candidates: list[Candidate] = []
        chosen = None
        for candidate in built:
            if chosen is None and candidate.memory is not None:
                self._progress(f"checking the variant '{candidate.variant}'")
                candidate = self._judged(candidate, max_time_ratio)
                if not candidate.reason:
                    chosen = candidate
            candidates.append(candidate)
        best = self._original if chosen is None or chosen.made is None else chosen.made.model
        return StockResult(best, chosen, self.before, tuple(candidates))

    def _measured(self, model: onnx.ModelProto) -> SessionMemory:
        return measure_session(
            model, self._base_dir, self._inputs, self._recipe, repeats=self._repeats
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
        source = in_memory(stock(model).model, self._base_dir)
        recipe = replace(self._recipe, cpu_arena=False)
        return measure_activation(source, self._inputs, recipe, 2).peak_bytes

    def _judged(self, candidate: Candidate, max_time_ratio: float) -> Candidate:
        """The candidate with everything asked that decides; `reason` if it must not be taken."""
        made, memory = candidate.made, candidate.memory
        assert made is not None
        assert memory is not None
        if reason := _more_memory(memory, self.before):
            return replace(candidate, reason=reason)
        outputs = run_outputs(in_memory(made.model, self._base_dir), self._inputs, self._recipe)
        candidate = replace(
            candidate,
            same_as_unoptimized=self._same(outputs, OptimizationLevel.NONE),
            same_as_stock=self._same(outputs, OptimizationLevel.ALL),
        )
        if not (candidate.same_as_unoptimized or candidate.same_as_stock):
            return replace(candidate, reason="outputs differ from the original's")
        if candidate.variant in _CHAINED:
            order = check_order(made, self._base_dir, self._inputs, threads=self._recipe.threads)
            candidate = replace(candidate, order=order)
            if not order.as_planned:
                return replace(candidate, reason=f"{order.inversions} steps ran out of order")
        candidate = replace(candidate, times=self._times(made.model, max_time_ratio))
        if candidate.time_ratio is not None and candidate.time_ratio > max_time_ratio:
            percent = 100 * (candidate.time_ratio - 1)
            return replace(candidate, reason=f"{percent:+.0f}% time")
        return candidate

    def _same(self, outputs: Mapping[str, Array], level: OptimizationLevel) -> bool:
        if level not in self._outputs:
            source = in_memory(self._reference, self._base_dir)
            recipe = replace(self._recipe, optimization=level)
            self._outputs[level] = run_outputs(source, self._inputs, recipe)
        return not different_names(self._outputs[level], outputs)

    def _times(self, model: onnx.ModelProto, max_time_ratio: float) -> TimeComparison:
        """Original, then candidate; a second, longer look decides close cases."""
        sources = [in_memory(m, self._base_dir) for m in (self._original, model)]
        times = measure_times(sources, self._inputs, [self._recipe] * 2, pairs=7)
        if abs(times.ratios[1] - max_time_ratio) < _CLOSE_TIME_RATIO:
            times = measure_times(sources, self._inputs, [self._recipe] * 2, pairs=21)
        return times


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
