"""A model made ready: read, bound to sizes, released, run once with a profile, imported.

    file -> LoadedModel -> Released -> RunProfile -> ImportedModel, together a Subject

`audit`, `rewrite` and `verify` all start here.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

import onnx

from onnxremat.errors import UsageError
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
from onnxremat.runtimes.functions import expand_functions
from onnxremat.runtimes.inputs import load_inputs, make_inputs
from onnxremat.runtimes.measure import in_memory
from onnxremat.runtimes.process import ModelSource
from onnxremat.runtimes.profiling import RunProfile, profile_run
from onnxremat.runtimes.recipe import RECIPE, Recipe
from onnxremat.runtimes.rules import EAGER_OPS, VIEW_OPS
from onnxremat.runtimes.wire import Array
from onnxremat_rewriters.release import Released, release

COMPILING = "compiling the planner, once on this machine (about 20 s)"
"""A stage worth telling even where progress is not shown."""

COST_SOURCES = ("model", "measured")


class ProgressReport(Protocol):
    """Called with what is being done, and now and then with how it is going."""

    def __call__(self, stage: str, detail: str = "") -> None: ...


def silent(stage: str, detail: str = "") -> None:
    """A ProgressReport that reports nothing."""


@dataclass(frozen=True)
class Options:
    """What the user may choose, with the command line's defaults.

    `dims`: sizes of symbolic dimensions. `inputs`: an .npz file to measure with, random values of
    `seed` otherwise. `planner`: a name in PLANNERS. `recompute`: whether nodes may run again.
    `tiling`: whether ops may be cut. `allow_ops`: custom op types that may be recomputed.
    `costs`: where op times come from, "model" or "measured". `time_limit`: seconds of planning.
    `threads`: of the runtime, None for its own choice. `verify`: run both models and compare.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Path | None = None
    planner: str = "auto"
    recompute: bool = True
    tiling: bool = True
    allow_ops: tuple[str, ...] = ()
    costs: str = "model"
    time_limit: float = 10.0
    threads: int | None = None
    seed: int = 0
    verify: bool = True

    def __post_init__(self) -> None:
        if self.costs not in COST_SOURCES:
            raise UsageError(f"--costs: {self.costs!r} is none of {', '.join(COST_SOURCES)}")


@dataclass(frozen=True)
class Feed:
    """A model with everything needed to run it: sizes, inputs and the session recipe."""

    loaded: LoadedModel
    binding: Binding
    inputs: Mapping[str, Array]
    recipe: Recipe

    def source(self) -> ModelSource:
        """The model as it was read (its nodes in a valid order)."""
        return in_memory(self.loaded.model, self.loaded.base_dir)


@dataclass(frozen=True)
class Subject:
    """A model ready for planning. `profile` and `imported` belong to the released model, in which
    nodes that the runtime would expand into functions are expanded too."""

    feed: Feed
    released: Released
    profile: RunProfile
    imported: ImportedModel

    def released_source(self) -> ModelSource:
        """The released model, to be run."""
        return in_memory(self.released.model, self.feed.loaded.base_dir)


def prepare_feed(path: Path, options: Options) -> Feed:
    """Read a model and get its inputs ready.

    Raises UsageError (no such file or dimension, an unbound one, bad inputs) or ModelError.
    """
    loaded = load(path)
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
    recipe = RECIPE.with_threads(options.threads).with_dimensions(binding.symbols)
    return Feed(loaded, binding, inputs, recipe)


def prepare(path: Path, options: Options, progress: ProgressReport = silent) -> Subject:
    """Everything that planning needs to know of a model. Runs it a few times.

    Raises UsageError or ModelError, as `prepare_feed`; ModelError too if the runtime refuses it.
    """
    progress("reading the model")
    feed = prepare_feed(path, options)
    released = release(feed.loaded.model)
    progress("running the model to learn sizes, workspace and times")
    run = profile_run(released.model, feed.loaded.base_dir, feed.inputs, feed.recipe)
    if run.expanded:
        released = release(expand_functions(released.model, run.expanded))
        run = profile_run(released.model, feed.loaded.base_dir, feed.inputs, feed.recipe)
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
    )
    return Subject(feed, released, run, imported)


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
