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

import time
from collections.abc import Iterator, Sequence

import numpy as np

from onnxremat.bounds import peak_bound
from onnxremat.plan import Limits, Plan, Problem, make_plan
from onnxremat.planners._chain import Chain, Kind, Operation, Operations, simulate
from onnxremat.planners._chain_dp import SLOTS, FloatingTable, PersistentTable
from onnxremat.planners._stages import Chooser, chain_of_stages, schedule_of
from onnxremat.training import NotTrainingError, Stages, cut, split_training

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
    started = time.monotonic()
    bound = peak_bound(problem.graph, problem.rules).nbytes
    chooser = Chooser(problem, limits, started)
    try:
        scope = _search(problem, chooser)
    except NotTrainingError as error:
        scope = f"the given order, as this is no training graph: {error}"
    best = chooser.best.schedule
    return make_plan(problem, best, "chain", peak_bound_bytes=bound, scope=scope)


def _search(problem: Problem, chooser: Chooser) -> str:
    split = split_training(problem.graph)
    if problem.max_copies == 1 or not split.forward:
        return "the given order: nothing may be recomputed"
    order = split.forward if problem.fixed_order else None
    told: list[tuple[int, tuple[str, ...]]] = []
    for bundles in (False, True):
        stages = cut(split, order, most=MOST_STAGES, bundles=bundles)
        if bundles and len(stages.forward) == told[0][0]:
            continue
        told.append((len(stages.forward), stages.notes))
        for sequences in _families(chain_of_stages(stages, problem.rules), chooser):
            _try_all(chooser, stages, sequences)
    counts = " and ".join(str(count) for count, _ in told)
    notes = "; ".join(told[0][1][:2])
    return f"chains of {counts} stages" + (f"; {notes}" if notes else "")


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


def halving(count: int) -> list[int]:
    """0 to count - 1: the ends, then the middle of each gap left, the widest first."""
    order = [count - 1, 0] if count > 1 else list(range(count))
    gaps = [(0, count - 1)]
    while gaps:
        wider = []
        for low, high in gaps:
            middle = (low + high) // 2
            if low < middle < high:
                order.append(middle)
                wider += [(low, middle), (middle, high)]
        gaps = wider
    return order
