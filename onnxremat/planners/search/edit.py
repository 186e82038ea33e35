"""The primitives of the search: insert and remove one execution, undo, load a sequence.

Each changes the bytes held only where a lifetime changed, so that its price is the length of the
changed lifetimes and not that of the whole schedule.
"""

# An element of an array is Any to mypy; to numba it has a type.
# mypy: disable-error-code="no-any-return"

from onnxremat.planners.search import arrays as at
from onnxremat.planners.search import flat
from onnxremat.planners.search.arrays import SearchState
from onnxremat.planners.search.flat import FlatGraph, Ints
from onnxremat.planners.search.kernels import kernel
from onnxremat.planners.search.state import (
    carried_past,
    change_held,
    clear,
    instance_end,
    is_dead,
    last_reader,
    make_room,
    note_instance,
    note_taker,
    reading,
    refresh,
    set_held,
    settle,
    slot_before,
    take_over,
    touch,
)


@kernel
def _list_repeated(state: SearchState, e: int) -> None:
    count = state.total[at.REPEATED_COUNT]
    state.run[at.REPEATED, count] = e
    state.run[at.LISTED, e] = count
    state.total[at.REPEATED_COUNT] = count + 1


@kernel
def _unlist_repeated(state: SearchState, e: int) -> None:
    count = state.total[at.REPEATED_COUNT] - 1
    moved = state.run[at.REPEATED, count]
    hole = state.run[at.LISTED, e]
    state.run[at.REPEATED, hole] = moved
    state.run[at.LISTED, moved] = hole
    state.total[at.REPEATED_COUNT] = count


@kernel
def _link(state: SearchState, e: int, v: int, before: int, after: int) -> None:
    state.run[at.EARLIER, e] = before
    state.run[at.LATER, e] = after
    if before == at.NONE:
        state.op[at.FIRST, v] = e
    else:
        state.run[at.LATER, before] = e
    if after == at.NONE:
        state.op[at.LAST, v] = e
    else:
        state.run[at.EARLIER, after] = e
    state.op[at.RUNS, v] += 1
    if state.op[at.RUNS, v] == 2:
        _list_repeated(state, before if before != at.NONE else after)
    if state.op[at.RUNS, v] >= 2:
        _list_repeated(state, e)


@kernel
def _unlink(state: SearchState, e: int, v: int, before: int, after: int) -> None:
    if before == at.NONE:
        state.op[at.FIRST, v] = after
    else:
        state.run[at.LATER, before] = after
    if after == at.NONE:
        state.op[at.LAST, v] = before
    else:
        state.run[at.EARLIER, after] = before
    state.op[at.RUNS, v] -= 1
    if state.op[at.RUNS, v] >= 1:
        _unlist_repeated(state, e)
    if state.op[at.RUNS, v] == 1:
        _unlist_repeated(state, before if before != at.NONE else after)


@kernel
def _note_outputs(graph: FlatGraph, state: SearchState, e: int, pin_changes: bool) -> None:
    """Remember the instances of e, an execution next to one that comes or goes."""
    v = state.run[at.OP, e]
    for k in range(graph.op[flat.OUTPUTS, v + 1] - graph.op[flat.OUTPUTS, v]):
        note_instance(graph, state, e, k)
        note_taker(graph, state, state.instance[at.LAST_READ, e * graph.width + k])
        if pin_changes and graph.tensor[flat.GRAPH_OUTPUT, graph.op[flat.OUTPUTS, v] + k]:
            note_taker(graph, state, e)


