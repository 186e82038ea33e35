"""A model made ready: read, bound to sizes, released, run once with a profile, imported.

    file -> LoadedModel -> Released -> RunProfile -> ImportedModel, together a Subject

`audit`, `rewrite` and `verify` all start here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import onnx

from onnxremat.bounds import op_bytes
from onnxremat.errors import ModelError, UsageError, VerificationError
from onnxremat.importer import (
    Binding,
    ImportedModel,
    LoadedModel,
    ValueType,
    bind_dimensions,
    import_model,
    infer_types,
    load,
)
from onnxremat.planners import compile_kernels, compiled_kernels_cached
from onnxremat.planners._engine import usable_processors
from onnxremat.runtimes.compare import different_names
from onnxremat.runtimes.inputs import load_inputs, make_inputs
from onnxremat.runtimes.measure import in_memory, run_outputs
from onnxremat.runtimes.optimize import Optimized, optimize_offline
from onnxremat.runtimes.process import ModelSource
from onnxremat.runtimes.profiling import RunProfile, profile_run
from onnxremat.runtimes.recipe import RECIPE, ExecutionOrder, OptimizationLevel, Recipe
from onnxremat.runtimes.rules import EAGER_OPS, RECIPE_RULES, VIEW_OPS
from onnxremat.runtimes.settle import kept_single, settled
from onnxremat.runtimes.wire import Array
from onnxremat_rewriters.release import Released, release
from onnxremat_rewriters.stock import is_stock
from onnxremat_rewriters.substitutes import Replaced, Substitution, substitute

COMPILING = "compiling the planner, once on this machine (about 20 s)"
"""A stage worth telling even where progress is not shown."""

UNSETTLED = (
    "ONNX Runtime executes other nodes than the model has, and does not say which: what it "
    "measures decides, and plans may miss"
)
"""Told where a model cannot be settled; planning goes on."""

PLANNING, CHOOSING = "planning", "choosing regions to tile"
"""The stages that time limits, and that an interruption ends with the best plan so far."""

COST_SOURCES = ("model", "measured")
SESSIONS = ("recipe", "stock")
RUNTIMES = ("ort-cpu", "generic")
ORDERS = tuple(mode.value for mode in ExecutionOrder)
ORDER_PLANNERS = ("auto", "reorder", "given_order")
"""Planners that keep to orders that the runtime's default order can give."""
OPTIMIZATIONS = tuple(level.value for level in OptimizationLevel)


class ProgressReport(Protocol):
    """Called with what is being done, and now and then with how it is going."""

    def __call__(self, stage: str, detail: str = "") -> None: ...


def silent(stage: str, detail: str = "") -> None:
    """A ProgressReport that reports nothing."""


