"""Optimal recomputation of a training graph seen as a chain of stages.

Source: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2024, "Optimal re-materialization
strategies for heterogeneous chains": C_MP, and for short chains C_FL too (see `_chain_dp`). The
forward is cut into stages (`onnxremat.training`), once at its articulation points, as in the paper,
and once wherever the values that cross can stand for one.

The chain model is coarser than the graph: it counts a value that crosses several boundaries once
for each, and knows nothing of in-place reuse, nor of values held for the backward of an earlier
stage than theirs. So the model's limit is searched: its sequences for all limits, from one table,
become schedules of the real ops, and the one whose real peak meets the budget in the least time is
taken (without a budget: the one of the smallest real peak). Where the backward of one stage sets
the model's smallest peak, the model cannot tell leaner sequences from others; so all is done again
with a model in which backward steps need nothing of their own.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

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

ROUNDING = 1e-6
"""By no more than this share C_FL counts as equal: a table of C_MP has rounded times, by about as
much."""

FIRST_ATTEMPTS = 3
"""Sequences of a table that are tried before the next table is made, which may take long."""

NEVER = 1e300
"""More than any makespan."""


def chain(problem: Problem, limits: Limits) -> Plan:
    """The best schedule of the sequences that C_MP and C_FL find, for any limit of the model.

    A graph that is no training graph keeps its order; `Plan.scope` then says why, and else what
    the chain is and which part of the forward is none. An iteration is one schedule measured.
    O(stages ** 3 * slots), and O(steps + reads) for each schedule measured.
    """
    return plan_training(problem, limits, "chain", _search)


def _search(split: TrainingSplit, chooser: Chooser) -> str:
    found = chains(split, chooser, MOST_STAGES)
    models = []
    for stages in sorted(found, key=lambda stages: len(stages.forward)):
        model = chain_of_stages(stages, chooser.problem.rules)
        models += [(stages, model), (stages, without_gradients(model))]
    for make in (_persistent, _floating):
        attempts = []
        for stages, model in models:
            sequences = None if chooser.over() else make(model)
            if sequences is not None:
                attempts.append(_attempts(chooser, stages, sequences))
                deque(islice(attempts[-1], FIRST_ATTEMPTS), maxlen=0)
        while attempts and not chooser.over():
            attempts = [one for one in attempts if next(one, False)]
    return described(found)


def _limit_bytes(chain: Chain) -> int:
    """What keeping everything takes: no more is of use."""
    return max(simulate(chain, store_all(chain.stages)).peak_bytes, 1)


def _persistent(chain: Chain) -> "_Sequences | None":
    return _Sequences(PersistentTable(chain, _limit_bytes(chain), SLOTS))


def _floating(chain: Chain) -> "_Sequences | None":
    """The sequences of C_FL, unless the chain is too long or they are none the faster."""
    if chain.stages > FLOATING_STAGES:
        return None
    limit = _limit_bytes(chain)
    table = FloatingTable(chain, limit, FLOATING_SLOTS)
    persistent = PersistentTable(chain, limit, FLOATING_SLOTS).makespans()
    faster = table.makespans() < np.minimum(persistent, NEVER) * (1 - ROUNDING)
    return _Sequences(table) if faster.any() else None


def without_gradients(chain: Chain) -> Chain:
    """The chain as if backward steps held no more than what the forward saved for them."""
    nothing = (0,) * chain.stages
    return replace(chain, gradient_bytes=(0, *nothing), backward_overhead_bytes=nothing)


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


def _attempts(chooser: Chooser, stages: Stages, sequences: Sequence[Operations]) -> Iterator[bool]:
    """Show the chooser the sequences that may still help, in the order of halving; true after
    each."""
    slowest = len(sequences)
    for index in halving(len(sequences)):
        if index >= slowest or chooser.over():
            continue
        found = chooser.show(schedule_of(stages, sequences[index], chooser.problem.max_copies))
        if chooser.meets(found):
            slowest = index
        yield True