@kernel
def insert(graph: FlatGraph, state: SearchState, v: int, q: int) -> int:
    """Execute op v right after execution q (at.NONE: first of all). Returns the new execution.

    Its inputs must have been made. O(changed lifetimes + degree x copies).
    """
    width = graph.width
    p = make_room(state, q)
    carried = carried_past(graph, state, q)
    top = state.total[at.FREE_COUNT] - 1
    state.total[at.FREE_COUNT] = top
    e = state.run[at.FREE, top]
    before = reading(state, v, p)
    after = state.run[at.LATER, before] if before != at.NONE else state.op[at.FIRST, v]
    for j in range(graph.op[flat.INPUTS, v], graph.op[flat.INPUTS, v + 1]):
        t = graph.input[j]
        k = t - graph.op[flat.OUTPUTS, graph.tensor[flat.PRODUCER, t]]
        source = reading(state, graph.tensor[flat.PRODUCER, t], p)
        reader = state.instance[at.LAST_READ, source * width + k]
        if reader == at.NONE or state.run[at.PLACE, reader] < p:
            note_instance(graph, state, source, k)
            note_taker(graph, state, reader)
    if before != at.NONE:
        _note_outputs(graph, state, before, after == at.NONE)
    end = state.run[at.PLACE, after] if after != at.NONE else state.slot.shape[1]
    state.run[at.OP, e] = v
    state.run[at.PLACE, e] = p
    state.slot[at.EXECUTION, p] = e
    set_held(state, p, carried + graph.op[flat.WORKSPACE, v])
    touch(state, p, p + 1)
    _link(state, e, v, before, after)
    for k in range(graph.op[flat.OUTPUTS, v + 1] - graph.op[flat.OUTPUTS, v]):
        _note_new(state, e * width + k, p)
    _split_readers(graph, state, e, before, end)
    for j in range(graph.op[flat.INPUTS, v], graph.op[flat.INPUTS, v + 1]):
        t = graph.input[j]
        i = (
            reading(state, graph.tensor[flat.PRODUCER, t], p) * width
            + t
            - graph.op[flat.OUTPUTS, graph.tensor[flat.PRODUCER, t]]
        )
        reader = state.instance[at.LAST_READ, i]
        if reader == at.NONE or state.run[at.PLACE, reader] < p:
            state.instance[at.LAST_READ, i] = e
            state.instance[at.TAKEN, i] = False
    note_taker(graph, state, e)
    settle(graph, state)
    state.total[at.TIME] += graph.op[flat.COST, v]
    state.total[at.EXECUTIONS] += 1
    return e


@kernel
def _note_new(state: SearchState, i: int, p: int) -> None:
    count = state.total[at.AFFECTED_COUNT]
    state.scratch[at.AFFECTED, 2 * count] = i
    state.scratch[at.AFFECTED, 2 * count + 1] = p
    state.total[at.AFFECTED_COUNT] = count + 1


@kernel
def _split_readers(graph: FlatGraph, state: SearchState, e: int, before: int, end: int) -> None:
    """Readers after the new execution e read it, and no longer the execution `before`."""
    v = state.run[at.OP, e]
    p = state.run[at.PLACE, e]
    for k in range(graph.op[flat.OUTPUTS, v + 1] - graph.op[flat.OUTPUTS, v]):
        t = graph.op[flat.OUTPUTS, v] + k
        i = e * graph.width + k
        state.instance[at.TAKEN, i] = False
        state.instance[at.LAST_READ, i] = last_reader(graph, state, t, p, end)
        note_taker(graph, state, state.instance[at.LAST_READ, i])
        if before == at.NONE:
            continue
        old = before * graph.width + k
        reader = state.instance[at.LAST_READ, old]
        if reader != at.NONE and state.run[at.PLACE, reader] > p:
            state.instance[at.LAST_READ, old] = last_reader(
                graph, state, t, state.run[at.PLACE, before], p
            )
            state.instance[at.TAKEN, old] = False
            note_taker(graph, state, state.instance[at.LAST_READ, old])


