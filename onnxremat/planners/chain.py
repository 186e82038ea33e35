"""Optimal recomputation of a training graph seen as a chain of stages.

Source: Beaumont, Eyraud-Dubois, Herrmann, Joly, Shilova 2024, "Optimal re-materialization
strategies for heterogeneous chains": C_MP, and for short chains C_FL too (see `chains.chain_dp`).
The forward is cut into stages (`onnxremat.core.training`), once at its articulation points, as in
the paper, and once wherever the values that cross can stand for one.

The chain model is coarser than the graph: it counts a value that crosses several boundaries once
for each, and knows nothing of in-place reuse, nor of values held for the backward of an earlier
stage than theirs. So the model's limit is searched: its sequences for all limits, from one table,
become schedules of the real ops, and the one whose real peak meets the budget in the least time is
taken (without a budget: the one of the smallest real peak). Where the backward of one stage sets
the model's smallest peak, the model cannot tell leaner sequences from others; so all is done again
with a model in which backward steps need nothing of their own. And the model counts the time of
every repetition, but those that nobody reads are left out of the real schedule. Either way what is
best in the model may be worse than the equal segments of `chen`: so these are tried, too.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

import numpy as np

from onnxremat.core.deadline import Deadline, StoppedError
from onnxremat.core.problem import Limits, Plan, Problem
from onnxremat.core.training import Stages, TrainingSplit
from onnxremat.planners.chains.chain_dp import SLOTS, FloatingTable, PersistentTable
from onnxremat.planners.chains.chain_model import Chain, ChainStep, Operation, Operations, simulate
from onnxremat.planners.chains.chain_stages import (
    Chooser,
    chain_of_stages,
    chains,
    described,
    halving,
    plan_training,
)
from onnxremat.planners.chen import MOST_STAGES as MOST_EQUAL_STAGES
from onnxremat.planners.chen import every_number

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
        if chooser.deadline.over():
            break
        model = chain_of_stages(stages, chooser.problem.rules)
        models += [(stages, model), (stages, without_gradients(model))]
    equal = _equal_segments(split, chooser)
    for make in (_persistent, _floating):
        attempts = [equal]
        for stages, model in models:
            try:
                sequences = make(model, chooser.deadline)
            except StoppedError:
                break
            if sequences is not None:
                attempts.append(_attempts(chooser, stages, sequences))
                deque(islice(attempts[-1], FIRST_ATTEMPTS), maxlen=0)
        while attempts and not chooser.deadline.over():
            attempts = [one for one in attempts if next(one, False)]
    return described(found)


def _limit_bytes(chain: Chain) -> int:
    """What keeping everything takes: no more is of use."""
    return max(simulate(chain, store_all(chain.stages)).peak_bytes, 1)


def _persistent(chain: Chain, deadline: Deadline) -> "_Sequences | None":
    return _Sequences(PersistentTable(chain, _limit_bytes(chain), SLOTS, deadline))


def _floating(chain: Chain, deadline: Deadline) -> "_Sequences | None":
    """The sequences of C_FL, unless the chain is too long or they are none the faster."""
    if chain.stages > FLOATING_STAGES:
        return None
    limit = _limit_bytes(chain)
    table = FloatingTable(chain, limit, FLOATING_SLOTS, deadline)
    persistent = PersistentTable(chain, limit, FLOATING_SLOTS, deadline).makespans()
    faster = table.makespans() < np.minimum(persistent, NEVER) * (1 - ROUNDING)
    return _Sequences(table) if faster.any() else None


def without_gradients(chain: Chain) -> Chain:
    """The chain as if backward steps held no more than what the forward saved for them."""
    nothing = (0,) * chain.stages
    return replace(chain, gradient_bytes=(0, *nothing), backward_overhead_bytes=nothing)


def store_all(stages: int) -> Operations:
    """The sequence without recomputation."""
    forward = [Operation(ChainStep.FORWARD_ALL, i) for i in range(stages)]
    return (*forward, *(Operation(ChainStep.BACKWARD, i) for i in reversed(range(stages))))


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


def _equal_segments(split: TrainingSplit, chooser: Chooser) -> Iterator[bool]:
    """Show the chooser all that `chen` shows it; true after each."""
    try:
        found = chains(split, chooser, MOST_EQUAL_STAGES)
    except StoppedError:
        return
    for stages in found:
        for sequence in every_number(len(stages.forward)):
            chooser.deadline.evaluated(len(chooser.problem.graph.ops))
            chooser.show_sequence(stages, sequence)
            yield True


def _attempts(chooser: Chooser, stages: Stages, sequences: Sequence[Operations]) -> Iterator[bool]:
    """Show the chooser the sequences that may still help, in the order of halving; true after
    each."""
    slowest = len(sequences)
    for index in halving(len(sequences)):
        if index >= slowest or chooser.deadline.over():
            continue
        chooser.deadline.evaluated(len(chooser.problem.graph.ops))
        found = chooser.show_sequence(stages, sequences[index])
        if chooser.meets(found):
            slowest = index
        yield True
