"""Whether a rewritten model is what was promised: same bits, planned order, less memory.

Both models run in the real runtime, under the same session options and thread count.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx

from onnxremat.core.errors import UsageError, VerificationError
from onnxremat.core.units import format_bytes
from onnxremat.importer import GivenModel, LoadedModel, load_given
from onnxremat.importer.load import given_inputs
from onnxremat.importer.nodes import is_constant
from onnxremat.importer.purity import is_pure
from onnxremat.options import ModelOptions
from onnxremat.ort.child.process import ModelSource
from onnxremat.ort.child.wire import Array
from onnxremat.ort.measuring.compare import Rounding, different_names, rounding
from onnxremat.ort.measuring.executed_steps import check_order
from onnxremat.ort.measuring.figures import SessionFigures, all_figures
from onnxremat.ort.measuring.measure import (
    PeakMeasurement,
    PeakMethod,
    in_memory,
    measure_activation,
    measure_times,
    run_outputs,
)
from onnxremat.ort.measuring.measure_time import MEASURE_SECONDS, PEAK_SHARE, TIMES_SHARE
from onnxremat.ort.measuring.profile import inner_nodes, seen_run
from onnxremat.ort.measuring.session_memory import SessionMemory, measure_session
from onnxremat.ort.recipe import STOCK, ExecutionOrder, OptimizationLevel, Recipe
from onnxremat.ort.record import PlanRecord, made_record
from onnxremat.stages import NOTE, Detail, ProgressReport, silent, stage
from onnxremat.subject import Feed, feed_for, optimized_feed
from onnxremat.target_table import PROCESS_FIGURE
from onnxremat_rewriters.stock import read_stock

WITHOUT_OPTIMIZATIONS = "the original without optimizations"
MOST_ROUNDING = 1e-3
"""Most difference of the median output, as a share of its largest value, that is still rounding. (A
single output may be nothing but rounding noise: a bias gradient in front of a normalization.)"""
_NOISE_SHARE, _NOISE_BYTES = 0.02, 64 * 1024
_COMPARING, _MODELS = "comparing outputs", ("original", "rewritten")
"""How far two measurements of the same peak may be apart."""
WITH_SUBSTITUTES = "the original with the substitutes in it"
WITH_DEFAULTS = "the original with default options"


@dataclass(frozen=True)
class Verification:
    """What two models did on the same inputs.

    `different_outputs` are the outputs whose bits differ. `deterministic`: the original gave the
    same bits twice (asked only if something differs). `order_as_planned`: the runtime executed the
    rewritten file's nodes in file order. Times are medians of alternating runs; `time_ratio` is the
    median of rewritten / original in the same round, which a slow moment of the machine does not
    change; None if the file is the original. `compared_with` says what the outputs were
    compared with, where that is not the original under the same options. `rounding` tells how far
    outputs are from the original's, where nodes were replaced by others that round differently;
    `bits_compared` is false if nothing but that could be compared. `other_model` says so if the
    rewritten file was made from another one than the original. `promised_bytes`: what the record of
    a file says that it was measured to take, where that is known and of the same kind.
    `figures`: all that is limited, of the original and of the file, for files for default options.
    `process`: whether the peaks have what loading takes in them, since that was limited.
    """

    different_outputs: tuple[str, ...]
    deterministic: bool
    order_as_planned: bool
    original: PeakMeasurement
    rewritten: PeakMeasurement
    original_seconds: float | None
    rewritten_seconds: float | None
    time_ratio: float | None
    compared_with: str = ""
    rounding: Rounding | None = None
    bits_compared: bool = True
    other_model: str = ""
    promised_bytes: int | None = None
    figures: tuple[SessionFigures, ...] = ()
    process: bool = False

    @property
    def identical(self) -> bool:
        """Whether every output is the same, bit for bit."""
        return not self.different_outputs

    @property
    def original_peak_bytes(self) -> int:
        """The original's activation peak."""
        return self.original.peak_bytes


