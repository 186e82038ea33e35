"""`rewrite`: from a model and a limit to a file that keeps it, verified in the runtime."""

import filecmp
import os
import re
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import NamedTemporaryFile

import onnx

from onnxremat.auditing import Floor, Peak, find_floor, find_peak
from onnxremat.bounds import peak_bound
from onnxremat.errors import ModelError, UsageError
from onnxremat.importer.load import external_location, external_tensors
from onnxremat.plan import Limits, Plan, Problem, Progress, make_plan
from onnxremat.planners import PLANNERS
from onnxremat.planning import plan_within
from onnxremat.prepare import (
    Options,
    ProgressReport,
    Subject,
    prepare,
    prepare_planner,
    silent,
    with_substitutes,
)
from onnxremat.runtimes.generic import StaticPlan, emit_plan
from onnxremat.runtimes.layout import layout_width
from onnxremat.runtimes.measure import PeakMeasurement
from onnxremat.runtimes.recipe import ExecutionOrder, Recipe
from onnxremat.runtimes.record import OptimizedFor, PlanRecord, attach_record
from onnxremat.runtimes.rules import RECIPE_RULES
from onnxremat.targets import Made, Target, as_executed, make_target, own_schedule
from onnxremat.units import MemoryLimit, format_bytes, format_seconds, parse_limit
from onnxremat.verification import Verification, require
from onnxremat_rewriters.stock import StockResult
from onnxremat_rewriters.substitutes import EXACT, ROUNDING, Replaced, Substitution


@dataclass(frozen=True)
class RewriteResult:
    """A model that runs within a limit, and everything measured on the way.

    `limit_bytes` is None if the smallest peak was asked for. `figure` says in words what the limit
    is of; `recipe` are the session options of the file; `original`, `released` and `rewritten` are
    measured figures of that kind. `peak` and `floor` describe the original in its own order, with
    substitutes for the nodes in `replaced`. `stock` is there for files for default session options,
    `static` if a static plan was asked for, and `plan_output` is where it was written.
    `verification` is None with `verify=False`. `planning_seconds` is the time from the imported
    model to the rewritten one, measuring it included. `stopped`: planning was ended early (Ctrl-C),
    with the best plan so far.
    """

    model: onnx.ModelProto
    output: Path | None
    limit_text: str
    limit_bytes: int | None
    figure: str
    recipe: Recipe
    plan: Plan
    peak: Peak
    floor: Floor
    nodes_before: int
    recomputed: int
    replaced: tuple[Replaced, ...]
    original: PeakMeasurement
    released: PeakMeasurement
    rewritten: PeakMeasurement
    stock: StockResult | None
    static: StaticPlan | None
    plan_output: Path | None
    verification: Verification | None
    planning_seconds: float
    stopped: bool = False


def default_output(model: Path, limit: MemoryLimit, options: Options | None = None) -> Path:
    """`model.4mb.onnx` beside `model.onnx` for a limit of 4MB; `model.60pct.onnx` for 60%.

    What makes the file another kind of file stands in its name too: `model.60pct.stock.onnx`.
    """
    options = options or Options()
    parts = [re.sub(r"[^a-z0-9.]", "", limit.text.lower().replace("%", "pct"))]
    if options.optimize != "none":
        parts.append(options.optimize)
    if options.allow_rounding:
        parts.append("rounded")
    if options.order != ExecutionOrder.PRIORITY:
        parts.append(f"{options.order}-order")
    if options.session != "recipe":
        parts.append(options.session)
    if options.runtime == "generic":
        parts.append("static")
    return model.with_name(".".join([model.stem, *parts, "onnx"]))


