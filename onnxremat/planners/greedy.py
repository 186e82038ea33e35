"""Greedy rematerialization as compilers do it: the baseline of the published methods.

Source: Kumar et al. 2019, "Efficient Rematerialization for Deep Networks", section 4 (GreedyRemat),
which describes the pass HloRematerialization of XLA. Walk the order; while the op at hand holds
more than the limit, give up one value that is live across it and recompute it before its next
reader; if nothing helps, go on.

As in XLA, where no single op can be recomputed from what is live, blocks of 2, 4 and 8 ops are
tried. Deviations: the value is the one that saves the most bytes for its time, not the most bytes;
a block is an op with those of its predecessors whose values are gone, instead of consecutive ops,
so that nothing before the op at hand is held longer; a recomputed value is not given up before it
was read, which ends the walk; without a budget the limit is lowered by bisection. O(n) for each
recomputation and limit, n the length of the sequence.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from onnxremat.core.bounds import peak_bound
from onnxremat.core.deadline import Deadline
from onnxremat.core.graph import TensorKind
from onnxremat.core.memory import profile
from onnxremat.core.problem import Limits, Plan, Problem, make_plan
from onnxremat.core.schedule import Schedule, ScheduleError, check
from onnxremat.planners.search.engine import Score, best_start, report, score

BLOCKS = (1, 2, 4, 8)
"""The most ops recomputed for one value, tried in turn."""

BISECTIONS = 12

LONGEST = 8
"""The walk gives up when the sequence is this many times as long as one pass."""


def greedy(problem: Problem, limits: Limits) -> Plan:
    """A plan by one walk over the best start; without a budget, by some walks at lower limits."""
    bound = peak_bound(problem.graph, problem.rules).nbytes
    start = best_start(problem)
    walk = _GreedyWalk(problem, Deadline(limits))
    best = start
    if problem.budget_bytes is not None and bound <= problem.budget_bytes < start.peak_bytes:
        best = walk.better(best, start, problem.budget_bytes)
    low, high = bound, start.peak_bytes
    for _ in range(BISECTIONS if problem.budget_bytes is None else 0):
        if low >= high or walk.deadline.over():
            break
        limit = (low + high) // 2
        best = walk.better(best, start, limit)
        low, high = (
            (low, min(limit, best.peak_bytes))
            if best.peak_bytes <= limit
            else (
                limit + 1,
                min(high, best.peak_bytes),
            )
        )
    return make_plan(problem, best.schedule, "greedy", peak_bound_bytes=bound)


@dataclass(frozen=True, slots=True)
class _GreedyChoice:
    """The ops to recompute, ascending, before step `place`; what that saves and costs."""

    block: tuple[int, ...]
    place: int
    saved_bytes: int
    cost: int


class _GreedyWalk:
    """Walks over a sequence that grows while it is walked; a change is an iteration."""

    def __init__(self, problem: Problem, deadline: Deadline) -> None:
        self.problem, self.deadline = problem, deadline
        self.graph = problem.graph
        self.size = [problem.rules.nbytes(t) for t in problem.graph.tensors]

    def better(self, best: Score, start: Score, limit_bytes: int) -> Score:
        """The better of `best` and a walk from `start` at a limit."""
        found = score(self.problem, self._at(start.schedule, limit_bytes))
        if not found.better_than(best, self.problem.budget_bytes):
            return best
        report(self.deadline, found)
        return found

    def _at(self, schedule: Schedule, limit_bytes: int) -> Schedule:
        longest = LONGEST * len(schedule)
        live = profile(self.graph, schedule, self.problem.rules).live_bytes
        step = 0
        while step < len(schedule) and len(schedule) < longest:
            while live[step] > limit_bytes and not self.deadline.over():
                changed = self._relieved(schedule, step, live[step])
                if changed is None:
                    break
                schedule, live = changed
                self.deadline.count(1)
            step += 1
        return schedule

    def _relieved(
        self, schedule: Schedule, step: int, held_bytes: int
    ) -> tuple[Schedule, tuple[int, ...]] | None:
        """The sequence with the best recomputation that lowers what a step holds, and what each
        of its steps holds."""
        reads = _Reads(self.problem, schedule)
        for most in BLOCKS:
            choices = list(self._choices(reads, step, most))
            choices.sort(key=lambda c: (-c.saved_bytes / max(c.cost, 1e-9), c.place, c.block))
            for choice in choices:
                steps = schedule.steps
                steps = (*steps[: choice.place], *choice.block, *steps[choice.place :])
                longer = Schedule(steps)
                try:
                    check(self.graph, longer, idle_firsts=self.problem.fixed_order)
                except ScheduleError:
                    continue  # It would leave an execution that nobody reads.
                live = profile(self.graph, longer, self.problem.rules).live_bytes
                if live[step] < held_bytes:
                    return longer, live
        return None

    def _choices(self, reads: "_Reads", step: int, most: int) -> Iterator[_GreedyChoice]:
        for made in range(step):
            v = reads.steps[made]
            across = [t for t in self.graph.ops[v].outputs if reads.crosses(made, t, step)]
            saved = sum(self.size[t] for t in across if not reads.reads_at(made, t, step))
            if not saved or not reads.read_before(made, step):
                continue
            block: set[int] = set()
            if self._collect(reads, v, step, most, block):
                place = min(reads.next_read(made, t, step) for t in across)
                cost = sum(self.graph.ops[u].cost for u in block)
                yield _GreedyChoice(tuple(sorted(block)), place, saved, cost)

    def _collect(self, reads: "_Reads", v: int, step: int, most: int, block: set[int]) -> bool:
        """Add to `block` what must run for v to run again, from what is live at a step."""
        if v in block:
            return True
        op, limit = self.graph.ops[v], self.problem.max_copies
        if len(block) >= most or not op.recomputable or op.eager:
            return False
        if limit is not None and reads.runs[v] >= limit:
            return False
        block.add(v)
        return all(
            reads.is_live(t, step)
            or self._collect(reads, self.graph.producer[t], step, most, block)
            for t in op.inputs
            if self.graph.tensors[t].kind is TensorKind.ACTIVATION
        )


class _Reads:
    """Who reads which instance of a sequence. O(steps + reads) to make."""

    def __init__(self, problem: Problem, schedule: Schedule) -> None:
        self.graph, self.steps = problem.graph, schedule.steps
        self.runs = [0] * len(self.graph.ops)
        self.by: dict[tuple[int, int], list[int]] = {}
        self.made: dict[int, list[int]] = {}
        for step, v in enumerate(self.steps):
            for t in dict.fromkeys(self.graph.ops[v].inputs):
                if t in self.made:
                    self.by[self.made[t][-1], t].append(step)
            for t in self.graph.ops[v].outputs:
                self.made.setdefault(t, []).append(step)
                self.by[step, t] = []
            self.runs[v] += 1
        for t in self.graph.outputs:
            if t in self.made:
                self.by[self.made[t][-1], t].append(len(self.steps))

    def crosses(self, made: int, t: int, step: int) -> bool:
        """Whether the instance of t made at a step is read after another one."""
        reading = self.by[made, t]
        return bool(reading) and reading[-1] > step

    def reads_at(self, made: int, t: int, step: int) -> bool:
        """Whether that step reads the instance."""
        return step in self.by[made, t]

    def next_read(self, made: int, t: int, step: int) -> int:
        """The first step after another one that reads the instance; the length for the end."""
        return next(r for r in self.by[made, t] if r > step)

    def read_before(self, made: int, step: int) -> bool:
        """Whether an output of an execution was read up to a step."""
        outputs = self.graph.ops[self.steps[made]].outputs
        return any(self.by[made, t] and self.by[made, t][0] <= step for t in outputs)

    def is_live(self, t: int, step: int) -> bool:
        """Whether the instance that a step could read is held during that step."""
        before = [made for made in self.made[t] if made < step]
        return bool(before) and bool(self.by[before[-1], t]) and self.by[before[-1], t][-1] >= step
