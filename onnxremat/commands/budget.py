"""Whether models keep a memory budget: one measured figure of each, and where the most is held.

This is for pipelines, so that it is quick: a model is opened and run in a few processes, and only
one that is above the budget is looked into. The figure is by default the one that `rewrite --mem`
limits by default, measured in the same way, so that a file that was made for a limit keeps a budget
of that size.
"""

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnxremat.commands.audit import Peak, find_peak
from onnxremat.commands.files import check_outputs, check_writable
from onnxremat.core.errors import (
    LimitExceededError,
    ModelError,
    OnnxrematError,
    UsageError,
    about,
)
from onnxremat.core.schedule import given_order, with_eager_ops
from onnxremat.core.units import format_bytes, parse_bytes
from onnxremat.importer import LoadedModel, load, own_dims
from onnxremat.options import ModelOptions
from onnxremat.ort.emulation.rules import RECIPE_RULES
from onnxremat.ort.measuring.measure import measure_activation
from onnxremat.ort.measuring.measure_time import PEAK_SHARE
from onnxremat.ort.measuring.session_memory import measure_session
from onnxremat.ort.recipe import STOCK
from onnxremat.ort.record import PlanRecord, file_record
from onnxremat.stages import ProgressReport, silent, stage
from onnxremat.subject import Feed, feed_for, prepare
from onnxremat.target_table import TARGETS
from onnxremat.verification import planned_dims, resident_peak

FIGURES = {**TARGETS["stock"].figures, "activations": TARGETS["recipe"].figure}
"""What a budget may be of, by the values of `--mem-of`; the first is the default."""
DEFAULT_FIGURE = next(iter(FIGURES))
_REPEATS = 2


@dataclass(frozen=True)
class Budget:
    """What models may take: `limit_bytes` of the figure that `FIGURES` has as `mem_of`.
    `limit_text` is the limit as it was written."""

    limit_text: str
    limit_bytes: int
    mem_of: str = DEFAULT_FIGURE

    @property
    def figure(self) -> str:
        """What is limited, in words."""
        return FIGURES[self.mem_of]


def parse_budget(limit: str | int, mem_of: str | None = None) -> Budget:
    """A budget as it is written. Raises UsageError, naming the option."""
    mem_of = DEFAULT_FIGURE if mem_of is None else mem_of
    if mem_of not in FIGURES:
        raise UsageError(f"--mem-of: {mem_of!r} is none of {', '.join(FIGURES)}")
    return Budget(str(limit), parse_bytes(str(limit), "--fail-above"), mem_of)


@dataclass(frozen=True)
class BudgetCheck:
    """One model and a budget.

    `measured_bytes` is the figure, None where it could not be measured: then `error` says why, and
    `exit_code` is that of the error. `exceeded`: whether it is above the budget. If so, `peak` is
    where the model of memory has the most activations; None where a plan is in the file already.
    `seconds`: what the check took.
    """

    model: Path
    measured_bytes: int | None
    exceeded: bool
    seconds: float
    peak: Peak | None = None
    error: str = ""
    exit_code: int = 0


@dataclass(frozen=True)
class BudgetReport:
    """Models and the budget that each has for itself, in the order in which they were given.
    `figure` is what is limited, in words."""

    budget: Budget
    figure: str
    checks: tuple[BudgetCheck, ...]

    @property
    def exceeded(self) -> tuple[BudgetCheck, ...]:
        """The models above the budget."""
        return tuple(one for one in self.checks if one.exceeded)

    @property
    def failed(self) -> tuple[BudgetCheck, ...]:
        """The models that could not be measured."""
        return tuple(one for one in self.checks if one.error)


def check_budget(
    models: Sequence[str | os.PathLike[str]],
    budget: Budget,
    options: ModelOptions | None = None,
    *,
    reports: Sequence[Path | None] = (),
    progress: ProgressReport = silent,
) -> BudgetReport:
    """Measure models one after the other and compare each with the budget.

    A file that onnxremat wrote is run at the sizes, and with the number of threads, that it was
    planned for, where the options name none. Of several models each has the sizes of its own
    dimensions, and one that cannot be measured keeps no other from it. `reports` are files that
    will be written: they must not be one of the models.

    Raises UsageError without a model, or for one of the `reports`; `require_within` raises the
    rest. O(a few runs of each model).
    """
    if not models:
        raise UsageError("name a model at least")
    options = options or ModelOptions()
    paths = [Path(one) for one in models]
    several = len(paths) > 1
    _check_reports([one for one in reports if one is not None], paths)
    checks = []
    for number, path in enumerate(paths):
        if several:
            progress("measuring", f"{path}, model {number + 1} of {len(paths)}")
        checks.append(_checked(path, budget, options, reports, progress, several=several))
    return BudgetReport(budget, budget.figure, tuple(checks))


