"""From a limit on what the runtime allocates to a plan whose measured peak keeps it.

The planner minimises a model of memory, which is additive; the runtime's allocator is not, and is
emulated once a plan is finished (`forecast`); the runtime itself is the truth (`make`). The
model's error on the model's own order is taken off the limit first; as long as a plan is expected
to take, or takes, more than the limit, the target is lowered by the excess and planned again, from
what was found so far. All rounds share the seconds of one `PlanningTime`. Where that misses,
the search for the smallest peak may still keep the limit (`smallest_within`).
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Generic, Protocol, TypeVar

from onnxremat.core.attempt import TAKEN, WHOLE_OPS, Attempt
from onnxremat.core.bounds import PeakBound
from onnxremat.core.errors import InfeasibleError, NoPlanFoundError
from onnxremat.core.problem import Limits, Plan, Planner, Problem
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

SMALLEST_SHARE = 0.85
"""Of the seconds that are left, for the smallest peak; the rest is for a faster plan of about that
peak."""

COUNTED_SECONDS = 1e6
"""What planners have whose iterations are limited: enough not to end them."""

OVER_SHARE = 0.01
"""Where less than this share of the seconds is left, time is over: nothing could be done in it."""


class PlanningTime:
    """The seconds of a time limit: they pass while something is planned (`passing`), not while
    models run or are measured. Those of a `part` are its parent's, too.

    `now` is the clock of planners; `busy` that of what one thread does, which counts no seconds
    while others have the processor, so that it ends at about the same place each time.
    """

    def __init__(
        self,
        seconds: float,
        now: Callable[[], float] = time.monotonic,
        parent: "PlanningTime | None" = None,
        busy: Callable[[], float] = time.thread_time,
    ) -> None:
        self.seconds = seconds
        self._now = now
        self._busy = busy
        self._parent = parent
        self._passed = 0.0

    @classmethod
    def counted(cls, seconds: float) -> "PlanningTime":
        """One that does not pass: what `seconds` are shared out for ends by counts of work alone,
        so that it ends at the same place each time."""
        return cls(seconds, now=_standing, busy=_standing)

    @property
    def busy(self) -> Callable[[], float]:
        """The clock of what one thread does."""
        return self._busy

    @property
    def left_seconds(self) -> float:
        """What has not passed yet; 0 if more has."""
        left = max(0.0, self.seconds - self._passed)
        return left if self._parent is None else min(left, self._parent.left_seconds)

    @property
    def over(self) -> bool:
        """Whether nothing should be started any more."""
        return self.passed(1 - OVER_SHARE) or (self._parent is not None and self._parent.over)

    @property
    def whole(self) -> "PlanningTime":
        """What this is a part of."""
        return self if self._parent is None else self._parent.whole

    def passed(self, share: float) -> bool:
        """Whether so much of it has passed."""
        return self._passed >= share * self.seconds

    def said(self) -> str:
        """How long was planned, and whether that was all, in words."""
        if self._now is _standing:
            return "with so many --iterations"
        limit = f"{self.whole.seconds:g}"
        if self.whole.over:
            return f"in the {limit} s of --time-limit, which are over"
        return f"in {self._passed:.1f} of the {limit} s of --time-limit"

    def part(self, share: float) -> "PlanningTime":
        """A share of what is left."""
        return PlanningTime(share * self.left_seconds, self._now, self, self._busy)

    def share(self, share: float) -> "PlanningTime":
        """A share of all, or what is left if that is less."""
        return PlanningTime(share * self.seconds, self._now, self, self._busy)

    @contextmanager
    def passing(self, *, busy: bool = False) -> Iterator[None]:
        """Inside, time passes; with `busy` only while this thread has the processor."""
        now = self._busy if busy else self._now
        began = now()
        try:
            yield
        finally:
            self._pass(now() - began)

    def _pass(self, seconds: float) -> None:
        self._passed += seconds
        if self._parent is not None:
            self._parent._pass(seconds)


def _standing() -> float:
    """A clock that stands still."""
    return 0.0


class PlanMissedError(NoPlanFoundError):
    """No plan was found in time. `found` says what was instead, `peak_bytes` is the smallest peak,
    `schedule` the last one that was tried, worth going on from."""

    def __init__(
        self,
        message: str,
        found: str,
        peak_bytes: int,
        schedule: Schedule,
        attempts: tuple[Attempt, ...],
    ) -> None:
        super().__init__(message, attempts)
        self.found = found
        self.peak_bytes = peak_bytes
        self.schedule = schedule


class Expected(Protocol):
    """What is known of a plan before it is made."""

    @property
    def expected_bytes(self) -> int: ...


class Measured(Protocol):
    """A plan that was made."""

    @property
    def measured_bytes(self) -> int: ...


F = TypeVar("F", bound=Expected)
M = TypeVar("M", bound=Measured)


@dataclass(frozen=True)
class Runtime(Generic[F, M]):
    """What is known of the runtime that plans are for.

    `bound` is proved for whatever is measured. None: nothing is, and what is measured may even be
    below a plan's own peak. `error_bytes` is what the runtime takes beyond the model of memory.
    `forecast` predicts a plan's measure, `tolerance` is the share by which it errs; `make` makes
    and measures the plan of a forecast, which is the truth. `of` says what is planned, `extra_time`
    the share of one pass that a plan of it adds.
    """

    bound: PeakBound | None
    error_bytes: int
    tolerance: float
    forecast: Callable[[Plan], F]
    make: Callable[[F], M]
    of: str = WHOLE_OPS
    extra_time: Callable[[Plan], float] = lambda plan: plan.extra_time


@dataclass(frozen=True)
class Found(Generic[M]):
    """A plan and what was made of it; it is the last of the attempts."""

    plan: Plan
    made: M
    attempts: tuple[Attempt, ...]


def plan_within(
    problem: Problem,
    planner: Planner,
    limits: Limits,
    clock: PlanningTime,
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
        return smallest_within(problem, planner, limits, clock, runtime)
    rounds, bound = _Rounds(problem, planner, limits, clock, runtime), runtime.bound
    floor = 0 if bound is None else bound.nbytes
    if bound is not None and floor > limit:
        one = rounds.plan(None, min(clock.left_seconds, SMALLEST_SECONDS))
        raise rounds.impossible(one, limit, bound, rewriters)
    target = max(floor, limit - max(0, runtime.error_bytes))
    smallest_bytes = None
    starts: tuple[Schedule, ...] = ()
    for left in reversed(range(MAX_ROUNDS)):
        share = (LATER_SHARE if starts else FIRST_SHARE) if left else 1.0
        one = rounds.plan(target, share * clock.left_seconds, starts)
        plan = one.plan
        starts = (plan.schedule,)
        if bound is not None and plan.peak_bound_bytes > limit:
            proved = PeakBound(plan.peak_bound_bytes, None, f"proved for {plan.scope}")
            raise rounds.impossible(one, limit, proved, rewriters)
        last = left == 0 or not plan.meets(target) or target == floor or clock.over
        found = rounds.judged(one, limit, last=last)
        if isinstance(found, Found):
            return found
        smallest_bytes = min(found, smallest_bytes or found)
        if last:
            break
        target = max(floor, target - (found - limit))
    raise rounds.missed(plan, limit, smallest_bytes or 0)


def smallest_within(
    problem: Problem, planner: Planner, limits: Limits, clock: PlanningTime, runtime: Runtime[F, M]
) -> Found[M]:
    """The plan of the smallest peak that is found, or a faster one of about that peak, measured.

    With a budget, the smallest alone, in as many seconds: what is found without one keeps the
    budget if it can be kept. Raises PlanMissedError if it does not.
    """
    rounds, limit = _Rounds(problem, planner, limits, clock, runtime), problem.budget_bytes
    best = rounds.plan(None, SMALLEST_SHARE * clock.left_seconds)
    if limit is None and best.plan.extra_time > 0 and not clock.over:
        most = int((1 + ALIKE) * best.plan.peak_bytes)
        faster = rounds.plan(most, clock.left_seconds, (best.plan.schedule,))
        if faster.plan.meets(most) and faster.plan.time_cost < best.plan.time_cost:
            rounds.ended(best, "refused: another plan of about that peak takes less time")
            best = faster
        else:
            rounds.ended(faster, "refused: it takes no less time, or more memory")
    forecast = runtime.forecast(best.plan)
    made = runtime.make(forecast)
    taken = made.measured_bytes
    if limit is None or taken <= limit:
        return rounds.found(best, forecast, made)
    rounds.ended(best, f"refused: measured {_above(taken, limit)}", forecast, made)
    raise rounds.missed(best.plan, limit, taken)


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
    limits: Limits
    clock: PlanningTime
    runtime: Runtime[F, M]
    attempts: list[Attempt] = field(default_factory=list)

    def plan(self, target: int | None, seconds: float, starts: tuple[Schedule, ...] = ()) -> _Round:
        """A new plan."""
        began = time.perf_counter()
        given = (*starts, *self.problem.starts)
        asked = replace(self.problem, budget_bytes=target, starts=given)
        if self.limits.iterations is not None:
            seconds = COUNTED_SECONDS
        with self.clock.passing():
            plan = self.planner(asked, replace(self.limits, seconds=seconds))
        return _Round(target, plan, began)

    def ended(
        self, one: _Round, outcome: str, forecast: F | None = None, made: M | None = None
    ) -> None:
        """Keep what became of a plan."""
        plan = one.plan
        self.attempts.append(
            Attempt(
                self.runtime.of,
                plan.planner,
                one.target_bytes,
                plan.peak_bytes,
                None if forecast is None else forecast.expected_bytes,
                None if made is None else made.measured_bytes,
                self.runtime.extra_time(plan),
                outcome,
                time.perf_counter() - one.began,
            )
        )

    def judged(self, one: _Round, limit: int, *, last: bool) -> Found[M] | int:
        """The plan made, if it keeps a limit; else what it takes: expected, or measured if it may
        keep it or is the `last`."""
        plan, runtime = one.plan, self.runtime
        forecast = runtime.forecast(plan)
        taken = max(plan.peak_bytes, forecast.expected_bytes)
        made = None
        if runtime.bound is not None and not plan.meets(limit):
            why = f"planned {_above(plan.peak_bytes, limit)}"
        elif taken <= (1 + runtime.tolerance) * limit or last:
            made = runtime.make(forecast)
            taken = made.measured_bytes
            if taken <= limit:
                return self.found(one, forecast, made)
            why = f"measured {_above(taken, limit)}"
        else:
            why = f"expected {_above(taken, limit)}: not measured"
        self.ended(one, f"refused: {why}", forecast, made)
        return taken

    def found(self, one: _Round, forecast: F, made: M) -> Found[M]:
        """The plan that is taken, and all before it."""
        self.ended(one, TAKEN, forecast, made)
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

    def missed(self, plan: Plan, limit: int, peak_bytes: int) -> PlanMissedError:
        """What is raised after the last plan, with the smallest peak."""
        bound = self.runtime.bound
        below = "" if bound is None else f", and none below {format_bytes(bound.nbytes)} exists"
        found = f"the smallest peak found is {format_bytes(peak_bytes)}{below}"
        scope = f" ({plan.scope})" if plan.scope else ""
        return PlanMissedError(
            f"no plan within {format_bytes(limit)} was found {self.clock.said()}{scope}; {found}; "
            "try a longer --time-limit, another --planner or a higher --mem",
            found,
            peak_bytes,
            plan.schedule,
            tuple(self.attempts),
        )


def _above(nbytes: int, limit: int) -> str:
    return f"{format_bytes(nbytes - limit)} above the limit"
