"""`StockTrial`: build the variants of a stock model, measure them, keep the best that is exact.

Which parts pay depends on the model. A training graph gains most from its plan, an inference model
of convolutions most from keeping the layout optimisation that hidden shapes would cost. Nothing is
predicted: each variant is opened and run in a child with default options.

Weights that are to lie outside make another file of each variant (`ort.outside`): the runtime
optimizes it now, and what it made is what is measured, compared and timed.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from functools import cached_property, partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import onnx

from onnxremat.core.errors import ModelError
from onnxremat.importer.nodes import values_of_nodes
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
from onnxremat.ort.measuring.measure_time import MEASURE_SECONDS, TIMES_SHARE
from onnxremat.ort.measuring.session_memory import SessionMemory, measure_session
from onnxremat.ort.outside import ModelPair, Weights, optimized_outside, with_weights_outside
from onnxremat.ort.recipe import STOCK, OptimizationLevel, Recipe
from onnxremat.ort.session_kernels import (
    Kernels,
    convolved_in_blocks,
    fused_with_reader,
    kernels_of,
    other_kernels,
    session_kernels,
)
from onnxremat_rewriters.release import release
from onnxremat_rewriters.stock.body import Edges
from onnxremat_rewriters.stock.build import StockModel, is_stock, stock
from onnxremat_rewriters.stock.checked_sizes import Sizes
from onnxremat_rewriters.stock.opset import with_sequences
from onnxremat_rewriters.stock.optimized import in_plan_order

LONGEST_TIME_RATIO = 1.10
"""How much longer a variant may take than the original, where nothing else is asked."""
_CLOSE_TIME_RATIO = 0.05
_LOOKS = ((7, 0.3), (21, 1.0))
"""Rounds in which times are compared, and the share of the seconds for that: at first, and where it
was close."""
_WORTHWHILE = 0.99
FIRST_RUN_NOISE_BYTES = 512 * 1024
"""How far the first runs of one file in several processes are apart."""


class Variant(StrEnum):
    """Which parts of the rewrite a candidate has; all but the first have wrap."""

    ORIGINAL = "original"
    """None: the model as it came, with its weights outside."""
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


_PARTS: Mapping[Variant, Mapping[str, Any]] = {
    Variant.WRAP: {"hide": False, "chain": False},
    Variant.CAPTURE: {"hide": False, "chain": False, "local_weights": False},
    Variant.CHAIN: {"hide": False},
    Variant.PLAN: {},
    Variant.WARM_PLAN: {},
}
_WARM = frozenset({Variant.CHAIN, Variant.WARM_PLAN})
_CHAINED = _WARM | {Variant.PLAN}
IN_TILES = (Variant.CHAIN, Variant.PLAN, Variant.WARM_PLAN)
"""Those that keep the order of a plan, which tiles need: in another one they are held together."""
_COMPARED_LEVELS = (OptimizationLevel.NONE, OptimizationLevel.ALL)

ABOVE = "above the limit"
"""Why a candidate was not looked at any further."""


@dataclass(frozen=True)
class Candidate:
    """A variant that was tried, with its weights in a file beside it (`pair`) or in itself.

    `memory` is None if it could not be built or run, `reason` says why it was not taken ("" for
    the one that was, and for those that were not needed). `times` are the original's and its own
    under the same options. `same_as_unoptimized` and `same_as_stock`: its outputs are
    the original's, bit for bit, as run without optimisations and with default options. `order`
    tells of the steps of the plan, for variants that keep it. All None where it was not asked.
    """

    variant: Variant
    model: onnx.ModelProto | None = None
    made: StockModel | None = None
    pair: ModelPair | None = None
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
    memory, least first, those that keep the limit before others. `inside`: why the weights are not
    outside, where that was asked.
    """

    model: onnx.ModelProto
    chosen: Candidate | None
    original: SessionMemory
    candidates: tuple[Candidate, ...]
    inside: str = ""

    @property
    def memory(self) -> SessionMemory:
        """What the resulting model takes."""
        if self.chosen is None or self.chosen.memory is None:
            return self.original
        return self.chosen.memory

    @property
    def closest(self) -> Candidate | None:
        """The one that would have been taken, if nothing were wrong with it."""
        return next((one for one in self.candidates if one.memory is not None), None)

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
class Asked:
    """What is asked of a variant: a time of at most `time_ratio` of the original's, and memory that
    `keeps` the limit. `replaced`: whether other nodes stand for some, with the same bits."""

    time_ratio: float = LONGEST_TIME_RATIO
    keeps: Callable[[SessionMemory], bool] = lambda memory: True
    replaced: bool = False


