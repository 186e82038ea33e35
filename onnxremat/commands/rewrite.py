"""`rewrite`: from a model and a limit to a file that keeps it, verified in the runtime."""

import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import onnx

from onnxremat.commands.audit import (
    Floor,
    Peak,
    default_sessions,
    estimated_nodes,
    find_floor,
    find_peak,
)
from onnxremat.commands.files import check_outputs, external_copies, write_files
from onnxremat.core.attempt import TAKEN, Attempt
from onnxremat.core.deadline import Deadline
from onnxremat.core.errors import (
    InfeasibleError,
    ModelError,
    NoPlanFoundError,
    UsageError,
    VerificationError,
)
from onnxremat.core.problem import Limits, Plan
from onnxremat.core.units import MemoryLimit, format_bytes, parse_limit
from onnxremat.fitting.outcomes import Planned
from onnxremat.fitting.strategy import Attempts
from onnxremat.importer import GivenModel, LoadedModel, declare_sizes, load_given
from onnxremat.options import Options
from onnxremat.ort.blocked_layout import layout_width
from onnxremat.ort.folded import computed_otherwise, folded_otherwise
from onnxremat.ort.measuring.measure import PeakMeasurement
from onnxremat.ort.outside import NOT_PORTABLE, SUFFIX, DataFile, Weights, data_beside, name_data
from onnxremat.ort.recipe import ExecutionOrder, Recipe
from onnxremat.ort.record import OptimizedFor, PlanRecord, attach_record
from onnxremat.planners import PLANNERS
from onnxremat.stages import ProgressReport, silent
from onnxremat.subject import UNSETTLED, Subject, prepare, prepare_planner, unsettled
from onnxremat.system.interrupts import INTERRUPTS, PLACING
from onnxremat.target_table import TargetInfo
from onnxremat.targets.static_plan import StaticPlan, emit_plan
from onnxremat.targets.target import as_executed, own_schedule
from onnxremat.tiling import TilingPlan
from onnxremat.verification import (
    Verification,
    require,
    require_expanded_alike,
    same_from_the_start,
)
from onnxremat_rewriters.substitutes import Replaced

DATA_ENDING = f".onnx{SUFFIX}"


@dataclass(frozen=True)
class RewriteResult:
    """A model that runs within a limit, and everything measured on the way.

    `limit_bytes` is None if the smallest peak was asked for. `figure` says in words what the limit
    is of; `recipe` are the session options of the file; `original`, `released` and `rewritten` are
    measured figures of that kind, `expected_bytes` is what the last was expected to be. `peak` and
    `floor` describe the original in its own order, with substitutes for the nodes in `replaced`.
    `tiling` says which regions run in tiles; then `plan` is of the tiled model. It is None where no
    tiles were needed. `extra_time` is the share of one pass of the model that tiles and
    recomputation add, by the cost model. `sizes` are the planned shapes of the inputs that the
    original leaves open: with `any_size` the file leaves them open, too, and runs at others;
    without, it declares them. `target` is the name of a row of `target_table.TARGETS`; `details`
    are what it alone has to tell (a StockResult, for files for default session options). `data` is
    the file with the weights of `model`, where they lie in one beside it; it is there as long as
    the result. `static` is there if a static plan was asked for, and `plan_output` is where it was
    written.
    `verification` is None with `verify=False`. `planning_seconds` is the time from the imported
    model to the rewritten one, measuring it included. `stopped`: planning was ended early (Ctrl-C),
    with the best plan so far. `estimated` are nodes of the original whose workspace was planned by
    an estimate, `estimated_reason` says why; `rewritten` is measured anyway. `attempts` are all
    plans that were made, and why they were not taken. `weights_inside`: why weights stay in the
    file, where that was not asked.
    """

    target: str
    model: onnx.ModelProto
    output: Path | None
    limit_text: str
    limit_bytes: int | None
    figure: str
    recipe: Recipe
    plan: Plan
    tiling: TilingPlan | None
    extra_time: float
    peak: Peak
    floor: Floor
    nodes_before: int
    recomputed: int
    replaced: tuple[Replaced, ...]
    original: PeakMeasurement
    released: PeakMeasurement
    rewritten: PeakMeasurement
    expected_bytes: int
    sizes: Mapping[str, tuple[int, ...]]
    any_size: bool
    details: object
    static: StaticPlan | None
    data: DataFile | None
    plan_output: Path | None
    verification: Verification | None
    planning_seconds: float
    stopped: bool = False
    estimated: tuple[str, ...] = ()
    estimated_reason: str = ""
    attempts: tuple[Attempt, ...] = ()
    weights_inside: str = ""


