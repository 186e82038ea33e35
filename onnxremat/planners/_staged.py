"""Sequences in stages: stage k ends with the first execution of op k, in the given order."""

from onnxremat.plan import Problem
from onnxremat.schedule import Schedule, without_unread


def staged(schedule: Schedule) -> Schedule | None:
    """The schedule with the recomputations of each stage ascending and once; None if its first
    executions are not in the given order. O(steps log steps)."""
    steps: list[int] = []
    again: set[int] = set()
    count = 0
    for v in schedule.steps:
        if v > count:
            return None
        if v < count:
            again.add(v)
            continue
        steps += [*sorted(again), v]
        again.clear()
        count += 1
    return Schedule((*steps, *sorted(again)))


def without_idle(problem: Problem, schedule: Schedule) -> Schedule:
    """The schedule without executions that nobody reads, nor anybody through them.

    With a fixed order first executions stay, read or not. The peak and the time can only fall.
    O(steps + reads).
    """
    graph = problem.graph
    if not problem.fixed_order:
        return without_unread(graph, schedule)
    first: dict[int, int] = {}
    for step, v in enumerate(schedule.steps):
        first.setdefault(v, step)
    needed = set(graph.outputs)
    kept: list[int] = []
    for step in reversed(range(len(schedule))):
        op = graph.ops[schedule.steps[step]]
        if needed.isdisjoint(op.outputs) and first[schedule.steps[step]] != step:
            continue
        kept.append(schedule.steps[step])
        needed.difference_update(op.outputs)
        needed.update(op.inputs)
    return Schedule(tuple(reversed(kept)))
