"""What drives the compiled search: starts, cooling cycles and progress."""

import math
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module

import numpy as np

from onnxremat.core.deadline import ENDLESS, Deadline
from onnxremat.core.graph import Graph, Op, Tensor
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.problem import Problem, Progress
from onnxremat.core.schedule import Schedule, ScheduleError, check, given_order
from onnxremat.planners.search.arrays import TARGET, make_state
from onnxremat.planners.search.flat import Floats, Ints, flatten

NO_LIMIT = 1 << 60

ROOM = 1.6
"""Slots for each execution: a lifetime is as long as the slots that it spans, so few are faster,
but an insertion looks for a gap. More are made when a sequence outgrows them."""

STARTS_SHARE = 0.15
"""The share of the seconds after which no more starting points are made."""


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


def best_of(problem: Problem, schedules: Iterable[Schedule], deadline: Deadline = ENDLESS) -> Score:
    """The best of one or more valid schedules, the first of equals.

    Looks at no further ones behind the deadline.
    """
    best = None
    for schedule in schedules:
        deadline.evaluated(len(problem.graph.ops))
        other = score(problem, schedule)
        if best is None or other.better_than(best, problem.budget_bytes):
            best = other
        if deadline.over():
            break
    if best is None:
        raise ValueError("no schedules to choose from")
    return best


def admissible(problem: Problem, schedule: Schedule) -> bool:
    """Whether a start is a schedule of the problem: valid, within its copies, in its order."""
    try:
        check(problem.graph, schedule, idle_firsts=problem.fixed_order)
    except ScheduleError:
        return False
    steps = schedule.steps
    firsts = list(dict.fromkeys(steps))
    most = max(np.bincount(steps), default=0) if steps else 0
    if problem.max_copies is not None and most > problem.max_copies:
        return False
    return not problem.fixed_order or firsts == sorted(firsts)


def best_start(problem: Problem) -> Score:
    """The best of the given order and the admissible starts of the problem."""
    starts = (s for s in problem.starts if admissible(problem, s))
    return best_of(problem, (given_order(problem.graph), *starts))


BEAM = "onnxremat.planners.exact_order.beam"
"""Other kernels that searches use: by name, for what is there imports this module."""


@lru_cache(maxsize=1)
def load_kernels() -> bool:
    """Load the compiled kernels, or compile them; whether they were cached."""
    from onnxremat.planners.search import anneal as _anneal
    from onnxremat.system.compilation import is_ready

    _beam = import_module(BEAM)
    cached = is_ready(_anneal.anneal) and is_ready(_beam.extend)
    graph = Graph((Tensor("t", (), "float", 1),), (Op("v", "v", (), (0,)),), (), (0,))
    flat = flatten(graph, MemoryRules())
    steps, tally = np.zeros(1, dtype=np.int64), np.array([1, 1, 1, 1, 0], dtype=np.int64)
    rule = np.array([1, 0], dtype=np.int64)
    _anneal.anneal(flat, make_state(flat, 4), steps, steps.copy(), rule, tally, np.ones(8), 0, 0)
    _beam.beam_order(graph, MemoryRules(), 0, NO_LIMIT, deadline=ENDLESS)
    return cached


def make_ready(deadline: Deadline) -> None:
    """Make the kernels ready. Compiling them, once per machine, does not count."""
    begin, done_before = time.monotonic(), load_kernels.cache_info().currsize > 0
    cached = load_kernels()
    if not done_before and not cached:
        deadline.forgive(time.monotonic() - begin)


