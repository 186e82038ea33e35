"""What a planner is asked, and what it answers.

A planner is a plain function `(Problem, Limits) -> Plan`. It returns a status and never raises
because a limit cannot be met; turning a status into an error is the business of `rewrite`.

>>> from onnxremat.core.graph import Op, Tensor
>>> tensors = tuple(Tensor(name, (25,), "float", 100) for name in "abc")
>>> ops = tuple(Op(f"op{v}", "Op", (v - 1,) if v else (), (v,), cost=5) for v in range(3))
>>> problem = Problem(Graph(tensors, ops, (), (2,)), MemoryRules(), budget_bytes=250)
>>> plan = make_plan(problem, Schedule((0, 1, 2)), "by hand", peak_bound_bytes=200)
>>> plan.peak_bytes, plan.time_cost, plan.extra_time, plan.status.value
(200, 15, 0.0, 'optimal')
>>> plan.meets(250), plan.meets(150)
(True, False)

Optimal, for no schedule takes less than one pass. What is above the budget is impossible if the
bound is, too, and else unknown:

>>> tight = Problem(problem.graph, MemoryRules(), budget_bytes=150)
>>> make_plan(tight, plan.schedule, "by hand", peak_bound_bytes=200).status.value
'infeasible'
>>> make_plan(tight, plan.schedule, "by hand", peak_bound_bytes=100).status.value
'unknown'
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from onnxremat.core.graph import Graph
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.schedule import Schedule, check
from onnxremat.core.work import WorkClock


class PlanStatus(StrEnum):
    """How much is known about a plan, in its scope if it has one, else for the problem asked."""

    OPTIMAL = "optimal"
    """Meets the budget, and no schedule of the problem asked does so in less time. With no
    budget: no schedule of that problem has a smaller peak."""
    FEASIBLE = "feasible"
    """Meets the budget."""
    INFEASIBLE = "infeasible"
    """Proved: no schedule of the problem meets the budget. The plan has the smallest peak found."""
    UNKNOWN = "unknown"
    """Ended without meeting the budget and without proof. The plan has the smallest peak found."""


@dataclass(frozen=True)
class Problem:
    """Find a schedule of `graph` whose peak under `rules` is at most `budget_bytes`.

    `budget_bytes` None asks for the smallest peak. `fixed_order` keeps the first executions in the
    order of `graph.ops`, even those that nobody reads (as the published formulations do; see
    `schedule.without_unread`). `max_copies` limits the executions of one op (1 forbids
    recomputation; None means no limit). `depth_first` allows only orders that a search from the
    leaves can give (`onnxremat.core.depth_first`): `reorder` and `auto` keep to them, with
    `max_copies`
    1. `starts` are schedules worth starting from.
    """

    graph: Graph
    rules: MemoryRules
    budget_bytes: int | None = None
    fixed_order: bool = False
    max_copies: int | None = None
    depth_first: bool = False
    starts: tuple[Schedule, ...] = ()


@dataclass(frozen=True)
class Progress:
    """A better plan was found: its peak in bytes and its time in the unit of `Op.cost`."""

    seconds: float
    peak_bytes: int
    time_cost: int


@dataclass(frozen=True)
class Limits:
    """When to stop. The same seed and iterations give the same plan; `seconds` may cut it short.

    `iterations` None means that only the time limits. With `work` the seconds are those of that
    clock: the same plan again, from planners that say what they do (`PlannerInfo.counts_work`).
    `stop()` is asked now and then; once it is true the planner returns the best plan it has.
    """

    seconds: float = 60.0
    iterations: int | None = None
    seed: int = 0
    on_progress: Callable[[Progress], None] | None = None
    stop: Callable[[], bool] | None = None
    work: WorkClock | None = None


@dataclass(frozen=True)
class Plan:
    """A schedule with its peak (from `memory.profile`) and time, the proved lower bounds on both,
    and what is known about it (`status`, for the problem in `scope`). `one_pass` is the time of
    every op once; no schedule within the budget takes less than `time_bound`. All times are in the
    unit of `Op.cost`."""

    schedule: Schedule
    peak_bytes: int
    time_cost: int
    peak_bound_bytes: int
    one_pass: int
    time_bound: int
    status: PlanStatus
    planner: str
    scope: str = ""

    @property
    def extra_cost(self) -> int:
        """What recomputation adds to one pass."""
        return self.time_cost - self.one_pass

    @property
    def extra_time(self) -> float:
        """The share of one pass that recomputation adds."""
        return self.time_cost / self.one_pass - 1 if self.one_pass else 0.0

    @property
    def extra_time_bound(self) -> float:
        """The share of one pass that any schedule within the budget adds, at least."""
        return self.time_bound / self.one_pass - 1 if self.one_pass else 0.0

    @property
    def proved(self) -> bool:
        """Whether it is known to be the best there is, in its scope."""
        return self.status is PlanStatus.OPTIMAL

    def meets(self, budget_bytes: int | None) -> bool:
        """Whether the peak is within the budget; always true without one."""
        return budget_bytes is None or self.peak_bytes <= budget_bytes


Planner = Callable[[Problem, Limits], Plan]


def make_plan(
    problem: Problem,
    schedule: Schedule,
    planner: str,
    *,
    peak_bound_bytes: int,
    time_bound: int = 0,
    proved: bool = False,
    refuted: bool = False,
    scope: str = "",
) -> Plan:
    """A Plan for a schedule, checked and measured by the one simulator.

    `proved` claims that no better plan exists in `scope` (by time if there is a budget, by peak if
    there is none); `refuted` that no plan in `scope` meets the budget; `time_bound` that none
    within the budget takes less time (one pass is known). The bounds are for the problem asked,
    whatever the scope.

    Raises ScheduleError if the schedule does not compute the graph.
    """
    check(problem.graph, schedule, idle_firsts=problem.fixed_order)
    peak = profile(problem.graph, schedule, problem.rules).peak_bytes
    cost = schedule.cost(problem.graph)
    one_pass = problem.graph.total_cost()
    floor = max(one_pass, time_bound)
    budget = problem.budget_bytes
    if budget is not None and peak > budget:
        none = refuted or peak_bound_bytes > budget
        status = PlanStatus.INFEASIBLE if none else PlanStatus.UNKNOWN
    elif (
        proved
        or (budget is None and peak == peak_bound_bytes)
        or (budget is not None and cost <= floor)
    ):
        status = PlanStatus.OPTIMAL
    else:
        status = PlanStatus.FEASIBLE
    return Plan(schedule, peak, cost, peak_bound_bytes, one_pass, floor, status, planner, scope)