@kernel
def remove(graph: FlatGraph, state: SearchState, e: int) -> None:
    """Take execution e out; its readers read the one before.

    Without one before, nobody may read e. O(changed lifetimes + degree x copies).
    """
    width = graph.width
    v = state.run[at.OP, e]
    p = state.run[at.PLACE, e]
    before, after = state.run[at.EARLIER, e], state.run[at.LATER, e]
    for k in range(graph.op[flat.OUTPUTS, v + 1] - graph.op[flat.OUTPUTS, v]):
        change_held(
            state,
            p,
            instance_end(graph, state, e, k),
            -graph.tensor[flat.SIZE, graph.op[flat.OUTPUTS, v] + k],
        )
    for j in range(graph.op[flat.INPUTS, v], graph.op[flat.INPUTS, v + 1]):
        t = graph.input[j]
        k = t - graph.op[flat.OUTPUTS, graph.tensor[flat.PRODUCER, t]]
        source = reading(state, graph.tensor[flat.PRODUCER, t], p)
        if state.instance[at.LAST_READ, source * width + k] == e:
            note_instance(graph, state, source, k)
    if before != at.NONE:
        _note_outputs(graph, state, before, after == at.NONE)
    _unlink(state, e, v, before, after)
    if before != at.NONE:
        _join_readers(graph, state, e, before)
    for j in range(graph.op[flat.INPUTS, v], graph.op[flat.INPUTS, v + 1]):
        t = graph.input[j]
        source = reading(state, graph.tensor[flat.PRODUCER, t], p)
        i = source * width + t - graph.op[flat.OUTPUTS, graph.tensor[flat.PRODUCER, t]]
        if state.instance[at.LAST_READ, i] == e:
            reader = last_reader(graph, state, t, state.run[at.PLACE, source], p)
            note_taker(graph, state, reader)
            state.instance[at.LAST_READ, i] = reader
            state.instance[at.TAKEN, i] = False
    state.slot[at.EXECUTION, p] = at.NONE
    touch(state, p, p + 1)
    state.run[at.FREE, state.total[at.FREE_COUNT]] = e
    state.total[at.FREE_COUNT] += 1
    settle(graph, state)
    state.total[at.TIME] -= graph.op[flat.COST, v]
    state.total[at.EXECUTIONS] -= 1


@kernel
def _join_readers(graph: FlatGraph, state: SearchState, e: int, before: int) -> None:
    """Readers of execution e, which is going, read the execution `before`."""
    v = state.run[at.OP, e]
    for k in range(graph.op[flat.OUTPUTS, v + 1] - graph.op[flat.OUTPUTS, v]):
        reader = state.instance[at.LAST_READ, e * graph.width + k]
        if reader != at.NONE:
            note_taker(graph, state, reader)
            state.instance[at.LAST_READ, before * graph.width + k] = reader
            state.instance[at.TAKEN, before * graph.width + k] = False


@kernel
def log_insertion(state: SearchState, e: int) -> None:
    """Note in the journal that execution e was inserted."""
    entry = state.total[at.JOURNAL_COUNT]
    state.scratch[at.JOURNAL, 3 * entry] = e
    state.total[at.JOURNAL_COUNT] = entry + 1


@kernel
def log_removal(state: SearchState, e: int) -> None:
    """Note in the journal that execution e is about to be removed."""
    entry = state.total[at.JOURNAL_COUNT]
    s = slot_before(state, state.run[at.PLACE, e])
    state.scratch[at.JOURNAL, 3 * entry] = at.NONE
    state.scratch[at.JOURNAL, 3 * entry + 1] = state.run[at.OP, e]
    state.scratch[at.JOURNAL, 3 * entry + 2] = (
        state.slot[at.EXECUTION, s] if s != at.NONE else at.NONE
    )
    state.total[at.JOURNAL_COUNT] = entry + 1


@kernel
def apply_wanted(graph: FlatGraph, state: SearchState, fixed: int) -> bool:
    """Do what a move wants, then remove every execution that nobody needs any more.

    With a `fixed` order first executions stay. False if that is too long; what was done by then is
    in the journal.
    """
    stack = state.scratch[at.STACK]
    forced = 0
    top = 0
    for j in range(state.total[at.WANTED_COUNT]):
        v = state.scratch[at.WANTED, 2 * j]
        x = state.scratch[at.WANTED, 2 * j + 1]
        if v == at.REMOVE:
            stack[top] = x
            top += 1
            forced = x + 1
            continue
        s = slot_before(state, state.run[at.PLACE, x] if x != at.NONE else state.slot.shape[1])
        e = insert(graph, state, v, state.slot[at.EXECUTION, s] if s != at.NONE else at.NONE)
        log_insertion(state, e)
        if state.run[at.EARLIER, e] != at.NONE:
            stack[top] = state.run[at.EARLIER, e]
            top += 1
    state.total[at.WANTED_COUNT] = 0
    while top > 0:
        top -= 1
        e = stack[top]
        p = state.run[at.PLACE, e]
        if state.slot[at.EXECUTION, p] != e or not (forced == e + 1 or is_dead(graph, state, e)):
            continue
        if fixed and state.run[at.EARLIER, e] == at.NONE:
            continue
        if not has_room(state, 1):
            return False
        v = state.run[at.OP, e]
        log_removal(state, e)
        remove(graph, state, e)
        for j in range(graph.op[flat.INPUTS, v], graph.op[flat.INPUTS, v + 1]):
            source = reading(state, graph.tensor[flat.PRODUCER, graph.input[j]], p)
            if top < stack.size and is_dead(graph, state, source):
                stack[top] = source
                top += 1
    return True


