"""The moves of the search. Each edits the state through the journal and says whether it did.

A move that returns False may have edited the state: the caller undoes the journal in any case.
`rule` holds what a schedule may be: see MAX_RUNS and FIXED.
"""

import numpy as np

from onnxremat.planners._edit import insert_logged, remove_logged
from onnxremat.planners._flat import FlatGraph, Ints
from onnxremat.planners._jit import kernel
from onnxremat.planners._state import (
    BLOCK,
    EXCESS,
    FREE_TOP,
    JOURNAL,
    NONE,
    REPEATED,
    TARGET,
    State,
    instance_end,
    is_dead,
    is_pinned,
    next_reader,
    reading,
    refresh,
    slot_after,
    slot_before,
)

MAX_RUNS, FIXED = range(2)
"""Positions in `rule`: most executions of one op; 1 if first executions keep their order."""

CHAIN = 24
"""The most ops that one move recomputes."""


@kernel
def has_room(state: State, count: int) -> bool:
    """Whether `count` more executions and journal entries fit."""
    return (
        state.total[FREE_TOP] > count + 1
        and 3 * (state.total[JOURNAL] + count) < state.journal.size
    )


@kernel
def drop(graph: FlatGraph, state: State, rule: Ints, e: int) -> bool:
    """Remove execution e, then every execution that nobody needs any more."""
    state.stack[0] = e
    top = 1
    forced = True
    while top > 0:
        top -= 1
        e = state.stack[top]
        if not forced and (state.slot[state.place[e]] != e or not is_dead(graph, state, e)):
            continue
        forced = False
        if (rule[FIXED] and state.earlier[e] == NONE) or not has_room(state, 1):
            return False
        v = state.op[e]
        p = state.place[e]
        remove_logged(graph, state, e)
        for j in range(graph.in_ptr[v], graph.in_ptr[v + 1]):
            source = reading(state, graph.producer[graph.in_t[j]], p)
            if top < state.stack.size - CHAIN - 2 and is_dead(graph, state, source):
                state.stack[top] = source
                top += 1
    return True


@kernel
def execute_before(graph: FlatGraph, state: State, rule: Ints, v: int, slot: int) -> bool:
    """Execute op v once more, right before the used slot `slot` (or the end)."""
    if not has_room(state, 1) or graph.once[v] or state.runs[v] >= rule[MAX_RUNS]:
        return False
    s = slot_before(state, slot)
    e = insert_logged(graph, state, v, state.slot[s] if s != NONE else NONE)
    before = state.earlier[e]
    return before == NONE or not is_dead(graph, state, before) or drop(graph, state, rule, before)


@kernel
def random_used_slot(state: State) -> int:
    """A used slot, each about as likely as the gap before it is long."""
    s = slot_after(state, np.random.randint(state.slot.size) - 1)
    return s if s != NONE else slot_after(state, NONE)


@kernel
def hot_slot(state: State) -> int:
    """A random slot above the target; any used one if there is none."""
    if state.total[EXCESS] == 0:
        return random_used_slot(state)
    blocks = state.block_excess.size
    b = np.random.randint(blocks)
    while state.block_excess[b] == 0:
        b = (b + 1) % blocks
    offset = np.random.randint(BLOCK)
    while state.held[b * BLOCK + offset] <= state.total[TARGET]:
        offset = (offset + 1) % BLOCK
    return b * BLOCK + offset


@kernel
def spanning_instance(graph: FlatGraph, state: State, slot: int) -> int:
    """A random instance that is held across `slot` unused, large ones more likely; or NONE."""
    best = NONE
    best_size = -1
    found = 0
    for _ in range(24):
        u = np.random.random()
        s = slot_before(state, slot - int(slot * u * u))
        if s == NONE:
            continue
        e = state.slot[s]
        v = state.op[e]
        if graph.once[v]:
            continue
        k = np.random.randint(graph.out_ptr[v + 1] - graph.out_ptr[v])
        if instance_end(graph, state, e, k) <= slot + 1:
            continue
        size = graph.size[graph.out_ptr[v] + k]
        if size > best_size:
            best = e * graph.width + k
            best_size = size
        found += 1
        if found == 2:
            break
    return best


@kernel
def evict(graph: FlatGraph, state: State, rule: Ints, slot: int) -> bool:
    """Free an instance held across `slot` and recompute it right before its next reader."""
    i = spanning_instance(graph, state, slot)
    if i == NONE:
        return False
    e = i // graph.width
    k = i - e * graph.width
    v = state.op[e]
    later = state.later[e]
    end = state.place[later] if later != NONE else state.slot.size
    x = next_reader(graph, state, graph.out_ptr[v] + k, slot, end)
    if x == NONE and not is_pinned(graph, state, e, k):
        return False
    at = state.place[x] if x != NONE else state.slot.size
    if np.random.random() < 0.1:
        s = slot_after(state, slot + np.random.randint(at - slot))
        at = s if s != NONE else at
    return recompute_at(graph, state, rule, v, at)


@kernel
def _among(state: State, base: int, count: int, v: int) -> bool:
    for j in range(base, base + count):
        if state.stack[j] == v:
            return True
    return False


@kernel
def _sort(state: State, base: int, count: int) -> None:
    """Ops in a topological order: that of their numbers."""
    for j in range(base + 1, base + count):
        v = state.stack[j]
        i = j
        while i > base and state.stack[i - 1] > v:
            state.stack[i] = state.stack[i - 1]
            i -= 1
        state.stack[i] = v