@dataclass(frozen=True)
class StockTrial:
    """Rewrites models that were planned from one original, and compares each with it.

    External data is found in `base_dir`. `weights`: where those of the result lie. `threads` is the
    only session option that may differ from the runtime's own; every memory figure is the median of
    `repeats` processes; `measure_limit` is as in `Options`. Raises ModelError if the original was
    made by `stock`, and, where it is measured, if the runtime refuses it.
    """

    original: onnx.ModelProto
    base_dir: Path
    inputs: Mapping[str, Array]
    _: KW_ONLY
    threads: int | None = None
    weights: Weights = Weights.EMBEDDED
    variants: Sequence[Variant] = tuple(Variant)
    repeats: int = 2
    measure_limit: float = MEASURE_SECONDS
    progress: Callable[[str], None] = lambda stage: None
    _seen: dict[int, _Expected] = field(default_factory=dict, init=False, repr=False)
    """By the id of the reference, which is kept so that no other model can have it."""
    _values: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    """What the nodes of the original, and of all planned models, make."""

    def __post_init__(self) -> None:
        if is_stock(self.original):
            raise ModelError("the model was already rewritten for stock options")
        self._values.update(values_of_nodes(self.original.graph))

    @cached_property
    def before(self) -> SessionMemory:
        """What the original takes with default options."""
        self.progress("measuring the original with default options")
        return self._measured(in_memory(self.original, self.base_dir))

    @cached_property
    def kernels(self) -> Kernels:
        """What the original runs with default options."""
        source = in_memory(self.original, self.base_dir)
        return session_kernels(source, self.recipe, OptimizationLevel.ALL, self._values)

    @cached_property
    def packs(self) -> bool:
        """Whether the original with packed weights runs: the runtime ends with some models then
        (PP-OCR's recognition, 1.31.1), which run as they are and are packed by whoever opens them.
        """
        try:
            if self.weights is Weights.PACKED and self._as_it_is is not None:
                self._outputs(self._as_it_is.source())
        except ModelError:
            return False
        return True

    @cached_property
    def _as_it_is(self) -> ModelPair | None:
        """The original with its weights outside."""
        return self._outside(packs=True)

    @cached_property
    def _not_packed(self) -> ModelPair | None:
        """The same with its weights as kernels pack them when they are opened."""
        return self._outside(packs=False)

    def _outside(self, *, packs: bool) -> ModelPair | None:
        return with_weights_outside(
            self.original, self.base_dir, self.recipe, self.weights, packs=packs
        )

    @property
    def recipe(self) -> Recipe:
        """The session options of the result."""
        return STOCK.with_threads(self.threads)

    def rewrite(
        self,
        model: onnx.ModelProto,
        asked: Asked = Asked(),
        *,
        warm_bytes: int | None = None,
        reference: onnx.ModelProto | None = None,
        tiled: bool = False,
        sizes: Sizes = MappingProxyType({}),
    ) -> StockResult:
        """The variant of `model`, whose nodes are in plan order, that takes least memory.

        A variant is taken only if: outputs are the original's bit for bit, run either with default
        options or, if weights lie inside, without (optimisations may round differently; the
        candidate says which); with weights outside, the same kernels make them; neither the first
        run (within 0.5 MB, the noise of it) nor later ones take more than the original's, and all
        of it with loading less; time is as `asked`; the steps of the plan run in order, where it
        keeps them. What does not keep the limit is looked at no further.

        `warm_bytes` is the size of the warm block, by default the most that the model holds at
        once. `reference`: the model whose bits count, if that is not the original. `tiled`: whether
        it has parts in tiles (`IN_TILES`). `sizes`: shapes of inputs, where it is for these alone,
        and does not declare them. A variant that cannot be built says so in its reason;
        where none will do with its weights outside, they are inside.
        """
        self._values.update(values_of_nodes(model.graph))
        compared = self.original if reference is None else reference
        variants = [v for v in self.variants if not tiled or v in IN_TILES]
        build = partial(self._build, _Planned(self, model, warm_bytes, sizes))
        result = self._best(build, variants, asked, compared, self.weights)
        if self.weights is Weights.EMBEDDED or tiled or result.chosen is not None:
            return result
        inside = "" if result.closest is None else result.closest.reason
        if inside == ABOVE:
            return result
        reasons = [one.reason for one in result.candidates if one.reason]
        embedded = self._best(build, variants, asked, compared, Weights.EMBEDDED)
        return replace(embedded, inside=inside or ", ".join(dict.fromkeys(reasons)))

    def _best(
        self,
        build: Callable[[Variant, Weights], Candidate],
        variants: Sequence[Variant],
        asked: Asked,
        reference: onnx.ModelProto,
        weights: Weights,
    ) -> StockResult:
        """The best of the variants with their weights in one place."""
        before, built = self.before, []
        for variant in variants:
            if self._is_another(variant, weights):
                continue
            self.progress(f"measuring the variant '{variant}'")
            built.append(build(variant, weights))
        built.sort(key=lambda one: (not _kept(one, asked), _total(one)))
        candidates: list[Candidate] = []
        chosen = None
        for candidate in built:
            if chosen is None and candidate.memory is not None:
                self.progress(f"checking the variant '{candidate.variant}'")
                candidate = self._judged(candidate, asked, reference)
                if not candidate.reason:
                    chosen = candidate
            candidates.append(candidate)
        best = self.original if chosen is None or chosen.model is None else chosen.model
        return StockResult(best, chosen, before, tuple(candidates))

    def _released(self, measured: SessionMemory) -> int:
        """What loading leaves freed for runs to use, where it holds weights twice for a while: runs
        of the original take that much less above the loaded level."""
        return max(0, self.before.loaded_bytes - measured.loaded_bytes)

    def _measured(self, source: ModelSource) -> SessionMemory:
        return measure_session(source, self.inputs, self.recipe, repeats=self.repeats)

    def _optimizes_first(self, weights: Weights) -> bool:
        """Whether the planned model is optimized before it is chained: where nothing is left to be
        laid out in blocks when the file is opened, which an edge, or weights elsewhere, hinder."""
        return weights is Weights.PACKED or (
            weights is Weights.EXTERNAL and not convolved_in_blocks(self.kernels)
        )

    def _is_another(self, variant: Variant, weights: Weights) -> bool:
        """Whether a variant is the original itself, or WRAP: weights that are laid out already lie
        outside of every branch."""
        if weights is Weights.EMBEDDED:
            return variant is Variant.ORIGINAL
        return variant is Variant.CAPTURE and self._optimizes_first(weights)

    def _build(self, planned: "_Planned", variant: Variant, weights: Weights) -> Candidate:
        """A variant and its memory, or the reason why there is none."""
        made, built, pair = None, self.original, None
        try:
            if variant is Variant.ORIGINAL:
                pair = self._as_it_is if self.packs else self._not_packed
            elif self._optimizes_first(weights):
                made, pair = planned.optimized_as(variant)
                built = made.model
            else:
                made = planned.chained(planned.model, variant)
                built = made.model
                if weights is not Weights.EMBEDDED:
                    pair = with_weights_outside(built, self.base_dir, self.recipe, weights)
            if pair is not None:
                memory = self._measured(pair.source())
                return Candidate(variant, pair.model, made, pair, memory)
            memory = self._measured(in_memory(built, self.base_dir))
            return Candidate(variant, built, made, None, memory)
        except ModelError as error:
            return Candidate(variant, reason=str(error))

    def _judged(self, candidate: Candidate, asked: Asked, reference: onnx.ModelProto) -> Candidate:
        """The candidate with everything asked that decides; `reason` if it must not be taken."""
        memory, model = candidate.memory, candidate.model
        assert memory is not None
        assert model is not None
        if not asked.keeps(memory):
            return replace(candidate, reason=ABOVE)
        if reason := self._more_memory(candidate, memory):
            return replace(candidate, reason=reason)
        pair = candidate.pair
        source = in_memory(model, self.base_dir) if pair is None else pair.source()
        outputs, expected = self._outputs(source), self._expected(reference)
        candidate = replace(
            candidate,
            same_as_unoptimized=not different_names(expected.unoptimized, outputs),
            same_as_stock=not different_names(expected.optimized, outputs),
        )
        outside = self.weights is not Weights.EMBEDDED
        if not candidate.same_as_stock and (outside or not candidate.same_as_unoptimized):
            return replace(candidate, reason="outputs differ from the original's")
        if outside and reference is self.original and (other := self._other_kernels(source, asked)):
            return replace(candidate, reason=f"other bits are possible: {other}")
        if candidate.variant in _CHAINED:
            assert candidate.made is not None
            made = candidate.made
            # What was optimized before is the file itself, other steps are those that were planned.
            of_file = pair is not None and pair.model is made.model
            folder = pair.base_dir if of_file and pair is not None else self.base_dir
            order = check_order(made, folder, self.inputs, threads=self.threads)
            candidate = replace(candidate, order=order)
            if not order.as_planned:
                return replace(candidate, reason=f"{order.inversions} steps ran out of order")
        candidate = replace(candidate, times=self._times(source, asked.time_ratio))
        return replace(candidate, reason=_slower(candidate.times, asked.time_ratio))

    def runs_otherwise(self, optimized: onnx.ModelProto) -> bool:
        """Whether an optimized model has other kernels than the original runs."""
        return bool(other_kernels(self.kernels, kernels_of(optimized, self._values), more=True))

    def _other_kernels(self, source: ModelSource, asked: Asked) -> str:
        """Where a session of a file runs other kernels than one of the original."""
        found = session_kernels(source, self.recipe, OptimizationLevel.ALL, self._values)
        return other_kernels(self.kernels, found, more=asked.replaced)

    def _outputs(
        self, source: ModelSource, level: OptimizationLevel = OptimizationLevel.ALL
    ) -> Mapping[str, Array]:
        return run_outputs(source, self.inputs, replace(self.recipe, optimization=level))

    def _expected(self, reference: onnx.ModelProto) -> _Expected:
        if id(reference) not in self._seen:
            source = in_memory(reference, self.base_dir)
            made = (self._outputs(source, level) for level in _COMPARED_LEVELS)
            self._seen[id(reference)] = _Expected(reference, *made)
        return self._seen[id(reference)]

    def _times(self, source: ModelSource, max_time_ratio: float) -> TimeComparison:
        """Original, then candidate; a second, longer look decides close cases."""
        sources = [in_memory(self.original, self.base_dir), source]
        for pairs, share in _LOOKS:
            times = measure_times(
                sources,
                self.inputs,
                [self.recipe] * 2,
                pairs,
                seconds=share * TIMES_SHARE * self.measure_limit,
            )
            if abs(times.ratios[1] - max_time_ratio) >= _CLOSE_TIME_RATIO:
                break
        return times

    def _more_memory(self, candidate: Candidate, memory: SessionMemory) -> str:
        """Where a candidate takes more than the original, or "".

        Loading leaves freed blocks to the allocator, and a first run within them seems to take next
        to nothing: it counts as more only if it is more with loading included, too. Where weights
        lie outside nothing is freed, so that all runs are looked at that way.
        """
        before = self.before
        spare = 0 if candidate.pair is None else self._released(memory)
        if memory.steady_bytes > before.steady_bytes + spare:
            return "later runs take more memory"
        first = memory.first_bytes - before.first_bytes
        with_loading = first + memory.loaded_bytes - before.loaded_bytes
        if min(first, with_loading) > FIRST_RUN_NOISE_BYTES:
            return "the first run takes more memory"
        if memory.total_bytes > _WORTHWHILE * before.total_bytes:
            return "no less memory in all"
        return ""


