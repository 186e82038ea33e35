"""`frontier`: memory against time, for every planner, by the model of memory.

Nothing is written and no plan is run: the figures are those that planners state, under the rules
of the recipe. `rewrite` measures.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnxremat.auditing import Floor, find_floor
from onnxremat.errors import ModelError, UsageError
from onnxremat.memory import profile
from onnxremat.plan import Limits, Plan, PlanStatus, Problem
from onnxremat.planners import PLANNERS
from onnxremat.prepare import Options, ProgressReport, prepare, prepare_planner, silent
from onnxremat.runtimes.rules import RECIPE_RULES
from onnxremat.schedule import given_order, with_eager_ops
from onnxremat.units import format_bytes

DEFAULT_PLANNERS = ("reorder", "greedy", "chain", "lower_sets", "twremat", "local_search", "auto")
"""Those that make plans for graphs of any size; the others are there by name."""

DEFAULT_BUDGETS = 6


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


def frontier(
    model: Path,
    options: Options | None = None,
    *,
    planners: Sequence[str] = DEFAULT_PLANNERS,
    budgets: int = DEFAULT_BUDGETS,
    progress: ProgressReport = silent,
) -> Frontier:
    """Plan for the smallest peak, and for `budgets` between that and the model's own peak.

    Each plan has `options.time_limit` seconds: there are planners x (budgets + 1) of them.
    Raises UsageError or ModelError.
    """
    options = options or Options()
    for name in planners:
        if name not in PLANNERS:
            raise UsageError(f"--planners: there is no {name!r}; there are {', '.join(PLANNERS)}")
    graph = prepare(model, options, progress).imported.graph
    if not graph.ops:
        raise ModelError("the model computes nothing at run time: there is nothing to plan")
    own = with_eager_ops(graph, given_order(graph))
    peak = profile(graph, own, RECIPE_RULES).peak_bytes
    problem = Problem(
        graph, RECIPE_RULES, max_copies=None if options.recompute else 1, starts=(own,)
    )
    prepare_planner(progress)
    runs = _Runs(problem, options, progress)
    smallest = {name: runs.plan(name, None) for name in planners}
    skipped = {
        name: plan.scope
        for name, (plan, _) in smallest.items()
        if plan.scope and plan.schedule in (own, given_order(graph))
    }
    points = [point for name, (_, point) in smallest.items() if name not in skipped]
    wanted = _budgets(min((p.peak_bytes for p in points), default=peak), peak, budgets)
    for budget in wanted:
        points += [runs.plan(name, budget)[1] for name in planners if name not in skipped]
    floor = find_floor(graph, RECIPE_RULES)
    return Frontier(
        model, len(graph.ops), peak, floor, wanted, tuple(points), _best(points), skipped
    )


@dataclass(frozen=True)
class _Runs:
    """Planners on one problem, with the same limits each."""

    problem: Problem
    options: Options
    progress: ProgressReport

    def plan(self, name: str, budget: int | None) -> tuple[Plan, Point]:
        goal = "the smallest peak" if budget is None else format_bytes(budget)
        self.progress("planning", f"{name}, {goal}")
        limits = Limits(seconds=self.options.time_limit, seed=self.options.seed)
        began = time.monotonic()
        plan = PLANNERS[name].function(replace(self.problem, budget_bytes=budget), limits)
        point = Point(
            name,
            budget,
            plan.peak_bytes,
            plan.extra_time,
            plan.meets(budget),
            plan.status is PlanStatus.OPTIMAL,
            time.monotonic() - began,
        )
        return plan, point


def _budgets(lowest: int, highest: int, count: int) -> tuple[int, ...]:
    """`count` of them, evenly between the two, largest first; none if there is no room."""
    step = (highest - lowest) / (count + 1)
    found = {lowest + int(step * i) for i in range(1, count + 1)}
    return tuple(sorted(found - {lowest, highest}, reverse=True))


def _best(points: Sequence[Point]) -> tuple[Point, ...]:
    """Those that no other one beats in both, the smallest peak first."""
    best: list[Point] = []
    for point in sorted(points, key=lambda p: (p.peak_bytes, p.extra_time)):
        if not best or point.extra_time < best[-1].extra_time:
            best.append(point)
    return tuple(best)
