"""What a model needs, where its peak comes from, and how far down a schedule could take it."""

import os
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from onnxremat.commands.attribution import MeasuredPeak, attribute, explained
from onnxremat.commands.timeline import Timeline, graph_timeline
from onnxremat.core.bounds import peak_bound
from onnxremat.core.errors import ModelError, UsageError
from onnxremat.core.graph import Graph, TensorKind
from onnxremat.core.memory import MemoryRules, live_at, profile
from onnxremat.core.problem import Limits, Problem
from onnxremat.core.schedule import Schedule, given_order, with_eager_ops
from onnxremat.core.units import MemoryLimit, format_bytes
from onnxremat.importer import GivenModel, load_given
from onnxremat.options import ModelOptions
from onnxremat.ort.measuring.figures import SessionFigures, today
from onnxremat.ort.measuring.measure import in_memory
from onnxremat.ort.measuring.session_memory import SessionMemory, measure_session
from onnxremat.ort.recipe import STOCK
from onnxremat.ort.record import read_record
from onnxremat.planners import PLANNERS
from onnxremat.stages import Detail, ProgressReport, silent, stage
from onnxremat.subject import Subject, prepare, prepare_planner
from onnxremat.targets.recipe_target import RecipeTarget
from onnxremat.targets.target import Target
from onnxremat.tiling import Tiling, TilingPlan, choose_regions, ordered_subject, tileable_subject

