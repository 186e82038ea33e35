"""The moves of the search. Each reads the state and writes what it wants (`at.WANTED`).

A move returns False if it found nothing to do. `rule` says what a schedule may be: see MAX_RUNS
and FIXED.
"""

# An element of an array is Any to mypy; to numba it has a type.
# mypy: disable-error-code="no-any-return"

import numpy as np

from onnxremat.planners.search import arrays as at
from onnxremat.planners.search import flat
from onnxremat.planners.search.arrays import SearchState
from onnxremat.planners.search.edit import has_room
from onnxremat.planners.search.flat import FlatGraph, Ints
from onnxremat.planners.search.kernels import kernel
from onnxremat.planners.search.state import (
    held_at,
    instance_end,
    is_pinned,
    next_reader,
    reading,
    slot_after,
    slot_before,
)

MAX_RUNS, FIXED = range(2)
"""Positions in `rule`: most executions of one op; 1 if first executions keep their order, and stay
if nobody reads them."""

CHAIN = 24
"""The most ops that one move recomputes."""


@kernel
def want(state: SearchState, op: int, execution: int) -> None:
    """Run `op` right before `execution` (NONE: at the end), or at.REMOVE it."""
    count = state.total[at.WANTED_COUNT]
    state.scratch[at.WANTED, 2 * count] = op
    state.scratch[at.WANTED, 2 * count + 1] = execution
    state.total[at.WANTED_COUNT] = count + 1


@kernel
def random_execution(state: SearchState) -> int:
    """An execution, each about as likely as the gap before it is long."""
    s = slot_after(state, np.random.randint(state.slot.shape[1]) - 1)
    return state.slot[at.EXECUTION, s if s != at.NONE else slot_after(state, at.NONE)]


@kernel
def hot_execution(state: SearchState) -> int:
    """A random execution above the target; any one if there is none."""
    if state.total[at.EXCESS] == 0:
        return random_execution(state)
    blocks = state.block.shape[1]
    b = np.random.randint(blocks)
    while state.block[at.BLOCK_EXCESS, b] == 0:
        b = (b + 1) % blocks
    offset = np.random.randint(at.BLOCK)
    while (
        state.slot[at.EXECUTION, b * at.BLOCK + offset] == at.NONE
        or held_at(state, b * at.BLOCK + offset) <= state.total[at.TARGET]
    ):
        offset = (offset + 1) % at.BLOCK
    return state.slot[at.EXECUTION, b * at.BLOCK + offset]


@kernel
def spanning_instance(graph: FlatGraph, state: SearchState, slot: int) -> int:
    """The larger of two random instances that are held across `slot`, or NONE."""
    best = at.NONE
    best_size = -1
    found = 0
    for _ in range(24):
        u = np.random.random()
        s = slot_before(state, slot - int(slot * u * u))
        if s == at.NONE:
            continue
        e = state.slot[at.EXECUTION, s]
        v = state.run[at.OP, e]
        outputs = graph.op[flat.OUTPUTS, v + 1] - graph.op[flat.OUTPUTS, v]
        if graph.op[flat.ONCE, v] or outputs == 0:
            continue
        k = np.random.randint(outputs)
        if instance_end(graph, state, e, k) <= slot + 1:
            continue
        size = graph.tensor[flat.SIZE, graph.op[flat.OUTPUTS, v] + k]
        if size > best_size:
            best = e * graph.width + k
            best_size = size
        found += 1
        if found == 2:
            break
    return best


@kernel
def evict(graph: FlatGraph, state: SearchState, rule: Ints, slot: int) -> bool:
    """Free an instance held across `slot` and recompute it right before its next reader."""
    i = spanning_instance(graph, state, slot)
    if i == at.NONE:
        return False
    e = i // graph.width
    k = i - e * graph.width
    v = state.run[at.OP, e]
    if state.op[at.RUNS, v] >= rule[MAX_RUNS]:
        return False
    later = state.run[at.LATER, e]
    end = state.run[at.PLACE, later] if later != at.NONE else state.slot.shape[1]
    x = next_reader(graph, state, graph.op[flat.OUTPUTS, v] + k, slot, end)
    if x == at.NONE and not is_pinned(graph, state, e, k):
        return False
    if np.random.random() < 0.1:
        before = state.run[at.PLACE, x] if x != at.NONE else state.slot.shape[1]
        s = slot_after(state, slot + np.random.randint(before - slot))
        x = state.slot[at.EXECUTION, s] if s != at.NONE else at.NONE
    return recompute_before(graph, state, rule, v, x)