@kernel
def has_room(state: SearchState, count: int) -> bool:
    """Whether `count` more executions and journal entries fit."""
    return (
        state.total[at.FREE_COUNT] > count + 1
        and state.total[at.JOURNAL_COUNT] + count < at.JOURNAL_ENTRIES
    )


@kernel
def undo(graph: FlatGraph, state: SearchState) -> None:
    """Take back what the journal says. Executions get their numbers back: FREE is a stack."""
    for j in range(state.total[at.JOURNAL_COUNT] - 1, -1, -1):
        e = state.scratch[at.JOURNAL, 3 * j]
        if e != at.NONE:
            remove(graph, state, e)
        else:
            v = state.scratch[at.JOURNAL, 3 * j + 1]
            insert(graph, state, v, state.scratch[at.JOURNAL, 3 * j + 2])
    state.total[at.JOURNAL_COUNT] = 0
    refresh(state)


@kernel
def load(graph: FlatGraph, state: SearchState, steps: Ints) -> None:
    """Replace the executions by a valid sequence of ops. O(slots + reads)."""
    clear(state)
    slots = state.slot.shape[1]
    count = steps.size
    for j in range(count):
        v = steps[j]
        e = state.run[at.FREE, state.total[at.FREE_COUNT] - 1]
        state.total[at.FREE_COUNT] -= 1
        s = j * slots // count
        state.run[at.OP, e] = v
        state.run[at.PLACE, e] = s
        state.slot[at.EXECUTION, s] = e
        _link(state, e, v, state.op[at.LAST, v], at.NONE)
        for i in range(graph.op[flat.INPUTS, v], graph.op[flat.INPUTS, v + 1]):
            t = graph.input[i]
            producer = graph.tensor[flat.PRODUCER, t]
            k = t - graph.op[flat.OUTPUTS, producer]
            state.instance[at.LAST_READ, reading(state, producer, s) * graph.width + k] = e
        state.total[at.TIME] += graph.op[flat.COST, v]
    state.total[at.EXECUTIONS] = count
    _load_held(graph, state)
    touch(state, 0, slots)
    refresh(state)


@kernel
def _load_held(graph: FlatGraph, state: SearchState) -> None:
    slots = state.slot.shape[1]
    for s in range(slots):
        if state.slot[at.EXECUTION, s] != at.NONE:
            take_over(graph, state, state.slot[at.EXECUTION, s])
    state.slot[at.HELD, :] = 0
    for s in range(slots):
        e = state.slot[at.EXECUTION, s]
        if e == at.NONE:
            continue
        v = state.run[at.OP, e]
        for k in range(graph.op[flat.OUTPUTS, v + 1] - graph.op[flat.OUTPUTS, v]):
            nbytes = graph.tensor[flat.SIZE, graph.op[flat.OUTPUTS, v] + k]
            state.slot[at.HELD, s] += nbytes
            end = instance_end(graph, state, e, k)
            if end < slots:
                state.slot[at.HELD, end] -= nbytes
    running = graph.constant_bytes
    for s in range(slots):
        running += state.slot[at.HELD, s]
        e = state.slot[at.EXECUTION, s]
        if e != at.NONE:
            set_held(state, s, running + graph.op[flat.WORKSPACE, state.run[at.OP, e]])


@kernel
def read_steps(state: SearchState, steps: Ints) -> int:
    """Write the ops in order into `steps`; returns how many there are."""
    count = 0
    for s in range(state.slot.shape[1]):
        if state.slot[at.EXECUTION, s] != at.NONE:
            steps[count] = state.run[at.OP, state.slot[at.EXECUTION, s]]
            count += 1
    return count
