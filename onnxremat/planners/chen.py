"""Recomputation of a training graph in segments of equal length.

Source: Chen, Xu, Zhang, Guestrin 2016, "Training deep nets with sublinear memory cost", section 3:
the chain of n stages is cut into segments, of each only the input is stored, and its forward is
run again before its backward. With sqrt(n) segments both parts of the memory are O(sqrt(n)).
Deviation: the last segment is not run again.
"""

import math
from itertools import pairwise

from onnxremat.plan import Limits, Plan, Problem
from onnxremat.planners._chain import Kind, Operation, Operations
from onnxremat.planners._stages import (
    Chooser,
    chains,
    described,
    halving,
    plan_training,
    schedule_of,
)
from onnxremat.training import TrainingSplit

MOST_STAGES = 500


def chen(problem: Problem, limits: Limits) -> Plan:
    """Segments, of the number that is best. Every number is tried, sqrt(n) first."""
    return plan_training(problem, limits, "chen", _best_number)


def chen_sqrt(problem: Problem, limits: Limits) -> Plan:
    """sqrt(n) segments of sqrt(n) stages."""
    return plan_training(problem, limits, "chen_sqrt", _square_root)


def segments(stages: int, count: int) -> Operations:
    """The sequence for so many segments, whose lengths differ by one at most."""
    cuts = [stages * k // count for k in range(count + 1)]
    result: list[Operation] = []
    parts = list(pairwise(cuts))
    for low, high in parts[:-1]:
        result.append(Operation(Kind.FORWARD_KEEP, low))
        result += [Operation(Kind.FORWARD_NONE, i) for i in range(low + 1, high)]
    for low, high in reversed(parts):
        result += [Operation(Kind.FORWARD_ALL, i) for i in range(low, high)]
        result += [Operation(Kind.BACKWARD, i) for i in reversed(range(low, high))]
    return tuple(result)


def _square_root(split: TrainingSplit, chooser: Chooser) -> str:
    return _try(split, chooser, every=False)


def _best_number(split: TrainingSplit, chooser: Chooser) -> str:
    return _try(split, chooser, every=True)


def _try(split: TrainingSplit, chooser: Chooser, *, every: bool) -> str:
    found = chains(split, chooser, MOST_STAGES)
    for stages in found:
        n = len(stages.forward)
        counts = [max(1, round(math.sqrt(n)))]
        if every:
            counts += [i + 1 for i in halving(n)]
        for count in counts:
            if chooser.over():
                break
            sequence = segments(n, count)
            chooser.show(schedule_of(stages, sequence, chooser.problem.max_copies))
    return described(found)
