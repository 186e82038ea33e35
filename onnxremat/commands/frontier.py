"""`frontier`: memory against time, for every planner, by the model of memory.

Nothing is written and no plan is run: the figures are those that planners state, under the rules
of the recipe. `rewrite` measures.
"""

import itertools
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from onnxremat.commands.audit import Floor, find_floor
from onnxremat.commands.files import check_outputs
from onnxremat.core.errors import ModelError, UsageError
from onnxremat.core.graph import Graph
from onnxremat.core.memory import profile
from onnxremat.core.problem import Limits, Problem
from onnxremat.core.schedule import given_order, with_eager_ops
from onnxremat.core.undominated import undominated
from onnxremat.core.units import format_bytes
from onnxremat.importer import LoadedModel, import_model, infer_types, load
from onnxremat.importer.execution_order import EAGER_OPS
from onnxremat.options import FrontierOptions
from onnxremat.ort.emulation.rules import VIEW_OPS
from onnxremat.planners import PLANNERS
from onnxremat.stages import NOTE, Detail, ProgressReport, silent
from onnxremat.subject import Subject, feed_for, prepare, prepare_planner
from onnxremat.targets.recipe_target import RecipeTarget
from onnxremat.tiling import Tiling, choose_regions
from onnxremat_rewriters.release import release

TILES = "tiles"
"""No planner of whole ops: regions in tiles, in the file's order (`onnxremat.tiling`)."""

DEFAULT_PLANNERS = (
    "reorder", "greedy", "chain", "lower_sets", "twremat", "local_search", "auto", TILES,
)  # fmt: skip
"""Those that make plans for graphs of any size; the others are there by name."""

DEFAULT_BUDGETS = 6

_UNKNOWN_OPS = (
    r"(\S+?)(?:\(-?\d+\))? is not a registered function/op",
    r"No Op registered for (\S+)",
    r"Could not find an implementation for (\w+)",
)
"""How ONNX Runtime says that it does not have an op; the group is the op's name."""


@dataclass(frozen=True, slots=True)
class Point:
    """What one planner reached for one budget (None: the smallest peak), in `seconds`.

    `extra_time` is the share of one pass that it adds; it `meets` the budget or is the closest
    that it came.
    """

    planner: str
    budget_bytes: int | None
    peak_bytes: int
    extra_time: float
    meets: bool
    optimal: bool
    seconds: float


@dataclass(frozen=True)
class Frontier:
    """The points of all planners; `own_peak_bytes` is the peak of the model's own order.

    `budgets` are descending. `best` has no point beside which another has no larger peak and no
    more time, smallest peak first. `skipped`: planners that have nothing to say, and why.
    """

    model: Path
    ops: int
    own_peak_bytes: int
    floor: Floor
    budgets: tuple[int, ...]
    points: tuple[Point, ...]
    best: tuple[Point, ...]
    skipped: dict[str, str]
    note: str = ""


def frontier(
    model: Path,
    options: FrontierOptions | None = None,
    *,
    planners: Sequence[str] = DEFAULT_PLANNERS,
    budgets: int = DEFAULT_BUDGETS,
    output: Path | None = None,
    progress: ProgressReport = silent,
) -> Frontier:
    """Plan for the smallest peak, and for `budgets` between that and the model's own peak.

    Each plan has `options.time_limit` seconds: there are planners x (budgets + 1) of them.
    A model with ops that the runtime does not know is planned without a run (see `note`). `output`
    is a file that the caller is going to write: refused before anything runs if it cannot be, or if
    it is an input. Raises UsageError or ModelError.
    """
    options = options or FrontierOptions()
    for name in planners:
        if name not in (*PLANNERS, TILES):
            known = ", ".join((*PLANNERS, TILES))
            raise UsageError(f"--planners: there is no {name!r}; there are {known}")
    loaded = load(model)
    check_outputs(loaded, options.inputs, (output,))
    graph, subject, note = _graph(loaded, options, progress)
    if not graph.ops:
        raise ModelError("the model computes nothing at run time: there is nothing to plan")
    own = with_eager_ops(graph, given_order(graph))
    rules = RecipeTarget.rules
    peak = profile(graph, own, rules).peak_bytes
    problem = Problem(graph, rules, max_copies=None if options.recompute else 1, starts=(own,))
    prepare_planner(progress)
    count = len(planners) * (1 + budgets)
    runs = _Runs(problem, subject, options, progress, count)
    smallest = {name: runs.point(name, None) for name in planners}
    skipped = {name: why for name, (_, why) in smallest.items() if why}
    points = [point for name, (point, _) in smallest.items() if name not in skipped]
    wanted = _budgets(min((p.peak_bytes for p in points), default=peak), peak, budgets)
    for budget in wanted:
        points += [runs.point(name, budget)[0] for name in planners if name not in skipped]
    floor = find_floor(graph, rules)
    best = undominated(points, lambda p: (p.peak_bytes, p.extra_time))
    return Frontier(model, len(graph.ops), peak, floor, wanted, tuple(points), best, skipped, note)