@dataclass
class _Planned:
    """A planned model, and what its variants have in common: the size of the warm block, by default
    the most that the model holds at once."""

    trial: StockTrial
    model: onnx.ModelProto
    warm_bytes: int | None
    sizes: Sizes

    def chained(self, model: onnx.ModelProto, variant: Variant, **parts: Any) -> StockModel:
        """A form of the planned model as a variant."""
        if variant in _WARM and self.warm_bytes is None:
            self.warm_bytes = self._most_held()
        warm_bytes = (self.warm_bytes or 0) if variant in _WARM else 0
        return stock(model, warm_bytes=warm_bytes, sizes=self.sizes, **{**_PARTS[variant], **parts})

    def optimized_as(self, variant: Variant) -> tuple[StockModel, ModelPair]:
        """A variant of what the runtime makes of the planned model, with its weights outside."""
        pair, ordered = self._optimized
        made = self.chained(ordered, variant, edges=Edges.NEEDED, local_weights=False)
        return made, pair.guarded(made.model)

    @cached_property
    def _optimized(self) -> tuple[ModelPair, onnx.ModelProto]:
        """The planned model as optimized, with its weights outside, and with its nodes in the order
        of the plan. It states of inner values what the original does: by that things are fused;
        and what was made by itself there has a second reader, if a fusion took it for one's own."""
        trial, flat = self.trial, with_sequences(self.model)
        made = {name for node in flat.graph.node for name in node.output}
        del flat.graph.value_info[:]
        flat.graph.value_info.extend(v for v in trial.original.graph.value_info if v.name in made)
        optimized = partial(
            optimized_outside,
            base_dir=trial.base_dir,
            recipe=trial.recipe,
            weights=trial.weights,
            packs=trial.packs,
        )
        pair = optimized(flat)
        if apart := fused_with_reader(trial.kernels, flat, pair.model):
            flat = release(flat, apart).model
            pair = optimized(flat)
        if trial.runs_otherwise(pair.model):
            # A pool without its indices lies in blocks, for one, and with them it does not.
            plain = optimized(flat, blocks=False)
            pair = pair if trial.runs_otherwise(plain.model) else plain
        return pair, in_plan_order(pair.model, flat)

    def _most_held(self) -> int:
        """The most that the planned model holds at once, arena off."""
        source = in_memory(stock(self.model).model, self.trial.base_dir)
        recipe = replace(self.trial.recipe, cpu_arena=False)
        return measure_activation(source, self.trial.inputs, recipe, 2).peak_bytes


def _slower(times: TimeComparison | None, max_time_ratio: float) -> str:
    """How much longer a model takes than the original, if that is too long, or ""."""
    if times is None or times.ratios[1] <= max_time_ratio:
        return ""
    return (
        f"{100 * (times.ratios[1] - 1):+.0f}% time, where {100 * (max_time_ratio - 1):+.0f}% is "
        "allowed"
    )


def _kept(candidate: Candidate, asked: Asked) -> bool:
    return candidate.memory is not None and asked.keeps(candidate.memory)


def _total(candidate: Candidate) -> float:
    return float("inf") if candidate.memory is None else candidate.memory.total_bytes
