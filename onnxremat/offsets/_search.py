"""Depth-first search for a placement within a given arena, compiled; complete if not cut short.

Only *justified* placements are searched: every block lies at 0 or on top of another one, since
any placement can be pushed down to such a one. Time is cut into *sections*, one for each maximal
set of blocks alive together. A state has blocks placed from the bottom up, and for every waiting
block the lowest offset it can still have.

A branch takes one section and asks which block is the next one up in it: one of those that can lie
at the lowest offset possible there (only if no waiting block can get below it any more), or none
of them. In the last case each of these rests on a waiting block, which raises its lowest offset.
Every justified placement is in exactly one branch, so blocks are never tried in two orders.

Before it branches a state is cut off if a section cannot hold its waiting blocks above their
lowest offsets (one machine with release dates and a common deadline), or if some block could drop
into a hole that every other waiting block has passed (then a lower placement is in another
branch). A block that nobody can get below any more is placed without a branch. When the waiting
blocks fall apart in time, the parts are searched one by one, and the first that fails fails all.

Canonical placement from the bottom, section totals, dominance and decomposition in time are the
ideas of MiniMalloc (Moffitt 2023, ASPLOS 4, 238-252); branching by section, the deadline bound
and the learned section weights are not. Sizes and offsets are in any one unit.
"""

import numpy as np

from onnxremat.offsets import _layout as at
from onnxremat.offsets._jit import entry, kernel
from onnxremat.offsets._layout import PlacementState
from onnxremat.offsets._propagate import (
    DOMINATED,
    QUIET,
    fits,
    gather,
    journal_has_room,
    lift,
    put,
    settle,
    undo,
)


@kernel
def _push(state: PlacementState, kind: int, start: int, stop: int, mark: int) -> int:
    f = int(state.total[at.DEPTH])
    frame = state.frame
    frame[f, at.FROM] = start
    frame[f, at.TO] = stop
    frame[f, at.MARK] = mark
    frame[f, at.BRANCH_MARK] = state.total[at.JOURNAL]
    frame[f, at.OPTIONS_FROM] = state.total[at.OPTIONS]
    frame[f, at.KIND] = kind
    frame[f, at.NEXT] = 0
    frame[f, at.COUNT] = 0
    state.total[at.DEPTH] = f + 1
    return f


@kernel
def _list_parts(state: PlacementState, start: int, stop: int) -> int:
    """Write the parts in time that the waiting blocks fall into, smallest first, as pairs of
    sections to the options; how many."""
    parts = 0
    options = state.total[at.OPTIONS]
    begin = -1
    for s in range(start, stop):
        if state.section[at.LOAD, s] == 0:
            continue
        if begin < 0:
            begin = s
        if state.section[at.JOINED, s]:
            continue
        j = options + 2 * parts
        while j > options and state.option[j - 1] - state.option[j - 2] > s + 1 - begin:
            state.option[j] = state.option[j - 2]
            state.option[j + 1] = state.option[j - 1]
            j -= 2
        state.option[j] = begin
        state.option[j + 1] = s + 1
        parts += 1
        begin = -1
    return parts


@kernel
def _choose_section(state: PlacementState, start: int, stop: int, arena: int, rule: int) -> int:
    section = state.section
    best = -1
    best_key = 0.0
    for s in range(start, stop):
        if section[at.CHOICES, s] == 0 or section[at.IS_OPEN, s] == 0:
            continue
        slack = arena - section[at.NEED, s]
        choices = section[at.CHOICES, s] + (1 if slack > 0 else 0)
        if rule == at.BY_SLACK:
            key = slack * 1e3 + choices
        elif rule == at.BY_LEVEL:
            key = section[at.LOW_1, s] * 1e3 + choices
        else:
            key = (choices + 1e-3 * slack) / np.sqrt(1.0 + section[at.FAILURES, s])
        if best < 0 or key < best_key:
            best = s
            best_key = key
    return best


@kernel
def _has_twin(state: PlacementState, options: int, i: int) -> bool:
    """Whether an option before option i has its lifetime and size: to try one is enough."""
    block = state.block
    b = state.option[options + i]
    for j in range(options, options + i):
        c = state.option[j]
        same_lifetime = block[at.FIRST, b] == block[at.FIRST, c] and (
            block[at.STOP, b] == block[at.STOP, c]
        )
        if same_lifetime and block[at.SIZE, b] == block[at.SIZE, c]:
            return True
    return False


@kernel
def _list_choices(state: PlacementState, count: int, s: int) -> int:
    """Write the blocks that can lie lowest in section s to the options, by priority; how many."""
    options = state.total[at.OPTIONS]
    choices = 0
    for k in range(count):
        b = state.listed[at.MEMBER, k]
        if not state.block[at.FIRST, b] <= s < state.block[at.STOP, b]:
            continue
        if state.block[at.LOW, b] != state.section[at.LOW_1, s]:
            continue
        j = options + choices
        while j > options and state.block[at.RANK, state.option[j - 1]] < state.block[at.RANK, b]:
            state.option[j] = state.option[j - 1]
            j -= 1
        state.option[j] = b
        choices += 1
    return choices


