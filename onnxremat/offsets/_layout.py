"""What the arrays of the search mean. Sizes and offsets are in any one unit."""

from typing import NamedTuple

import numpy as np

from onnxremat.offsets._jit import Floats, Ints

FAR = 2**62
"""Beyond every offset."""

LOW, SUPPORT, PLACED = range(3)
"""Rows of `State.block`: the lowest offset possible (if placed, the offset), the highest end of
the blocks placed at the same time, whether it is placed."""

LOAD, NEED, TOP, LOW_1, LOW_2, OWNER, JOINED, CHOICES, IS_OPEN, FAILURES = range(10)
"""Rows of `State.section`, over its waiting blocks: their size, the least arena that holds them,
the lowest end possible, the two lowest offsets possible and the block of the first, whether
one of them reaches into the next section, how many can lie at the lowest offset, whether none
of those has a waiting block that can get below it; and how often the bound failed here."""

FROM, TO, MARK, BRANCH_MARK, OPTIONS_FROM, KIND, NEXT, COUNT = range(8)
"""Columns of `State.frame`: the sections, the length of the journal at entry and before the
branches, the options' start in `State.option`, what is asked of them, the next one and how many."""

ANY_OF, ALL_OF = range(2)

VISITING, BEGIN, END, ANSWER, DEPTH, JOURNAL, OPTIONS, NODES, WORK, STATUS = range(10)
"""Positions in `State.total`: whether sections `[BEGIN, END)` are visited next, or else ANSWER is
handed to the top frame; lengths of the stacks; nodes visited and steps of inner loops so far; and
one of the following."""

RUNNING, FOUND, REFUTED, GAVE_UP = range(4)

BY_SLACK, BY_LEVEL, BY_CHOICES = range(3)
"""Which section to branch on: the fullest, the lowest, or the one with the fewest choices for the
times that it failed."""


class State(NamedTuple):
    """Arrays of the search; rows and columns are named above.

    Block b lives in sections `[first[b], stop[b])`. `journal` has (row, block, value before) of
    every change to `block`. `order` is all blocks, about by descending lowest offset. `member`
    and `place` are scratch, one entry a block.
    """

    first: Ints
    stop: Ints
    size: Ints
    priority: Floats
    block: Ints
    section: Ints
    frame: Ints
    journal: Ints
    option: Ints
    order: Ints
    member: Ints
    place: Ints
    total: Ints


def new_state(first: Ints, stop: Ints, size: Ints, sections: int) -> State:
    """A state with room for a deep search. O(n) memory."""
    n = len(size)
    depth = 4 * n + 16

    def zeros(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    return State(
        first=first,
        stop=stop,
        size=size,
        priority=np.zeros(n),
        block=zeros(3, n),
        section=zeros(10, sections),
        frame=zeros(depth, 8),
        journal=zeros(256 * n + 1024, 3),
        option=zeros(256 * n + 4 * sections + 1024),
        order=np.arange(n),
        member=zeros(n),
        place=zeros(n),
        total=zeros(10),
    )