def default_output(model: Path, limit: MemoryLimit, options: Options | None = None) -> Path:
    """`model.4mb.onnx` beside `model.onnx` for a limit of 4MB; `model.60pct.onnx` for 60%.

    What makes the file another kind of file stands in its name too: `model.60pct.recipe.onnx`.
    Raises UsageError for a path that ends in no name.
    """
    if not model.name:
        raise UsageError(f"{model} is no model file")
    options = options or Options()
    parts = [re.sub(r"[^a-z0-9.]", "", limit.text.lower().replace("%", "pct"))]
    if options.optimize != "none":
        parts.append(options.optimize)
    if options.allow_rounding:
        parts.append("rounded")
    if options.order != ExecutionOrder.PRIORITY:
        parts.append(f"{options.order}-order")
    if options.target.suffix:
        parts.append(options.target.suffix)
    if not options.portable:
        parts.append("packed")
    if options.embed_weights:
        parts.append("embedded")
    return model.with_name(".".join([model.stem, *parts, "onnx"]))


def outputs(
    model: Path, limit: MemoryLimit, options: Options, output: Path | None, plan: Path | None
) -> tuple[Path, Path | None]:
    """The files that are written where the user named none: a model (`default_output`), and a
    static plan beside it if the target has one."""
    written = output if output is not None else default_output(model, limit, options)
    if plan is None and options.target.writes_plan:
        plan = written.with_suffix(".plan.json")
    return written, plan


def rewrite(
    model: GivenModel,
    mem: str | int | MemoryLimit,
    options: Options | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    base_dir: str | os.PathLike[str] | None = None,
    plan_output: str | os.PathLike[str] | None = None,
    progress: ProgressReport = silent,
    stop: Callable[[], bool] | None = None,
) -> RewriteResult:
    """Rewrite a model, a file or in memory, so that it runs within `mem`.

    A model in memory stays as it is. Without an `output` its weights are in `RewriteResult.model`,
    as with `embed_weights`: what is measured is a session of that model alone. Weights that it has
    in other files are found in `base_dir`, and stay there; so it has to be with a model of more
    than 2 GB, which protobuf does not take (ModelError says what to do).

    `mem` is a limit (`"4MB"`, bytes, `"60%"` of the model's own measured figure, `"min"`) of what
    the target that the options choose limits (`target_table.TARGETS`). `output` is written at the
    very end, with copies of external weights if it is in another folder; without it nothing is
    written. `plan_output` is for the static plan of the result, as JSON. All of them are written,
    or none; files that the model needs are refused as outputs before anything runs. `stop()`
    turning true ends planning with the best plan so far.

    Raises UsageError, ModelError, InfeasibleError (proved), NoPlanFoundError (not found in time),
    VerificationError.
    """
    options = options or Options()
    limit = mem if isinstance(mem, MemoryLimit) else parse_limit(mem)
    if options.planner not in PLANNERS:
        known = ", ".join(PLANNERS)
        raise UsageError(f"--planner: there is no {options.planner!r}; there are {known}")
    target = None if output is None else _output(output)
    plan_target = None if plan_output is None else Path(plan_output)
    options.target.check({"plan_output": plan_target})
    progress("reading the model")
    loaded = load_given(model, base_dir)
    folder = loaded.base_dir
    options, inside = _with_weights_in_memory(options, loaded, target)
    check_outputs(loaded, options.inputs, (target, _beside(target, options), plan_target))
    if target is not None:
        external_copies(loaded.model, folder, target, (plan_target,))
    subject = prepare(loaded, options, progress)
    if not inside:
        found = folded_otherwise(loaded.model, subject.released.model)
        options, inside = _with_weights_where_they_hold(options, found)
        subject = prepare(loaded, options, progress) if inside else subject
    beside = _beside(target, options)
    if options.verify:
        require_expanded_alike(subject.feed)
        if not same_from_the_start(subject.feed, subject.released.model):
            progress(UNSETTLED)
            subject = unsettled(subject)
    planning = partial(
        _plan_and_verify,
        subject,
        limit,
        static=plan_target is not None,
        progress=progress,
        stop=stop,
    )
    try:
        result = planning(options)
    except TilesDifferError as differ:
        result = _without_tiles(partial(planning, replace(options, tiling=False)), differ, progress)
    except NoPlanFoundError as error:
        said = _kept_otherwise(subject, limit, options, progress)
        raise NoPlanFoundError("; ".join((str(error), *said)), error.attempts) from None
    progress("writing")
    result = replace(result, output=target, plan_output=plan_target, weights_inside=inside)
    _write(result, beside, folder, progress)
    return result


