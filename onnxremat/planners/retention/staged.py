"""Sequences in stages: stage k ends with the first execution of op k, in the given order."""

from onnxremat.core.schedule import Schedule

BETWEEN = "between two of them earlier ops in that order, each once"
"""Of recomputations, for the scope of a plan: what a staged sequence may hold."""


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
