"""From a limit on what the runtime allocates to a plan whose measured peak keeps it.

The planner minimises a model of memory; the runtime is the truth. The model's error on the
released model, measured in its own order, is taken off the limit first; if the plan still
measures more than the limit, the target is lowered by the excess and planned again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from onnxremat.bounds import PeakBound, peak_bound
from onnxremat.errors import InfeasibleError, NoPlanFoundError
from onnxremat.plan import Limits, Plan, Planner, Problem
from onnxremat.units import format_bytes

MAX_ROUNDS = 4
"""Plans made at most for one limit."""


@dataclass(frozen=True)
class Attempt:
    """One round: the target in bytes (None: the smallest), its plan, and what it measured."""

    target_bytes: int | None
    plan: Plan
    measured_bytes: int


def plan_within(
    problem: Problem,
    planner: Planner,
    limits: Limits,
    *,
    error_bytes: int,
    measure: Callable[[Plan], int],
    rewriters: str,
) -> Attempt:
    """A plan of which `measure` says that it keeps `problem.budget_bytes`.

    `error_bytes` is what the runtime takes beyond the model of memory. Without a budget the
    planner's smallest peak is measured once. Raises InfeasibleError with the bound, the op that
    sets it and the `rewriters` that were allowed, or NoPlanFoundError with the smallest peak.
    """
    limit = problem.budget_bytes
    if limit is None:
        plan = planner(problem, limits)
        return Attempt(None, plan, measure(plan))
    bound = peak_bound(problem.graph, problem.rules)
    if bound.nbytes > limit:
        plan = planner(problem, limits)
        raise InfeasibleError(_infeasible(limit, bound, plan, rewriters))
    target = max(bound.nbytes, limit - max(0, error_bytes))
    smallest_bytes = None
    for _ in range(MAX_ROUNDS):
        plan = planner(replace(problem, budget_bytes=target), limits)
        measured = measure(plan) if plan.meets(limit) else plan.peak_bytes
        if measured <= limit:
            return Attempt(target, plan, measured)
        smallest_bytes = min(measured, smallest_bytes or measured)
        lowered = max(bound.nbytes, target - (measured - limit))
        if lowered == target or not plan.meets(target):
            break
        target = lowered
    raise NoPlanFoundError(
        f"no plan within {format_bytes(limit)} was found in {limits.seconds:g} s; the smallest "
        f"peak found is {format_bytes(smallest_bytes or 0)}, and none below "
        f"{format_bytes(bound.nbytes)} exists; try a longer --time-limit or a higher --mem"
    )


def _infeasible(limit: int, bound: PeakBound, plan: Plan, rewriters: str) -> str:
    return (
        f"a peak of {format_bytes(limit)} is impossible with {rewriters}: no schedule goes below "
        f"{format_bytes(bound.nbytes)} ({bound.reason}); the smallest peak found is "
        f"{format_bytes(plan.peak_bytes)}"
    )