def _write(
    result: RewriteResult, beside: Path | None, folder: Path, progress: ProgressReport
) -> None:
    """Put the files of a result in place, all or none: the model, with its weights `beside` or with
    copies of the external ones that `folder` has, and the static plan."""
    output, plan_output = result.output, result.plan_output
    contents, copies = dict[Path, bytes | Path](), dict[Path, Path]()
    if plan_output is not None and result.static is not None:
        contents[plan_output] = result.static.as_json().encode()
    if output is not None and beside is not None and result.data is not None:
        name_data(result.model, _stored_name(beside))
        contents[beside] = result.data.path
    elif output is not None:
        copies = external_copies(result.model, folder, output, (plan_output,))
    if output is not None:
        contents[output] = result.model.SerializeToString()
    write_files(contents, copies, lambda: progress(PLACING))


def _kept_otherwise(
    subject: Subject, limit: MemoryLimit, options: Options, progress: ProgressReport
) -> list[str]:
    """What else may keep a limit that no file for default sessions keeps."""
    if options.target.name != "stock" or INTERRUPTS.requested:
        return []
    said = [NOT_PORTABLE] if options.weights is Weights.EXTERNAL else []
    try:
        sessions = default_sessions(subject, progress)
    except ModelError:  # then the limit was not missed for want of an option
        return said
    taken = [one.process_bytes if options.mem_of == "process" else one.runs_bytes
             for one in sessions]  # fmt: skip
    most = limit.resolve(taken[0])
    for one, nbytes in zip(sessions[1:], taken[1:], strict=True):
        if most is not None and nbytes <= most:
            opened = f"the {one.opened} ({one.option}) takes {format_bytes(nbytes)}"
            said.append(f"{opened}: that keeps the limit, with no other file")
    return said


def _output(output: str | os.PathLike[str]) -> Path:
    """The file to be written. Raises UsageError if its name cannot stand in a model, as that of its
    weights does, or is one of a file of weights."""
    path = Path(output)
    if path.name.endswith(DATA_ENDING):
        raise UsageError(f"{path}: files that end in {DATA_ENDING} hold the weights of models")
    try:
        _stored_name(path)
    except UnicodeDecodeError:
        raise UsageError(f"{str(path)!a}: the name of a model has to be UTF-8") from None
    return path


def _stored_name(path: Path) -> str:
    """The name of a file as models hold it, in UTF-8 whatever the locale. Raises
    UnicodeDecodeError if it is not."""
    return os.fsencode(path.name).decode()


def _beside(target: Path | None, options: Options) -> Path | None:
    """The file of weights beside the file that is written."""
    if target is None or options.weights is Weights.EMBEDDED:
        return None
    return data_beside(target)


def _with_weights_in_memory(
    options: Options, loaded: LoadedModel, target: Path | None
) -> tuple[Options, str]:
    """The same with weights embedded, and why, where a model is in memory and is to stay there, or
    where the next function says so. Raises UsageError for weights that can only be in a file."""
    if loaded.given is None or target is not None or options.weights is Weights.EMBEDDED:
        return _with_weights_where_they_hold(options, computed_otherwise(loaded.model))
    if options.weights is Weights.PACKED:
        raise UsageError("--no-portable puts weights into a file beside the model: name an output")
    return replace(options, embed_weights=True), "the model stays in memory, with no file beside it"


def _with_weights_where_they_hold(options: Options, node: str) -> tuple[Options, str]:
    """The same with weights embedded, and why, where a portable file would hold what another
    processor computes otherwise: what `node` makes (`ort.folded`), if there is such a one."""
    if not node or options.weights is not Weights.EXTERNAL:
        return options, ""
    why = (
        f"{node} is computed when a file is opened, by each processor in its own way "
        "(--no-portable is for this one)"
    )
    return replace(options, embed_weights=True), why


class TilesDifferError(VerificationError):
    """A plan in tiles does not have the bits of the original: its table has a fault."""


def _without_tiles(
    planning: Callable[[], RewriteResult], differ: TilesDifferError, progress: ProgressReport
) -> RewriteResult:
    """The result of whole ops, where tiles turned out to change bits."""
    progress("planning whole ops: outputs in tiles differ")
    refused = tuple(
        replace(one, outcome=f"refused: {differ}") if one.outcome == TAKEN else one
        for one in differ.attempts
    )
    try:
        result = planning()
    except (InfeasibleError, NoPlanFoundError) as error:
        raise NoPlanFoundError(f"{error}; in tiles {differ}", refused + error.attempts) from None
    return replace(result, attempts=refused + result.attempts)


