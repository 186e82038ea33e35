"""Everything that the page of `audit --html` shows of a model, and of a second one beside it.

Beside the audit itself: memory step by step in the session that the audit measures and in one with
default options, what the process holds from before it opens the model until it has run, and what
each lever would give. Every figure is either measured or predicted, and says which.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from onnxremat.commands.audit import Audit, audit_subject, subject_timeline
from onnxremat.commands.default_session import default_timeline
from onnxremat.commands.files import check_outputs
from onnxremat.commands.timeline import Timeline
from onnxremat.core.errors import ModelError, UsageError
from onnxremat.core.problem import Limits, Problem
from onnxremat.core.schedule import given_order, with_eager_ops
from onnxremat.core.units import MemoryLimit
from onnxremat.importer import LoadedModel, given_inputs, load
from onnxremat.options import ModelOptions
from onnxremat.ort.child.wire import Array
from onnxremat.ort.measuring.figures import ORIGINAL
from onnxremat.ort.measuring.measure import in_memory
from onnxremat.ort.measuring.session_memory import SessionMemory, measure_session
from onnxremat.ort.outside import Weights, with_weights_outside
from onnxremat.ort.recipe import STOCK
from onnxremat.planners import PLANNERS
from onnxremat.stages import ProgressReport, silent, stage
from onnxremat.subject import Feed, Subject, prepare
from onnxremat.targets.recipe_target import RecipeTarget
from onnxremat_rewriters.stock import is_stock

PROCESS, ACTIVATIONS = "process", "activations"
"""What a lever is about: loading and runs together, or what one run holds."""
_PLANNING_SECONDS = 5.0
_REPEATS = 2
"""Processes that each session is measured in."""
_RECIPE = "onnxremat rewrite MODEL --mem min --session recipe"
"""What makes the files that runs are predicted of."""


@dataclass(frozen=True, slots=True)
class Lever:
    """What can be done about memory, and what it gives.

    `how`: what to set or to call. `figure`: of what the bytes are. `after_bytes` is None where it
    cannot be had, and `reason` says why (it may name parts of the model). `measured`: in the
    runtime, else predicted. `extra_time`: the share of a run that it is expected to take longer,
    None if that is not known.
    """

    name: str
    how: str
    figure: str
    before_bytes: int
    after_bytes: int | None
    measured: bool
    extra_time: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class Portrait:
    """A model as sessions run it.

    `timelines` has one for each session that could be looked into; `failed` says why another could
    not. `process` is what a session with default options takes.
    """

    file: Path
    nodes: int
    timelines: tuple[Timeline, ...]
    process: SessionMemory
    failed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Inspection:
    """A model, what can be done about its memory, and a second model to compare it with."""

    audit: Audit
    first: Portrait
    levers: tuple[Lever, ...]
    second: Portrait | None = None


def inspect(
    model: Path,
    options: ModelOptions | None = None,
    *,
    limit: MemoryLimit | None = None,
    second: Path | None = None,
    output: Path | None = None,
    progress: ProgressReport = silent,
) -> Inspection:
    """Audit a model, and look at it and at `second` step by step and in whole processes.

    `second` runs on the inputs of the first, and must have the same. `output` is a file that the
    caller is going to write: refused before anything runs if it cannot be, or if it is an input.
    Takes a minute or two more than `audit`. Raises UsageError or ModelError.
    """
    options = options or ModelOptions()
    loaded = load(model)
    check_outputs(loaded, options.inputs, (output,))
    other = None if second is None else load(second)
    if other is not None:
        check_outputs(other, options.inputs, (output,))
        _require_same_inputs(loaded, other)
    subject = prepare(loaded, options, progress)
    feed = subject.feed
    memory = _measured(model, feed.as_it_came, feed.inputs, options, progress)
    audited = audit_subject(subject, limit=limit, memory=memory, progress=progress)
    written = (audited.timeline,)
    first = _portrait(model, feed.as_it_came, feed.inputs, written, memory, options, progress)
    compared = None
    if second is not None and other is not None:
        own = _own_timelines(other, feed, options, progress)
        memory = _measured(second, other, feed.inputs, options, progress)
        compared = _portrait(second, other, feed.inputs, own, memory, options, progress)
    levers = _levers(subject, audited, progress)
    return Inspection(audited, first, levers, compared)


def _require_same_inputs(first: LoadedModel, second: LoadedModel) -> None:
    names, others = ({one.name for one in given_inputs(m.model.graph)} for m in (first, second))
    if names != others:
        unlike = ", ".join(map(repr, sorted(names ^ others)[:3]))
        raise UsageError(f"--with: {second.path} has other inputs than {first.path}: {unlike}")


def _own_timelines(
    other: LoadedModel, feed: Feed, options: ModelOptions, progress: ProgressReport
) -> tuple[Timeline, ...]:
    """The second model as it is written; none if it is for default sessions alone."""
    if is_stock(other.model):
        return ()
    dims = {
        f"{name}:{axis}": size
        for name, value in feed.inputs.items()
        for axis, size in enumerate(value.shape)
    }
    subject = prepare(other, replace(options, dims=dims), progress)
    graph = subject.imported.graph
    schedule = with_eager_ops(graph, given_order(graph))
    return (subject_timeline(subject, schedule, RecipeTarget.rules),)


def _measured(
    file: Path,
    loaded: LoadedModel,
    inputs: Mapping[str, Array],
    options: ModelOptions,
    progress: ProgressReport,
) -> SessionMemory:
    """What a session with default options takes."""
    progress(f"measuring the process of {file.name}")
    source = in_memory(loaded.model, loaded.base_dir)
    recipe = STOCK.with_threads(options.threads)
    return measure_session(source, inputs, recipe, repeats=_REPEATS, returning=True)


def _portrait(
    file: Path,
    loaded: LoadedModel,
    inputs: Mapping[str, Array],
    known: tuple[Timeline, ...],
    memory: SessionMemory,
    options: ModelOptions,
    progress: ProgressReport,
) -> Portrait:
    listener = stage(progress, f"looking into a default session of {file.name}")
    failed: tuple[str, ...] = ()
    try:
        default = default_timeline(
            loaded,
            inputs,
            threads=options.threads,
            seconds=options.measure_limit,
            listener=listener,
        )
        known = (default, *known)
    except ModelError as error:
        failed = (f"a session with default options could not be looked into: {error}",)
    return Portrait(file, len(loaded.model.graph.node), known, memory, failed)


def _levers(subject: Subject, audited: Audit, progress: ProgressReport) -> tuple[Lever, ...]:
    """First what is set or moved, then what changes the model."""
    return (
        *_of_sessions(subject.feed, audited, progress),
        *_of_activations(subject, audited, progress),
    )


def _of_sessions(feed: Feed, audited: Audit, progress: ProgressReport) -> tuple[Lever, ...]:
    """What the whole process takes otherwise, measured."""
    if not audited.sessions:
        why = audited.sessions_reason
        return (Lever("session options", "", PROCESS, 0, None, True, reason=why),)
    now, *others = audited.sessions
    usual = now.process_bytes
    recipe, loaded = STOCK.with_threads(feed.options.threads), feed.as_it_came
    levers = [
        Lever(one.opened.removeprefix(ORIGINAL).strip(), one.option, PROCESS, usual,
              one.process_bytes, True)
        for one in others
    ]  # fmt: skip
    how = "MALLOC_MMAP_THRESHOLD_=65536 in the environment"
    levers.append(Lever("malloc gives back", how, PROCESS, usual, now.returning_bytes, True))
    progress("measuring with the weights outside")
    name, how = "weights in a file beside", "as every file of onnxremat rewrite has them"
    try:
        pair = with_weights_outside(loaded.model, loaded.base_dir, recipe, Weights.EXTERNAL)
    except ModelError as error:
        return (*levers, Lever(name, how, PROCESS, usual, None, True, reason=str(error)))
    if pair is None:
        none = "the model has no weights of 1 KB or more"
        return (*levers, Lever(name, how, PROCESS, usual, None, True, reason=none))
    try:
        memory = measure_session(pair.source(), feed.inputs, recipe, repeats=_REPEATS)
    except ModelError as error:
        return (*levers, Lever(name, how, PROCESS, usual, None, True, reason=str(error)))
    return (*levers, Lever(name, how, PROCESS, usual, memory.grown_bytes, True))


def _of_activations(
    subject: Subject, audited: Audit, progress: ProgressReport
) -> tuple[Lever, ...]:
    """What a run holds less if the model is changed, by the model of memory."""
    graph, rules = subject.imported.graph, RecipeTarget.rules
    before = audited.peak.nbytes
    levers = []
    if audited.released_peak_bytes < audited.original_peak_bytes:
        levers.append(
            Lever(
                "values that nobody reads are dropped", "any rewrite", ACTIVATIONS,
                audited.original_peak_bytes, audited.released_peak_bytes, True, 0.0,
            )
        )  # fmt: skip
    levers.append(
        Lever(
            "another order of the nodes", f"{_RECIPE} --no-recompute --no-tiling",
            ACTIVATIONS, before, min(audited.reordered_peak_bytes, before), False, 0.0,
        )
    )  # fmt: skip
    progress("recomputing", f"at most {_PLANNING_SECONDS:g} s")
    own = with_eager_ops(graph, given_order(graph))
    limits = Limits(_PLANNING_SECONDS, seed=subject.feed.options.seed)
    plan = PLANNERS["auto"].function(Problem(graph, rules, starts=(own,)), limits)
    levers.append(
        Lever(
            "nodes computed again", f"{_RECIPE} --no-tiling", ACTIVATIONS,
            before, min(plan.peak_bytes, before), False, plan.extra_time,
        )
    )  # fmt: skip
    tiling = audited.tiling
    reached = tiling.peak_bytes if tiling.regions else None
    levers.append(
        Lever(
            "parts of the model in tiles", _RECIPE, ACTIVATIONS, before,
            reached, False, tiling.extra_time if tiling.regions else None,
            reason=tiling.reasons[0] if reached is None and tiling.reasons else "",
        )
    )  # fmt: skip
    return tuple(levers)
