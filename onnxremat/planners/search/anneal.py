"""The annealing loop over the moves, compiled."""

# An element of an array is Any to mypy; to numba it has a type.
# mypy: disable-error-code="no-any-return"

import math

import numpy as np

from onnxremat.planners.search import arrays as at
from onnxremat.planners.search import flat
from onnxremat.planners.search.arrays import SearchState
from onnxremat.planners.search.edit import apply_wanted, has_room, load, read_steps, undo
from onnxremat.planners.search.flat import FlatGraph, Floats, Ints
from onnxremat.planners.search.kernels import entry, kernel
from onnxremat.planners.search.moves import (
    FIXED,
    evict,
    forget,
    hot_execution,
    random_execution,
    relocate,
    shift,
)
from onnxremat.planners.search.state import next_reader, reading, refresh

COUNT, BEST_COUNT, BEST_TIME, BEST_PEAK, ACCEPTED = range(5)
"""Positions in `tally`: length of the current and of the best sequence, the best's time and peak,
moves accepted."""

HOT, COLD, PENALTY, TIME_UNIT, COPYING, UP, DOWN, SPIKE = range(8)
"""Positions in `dial`. Temperature at the start and at the end, in times of an average op;
price of a target's worth of excess at one step, in the same unit; time of an average op; share of
moves that recompute; factors on the price, per 100 moves, while there is excess and while there
is none; weight of the peak beside the excess."""

EVICT, FORGET, RELOCATE, EXCHANGE, SHIFT = range(5)
"""Kinds of moves."""


@kernel
def cost_of(state: SearchState, dial: Floats) -> float:
    """Time in average ops, plus the penalty on what is above the target."""
    target = max(state.total[at.TARGET], 1)
    over = max(state.total[at.PEAK] - target, 0) * dial[SPIKE] + state.total[at.EXCESS]
    return state.total[at.TIME] / dial[TIME_UNIT] + dial[PENALTY] * over / target


@kernel
def random_kind(copying: float) -> int:
    """The kind of the next move."""
    if np.random.random() >= copying:
        return SHIFT
    u = np.random.random()
    if u < 0.45:
        return EVICT
    return FORGET if u < 0.7 else (RELOCATE if u < 0.85 else EXCHANGE)


@kernel
def propose(graph: FlatGraph, state: SearchState, rule: Ints, kind: int) -> bool:
    """Write what one random move of a kind wants."""
    state.total[at.WANTED_COUNT] = 0
    if kind == EVICT:
        e = hot_execution(state) if np.random.random() < 0.9 else random_execution(state)
        return evict(graph, state, rule, state.run[at.PLACE, e])
    if kind == RELOCATE:
        return relocate(graph, state)
    if kind == SHIFT:
        e = hot_execution(state) if np.random.random() < 0.3 else random_execution(state)
        return shift(graph, state, rule, e)
    return forget(state)


@kernel
def added_time(graph: FlatGraph, state: SearchState) -> int:
    """The time of the executions that a move wants to add, 0 if one it replaces may go for them."""
    time = 0
    for j in range(state.total[at.WANTED_COUNT]):
        v = state.scratch[at.WANTED, 2 * j]
        x = state.scratch[at.WANTED, 2 * j + 1]
        if v == at.REMOVE:
            return 0
        place = state.run[at.PLACE, x] if x != at.NONE else state.slot.shape[1]
        source = reading(state, v, place)
        start = state.run[at.PLACE, source]
        read = False
        for t in range(graph.op[flat.OUTPUTS, v], graph.op[flat.OUTPUTS, v + 1]):
            read |= next_reader(graph, state, t, start, place) != at.NONE
        if not read:
            return 0
        time += graph.op[flat.COST, v]
    return time


@kernel
def move(graph: FlatGraph, state: SearchState, rule: Ints, kind: int, latest: float) -> bool:
    """Do one random move; what it did is in the journal, even if it fails.

    One that would make the time `latest` or more, whatever it does to memory, fails unseen.
    """
    state.total[at.JOURNAL_COUNT] = 0
    while True:
        if not propose(graph, state, rule, kind) or not has_room(state, 3):
            return False
        if kind == EVICT and state.total[at.TIME] + added_time(graph, state) > latest:
            return False
        done = apply_wanted(graph, state, rule[FIXED])
        refresh(state)
        if kind != EXCHANGE or not done:
            return done
        kind = EVICT


@entry
def anneal(
    graph: FlatGraph,
    state: SearchState,
    steps: Ints,
    best: Ints,
    rule: Ints,
    tally: Ints,
    dial: Floats,
    iterations: int,
    seed: int,
) -> None:
    """Anneal `steps[:tally[COUNT]]` for some iterations; the best goes to `best`.

    Better is: within the target, then less time; outside it, a smaller peak.
    """
    np.random.seed(seed)
    load(graph, state, steps[: tally[COUNT]])
    cost = cost_of(state, dial)
    temperature = dial[HOT]
    cooling = (dial[COLD] / dial[HOT]) ** (100.0 / max(iterations, 1))
    for i in range(iterations):
        if i % 100 == 99:
            temperature *= cooling
            dial[PENALTY] *= dial[UP] if state.total[at.EXCESS] > 0 else dial[DOWN]
            dial[PENALTY] = min(max(dial[PENALTY], 1e-3), 1e6)
            cost = cost_of(state, dial)
        most = cost - temperature * math.log(1.0 - np.random.random())
        kind = random_kind(dial[COPYING])
        done = move(graph, state, rule, kind, most * dial[TIME_UNIT])
        new = cost_of(state, dial)
        if not done or new > most:
            undo(graph, state)
            continue
        cost = new
        tally[ACCEPTED] += 1
        if is_better(state, tally):
            tally[BEST_TIME] = state.total[at.TIME]
            tally[BEST_PEAK] = state.total[at.PEAK]
            tally[BEST_COUNT] = read_steps(state, best)
    tally[COUNT] = read_steps(state, steps)


@kernel
def is_better(state: SearchState, tally: Ints) -> bool:
    """Whether the state is better than the best so far."""
    peak, target = state.total[at.PEAK], state.total[at.TARGET]
    if peak > target:
        return peak < tally[BEST_PEAK]
    return tally[BEST_PEAK] > target or state.total[at.TIME] < tally[BEST_TIME]