def verify(
    original: LoadedModel,
    rewritten: LoadedModel,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    *,
    progress: ProgressReport = silent,
    measured: tuple[PeakMeasurement, PeakMeasurement] | None = None,
    reference: ModelSource | None = None,
    measure_limit: float = MEASURE_SECONDS,
) -> Verification:
    """Run both models: outputs, order, peaks (`measured` if they are known already), times.

    Peaks and times are taken from fewer runs where more would take longer than `measure_limit`.

    `reference`: the model whose bits count, if that is not the original.

    Raises ModelError if the runtime refuses one of them.
    """
    old = in_memory(original.model, original.base_dir)
    new = in_memory(rewritten.model, rewritten.base_dir)
    progress(_COMPARING, Detail.step(1, 2))
    exact = old if reference is None else reference
    got = run_outputs(new, inputs, recipe)
    progress(_COMPARING, Detail.step(2, 2))
    expected = run_outputs(exact, inputs, recipe)
    different = different_names(expected, got)
    deterministic = not different or not different_names(
        expected, run_outputs(exact, inputs, recipe)
    )
    apart = None if reference is None else rounding(run_outputs(old, inputs, recipe), got)
    progress("comparing the executed order with the plan")
    in_order = executed_as_written(rewritten, inputs, recipe)
    if measured is None:
        before, after = (
            measure_activation(
                model,
                inputs,
                recipe,
                seconds=PEAK_SHARE * measure_limit,
                listener=stage(progress, f"measuring the memory of the {name} model"),
            )
            for name, model in (("original", old), ("rewritten", new))
        )
    else:
        before, after = measured
    times = measure_times(
        [old, new],
        inputs,
        [recipe, recipe],
        seconds=TIMES_SHARE * measure_limit,
        listener=stage(progress, "measuring times"),
    )
    return Verification(
        different,
        deterministic,
        in_order,
        before,
        after,
        times.median_seconds[0],
        times.median_seconds[1],
        times.ratios[1],
        "" if reference is None else WITH_SUBSTITUTES,
        apart,
    )


def require_expanded_alike(feed: Feed) -> None:
    """Where reading a file expanded functions: run the file as it is, too, under the same options.

    What is compared from then on has the functions expanded; by this it speaks of the file. Raises
    VerificationError if the two give different bits, ModelError if the runtime refuses one of them.
    """
    loaded = feed.as_it_came
    if not loaded.inlined:
        return
    if loaded.given is None:
        as_it_is = ModelSource(path=loaded.path)
    else:
        as_it_is = in_memory(loaded.given, loaded.base_dir)
    expanded, recipe = in_memory(loaded.model, loaded.base_dir), feed.recipe
    expected = run_outputs(as_it_is, feed.inputs, recipe)
    different = different_names(expected, run_outputs(expanded, feed.inputs, recipe))
    if different:
        again = run_outputs(as_it_is, feed.inputs, recipe)
        _require_deterministic(different_names(expected, again))
        raise VerificationError(
            "with its functions expanded the model gives other bits than ONNX Runtime gives of the "
            f"file: {', '.join(different[:3])}"
        )


def same_from_the_start(feed: Feed, model: onnx.ModelProto) -> bool:
    """Whether `model`, what planning starts from, gives the bits of the original: asked before
    anything takes time, where something may be different. True if nothing may.

    Raises VerificationError if no result could be compared at the end, since the original gives
    different bits in two runs; ModelError if the runtime refuses one of them.
    """
    original = feed.loaded.model
    nodes = (one for node in original.graph.node for one in (node, *inner_nodes(node)))
    random = not all(map(is_pure, nodes))
    made_of = {node.SerializeToString() for node in original.graph.node}
    changed = any(node.SerializeToString() not in made_of for node in model.graph.node)
    if not random and not changed:
        return True
    expected = run_outputs(feed.source(), feed.inputs, feed.recipe)
    if random:
        again = run_outputs(feed.source(), feed.inputs, feed.recipe)
        _require_deterministic(different_names(expected, again))
    if not changed:
        return True
    got = run_outputs(in_memory(model, feed.loaded.base_dir), feed.inputs, feed.recipe)
    return not different_names(expected, got)


def verify_files(
    original: GivenModel,
    rewritten: GivenModel,
    options: ModelOptions | None = None,
    *,
    base_dir: str | os.PathLike[str] | None = None,
    progress: ProgressReport = silent,
) -> Verification:
    """`verify` for two files, or models in memory, under the recipe stored in the rewritten one.

    `base_dir` is the folder of the files that hold weights of models in memory.

    A file for default session options is measured and compared under those (`verify_stock`); one
    of an optimized model is compared with the original optimized alike. Raises UsageError if the
    rewritten file was not made by onnxremat, for other inputs than the original's, or for other
    sizes than are to be compared, if it runs at no others.
    """
    options = options or ModelOptions()
    progress("reading the models")
    old, new = (
        load_given(one, base_dir if isinstance(one, onnx.ModelProto) else None)
        for one in (original, rewritten)
    )
    record = made_record(new.model, new.label)
    other_model = ""
    if record.original_sha256 != old.sha256:
        other_model = f"{new.label} was made from another model than {old.label}"
    unlike = [name for name, _ in sorted(_ranks(old).items() ^ _ranks(new).items())]
    if unlike:
        names = ", ".join(map(repr, dict.fromkeys(unlike[:3])))
        reason = other_model or f"{old.label} and {new.label} do not belong together"
        raise UsageError(f"{reason}: they have different inputs ({names})")
    if not options.dims and options.inputs is None:
        options = replace(options, dims=planned_dims(old, record))
    feed = feed_for(old, options)
    given = feed.binding.input_shapes
    if record.any_size and record.recipe.free_dimensions:
        recipe = record.recipe.with_dimensions(feed.binding.symbols)
        record = replace(record, recipe=recipe)
    if not record.any_size:
        _require_planned(new.label, record, given)
    other = feed_for(new, replace(options, dims=_addressed(given)))
    require_expanded_alike(feed)
    result = _compared(feed, other, record, progress)
    return replace(result, other_model=other_model, promised_bytes=record.measured_peak_bytes)