def _graph(
    loaded: LoadedModel, options: FrontierOptions, progress: ProgressReport
) -> tuple[Graph, Subject | None, str]:
    """The graph of a run and what was run; or of no run, and a note that says so, if the runtime
    lacks an op.

    Times and optimizations that are asked of the runtime cannot be had without it. Raises
    UsageError or ModelError.
    """
    try:
        subject = prepare(loaded, options, progress)
        return subject.imported.graph, subject, ""
    except ModelError as error:
        op = _unknown_op(str(error))
        if op is None or options.costs == "measured" or options.optimize != "none":
            raise
    progress("importing the model without a run")
    note = f"planned without a run, workspace unknown (counted as 0): ONNX Runtime cannot run {op}"
    return _graph_without_run(loaded, options), None, note


def _unknown_op(message: str) -> str | None:
    """The op that an error of the runtime says it does not know; None for other errors."""
    found = (re.search(pattern, message) for pattern in _UNKNOWN_OPS)
    return next((match[1] for match in found if match), None)


def _graph_without_run(loaded: LoadedModel, options: FrontierOptions) -> Graph:
    """The graph of the released model by inferred types. Raises UsageError or ModelError."""
    feed = feed_for(loaded, options)
    loaded = replace(feed.loaded, model=release(feed.loaded.model).model)
    imported = import_model(
        loaded,
        infer_types(loaded, feed.binding),
        view_ops=VIEW_OPS,
        eager_ops=EAGER_OPS,
        allow_recompute=options.allow_ops,
    )
    return imported.graph


@dataclass(frozen=True)
class _Runs:
    """Planners on one problem, with the same limits each, at most `count` times."""

    problem: Problem
    subject: Subject | None
    options: FrontierOptions
    progress: ProgressReport
    count: int
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def point(self, name: str, budget: int | None) -> tuple[Point, str]:
        """What a planner reaches, and why it has nothing to say, if it has not."""
        goal = "the smallest peak" if budget is None else format_bytes(budget)
        self.progress("planning", Detail.step(next(self.numbers), self.count, f"{name}, {goal}"))
        began = time.monotonic()
        peak, extra_time, optimal, why = (
            self._tiled(budget) if name == TILES else self._planned(name, budget)
        )
        meets = budget is None or peak <= budget
        seconds = time.monotonic() - began
        reached = why or f"{format_bytes(peak)}, {100 * extra_time:+.1f}% time, {seconds:.1f} s"
        self.progress(NOTE, f"{name} for {goal}: {reached}")
        return Point(name, budget, peak, extra_time, meets, optimal, seconds), why

    def _planned(self, name: str, budget: int | None) -> tuple[int, float, bool, str]:
        limits = Limits(seconds=self.options.time_limit, seed=self.options.seed)
        problem = replace(self.problem, budget_bytes=budget)
        plan = PLANNERS[name].function(problem, limits)
        kept = plan.schedule in (*self.problem.starts, given_order(self.problem.graph))
        why = plan.scope if kept else ""
        return plan.peak_bytes, plan.extra_time, plan.proved, why

    def _tiled(self, budget: int | None) -> tuple[int, float, bool, str]:
        if self.subject is None:
            return 0, 0.0, False, "only models that the runtime can run are cut"
        threads = self.options.exact_threads
        tiling = choose_regions(
            self.subject,
            budget,
            Tiling(self.problem.rules, RecipeTarget.node_bytes, threads, allow_rounding=False),
            Limits(self.options.time_limit),
        )
        why = "" if tiling.regions or not tiling.reasons else tiling.reasons[0]
        return tiling.peak_bytes, tiling.extra_time, False, why if budget is None else ""


def _budgets(lowest: int, highest: int, count: int) -> tuple[int, ...]:
    """`count` of them, evenly between the two, largest first; none if there is no room."""
    step = (highest - lowest) / (count + 1)
    found = {lowest + int(step * i) for i in range(1, count + 1)}
    return tuple(sorted(found - {lowest, highest}, reverse=True))