def usable_processors() -> int:
    """Processors that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


ITERATION_SECONDS, OP_SECONDS = 1e-6, 2e-9
"""Of work, counted for an iteration, and for each op beside that: lifetimes are longer."""


@dataclass(frozen=True, slots=True)
class Cooling:
    """How a cycle runs.

    `cold` is its last temperature, in times of an average op; `copying` the share of moves that
    recompute; `penalty` the first price of a target's worth of excess at one step. Over a cycle
    the price may rise by up to e^gain while there is excess, and fall by e^(gain x relax) while
    there is none. `spike` weighs the peak beside the excess.
    """

    cold: float = 0.01
    copying: float = 0.6
    penalty: float = 5.0
    gain: float = 6.0
    relax: float = 1.0
    spike: float = 15.0


class Engine:
    """The compiled search with its arrays. `best` is the best it found for its last target; it
    does not look for less time than `least_time`. Engines with another `stream` draw other numbers
    for the same seed."""

    def __init__(
        self,
        problem: Problem,
        start: Score,
        deadline: Deadline,
        cooling: Cooling,
        least_time: int = 0,
        stream: int = 0,
    ) -> None:
        from onnxremat.planners.search import anneal as _anneal

        self._anneal = _anneal.anneal
        self.problem, self.best, self.deadline, self.cooling = problem, start, deadline, cooling
        self.flat = flatten(problem.graph, problem.rules)
        ops = len(problem.graph.ops)
        self.state = make_state(self.flat, int(ROOM * max(len(start.schedule), ops)) + 200)
        self.chunk = max(200, 4_000_000 // (ops + 200))
        self.rule = np.array([problem.max_copies or NO_LIMIT, problem.fixed_order], dtype=np.int64)
        self.time_unit = max(problem.graph.total_cost() / max(ops, 1), 1e-9)
        self.iteration_seconds = ITERATION_SECONDS + ops * OP_SECONDS
        self.least_time = max(least_time, problem.graph.total_cost())
        self.stream = stream
        self.chunks = 0

    def cycle(
        self,
        share: float,
        target: int,
        *,
        start: Score | None = None,
        hot: float = 1.0,
        gain: float | None = None,
        until_met: bool = False,
    ) -> None:
        """Cool once, from `start` (None: the best schedule), over a share of the limits.

        `hot` is the first temperature, in times of an average op. Ends early when the target is
        met in the time of one pass, or at all with `until_met`.
        """
        begin, first = self.deadline.used(), self.chunks
        cooling = self.cooling
        gain = cooling.gain if gain is None else gain
        dial = np.array(
            [
                1.0, 1.0, cooling.penalty, self.time_unit, cooling.copying,
                1.0, 1.0, cooling.spike,
            ]
        )  # fmt: skip
        first_steps = (start or self.best).schedule
        steps = self._array(first_steps)
        best = self._array(self.best.schedule)
        tally = np.array(
            [
                len(first_steps),
                len(self.best.schedule),
                self.best.time_cost,
                self.best.peak_bytes,
                0,
            ],
            dtype=np.int64,
        )
        while not self.deadline.over() and not self.finished(target, until_met=until_met):
            phase = (self.deadline.used() - begin) / share
            if phase >= 1.0:
                return
            dial[0] = dial[1] = hot * (cooling.cold / hot) ** phase
            rise = gain * (phase / (self.chunks - first) if self.chunks > first else 0.0)
            dial[5] = math.exp(rise * 100 / self.chunk)
            dial[6] = dial[5] ** -cooling.relax
            self._run_chunk(target, steps, best, tally, dial)
            if ROOM * tally[0] > self.state.slot.shape[1]:
                self.state = make_state(self.flat, int(ROOM**2 * tally[0]))
                steps = self._array(Schedule(tuple(steps[: tally[0]].tolist())))
                best = self._array(self.best.schedule)
                tally[1] = len(self.best.schedule)

    def finished(self, target: int, *, until_met: bool = False) -> bool:
        """Whether the best meets the target, and, unless that is enough, in the least time."""
        fast = until_met or self.best.time_cost <= self.least_time
        return self.best.peak_bytes <= target and fast

    def _run_chunk(self, target: int, steps: Ints, best: Ints, tally: Ints, dial: Floats) -> None:
        iterations = self.chunk
        if self.deadline.limits.iterations is not None:
            iterations = min(iterations, self.deadline.limits.iterations - self.deadline.iterations)
        self.state.total[TARGET] = target
        seed = self.deadline.limits.seed * 1_000_003 + self.stream * 7_368_787 + self.chunks
        self._anneal(
            self.flat, self.state, steps, best, self.rule, tally, dial, iterations, seed % (1 << 32)
        )
        self.chunks += 1
        self.deadline.count(iterations)
        self.deadline.worked(iterations * self.iteration_seconds)
        found = Score(self.best.schedule, int(tally[3]), int(tally[2]))
        if found.better_than(self.best, target):
            schedule = Schedule(tuple(best[: tally[1]].tolist()))
            self.best = Score(schedule, found.peak_bytes, found.time_cost)
            report(self.deadline, self.best)

    def _array(self, schedule: Schedule) -> Ints:
        steps = np.zeros(self.state.slot.shape[1], dtype=np.int64)
        steps[: len(schedule)] = schedule.steps
        return steps


def report(deadline: Deadline, found: Score) -> None:
    """Tell the caller about a better plan, one thread at a time."""
    if deadline.limits.on_progress is not None:
        with deadline.lock:
            progress = Progress(deadline.passed_seconds, found.peak_bytes, found.time_cost)
            deadline.limits.on_progress(progress)


FIRST_STEP = 0.25
"""How far towards the lower bound the first target lies when the peak is lowered."""


GAIN_LOWERING = 12.0
"""`Cooling.gain` then: time matters less than the peak."""


def lower_peak(engine: Engine, bound: int, until: float) -> None:
    """Lower the best peak towards `bound` until that share of the limits is used.

    Each target lies a step, at first FIRST_STEP, of the way from the best peak to the bound; a
    missed one halves the step and lengthens the next cooling cycle.
    """
    step, share = FIRST_STEP, 0.02
    while engine.best.peak_bytes > bound and not engine.deadline.over():
        left = until - engine.deadline.used()
        if left <= 0.0:
            return
        gap = engine.best.peak_bytes - bound
        target = engine.best.peak_bytes - max(1, int(step * gap))
        engine.cycle(min(share, left), target, hot=1.0, gain=GAIN_LOWERING, until_met=True)
        if engine.best.peak_bytes > target:
            step, share = step / 2, share * 1.4
