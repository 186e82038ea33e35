"""From a limit on what the runtime allocates to a plan whose measured peak keeps it.

The planner minimises a model of memory, which is additive; the runtime's allocator is not, and is
emulated once a plan is finished (`expect`); the runtime itself is the truth (`measure`). The
model's error on the model's own order is taken off the limit first; as long as a plan is expected
to take, or takes, more than the limit, the target is lowered by the excess and planned again.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from onnxremat.bounds import PeakBound
from onnxremat.errors import InfeasibleError, NoPlanFoundError
from onnxremat.plan import Limits, Plan, Planner, Problem
from onnxremat.units import format_bytes

MAX_ROUNDS = 4
"""Plans made at most for one limit."""

SMALLEST_SECONDS = 3.0
"""For the smallest peak that is named where a limit is impossible."""


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
    bound: PeakBound | None,
    error_bytes: int,
    expect: Callable[[Plan], int],
    tolerance: float,
    measure: Callable[[Plan], int],
    rewriters: str,
) -> Attempt:
    """A plan of which `measure` says that it keeps `problem.budget_bytes`.

    `bound` is proved for whatever is measured. None: nothing is, and what is measured may even be
    below a plan's own peak. `error_bytes` is what the runtime takes beyond the model of memory.
    `expect` predicts a plan's measure: one that is expected to take too much, by more than the
    share `tolerance` by which predictions err, is not measured but planned again, unless it was the
    last chance. Without a budget the planner's smallest peak is measured once. Raises
    InfeasibleError with the bound, the op that sets it and the `rewriters` that were allowed, or
    NoPlanFoundError with the smallest peak.
    """
    limit = problem.budget_bytes
    if limit is None:
        plan = planner(problem, limits)
        return Attempt(None, plan, measure(plan))
    floor = 0 if bound is None else bound.nbytes
    if bound is not None and floor > limit:
        seconds = min(limits.seconds, SMALLEST_SECONDS)
        plan = planner(replace(problem, budget_bytes=None), replace(limits, seconds=seconds))
        raise InfeasibleError(_infeasible(limit, bound, plan, rewriters))
    target = max(floor, limit - max(0, error_bytes))
    smallest_bytes = None
    for left in reversed(range(MAX_ROUNDS)):
        plan = planner(replace(problem, budget_bytes=target), limits)
        if bound is not None and plan.peak_bound_bytes > limit:
            proved = PeakBound(plan.peak_bound_bytes, None, f"proved for {plan.scope}")
            raise InfeasibleError(_infeasible(limit, proved, plan, rewriters))
        taken = max(plan.peak_bytes, expect(plan))
        last = left == 0 or not plan.meets(target) or target == floor
        possible = plan.meets(limit) or bound is None
        if possible and (taken <= (1 + tolerance) * limit or last):
            taken = measure(plan)
            if taken <= limit:
                return Attempt(target, plan, taken)
        smallest_bytes = min(taken, smallest_bytes or taken)
        if last:
            break
        target = max(floor, target - (taken - limit))
    below = f", and none below {format_bytes(floor)} exists" if bound is not None else ""
    scope = f" ({plan.scope})" if plan.scope else ""
    raise NoPlanFoundError(
        f"no plan within {format_bytes(limit)} was found in {limits.seconds:g} s{scope}; the "
        f"smallest peak found is {format_bytes(smallest_bytes or 0)}{below}; try a longer "
        "--time-limit, another --planner or a higher --mem"
    )


def _infeasible(limit: int, bound: PeakBound, plan: Plan, rewriters: str) -> str:
    return (
        f"a peak of {format_bytes(limit)} is impossible with {rewriters}: no schedule goes below "
        f"{format_bytes(bound.nbytes)} ({bound.reason}); the smallest peak found is "
        f"{format_bytes(plan.peak_bytes)}"
    )
