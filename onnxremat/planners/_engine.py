"""What drives the compiled search: starts, cooling cycles, clocks and progress."""

import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from onnxremat.graph import Graph, Op, Tensor
from onnxremat.memory import MemoryRules, profile
from onnxremat.plan import Limits, Problem, Progress
from onnxremat.planners._flat import Floats, Ints, flatten
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


@lru_cache(maxsize=1)
def _first_compilation() -> float:
    begin = time.monotonic()
    from onnxremat.planners import _anneal, _jit

    cached = _jit.is_cached(_anneal.anneal)
    graph = Graph((Tensor("t", (), "float", 1),), (Op("v", "v", (), (0,)),), (), (0,))
    flat = flatten(graph, MemoryRules())
    steps, tally = np.zeros(1, dtype=np.int64), np.array([1, 1, 1, 1, 0], dtype=np.int64)
    rule = np.array([1, 0], dtype=np.int64)
    _anneal.anneal(
        flat, make_state(flat, 4), steps, steps.copy(), rule, tally, np.ones(8), 0, 0
    )
    return 0.0 if cached else time.monotonic() - begin


class Clock:
    """How much of the limits is used up. Starts when it is made.

    Compiling the kernels, once per machine, does not count.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        begin = time.monotonic()
        self.started = begin + _first_compilation()
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
    gain: float = 6.0
    relax: float = 0.5
    spike: float = 15.0
    idle_firsts: bool = False


class Engine:
    """The compiled search with its arrays. `best` is the best it found for its last target."""

    def __init__(self, problem: Problem, start: Score, clock: Clock, cooling: Cooling) -> None:
        from onnxremat.planners import _anneal

        self._anneal = _anneal.anneal
        self.problem, self.best, self.clock, self.cooling = problem, start, clock, cooling
        self.flat = flatten(problem.graph, problem.rules)
        ops = len(problem.graph.ops)
        slots = max(len(start.schedule), ops) * 2 + min(2 * ops, 20_000) + 400
        self.state = make_state(self.flat, slots)
        self.chunk = max(200, 4_000_000 // (ops + 200))
        order_rule = IDLE_FIRSTS if cooling.idle_firsts else int(problem.fixed_order)
        self.rule = np.array([problem.max_copies or NO_LIMIT, order_rule], dtype=np.int64)
        self.time_unit = max(problem.graph.total_cost() / max(ops, 1), 1e-9)
        self.chunks = 0

    def cycle(self, share: float, target: int, *, until_met: bool = False) -> None:
        """Cool once from hot to cold, from the best schedule, over a share of the limits.

        Ends early when the target is met in the time of one pass, or at all with `until_met`.
        """
        begin, first = self.clock.used(), self.chunks
        cooling = self.cooling
        dial = np.array(
            [
                1.0, 1.0, cooling.penalty, self.time_unit, cooling.copying,
                1.0, 1.0, cooling.spike,
            ]
        )  # fmt: skip
        steps = self._array(self.best.schedule)
        best = self._array(self.best.schedule)
        count = len(self.best.schedule)
        tally = np.array(
            [count, count, self.best.time_cost, self.best.peak_bytes, 0], dtype=np.int64
        )
        while not self.clock.over() and not self._met(target, until_met):
            phase = (self.clock.used() - begin) / share
            if phase >= 1.0:
                return
            dial[0] = dial[1] = cooling.hot * (cooling.cold / cooling.hot) ** phase
            rise = cooling.gain * (phase / (self.chunks - first) if self.chunks > first else 0.0)
            dial[5] = math.exp(rise * 100 / self.chunk)
            dial[6] = dial[5] ** -cooling.relax
            self._run_chunk(target, steps, best, tally, dial)

    def _met(self, target: int, at_all: bool) -> bool:
        one_pass = self.problem.graph.total_cost()
        return self.best.peak_bytes <= target and (at_all or self.best.time_cost == one_pass)

    def _run_chunk(
        self, target: int, steps: Ints, best: Ints, tally: Ints, dial: Floats
    ) -> None:
        iterations = self.chunk
        if self.clock.limits.iterations is not None:
            iterations = min(iterations, self.clock.limits.iterations - self.clock.iterations)
        self.state.total[TARGET] = target
        seed = (self.clock.limits.seed * 1_000_003 + self.chunks) % (1 << 32)
        self._anneal(
            self.flat, self.state, steps, best, self.rule, tally, dial, iterations, seed
        )
        self.chunks += 1
        self.clock.iterations += iterations
        found = Score(self.best.schedule, int(tally[3]), int(tally[2]))
        if found.better_than(self.best, target):
            schedule = Schedule(tuple(best[: tally[1]].tolist()))
            self.best = Score(schedule, found.peak_bytes, found.time_cost)
            report(self.clock, self.best)

    def _array(self, schedule: Schedule) -> Ints:
        steps = np.zeros(self.state.slot.shape[1], dtype=np.int64)
        steps[: len(schedule)] = schedule.steps
        return steps


def report(clock: Clock, found: Score) -> None:
    """Tell the caller about a better plan."""
    if clock.limits.on_progress is not None:
        clock.limits.on_progress(Progress(clock.seconds(), found.peak_bytes, found.time_cost))


FIRST_STEP = 0.25


def lower_peak(engine: Engine, bound: int, until: float) -> None:
    """Lower the best peak towards `bound` until that share of the limits is used.

    Each target lies a step, at first FIRST_STEP, of the way from the best peak to the bound; a
    missed one halves the step and lengthens the next cooling cycle.
    """
    step, share = FIRST_STEP, 0.02
    while engine.best.peak_bytes > bound and not engine.clock.over():
        left = until - engine.clock.used()
        if left <= 0.0:
            return
        gap = engine.best.peak_bytes - bound
        target = engine.best.peak_bytes - max(1, int(step * gap))
        engine.cycle(min(share, left), target, until_met=True)
        if engine.best.peak_bytes > target:
            step, share = step / 2, share * 1.4
