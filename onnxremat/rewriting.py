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
from onnxremat.errors import ModelError, UsageError
from onnxremat.importer import ImportedModel
from onnxremat.importer.load import external_location, external_tensors
from onnxremat.plan import Limits, Plan, Problem, Progress
from onnxremat.planners import PLANNERS
from onnxremat.planning import plan_within
from onnxremat.prepare import Options, ProgressReport, Subject, prepare, prepare_planner, silent
from onnxremat.runtimes.measure import HeapMeasurement, in_memory, measure_activation
from onnxremat.runtimes.order import is_constant, priority_order
from onnxremat.runtimes.record import PlanRecord, attach_record
from onnxremat.runtimes.rules import RECIPE_RULES
from onnxremat.schedule import given_order, with_eager_ops
from onnxremat.units import MemoryLimit, format_bytes, format_seconds, parse_limit
from onnxremat.verification import Verification, require, verify
from onnxremat_rewriters.recompute import Rewritten, apply_schedule
from onnxremat_rewriters.release import release


@dataclass(frozen=True)
class RewriteResult:
    """A model that runs within a limit, and everything measured on the way.

    `limit_bytes` is None if the smallest peak was asked for. `peak` and `floor` describe the
    original in its own order. `verification` is None with `verify=False`. `planning_seconds` is
    the time from the imported model to the rewritten one, measuring it included.
    """

    model: onnx.ModelProto
    output: Path | None
    limit_text: str
    limit_bytes: int | None
    plan: Plan
    peak: Peak
    floor: Floor
    nodes_before: int
    recomputed: int
    original: HeapMeasurement
    released: HeapMeasurement
    rewritten: HeapMeasurement
    verification: Verification | None
    planning_seconds: float


def default_output(model: Path, limit: MemoryLimit) -> Path:
    """`model.4mb.onnx` beside `model.onnx` for a limit of 4MB; `model.60pct.onnx` for 60%."""
    text = re.sub(r"[^a-z0-9.]", "", limit.text.lower().replace("%", "pct"))
    return model.with_name(f"{model.stem}.{text}.onnx")


def rewrite(
    model: str | os.PathLike[str],
    mem: str | int | MemoryLimit,
    options: Options | None = None,
    *,
    output: str | os.PathLike[str] | None = None,
    progress: ProgressReport = silent,
    stop: Callable[[], bool] | None = None,
) -> RewriteResult:
    """Rewrite the model in a file so that ONNX Runtime runs it within `mem`.

    `mem` is a limit of the activation peak (`"4MB"`, bytes, `"60%"` of the model's own measured
    peak, `"min"`). `output` is written at the very end, under a temporary name first; without it
    nothing is written. `stop()` turning true ends planning with the best plan so far.

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
    if target is not None:
        _check_output(path, target)
    subject = prepare(path, options, progress)
    if target is not None:
        _check_external_data(subject.feed.loaded.model, path, target)
    result = _plan_and_verify(subject, limit, options, target, progress, stop)
    if target is not None:
        progress("writing")
        _copy_external_data(result.model, path, target)
        _write(result.model, target)
    return result


def _plan_and_verify(
    subject: Subject,
    limit: MemoryLimit,
    options: Options,
    target: Path | None,
    progress: ProgressReport,
    stop: Callable[[], bool] | None,
) -> RewriteResult:
    feed, graph = subject.feed, subject.imported.graph
    if not graph.ops:
        raise ModelError("the model computes nothing at run time: there is nothing to plan")
    progress("measuring the original")
    original = measure_activation(feed.source(), feed.inputs, feed.recipe)
    released = original
    if subject.released.changed:
        released = measure_activation(subject.released_source(), feed.inputs, feed.recipe)
    as_given = with_eager_ops(graph, given_order(graph))
    peak = find_peak(graph, as_given, RECIPE_RULES)
    problem = Problem(
        graph,
        RECIPE_RULES,
        budget_bytes=limit.resolve(original.peak_bytes),
        max_copies=None if options.recompute else 1,
        starts=(as_given,),
    )
    prepare_planner(progress)
    started = time.perf_counter()
    candidates: dict[int, tuple[Rewritten, HeapMeasurement]] = {}

    def measure(plan: Plan) -> int:
        progress("measuring the plan")
        rewritten = write_plan(subject.imported, plan)
        source = in_memory(rewritten.model, feed.loaded.base_dir)
        measured = measure_activation(source, feed.inputs, feed.recipe)
        candidates[id(plan)] = (rewritten, measured)
        return measured.peak_bytes

    attempt = plan_within(
        problem,
        PLANNERS[options.planner].function,
        _limits(graph.total_cost(), options, progress, stop),
        error_bytes=released.peak_bytes - peak.nbytes,
        measure=measure,
        rewriters="recomputation and reordering" if options.recompute else "reordering alone",
    )
    rewritten, measured = candidates[id(attempt.plan)]
    planning_seconds = time.perf_counter() - started
    final = _with_record(subject, rewritten, attempt.plan, measured, problem.budget_bytes)
    verification = None
    if options.verify:
        verification = verify(
            feed.loaded,
            replace(feed.loaded, model=final),
            feed.inputs,
            feed.recipe,
            progress=progress,
            measured=(original, measured),
        )
        require(verification, problem.budget_bytes)
    return RewriteResult(
        final,
        target,
        limit.text,
        problem.budget_bytes,
        attempt.plan,
        peak,
        find_floor(graph, RECIPE_RULES),
        len(feed.loaded.model.graph.node),
        rewritten.recomputed,
        original,
        released,
        measured,
        verification,
        planning_seconds,
    )


def write_plan(imported: ImportedModel, plan: Plan) -> Rewritten:
    """The model of a plan: released, for copies leave outputs unread that their originals' readers
    read; and its nodes where the runtime executes them, for it starts Shape and Size at once."""
    rewritten = apply_schedule(imported, with_eager_ops(imported.graph, plan.schedule))
    released = release(rewritten.model)
    origin = [None if i is None else rewritten.origin[i] for i in released.origin]
    model = released.model
    nodes = list(model.graph.node)
    constant = [i for i, node in enumerate(nodes) if is_constant(node)]
    order = [*constant, *priority_order(nodes)]
    model.graph.ClearField("node")
    model.graph.node.extend(nodes[i] for i in order)
    return Rewritten(model, tuple(origin[i] for i in order), rewritten.recomputed)


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
    subject: Subject,
    rewritten: Rewritten,
    plan: Plan,
    measured: HeapMeasurement,
    limit_bytes: int | None,
) -> onnx.ModelProto:
    feed = subject.feed
    record = PlanRecord.of(
        feed.recipe,
        input_shapes=feed.binding.input_shapes,
        limit_bytes=limit_bytes,
        planned_peak_bytes=plan.peak_bytes,
        measured_peak_bytes=measured.peak_bytes,
        planner=plan.planner,
        recomputed=rewritten.recomputed,
        original_sha256=feed.loaded.sha256,
    )
    return attach_record(rewritten.model, record)


def _check_output(model: Path, target: Path) -> None:
    folder = target.parent
    if not folder.is_dir():
        raise UsageError(f"cannot write {target}: there is no folder {folder}")
    if target.is_dir():
        raise UsageError(f"cannot write {target}: it is a folder")
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


def _write(model: onnx.ModelProto, target: Path) -> None:
    """Write a model under a temporary name, then rename: never half a file."""
    try:
        with NamedTemporaryFile(
            dir=target.parent, prefix=f".{target.stem}-", suffix=".tmp", delete=False
        ) as file:
            temporary = Path(file.name)
            try:
                file.write(model.SerializeToString())
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
