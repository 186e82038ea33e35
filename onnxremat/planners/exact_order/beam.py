"""Beam search for the smallest peak over the downsets of the exact search, compiled.

Layer k holds downsets of k units (`exact_order.downsets` has the terms). A layer is extended by
every ready unit whose step stays below the threshold, equal downsets are merged, the smaller peak
kept, and the best `width` make the next layer. *Backward* it begins with all units and takes away
one that nobody left reads from; graphs with a bottleneck near their end are easier from there. Best
is the least

    live(S)    or    live(S) + sum of bytes(t) x share of the readers of t that are left, t live

in turn (backward always the first): what is live does not tell that it is about to go, the sum
does. The peak so far does not rank: it is below the threshold, and only that counts. The threshold
lies between the bound and the best known peak, nearer to the latter, and the width doubles, each
time that both directions failed.

*Free units.* Forward, one that is ready is the only way to go on (`exact_order.rising_threshold`,
reduction 2). Backward, so is a unit v whose going does not grow live, live(S - v) <= live(S), and
whose step stays below. Proof: in an order through S move v to the last place within S. Its growth
from S - v is not negative, so that from any smaller P is not either, and P holds no more than P +
v. A unit u that now runs from P, instead of P + v, cannot let go or take over what v reads as well;
of such tensors, if nobody else has them to read, v lets go at S - v but not at P: so by as much
does its growth from P exceed that from S - v, and live(P + v) was above live(P) by it. So no step
gets larger.

*Proof as a by-product.* A layer that never exceeded the width holds every downset that matters, so
a run that dies out without having dropped one proves that no order stays below the threshold, and
none is below the least step that was refused. Downsets are compared bit by bit, not by hash.

O(layers x width x (ready x reads x readers)); some 10^6 downsets a second. Beam search on the
states of Ahn et al. 2020 (Serenity); ranks and proof are ours.
"""

# An element of an array is Any to mypy; to numba it has a type.
# mypy: disable-error-code="no-any-return"

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onnxremat.core.deadline import Deadline
from onnxremat.core.graph import Graph
from onnxremat.core.memory import MemoryRules
from onnxremat.planners.exact_order.downsets import Facts, units
from onnxremat.planners.search.flat import Ints
from onnxremat.planners.search.kernels import entry, kernel

FIRST_WIDTH = 64
FIRST_PULL = 0.25
"""How far below the best peak, towards the bound, the first runs look for an order."""
MOST_BYTES = 1 << 28
"""Of all arrays together, about."""
MOST_UNITS = 30_000
STATE_SECONDS, UNIT_SECONDS = 1.5e-6, 3.5e-9
"""Of work, counted for a state, and for each unit of the graph beside that."""

Shorts = npt.NDArray[np.int16]

# Columns of States.number and of candidates.
LIVE, PEAK, HASH, PARTIAL, READY = range(5)
# More columns of candidates. PARTIAL: the sum of the second rank. FROM: the state extended by UNIT.
RANK, FROM, UNIT = range(4, 7)
# Rows of UnitArrays.member: starts of `frees` and `pairs`; bytes that it holds; its growth of live
# before anything is freed.
FREES, PAIRS, HOLDS, KEEPS = range(4)
# Rows of UnitArrays.unit: starts of `member`, `reads`, `before` and `behind`; and a random number.
MEMBERS, READS, BEFORE, BEHIND, RANDOM = range(5)
# Positions in `tally`: the peak must stay below; weight of PARTIAL; least step refused; whether
# units are taken away.
BELOW, WEIGHT, REFUSED, BACKWARD = range(4)


class UnitArrays(NamedTuple):
    """Units as flat arrays. `pairs` has rows: tensor, output, whether the unit made the tensor.
    `readers` are units, from `tensor[0, t]`; `tensor[1]` are bytes, `taken` is workspace."""

    unit: Ints
    member: Ints
    tensor: Ints
    frees: Ints
    pairs: Ints
    reads: Ints
    before: Ints
    behind: Ints
    readers: Ints
    taken: Ints


class States(NamedTuple):
    """A layer: downsets as rows of bits, the units ready there, and numbers by column."""

    done: Ints
    ready: Shorts
    number: Ints


@dataclass(frozen=True, slots=True)
class BeamOrder:
    """`order` is the best found, with `peak_bytes`, None if none was below what was asked for. No
    order has a peak below `bound_bytes`. `states` downsets were looked at."""

    order: tuple[int, ...] | None
    peak_bytes: int
    bound_bytes: int
    states: int


