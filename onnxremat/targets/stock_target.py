"""ONNX Runtime with default session options: nothing is asked of whoever opens the file."""

from dataclasses import dataclass, replace
from itertools import takewhile
from typing import TYPE_CHECKING, Self

import onnx

from onnxremat.core.loosened import loosened
from onnxremat.core.problem import Plan
from onnxremat.core.schedule import Schedule, with_eager_ops
from onnxremat.core.units import format_bytes
from onnxremat.importer import declared_as, sizes_left_open
from onnxremat.importer.skeleton import value_info
from onnxremat.ort.child.process import ModelSource
from onnxremat.ort.emulation.predict import BOOKKEEPING_NODE_BYTES, Prediction, predict
from onnxremat.ort.emulation.rules import STOCK_RULES
from onnxremat.ort.measuring.compare import Rounding, rounding
from onnxremat.ort.measuring.figures import SessionFigures, all_figures
from onnxremat.ort.measuring.measure import PeakMeasurement, in_memory, run_outputs
from onnxremat.ort.measuring.profile import RunProfile
from onnxremat.ort.measuring.session_memory import SessionMemory
from onnxremat.ort.outside import NOT_PORTABLE, Weights
from onnxremat.ort.recipe import STOCK, ExecutionOrder, OptimizationLevel
from onnxremat.ort.session_kernels import averaged_in_blocks, fused_later, kernels_of
from onnxremat.stages import ProgressReport, silent, stage
from onnxremat.subject import Subject
from onnxremat.target_table import TARGETS
from onnxremat.targets.stock_original import StockOriginal
from onnxremat.targets.stock_trial import (
    ABOVE,
    LONGEST_LOAD_RATIO,
    LONGEST_TIME_RATIO,
    Asked,
    Candidate,
    StockResult,
    StockTrial,
)
from onnxremat.targets.stock_variants import Variant
from onnxremat.targets.target import (
    ANYTHING,
    Forecast,
    Made,
    Target,
    TargetReport,
    Wanted,
    expected_profile,
    write_plan,
)
from onnxremat.verification import (
    WITH_DEFAULTS,
    WITHOUT_OPTIMIZATIONS,
    Verification,
    resident_peak,
)
from onnxremat_rewriters.recompute import Rewritten

if TYPE_CHECKING:
    from onnxremat.commands.rewrite import RewriteResult

LOADED_NODE_BYTES = 16_000
"""What a loaded session keeps of each node: 11 to 18 KB in models in tiles, with ORT 1.31."""

_LAID_OUT_BY_SHAPE = frozenset(
    {"AveragePool", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "Resize", "Upsample"}
)

_CHANNELS = 1
_WARM_PERCENTS = (0, 1, 2, 3, 4, 6, 8, 10, 13, 16, 20, 25, 30)


