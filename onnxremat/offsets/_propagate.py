"""One state of the search: changing it, undoing that, and what follows from it."""

from onnxremat.offsets import _layout as at
from onnxremat.offsets._jit import kernel
from onnxremat.offsets._layout import State


@kernel
def write(state: State, row: int, b: int, value: int) -> None:
    i = state.total[at.JOURNAL]
    state.journal[i, 0] = row
    state.journal[i, 1] = b
    state.journal[i, 2] = state.block[row, b]
    state.total[at.JOURNAL] = i + 1
    state.block[row, b] = value


@kernel
def undo(state: State, mark: int) -> None:
    for i in range(state.total[at.JOURNAL] - 1, mark - 1, -1):
        state.block[state.journal[i, 0], state.journal[i, 1]] = state.journal[i, 2]
    state.total[at.JOURNAL] = mark


@kernel
def overlap(state: State, b: int, c: int) -> bool:
    return bool(state.first[b] < state.stop[c] and state.first[c] < state.stop[b])


@kernel
def put(state: State, b: int) -> None:
    """Place b at its lowest offset; all that wait at the same time lie above it."""
    write(state, at.PLACED, b, 1)
    top = state.block[at.LOW, b] + state.size[b]
    for c in range(len(state.size)):
        if state.block[at.PLACED, c] == 0 and overlap(state, b, c):
            if state.block[at.SUPPORT, c] < top:
                write(state, at.SUPPORT, c, top)
            if state.block[at.LOW, c] < top:
                write(state, at.LOW, c, top)


@kernel
def lift(state: State, b: int) -> None:
    """b is not at its lowest offset, so it rests on a block that waits: raise the offset."""
    lowest = at.FAR
    for c in range(len(state.size)):
        if c != b and state.block[at.PLACED, c] == 0 and overlap(state, b, c):
            lowest = min(lowest, state.block[at.LOW, c] + state.size[c])
    if lowest > state.block[at.LOW, b]:
        write(state, at.LOW, b, lowest)


@kernel
def gather(state: State, start: int, stop: int) -> int:
    """Write the blocks that wait in these sections to `member`, by descending lowest offset."""
    count = 0
    for i in range(len(state.order)):
        b = state.order[i]
        if state.block[at.PLACED, b] != 0 or state.first[b] < start or state.stop[b] > stop:
            continue
        low = state.block[at.LOW, b]
        j = count
        while j > 0 and state.block[at.LOW, state.member[j - 1]] < low:
            state.member[j] = state.member[j - 1]
            j -= 1
        state.member[j] = b
        state.place[count] = i
        count += 1
    for k in range(count):
        state.order[state.place[k]] = state.member[k]
    return count


@kernel
def fits(state: State, count: int, start: int, stop: int, arena: int) -> bool:
    """Bring the sections up to date; whether each can hold its waiting blocks."""
    section = state.section
    for s in range(start, stop):
        section[at.LOAD, s] = 0
        section[at.NEED, s] = 0
        section[at.TOP, s] = at.FAR
        section[at.LOW_1, s] = at.FAR
        section[at.LOW_2, s] = at.FAR
        section[at.JOINED, s] = 0
        section[at.CHOICES, s] = 0
        section[at.IS_OPEN, s] = 1
    for k in range(count):
        b = state.member[k]
        low = state.block[at.LOW, b]
        state.total[at.WORK] += state.stop[b] - state.first[b]
        for s in range(state.first[b], state.stop[b]):
            section[at.LOAD, s] += state.size[b]
            section[at.NEED, s] = max(section[at.NEED, s], low + section[at.LOAD, s])
            if section[at.NEED, s] > arena:
                section[at.FAILURES, s] += 1
                return False
            section[at.TOP, s] = min(section[at.TOP, s], low + state.size[b])
            section[at.LOW_2, s] = section[at.LOW_1, s]
            section[at.LOW_1, s] = low
            section[at.OWNER, s] = b
            if s + 1 < state.stop[b]:
                section[at.JOINED, s] = 1
    return True


FREE, DOMINATED, QUIET = range(3)


@kernel
def settle(state: State, count: int) -> int:
    """Place the first block found that nobody can get below (FREE), or say that one could drop
    into a hole (DOMINATED). Otherwise count the choices of every section (QUIET)."""
    section = state.section
    for k in range(count):
        b = state.member[k]
        low = state.block[at.LOW, b]
        support = state.block[at.SUPPORT, b]
        free = True
        dominated = support < low
        is_open = 1
        for s in range(state.first[b], state.stop[b]):
            others = section[at.LOW_2 if section[at.OWNER, s] == b else at.LOW_1, s]
            free &= others >= low + state.size[b]
            dominated &= others >= support + state.size[b]
            if section[at.TOP, s] <= low:
                is_open = 0
        if dominated:
            return DOMINATED
        if free:
            put(state, b)
            return FREE
        for s in range(state.first[b], state.stop[b]):
            if section[at.LOW_1, s] == low:
                section[at.CHOICES, s] += 1
                section[at.IS_OPEN, s] &= is_open
    return QUIET