def beam_order(
    graph: Graph,
    rules: MemoryRules,
    target: int,
    below_bytes: int,
    *,
    deadline: Deadline,
    first_width: int = FIRST_WIDTH,
    most_states: int | None = None,
) -> BeamOrder:
    """The best order with a peak below `below_bytes`; one of `target` bytes will do.

    Ends when it is found or proved not to exist, at the deadline (asked once a layer), after
    `most_states`, or when the width would take more than MOST_BYTES.
    """
    search = _Beam(graph, rules, deadline, most_states)
    order, peak, bound = None, below_bytes, 0
    width, pull, partial = first_width, FIRST_PULL, True
    backward, failures = False, 0
    while peak > max(target, bound) and not search.over() and search.fits(width):
        below = peak - int(pull * (peak - max(target, bound)))
        found = search.run(width, below, partial=partial, backward=backward)
        bound = max(bound, min(search.proved_bytes, peak))
        if found is not None:
            order, peak = found
            failures = 0
            continue
        backward, failures = not backward, failures + 1
        if failures == 2:
            width, pull, partial = 2 * width, pull / 2, not partial
            failures = 0
    return BeamOrder(order, peak, bound, search.states)


class _Beam:
    """Runs of one search. No order has a peak below `proved_bytes`, as the last run proved."""

    def __init__(
        self,
        graph: Graph,
        rules: MemoryRules,
        deadline: Deadline,
        most_states: int | None,
    ) -> None:
        facts = Facts(graph, rules)
        self.units = units(facts)
        self.arrays = _unit_arrays(facts, self.units)
        self.states = 0
        self.proved_bytes = 0
        self._constant_bytes = facts.constant_bytes
        self._deadline = deadline
        self._most_states = most_states
        self._words = (len(self.units) + 63) // 64
        self._state_seconds = STATE_SECONDS + len(self.units) * UNIT_SECONDS

    def over(self) -> bool:
        """Whether to stop now."""
        return self._deadline.over() or (
            self._most_states is not None and self.states >= self._most_states
        )

    def fits(self, width: int) -> bool:
        """Whether a run of this width takes no more than half of MOST_BYTES for its states."""
        count = len(self.units)
        a_state = 2 * (8 * self._words + 2 * count + 8 * 5) + 8 * count
        return count <= MOST_UNITS and width * a_state <= MOST_BYTES

    def run(
        self, width: int, below_bytes: int, *, partial: bool, backward: bool
    ) -> tuple[tuple[int, ...], int] | None:
        """An order with a peak below `below_bytes` and its peak; None if none was found.

        `partial` takes the second rank, forward only; `backward` goes from the end."""
        count = len(self.units)
        arrays = _reversed(self.arrays) if backward else self.arrays
        now, then = (self._states(width) for _ in range(2))
        self._begin(now, arrays, backward=backward)
        weight = partial and not backward
        tally = np.array([below_bytes, weight, np.iinfo(np.int64).max, backward], dtype=np.int64)
        links: list[tuple[Ints, Ints]] = []
        room, found, table = 0, np.zeros((0, 7), dtype=np.int64), np.zeros(0, dtype=np.int64)
        held, dropped = 1, False
        self.proved_bytes = 0
        for _ in range(count):
            if self.over():
                return None
            need = int(now.number[:held, READY].sum())
            if need > room:
                room = 2 * need
                found = np.zeros((room, 7), dtype=np.int64)
                table = np.zeros(4 << room.bit_length(), dtype=np.int64)
            slots = table[: 2 << max(need, 1).bit_length()]
            extended = extend(arrays, now, held, found, slots, tally)
            chosen = np.arange(extended)
            if extended > width:
                dropped = True
                chosen = np.sort(np.argpartition(found[:extended, RANK], width)[:width])
            links.append((found[chosen, FROM], found[chosen, UNIT]))
            adopt(arrays, now, then, found, chosen, backward)
            now, then, held = then, now, len(chosen)
            self.states += held
            self._deadline.worked(held * self._state_seconds)
            if not held:
                self.proved_bytes = 0 if dropped else int(tally[REFUSED])
                return None
        trail = _trail(links)
        order = trail if backward else trail[::-1]
        return tuple(v for i in order for v in self.units[i]), int(now.number[0, PEAK])

    def _states(self, width: int) -> States:
        count = len(self.units)
        return States(
            np.zeros((width, self._words), dtype=np.int64),
            np.zeros((width, count), dtype=np.int16),
            np.zeros((width, 5), dtype=np.int64),
        )

    def _begin(self, states: States, arrays: UnitArrays, *, backward: bool) -> None:
        starts = arrays.unit[BEFORE]
        first = np.flatnonzero(starts[1:] == starts[:-1])
        states.ready[0, : len(first)] = first
        live = self._constant_bytes
        if backward:
            live += int(
                arrays.member[KEEPS].sum() - arrays.tensor[1, np.unique(arrays.frees)].sum()
            )
            states.done[0] = -1
        states.number[0] = (live, live, 0, 0, len(first))