@dataclass(frozen=True)
class Options:
    """What the user may choose, with the command line's defaults.

    `runtime`: "ort-cpu", or "generic" for one without an allocator. `session`: how the file will be
    opened, with the options stored in it ("recipe") or with ONNX Runtime's defaults ("stock").
    `order`: who keeps the order, the session option of that name in the file ("priority"), or the
    positions of the nodes alone ("default"); then nothing is recomputed.
    `optimize`: the level of the runtime's own optimizations that are done before the plan.
    `dims`: sizes of symbolic dimensions. `inputs`: an .npz file to measure with, random values of
    `seed` otherwise. `planner`: a name in PLANNERS. `recompute`: whether nodes may run again.
    `tiling`: whether ops may be cut (not with `order` "default" or `session` "stock").
    `allow_rounding`: whether ops may be cut, or replaced by others that need less scratch, where
    that rounds differently.
    `allow_ops`: custom op types that may be recomputed. `costs`: where op times come from, "model"
    or "measured". `threads`: of the runtime, None for its own choice. `verify`: run both models and
    compare.

    `time_limit`: the seconds that planners and the choice of tiles have, all together; running,
    predicting and measuring come on top. Where one op alone exceeds the limit, tiles get them all,
    and without tiles whole ops do. Otherwise whole ops have 60% (in training graphs 85%; for the
    smallest peak 40% and 60%), tiles come next, and if those come to nothing, whole ops have what
    is left. A tenth of what whole ops have is kept for planning again what takes more in the
    runtime than it was planned to.
    """

    runtime: str = "ort-cpu"
    session: str = "recipe"
    order: str = ExecutionOrder.PRIORITY.value
    optimize: str = "none"
    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Path | None = None
    planner: str = "auto"
    recompute: bool = True
    tiling: bool = True
    allow_rounding: bool = False
    allow_ops: tuple[str, ...] = ()
    costs: str = "model"
    time_limit: float = 10.0
    threads: int | None = None
    seed: int = 0
    verify: bool = True

    @property
    def exact_threads(self) -> int:
        """The number of threads that tiles are exact for: the one asked for, or this machine's."""
        return self.threads or usable_processors()

    @property
    def tiles(self) -> bool:
        """Whether ops may be cut."""
        recipe = self.session == "recipe" and self.order == ExecutionOrder.PRIORITY
        return self.tiling and recipe

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError(f"--seed: {self.seed} is negative")
        _require_one_of("--costs", self.costs, COST_SOURCES)
        _require_one_of("--session", self.session, SESSIONS)
        _require_one_of("--runtime", self.runtime, RUNTIMES)
        _require_one_of("--optimize", self.optimize, OPTIMIZATIONS)
        _require_one_of("--order", self.order, ORDERS)
        if self.order == ExecutionOrder.DEFAULT:
            if self.recompute:
                raise UsageError(
                    "--order default: ONNX Runtime's default order cannot run what recomputation "
                    "plans: say --no-recompute, too"
                )
            if self.session == "stock":
                raise UsageError("--order default: a file of --session stock keeps its own order")
            if self.planner not in ORDER_PLANNERS:
                raise UsageError(
                    f"--order default: not with --planner {self.planner}, only with "
                    + ", ".join(ORDER_PLANNERS)
                )
        if self.runtime == "generic" and self.session == "stock":
            raise UsageError("--session stock is of ONNX Runtime: not with --runtime generic")
        if self.runtime == "generic" and self.optimize != "none":
            raise UsageError(
                "--optimize makes ops that only ONNX Runtime has: not with --runtime generic"
            )
        if self.session == "stock" and self.optimize != "none":
            raise UsageError(
                "--session stock leaves optimizations to the session that opens the file: not with "
                "--optimize"
            )


