"""A model made ready: read, bound to sizes, released, run once with a profile, imported.

    file -> LoadedModel -> Released -> RunProfile -> ImportedModel, together a Subject

`audit`, `rewrite` and `verify` all start here.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

import onnx

from onnxremat.core.bounds import op_bytes
from onnxremat.core.errors import ModelError, UsageError, VerificationError
from onnxremat.core.memory import MemoryRules
from onnxremat.importer import (
    Binding,
    ImportedModel,
    LoadedModel,
    ValueType,
    bind_dimensions,
    declare_sizes,
    import_model,
    infer_types,
    load,
    open_inputs,
)
from onnxremat.importer.execution_order import EAGER_OPS
from onnxremat.importer.nodes import reads, values_of_nodes
from onnxremat.importer.value_sizes import sizes_from_values
from onnxremat.options import ModelFields
from onnxremat.ort.child.process import ModelSource
from onnxremat.ort.child.run_limit import limit_runs
from onnxremat.ort.child.watching import Listener
from onnxremat.ort.child.wire import Array
from onnxremat.ort.emulation.rules import VIEW_OPS
from onnxremat.ort.measuring.compare import different_names
from onnxremat.ort.measuring.inputs import load_inputs, make_inputs
from onnxremat.ort.measuring.measure import in_memory, run_outputs
from onnxremat.ort.measuring.profile import RunProfile, profile_run
from onnxremat.ort.optimize import Optimized, optimize_offline
from onnxremat.ort.recipe import RECIPE, STOCK, ExecutionOrder, OptimizationLevel, Recipe
from onnxremat.ort.record import read_record
from onnxremat.ort.session_kernels import session_kernels
from onnxremat.ort.settle import kept_single, settled
from onnxremat.planners import (
    compile_kernels,
    compiled_kernels_cached,
    kernels_kept_where,
    load_kernels,
)
from onnxremat.stages import COMPILING, ProgressReport, silent, stage
from onnxremat.system.temporary import temporary_place
from onnxremat_rewriters.release import Released, release
from onnxremat_rewriters.stock import is_stock
from onnxremat_rewriters.stock.opset import with_sequences
from onnxremat_rewriters.substitutes import Replaced, Substitution, substitute

UNSETTLED = (
    "ONNX Runtime executes other nodes than the model has, and does not say which: what it "
    "measures decides, and plans may miss"
)
"""Told where a model cannot be settled; planning goes on."""


@dataclass(frozen=True)
class Feed:
    """A model with everything needed to run it: sizes, inputs and the session recipe.

    `open_inputs` are the inputs of the file that leave sizes open. `optimized` is there if `loaded`
    is what the runtime's own optimizations made of the file, which is `unoptimized` then.
    `settles`: whether models with these inputs are settled before they are planned. `options`: how
    they are to be run.
    """

    loaded: LoadedModel
    binding: Binding
    inputs: Mapping[str, Array]
    recipe: Recipe
    open_inputs: tuple[str, ...] = ()
    optimized: Optimized | None = None
    unoptimized: LoadedModel | None = None
    settles: bool = True
    options: ModelFields = field(default_factory=ModelFields)

    @property
    def as_it_came(self) -> LoadedModel:
        """The file."""
        return self.loaded if self.unoptimized is None else self.unoptimized

    def source(self) -> ModelSource:
        """The model as it was read (its nodes in a valid order)."""
        return in_memory(self.loaded.model, self.loaded.base_dir)


@dataclass(frozen=True)
class Subject:
    """A model ready for planning. `profile`, `types` (of values, by name) and `imported` belong to
    the released model, which is settled too: its nodes are those that the runtime executes
    (`ort.settle`). `replaced` are nodes for which others stand (`with_substitutes`), `rounded`
    names of nodes that run in tiles and may round differently there. `sized`: the model holds for
    the sizes of the feed only, and its inputs declare them."""

    feed: Feed
    released: Released
    profile: RunProfile
    types: Mapping[str, ValueType]
    imported: ImportedModel
    replaced: tuple[Replaced, ...] = ()
    rounded: tuple[str, ...] = ()
    sized: bool = False

    @property
    def exact(self) -> bool:
        """Whether it computes the bits of the original."""
        return not self.rounded and all(one.exact for one in self.replaced)

    @property
    def settled(self) -> bool:
        """Whether the runtime executes the nodes of the released model as they stand."""
        return self.profile.is_of(self.released.model, self.feed.recipe.execution_order)

    @cached_property
    def fixed_types(self) -> Mapping[str, ValueType]:
        """`types` of the values whose sizes are the same whatever values the inputs have."""
        varying = sizes_from_values(self.released.model)
        return {name: kind for name, kind in self.types.items() if name not in varying}

    def released_source(self) -> ModelSource:
        """The released model, to be run."""
        return in_memory(self.released.model, self.feed.loaded.base_dir)


def prepare_feed(path: Path, options: ModelFields) -> Feed:
    """Read a model and get its inputs ready.

    Raises UsageError (no such file or dimension, an unbound one, bad inputs) or ModelError.
    """
    return feed_for(load(path), options)


def feed_for(loaded: LoadedModel, options: ModelFields) -> Feed:
    """`prepare_feed` for a model that was read already. Its runs are limited from now on."""
    limit_runs(options.run_limit, options.run_memory)
    _require_temporary_folder()
    dims = dict(options.dims)
    if options.inputs is not None:
        inputs = load_inputs(options.inputs, loaded.model, dims)
        dims |= {
            f"{name}:{axis}": size
            for name, value in inputs.items()
            for axis, size in enumerate(value.shape)
        }
        binding = bind_dimensions(loaded, dims)
    else:
        binding = bind_dimensions(loaded, dims)
        inputs = make_inputs(loaded.model, binding.input_shapes, options.seed)
    recipe = replace(RECIPE, execution_order=ExecutionOrder(options.order))
    recipe = recipe.with_threads(options.threads).with_dimensions(binding.symbols)
    return Feed(loaded, binding, inputs, recipe, tuple(open_inputs(loaded.model)), options=options)


def _require_temporary_folder() -> None:
    """Models are run in other processes, which get them in a folder for temporary files."""
    try:
        temporary_place()
    except FileNotFoundError:
        raise UsageError(
            "there is no folder for temporary files that can be written: name one in TMPDIR"
        ) from None


def optimized_feed(feed: Feed, level: OptimizationLevel) -> Feed:
    """The feed with the model that the runtime's optimizations make of it at a level.

    Raises ModelError if the runtime refuses it, VerificationError if the optimized file does not
    give the bits that the original gives at that level.
    """
    loaded, recipe, given = feed.loaded, feed.recipe, feed.loaded.model
    if feed.options.fuses_when_loaded:
        # The sizes that a model leaves open are not known where it is opened with nothing set, and
        # what is added to it is written for the operator set that it will have.
        recipe, given = recipe.with_dimensions({}), with_sequences(given)
    made = optimize_offline(given, loaded.base_dir, level, recipe)
    model = declare_sizes(made.model, feed.binding, {})
    done = replace(
        feed, loaded=replace(loaded, model=model), optimized=made, unoptimized=feed.as_it_came
    )
    if feed.options.verify:
        recipe = replace(recipe, optimization=level)
        expected = run_outputs(feed.source(), feed.inputs, recipe)
        different = different_names(expected, run_outputs(done.source(), done.inputs, done.recipe))
        if different:
            raise VerificationError(
                f"the model optimized at level {level.value} gives other bits when it is opened "
                f"from a file: {', '.join(different[:3])}"
            )
    return done


_WHILE_RUNNING = "Error in execution"
"""Said by ONNX Runtime of what it has opened and could not run."""


def prepare(
    model: Path | LoadedModel, options: ModelFields, progress: ProgressReport = silent
) -> Subject:
    """Everything that planning needs to know of a model: a file, or one that was read already.

    It is run a few times.

    Raises UsageError or ModelError, as `prepare_feed`; ModelError too if the runtime refuses it.
    """
    progress("reading the model")
    feed = feed_for(model if isinstance(model, LoadedModel) else load(model), options)
    if is_stock(feed.loaded.model):
        raise ModelError(
            f"{feed.loaded.label} was already rewritten for default session options: take the "
            "original (`onnxremat audit ORIGINAL --html PAGE --with FILE` shows both in one "
            "picture)"
        )
    known = {node.op_type for node in feed.loaded.model.graph.node}
    for op_type in options.allow_ops:
        if op_type not in known:
            raise UsageError(f"--allow-op: the model has no {op_type!r}")
    if options.optimize != OptimizationLevel.NONE:
        progress("optimizing the model")
        feed = optimized_feed(feed, OptimizationLevel(options.optimize))
    elif options.optimizes_first:
        progress("optimizing the model")
        try:
            feed = optimized_feed(feed, OptimizationLevel.EXTENDED)
        except (ModelError, VerificationError) as error:
            progress("planning the model as it is written", str(error))
    listener = stage(progress, "running the model to learn sizes, workspace and times")
    try:
        released = settled_release(feed, _released(feed))
        subject = studied(feed, released, listener)
    except ModelError as error:
        if options.inputs is None and _WHILE_RUNNING in str(error):
            hint = "it was run on random values: --inputs FILE.npz gives it others"
            raise ModelError(f"{error} ({hint})") from error
        raise
    if not subject.settled:
        progress(UNSETTLED)
    return replace(subject, sized=feed.optimized is not None or _made_for_sizes(feed.loaded.model))


def _made_for_sizes(model: onnx.ModelProto) -> bool:
    """Whether the model was rewritten before and may hold for some sizes only, although it leaves
    them open (files of older versions do)."""
    try:
        record = read_record(model)
    except UsageError:
        return True
    return record is not None and not record.any_size


def with_substitutes(
    subject: Subject,
    substitutions: Sequence[Substitution],
    threshold_bytes: int,
    rules: MemoryRules,
) -> Subject:
    """The subject in which substitutes stand for nodes that hold `threshold_bytes` or more
    under `rules`."""
    imported = subject.imported
    held = dict(zip(imported.op_nodes, op_bytes(imported.graph, rules), strict=True))
    made = substitute(
        subject.released.model,
        held,
        subject.fixed_types,
        substitutions=substitutions,
        threshold_bytes=threshold_bytes,
    )
    if not made.changed:
        return subject
    model = made.model
    if made.sized:
        model = declare_sizes(model, subject.feed.binding, subject.types)
    again = studied(subject.feed, release(model))
    sized = subject.sized or made.sized
    return replace(again, replaced=subject.replaced + made.replaced, sized=sized)


def settled_release(feed: Feed, released: Released) -> Released:
    """The released model with the nodes that the runtime executes, and released again; the argument
    itself if those are its own."""
    model = settled(released.model, feed.loaded.base_dir, feed.recipe)
    if model is released.model:
        return released
    again = release(model)
    return replace(
        again,
        dropped_nodes=released.dropped_nodes + again.dropped_nodes,
        dropped_outputs=released.dropped_outputs + again.dropped_outputs,
        size_readers=released.size_readers + again.size_readers,
    )


def _released(feed: Feed) -> Released:
    """The model of a feed with what is unread dropped, and fused no further for that.

    A session fuses an op with the only one that reads it. Where it had more readers, which nothing
    depends on, it would do so once they are gone: what it made of the model before, and makes no
    more, keeps a reader.
    """
    model = feed.loaded.model
    made = release(model)
    if not feed.options.fuses_when_loaded or not made.dropped_nodes:
        return made
    recipe = STOCK.with_threads(feed.options.threads)
    before, after = (
        session_kernels(source, recipe, OptimizationLevel.ALL, values_of_nodes(model.graph))
        for source in (feed.source(), in_memory(made.model, feed.loaded.base_dir))
    )
    read, left = (
        Counter(name for node in nodes for name in reads(node))
        for nodes in (model.graph.node, made.model.graph.node)
    )
    apart = [name for name in before.keys() - after.keys() if left[name] == 1 < read[name]]
    return release(model, apart) if apart else made


def unsettled(subject: Subject) -> Subject:
    """The subject with the nodes of its file, whatever the runtime makes of them."""
    feed = replace(subject.feed, settles=False)
    again = studied(feed, _released(feed))
    return replace(again, sized=subject.sized)


def studied(
    feed: Feed,
    released: Released,
    listener: Listener | None = None,
    run: RunProfile | None = None,
) -> Subject:
    """Run a released model, unless `run` is known already, and import it; settled first, if the
    runtime executes other nodes. `listener` hears how the runs are going."""

    def run_profiled(model: onnx.ModelProto) -> RunProfile:
        return profile_run(
            model,
            feed.loaded.base_dir,
            feed.inputs,
            feed.recipe,
            seconds=feed.options.measure_limit,
            listener=listener,
        )

    if run is None:
        run = run_profiled(released.model)
    if feed.settles and not run.is_of(released.model, feed.recipe.execution_order):
        made = settled_release(feed, released)
        if made is not released:
            released = made
            run = run_profiled(released.model)
    subject_model = replace(feed.loaded, model=released.model)
    types = infer_types(subject_model, feed.binding, measured_types(released.model, run))
    imported = import_model(
        subject_model,
        types,
        view_ops=VIEW_OPS,
        eager_ops=EAGER_OPS,
        workspace={v: node.workspace_bytes for v, node in run.nodes.items()},
        measured_ns=(
            {v: node.time_ns for v, node in run.nodes.items()}
            if feed.options.costs == "measured"
            else None
        ),
        allow_recompute=feed.options.allow_ops,
        kept_single=kept_single(released.model),
    )
    return Subject(feed, released, run, types, imported)


def measured_types(model: onnx.ModelProto, run: RunProfile) -> dict[str, ValueType]:
    """The types of the values that a profiled run of `model` made, by name."""
    return {
        name: made
        for v, node in run.nodes.items()
        for name, made in zip(model.graph.node[v].output, node.outputs, strict=True)
        if name and made is not None
    }


def prepare_planner(progress: ProgressReport) -> None:
    """Compile the search if this machine has not done so yet, and load it, so that no time limit
    pays for it."""
    if not compiled_kernels_cached():
        where = kernels_kept_where() or "once on this machine"
        progress(f"{COMPILING} (about 30 s), {where}")
        compile_kernels()
    load_kernels()