def _check_reports(reports: Sequence[Path], models: Sequence[Path]) -> None:
    taken = {os.path.realpath(path): "it is a model, which stays untouched" for path in models}
    for report in reports:
        check_writable(report)
        place = os.path.realpath(report)
        if place in taken:
            raise UsageError(f"cannot write {report}: {taken[place]}")
        taken[place] = "each report needs a file of its own"


def require_within(report: BudgetReport) -> None:
    """Raise the error of the first model that could not be measured (a verdict that is not known is
    worse than one that is), else LimitExceededError if one is above the budget."""
    for one in report.failed:
        beside = len(report.failed) - 1
        others = f" (and {beside} more could not be measured)" if beside else ""
        said = one.error if len(report.checks) == 1 else about(one.model, one.error)
        raise _error_of(one.exit_code)(f"{said}{others}")
    above = report.exceeded
    if above:
        first = above[0]
        named = "" if len(report.checks) == 1 else f" of {first.model}"
        more = f", and of {len(above) - 1} more" if len(above) > 1 else ""
        raise LimitExceededError(
            f"the {report.figure}{named}, {format_bytes(first.measured_bytes or 0)}, is above "
            f"--fail-above {report.budget.limit_text}{more}"
        )


def _error_of(exit_code: int) -> type[OnnxrematError]:
    kinds = {kind.exit_code: kind for kind in (UsageError, ModelError)}
    return kinds.get(exit_code, OnnxrematError)


def _checked(
    path: Path,
    budget: Budget,
    options: ModelOptions,
    reports: Sequence[Path | None],
    progress: ProgressReport,
    *,
    several: bool,
) -> BudgetCheck:
    began = time.monotonic()
    try:
        progress("reading the model")
        loaded = load(path)
    except OnnxrematError as error:
        return _failed(path, error, began)
    check_outputs(loaded, options.inputs, reports)
    if several:
        options = replace(options, dims=own_dims(loaded.model.graph, options.dims))
    try:
        record = file_record(loaded.model, path)
        options = _as_planned(loaded, record, options)
        feed = feed_for(loaded, options)
        measured = _measured(feed, record, budget, progress)
        exceeded = measured > budget.limit_bytes
        peak = _peak(loaded, options, progress) if exceeded and record is None else None
    except OnnxrematError as error:
        return _failed(path, error, began)
    return BudgetCheck(path, measured, exceeded, time.monotonic() - began, peak)


def _failed(path: Path, error: OnnxrematError, began: float) -> BudgetCheck:
    seconds = time.monotonic() - began
    return BudgetCheck(path, None, False, seconds, error=str(error), exit_code=error.exit_code)


def _as_planned(
    loaded: LoadedModel, record: PlanRecord | None, options: ModelOptions
) -> ModelOptions:
    """The options with what a file was planned for, where they say nothing of it."""
    if record is None:
        return options
    if not options.dims and options.inputs is None:
        options = replace(options, dims=planned_dims(loaded, record))
    return options if options.threads is not None else replace(options, threads=record.threads)


def _measured(
    feed: Feed, record: PlanRecord | None, budget: Budget, progress: ProgressReport
) -> int:
    """The figure. Activations are those under the options that the file was made for."""
    listener = stage(progress, "measuring memory")
    if budget.mem_of == "activations":
        recipe = feed.recipe
        if record is not None:
            recipe = replace(record.recipe, cpu_arena=False).with_threads(feed.options.threads)
        seconds = PEAK_SHARE * feed.options.measure_limit
        return measure_activation(
            feed.source(), feed.inputs, recipe, seconds=seconds, listener=listener
        ).peak_bytes
    memory = measure_session(
        feed.source(),
        feed.inputs,
        STOCK.with_threads(feed.options.threads),
        repeats=_REPEATS,
        returning=True,
    )
    return resident_peak(memory, loading=budget.mem_of == "process").peak_bytes


def _peak(loaded: LoadedModel, options: ModelOptions, progress: ProgressReport) -> Peak | None:
    """Where the model of memory has the most, in the order of the file; None where nothing runs."""
    graph = prepare(loaded, options, progress).imported.graph
    if not graph.ops:
        return None
    return find_peak(graph, with_eager_ops(graph, given_order(graph)), RECIPE_RULES)