def _require_one_of(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UsageError(f"{option}: {value!r} is none of {', '.join(known)}")


@dataclass(frozen=True)
class Feed:
    """A model with everything needed to run it: sizes, inputs and the session recipe.

    `optimized` is there if `loaded` is what the runtime's own optimizations made of the file.
    `settles`: whether models with these inputs are settled before they are planned.
    """

    loaded: LoadedModel
    binding: Binding
    inputs: Mapping[str, Array]
    recipe: Recipe
    optimized: Optimized | None = None
    settles: bool = True

    def source(self) -> ModelSource:
        """The model as it was read (its nodes in a valid order)."""
        return in_memory(self.loaded.model, self.loaded.base_dir)


@dataclass(frozen=True)
class Subject:
    """A model ready for planning. `profile`, `types` (of values, by name) and `imported` belong to
    the released model, which is settled too: its nodes are those that the runtime executes
    (`runtimes.settle`). `replaced` are nodes for which others stand (`with_substitutes`), `rounded`
    names of nodes that run in tiles and may round differently there."""

    feed: Feed
    released: Released
    profile: RunProfile
    types: Mapping[str, ValueType]
    imported: ImportedModel
    replaced: tuple[Replaced, ...] = ()
    rounded: tuple[str, ...] = ()

    @property
    def exact(self) -> bool:
        """Whether it computes the bits of the original."""
        return not self.rounded and all(one.exact for one in self.replaced)

    @property
    def settled(self) -> bool:
        """Whether the runtime executes the nodes of the released model as they stand."""
        return self.profile.is_of(self.released.model, self.feed.recipe.execution_order)

    def released_source(self) -> ModelSource:
        """The released model, to be run."""
        return in_memory(self.released.model, self.feed.loaded.base_dir)


def prepare_feed(path: Path, options: Options) -> Feed:
    """Read a model and get its inputs ready.

    Raises UsageError (no such file or dimension, an unbound one, bad inputs) or ModelError.
    """
    return feed_for(load(path), options)


def feed_for(loaded: LoadedModel, options: Options) -> Feed:
    """`prepare_feed` for a model that was read already."""
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
    return Feed(loaded, binding, inputs, recipe)


def optimized_feed(feed: Feed, options: Options) -> Feed:
    """The feed with the model that the runtime's optimizations make of it at `options.optimize`.

    Raises ModelError if the runtime refuses it, VerificationError if the optimized file does not
    give the bits that the original gives at that level.
    """
    level = OptimizationLevel(options.optimize)
    loaded = feed.loaded
    made = optimize_offline(loaded.model, loaded.base_dir, level, feed.recipe)
    done = replace(feed, loaded=replace(loaded, model=made.model), optimized=made)
    if options.verify:
        recipe = replace(feed.recipe, optimization=level)
        expected = run_outputs(feed.source(), feed.inputs, recipe)
        different = different_names(expected, run_outputs(done.source(), done.inputs, done.recipe))
        if different:
            raise VerificationError(
                f"the model optimized at level {level.value} gives other bits when it is opened "
                f"from a file: {', '.join(different[:3])}"
            )
    return done


def prepare(path: Path, options: Options, progress: ProgressReport = silent) -> Subject:
    """Everything that planning needs to know of a model. Runs it a few times.

    Raises UsageError or ModelError, as `prepare_feed`; ModelError too if the runtime refuses it.
    """
    progress("reading the model")
    feed = prepare_feed(path, options)
    if is_stock(feed.loaded.model):
        raise ModelError(
            f"{path} was already rewritten for default session options: take the original"
        )
    known = {node.op_type for node in feed.loaded.model.graph.node}
    for op_type in options.allow_ops:
        if op_type not in known:
            raise UsageError(f"--allow-op: the model has no {op_type!r}")
    if options.optimize != OptimizationLevel.NONE:
        progress("optimizing the model")
        feed = optimized_feed(feed, options)
    progress("running the model to learn sizes, workspace and times")
    subject = studied(feed, settled_release(feed, release(feed.loaded.model)), options)
    if not subject.settled:
        progress(UNSETTLED)
    return subject


def with_substitutes(
    subject: Subject,
    options: Options,
    substitutions: Sequence[Substitution],
    threshold_bytes: int,
) -> Subject:
    """The subject in which substitutes stand for nodes that hold `threshold_bytes` or more."""
    imported = subject.imported
    held = {
        imported.op_nodes[v]: op_bytes(imported.graph, RECIPE_RULES, v)
        for v in range(len(imported.graph.ops))
    }
    made = substitute(
        subject.released.model,
        held,
        subject.types,
        substitutions=substitutions,
        threshold_bytes=threshold_bytes,
    )
    if not made.changed:
        return subject
    again = studied(subject.feed, release(made.model), options)
    return replace(again, replaced=subject.replaced + made.replaced)


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


def unsettled(subject: Subject, options: Options) -> Subject:
    """The subject with the nodes of its file, whatever the runtime makes of them."""
    feed = subject.feed
    return studied(replace(feed, settles=False), release(feed.loaded.model), options)


def studied(feed: Feed, released: Released, options: Options) -> Subject:
    """Run a released model and import it; settled first, if the runtime executes other nodes."""
    folder = feed.loaded.base_dir
    run = profile_run(released.model, folder, feed.inputs, feed.recipe)
    if feed.settles and not run.is_of(released.model, feed.recipe.execution_order):
        made = settled_release(feed, released)
        if made is not released:
            released = made
            run = profile_run(released.model, folder, feed.inputs, feed.recipe)
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
            if options.costs == "measured"
            else None
        ),
        allow_recompute=options.allow_ops,
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
    """Compile the search if this machine has not done so yet, so that no time limit pays for it."""
    if not compiled_kernels_cached():
        progress(COMPILING)
        compile_kernels()
