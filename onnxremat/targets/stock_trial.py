"""`StockTrial`: build the variants of a stock model, measure them, keep the best that is exact.

Nothing is predicted: each variant is opened and run in a child with default options.

Weights that are to lie outside make another file of each variant (`ort.outside`): the runtime
optimizes it now, and what it made is what is measured, compared and timed.
"""

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from types import MappingProxyType

import onnx

from onnxremat.core.errors import ModelError
from onnxremat.core.units import format_bytes, format_seconds
from onnxremat.ort.child.process import ModelSource
from onnxremat.ort.measuring.compare import different_names
from onnxremat.ort.measuring.executed_steps import OrderCheck
from onnxremat.ort.measuring.measure import TimeComparison, measure_times
from onnxremat.ort.measuring.measure_time import MEASURE_SECONDS, TIMES_SHARE
from onnxremat.ort.measuring.session_memory import HeapNeed, SessionMemory
from onnxremat.ort.outside import ModelPair, Weights
from onnxremat.stages import NOTE, Detail, ProgressReport, silent
from onnxremat.targets.stock_original import StockOriginal
from onnxremat.targets.stock_variants import IN_TILES, PlannedModel, Variant, Written
from onnxremat_rewriters.stock.checked_sizes import Sizes

LONGEST_TIME_RATIO = 1.10
"""How much longer a variant may take than the original, where nothing else is asked."""
_CLOSE_TIME_RATIO = 0.05
_LOOKS = ((7, 0.3), (21, 1.0))
"""Rounds in which times are compared, and the share of the seconds for that: at first, and where it
was close."""
_WORTHWHILE = 0.99
FIRST_RUN_NOISE_BYTES = 512 * 1024
"""How far the first runs of one file in several processes are apart."""
LONGEST_LOAD_RATIO, SHORT_LOADING_SECONDS = 1.0, 0.04
"""How much longer a variant may take to open than the original, where time is limited. What opens
within a moment may take longer."""
_CLOSE_LOAD_RATIO = 1.5
"""Where one opening of each is not that far apart, some more are measured."""
ABOVE = "above the limit"
"""Why a candidate was not looked at any further."""


@dataclass(frozen=True)
class Candidate:
    """A variant that was tried.

    `file` and `memory` are None if it could not be built or run, `reason` says why it was not taken
    ("" for the one that was, and for those that were not needed). `times` are the original's and
    its own under the same options. `same_as_unoptimized` and `same_as_stock`: its outputs are the
    original's, bit for bit, as run without optimisations and with default options. `one_heap`: what
    it needs there, if it is portable. All None where it was not asked, or cannot be told.
    `too_slow`: whether it was refused for the time that it takes, to open or to run; `load_share`:
    the share of the former that is allowed, None if it is not too long.
    """

    variant: Variant
    file: Written | None = None
    memory: SessionMemory | None = None
    reason: str = ""
    times: TimeComparison | None = None
    same_as_unoptimized: bool | None = None
    same_as_stock: bool | None = None
    one_heap: HeapNeed | None = None
    too_slow: bool = False
    load_share: float | None = None

    @property
    def pair(self) -> ModelPair | None:
        """The file with its weights beside it, if they are."""
        return None if self.file is None else self.file.pair

    @property
    def order(self) -> OrderCheck | None:
        """Whether the steps of the plan run in its order, where that was asked."""
        return None if self.file is None else self.file.order

    @property
    def time_ratio(self) -> float | None:
        """Its time divided by the original's."""
        return None if self.times is None else self.times.ratios[1]


@dataclass(frozen=True)
class StockResult:
    """`model` is the best variant, or the original itself if none was better (`chosen` None).

    `original` is the original's memory with default options; `candidates` are in order of their
    memory, least first, those that keep the limit before others. `inside`: why the weights are not
    outside, where that was asked. `one_heap`: what the original needs there, where that was asked.
    `portable`: whether it was to run on any processor.
    """

    model: onnx.ModelProto
    chosen: Candidate | None
    original: SessionMemory
    candidates: tuple[Candidate, ...]
    inside: str = ""
    one_heap: HeapNeed | None = None
    portable: bool = False

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


@dataclass(frozen=True)
class Asked:
    """What is asked of a variant: a time of at most `time_ratio` of the original's, to open of at
    most `load_ratio` (None: any), and memory that `keeps` the limit. `replaced`: whether other
    nodes stand for some, with the same bits."""

    time_ratio: float = LONGEST_TIME_RATIO
    keeps: Callable[[SessionMemory], bool] = lambda memory: True
    replaced: bool = False
    load_ratio: float | None = None