def _reversed(arrays: UnitArrays) -> UnitArrays:
    """The units with before and behind exchanged."""
    unit = arrays.unit.copy()
    unit[BEFORE], unit[BEHIND] = arrays.unit[BEHIND], arrays.unit[BEFORE]
    return arrays._replace(unit=unit, before=arrays.behind, behind=arrays.before)


def _trail(links: Sequence[tuple[Ints, Ints]]) -> list[int]:
    """The units along the links from the only downset of the last layer, the last one first."""
    at, trail = 0, []
    for origin, unit in reversed(links):
        trail.append(int(unit[at]))
        at = int(origin[at])
    return trail


def _unit_arrays(facts: Facts, joined: Sequence[tuple[int, ...]]) -> UnitArrays:
    graph = facts.graph
    place = {v: i for i, unit in enumerate(joined) for v in unit}
    reads = facts.unit_reads(joined)
    readers: list[list[int]] = [[] for _ in graph.tensors]
    before = [sorted({place[graph.producer[t]] for t in read}) for read in reads]
    behind: list[list[int]] = [[] for _ in joined]
    for i, read in enumerate(reads):
        for t in read:
            readers[t].append(i)
        for j in before[i]:
            behind[j].append(i)
    members = [facts.members(unit) for unit in joined]
    flat = [member for row in members for member in row]
    pairs = [[(t, o, t in member.own) for t, o in member.pairs] for member in flat]
    random = np.random.default_rng(0).integers(1, 1 << 62, size=len(joined) + 1)
    return UnitArrays(
        np.array(
            [_starts(members), _starts(reads), _starts(before), _starts(behind), random],
            dtype=np.int64,
        ),
        np.array(
            [
                _starts([member.frees for member in flat]),
                _starts(pairs),
                [member.made_bytes + member.workspace_bytes for member in flat] + [0],
                [member.kept_bytes - member.own_freed_bytes for member in flat] + [0],
            ],
            dtype=np.int64,
        ),
        np.array([_starts(readers), [*facts.size, 0]], dtype=np.int64),
        _values(member.frees for member in flat),
        np.array([pair for row in pairs for pair in row], dtype=np.int64).reshape(-1, 3).T.copy(),
        _values(reads),
        _values(before),
        _values(behind),
        _values(readers),
        np.zeros(max((len(row) for row in pairs), default=0) + 1, dtype=np.int64),
    )


def _starts(rows: Sequence[Sequence[object]]) -> list[int]:
    return [0, *accumulate(len(row) for row in rows)]


def _values(rows: Iterable[Sequence[int]]) -> Ints:
    return np.array([value for row in rows for value in row], dtype=np.int64)


@kernel
def has(states: States, s: int, v: int) -> bool:
    """Whether unit v has run in downset s."""
    return (states.done[s, v >> 6] >> (v & 63)) & 1 != 0


@kernel
def goes(arrays: UnitArrays, states: States, s: int, t: int, v: int) -> bool:
    """Whether unit v is the last to read tensor t."""
    for k in range(arrays.tensor[0, t], arrays.tensor[0, t + 1]):
        if arrays.readers[k] != v and not has(states, s, arrays.readers[k]):
            return False
    return True


@kernel
def taken_bytes(arrays: UnitArrays, states: States, s: int, v: int, m: int) -> int:
    """What member m of unit v takes over in place, pairs in turn."""
    begin = arrays.member[PAIRS, m]
    taken = 0
    for k in range(begin, arrays.member[PAIRS, m + 1]):
        t = arrays.pairs[0, k]
        free = arrays.pairs[2, k] != 0 or goes(arrays, states, s, t, v)
        for j in range(begin, k):
            same = arrays.pairs[0, j] == t or arrays.pairs[1, j] == arrays.pairs[1, k]
            if same and arrays.taken[j - begin] != 0:
                free = False
        arrays.taken[k - begin] = free
        if free:
            taken += arrays.tensor[1, t]
    return taken


