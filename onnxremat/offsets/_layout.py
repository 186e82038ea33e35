"""What the arrays of the search mean. Sizes and offsets are in any one unit."""

from typing import NamedTuple

import numpy as np

from onnxremat.offsets._jit import Ints

FAR = 2**62
"""Beyond every offset."""

FIRST, STOP, SIZE, RANK, LOW, SUPPORT, PLACED = range(7)
"""Rows of `State.block`: it lives in sections `[FIRST, STOP)`, its size and priority; the lowest
offset possible (if placed, the offset), the highest end of the blocks placed at the same time,
whether it is placed."""

ORDER, MEMBER, LATE, PLACE = range(4)
"""Rows of `State.listed`: all blocks, about by descending lowest offset; the rest is scratch."""

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


class PlacementState(NamedTuple):
    """Arrays of the search; rows and columns are named above.

    `journal` has (block, LOW, SUPPORT, PLACED before) of every change, in columns. Few arrays,
    because each one more makes every kernel slower to compile.
    """

    block: Ints
    listed: Ints
    section: Ints
    frame: Ints
    journal: Ints
    option: Ints
    total: Ints


def new_state(first: Ints, stop: Ints, size: Ints, sections: int) -> PlacementState:
    """A state with room for a deep search: at most 40 kB a block, of which little is touched."""
    n = len(size)

    def zeros(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    state = PlacementState(
        block=zeros(7, n),
        listed=zeros(4, n),
        section=zeros(10, sections),
        frame=zeros(4 * n + 16, 8),
        journal=zeros(1024 * (n + 1), 4),
        option=zeros(256 * (n + 4) + 4 * sections),
        total=zeros(10),
    )
    state.block[FIRST], state.block[STOP], state.block[SIZE] = first, stop, size
    state.listed[ORDER] = np.arange(n)
    return state