@kernel
def _visit_next(state: PlacementState, start: int, stop: int) -> None:
    state.total[at.VISITING] = 1
    state.total[at.BEGIN] = start
    state.total[at.END] = stop


@kernel
def _answer(state: PlacementState, yes: int) -> None:
    state.total[at.VISITING] = 0
    state.total[at.ANSWER] = yes


@kernel
def _has_room(state: PlacementState) -> bool:
    """Whether the stacks can take whatever one node adds."""
    listed = state.total[at.OPTIONS] + state.block.shape[1] + 2 * state.section.shape[1]
    return bool(
        state.total[at.DEPTH] < len(state.frame)
        and listed < len(state.option)
        and journal_has_room(state)
    )


@kernel
def _visit(state: PlacementState, arena: int, rule: int) -> None:
    """Answer for the sections to visit at once, or push a frame of what to ask."""
    start, stop = state.total[at.BEGIN], state.total[at.END]
    mark = state.total[at.JOURNAL]
    state.total[at.NODES] += 1
    while True:
        count = gather(state, start, stop)
        if count == 0:
            _answer(state, 1)
            return
        if not _has_room(state):
            state.total[at.STATUS] = at.GAVE_UP
            return
        verdict = DOMINATED
        if fits(state, count, start, stop, arena):
            verdict = settle(state, count)
        if verdict == DOMINATED:
            undo(state, mark)
            _answer(state, 0)
            return
        if verdict == QUIET:
            break
    parts = _list_parts(state, start, stop)
    if parts > 1:
        f = _push(state, at.ALL_OF, start, stop, mark)
        state.frame[f, at.COUNT] = parts
        state.total[at.OPTIONS] += 2 * parts
    else:
        f = _push(state, at.ANY_OF, start, stop, mark)
        choices = _list_choices(state, count, _choose_section(state, start, stop, arena, rule))
        state.frame[f, at.COUNT] = choices
        state.total[at.OPTIONS] += choices
    _take(state, f)


@kernel
def _take(state: PlacementState, f: int) -> None:
    """Visit the next option of frame f."""
    frame = state.frame
    i = frame[f, at.NEXT]
    options = frame[f, at.OPTIONS_FROM]
    if frame[f, at.KIND] == at.ALL_OF:
        frame[f, at.NEXT] = i + 1
        _visit_next(state, state.option[options + 2 * i], state.option[options + 2 * i + 1])
        return
    while i < frame[f, at.COUNT] and _has_twin(state, options, i):
        i += 1
    frame[f, at.NEXT] = i + 1
    if i < frame[f, at.COUNT]:
        put(state, state.option[options + i])
    else:
        for k in range(frame[f, at.COUNT]):
            lift(state, state.option[options + k])
    _visit_next(state, frame[f, at.FROM], frame[f, at.TO])


@kernel
def _use_answer(state: PlacementState) -> None:
    """Hand the answer to the top frame: it asks its next option, or is done and answers itself."""
    if state.total[at.DEPTH] == 0:
        state.total[at.STATUS] = at.FOUND if state.total[at.ANSWER] else at.REFUTED
        return
    f = state.total[at.DEPTH] - 1
    frame = state.frame
    if frame[f, at.KIND] == at.ALL_OF:
        goes_on = state.total[at.ANSWER] == 1 and frame[f, at.NEXT] < frame[f, at.COUNT]
    else:
        # One option more than there are choices: none of them.
        goes_on = state.total[at.ANSWER] == 0 and frame[f, at.NEXT] <= frame[f, at.COUNT]
        if goes_on:
            undo(state, frame[f, at.BRANCH_MARK])
    if goes_on:
        _take(state, f)
        return
    if state.total[at.ANSWER] == 0:
        undo(state, frame[f, at.MARK])
    state.total[at.OPTIONS] = frame[f, at.OPTIONS_FROM]
    state.total[at.DEPTH] = f


@entry
def restart(state: PlacementState) -> None:
    """Forget everything but the priorities."""
    state.section[at.FAILURES, :] = 0
    state.block[at.LOW : at.PLACED + 1, :] = 0
    state.total[:] = 0
    state.total[at.STATUS] = at.RUNNING
    _visit_next(state, 0, state.section.shape[1])


@entry
def search(state: PlacementState, arena: int, rule: int, nodes: int, work: int) -> int:
    """Search on until a placement within `arena` is FOUND or REFUTED, `nodes` have been visited
    (GAVE_UP) or `work` steps of inner loops done (RUNNING: call again). Row LOW has the offsets
    when FOUND. O(blocks * sections of a block) a node.
    """
    until = state.total[at.WORK] + work
    while state.total[at.STATUS] == at.RUNNING and state.total[at.WORK] < until:
        if state.total[at.VISITING] == 0:
            _use_answer(state)
        elif state.total[at.NODES] < nodes:
            _visit(state, arena, rule)
        else:
            state.total[at.STATUS] = at.GAVE_UP
    return int(state.total[at.STATUS])
