"""From a limit on what the runtime allocates to a plan whose measured peak keeps it.

The planner minimises a model of memory, which is additive; the runtime's allocator is not, and is
emulated once a plan is finished (`forecast`); the runtime itself is the truth (`make`). The
model's error on the model's own order is taken off the limit first; as long as a plan is expected
to take, or takes, more than the limit, the target is lowered by the excess and planned again, from
what was found so far. All rounds share the seconds of one `Deadline`. Where that misses,
the search for the smallest peak may still keep the limit (`smallest_within`).
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, NamedTuple, Protocol, TypeVar

from onnxremat.core.attempt import TAKEN, WHOLE_OPS, Attempt
from onnxremat.core.bounds import PeakBound
from onnxremat.core.deadline import CUT_SHORT, Deadline
from onnxremat.core.errors import InfeasibleError, NoPlanFoundError
from onnxremat.core.problem import Plan, Planner, Problem
from onnxremat.core.schedule import Schedule
from onnxremat.core.units import format_bytes

MAX_ROUNDS = 4
"""Plans made at most for one limit."""

FIRST_SHARE, LATER_SHARE = 0.9, 0.5
"""Of the seconds that are left, for the first plan and for each one after it; the last has all."""

SMALLEST_SECONDS = 3.0
"""For the smallest peak that is named where a limit is impossible."""

ALIKE = 0.02
"""Of plans within this share of the smallest peak, the fastest is the one."""

HOPELESS = 1.5
"""The smallest peak of whole ops is not measured where it is expected to be so many limits."""

ORDER_SHARE, HALVED_SHARE = 0.15, 0.35
"""Where time is limited, too: of the seconds, those for an order, and of the rest those for the
smallest peak."""

ALLOWED, MOST_HALVED = (2.0, 1.0), 4
"""The smallest peaks are planned for that add so many times the time that is allowed, by so many
halvings each. What optimized kernels take of what is added is another figure, and may be less; but
nothing is made that is planned to add more than the first."""

SMALLEST_SHARE = 0.85
"""Of the seconds that are left, for the smallest peak; the rest is for a faster plan of about that
peak."""


def said(deadline: Deadline) -> str:
    """How long was planned, and whether that was all, in words."""
    if deadline.limits.iterations is not None:
        return "with so many --iterations"
    limit = f"{deadline.whole.limits.seconds:g}"
    if deadline.whole.spent:
        return f"in the {limit} s of --time-limit, which are over"
    return f"in {deadline.passed_seconds:.1f} of the {limit} s of --time-limit"


class PlanMissedError(NoPlanFoundError):
    """No plan was found in time. `found` says what was instead, `peak_bytes` is the smallest peak,
    `schedule` the last one that was tried, worth going on from; `refused`: it keeps the limit, and
    was refused for something else."""

    def __init__(
        self,
        message: str,
        found: str,
        peak_bytes: int,
        schedule: Schedule,
        attempts: tuple[Attempt, ...],
        *,
        refused: bool = False,
    ) -> None:
        super().__init__(message, attempts)
        self.found = found
        self.peak_bytes = peak_bytes
        self.schedule = schedule
        self.refused = refused


class Expected(Protocol):
    """What is known of a plan before it is made."""

    @property
    def expected_bytes(self) -> int: ...


class Measured(Protocol):
    """A plan that was made."""

    @property
    def measured_bytes(self) -> int: ...

    @property
    def compared_bytes(self) -> int: ...

    @property
    def refused(self) -> str: ...

    @property
    def dearer(self) -> str: ...


F = TypeVar("F", bound=Expected)
M = TypeVar("M", bound=Measured)


@dataclass(frozen=True)
class Runtime(Generic[F, M]):
    """What is known of the runtime that plans are for.

    `bound` is proved for whatever is measured. None: nothing is, and what is measured may even be
    below a plan's own peak. `error_bytes` is what the runtime takes beyond the model of memory.
    `forecast` predicts a plan's measure, `tolerance` is the share by which it errs; `make` makes
    and measures the plan of a forecast, which is the truth. `of` says what is planned, `extra_time`
    the share of a run that its plans add, from their `Plan.extra_cost`; None if that is all of it.
    `taken` has what plans took that were made before, and why they were refused: what was above a
    limit once is not made again. None: every plan is. `slowdown`: the share of a run that the file
    may take longer, where that was said; what it takes is found out when it is made. `ended` is
    called with each attempt once it is known what became of it.
    """

    bound: PeakBound | None
    error_bytes: int
    tolerance: float
    forecast: Callable[[Plan], F]
    make: Callable[[F], M]
    of: str = WHOLE_OPS
    extra_time: Callable[[int], float] | None = None
    taken: dict[Schedule, "Outcome"] | None = None
    slowdown: float | None = None
    ended: Callable[[Attempt], None] = lambda one: None


class Outcome(NamedTuple):
    """What a plan took, and why it is not in the file that was made of it, if it is not."""

    nbytes: int
    why: str


@dataclass(frozen=True)
class Found(Generic[M]):
    """A plan and what was made of it; it is the last of the attempts."""

    plan: Plan
    made: M
    attempts: tuple[Attempt, ...]


def plan_within(
    problem: Problem,
    planner: Planner,
    deadline: Deadline,
    runtime: Runtime[F, M],
    *,
    rewriters: str,
) -> Found[M]:
    """A plan that keeps `problem.budget_bytes` where it is measured.

    One that is expected to take too much, by more than forecasts err, is not made but planned
    again, unless it was the last chance. Without a budget: `smallest_within`.

    The planner has the seconds of `clock`, not those of `limits`: the first round most of them, the
    others a part of the rest and what was planned before as a start; none begins when time is over.
    Raises InfeasibleError with the bound, the op that sets it and the `rewriters` that were
    allowed, or NoPlanFoundError with the smallest peak; both with the attempts.
    """
    limit = problem.budget_bytes
    if limit is None:
        return smallest_within(problem, planner, deadline, runtime)
    rounds, bound = _Rounds(problem, planner, deadline, runtime), runtime.bound
    floor = 0 if bound is None else bound.nbytes
    if bound is not None and floor > limit:
        one = rounds.plan(None, min(deadline.left_seconds, SMALLEST_SECONDS))
        raise rounds.impossible(one, limit, bound, rewriters)
    target = max(floor, limit - max(0, runtime.error_bytes))
    starts, refused = tuple[Schedule, ...](), ""
    for left in reversed(range(MAX_ROUNDS)):
        share = (LATER_SHARE if starts else FIRST_SHARE) if left else 1.0
        one = rounds.plan(target, share * deadline.left_seconds, starts)
        plan = one.plan
        starts = (plan.schedule,)
        if bound is not None and plan.peak_bound_bytes > limit:
            proved = PeakBound(plan.peak_bound_bytes, None, f"proved for {plan.scope}")
            raise rounds.impossible(one, limit, proved, rewriters)
        last = left == 0 or not plan.meets(target) or target == floor or deadline.spent
        found = rounds.judged(one, limit, last=last)
        if isinstance(found, Found):
            return found
        refused = found.why
        if last or refused:
            break
        target = max(floor, target - (found.nbytes - limit))
    raise rounds.missed(one, limit, refused)


def smallest_within(
    problem: Problem, planner: Planner, deadline: Deadline, runtime: Runtime[F, M]
) -> Found[M]:
    """The plan of the smallest peak that is found, or a faster one of about that peak, measured.

    With a budget, the same plan, which keeps every budget from its peak on; the smallest itself if
    it does not. Raises PlanMissedError if neither does.
    """
    rounds, limit = _Rounds(problem, planner, deadline, runtime), problem.budget_bytes
    if limit is None and runtime.slowdown is not None:
        return _smallest_in_time(rounds, runtime.slowdown)
    smallest = rounds.plan(None, SMALLEST_SHARE * deadline.left_seconds)
    plans = [smallest]
    if smallest.plan.extra_time > 0 and not deadline.spent:
        most = int((1 + ALIKE) * smallest.plan.peak_bytes)
        faster = rounds.plan(most, deadline.left_seconds, (smallest.plan.schedule,))
        if not faster.plan.meets(most):
            above = _above(faster.plan.peak_bytes, most, "2% more than the smallest peak")
            rounds.ended(faster, f"refused: planned {above}")
        elif faster.plan.time_cost >= smallest.plan.time_cost:
            rounds.ended(faster, "refused: it takes no less time than the smallest peak")
        else:
            plans.insert(0, faster)
    why = ""
    for one in plans:
        forecast = runtime.forecast(one.plan)
        if limit is not None and forecast.expected_bytes > HOPELESS * limit:
            taken = forecast.expected_bytes
            rounds.ended(one, f"refused: expected {_above(taken, limit)}: not measured", forecast)
            continue
        made, (taken, why) = rounds.measured(one, forecast)
        if made is not None and (limit is None or (taken <= limit and not why)):
            if one is not smallest:
                rounds.ended(smallest, "refused: another plan of about that peak takes less time")
            return rounds.found(one, forecast, made)
        outcome = why or f"measured {_above(taken, limit or 0)}"
        rounds.ended(one, f"refused: {outcome}", forecast, taken)
    raise rounds.missed(smallest, limit or 0, why)


def _smallest_in_time(rounds: "_Rounds[F, M]", slowdown: float) -> Found[M]:
    """The plan that is measured to take least in the time that is allowed.

    What a plan adds is known, what the runtime makes of that is not: so the smallest peak that adds
    about as much is looked for, between the smallest of all and that of an order alone, and what
    was found on the way is made, the smallest first, until nothing that was made of one took too
    long.
    """
    deadline, runtime = rounds.deadline, rounds.runtime
    plans = _plans_in_time(rounds, slowdown)
    most = max(ALLOWED[0] * slowdown, min(one.plan.extra_time for one in plans))
    best: tuple[_Round, F, M] | None = None
    for number, one in enumerate(plans, start=1):
        if one.plan.extra_time > most:
            rounds.ended(one, f"refused: planned {100 * one.plan.extra_time:+.1f}% time")
            continue
        forecast = runtime.forecast(one.plan)
        made, _ = rounds.measured(one, forecast)
        assert made is not None, "nothing is above no limit"
        why, taken = made.dearer or made.refused, made.measured_bytes
        if best is None or made.compared_bytes < best[2].compared_bytes:
            if best is not None:
                other, expected, file = best
                rounds.ended(
                    other, "refused: another plan takes less", expected, file.measured_bytes
                )
            best = one, forecast, made
        else:
            rounds.ended(one, f"refused: {why or 'another plan takes less'}", forecast, taken)
        enough = not (made.dearer or made.refused)
        if enough or deadline.stopped():
            why = "one of less memory was fast enough" if enough else "planning was stopped"
            for other in plans[number:]:
                rounds.ended(other, f"not made: {why}")
            break
    assert best is not None, "one adds least"
    return rounds.found(*best)


def _plans_in_time(rounds: "_Rounds[F, M]", slowdown: float) -> "list[_Round]":
    """Plans of different peaks, the smallest first, the last one an order alone: the steps from
    one that adds more time than is `ALLOWED` to one that does not are halved in turn."""
    deadline = rounds.deadline
    order = rounds.plan(None, ORDER_SHARE * deadline.left_seconds, max_copies=1)
    if rounds.problem.max_copies == 1:
        return [order]
    starts: tuple[Schedule, ...] = (order.plan.schedule,)
    smallest = rounds.plan(None, HALVED_SHARE * deadline.left_seconds, starts)
    plans = {one.plan.peak_bytes: one for one in (smallest, order)}
    left = len(ALLOWED) * MOST_HALVED
    for share in ALLOWED:
        fast = [one for one in plans.values() if one.plan.extra_time <= share * slowdown]
        high = min((one.plan.peak_bytes for one in fast), default=order.plan.peak_bytes)
        slow = [n for n in plans if n < high]
        low = max(slow, default=high)
        for _ in range(MOST_HALVED):
            if high <= (1 + ALIKE) * low or deadline.spent or deadline.stopped():
                break
            target = (low + high) // 2
            one = rounds.plan(target, deadline.left_seconds / left, starts)
            plan, left = one.plan, left - 1
            if plan.meets(target):
                plans.setdefault(plan.peak_bytes, one)
                starts = (plan.schedule, order.plan.schedule)
            else:
                above = _above(plan.peak_bytes, target, "its target")
                rounds.ended(one, f"refused: planned {above}")
            if plan.meets(target) and plan.extra_time <= share * slowdown:
                high = plan.peak_bytes
            else:
                low = target
    kept = [nbytes for nbytes in sorted(plans) if nbytes <= order.plan.peak_bytes]
    for nbytes in plans.keys() - kept:
        rounds.ended(plans[nbytes], "not made: an order alone has a smaller peak")
    return [plans[nbytes] for nbytes in kept]


@dataclass(frozen=True)
class _Round:
    """A plan, what it was to keep, and when it was begun."""

    target_bytes: int | None
    plan: Plan
    began: float


@dataclass(frozen=True)
class _Rounds(Generic[F, M]):
    """A planner whose time passes on a clock, and what became of its plans so far."""

    problem: Problem
    planner: Planner
    deadline: Deadline
    runtime: Runtime[F, M]
    attempts: list[Attempt] = field(default_factory=list)

    def plan(
        self,
        target: int | None,
        seconds: float,
        starts: tuple[Schedule, ...] = (),
        *,
        max_copies: int | None = None,
    ) -> _Round:
        """A new plan; with `max_copies`, of no more of each op than that."""
        began = time.perf_counter()
        given = (*starts, *self.problem.starts)
        copies = max_copies or self.problem.max_copies
        asked = replace(self.problem, budget_bytes=target, starts=given, max_copies=copies)
        with self.deadline.passing():
            plan = self.planner(asked, self.deadline.granting(seconds))
        return _Round(target, plan, began)

    def ended(
        self, one: _Round, outcome: str, forecast: F | None = None, measured: int | None = None
    ) -> None:
        """Keep what became of a plan."""
        plan, added = one.plan, self.runtime.extra_time
        attempt = Attempt(
            self.runtime.of,
            plan.planner,
            one.target_bytes,
            plan.peak_bytes,
            None if forecast is None else forecast.expected_bytes,
            measured,
            plan.extra_time if added is None else added(plan.extra_cost),
            outcome,
            time.perf_counter() - one.began,
        )
        self.attempts.append(attempt)
        self.runtime.ended(attempt)

    def measured(self, one: _Round, forecast: F) -> tuple[M | None, Outcome]:
        """The plan made, and what it takes; not made if it is known to be above the limit."""
        taken, limit, schedule = self.runtime.taken, self.problem.budget_bytes, one.plan.schedule
        known = None if taken is None else taken.get(schedule)
        if limit is not None and known is not None and (known.nbytes > limit or known.why):
            return None, known
        made = self.runtime.make(forecast)
        found = Outcome(made.measured_bytes, made.refused)
        if taken is not None:
            taken[schedule] = found
        return made, found

    def judged(self, one: _Round, limit: int, *, last: bool) -> Found[M] | Outcome:
        """The plan made, if it keeps a limit; else what it takes, expected, or measured if it may
        keep it or is the `last`; and why it was refused, if not for that."""
        plan, runtime = one.plan, self.runtime
        forecast = runtime.forecast(plan)
        taken = max(plan.peak_bytes, forecast.expected_bytes)
        measured, refused = None, ""
        if runtime.bound is not None and not plan.meets(limit):
            why = f"planned {_above(plan.peak_bytes, limit)}"
        elif taken <= (1 + runtime.tolerance) * limit or last:
            made, (measured, refused) = self.measured(one, forecast)
            if made is not None and measured <= limit and not refused:
                return self.found(one, forecast, made)
            taken = measured
            why = refused or f"measured {_above(taken, limit)}"
        else:
            why = f"expected {_above(taken, limit)}: not measured"
        self.ended(one, f"refused: {why}", forecast, measured)
        return Outcome(taken, refused)

    def found(self, one: _Round, forecast: F, made: M) -> Found[M]:
        """The plan that is taken, and all before it."""
        outcome = f"refused: {made.refused}" if made.refused else TAKEN
        self.ended(one, outcome, forecast, made.measured_bytes)
        return Found(one.plan, made, tuple(self.attempts))

    def impossible(
        self, one: _Round, limit: int, bound: PeakBound, rewriters: str
    ) -> InfeasibleError:
        """What a limit below a bound is answered with."""
        below = f"no schedule goes below {format_bytes(bound.nbytes)} ({bound.reason})"
        self.ended(one, f"refused: {below}")
        return InfeasibleError(
            f"a peak of {format_bytes(limit)} is impossible with {rewriters}: {below}; the "
            f"smallest peak found is {format_bytes(one.plan.peak_bytes)}",
            tuple(self.attempts),
        )

    def missed(self, last: _Round, limit: int, refused: str) -> PlanMissedError:
        """What is raised after the last plan, with the smallest peak; `refused` says why the last
        was, if not for its peak."""
        plan, peak_bytes = last.plan, self._smallest_bytes(limit)
        bound = self.runtime.bound
        below = "" if bound is None else f", and none below {format_bytes(bound.nbytes)} exists"
        found = f"the smallest peak found is {format_bytes(peak_bytes)}{below}"
        if refused:
            found = f"what keeps it was refused ({refused})"
        scope = f" ({plan.scope})" if plan.scope else ""
        took = f"{said(self.deadline)}{scope}"
        late = self.deadline.spent or CUT_SHORT in plan.scope
        longer = "a longer --time-limit, " if late else ""
        return PlanMissedError(
            f"no plan within {format_bytes(limit)} was found {took}; {found}; "
            f"try {longer}another --planner or a higher --mem",
            found,
            peak_bytes,
            plan.schedule,
            tuple(self.attempts),
            refused=bool(refused),
        )

    def _smallest_bytes(self, limit: int) -> int:
        """The smallest peak that was measured above a limit; that was expected, if none was."""
        known = [one.measured_bytes for one in self.attempts if one.measured_bytes is not None]
        expected = [one.expected_bytes for one in self.attempts if one.expected_bytes is not None]
        planned = [one.planned_bytes for one in self.attempts]
        above = [nbytes for nbytes in known if nbytes > limit]
        return min(above or known or [n for n in expected if n > limit] or expected or planned)


def _above(nbytes: int, limit: int, name: str = "the limit") -> str:
    return f"{format_bytes(nbytes - limit)} above {name}"