def rewrite(
    model: str | os.PathLike[str],
    mem: str | int | MemoryLimit,
    options: Options | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    plan_output: str | os.PathLike[str] | None = None,
    progress: ProgressReport = silent,
    stop: Callable[[], bool] | None = None,
) -> RewriteResult:
    """Rewrite the model in a file so that it runs within `mem`.

    `mem` is a limit (`"4MB"`, bytes, `"60%"` of the model's own measured figure, `"min"`) of what
    the target that the options choose limits: the activation peak by default, the resident peak
    with `session="stock"`, the arena with `runtime="generic"`. `output` is written at the very end,
    under a temporary name first; without it nothing is written. `plan_output` is for the static
    plan of the result, as JSON. `stop()` turning true ends planning with the best plan so far.

    Raises UsageError, ModelError, InfeasibleError (proved), NoPlanFoundError (not found in time),
    VerificationError.
    """
    options = options or Options()
    limit = mem if isinstance(mem, MemoryLimit) else parse_limit(mem)
    if options.planner not in PLANNERS:
        known = ", ".join(PLANNERS)
        raise UsageError(f"--planner: there is no {options.planner!r}; there are {known}")
    path = Path(model)
    target = None if output is None else Path(output)
    plan_target = None if plan_output is None else Path(plan_output)
    if plan_target is not None and options.session == "stock":
        raise UsageError("--emit-plan: with --session stock buffers are placed by the runtime")
    for written in (target, plan_target):
        if written is not None:
            check_output(path, written)
    if target is not None and plan_target is not None and target.resolve() == plan_target.resolve():
        raise UsageError(f"cannot write {target}: model and plan need a file each")
    subject = prepare(path, options, progress)
    if target is not None:
        _check_external_data(subject.feed.loaded.model, path, target)
    result = _plan_and_verify(
        subject, limit, options, static=plan_target is not None, progress=progress, stop=stop
    )
    progress("writing")
    if target is not None:
        _copy_external_data(result.model, path, target)
        write_file(result.model.SerializeToString(), target)
    if plan_target is not None and result.static is not None:
        write_file(result.static.as_json().encode(), plan_target)
    return replace(result, output=target, plan_output=plan_target)


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
    target = make_target(subject, options, progress)
    budget = limit.resolve(target.original.peak_bytes)
    subject = target.subject = _substituted(subject, options, budget, progress)
    graph = subject.imported.graph
    mode = ExecutionOrder(options.order)
    as_given = own_schedule(subject.imported, mode)
    peak = find_peak(graph, as_given, target.rules)
    problem = Problem(
        graph,
        target.rules,
        budget_bytes=budget,
        max_copies=None if options.recompute else 1,
        depth_first=mode is ExecutionOrder.DEFAULT,
        starts=(as_given,),
    )
    bound = None if target.bound_rules is None else peak_bound(graph, target.bound_rules)
    own_order = make_plan(problem, as_given, "given_order", peak_bound_bytes=0)
    prepare_planner(progress)
    started = time.perf_counter()
    candidates: dict[int, Made] = {}

    def measure(plan: Plan) -> int:
        made = candidates[id(plan)] = target.make(plan)
        return made.measured.peak_bytes

    attempt = plan_within(
        problem,
        PLANNERS[options.planner].function,
        _limits(graph.total_cost(), options, progress, stop),
        bound=bound,
        error_bytes=target.expected_bytes(own_order) - peak.nbytes,
        expect=target.expected_bytes,
        tolerance=target.tolerance,
        measure=measure,
        rewriters=_allowed(options),
    )
    made = candidates[id(attempt.plan)]
    planning_seconds = time.perf_counter() - started
    final = _with_record(subject, target, made, attempt.plan, problem.budget_bytes)
    verification = None
    if options.verify:
        verification = target.verify(made, final)
        require(verification, problem.budget_bytes)
    if static and made.static is None:
        progress("placing the buffers")
        schedule = as_executed(graph, attempt.plan.schedule, mode)
        made = replace(made, static=emit_plan(graph, schedule, target.rules, seed=options.seed))
    return RewriteResult(
        model=final,
        output=None,
        limit_text=limit.text,
        limit_bytes=problem.budget_bytes,
        figure=target.figure,
        recipe=target.recipe,
        plan=attempt.plan,
        peak=peak,
        floor=find_floor(graph, target.rules),
        nodes_before=len(subject.feed.loaded.model.graph.node),
        recomputed=made.rewritten.recomputed,
        replaced=subject.replaced,
        original=target.original,
        released=target.released,
        rewritten=made.measured,
        stock=made.stock,
        static=made.static,
        plan_output=None,
        verification=verification,
        planning_seconds=planning_seconds,
        stopped=stop is not None and stop(),
    )


