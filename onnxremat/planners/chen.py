"""Recomputation of a training graph in segments of equal length.

Source: Chen, Xu, Zhang, Guestrin 2016, "Training deep nets with sublinear memory cost", section 3:
the chain of n stages is cut into segments, of each only the input is stored, and its forward is
run again before its backward. With sqrt(n) segments both parts of the memory are O(sqrt(n)).
Deviation: the last segment is not run again.
"""

import math
from collections.abc import Iterator
from functools import partial
from itertools import pairwise

from onnxremat.core.problem import Limits, Plan, Problem
from onnxremat.core.training import TrainingSplit
from onnxremat.planners.chains.chain_model import ChainStep, Operation, Operations
from onnxremat.planners.chains.chain_stages import Chooser, halving, plan_training, show_all

MOST_STAGES = 500


def chen(problem: Problem, limits: Limits) -> Plan:
    """Segments, of the number that is best. Every number is tried, sqrt(n) first."""
    return plan_training(problem, limits, "chen", partial(_search, every=True))


def chen_sqrt(problem: Problem, limits: Limits) -> Plan:
    """sqrt(n) segments of sqrt(n) stages."""
    return plan_training(problem, limits, "chen_sqrt", partial(_search, every=False))


def _search(split: TrainingSplit, chooser: Chooser, *, every: bool) -> str:
    sequences = every_number if every else square_root
    return show_all(split, chooser, MOST_STAGES, sequences)


def square_root(stages: int) -> Iterator[Operations]:
    """The sequence for sqrt(n) segments."""
    yield segments(stages, max(1, round(math.sqrt(stages))))


def every_number(stages: int) -> Iterator[Operations]:
    """The sequences for every number of segments, the widest differences first."""
    yield from square_root(stages)
    for index in halving(stages):
        yield segments(stages, index + 1)


def segments(stages: int, count: int) -> Operations:
    """The sequence for so many segments, whose lengths differ by one at most."""
    cuts = [stages * k // count for k in range(count + 1)]
    result: list[Operation] = []
    parts = list(pairwise(cuts))
    for low, high in parts[:-1]:
        result.append(Operation(ChainStep.FORWARD_KEEP, low))
        result += [Operation(ChainStep.FORWARD_NONE, i) for i in range(low + 1, high)]
    for low, high in reversed(parts):
        result += [Operation(ChainStep.FORWARD_ALL, i) for i in range(low, high)]
        result += [Operation(ChainStep.BACKWARD, i) for i in reversed(range(low, high))]
    return tuple(result)