def _compared(
    feed: Feed, other: Feed, record: PlanRecord, progress: ProgressReport
) -> Verification:
    """Two files compared under the recipe in the record of the second."""
    recipe, options = record.recipe, feed.options
    if options.threads is not None:
        recipe = recipe.with_threads(options.threads)
    if record.recipe.optimization is not OptimizationLevel.NONE:
        recipe = record.recipe if options.threads is None else STOCK.with_threads(options.threads)
        result = verify_stock(
            feed.loaded,
            other.loaded,
            feed.inputs,
            recipe,
            optimized=record.optimized is not None,
            process=record.figure == PROCESS_FIGURE,
            progress=progress,
            measure_limit=options.measure_limit,
        )
        return result if record.exact else _rounded(result, feed, other, recipe)
    if record.optimized is not None:
        feed = optimized_feed(feed, OptimizationLevel(record.optimized.level))
    result = verify(
        feed.loaded,
        other.loaded,
        feed.inputs,
        recipe,
        progress=progress,
        measure_limit=options.measure_limit,
    )
    return result if record.exact else _rounded(result, feed, other, recipe)


def _ranks(loaded: LoadedModel) -> dict[str, int]:
    """The inputs that a caller gives, with their numbers of dimensions."""
    given = given_inputs(loaded.model.graph)
    return {value.name: len(value.type.tensor_type.shape.dim) for value in given}


def planned_dims(loaded: LoadedModel, record: PlanRecord) -> dict[str, int]:
    """The sizes that were planned for, of the inputs of a model."""
    given = {value.name for value in given_inputs(loaded.model.graph)}
    planned = record.input_shapes
    return _addressed({name: planned[name] for name in planned if name in given})