@dataclass(frozen=True)
class StockTarget(Target):
    """Limits the resident peak: the most that any run adds to what the loaded session holds; or,
    of the `process`, that and what loading adds.

    Nothing is proved here: default options fuse ops, so that bounds of single ops do not hold.
    """

    rules = STOCK_RULES
    bound_rules = None
    node_bytes = BOOKKEEPING_NODE_BYTES
    tolerance = 0.12
    tile_shares = (0.5, 0.35, 0.24, 0.16, 0.1)

    trial: StockTrial
    process: bool

    @property
    def _original(self) -> StockOriginal:
        return self.trial.original

    @property
    def added_node_bytes(self) -> int:
        """Loading keeps far more of a node than runs do."""
        return LOADED_NODE_BYTES if self.process else self.node_bytes

    @classmethod
    def of(cls, subject: Subject, progress: ProgressReport = silent) -> Self:
        """The original is measured with default options."""
        feed = subject.feed
        threads = feed.options.threads
        original = StockOriginal(
            feed.as_it_came.model,
            feed.as_it_came.base_dir,
            feed.inputs,
            weights=feed.options.weights,
            threads=threads,
            heap_seconds=feed.options.measure_limit,
        )
        measure_limit = feed.options.measure_limit
        trial = StockTrial(original, measure_limit=measure_limit, progress=progress)
        process = feed.options.mem_of == "process"
        peak = resident_peak(trial.before, loading=process)
        return cls(progress, STOCK.with_threads(threads), peak, peak, trial, process)

    def forecast(self, subject: Subject, plan: Plan) -> Forecast:
        """By the emulation of the arena, for the two variants that hide all shapes: no size is
        provable there, so that every value has a buffer of its own; there is no memory pattern."""
        self.progress("predicting the plan")
        schedule = plan.schedule
        if self._original.weights is not Weights.EMBEDDED:
            schedule = loosened(subject.imported.graph, schedule, self.rules)
        plan = replace(plan, schedule=self._averaged_at_once(subject, schedule))
        rewritten = write_plan(subject.imported, plan, ExecutionOrder.PRIORITY)
        profile = expected_profile(subject, rewritten, ExecutionOrder.PRIORITY)
        del rewritten.model.graph.value_info[:]
        if self._original.weights is not Weights.EMBEDDED:
            _state_types(rewritten.model.graph, profile, self.fused(subject))
        recipe = replace(self.recipe, optimization=OptimizationLevel.NONE, mem_pattern=False)

        def expected(warm_bytes: int) -> Prediction:
            return predict(
                rewritten.model, profile, recipe, {}, order=profile.order, warm_bytes=warm_bytes
            )

        plain = expected(0)
        warm = {size: expected(size).resident_bytes for size in _warm_sizes(plain)}
        warm_bytes = min(warm, key=lambda size: warm[size])
        resident = min(plain.resident_bytes, warm[warm_bytes])
        if self.process:
            resident += self._loading(len(rewritten.model.graph.node))
        return Forecast(plan, resident, rewritten, warm_bytes)

    def fused(self, subject: Subject) -> frozenset[str]:
        """Those that the session of the original adds to another value while it makes them, in
        blocks, and the planned model makes by themselves, and those other values: what a tile cuts
        out, or a region puts together, is not in blocks, and then it is not added so."""
        if self._original.weights is Weights.EMBEDDED:
            return frozenset()
        added = fused_later(kernels_of(subject.released.model), self._original.kernels)
        graph = subject.imported.graph
        readers = {
            v for t, one in enumerate(graph.tensors) if one.name in added for v in graph.readers[t]
        }
        return added | {graph.tensors[t].name for v in readers for t in graph.ops[v].inputs}

    def joined(self, subject: Subject) -> frozenset[str]:
        """Averages of what lies in blocks: what a region puts together does not."""
        if self._original.weights is Weights.EMBEDDED:
            return frozenset()
        return averaged_in_blocks(self._original.kernels)

    def _averaged_at_once(self, subject: Subject, schedule: Schedule) -> Schedule:
        """With averages of what lies in blocks right behind what makes that: what an edge of the
        chain stands before, as it may otherwise, lies in blocks no more."""
        names, graph = self.joined(subject), subject.imported.graph
        averages = [
            v for v, op in enumerate(graph.ops)
            if any(graph.tensors[t].name in names for t in op.outputs)
        ]  # fmt: skip
        return with_eager_ops(graph, schedule, averages) if averages else schedule

    def _loading(self, nodes: int) -> int:
        """What loading is expected to take: as the original's, or, with its weights outside, next
        to nothing but for its nodes."""
        if self._original.weights is Weights.EMBEDDED:
            added = nodes - len(self._original.model.graph.node)
            return self.trial.before.loaded_bytes + max(0, added) * LOADED_NODE_BYTES
        return nodes * LOADED_NODE_BYTES

    def make(self, subject: Subject, forecast: Forecast, wanted: Wanted = ANYTHING) -> Made:
        """A plan that takes longer on purpose is not held against the variants, unless it was said
        how much longer it may take.

        A plan for one size leaves open what the original does, for what the runtime fuses depends
        on it, and fails at other sizes.
        """
        rewritten, limit_bytes = forecast.rewritten, wanted.limit_bytes
        assert rewritten is not None
        model = declared_as(rewritten.model, self._original.model)
        sized = subject.sized or self._original.weights is not Weights.EMBEDDED
        shapes = subject.feed.binding.input_shapes
        checked = sizes_left_open(self._original.model, shapes) if sized else {}
        slowdown = subject.feed.options.max_slowdown
        ratio = LONGEST_TIME_RATIO * (1 + wanted.extra_time) if slowdown is None else 1 + slowdown
        result = self.trial.rewrite(
            model,
            Asked(
                ratio,
                lambda memory: self._keeps(memory, limit_bytes),
                bool(subject.replaced),
                None if slowdown is None else LONGEST_LOAD_RATIO,
            ),
            warm_bytes=forecast.warm_bytes,
            reference=None if subject.exact else subject.released.model,
            tiled=wanted.tiled,
            sizes=checked,
        )
        chosen, memory, refused = result.chosen, result.memory, ""
        if chosen is None and result.closest is not None:
            closest = result.closest
            assert closest.memory is not None
            kept = limit_bytes is not None and self._keeps(memory, limit_bytes)
            if closest.reason != ABOVE and not kept:
                tried = [one for one in result.candidates if one.memory is not None]
                refused = "; ".join({one.reason: self._why(one) for one in tried}.values())
            if limit_bytes is not None and not kept:
                memory = closest.memory
        as_it_came = chosen is None or chosen.variant is Variant.ORIGINAL
        if as_it_came:
            nodes = result.model.graph.node
            rewritten = Rewritten(result.model, tuple(range(len(nodes))), 0)
        return Made(
            rewritten, result.model, self._figure(memory), forecast.expected_bytes,
            pair=None if chosen is None else chosen.pair, details=result, refused=refused,
            dearer=self._dearer(result),
            load_share=max((o.load_share for o in result.candidates if o.load_share), default=None),
            sized=sized and not as_it_came, checks_sizes=True,
            least_bytes=memory.least_bytes if self.process else None,
        )  # fmt: skip

    def _dearer(self, result: StockResult) -> str:
        """Why those that take less memory than what was chosen were refused for their time."""
        before = takewhile(lambda one: one is not result.chosen, result.candidates)
        return "; ".join(self._why(one) for one in before if one.too_slow)

    def _why(self, one: Candidate) -> str:
        """Why a candidate was not taken, with its figure."""
        figure = (
            "" if one.memory is None else f" {self._figure(one.memory).peak_bytes / 1e6:.2f} MB"
        )
        return f"{one.variant}{figure}: {one.reason}"

    def _figure(self, memory: SessionMemory) -> PeakMeasurement:
        return resident_peak(memory, loading=self.process)

    def _keeps(self, memory: SessionMemory, limit_bytes: int | None) -> bool:
        return limit_bytes is None or self._figure(memory).peak_bytes <= limit_bytes

    def verify(self, subject: Subject, made: Made, final: onnx.ModelProto) -> Verification:
        """What the trial found already: it takes nothing that is not exact and in order."""
        result = made.details
        assert isinstance(result, StockResult)
        chosen = result.chosen
        seconds: tuple[float | None, ...] = (None, None)
        ratio = None
        times = None if chosen is None else chosen.times
        if times is not None:
            seconds, ratio = times.median_seconds, times.ratios[1]
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
            rounding=None if subject.exact else self._rounding(subject, made, final),
            figures=self._figures(subject, made, final),
        )

    def _figures(
        self, subject: Subject, made: Made, final: onnx.ModelProto
    ) -> tuple[SessionFigures, ...]:
        assert isinstance(made.details, StockResult)
        listener = stage(self.progress, "measuring other session options")
        original = self._original
        memory = (made.details.original, made.details.memory)
        source = _source(subject, made, final)
        return all_figures(original.source, source, original.inputs, self.recipe, memory, listener)

    def _rounding(self, subject: Subject, made: Made, final: onnx.ModelProto) -> Rounding:
        feed, source = subject.feed, _source(subject, made, final)
        return rounding(
            run_outputs(feed.source(), feed.inputs, self.recipe),
            run_outputs(source, feed.inputs, self.recipe),
        )

    @classmethod
    def reports(cls, result: "RewriteResult") -> TargetReport:
        """Where the weights lie, and which variant was taken."""
        stock = result.details
        assert isinstance(stock, StockResult)
        variant = _unchanged(stock) if stock.chosen is None else str(stock.chosen.variant)
        changed = stock.chosen is not None and stock.chosen.variant is not Variant.ORIGINAL
        planned = f"{format_bytes(result.plan.peak_bytes)} of buffers and workspace"
        rows = (
            *_enough_row(result),
            *_more_row(result, stock),
            *_weights_row(stock, result.weights_inside),
            *_one_heap_row(stock),
            ("variant", variant),
            *((("planned", planned),) if changed else ()),
        )
        opened = "onnxruntime.InferenceSession, nothing to be set"
        if result.data is not None:
            opened += "; its weights belong beside it"
        return TargetReport(opened, rows, planned=changed)