def _substituted(
    subject: Subject, options: Options, budget: int | None, progress: ProgressReport
) -> Subject:
    """Substitutes where they are needed: exact ones, which may take time, for ops that alone exceed
    the limit; those that round differently, if they are allowed, for ops that take half of it."""
    if budget is None:
        graph = subject.imported.graph
        budget = peak_bound(graph, RECIPE_RULES).nbytes - 1
    chosen: list[tuple[tuple[Substitution, ...], int]] = [(EXACT, budget + 1)]
    if options.allow_rounding:
        chosen.append((ROUNDING, budget // 2))
    for substitutions, threshold in chosen:
        progress("looking for kernels that others can replace")
        subject = with_substitutes(subject, options, substitutions, threshold)
    return subject


def _allowed(options: Options) -> str:
    """The rewriters that were allowed, in words."""
    named = ["reordering"]
    if options.recompute:
        named.insert(0, "recomputation")
    named.append("exact substitutes")
    if options.allow_rounding:
        named.append("substitutes that round differently")
    else:
        named[-1] += " (--allow-rounding permits more)"
    return ", ".join(named[:-1]) + " and " + named[-1]


def _limits(
    one_pass: int, options: Options, progress: ProgressReport, stop: Callable[[], bool] | None
) -> Limits:
    def report(better: Progress) -> None:
        extra = 100 * (better.time_cost / one_pass - 1) if one_pass else 0.0
        progress(
            "planning",
            f"{format_bytes(better.peak_bytes)}, {extra:+.1f}% time, "
            f"after {format_seconds(better.seconds)}",
        )

    progress("planning")
    return Limits(seconds=options.time_limit, seed=options.seed, on_progress=report, stop=stop)


def _with_record(
    subject: Subject, target: Target, made: Made, plan: Plan, limit_bytes: int | None
) -> onnx.ModelProto:
    feed = subject.feed
    optimized = None
    if feed.optimized is not None:
        width = layout_width() if feed.optimized.needs_this_processor else None
        optimized = OptimizedFor(feed.optimized.level.value, feed.optimized.provider, width)
    record = PlanRecord.of(
        target.recipe,
        input_shapes=feed.binding.input_shapes,
        figure=target.figure,
        limit_bytes=limit_bytes,
        planned_peak_bytes=plan.peak_bytes,
        measured_peak_bytes=made.measured.peak_bytes,
        planner=plan.planner,
        recomputed=made.rewritten.recomputed,
        original_sha256=feed.loaded.sha256,
        optimized=optimized,
        exact=subject.exact,
    )
    return attach_record(made.model, record)


def check_output(model: Path, target: Path) -> None:
    """Raise UsageError if `target` cannot be written, or is the model itself."""
    folder = target.parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {target}: there is no folder {folder}")
    if target.is_dir():
        raise UsageError(f"cannot write {target}: it is a folder")
    if target.exists() and not target.is_file():
        raise UsageError(f"cannot write {target}: it is no regular file")
    if not os.access(folder, os.W_OK) or (target.exists() and not os.access(target, os.W_OK)):
        raise UsageError(f"cannot write {target}: permission denied")
    if target.exists() and model.exists() and target.samefile(model):
        raise UsageError(f"cannot write {target}: it is the model itself, which stays untouched")


def _data_files(model: onnx.ModelProto) -> list[str]:
    return sorted({external_location(tensor) for tensor in external_tensors(model.graph)})


def _check_external_data(model: onnx.ModelProto, path: Path, target: Path) -> None:
    """External weights stay where they are; a copy goes along if the output is elsewhere."""
    for location in _data_files(model):
        source, copy = path.parent / location, target.parent / location
        if copy.exists() and not filecmp.cmp(source, copy, shallow=False):
            raise UsageError(f"cannot write the weights to {copy}: another file is there")


def _copy_external_data(model: onnx.ModelProto, path: Path, target: Path) -> None:
    for location in _data_files(model):
        source, copy = path.parent / location, target.parent / location
        if not copy.exists():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, copy)


def write_file(data: bytes, target: Path) -> None:
    """Write a file under a temporary name, then rename: never half a file."""
    try:
        with NamedTemporaryFile(
            dir=target.parent, prefix=f".{target.stem}-", suffix=".tmp", delete=False
        ) as file:
            temporary = Path(file.name)
            try:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                temporary.chmod(0o644)
                temporary.replace(target)
            except BaseException:
                with suppress(FileNotFoundError):
                    temporary.unlink()
                raise
    except OSError as error:
        raise UsageError(f"cannot write {target}: {error.strerror or error}") from None