@kernel
def candidate(
    arrays: UnitArrays, states: States, s: int, v: int, out: Ints, n: int, backward: int
) -> int:
    """Write downset s with unit v, or without it, as candidate n; the bytes that its step holds."""
    live = most = 0
    for m in range(arrays.unit[MEMBERS, v], arrays.unit[MEMBERS, v + 1]):
        taken = taken_bytes(arrays, states, s, v, m)
        most = max(most, live + arrays.member[HOLDS, m] - taken)
        live += arrays.member[KEEPS, m]
        for k in range(arrays.member[FREES, m], arrays.member[FREES, m + 1]):
            t = arrays.frees[k]
            if goes(arrays, states, s, t, v):
                live -= arrays.tensor[1, t]
    begin = states.number[s, LIVE]
    if backward != 0:
        begin -= live
        most += begin
        live = begin
    else:
        live += begin
        most += begin
    partial = states.number[s, PARTIAL]
    for m in range(arrays.unit[MEMBERS, v], arrays.unit[MEMBERS, v + 1]):
        partial += arrays.member[KEEPS, m]
    for k in range(arrays.unit[READS, v], arrays.unit[READS, v + 1]):
        t = arrays.reads[k]
        partial -= arrays.tensor[1, t] // (arrays.tensor[0, t + 1] - arrays.tensor[0, t])
    out[n, LIVE] = live
    out[n, PEAK] = max(states.number[s, PEAK], most)
    out[n, HASH] = states.number[s, HASH] ^ arrays.unit[RANDOM, v]
    out[n, PARTIAL] = partial
    out[n, FROM] = s
    out[n, UNIT] = v
    return most


@kernel
def same(states: States, found: Ints, a: int, b: int) -> bool:
    """Whether two candidates are one downset."""
    if found[a, HASH] != found[b, HASH]:
        return False
    s, t = found[a, FROM], found[b, FROM]
    for w in range(states.done.shape[1]):
        x, y = states.done[s, w], states.done[t, w]
        if found[a, UNIT] >> 6 == w:
            x ^= np.int64(1) << (found[a, UNIT] & 63)
        if found[b, UNIT] >> 6 == w:
            y ^= np.int64(1) << (found[b, UNIT] & 63)
        if x != y:
            return False
    return True


@kernel
def merged(states: States, found: Ints, slots: Ints, n: int) -> int:
    """Put candidate n into the table, or merge it with its equal; the number of candidates."""
    at = found[n, HASH] & (len(slots) - 1)
    while slots[at] >= 0:
        other = slots[at]
        if same(states, found, n, other):
            if found[n, PEAK] < found[other, PEAK]:
                found[other, PEAK] = found[n, PEAK]
                found[other, FROM] = found[n, FROM]
                found[other, UNIT] = found[n, UNIT]
            return n
        at = (at + 1) & (len(slots) - 1)
    slots[at] = n
    return n + 1


@kernel
def copy(found: Ints, source: int, target: int) -> None:
    """Write one candidate over another."""
    for column in range(found.shape[1]):
        found[target, column] = found[source, column]


@entry
def extend(
    arrays: UnitArrays, states: States, held: int, found: Ints, slots: Ints, tally: Ints
) -> int:
    """Extend the first `held` downsets by one unit each; the number of different candidates."""
    slots[:] = -1
    count = 0
    for s in range(held):
        live = states.number[s, LIVE]
        end = count
        for q in range(states.number[s, READY]):
            nbytes = candidate(arrays, states, s, states.ready[s, q], found, end, tally[BACKWARD])
            if nbytes >= tally[BELOW]:
                tally[REFUSED] = min(tally[REFUSED], nbytes)
                continue
            end += 1
            if found[end - 1, LIVE] <= live:
                copy(found, end - 1, count)
                end = count + 1
                break
        for n in range(count, end):
            found[n, RANK] = found[n, LIVE] + tally[WEIGHT] * found[n, PARTIAL]
            copy(found, n, count)
            count = merged(states, found, slots, count)
    return count


@entry
def adopt(
    arrays: UnitArrays, states: States, then: States, found: Ints, chosen: Ints, backward: bool
) -> None:
    """Make the chosen candidates the downsets of the next layer."""
    for i in range(len(chosen)):
        c = chosen[i]
        s, v = found[c, FROM], found[c, UNIT]
        for w in range(states.done.shape[1]):
            then.done[i, w] = states.done[s, w]
        then.done[i, v >> 6] ^= np.int64(1) << (v & 63)
        for row in range(READY):
            then.number[i, row] = found[c, row]
        n = 0
        for q in range(states.number[s, READY]):
            if states.ready[s, q] != v:
                then.ready[i, n] = states.ready[s, q]
                n += 1
        for k in range(arrays.unit[BEHIND, v], arrays.unit[BEHIND, v + 1]):
            w = arrays.behind[k]
            fits = True
            for j in range(arrays.unit[BEFORE, w], arrays.unit[BEFORE, w + 1]):
                fits = fits and has(then, i, arrays.before[j]) != backward
            if fits:
                then.ready[i, n] = w
                n += 1
        then.number[i, READY] = n
