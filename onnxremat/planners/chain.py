"""Optimal recomputation of a training graph seen as a chain of stages.

Source: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2024, "Optimal re-materialization
strategies for heterogeneous chains": C_MP, and for short chains C_FL too (see `_chain_dp`). The
forward is cut into stages (`onnxremat.training`), once at its articulation points, as in the paper,
and once wherever the values that cross can stand for one.

The chain model is coarser than the graph: it counts a value that crosses several boundaries once
for each, and knows nothing of in-place reuse. So the model's limit is searched: its sequences for
all limits, from one table, become schedules of the real ops, and the one whose real peak meets the
budget in the least time is taken (without a budget: the one of the smallest real peak).
"""

from collections.abc import Iterator, Sequence

import numpy as np

from onnxremat.plan import Limits, Plan, Problem
from onnxremat.planners._chain import Chain, Kind, Operation, Operations, simulate
from onnxremat.planners._chain_dp import SLOTS, FloatingTable, PersistentTable
from onnxremat.planners._stages import (
    Chooser,
    chain_of_stages,
    chains,
    described,
    halving,
    plan_training,
    schedule_of,
)
from onnxremat.training import Stages, TrainingSplit

MOST_STAGES = 200
"""Longer chains are merged to it: a table of 200 stages and 500 slots takes a second."""

FLOATING_STAGES = 30
FLOATING_SLOTS = 100
"""C_FL is used up to so many stages, with so many slots."""


def chain(problem: Problem, limits: Limits) -> Plan:
    """The best schedule of the sequences that C_MP and C_FL find, for any limit of the model.

    A graph that is no training graph keeps its order; `Plan.scope` then says why, and else what
    the chain is and which part of the forward is none. An iteration is one schedule measured.
    O(stages ** 3 * slots), and O(steps + reads) for each schedule measured.
    """
    return plan_training(problem, limits, "chain", _search)


def _search(split: TrainingSplit, chooser: Chooser) -> str:
    found = chains(split, chooser, MOST_STAGES)
    for stages in found:
        for sequences in _families(chain_of_stages(stages, chooser.problem.rules), chooser):
            _try_all(chooser, stages, sequences)
    return described(found)


def _families(chain: Chain, chooser: Chooser) -> Iterator["_Sequences"]:
    """The sequences of each dynamic program, unless the time is over."""
    if chooser.over():
        return
    limit = max(simulate(chain, store_all(chain.stages)).peak_bytes, 1)
    yield _Sequences(PersistentTable(chain, limit, SLOTS))
    if chain.stages <= FLOATING_STAGES and not chooser.over():
        yield _Sequences(FloatingTable(chain, limit, FLOATING_SLOTS))


def store_all(stages: int) -> Operations:
    """The sequence without recomputation."""
    forward = [Operation(Kind.FORWARD_ALL, i) for i in range(stages)]
    return (*forward, *(Operation(Kind.BACKWARD, i) for i in reversed(range(stages))))


class _Sequences(Sequence[Operations]):
    """The sequences that a table gives for its limits, from the fastest to the smallest."""

    def __init__(self, table: PersistentTable | FloatingTable) -> None:
        self.table = table
        spans = table.makespans()
        less = spans < np.concatenate(([np.inf], spans[:-1]))
        self.slots = [int(m) for m in np.flatnonzero(less)][::-1]

    def __len__(self) -> int:
        return len(self.slots)

    def __getitem__(self, index: int) -> Operations:  # type: ignore[override]
        sequence = self.table.sequence(self.slots[index])
        assert sequence is not None, "makespans and sequences come from one table"
        return sequence


def _try_all(chooser: Chooser, stages: Stages, sequences: Sequence[Operations]) -> None:
    """Show the chooser schedules of all sequences that may still help, in the order of halving."""
    most = chooser.problem.max_copies
    slowest = len(sequences)
    for index in halving(len(sequences)):
        if chooser.over():
            return
        if index >= slowest:
            continue
        found = chooser.show(schedule_of(stages, sequences[index], most))
        if chooser.meets(found):
            slowest = index
