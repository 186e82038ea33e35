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
from onnxremat.runtimes.measure import in_memory, measure_activation, measure_times, run_outputs
from onnxremat.runtimes.recipe import STOCK, OptimizationLevel, Recipe
from onnxremat.runtimes.wire import Array
from onnxremat.verification import different_names
from onnxremat_rewriters.stock.build import StockModel, is_stock, stock
from onnxremat_rewriters.stock.check import OrderCheck, check_order
from onnxremat_rewriters.stock.resident import SessionMemory, measure_session

_LONGEST_TIME_RATIO = 1.10
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
    the one that was, and for those that were not needed). `time_ratio` is its time divided by the
    original's under the same options. `same_as_unoptimized` and `same_as_stock`: its outputs are
    the original's, bit for bit, as run without optimisations and with default options. `order`
    tells of the steps of the plan, for variants that keep it. All None where it was not asked.
    """

    variant: Variant
    made: StockModel | None = None
    memory: SessionMemory | None = None
    reason: str = ""
    time_ratio: float | None = None
    same_as_unoptimized: bool | None = None
    same_as_stock: bool | None = None
    order: OrderCheck | None = None


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
    max_time_ratio: float = _LONGEST_TIME_RATIO,
    repeats: int = 2,
    progress: Callable[[str], None] = lambda stage: None,
) -> StockResult:
    """The variant of `model` that takes least memory with default options.

    `model` has its nodes in the order of its plan; `original` is what it was planned from (itself
    by default) and what everything is compared with. External data is found in `base_dir`.
    `threads` is the only option that may differ from the runtime's own.

    A variant is taken only if: outputs are the original's bit for bit, run either without
    optimisations or with default options (optimisations may round differently; the candidate says
    which); neither the first run (within 0.5 MB, the noise of it) nor later ones take more than
    the original's, and all of it with loading less; time is at most `max_time_ratio` of the
    original's; the steps of the plan run in order, where it keeps them. Raises ModelError if the
    runtime refuses the original, or if `model` was made by `stock`.
    """
    if is_stock(model):
        raise ModelError("the model was already rewritten for stock options")
    trial = _Trial(
        model, model if original is None else original, Path(base_dir), inputs,
        STOCK.with_threads(threads), max_time_ratio, repeats,
    )  # fmt: skip
    progress("measuring the original with default options")
    before = trial.measured(trial.original)
    built = []
    for variant in variants:
        progress(f"measuring the variant '{variant}'")
        built.append(trial.build(variant))
    built.sort(key=_total)
    candidates: list[Candidate] = []
    chosen = None
    for candidate in built:
        if chosen is None and candidate.memory is not None:
            progress(f"checking the variant '{candidate.variant}'")
            candidate = trial.judged(candidate, before)
            if not candidate.reason:
                chosen = candidate
        candidates.append(candidate)
    best = trial.original if chosen is None or chosen.made is None else chosen.made.model
    return StockResult(best, chosen, before, tuple(candidates))


def _total(candidate: Candidate) -> float:
    return float("inf") if candidate.memory is None else candidate.memory.total_bytes


@dataclass
class _Trial:
    """What candidates are tried on."""

    model: onnx.ModelProto
    original: onnx.ModelProto
    base_dir: Path
    inputs: Mapping[str, Array]
    recipe: Recipe
    max_time_ratio: float
    repeats: int

    def __post_init__(self) -> None:
        self._peak_bytes: int | None = None
        self._outputs: dict[OptimizationLevel, dict[str, Array]] = {}

    def measured(self, model: onnx.ModelProto) -> SessionMemory:
        return measure_session(model, self.base_dir, self.inputs, self.recipe, repeats=self.repeats)

    def build(self, variant: Variant) -> Candidate:
        """A variant and its memory, or the reason why there is none."""
        try:
            made = _BUILD[variant](self.model, self._warm_bytes() if variant in _WARM else 0)
            return Candidate(variant, made, self.measured(made.model))
        except ModelError as error:
            return Candidate(variant, reason=str(error))

    def _warm_bytes(self) -> int:
        """The most that the planned model holds at once, arena off."""
        if self._peak_bytes is None:
            source = in_memory(stock(self.model).model, self.base_dir)
            recipe = replace(self.recipe, cpu_arena=False)
            self._peak_bytes = measure_activation(source, self.inputs, recipe, 2).peak_bytes
        return self._peak_bytes

    def judged(self, candidate: Candidate, before: SessionMemory) -> Candidate:
        """The candidate with everything asked that decides; `reason` if it must not be taken."""
        made, memory = candidate.made, candidate.memory
        assert made is not None
        assert memory is not None
        if reason := _more_memory(memory, before):
            return replace(candidate, reason=reason)
        outputs = run_outputs(in_memory(made.model, self.base_dir), self.inputs, self.recipe)
        candidate = replace(
            candidate,
            same_as_unoptimized=self._same(outputs, OptimizationLevel.NONE),
            same_as_stock=self._same(outputs, OptimizationLevel.ALL),
        )
        if not (candidate.same_as_unoptimized or candidate.same_as_stock):
            return replace(candidate, reason="outputs differ from the original's")
        if candidate.variant in _CHAINED:
            order = check_order(made, self.base_dir, self.inputs, threads=self.recipe.threads)
            candidate = replace(candidate, order=order)
            if not order.as_planned:
                return replace(candidate, reason=f"{order.inversions} steps ran out of order")
        candidate = replace(candidate, time_ratio=self._time_ratio(made.model))
        if candidate.time_ratio is not None and candidate.time_ratio > self.max_time_ratio:
            percent = 100 * (candidate.time_ratio - 1)
            return replace(candidate, reason=f"{percent:+.0f}% time")
        return candidate

    def _same(self, outputs: Mapping[str, Array], level: OptimizationLevel) -> bool:
        if level not in self._outputs:
            source = in_memory(self.original, self.base_dir)
            recipe = replace(self.recipe, optimization=level)
            self._outputs[level] = run_outputs(source, self.inputs, recipe)
        return not different_names(self._outputs[level], outputs)

    def _time_ratio(self, model: onnx.ModelProto) -> float:
        sources = [in_memory(m, self.base_dir) for m in (self.original, model)]
        return measure_times(sources, self.inputs, [self.recipe] * 2, pairs=7).ratios[1]


def _more_memory(memory: SessionMemory, before: SessionMemory) -> str:
    """Where a candidate takes more than the original, or "".

    Loading leaves freed blocks to the allocator, and a first run within them seems to take next
    to nothing: it counts as more only if it is more with loading included, too.
    """
    if memory.steady_bytes > before.steady_bytes:
        return "later runs take more memory"
    if memory.first_bytes > before.first_bytes + FIRST_RUN_NOISE_BYTES and (
        memory.loaded_bytes + memory.first_bytes > before.loaded_bytes + before.first_bytes
    ):
        return "the first run takes more memory"
    if memory.total_bytes > _WORTHWHILE * before.total_bytes:
        return "no less memory in all"
    return ""