@kernel
def recompute_before(graph: FlatGraph, state: SearchState, rule: Ints, v: int, x: int) -> bool:
    """Execute v before execution x, and perhaps inputs that are no longer held there."""
    willing = np.random.random()
    willing = 0.0 if willing < 0.4 else (1.0 if willing > 0.8 else 0.5)
    longest = 1 + np.random.randint(CHAIN)
    place = state.run[at.PLACE, x] if x != at.NONE else state.slot.shape[1]
    chain = state.scratch[at.STACK]
    chain[0] = v
    count = 1
    j = 0
    while j < count and willing > 0.0:
        v = chain[j]
        j += 1
        for p in range(graph.op[flat.INPUTS, v], graph.op[flat.INPUTS, v + 1]):
            t = graph.input[p]
            u = graph.tensor[flat.PRODUCER, t]
            if count >= longest or graph.op[flat.ONCE, u]:
                continue
            if state.op[at.RUNS, u] >= rule[MAX_RUNS]:
                continue
            source = reading(state, u, place)
            if instance_end(graph, state, source, t - graph.op[flat.OUTPUTS, u]) >= place:
                continue
            if np.random.random() < willing and not _among(chain, count, u):
                chain[count] = u
                count += 1
    _sort(chain, count)
    for j in range(count):
        want(state, chain[j], x)
    return has_room(state, count)


@kernel
def _among(chain: Ints, count: int, v: int) -> bool:
    found = False
    for j in range(count):
        found |= chain[j] == v
    return found


@kernel
def _sort(chain: Ints, count: int) -> None:
    """Ops in a topological order: that of their numbers."""
    for j in range(1, count):
        v = chain[j]
        i = j
        while i > 0 and chain[i - 1] > v:
            chain[i] = chain[i - 1]
            i -= 1
        chain[i] = v


@kernel
def random_repetition(state: SearchState) -> int:
    """A random execution of an op, not its first; NONE if there is none."""
    if state.total[at.REPEATED_COUNT] == 0:
        return at.NONE
    e = state.run[at.REPEATED, np.random.randint(state.total[at.REPEATED_COUNT])]
    return e if state.run[at.EARLIER, e] != at.NONE else state.run[at.LATER, e]


@kernel
def forget(state: SearchState) -> bool:
    """Remove a recomputation."""
    e = random_repetition(state)
    if e == at.NONE:
        return False
    want(state, at.REMOVE, e)
    return True


@kernel
def relocate(graph: FlatGraph, state: SearchState) -> bool:
    """Move a recomputation to right before some reader of its op."""
    e = random_repetition(state)
    if e == at.NONE:
        return False
    v = state.run[at.OP, e]
    outputs = graph.op[flat.OUTPUTS, v + 1] - graph.op[flat.OUTPUTS, v]
    t = graph.op[flat.OUTPUTS, v] + np.random.randint(outputs)
    first = graph.tensor[flat.READERS, t]
    readers = graph.tensor[flat.READERS, t + 1] - first
    if readers == 0:
        return False
    x = state.op[at.LAST, graph.reader[first + np.random.randint(readers)]]
    while state.run[at.EARLIER, x] != at.NONE and np.random.random() < 0.5:
        x = state.run[at.EARLIER, x]
    if slot_before(state, state.run[at.PLACE, x]) == state.run[at.PLACE, e]:
        return False
    want(state, v, x)
    want(state, at.REMOVE, e)
    return True


@kernel
def shift(graph: FlatGraph, state: SearchState, rule: Ints, e: int) -> bool:
    """Move execution e earlier or later, between what it reads and its readers."""
    if rule[FIXED] and state.run[at.EARLIER, e] == at.NONE:
        return False
    p = state.run[at.PLACE, e]
    backward = np.random.random() < 0.5
    low = earliest_slot(graph, state, e) if backward else p
    high = p if backward else latest_slot(graph, state, e)
    u = np.random.random()
    if u < 0.3:
        after = low if backward else high - 1
    elif u < 0.65:
        after = low + int((high - low) * np.random.random())
    else:
        distance = 1 + int(16 * np.random.random() ** 2)
        after = max(low, p - 1 - distance) if backward else min(high - 1, p + distance)
    s = slot_after(state, after)
    if s == p or s == slot_after(state, p):
        return False
    want(state, state.run[at.OP, e], state.slot[at.EXECUTION, s] if s != at.NONE else at.NONE)
    want(state, at.REMOVE, e)
    return True


@kernel
def earliest_slot(graph: FlatGraph, state: SearchState, e: int) -> int:
    """The slot after which execution e may stand."""
    v = state.run[at.OP, e]
    if state.run[at.EARLIER, e] != at.NONE:
        return state.run[at.PLACE, state.run[at.EARLIER, e]]
    low = at.NONE
    for j in range(graph.op[flat.INPUTS, v], graph.op[flat.INPUTS, v + 1]):
        first = state.op[at.FIRST, graph.tensor[flat.PRODUCER, graph.input[j]]]
        low = max(low, state.run[at.PLACE, first])
    return low


@kernel
def latest_slot(graph: FlatGraph, state: SearchState, e: int) -> int:
    """The slot before which execution e must stand to serve its readers."""
    v = state.run[at.OP, e]
    later = state.run[at.LATER, e]
    high = state.run[at.PLACE, later] if later != at.NONE else state.slot.shape[1]
    for t in range(graph.op[flat.OUTPUTS, v], graph.op[flat.OUTPUTS, v + 1]):
        x = next_reader(graph, state, t, state.run[at.PLACE, e], high)
        if x != at.NONE:
            high = state.run[at.PLACE, x]
    return high