def how(result: "RewriteResult") -> str:
    """What a file for default options is, in few words."""
    stock = result.details
    assert isinstance(stock, StockResult)
    parts = ["unchanged" if stock.chosen is None else stock.chosen.variant.value]
    if result.tiling is not None:
        count = len(result.tiling.regions)
        parts.append(f"{count} region{'s' if count > 1 else ''} in tiles")
    if result.recomputed:
        parts.append(f"{result.recomputed} recomputed")
    return ", ".join(parts)


def _state_types(graph: onnx.GraphProto, profile: RunProfile, fused: frozenset[str]) -> None:
    """State the types of what is added up where it is made (`fused`), and the channels of what
    pools read: by those the runtime fuses additions or not, and lays pools out in blocks, as in the
    original, and behind the edges that keep the order it can infer none. Of other values nothing
    is stated, and no more of those: buffers of known sizes are shared by size, across the order of
    the plan, and held in between (15.6 MB of a U-Net in tiles are 28.2 MB then)."""
    read = {node.input[0] for node in graph.node if node.op_type in _LAID_OUT_BY_SHAPE} | fused
    read -= {value.name for value in graph.output}
    for number, ran in profile.nodes.items():
        for name, kind in zip(graph.node[number].output, ran.outputs, strict=False):
            if name not in read or kind is None:
                continue
            stated = value_info(name, kind)
            if name not in fused:
                for axis, dim in enumerate(stated.type.tensor_type.shape.dim):
                    if axis != _CHANNELS:
                        dim.Clear()
            graph.value_info.append(stated)


