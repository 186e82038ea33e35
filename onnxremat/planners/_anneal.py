"""The annealing loop over the moves, compiled."""

import math

import numpy as np

from onnxremat.planners._edit import load, read_steps, undo
from onnxremat.planners._flat import Floats, FlatGraph, Ints
from onnxremat.planners._jit import entry, kernel
from onnxremat.planners._moves import (
    evict,
    exchange,
    forget,
    hot_slot,
    random_used_slot,
    relocate,
    shift,
)
from onnxremat.planners._state import (
    EXCESS,
    JOURNAL,
    NONE,
    PEAK,
    TARGET,
    TIME,
    State,
    refresh,
    retarget,
)

COUNT, BEST_COUNT, BEST_TIME, BEST_PEAK, MINIMISE, ACCEPTED = range(6)
"""Positions in `tally`: length of the current and of the best sequence, the best's time and peak,
1 to lower the target whenever it is met."""

HOT, COLD, PENALTY, TIME_UNIT, COPYING = range(5)
"""Positions in `dial`: temperature at the start and at the end in units of time, penalty factor,
the time of an average op, and the share of moves that recompute."""


@kernel
def cost_of(state: State, dial: Floats) -> float:
    """Time in average ops, plus the penalty on what is above the target."""
    target = max(state.total[TARGET], 1)
    over = max(state.total[PEAK] - target, 0) * 20.0 + state.total[EXCESS]
    return state.total[TIME] / dial[TIME_UNIT] + dial[PENALTY] * over / target


@kernel
def move(graph: FlatGraph, state: State, rule: Ints, copying: float) -> bool:
    """One random move."""
    u = np.random.random()
    if u < copying:
        u = np.random.random()
        if u < 0.4:
            return evict(graph, state, rule, hot_slot(state))
        if u < 0.65:
            return forget(graph, state, rule)
        if u < 0.8:
            return relocate(graph, state, rule)
        if u < 0.95:
            return exchange(graph, state, rule)
        return evict(graph, state, rule, random_used_slot(state))
    s = hot_slot(state) if np.random.random() < 0.3 else random_used_slot(state)
    return shift(graph, state, rule, state.slot[s])


@entry
def anneal(
    graph: FlatGraph,
    state: State,
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
    retarget(state, state.total[TARGET])
    cost = cost_of(state, dial)
    temperature = dial[HOT]
    cooling = (dial[COLD] / dial[HOT]) ** (100.0 / max(iterations, 1))
    for i in range(iterations):
        if i % 100 == 99:
            temperature *= cooling
            dial[PENALTY] *= 1.01 if state.total[EXCESS] > 0 else 0.99
            dial[PENALTY] = min(max(dial[PENALTY], 1e-3), 1e6)
            cost = cost_of(state, dial)
        state.total[JOURNAL] = 0
        if not move(graph, state, rule, dial[COPYING]):
            undo(graph, state)
            refresh(state)
            continue
        refresh(state)
        new = cost_of(state, dial)
        if new > cost and np.random.random() >= math.exp((cost - new) / temperature):
            undo(graph, state)
            refresh(state)
            continue
        cost = new
        tally[ACCEPTED] += 1
        if _is_better(state, tally):
            tally[BEST_TIME] = state.total[TIME]
            tally[BEST_PEAK] = state.total[PEAK]
            tally[BEST_COUNT] = read_steps(state, best)
            if tally[MINIMISE] and state.total[EXCESS] == 0:
                retarget(state, int(state.total[PEAK] * 0.985))
                cost = cost_of(state, dial)
    tally[COUNT] = read_steps(state, steps)


@kernel
def _is_better(state: State, tally: Ints) -> bool:
    peak = state.total[PEAK]
    if tally[MINIMISE] or peak > state.total[TARGET]:
        return peak < tally[BEST_PEAK]
    return tally[BEST_PEAK] > state.total[TARGET] or state.total[TIME] < tally[BEST_TIME]
