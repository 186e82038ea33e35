"""What the arrays of the search mean, and how the bytes held follow from lifetimes.

The totals are those of `memory.profile`, rule for rule, which the tests check.
"""

# An element of an array is Any to mypy; to numba it has a type.
# mypy: disable-error-code="no-any-return"

from onnxremat.planners.search import arrays as at
from onnxremat.planners.search import flat
from onnxremat.planners.search.arrays import SearchState
from onnxremat.planners.search.flat import FlatGraph
from onnxremat.planners.search.kernels import kernel


@kernel
def clear(state: SearchState) -> None:
    """Forget all executions."""
    slots = state.slot.shape[1]
    state.slot[at.EXECUTION, :] = at.NONE
    state.slot[at.HELD, :] = 0
    state.block[:, :] = 0
    state.block[at.BLOCK_PEAK, :] = at.EMPTY
    state.block[at.BLOCK_LOW, :] = -at.EMPTY
    state.op[at.FIRST, :] = at.NONE
    state.op[at.LAST, :] = at.NONE
    state.op[at.RUNS, :] = 0
    state.instance[at.LAST_READ, :] = at.NONE
    state.instance[at.TAKEN, :] = False
    for e in range(slots):
        state.run[at.FREE, e] = slots - 1 - e
    target = state.total[at.TARGET]
    state.total[:] = 0
    state.total[at.TARGET] = target
    state.total[at.FREE_COUNT] = slots


@kernel
def reading(state: SearchState, op: int, slot: int) -> int:
    """The execution of `op` that an execution in `slot` reads: the latest before it, or at.NONE."""
    e = state.op[at.LAST, op]
    while e != at.NONE and state.run[at.PLACE, e] >= slot:
        e = state.run[at.EARLIER, e]
    return e


@kernel
def last_reader(graph: FlatGraph, state: SearchState, t: int, after: int, before: int) -> int:
    """The last execution in slots after < s < before that reads tensor t, or at.NONE."""
    best = at.NONE
    for r in range(graph.tensor[flat.READERS, t], graph.tensor[flat.READERS, t + 1]):
        e = reading(state, graph.reader[r], before)
        if e != at.NONE and state.run[at.PLACE, e] > after:
            after = state.run[at.PLACE, e]
            best = e
    return best


@kernel
def next_reader(graph: FlatGraph, state: SearchState, t: int, after: int, before: int) -> int:
    """The first execution in slots after < s < before that reads tensor t, or at.NONE."""
    best = at.NONE
    for r in range(graph.tensor[flat.READERS, t], graph.tensor[flat.READERS, t + 1]):
        e = reading(state, graph.reader[r], before)
        while e != at.NONE and state.run[at.PLACE, e] > after:
            before = state.run[at.PLACE, e]
            best = e
            e = state.run[at.EARLIER, e]
    return best


@kernel
def is_pinned(graph: FlatGraph, state: SearchState, e: int, k: int) -> bool:
    """Whether output k of execution e is the instance that a graph output is taken from."""
    return (
        graph.tensor[flat.GRAPH_OUTPUT, graph.op[flat.OUTPUTS, state.run[at.OP, e]] + k]
        and state.run[at.LATER, e] == at.NONE
    )


@kernel
def instance_end(graph: FlatGraph, state: SearchState, e: int, k: int) -> int:
    """The slot before which output k of execution e is held."""
    if is_pinned(graph, state, e, k):
        return state.slot.shape[1]
    i = e * graph.width + k
    reader = state.instance[at.LAST_READ, i]
    if reader == at.NONE:
        return state.slot.shape[1] if graph.unread_held else state.run[at.PLACE, e] + 1
    return state.run[at.PLACE, reader] + (0 if state.instance[at.TAKEN, i] else 1)


@kernel
def is_dead(graph: FlatGraph, state: SearchState, e: int) -> bool:
    """Whether e is one of several executions of its op and nobody needs it."""
    v = state.run[at.OP, e]
    if state.op[at.RUNS, v] < 2:
        return False
    for k in range(graph.op[flat.OUTPUTS, v + 1] - graph.op[flat.OUTPUTS, v]):
        if state.instance[at.LAST_READ, e * graph.width + k] != at.NONE or is_pinned(
            graph, state, e, k
        ):
            return False
    return True