def _enough_row(result: "RewriteResult") -> tuple[tuple[str, str], ...]:
    """Where session options alone keep the limit, or take less than the file: nobody has to rewrite
    a model for that."""
    figures = () if result.verification is None else result.verification.figures
    if not figures:
        return ()
    _, options, _ = figures
    process = result.figure == TARGETS["stock"].figures["process"]
    taken = options.process_bytes if process else options.runs_bytes
    said = f"the {options.opened} ({options.option}) takes {format_bytes(taken)}"
    if result.limit_bytes is not None and taken <= result.limit_bytes:
        return (("enough", f"{said}: that keeps the limit"),)
    if result.limit_bytes is None and taken < result.rewritten.peak_bytes:
        return (("less", f"{said}, with that option alone"),)
    return ()


def _more_row(result: "RewriteResult", stock: StockResult) -> tuple[tuple[str, str], ...]:
    """Where runs take more than those of the original: loading is why, and in all it is less."""
    more = result.rewritten.peak_bytes - result.original.peak_bytes
    if more <= 0:
        return ()
    before, after = (format_bytes(one.total_bytes) for one in (stock.original, stock.memory))
    said = f"{format_bytes(more)} in runs, since loading frees less for them to use"
    return (("more", f"{said}; with loading {after} instead of {before}"),)


def _weights_row(stock: StockResult, inside: str) -> tuple[tuple[str, str], ...]:
    """Where the weights lie, if that was asked, or why they are `inside`."""
    if inside or stock.inside:
        return (("weights", f"left where they were: {inside or stock.inside}"),)
    pair = None if stock.chosen is None else stock.chosen.pair
    if pair is None:
        return ()
    said = []
    if not pair.data.empty:
        nbytes = pair.data.path.stat().st_size
        said.append(f"{format_bytes(nbytes)} in a file beside it, mapped (in no figure here)")
    width = pair.optimized_for.layout_width
    if width is not None:
        said.append(
            f"for processors with blocks of {width} channels (others, and WebAssembly, refuse it)"
        )
    return (("weights", "; ".join(said)),) if said else ()


def _one_heap_row(stock: StockResult) -> tuple[tuple[str, str], ...]:
    """What a portable file needs where there is one heap, or that nobody knows."""
    chosen = stock.chosen
    if chosen is None or chosen.pair is None or chosen.pair.optimized_for.packed:
        return ()
    before, after = stock.one_heap, chosen.one_heap
    if before is None or after is None:
        said = "not told: memray is not there, failed, or took longer than --measure-limit"
    else:
        said = (
            f"{format_bytes(before.held_bytes)} or more original, "
            f"{format_bytes(after.end_bytes)} file"
        )
    return (("in WebAssembly", said),)


def _source(subject: Subject, made: Made, final: onnx.ModelProto) -> ModelSource:
    """The file that was made, to be run."""
    return in_memory(
        final, subject.feed.loaded.base_dir if made.pair is None else made.pair.base_dir
    )


def _unchanged(stock: StockResult) -> str:
    """Why: what was wrong with the variant that takes least in its runs."""
    best = stock.closest
    if best is None or best.memory is None:
        return "unchanged: no variant could be made"
    peak = format_bytes(max(best.memory.above_loaded_bytes))
    said = f"unchanged: the best, {best.variant}, takes {peak}, but {best.reason}"
    return f"{said}; {NOT_PORTABLE}" if stock.portable else said


def _warm_sizes(plain: Prediction) -> list[int]:
    """Sizes of the warm block worth trying. In one region as large as what is held at once the
    arena may still not find room for everything, for it leaves gaps: a little more may be less."""
    return [plain.first.live_bytes * (100 + percent) // 100 for percent in _WARM_PERCENTS]


def _compared_with(result: StockResult) -> str:
    if result.chosen is None:
        return "the original itself"
    return WITH_DEFAULTS if result.chosen.same_as_stock else WITHOUT_OPTIMIZATIONS
