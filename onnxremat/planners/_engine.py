"""What drives the compiled search: starts, cooling cycles, clocks and progress."""

import time
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from onnxremat.memory import profile
from onnxremat.plan import Limits, Problem, Progress
from onnxremat.planners._flat import flatten
from onnxremat.planners._layout import IDLE_FIRSTS, TARGET, make_state
from onnxremat.schedule import Schedule, ScheduleError, check

NO_LIMIT = 1 << 60


@dataclass(frozen=True, slots=True)
class Score:
    """A schedule with its peak in bytes and its time in the unit of `Op.cost`."""

    schedule: Schedule
    peak_bytes: int
    time_cost: int

    def better_than(self, other: "Score", budget_bytes: int | None) -> bool:
        """Within the budget: less time, then a smaller peak; else (or without one): a smaller
        peak, then less time."""
        return self._key(budget_bytes) < other._key(budget_bytes)

    def _key(self, budget_bytes: int | None) -> tuple[bool, int, int]:
        if budget_bytes is not None and self.peak_bytes <= budget_bytes:
            return False, self.time_cost, self.peak_bytes
        return True, self.peak_bytes, self.time_cost


def score(problem: Problem, schedule: Schedule) -> Score:
    """Measure a valid schedule."""
    peak = profile(problem.graph, schedule, problem.rules).peak_bytes
    return Score(schedule, peak, schedule.cost(problem.graph))


def best_of(problem: Problem, schedules: Iterable[Schedule]) -> Score:
    """The best of one or more valid schedules; the first of equals."""
    scores = [score(problem, s) for s in schedules]
    best = scores[0]
    for other in scores[1:]:
        if other.better_than(best, problem.budget_bytes):
            best = other
    return best


def admissible(problem: Problem, schedule: Schedule) -> bool:
    """Whether a start is a schedule of the problem: valid, within its copies, in its order."""
    try:
        check(problem.graph, schedule)
    except ScheduleError:
        return False
    steps = schedule.steps
    firsts = list(dict.fromkeys(steps))
    most = max(np.bincount(steps), default=0) if steps else 0
    if problem.max_copies is not None and most > problem.max_copies:
        return False
    return not problem.fixed_order or firsts == sorted(firsts)


class Clock:
    """How much of the limits is used up. Starts when it is made."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.started = time.monotonic()
        self.iterations = 0

    def seconds(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self.started

    def left(self) -> float:
        """Seconds until the limit."""
        return self.limits.seconds - self.seconds()

    def used(self) -> float:
        """Share of the budget used: of iterations if they are limited, else of seconds."""
        if self.limits.iterations is not None:
            return self.iterations / max(self.limits.iterations, 1)
        return self.seconds() / max(self.limits.seconds, 1e-9)

    def over(self) -> bool:
        """Whether to stop now."""
        stop = self.limits.stop
        return self.used() >= 1.0 or self.left() <= 0.0 or (stop is not None and stop())


@dataclass(frozen=True, slots=True)
class Cooling:
    """Temperatures in units of the time of an average op; `copying` is the share of moves that
    recompute; `penalty` the first price of a target's worth of excess at one step."""

    hot: float = 1.0
    cold: float = 0.01
    copying: float = 0.6
    penalty: float = 5.0
    up: float = 1.001
    down: float = 0.9995
    spike: float = 15.0
    idle_firsts: bool = False


class Engine:
    """The compiled search with its arrays. `best` is what it found."""

    def __init__(self, problem: Problem, start: Score, clock: Clock, cooling: Cooling) -> None:
        from onnxremat.planners import _anneal

        self._kernels = _anneal
        self.problem, self.best, self.clock, self.cooling = problem, start, clock, cooling
        self.flat = flatten(problem.graph, problem.rules)
        ops = len(problem.graph.ops)
        slots = max(len(start.schedule), ops) * 2 + min(2 * ops, 20_000) + 400
        self.state = make_state(self.flat, slots)
        self.chunk = max(200, 4_000_000 // (ops + 200))
        order_rule = IDLE_FIRSTS if cooling.idle_firsts else int(problem.fixed_order)
        self.rule = np.array([problem.max_copies or NO_LIMIT, order_rule], dtype=np.int64)
        time_unit = max(problem.graph.total_cost() / max(ops, 1), 1e-9)
        self.dial = np.array(
            [
                1.0, 1.0, cooling.penalty, time_unit, cooling.copying,
                cooling.up, cooling.down, cooling.spike,
            ]
        )  # fmt: skip
        self.current = start
        self.chunks = 0

    def cycle(self, share: float) -> None:
        """Cool once from hot to cold, from the best schedule, over a share of the limits."""
        self.current = self.best
        begin = self.clock.used()
        hot, cold = self.cooling.hot, self.cooling.cold
        while not self.clock.over() and not self.done():
            phase = (self.clock.used() - begin) / share
            if phase >= 1.0:
                return
            self.dial[0] = self.dial[1] = hot * (cold / hot) ** phase
            self._run_chunk()

    def done(self) -> bool:
        """Whether nothing better can exist: the budget is met in the time of one pass."""
        budget = self.problem.budget_bytes
        if budget is None:
            return False
        one_pass = self.problem.graph.total_cost()
        return self.best.peak_bytes <= budget and self.best.time_cost == one_pass

    def _target(self) -> int:
        budget = self.problem.budget_bytes
        return int(self.best.peak_bytes * 0.985) if budget is None else budget

    def _run_chunk(self) -> None:
        iterations = self.chunk
        if self.clock.limits.iterations is not None:
            iterations = min(iterations, self.clock.limits.iterations - self.clock.iterations)
        steps = self._array(self.current.schedule)
        best = self._array(self.best.schedule)
        tally = np.array(
            [
                len(self.current.schedule), len(self.best.schedule),
                self.best.time_cost, self.best.peak_bytes,
                self.problem.budget_bytes is None, 0,
            ],
            dtype=np.int64,
        )  # fmt: skip
        self.state.total[TARGET] = self._target()
        seed = (self.clock.limits.seed * 1_000_003 + self.chunks) % (1 << 32)
        self._kernels.anneal(
            self.flat, self.state, steps, best, self.rule, tally, self.dial, iterations, seed
        )
        self.chunks += 1
        self.clock.iterations += iterations
        self.current = Score(_schedule(steps, tally[0]), 0, 0)
        found = Score(_schedule(best, tally[1]), int(tally[3]), int(tally[2]))
        if found.better_than(self.best, self.problem.budget_bytes):
            self.best = found
            report(self.clock, found)

    def _array(self, schedule: Schedule) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        steps = np.zeros(self.state.slot.shape[1], dtype=np.int64)
        steps[: len(schedule)] = schedule.steps
        return steps


def _schedule(steps: np.ndarray[tuple[int], np.dtype[np.int64]], count: int) -> Schedule:
    return Schedule(tuple(steps[:count].tolist()))


def report(clock: Clock, found: Score) -> None:
    """Tell the caller about a better plan."""
    if clock.limits.on_progress is not None:
        clock.limits.on_progress(Progress(clock.seconds(), found.peak_bytes, found.time_cost))
