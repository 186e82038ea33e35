"""A schedule: the sequence in which ops are executed, repetitions being recomputations.

When tensors are freed is never stored: it follows from the sequence. Executing an op makes a
fresh *instance* of each of its outputs, and a reader reads the most recent instance of a tensor
(Kumar et al. 2019, section 2.1). `check` knows nothing about how a schedule was found.

Three ops, each of 8 bytes; the last one reads what both others make:

>>> from onnxremat.core.graph import Op, Tensor
>>> tensors = tuple(Tensor(name, (2,), "float", 8) for name in "abc")
>>> ops = (Op("A", "Op", (), (0,)), Op("B", "Op", (0,), (1,)), Op("C", "Op", (0, 1), (2,)))
>>> graph = Graph(tensors, ops, inputs=(), outputs=(2,))
>>> given_order(graph)
Schedule(steps=(0, 1, 2))

A again before C, so that its first instance is held for B alone:

>>> again = Schedule((0, 1, 0, 2))
>>> check(graph, again)
>>> again.recomputations(), again.cost(graph)
(1, 4)
>>> [(one.tensor, one.step, one.last_read, one.pinned) for one in instances(graph, again)]
[(0, 0, 1, False), (1, 1, 3, False), (0, 2, 3, False), (2, 3, -1, True)]
>>> check(graph, Schedule((0, 2, 1)))
Traceback (most recent call last):
onnxremat.core.schedule.ScheduleError: step 1: 'C' reads 'b' before it is made
>>> without_unread(graph, Schedule((0, 1, 2, 0)))
Schedule(steps=(0, 1, 2))
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from onnxremat.core.graph import Graph, TensorKind

NEVER = -1
"""The last reader of an instance that nobody reads."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Op indices in execution order. An index that stands again is a recomputation."""

    steps: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[int]:
        return iter(self.steps)

    def recomputations(self) -> int:
        """How many executions are repetitions."""
        return len(self.steps) - len(set(self.steps))

    def cost(self, graph: Graph) -> int:
        """The time of all executions, in the unit of `Op.cost`."""
        return sum(graph.ops[v].cost for v in self.steps)


@dataclass(frozen=True, slots=True)
class Instance:
    """One output of one execution.

    `last_read` is the step of its last reader, or NEVER. `pinned` marks the last instance of a
    graph output: it carries the output's name and lives to the end of the run.
    """

    tensor: int
    step: int
    last_read: int
    pinned: bool


class ScheduleError(ValueError):
    """A sequence that is not a schedule of its graph; the message says why."""


def given_order(graph: Graph) -> Schedule:
    """Every op once, in the order of the file."""
    return Schedule(tuple(range(len(graph.ops))))


def instances(graph: Graph, schedule: Schedule) -> tuple[Instance, ...]:
    """Every instance that the schedule makes, in the order of making.

    The schedule must be valid (see `check`). O(steps + reads).
    """
    latest: dict[int, int] = {}
    made: list[tuple[int, int]] = []
    last_read: list[int] = []
    for step, v in enumerate(schedule.steps):
        for t in graph.ops[v].inputs:
            if t in latest:
                last_read[latest[t]] = step
        for t in graph.ops[v].outputs:
            latest[t] = len(made)
            made.append((t, step))
            last_read.append(NEVER)
    pinned = {latest[t] for t in graph.outputs if t in latest}
    return tuple(
        Instance(t, step, last, i in pinned)
        for i, ((t, step), last) in enumerate(zip(made, last_read, strict=True))
    )


def check(graph: Graph, schedule: Schedule, *, idle_firsts: bool = False) -> None:
    """Raise ScheduleError, saying why, unless the schedule computes the graph.

    Checked: op indices exist; every op runs; every input has an instance when it is read; an op
    that must not be recomputed runs once; no execution of an op that runs more than once is useless
    (one of its outputs is read or is the instance that a graph output is taken from), except, with
    `idle_firsts`, first ones: formulations with a fixed order demand each in its place.
    O(steps + reads).
    """
    count = len(graph.ops)
    runs = [0] * count
    available: set[int] = set()
    for step, v in enumerate(schedule.steps):
        if not 0 <= v < count:
            raise ScheduleError(f"step {step} executes op {v}, but there are {count} ops")
        op = graph.ops[v]
        for t in op.inputs:
            tensor = graph.tensors[t]
            if tensor.kind is TensorKind.ACTIVATION and t not in available:
                raise ScheduleError(
                    f"step {step}: {op.name!r} reads {tensor.name!r} before it is made"
                )
        available.update(op.outputs)
        runs[v] += 1
        if runs[v] > 1 and not op.recomputable:
            raise ScheduleError(f"step {step}: {op.name!r} must not be executed again")
    for v, times in enumerate(runs):
        if times == 0:
            raise ScheduleError(f"op {graph.ops[v].name!r} is never executed")
    used_steps = {i.step for i in instances(graph, schedule) if i.pinned or i.last_read != NEVER}
    seen: set[int] = set()
    for step, v in enumerate(schedule.steps):
        excused = idle_firsts and v not in seen
        seen.add(v)
        if runs[v] > 1 and step not in used_steps and not excused:
            raise ScheduleError(
                f"step {step}: nobody reads this execution of {graph.ops[v].name!r}"
            )


def without_unread(graph: Graph, schedule: Schedule, *, idle_firsts: bool = False) -> Schedule:
    """The schedule without the repetitions that nobody reads, nor anybody through them.

    With `idle_firsts` first executions stay, read or not. What is left passes `check` if every op
    ran and every read had an instance before. The peak and the time can only fall.
    O(steps + reads), one pass from the end.
    """
    outputs = set(graph.outputs)
    first: dict[int, int] = {}
    for step, v in enumerate(schedule.steps):
        first.setdefault(v, step)
    needed = set(outputs)
    kept: list[int] = []
    alive: set[int] = set()
    for step in reversed(range(len(schedule))):
        v = schedule.steps[step]
        op = graph.ops[v]
        if idle_firsts:
            stays = first[v] == step
        else:
            unread_by_all = not any(graph.readers[t] or t in outputs for t in op.outputs)
            stays = unread_by_all and v not in alive
        if needed.isdisjoint(op.outputs) and not stays:
            continue
        alive.add(v)
        kept.append(v)
        needed.difference_update(op.outputs)
        needed.update(op.inputs)
    return Schedule(tuple(reversed(kept)))


def with_eager_ops(graph: Graph, schedule: Schedule, more: Collection[int] = ()) -> Schedule:
    """The schedule as a runtime executes it that starts `eager` ops, and `more`, as soon as it can.

    Each of them moves to right behind the step that makes its last input. It then reads the
    first instance of each, which is freed no later than before; repetitions that only it read go.
    O(steps + reads).
    """
    eager = {v for v, op in enumerate(graph.ops) if op.eager}.union(more)
    missing = {v: {t for t in graph.ops[v].inputs if graph.producer[t] >= 0} for v in eager}
    steps: list[int] = []

    def start(tensors: tuple[int, ...]) -> None:
        ready = [v for t in tensors for v in graph.readers[t] if v in missing]
        for v in ready:
            missing[v].difference_update(tensors)
        for v in sorted(set(ready)):
            if not missing[v]:
                del missing[v]
                steps.append(v)
                start(graph.ops[v].outputs)

    for v in sorted(missing):
        if not missing.get(v, True):
            del missing[v]
            steps.append(v)
            start(graph.ops[v].outputs)
    for v in schedule.steps:
        if v in eager:
            continue
        steps.append(v)
        start(graph.ops[v].outputs)
    return without_unread(graph, Schedule(tuple(steps)))
