"""One state of the search: changing it, undoing that, and what follows from it."""

import numpy as np

from onnxremat.offsets import _layout as at
from onnxremat.offsets._jit import kernel
from onnxremat.offsets._layout import PlacementState


@kernel
def note(state: PlacementState, b: int) -> None:
    """Remember what is known of block b, which is about to change."""
    i = state.total[at.JOURNAL]
    state.journal[i, 0] = b
    state.journal[i, 1] = state.block[at.LOW, b]
    state.journal[i, 2] = state.block[at.SUPPORT, b]
    state.journal[i, 3] = state.block[at.PLACED, b]
    state.total[at.JOURNAL] = i + 1


@kernel
def journal_has_room(state: PlacementState) -> bool:
    """Whether two blocks can be placed, or any number lifted after one is placed."""
    return bool(state.total[at.JOURNAL] + 2 * state.block.shape[1] < len(state.journal))


@kernel
def undo(state: PlacementState, mark: int) -> None:
    """Take back all changes since the journal had `mark` entries."""
    for i in range(state.total[at.JOURNAL] - 1, mark - 1, -1):
        b = state.journal[i, 0]
        state.block[at.LOW, b] = state.journal[i, 1]
        state.block[at.SUPPORT, b] = state.journal[i, 2]
        state.block[at.PLACED, b] = state.journal[i, 3]
    state.total[at.JOURNAL] = mark


@kernel
def overlap(state: PlacementState, b: int, c: int) -> bool:
    """Whether two blocks live in one section."""
    return bool(
        state.block[at.FIRST, b] < state.block[at.STOP, c]
        and state.block[at.FIRST, c] < state.block[at.STOP, b]
    )


@kernel
def put(state: PlacementState, b: int) -> None:
    """Place b at its lowest offset; all that wait at the same time lie above it."""
    note(state, b)
    state.block[at.PLACED, b] = 1
    top = state.block[at.LOW, b] + state.block[at.SIZE, b]
    for c in range(state.block.shape[1]):
        waits = state.block[at.PLACED, c] == 0
        if waits and state.block[at.SUPPORT, c] < top and overlap(state, b, c):
            note(state, c)
            state.block[at.SUPPORT, c] = top
            state.block[at.LOW, c] = max(state.block[at.LOW, c], top)


@kernel
def lift(state: PlacementState, b: int) -> None:
    """b is not at its lowest offset, so it rests on a block that waits: raise the offset."""
    lowest = at.FAR
    for c in range(state.block.shape[1]):
        if c != b and state.block[at.PLACED, c] == 0 and overlap(state, b, c):
            lowest = min(lowest, state.block[at.LOW, c] + state.block[at.SIZE, c])
    if lowest > state.block[at.LOW, b]:
        note(state, b)
        state.block[at.LOW, b] = lowest


@kernel
def gather(state: PlacementState, start: int, stop: int) -> int:
    """Write the blocks that wait in these sections to `member`, by descending lowest offset.

    Most are in order since the last time; the others are sorted on their own and merged, because
    a placed block lifts many at once.
    """
    low = state.block[at.LOW]
    member, late, place = state.listed[at.MEMBER], state.listed[at.LATE], state.listed[at.PLACE]
    kept = 0
    moved = 0
    for i in range(state.block.shape[1]):
        b = state.listed[at.ORDER, i]
        if (
            state.block[at.PLACED, b] != 0
            or state.block[at.FIRST, b] < start
            or state.block[at.STOP, b] > stop
        ):
            continue
        place[kept + moved] = i
        if kept == 0 or low[b] <= low[member[kept - 1]]:
            member[kept] = b
            kept += 1
            continue
        j = moved
        while j > 0 and low[late[j - 1]] < low[b]:
            late[j] = late[j - 1]
            j -= 1
        late[j] = b
        moved += 1
    count = kept + moved
    for k in range(count - 1, -1, -1):
        if moved > 0 and (kept == 0 or low[late[moved - 1]] < low[member[kept - 1]]):
            moved -= 1
            member[k] = late[moved]
        else:
            kept -= 1
            member[k] = member[kept]
        state.listed[at.ORDER, place[k]] = member[k]
    return count


@kernel
def fits(state: PlacementState, count: int, start: int, stop: int, arena: int) -> bool:
    """Bring the sections up to date; whether each can hold its waiting blocks.

    Short loops over views, one an array: the compiler vectorizes those.
    """
    section = state.section
    section[at.LOAD : at.NEED + 1, start:stop] = 0
    section[at.TOP : at.LOW_2 + 1, start:stop] = at.FAR
    section[at.JOINED : at.CHOICES + 1, start:stop] = 0
    section[at.IS_OPEN, start:stop] = 1
    for k in range(count):
        b = state.listed[at.MEMBER, k]
        low = state.block[at.LOW, b]
        size = state.block[at.SIZE, b]
        first, last = state.block[at.FIRST, b], state.block[at.STOP, b]
        state.total[at.WORK] += last - first
        load = section[at.LOAD, first:last]
        need = section[at.NEED, first:last]
        worst = np.int64(0)
        for i in range(len(load)):
            load[i] += size
            need[i] = max(need[i], low + load[i])
            worst = max(worst, need[i])
        if worst > arena:
            for i in range(len(need)):
                if need[i] > arena:
                    section[at.FAILURES, first + i] += 1
            return False
        top = section[at.TOP, first:last]
        low_1 = section[at.LOW_1, first:last]
        low_2 = section[at.LOW_2, first:last]
        for i in range(len(top)):
            top[i] = min(top[i], low + size)
        for i in range(len(low_1)):
            low_2[i] = low_1[i]
            low_1[i] = low
        section[at.OWNER, first:last] = b
        section[at.JOINED, first : last - 1] = 1
    return True


FREE, DOMINATED, QUIET = range(3)


@kernel
def settle(state: PlacementState, count: int) -> int:
    """Place the blocks that nobody can get below (FREE), or say that one could drop into a hole
    (DOMINATED). If there is neither, count the choices of every section (QUIET).

    A block placed on the way leaves the sections out of date, but only too low, which is safe.
    """
    section = state.section
    verdict = QUIET
    for k in range(count):
        b = state.listed[at.MEMBER, k]
        low = state.block[at.LOW, b]
        size = state.block[at.SIZE, b]
        support = state.block[at.SUPPORT, b]
        free = True
        dominated = support < low
        is_open = True
        is_choice = False
        for s in range(state.block[at.FIRST, b], state.block[at.STOP, b]):
            lowest = section[at.LOW_1, s]
            others = section[at.LOW_2, s] if section[at.OWNER, s] == b else lowest
            free &= others >= low + size
            dominated &= others >= support + size
            is_open &= section[at.TOP, s] > low
            is_choice |= lowest == low
            if not (free or dominated or is_open or is_choice):
                break
        if dominated:
            return DOMINATED
        if free:
            put(state, b)
            verdict = FREE
            if not journal_has_room(state):
                return FREE
        if is_choice and verdict == QUIET:
            for s in range(state.block[at.FIRST, b], state.block[at.STOP, b]):
                if section[at.LOW_1, s] == low:
                    section[at.CHOICES, s] += 1
                    section[at.IS_OPEN, s] &= is_open
    return verdict