def _plan_and_verify(
    subject: Subject,
    limit: MemoryLimit,
    options: Options,
    *,
    static: bool,
    progress: ProgressReport,
    stop: Callable[[], bool] | None,
) -> RewriteResult:
    if not subject.imported.graph.ops:
        raise ModelError("the model computes nothing at run time: there is nothing to plan")
    info = options.target
    target = info.kind.of(subject, progress)
    budget = limit.resolve(target.original.peak_bytes)
    limits = Limits(options.time_limit, options.iterations, options.seed, stop=stop)
    deadline = Deadline.of_planning(limits)
    attempts = Attempts.of(subject, target, options, budget, deadline, progress)
    whole = attempts.whole
    graph = whole.imported.graph
    mode = ExecutionOrder(options.order)
    peak = find_peak(graph, own_schedule(whole.imported, mode), target.rules)
    prepare_planner(progress)
    started = time.perf_counter()
    planned = attempts.best()
    subject, made, plan = planned.subject, planned.made, planned.plan
    planning_seconds = time.perf_counter() - started
    final = _with_record(target.recipe, planned, budget, options)
    verification = None
    if options.verify:
        verification = target.verify(subject, made, final)
        different = verification.different_outputs
        if different and verification.deterministic and planned.tiling is not None:
            named = ", ".join(different[:3])
            raise TilesDifferError(
                f"outputs differ from the original's: {named}", attempts=planned.attempts
            )
        require(verification, budget)
    if static and made.static is None:
        progress("placing the buffers")
        tiled = subject.imported.graph
        schedule = as_executed(tiled, plan.schedule, mode)
        made = replace(made, static=emit_plan(tiled, schedule, target.rules, seed=options.seed))
    shapes = subject.feed.binding.input_shapes
    return RewriteResult(
        target=info.name,
        model=final,
        output=None,
        limit_text=limit.text,
        limit_bytes=budget,
        figure=options.figure,
        recipe=target.recipe,
        plan=plan,
        tiling=planned.tiling,
        extra_time=planned.extra_time,
        peak=peak,
        floor=find_floor(graph, target.rules),
        nodes_before=len(subject.feed.loaded.model.graph.node),
        recomputed=made.rewritten.recomputed,
        replaced=subject.replaced,
        original=target.original,
        released=target.released,
        rewritten=made.measured,
        expected_bytes=made.expected_bytes,
        sizes={name: shapes[name] for name in subject.feed.open_inputs},
        any_size=not _sized(planned, info),
        details=made.details,
        static=made.static,
        data=None if made.pair is None or made.pair.data.empty else made.pair.data,
        plan_output=None,
        verification=verification,
        planning_seconds=planning_seconds,
        stopped=deadline.stopped(),
        estimated=estimated_nodes(whole),
        estimated_reason=whole.profile.estimated_reason,
        attempts=planned.attempts,
    )


def _sized(planned: Planned, info: TargetInfo) -> bool:
    """Whether what is written holds for the planned sizes only, as what is optimized does."""
    made = planned.made.sized
    return (info.sized or planned.subject.sized) if made is None else made


def _with_record(
    recipe: Recipe, planned: Planned, limit_bytes: int | None, options: Options
) -> onnx.ModelProto:
    """The model with the record of its plan, and its sizes if it holds for them only."""
    subject, made, plan = planned.subject, planned.made, planned.plan
    feed = subject.feed
    optimized = None if made.pair is None else made.pair.optimized_for
    if optimized is None and feed.optimized is not None:
        width = layout_width() if feed.optimized.needs_this_processor else None
        optimized = OptimizedFor(feed.optimized.level.value, feed.optimized.provider, width)
    if planned.tiling is not None:
        recipe = recipe.with_threads(planned.tiling.threads)
    model, sized = made.model, _sized(planned, options.target)
    if sized and not made.checks_sizes:
        model = declare_sizes(model, feed.binding, subject.types)
    record = PlanRecord.of(
        recipe,
        input_shapes=feed.binding.input_shapes,
        figure=options.figure,
        limit_bytes=limit_bytes,
        planned_peak_bytes=made.expected_bytes,
        measured_peak_bytes=made.measured.peak_bytes,
        planner=plan.planner if planned.tiling is None else f"{plan.planner}, in tiles",
        recomputed=made.rewritten.recomputed,
        original_sha256=feed.loaded.sha256,
        optimized=optimized,
        exact=subject.exact,
        any_size=not sized,
    )
    return attach_record(model, record)
