"""Binomial checkpointing of a training graph.

Source: Griewank, Walther 2000, "Algorithm 799: revolve". With c snapshots and r runs of each stage
at most, binomial(c + r, c) stages can be reversed; the first snapshot is set so that both parts
of the chain keep to that. Optimal for stages of equal time and size, which those of a network are
not: that is why `chain` is better, and this one is here to compare. Every number of snapshots is
tried on the real graph.
"""

from collections.abc import Iterator
from math import comb

from onnxremat.core.problem import Limits, Plan, Problem
from onnxremat.core.training import TrainingSplit
from onnxremat.planners.chains.chain_model import ChainStep, Operation, Operations
from onnxremat.planners.chains.chain_stages import Chooser, halving, plan_training, show_all

MOST_STAGES = 200
"""Longer chains are merged: few snapshots make sequences of O(stages ** 2) operations."""


def revolve(problem: Problem, limits: Limits) -> Plan:
    """The binomial schedule with the number of snapshots that is best."""
    return plan_training(problem, limits, "revolve", _search)


def _search(split: TrainingSplit, chooser: Chooser) -> str:
    def sequences(stages: int) -> Iterator[Operations]:
        return (reversal(stages, index + 1) for index in halving(stages))

    return show_all(split, chooser, MOST_STAGES, sequences)


def reversal(stages: int, snapshots: int) -> Operations:
    """The sequence that reverses a chain with so many values stored at a time, a[0] included."""
    result: list[Operation] = []
    todo: list[tuple[int, int, int]] = [(0, stages, snapshots)]
    while todo:
        low, high, free = todo.pop()
        if high - low == 1:
            result += [Operation(ChainStep.FORWARD_ALL, low), Operation(ChainStep.BACKWARD, low)]
            continue
        middle = low + (high - low - 1 if free == 1 else first_snapshot(high - low, free))
        result.append(Operation(ChainStep.FORWARD_KEEP, low))
        result += [Operation(ChainStep.FORWARD_NONE, i) for i in range(low + 1, middle)]
        todo.append((low, middle, free))
        todo.append((middle, high, free - 1 if free > 1 else 1))
    return tuple(result)


def repetitions(stages: int, snapshots: int) -> int:
    """The least r so that binomial(snapshots + r, r) is at least the number of stages."""
    r = 0
    while comb(snapshots + r, r) < stages:
        r += 1
    return r


def first_snapshot(stages: int, snapshots: int) -> int:
    """Where the second of two or more snapshots is set: any place in a range is optimal."""
    r = repetitions(stages, snapshots)
    least = stages - comb(snapshots - 1 + r, r)
    if r > 1:
        least = max(least, comb(snapshots + r - 2, r - 2))
    return max(1, min(least, stages - 1))


def forward_steps(stages: int, snapshots: int) -> int:
    """How many forward runs a reversal takes beside the one before each backward (theorem 6.1)."""
    r = repetitions(stages, snapshots)
    return r * stages - comb(snapshots + r, r - 1) if r else 0
