"""Orders as walks through downsets: the state of the exact search for the smallest peak.

A *downset* is a set of ops that holds the producers of all it reads: what has run at some point of
an order. Each op runs once here, so the bytes held between two steps depend on the downset alone:

    live(S) = bytes of tensors made in S that an op outside S reads, or that are held to the end

and so do those during the step that adds op v (inputs cannot have been freed, v reads them):

    step(S, v) = live(S) + outputs of v - what v takes over in place + workspace of v

*Lemma (submodularity).* For downsets S in S' and an op v that both can be extended by, live(S' + v)
- live(S') <= live(S + v) - live(S) and step(S', v) - live(S') <= step(S, v) - live(S). Both
differences hold the outputs of v, less inputs whose other readers have all run; with more ops run
there are more of those. So live is a submodular set function on downsets. What v takes over in
place is among those inputs too. Pairs are taken greedily in a fixed order, and each joins tensors
of equal bytes, so that a further input that may go never makes the bytes taken over fewer.

Source of the state space: Ahn et al. 2020 (Serenity), section 3.1; the lemmas are ours.

The walk is over *units*, each an op or several that run in a row (see `units`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnxremat.core.graph import Graph, TensorKind
from onnxremat.core.memory import MemoryRules, inplace_allowed

Unit = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Member:
    """An op inside its unit. `frees` are tensors from other units of which this is the last reader
    in the unit: they go if no other unit has them to read. `pairs` are (tensor, output position) it
    may share a buffer for, `own` of the tensors those made in the unit, which always go here."""

    made_bytes: int
    workspace_bytes: int
    kept_bytes: int
    own_freed_bytes: int
    frees: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]
    own: frozenset[int]


class Facts:
    """Of each op of a graph under rules of memory, what does not depend on the order."""

    def __init__(self, graph: Graph, rules: MemoryRules) -> None:
        self.graph = graph
        self.constant_bytes = rules.constant_bytes(graph)
        self.size = [rules.nbytes(tensor) for tensor in graph.tensors]
        self.held = frozenset(graph.outputs)
        made = TensorKind.ACTIVATION
        self.reads = [
            tuple(dict.fromkeys(t for t in op.inputs if graph.tensors[t].kind is made))
            for op in graph.ops
        ]
        self.workspace = [op.workspace_bytes if rules.count_workspace else 0 for op in graph.ops]
        self.kept = [
            tuple(t for t in op.outputs if graph.readers[t] or t in self.held or rules.unread_held)
            for op in graph.ops
        ]
        self.pairs = [self._pairs(rules, v) for v in range(len(graph.ops))]

    def _pairs(self, rules: MemoryRules, v: int) -> tuple[tuple[int, int], ...]:
        graph = self.graph
        op = graph.ops[v]
        return tuple(
            (op.inputs[i], o)
            for i, o in rules.inplace.get(op.op_type, ())
            if i < len(op.inputs)
            and o < len(op.outputs)
            and graph.tensors[op.inputs[i]].kind is TensorKind.ACTIVATION
            and op.inputs[i] not in self.held
            and op.outputs[o] not in self.held
            and inplace_allowed(graph, op.inputs[i], op.outputs[o], op.inputs)
        )

    def members(self, unit: Unit) -> tuple[_Member, ...]:
        """The ops of a unit, each with what it does there. O(reads)."""
        inside = set(unit)
        last = {t: v for v in unit for t in self.reads[v]}
        own = frozenset(
            t
            for v in unit
            for t in self.graph.ops[v].outputs
            if t not in self.held
            and self.graph.readers[t]
            and inside.issuperset(self.graph.readers[t])
        )
        result = []
        for v in unit:
            going = [t for t in self.reads[v] if last[t] == v and t not in self.held]
            result.append(
                _Member(
                    sum(self.size[t] for t in self.graph.ops[v].outputs),
                    self.workspace[v],
                    sum(self.size[t] for t in self.kept[v]),
                    sum(self.size[t] for t in going if t in own),
                    tuple(t for t in going if t not in own),
                    tuple((t, o) for t, o in self.pairs[v] if last[t] == v),
                    own,
                )
            )
        return tuple(result)

    def unit_reads(self, joined: Sequence[Unit]) -> list[tuple[int, ...]]:
        """For each unit what it reads from other ones, ascending. O(reads)."""
        place = {v: i for i, unit in enumerate(joined) for v in unit}
        producer = self.graph.producer
        return [
            tuple(sorted({t for v in unit for t in self.reads[v] if place[producer[t]] != i}))
            for i, unit in enumerate(joined)
        ]

    def extremes(self, unit: Unit) -> tuple[int, int, int]:
        """Over all contexts: the least growth of live by a unit, and the least and the most that it
        holds beside what was live before it."""
        members = self.members(unit)
        everything = {t for member in members for t in member.frees}
        least, growth = run_through(members, self.size, everything)
        most, _ = run_through(members, self.size, ())
        return growth, least, most


def run_through(
    members: Sequence[_Member], size: Sequence[int], last: "Sequence[int] | set[int]"
) -> tuple[int, int]:
    """The most bytes held beside what was live while a unit runs, and its growth of live.

    `last` are the tensors from other units that no other unit has to read any more."""
    live = most = 0
    for member in members:
        held = live + member.made_bytes + member.workspace_bytes
        if member.pairs:
            held -= _taken_bytes(member, size, last)
        most = max(most, held)
        freed = sum(size[t] for t in member.frees if t in last)
        live += member.kept_bytes - member.own_freed_bytes - freed
    return most, live


def _taken_bytes(member: _Member, size: Sequence[int], last: "Sequence[int] | set[int]") -> int:
    filled: set[int] = set()
    taken: set[int] = set()
    for t, o in member.pairs:
        if (t in member.own or t in last) and t not in taken and o not in filled:
            filled.add(o)
            taken.add(t)
    return sum(size[t] for t in taken)


def units(facts: Facts) -> list[Unit]:
    """The ops of a graph in units, in a topological order, such that the smallest peak of an order
    of the units is that of an order of the ops.

    A unit u joins the only unit w that reads what it makes, to run right before it, if u never
    shrinks live, and holds at most what is then live and w at least needs:

        most(u) <= growth(u) + least(w)      (extremes over all contexts)

    Proof: take an order of units and move u down to w. Between its old and its new place live is
    smaller by the growth of u, which is not negative. At its new place u holds no more than w does
    right behind it. An op between the two may lose an input t to take over, of which u is now the
    last reader; then u does not free t at its old place, so that live was larger there by t and
    falls by that, too. Everything else is as before. O(rounds x reads).
    """
    graph = facts.graph
    unit_of: dict[int, Unit] = {v: (v,) for v in range(len(graph.ops))}
    for v in reversed(range(len(graph.ops))):
        u = unit_of[v]
        readers = {unit_of[r] for t in graph.ops[v].outputs for r in graph.readers[t]}
        dead = [t for t in graph.ops[v].outputs if t in facts.held or not graph.readers[t]]
        if dead or len(readers) != 1 or len(u) != 1:
            continue
        (w,) = readers
        growth, _, most = facts.extremes(u)
        _, least, _ = facts.extremes(w)
        if growth >= 0 and most <= growth + least:
            joined = u + w
            unit_of.update(dict.fromkeys(joined, joined))
    return sorted(set(unit_of.values()), key=lambda unit: unit[-1])


class DownsetWalk:
    """A downset of units that grows and shrinks by one unit at a time, O(reads + readers) a step.

    `done` has bit i set if unit i has run, `trail` the units in order, `ready` those that can run
    next, `live_bytes` what is held between steps; `successors[i]` are the units that read from i.
    With `join` False unit i is op i.
    """

    def __init__(self, graph: Graph, rules: MemoryRules, *, join: bool = True) -> None:
        facts = Facts(graph, rules)
        self.units = units(facts) if join else [(v,) for v in range(len(graph.ops))]
        self._size = facts.size
        self._members = [facts.members(unit) for unit in self.units]
        self._frees = [tuple(t for m in members for t in m.frees) for members in self._members]
        self._kept_bytes = [
            sum(m.kept_bytes - m.own_freed_bytes for m in members) for members in self._members
        ]
        place = {v: i for i, unit in enumerate(self.units) for v in unit}
        self._reads = facts.unit_reads(self.units)
        self._left = [0] * len(graph.tensors)
        for read in self._reads:
            for t in read:
                self._left[t] += 1
        self.predecessors = [
            tuple(sorted({place[graph.producer[t]] for t in read})) for read in self._reads
        ]
        successors: list[list[int]] = [[] for _ in self.units]
        for i, made in enumerate(self.predecessors):
            for j in made:
                successors[j].append(i)
        self.successors = [tuple(readers) for readers in successors]
        self._missing = [len(made) for made in self.predecessors]
        self.done = 0
        self.live_bytes = facts.constant_bytes
        self.trail: list[int] = []
        self.ready = {i for i, count in enumerate(self._missing) if count == 0}

    def order(self) -> tuple[int, ...]:
        """The ops that have run, in order."""
        return tuple(v for i in self.trail for v in self.units[i])

    def growth(self, i: int) -> int:
        """live(S + i) - live(S) for a ready unit."""
        left, size = self._left, self._size
        return self._kept_bytes[i] - sum(size[t] for t in self._frees[i] if left[t] == 1)

    def step_bytes(self, i: int) -> int:
        """The most bytes held while the ready unit runs."""
        left = self._left
        last = [t for t in self._frees[i] if left[t] == 1]
        return self.live_bytes + run_through(self._members[i], self._size, last)[0]

    def run(self, i: int) -> None:
        """Add a ready unit."""
        self.live_bytes += self.growth(i)
        for t in self._reads[i]:
            self._left[t] -= 1
        self.done |= 1 << i
        self.trail.append(i)
        self.ready.discard(i)
        for j in self.successors[i]:
            self._missing[j] -= 1
            if self._missing[j] == 0:
                self.ready.add(j)

    def back_to(self, length: int) -> None:
        """Take back steps until the trail has this length."""
        while len(self.trail) > length:
            i = self.trail.pop()
            for j in self.successors[i]:
                if self._missing[j] == 0:
                    self.ready.discard(j)
                self._missing[j] += 1
            self.ready.add(i)
            self.done &= ~(1 << i)
            for t in self._reads[i]:
                self._left[t] += 1
            self.live_bytes -= self.growth(i)

    def cuts(self) -> Iterator[int]:
        """The downsets, as bits and growing, that every order passes through: everything up to a
        unit that all others come before or behind. The last is the whole graph. O(n^2 / 64)."""
        count = len(self.units)
        before = [0] * count
        for i, made in enumerate(self.predecessors):
            for j in made:
                before[i] |= before[j] | (1 << j)
        behind = self.descendants()
        everything = (1 << count) - 1
        for i in range(count):
            if before[i] | behind[i] | (1 << i) == everything and behind[i]:
                yield before[i] | (1 << i)
        yield everything

    def descendants(self) -> list[int]:
        """For each unit, as bits, those that read from it, directly or not. O(n^2 / 64)."""
        below = [0] * len(self.units)
        for i in reversed(range(len(self.units))):
            for j in self.successors[i]:
                below[i] |= below[j] | (1 << j)
        return below