@kernel
def held_at(state: SearchState, slot: int) -> int:
    """Bytes held while the execution in a slot runs."""
    return state.slot[at.HELD, slot] + state.block[at.ADDED, slot // at.BLOCK]


@kernel
def set_held(state: SearchState, slot: int, nbytes: int) -> None:
    """Note what is held while the execution in a slot runs."""
    state.slot[at.HELD, slot] = nbytes - state.block[at.ADDED, slot // at.BLOCK]


@kernel
def touch(state: SearchState, start: int, end: int) -> None:
    """Note that `held` changed in slots start <= s < end."""
    for b in range(start // at.BLOCK, (end - 1) // at.BLOCK + 1):
        if not state.block[at.IS_TOUCHED, b]:
            state.block[at.IS_TOUCHED, b] = True
            state.block[at.TOUCHED, state.total[at.TOUCHED_COUNT]] = b
            state.total[at.TOUCHED_COUNT] += 1


@kernel
def refresh(state: SearchState) -> None:
    """Bring PEAK and EXCESS up to date."""
    target = state.total[at.TARGET]
    for j in range(state.total[at.TOUCHED_COUNT]):
        b = state.block[at.TOUCHED, j]
        state.block[at.IS_TOUCHED, b] = False
        added = state.block[at.ADDED, b]
        peak = at.EMPTY
        low = -at.EMPTY
        excess = 0
        count = 0
        for s in range(b * at.BLOCK, (b + 1) * at.BLOCK):
            if state.slot[at.EXECUTION, s] != at.NONE:
                x = state.slot[at.HELD, s] + added
                peak = max(peak, x)
                low = min(low, x)
                excess += max(x - target, 0)
                count += 1
        state.total[at.EXCESS] += excess - state.block[at.BLOCK_EXCESS, b]
        state.block[at.BLOCK_EXCESS, b] = excess
        state.block[at.BLOCK_PEAK, b] = peak
        state.block[at.BLOCK_LOW, b] = low
        state.block[at.BLOCK_COUNT, b] = count
    state.total[at.TOUCHED_COUNT] = 0
    peak = at.EMPTY
    for b in range(state.block.shape[1]):
        peak = max(peak, state.block[at.BLOCK_PEAK, b])
    state.total[at.PEAK] = peak


@kernel
def slot_before(state: SearchState, slot: int) -> int:
    """The nearest used slot below `slot`, or at.NONE."""
    slot -= 1
    while slot >= 0 and state.slot[at.EXECUTION, slot] == at.NONE:
        slot -= 1
    return slot


@kernel
def slot_after(state: SearchState, slot: int) -> int:
    """The nearest used slot above `slot`, or at.NONE."""
    slot += 1
    while slot < state.slot.shape[1] and state.slot[at.EXECUTION, slot] == at.NONE:
        slot += 1
    return slot if slot < state.slot.shape[1] else at.NONE


@kernel
def _shift(state: SearchState, source: int, target: int) -> None:
    e = state.slot[at.EXECUTION, source]
    state.slot[at.EXECUTION, target] = e
    state.run[at.PLACE, e] = target
    set_held(state, target, held_at(state, source))
    state.slot[at.EXECUTION, source] = at.NONE


@kernel
def make_room(state: SearchState, after: int) -> int:
    """An empty slot between execution `after` (at.NONE: the start) and the next; moves others."""
    low = state.run[at.PLACE, after] if after != at.NONE else -1
    right = low + 1
    left = low
    slots = state.slot.shape[1]
    while True:
        if right < slots:
            if state.slot[at.EXECUTION, right] == at.NONE:
                for s in range(right, low + 1, -1):
                    _shift(state, s - 1, s)
                if right > low + 1:
                    touch(state, low + 1, right + 1)
                return low + 1
            right += 1
        if left >= 0:
            if state.slot[at.EXECUTION, left] == at.NONE:
                for s in range(left, low):
                    _shift(state, s + 1, s)
                touch(state, left, low + 1)
                return low
            left -= 1


@kernel
def carried_past(graph: FlatGraph, state: SearchState, q: int) -> int:
    """Bytes held between execution q (at.NONE: the start) and the next one."""
    if q == at.NONE:
        return graph.constant_bytes
    v = state.run[at.OP, q]
    carried = held_at(state, state.run[at.PLACE, q]) - graph.op[flat.WORKSPACE, v]
    for j in range(graph.op[flat.INPUTS, v], graph.op[flat.INPUTS, v + 1]):
        t = graph.input[j]
        producer = graph.tensor[flat.PRODUCER, t]
        k = t - graph.op[flat.OUTPUTS, producer]
        e = reading(state, producer, state.run[at.PLACE, q])
        i = e * graph.width + k
        if (
            state.instance[at.LAST_READ, i] == q
            and not state.instance[at.TAKEN, i]
            and not is_pinned(graph, state, e, k)
        ):
            carried -= graph.tensor[flat.SIZE, t]
    for k in range(graph.op[flat.OUTPUTS, v + 1] - graph.op[flat.OUTPUTS, v]):
        unread = state.instance[at.LAST_READ, q * graph.width + k] == at.NONE
        if unread and not graph.unread_held and not is_pinned(graph, state, q, k):
            carried -= graph.tensor[flat.SIZE, graph.op[flat.OUTPUTS, v] + k]
    return carried


@kernel
def note_instance(graph: FlatGraph, state: SearchState, e: int, k: int) -> None:
    """Remember where an instance ends, once, before it may change."""
    i = e * graph.width + k
    count = state.total[at.AFFECTED_COUNT]
    for j in range(count):
        if state.scratch[at.AFFECTED, 2 * j] == i:
            return
    state.scratch[at.AFFECTED, 2 * count] = i
    state.scratch[at.AFFECTED, 2 * count + 1] = instance_end(graph, state, e, k)
    state.total[at.AFFECTED_COUNT] = count + 1


@kernel
def note_taker(graph: FlatGraph, state: SearchState, x: int) -> None:
    """Remember an execution that may take over other buffers after the change."""
    if x == at.NONE:
        return
    v = state.run[at.OP, x]
    if graph.op[flat.PAIRS, v] == graph.op[flat.PAIRS, v + 1]:
        return
    count = state.total[at.TAKERS_COUNT]
    for j in range(count):
        if state.scratch[at.TAKERS, j] == x:
            return
    state.scratch[at.TAKERS, count] = x
    state.total[at.TAKERS_COUNT] = count + 1
    for j in range(graph.op[flat.PAIRS, v], graph.op[flat.PAIRS, v + 1]):
        t = graph.pair[flat.SOURCE, j]
        e = reading(state, graph.tensor[flat.PRODUCER, t], state.run[at.PLACE, x])
        note_instance(graph, state, e, t - graph.op[flat.OUTPUTS, graph.tensor[flat.PRODUCER, t]])


@kernel
def take_over(graph: FlatGraph, state: SearchState, x: int) -> None:
    """Decide which inputs execution x takes over, as `memory.profile` does."""
    v = state.run[at.OP, x]
    start, end = graph.op[flat.PAIRS, v], graph.op[flat.PAIRS, v + 1]
    for j in range(start, end):
        state.scratch[at.FILLED, graph.pair[flat.TARGET, j]] = False
        t = graph.pair[flat.SOURCE, j]
        e = reading(state, graph.tensor[flat.PRODUCER, t], state.run[at.PLACE, x])
        i = e * graph.width + t - graph.op[flat.OUTPUTS, graph.tensor[flat.PRODUCER, t]]
        if state.instance[at.LAST_READ, i] == x:
            state.instance[at.TAKEN, i] = False
    for j in range(start, end):
        t = graph.pair[flat.SOURCE, j]
        k = graph.pair[flat.TARGET, j]
        e = reading(state, graph.tensor[flat.PRODUCER, t], state.run[at.PLACE, x])
        source = t - graph.op[flat.OUTPUTS, graph.tensor[flat.PRODUCER, t]]
        i = e * graph.width + source
        if (
            state.scratch[at.FILLED, k]
            or state.instance[at.LAST_READ, i] != x
            or state.instance[at.TAKEN, i]
        ):
            continue
        if not is_pinned(graph, state, e, source) and not is_pinned(graph, state, x, k):
            state.instance[at.TAKEN, i] = True
            state.scratch[at.FILLED, k] = True


@kernel
def change_held(state: SearchState, start: int, end: int, nbytes: int) -> None:
    """Hold so many bytes more in slots start <= s < end."""
    s = start
    while s < end:
        b = s // at.BLOCK
        stop = (b + 1) * at.BLOCK
        if s == b * at.BLOCK and stop <= end:
            _change_block(state, b, nbytes)
        else:
            stop = min(stop, end)
            for i in range(s, stop):
                state.slot[at.HELD, i] += nbytes
            touch(state, s, stop)
        s = stop


@kernel
def _change_block(state: SearchState, b: int, nbytes: int) -> None:
    state.block[at.ADDED, b] += nbytes
    if state.block[at.IS_TOUCHED, b] or state.block[at.BLOCK_COUNT, b] == 0:
        return
    target = state.total[at.TARGET]
    peak, low = state.block[at.BLOCK_PEAK, b], state.block[at.BLOCK_LOW, b]
    if max(peak, peak + nbytes) <= target:
        change = 0
    elif min(low, low + nbytes) >= target:
        change = nbytes * state.block[at.BLOCK_COUNT, b]
    else:
        touch(state, b * at.BLOCK, b * at.BLOCK + 1)
        return
    state.block[at.BLOCK_PEAK, b] = peak + nbytes
    state.block[at.BLOCK_LOW, b] = low + nbytes
    state.block[at.BLOCK_EXCESS, b] += change
    state.total[at.EXCESS] += change


@kernel
def settle(graph: FlatGraph, state: SearchState) -> None:
    """Let takers decide, then move the ends of the remembered instances."""
    for j in range(state.total[at.TAKERS_COUNT]):
        take_over(graph, state, state.scratch[at.TAKERS, j])
    for j in range(state.total[at.AFFECTED_COUNT]):
        i, old = state.scratch[at.AFFECTED, 2 * j], state.scratch[at.AFFECTED, 2 * j + 1]
        e = i // graph.width
        k = i - e * graph.width
        new = instance_end(graph, state, e, k)
        nbytes = graph.tensor[flat.SIZE, graph.op[flat.OUTPUTS, state.run[at.OP, e]] + k]
        if new > old:
            change_held(state, old, new, nbytes)
        elif new < old:
            change_held(state, new, old, -nbytes)
    state.total[at.AFFECTED_COUNT] = 0
    state.total[at.TAKERS_COUNT] = 0