def _addressed(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """Sizes by INPUT:AXIS, whether a file leaves them open or not."""
    return {
        f"{name}:{axis}": size for name, shape in shapes.items() for axis, size in enumerate(shape)
    }


def _require_planned(
    rewritten: str, record: PlanRecord, given: Mapping[str, tuple[int, ...]]
) -> None:
    for name, shape in record.input_shapes.items():
        if name in given and tuple(given[name]) != tuple(shape):
            raise UsageError(
                f"{rewritten} was planned for input {name!r} of shape {list(shape)}, not "
                f"{list(given[name])}: rewrite the original for these sizes"
            )


def _rounded(result: Verification, original: Feed, rewritten: Feed, recipe: Recipe) -> Verification:
    """The result for a file that was allowed to round differently."""
    expected, got = (
        run_outputs(one.source(), original.inputs, recipe) for one in (original, rewritten)
    )
    return replace(
        result, different_outputs=(), rounding=rounding(expected, got), bits_compared=False
    )


def verify_stock(
    original: LoadedModel,
    rewritten: LoadedModel,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    *,
    optimized: bool = False,
    process: bool = False,
    progress: ProgressReport = silent,
    measure_limit: float = MEASURE_SECONDS,
) -> Verification:
    """`verify` for a file that is opened with default options: its peaks are resident memory, in
    runs, or of the `process`.

    Outputs are compared with the original's under the same options; if they differ, and the runtime
    has not `optimized` the file before, with those without optimizations. The order is that of the
    steps the stock rewriter wrote down.
    """
    old = in_memory(original.model, original.base_dir)
    new = in_memory(rewritten.model, rewritten.base_dir)
    references = [(recipe, WITH_DEFAULTS)]
    if not optimized:
        plain = replace(recipe, optimization=OptimizationLevel.NONE)
        references.append((plain, WITHOUT_OPTIMIZATIONS))
    runs = 1 + len(references)
    progress(_COMPARING, Detail.step(1, runs))
    got = run_outputs(new, inputs, recipe)
    compared, different = WITH_DEFAULTS, tuple[str, ...]()
    for number, (options, words) in enumerate(references, start=2):
        progress(_COMPARING, Detail.step(number, runs))
        expected = run_outputs(old, inputs, options)
        compared, different = words, different_names(expected, got)
        if not different:
            break
    deterministic = not different or not different_names(expected, run_outputs(old, inputs, recipe))
    in_order = True
    made = read_stock(rewritten.model)
    if made is not None and made.edges:
        progress("comparing the executed order with the plan")
        order = check_order(made, rewritten.base_dir, inputs, threads=recipe.threads)
        in_order = order.as_planned
    memory = []
    for number, source in enumerate((old, new), start=1):
        progress("measuring memory", Detail.step(number, 2))
        memory.append(measure_session(source, inputs, recipe, repeats=2, returning=True))
        progress(NOTE, f"{_MODELS[number - 1]}: {format_bytes(memory[-1].grown_bytes)} in all")
    before, after = (resident_peak(one, loading=process) for one in memory)
    times = measure_times(
        [old, new],
        inputs,
        [recipe, recipe],
        seconds=TIMES_SHARE * measure_limit,
        listener=stage(progress, "measuring times"),
    )
    progress(NOTE, f"times: {100 * (times.ratios[1] - 1):+.1f}% rewritten")
    listener = stage(progress, "measuring other session options")
    return Verification(
        different,
        deterministic,
        in_order,
        before,
        after,
        times.median_seconds[0],
        times.median_seconds[1],
        times.ratios[1],
        compared,
        figures=all_figures(old, new, inputs, recipe, memory, listener),
        process=process,
    )


def resident_peak(memory: SessionMemory, *, loading: bool = False) -> PeakMeasurement:
    """The most that any run takes above the loaded session; with `loading` that is included."""
    peaks = memory.above_loaded_bytes
    if loading:
        peaks = tuple(memory.loaded_bytes + peak for peak in memory.run_peaks_bytes)
    return PeakMeasurement(max(peaks), peaks, PeakMethod.RESIDENT)


def require(result: Verification, limit_bytes: int | None) -> None:
    """Raise VerificationError, saying what failed, unless everything promised holds.

    The order is no promise of its own: bits and memory are. Where the runtime executes other nodes
    than the file has and yet takes no more, the result says so and nothing is raised.
    """
    if result.different_outputs:
        if not result.deterministic:
            _require_deterministic(result.different_outputs)
        named = _named(result.different_outputs)
        if result.other_model:
            raise VerificationError(f"{result.other_model}: outputs differ ({named})")
        raise VerificationError(f"outputs differ from the original's: {named}")
    if result.rounding is not None and not (
        math.isfinite(result.rounding.worst) and result.rounding.median <= MOST_ROUNDING
    ):
        raise VerificationError(
            f"outputs are too far from the original's to be rounded differently only: up to "
            f"{result.rounding.worst:.1e} of the largest value in {result.rounding.name}, "
            f"{result.rounding.median:.1e} in the median output"
        )
    if not result.order_as_planned and not _kept(result):
        raise VerificationError(
            "the runtime executed the nodes in another order than planned, and the measured peak, "
            f"{format_bytes(result.rewritten.peak_bytes)}, is above the "
            f"{format_bytes(result.promised_bytes or 0)} that the file was measured to take"
        )
    if limit_bytes is not None and result.rewritten.peak_bytes > limit_bytes:
        raise VerificationError(
            f"the rewritten model's measured peak, {format_bytes(result.rewritten.peak_bytes)}, is "
            f"above the limit of {format_bytes(limit_bytes)}"
        )


def _require_deterministic(different: tuple[str, ...]) -> None:
    """Raise VerificationError if two runs of the original differ in these outputs."""
    if different:
        raise VerificationError(
            f"outputs cannot be compared: the original itself gives different bits in two runs "
            f"(seen in {_named(different)})"
        )


def _named(outputs: tuple[str, ...]) -> str:
    names = ", ".join(outputs[:3])
    return f"{names} and {len(outputs) - 3} more" if len(outputs) > 3 else names


def _kept(result: Verification) -> bool:
    """Whether the peak is what was measured when the file was made, or less: then the order does
    not matter."""
    promised = result.promised_bytes
    if promised is None:
        return True
    return result.rewritten.peak_bytes <= promised + max(_NOISE_SHARE * promised, _NOISE_BYTES)


def executed_as_written(loaded: LoadedModel, inputs: Mapping[str, Array], recipe: Recipe) -> bool:
    """Whether the runtime executes the nodes of a model, and no others, in the order of the file,
    or, with DEFAULT in the recipe, in the one that their positions stand for."""
    model = loaded.model
    seen = seen_run(model, loaded.base_dir, inputs, recipe)
    in_order = recipe.execution_order is ExecutionOrder.DEFAULT or seen.order == tuple(
        i for i, node in enumerate(model.graph.node) if not is_constant(node)
    )
    return in_order and seen.is_of(model, recipe.execution_order)