@dataclass(frozen=True)
class StockTrial:
    """Rewrites models that were planned from one original, and compares each with it.
    `measure_limit` is as in `Options`."""

    original: StockOriginal
    _: KW_ONLY
    variants: Sequence[Variant] = tuple(Variant)
    measure_limit: float = MEASURE_SECONDS
    progress: ProgressReport = silent

    @cached_property
    def before(self) -> SessionMemory:
        """What the original takes with default options."""
        self.progress("measuring the original with default options")
        memory = self.original.memory
        self.progress(NOTE, f"original: {_in_words(memory)}")
        return memory

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
        run (within 0.5 MB, the noise of it) nor later ones take more than any of the original's,
        and all of it with loading less; times are as `asked`; the steps of the plan run in order,
        where it keeps them. What does not keep the limit is looked at no further.

        `warm_bytes` is the size of the warm block, by default the most that the model holds at
        once. `reference`: the model whose bits count, if that is not the original. `tiled`: whether
        it has parts in tiles (`IN_TILES`). `sizes`: shapes of inputs, where it is for these alone,
        and does not declare them. A variant that cannot be built says so in its reason;
        where none will do with its weights outside, they are inside.
        """
        original = self.original
        original.knows(model)
        compared = original.model if reference is None else reference
        variants = [v for v in self.variants if not tiled or v in IN_TILES]
        planned = PlannedModel(original, model, original.weights, warm_bytes, sizes)
        portable = original.weights is Weights.EXTERNAL
        result = replace(self._best(planned, variants, asked, compared), portable=portable)
        if original.weights is Weights.EMBEDDED or tiled or result.chosen is not None:
            return result
        if result.closest is not None and result.closest.reason == ABOVE:
            return result
        reasons = {one.reason: one.variant for one in result.candidates if one.reason}
        inside_it = replace(planned, weights=Weights.EMBEDDED)
        embedded = self._best(inside_it, variants, asked, compared)
        inside = "; ".join(f"{variant}: {reason}" for reason, variant in reasons.items())
        return replace(embedded, inside=inside, portable=portable)

    def _best(
        self,
        planned: PlannedModel,
        variants: Sequence[Variant],
        asked: Asked,
        reference: onnx.ModelProto,
    ) -> StockResult:
        """The best of the variants with their weights in one place."""
        before, built = self.before, []
        offered = list(filter(planned.offers, variants))
        for number, variant in enumerate(offered, start=1):
            self.progress(f"measuring the variant '{variant}'", Detail.step(number, len(offered)))
            one = self._built(planned, variant)
            self.progress(NOTE, f"variant '{variant}': {_in_words(one.memory) or one.reason}")
            built.append(one)
        built.sort(key=lambda one: (not _kept(one, asked), _total(one)))
        candidates: list[Candidate] = []
        chosen = None
        for number, candidate in enumerate(built, start=1):
            if chosen is None and candidate.memory is not None:
                checked = f"checking the variant '{candidate.variant}'"
                self.progress(checked, Detail.step(number, len(built)))
                candidate = self._judged(planned, candidate, asked, reference)
                became = candidate.reason or "all that is asked holds"
                self.progress(NOTE, f"variant '{candidate.variant}': {became}")
                if not candidate.reason:
                    chosen = candidate
            candidates.append(candidate)
        best = None if chosen is None or chosen.file is None else chosen.file.model
        best = self.original.model if best is None else best
        asked_for_heap = chosen is not None and planned.weights is Weights.EXTERNAL
        one_heap = self.original.one_heap if asked_for_heap else None
        return StockResult(best, chosen, before, tuple(candidates), one_heap=one_heap)

    def _released(self, measured: SessionMemory) -> int:
        """What loading leaves freed for runs to use, where it holds weights twice for a while: runs
        of the original take that much less above the loaded level."""
        return max(0, self.before.loaded_bytes - measured.loaded_bytes)

    def _built(self, planned: PlannedModel, variant: Variant) -> Candidate:
        """A variant and its memory, or the reason why there is none."""
        try:
            file = planned.written(variant)
            return Candidate(variant, file, self.original.measured(file.source))
        except ModelError as error:
            return Candidate(variant, reason=str(error))

    def _judged(
        self,
        planned: PlannedModel,
        candidate: Candidate,
        asked: Asked,
        reference: onnx.ModelProto,
    ) -> Candidate:
        """The candidate with everything asked that decides; `reason` if it must not be taken."""
        original, file, memory = self.original, candidate.file, candidate.memory
        assert file is not None
        assert memory is not None
        reason = "" if asked.keeps(memory) else ABOVE
        reason = reason or self._more_memory(candidate, memory)
        if not reason:
            reason, share = self._opens_later(file.source, memory, asked.load_ratio)
            candidate = replace(candidate, too_slow=bool(reason), load_share=share)
        if reason:
            return replace(candidate, reason=reason)
        outputs, expected = original.outputs(file.source), original.expected(reference)
        candidate = replace(
            candidate,
            same_as_unoptimized=not different_names(expected.unoptimized, outputs),
            same_as_stock=not different_names(expected.optimized, outputs),
        )
        outside = original.weights is not Weights.EMBEDDED
        if not candidate.same_as_stock and (outside or not candidate.same_as_unoptimized):
            return replace(candidate, reason="outputs differ from the original's")
        if outside and reference is original.model:
            other = original.runs_otherwise(file.source, more=asked.replaced)
            if other:
                return replace(candidate, reason=f"other bits are possible: {other}")
        order = file.order or planned.in_order(candidate.variant, file)
        candidate = replace(candidate, file=replace(file, order=order))
        if order is not None and not order.as_planned:
            return replace(candidate, reason=f"{order.inversions} steps ran out of order")
        if original.weights is Weights.EXTERNAL and original.one_heap is not None:
            need = original.of_one_heap(file.source)
            if need is not None:
                need = need.with_block(planned.warm_block_bytes(candidate.variant))
            candidate = replace(candidate, one_heap=need)
            if reason := self._more_of_one_heap(candidate):
                return replace(candidate, reason=reason)
        candidate = replace(candidate, times=self._times(file.source, asked.time_ratio))
        reason = _slower(candidate.times, asked.time_ratio)
        return replace(candidate, reason=reason, too_slow=bool(reason))

    def _times(self, source: ModelSource, max_time_ratio: float) -> TimeComparison:
        """Original, then candidate; a second, longer look decides close cases."""
        sources = [self.original.source, source]
        for pairs, share in _LOOKS:
            times = measure_times(
                sources,
                self.original.inputs,
                [self.original.recipe] * 2,
                pairs,
                seconds=share * TIMES_SHARE * self.measure_limit,
            )
            if abs(times.ratios[1] - max_time_ratio) >= _CLOSE_TIME_RATIO:
                break
        return times

    def _more_memory(self, candidate: Candidate, memory: SessionMemory) -> str:
        """Where a candidate takes more than the original, or "".

        A first run may take more than that of the original, if a later one of those takes as much:
        who runs it needs that anyway. Loading leaves freed blocks to the allocator, and a first run
        within them seems to take next to nothing: it counts as more only if it is more with loading
        included, too. Where weights lie outside nothing is freed, so that all runs are looked at
        that way.
        """
        before = self.before
        spare = 0 if candidate.pair is None else self._released(memory)
        if memory.steady_bytes > before.steady_bytes + spare:
            return "later runs take more memory"
        first = memory.first_bytes - max(before.run_peaks_bytes)
        with_loading = first + memory.loaded_bytes - before.loaded_bytes
        if min(first, with_loading) > FIRST_RUN_NOISE_BYTES:
            return "the first run takes more memory"
        if memory.total_bytes > _WORTHWHILE * before.total_bytes:
            return "no less memory in all"
        return ""

    def _more_of_one_heap(self, candidate: Candidate) -> str:
        """Where a file that is to run anywhere may take more than the original without an arena,
        all in one heap, or "". The original has what it holds at once at least; of the file it
        counts where blocks lie."""
        before, after = self.original.one_heap, candidate.one_heap
        if before is None or after is None or after.end_bytes <= before.held_bytes:
            return ""
        return (
            f"{format_bytes(after.end_bytes)} of one heap, as WebAssembly has, where the original "
            f"holds {format_bytes(before.held_bytes)} (--no-portable does not ask that)"
        )

    def _opens_later(
        self, source: ModelSource, memory: SessionMemory, load_ratio: float | None
    ) -> tuple[str, float | None]:
        """How much longer a candidate takes to open than the original, if that is too long, or
        "", and the share of it that is allowed, or None; where a session of each is close to that,
        more are opened."""
        if load_ratio is None:
            return "", None
        before, after = self.before.load_seconds, memory.load_seconds
        most = max(load_ratio * before, SHORT_LOADING_SECONDS)
        if most / _CLOSE_LOAD_RATIO < after < most * _CLOSE_LOAD_RATIO:
            before, after = self.original.opening(source)
            most = max(load_ratio * before, SHORT_LOADING_SECONDS)
        if after <= most:
            return "", None
        reason = (
            f"it takes longer to open, {format_seconds(after)} where the original takes "
            f"{format_seconds(before)}"
        )
        return reason, most / after


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
    return float("inf") if candidate.memory is None else candidate.memory.least_bytes


def _in_words(memory: SessionMemory | None) -> str:
    """What a session takes, "" if it was not measured."""
    if memory is None:
        return ""
    runs, loaded = max(memory.above_loaded_bytes), memory.loaded_bytes
    return f"{format_bytes(runs)} in runs, {format_bytes(loaded)} loaded"