_RUNS = 2
"""Of each session: the second run of one often takes more than the first, later ones seldom do."""
_SECONDS = 5.0
_AT_MOST = Detail.limited("", 0.0, _SECONDS)


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A tensor held at the peak: made by `made_by`, last read by `last_read_by` (None: kept to the
    end as a graph output)."""

    name: str
    nbytes: int
    shape: tuple[int, ...]
    dtype: str
    made_by: str
    last_read_by: str | None


@dataclass(frozen=True, slots=True)
class Peak:
    """The step with the most bytes, in a given schedule: which op runs, what is held beside it."""

    nbytes: int
    step: int
    steps: int
    op: str
    op_type: str
    workspace_bytes: int
    held: tuple[HeldTensor, ...]


@dataclass(frozen=True, slots=True)
class Floor:
    """The lower bound on the peak of any schedule of whole ops, and what sets it. `refuted`: the
    model itself takes less, measured, so that the bound counts a value that the runtime does not
    hold, and nothing is proved."""

    nbytes: int
    op: str | None
    reason: str
    refuted: bool = False


@dataclass(frozen=True)
class Audit:
    """A model before anything is done to it. `model` is its file, None for a model in memory.

    `original_peak_bytes` and `released_peak_bytes` are measured in the runtime under the recipe;
    `peak` is where the model of memory puts the released model's peak, `floor` what no schedule of
    whole ops can go below. Where the two differ by more than the model's error, `measured_peak` is
    the node that was running when most was held; None where they agree. `estimated` are nodes whose
    workspace was not counted (`estimated_reason` says why): the runtime's own statistics stand for
    it, which may miss some. `reordered_peak_bytes` is the smallest peak found without
    recomputation, by the model of memory, and `reordered_bound_bytes` what no order goes below.
    `limit_text` is the limit as it was asked for; `limit_bytes` is None for the smallest peak.
    `tiling` has the smallest peak that regions in tiles are predicted to reach.
    `unread_values` are those that the runtime would hold to the end for nobody. `timeline` is the
    released model's run under the recipe by the model of memory, step by step. `sessions` are what
    people have without another file, measured: the original with default session options, then
    with each option that may be set for memory alone; none where the runtime refuses it that way
    (`sessions_reason`). `sessions_limit_bytes` is the limit there, where a share is one of the
    resident peak. `of_recipe`: whether the file is one that onnxremat wrote for the session options
    of a recipe; False of those for default options, None of all others.
    """

    model: Path | None
    nodes: int
    ops: int
    unread_values: int
    weight_bytes: int
    input_bytes: int
    original_peak_bytes: int
    released_peak_bytes: int
    peak: Peak
    floor: Floor
    reordered_peak_bytes: int
    reordered_bound_bytes: int
    tiling: TilingPlan
    limit_text: str | None
    limit_bytes: int | None
    threads: int | None
    timeline: Timeline
    measured_peak: MeasuredPeak | None = None
    estimated: tuple[str, ...] = ()
    estimated_reason: str = ""
    sessions: tuple[SessionFigures, ...] = ()
    sessions_reason: str = ""
    sessions_limit_bytes: int | None = None
    of_recipe: bool | None = None


def audit(
    model: GivenModel,
    options: ModelOptions | None = None,
    *,
    limit: MemoryLimit | None = None,
    base_dir: str | os.PathLike[str] | None = None,
    progress: ProgressReport = silent,
) -> Audit:
    """Measure a model in the runtime and explain its peak. Writes nothing.

    The model is a file or in memory; `base_dir` is the folder of the files that hold weights of one
    in memory.

    Raises UsageError or ModelError.
    """
    progress("reading the model")
    subject = prepare(load_given(model, base_dir), options or ModelOptions(), progress)
    return audit_subject(subject, limit=limit, progress=progress)


def audit_subject(
    subject: Subject,
    *,
    limit: MemoryLimit | None = None,
    memory: SessionMemory | None = None,
    progress: ProgressReport = silent,
) -> Audit:
    """`audit` of a model that was made ready before; `memory` as in `default_sessions`. Raises
    ModelError."""
    feed, graph, options = subject.feed, subject.imported.graph, subject.feed.options
    if not graph.ops:
        raise ModelError("the model computes nothing at run time: there is nothing to audit")
    target = RecipeTarget.of(subject, progress)
    rules, released = target.rules, target.released
    as_given = with_eager_ops(graph, given_order(graph))
    peak = find_peak(graph, as_given, rules)
    measured_peak = None
    if not explained(released.peak_bytes, peak.nbytes):
        measured_peak = attribute(
            subject,
            as_given,
            rules,
            released,
            peak.nbytes,
            stage(progress, "looking for what the model of memory does not explain"),
        )
    prepare_planner(progress)
    progress("reordering", _AT_MOST)
    problem = Problem(graph, rules, max_copies=1, starts=(as_given,))
    limits = Limits(_SECONDS, seed=options.seed)
    reordered = PLANNERS["reorder"].function(problem, limits)
    tiling = _in_tiles(subject, target, reordered.schedule, progress)
    floor = find_floor(graph, rules)
    floor = replace(floor, refuted=target.refutes(floor.nbytes))
    sessions, sessions_reason = tuple[SessionFigures, ...](), ""
    try:
        sessions = default_sessions(subject, progress, memory)
    except ModelError as error:
        sessions_reason = str(error)
    return Audit(
        feed.as_it_came.path,
        len(feed.loaded.model.graph.node),
        len(graph.ops) - subject.released.size_readers,
        subject.released.dropped_outputs + subject.released.size_readers,
        kind_bytes(graph, TensorKind.WEIGHT),
        kind_bytes(graph, TensorKind.INPUT),
        target.original.peak_bytes,
        released.peak_bytes,
        peak,
        floor,
        reordered.peak_bytes,
        reordered.peak_bound_bytes,
        tiling,
        None if limit is None else limit.text,
        None if limit is None else limit.resolve(target.original.peak_bytes),
        options.threads,
        subject_timeline(subject, as_given, rules),
        measured_peak,
        estimated_nodes(subject),
        subject.profile.estimated_reason,
        sessions,
        sessions_reason,
        limit.resolve(sessions[0].runs_bytes) if limit is not None and sessions else None,
        _of_recipe(feed.as_it_came.model),
    )


def _of_recipe(model: onnx.ModelProto) -> bool | None:
    """`Audit.of_recipe`; of a damaged record nothing is known."""
    try:
        record = read_record(model)
    except UsageError:
        return None
    return None if record is None else record.of_recipe


def subject_timeline(subject: Subject, schedule: Schedule, rules: MemoryRules) -> Timeline:
    """A schedule of a model step by step, with the times that were measured when it was learned."""
    imported, nodes = subject.imported, subject.profile.nodes
    measured = {v: nodes[node].time_ns for v, node in enumerate(imported.op_nodes) if node in nodes}
    return graph_timeline(imported.graph, schedule, rules, "as written", measured or None)


def default_sessions(
    subject: Subject, progress: ProgressReport, memory: SessionMemory | None = None
) -> tuple[SessionFigures, ...]:
    """What the model takes with default session options, and with others. `memory` is that with
    default options, where it was measured before (`returning`, too). Raises ModelError."""
    feed = subject.feed
    recipe = STOCK.with_threads(feed.options.threads)
    source = in_memory(feed.as_it_came.model, feed.as_it_came.base_dir)
    if memory is None:
        progress("measuring the original with default options")
        memory = measure_session(source, feed.inputs, recipe, runs=_RUNS, returning=True)
    listener = stage(progress, "measuring other session options")
    return today(source, feed.inputs, recipe, memory, listener)


def estimated_nodes(subject: Subject) -> tuple[str, ...]:
    """The ops whose workspace is an estimate, by name."""
    imported = subject.imported
    name_of = dict(zip(imported.op_nodes, (op.name for op in imported.graph.ops), strict=True))
    return tuple(name_of[v] for v in subject.profile.unmeasured if v in name_of)


def _in_tiles(
    subject: Subject, target: Target, order: Schedule, progress: ProgressReport
) -> TilingPlan:
    """The smallest peak in exact tiles; if there is none, the reason, and what others reach."""
    progress("cutting into tiles", _AT_MOST)
    exact = _smallest(subject, target, order, allow_rounding=False)
    if exact.regions or not exact.reasons:
        return exact
    progress("cutting into tiles that round", _AT_MOST)
    rounded = _smallest(subject, target, order, allow_rounding=True)
    if not rounded.regions:
        return exact
    reached = f"with --allow-rounding about {format_bytes(rounded.peak_bytes)} in tiles"
    return replace(exact, reasons=(f"{exact.reasons[0]}; {reached}", *exact.reasons[1:]))


def _smallest(
    subject: Subject, target: Target, order: Schedule, *, allow_rounding: bool
) -> TilingPlan:
    rules, options = target.rules, subject.feed.options
    base = tileable_subject(subject, None, rules, allow_rounding=allow_rounding)
    if base is not subject:
        limits = Limits(_SECONDS, seed=options.seed)
        problem = Problem(base.imported.graph, rules, max_copies=1)
        order = PLANNERS["reorder"].function(problem, limits).schedule
    base = ordered_subject(base, order, rules)
    tiling = Tiling(rules, target.node_bytes, options.exact_threads, allow_rounding)
    return choose_regions(base, None, tiling, Limits(_SECONDS))


def find_peak(graph: Graph, schedule: Schedule, rules: MemoryRules) -> Peak:
    """The peak of a schedule and the tensors held there, largest first. O(steps + reads).

    Raises ValueError for an empty schedule.
    """
    if not schedule.steps:
        raise ValueError("an empty schedule has no peak")
    result = profile(graph, schedule, rules)
    op = graph.ops[schedule.steps[result.peak_step]]
    held = []
    for buffer in live_at(graph, schedule, rules, result.peak_step):
        tensor = graph.tensors[buffer.instance.tensor]
        last = buffer.instance.last_read
        held.append(
            HeldTensor(
                tensor.name,
                buffer.nbytes,
                tensor.shape,
                tensor.dtype,
                graph.ops[schedule.steps[buffer.start]].name,
                None
                if buffer.instance.pinned or last < 0
                else graph.ops[schedule.steps[last]].name,
            )
        )
    return Peak(
        result.peak_bytes,
        result.peak_step,
        len(schedule),
        op.name,
        op.op_type,
        op.workspace_bytes if rules.count_workspace else 0,
        tuple(held),
    )


def find_floor(graph: Graph, rules: MemoryRules) -> Floor:
    """`bounds.peak_bound` in names."""
    bound = peak_bound(graph, rules)
    name = None if bound.op is None else graph.ops[bound.op].name
    return Floor(bound.nbytes, name, bound.reason)


def kind_bytes(graph: Graph, kind: TensorKind) -> int:
    """Bytes of all tensors of one kind."""
    return sum(t.nbytes for t in graph.tensors if t.kind is kind)
