"""Where things stand in the arrays of the search (`SearchState`); no code of the search itself.

Numba passes every array of a named tuple as seven or more separate arguments, so that few wide
arrays compile several times faster than many narrow ones; hence rows with names.

Slots. Executions stand in a row of slots with gaps, so that an insertion moves only the few
executions up to the next gap. `slot[HELD, s]`, with what is ADDED to its block, is the number of
bytes held while the execution in slot s runs; in a gap it means nothing. Lifetimes name executions
and not slots, so that moving an execution within a gap changes no lifetime.

Instances. Output k of execution e is instance `e * width + k`. LAST_READ is the last execution
that reads it (NONE: unread); it is TAKEN if that execution takes over its buffer.

Blocks. Peak and excess (bytes above the target, summed over executions) are kept per block of
slots. A lifetime that spans whole blocks changes each of them by one number, as long as a block
stays on one side of the target; the others are touched, and looked through at the end of a move.
"""

from typing import NamedTuple

import numpy as np

from onnxremat.planners.search import flat
from onnxremat.planners.search.flat import FlatGraph, Ints

NONE = -1
EMPTY = -(1 << 60)
BLOCK = 16

# Rows of State.slot, by slot.
EXECUTION, HELD = range(2)
# Rows of State.run, by execution: its op, slot, neighbours among the executions of its op, and
# place in REPEATED; and two lists of executions: unused ones (a stack) and those of ops that run
# more than once.
OP, PLACE, EARLIER, LATER, LISTED, FREE, REPEATED = range(7)
# Rows of State.op, by op: first and last execution, and how many.
FIRST, LAST, RUNS = range(3)
# Rows of State.instance.
LAST_READ, TAKEN = range(2)
# Rows of State.block: what is to be added to HELD of its slots; the most and the least bytes held,
# the excess and the number of executions; whether it is to be looked through anew; and, not by
# block, a list of such.
ADDED, BLOCK_PEAK, BLOCK_LOW, BLOCK_EXCESS, BLOCK_COUNT, IS_TOUCHED, TOUCHED = range(7)
# Rows of State.scratch. JOURNAL: what was done, as (execution or NONE, op, execution before).
# WANTED: what a move asks for, as pairs (REMOVE, execution) or (op, execution to run it before).
# AFFECTED: (instance, its end before the change). TAKERS: executions that may take over buffers.
# FILLED: by output of one op. STACK: executions still to be treated.
JOURNAL, WANTED, AFFECTED, TAKERS, FILLED, STACK = range(6)
# Positions in State.total: lengths of lists above, and totals.
(FREE_COUNT, REPEATED_COUNT, TOUCHED_COUNT, JOURNAL_COUNT, WANTED_COUNT, AFFECTED_COUNT,
 TAKERS_COUNT, EXCESS, PEAK, TARGET, TIME, EXECUTIONS) = range(12)  # fmt: skip

REMOVE = -2
"""In WANTED, instead of an op."""

JOURNAL_ENTRIES = 400
"""The most executions that one move may add and remove."""


class SearchState(NamedTuple):
    """The arrays; their rows are named above."""

    slot: Ints
    run: Ints
    op: Ints
    instance: Ints
    block: Ints
    scratch: Ints
    total: Ints


def make_state(graph: FlatGraph, executions: int) -> SearchState:
    """Arrays for at most `executions` executions, without any."""
    slots = -(-executions // BLOCK) * BLOCK
    most_inputs = int(np.diff(graph.op[flat.INPUTS]).max(initial=0))
    most_pairs = int(np.diff(graph.op[flat.PAIRS]).max(initial=0))
    takers = 2 * most_inputs + 4 * graph.width + 8
    affected = 2 * (takers * (2 + most_pairs))
    scratch = max(3 * JOURNAL_ENTRIES, affected, slots + JOURNAL_ENTRIES)
    return SearchState(
        _rows(2, slots),
        _rows(7, slots),
        _rows(3, graph.op.shape[1]),
        _rows(2, slots * graph.width),
        _rows(7, slots // BLOCK),
        _rows(6, scratch),
        np.zeros(12, dtype=np.int64),
    )


def _rows(count: int, length: int) -> Ints:
    return np.zeros((count, length), dtype=np.int64)