@kernel
def recompute_at(graph: FlatGraph, state: State, rule: Ints, v: int, at: int) -> bool:
    """Execute v before slot `at`, and perhaps inputs that are no longer held there."""
    willing = np.random.random()
    willing = 0.0 if willing < 0.4 else (1.0 if willing > 0.8 else 0.5)
    longest = 1 + np.random.randint(CHAIN)
    x = state.slot[at] if at < state.slot.size else NONE
    base = state.stack.size - CHAIN - 1
    state.stack[base] = v
    count = 1
    j = 0
    while j < count and willing > 0.0:
        v = state.stack[base + j]
        j += 1
        for p in range(graph.in_ptr[v], graph.in_ptr[v + 1]):
            t = graph.in_t[p]
            u = graph.producer[t]
            if count >= longest or graph.once[u] or state.runs[u] >= rule[MAX_RUNS]:
                continue
            source = reading(state, u, at)
            if instance_end(graph, state, source, t - graph.out_ptr[u]) >= at:
                continue
            if np.random.random() < willing and not _among(state, base, count, u):
                state.stack[base + count] = u
                count += 1
    _sort(state, base, count)
    for j in range(count):
        slot = state.place[x] if x != NONE else state.slot.size
        if not execute_before(graph, state, rule, state.stack[base + j], slot):
            return False
    return True


@kernel
def forget(graph: FlatGraph, state: State, rule: Ints) -> bool:
    """Remove a random execution of an op that runs more than once; not the first one."""
    if state.total[REPEATED] == 0:
        return False
    e = state.repeated[np.random.randint(state.total[REPEATED])]
    if state.earlier[e] == NONE:
        e = state.later[e]
    return drop(graph, state, rule, e)


@kernel
def relocate(graph: FlatGraph, state: State, rule: Ints) -> bool:
    """Move a recomputation to right before some reader of its op."""
    if state.total[REPEATED] == 0:
        return False
    e = state.repeated[np.random.randint(state.total[REPEATED])]
    if state.earlier[e] == NONE:
        e = state.later[e]
    v = state.op[e]
    t = graph.out_ptr[v] + np.random.randint(graph.out_ptr[v + 1] - graph.out_ptr[v])
    readers = graph.reader_ptr[t + 1] - graph.reader_ptr[t]
    if readers == 0:
        return False
    x = state.last[graph.reader[graph.reader_ptr[t] + np.random.randint(readers)]]
    while state.earlier[x] != NONE and np.random.random() < 0.5:
        x = state.earlier[x]
    if reading(state, v, state.place[x]) == e and slot_before(state, state.place[x]) == (
        state.place[e]
    ):
        return False
    runs = rule[MAX_RUNS]
    rule[MAX_RUNS] = runs + 1
    done = execute_before(graph, state, rule, v, state.place[x])
    rule[MAX_RUNS] = runs
    if not done:
        return False
    gone = state.slot[state.place[e]] != e or state.op[e] != v
    return gone or state.earlier[e] == NONE or drop(graph, state, rule, e)


@kernel
def exchange(graph: FlatGraph, state: State, rule: Ints) -> bool:
    """Remove a recomputation, then free something else where that was too much."""
    if not forget(graph, state, rule):
        return False
    refresh(state)
    return evict(graph, state, rule, hot_slot(state))


@kernel
def earliest_slot(graph: FlatGraph, state: State, e: int) -> int:
    """The slot after which execution e may stand."""
    v = state.op[e]
    if state.earlier[e] != NONE:
        return state.place[state.earlier[e]]
    low = NONE
    for j in range(graph.in_ptr[v], graph.in_ptr[v + 1]):
        low = max(low, state.place[state.first[graph.producer[graph.in_t[j]]]])
    return low


@kernel
def latest_slot(graph: FlatGraph, state: State, e: int) -> int:
    """The slot before which execution e must stand to serve its readers."""
    v = state.op[e]
    high = state.place[state.later[e]] if state.later[e] != NONE else state.slot.size
    for k in range(graph.out_ptr[v + 1] - graph.out_ptr[v]):
        x = next_reader(graph, state, graph.out_ptr[v] + k, state.place[e], high)
        if x != NONE:
            high = state.place[x]
    return high


@kernel
def shift(graph: FlatGraph, state: State, rule: Ints, e: int) -> bool:
    """Move execution e earlier or later, between what it reads and its readers."""
    if rule[FIXED] and state.earlier[e] == NONE:
        return False
    p = state.place[e]
    backward = np.random.random() < 0.5
    low = earliest_slot(graph, state, e) if backward else p
    high = p if backward else latest_slot(graph, state, e)
    u = np.random.random()
    if u < 0.3:
        at = low if backward else high - 1
    elif u < 0.65:
        at = low + int((high - low) * np.random.random())
    else:
        distance = 1 + int(16 * np.random.random() ** 2)
        at = max(low, p - 1 - distance) if backward else min(high - 1, p + distance)
    q = slot_before(state, at + 1)
    if q == p or q == slot_before(state, p) or (backward and q < low) or not has_room(state, 2):
        return False
    v = state.op[e]
    new = insert_logged(graph, state, v, state.slot[q] if q != NONE else NONE)
    before = state.earlier[new]
    if not drop(graph, state, rule, e):
        return False
    if before != NONE and before != e and is_dead(graph, state, before):
        return drop(graph, state, rule, before)
    return True

