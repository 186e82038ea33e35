"""Twin branches: parts of a graph that can be exchanged without changing what any order holds.

An *exchange* is a map s of the units of a `Walk` (`exact_order.downsets`) onto themselves that
swaps two disjoint sets A and B of units and leaves all others where they are, with their tensors:
the k-th output of an op of A and the k-th of the op in its place in B, of equal bytes. It is an
automorphism if each unit u and s(u) have the same members: equal bytes made, held, freed,
workspace; s maps what the one reads, frees and makes for itself to what the other does, and its
in-place pairs to the other's. Pairs are tried in turn, so their order counts, unless all are for
one output: then the bytes of that output are taken over if any of them can be, whichever comes
first.

*Lemma.* An automorphism s maps orders to orders with equal steps, and live(s(S)) = live(S).
Proof: u reads t if and only if s(u) reads s(t). So an order is topological if and only if its image
is, and as many readers of t are left behind S as of s(t) behind s(S). Then `run_through` adds up
the same numbers for u from S and for s(u) from s(S). Graph outputs need no clause: an output that
is held is freed by nobody and is among the bytes kept, so s maps none to a tensor that is let go.

Branches A1 .. Ak of a group are exchangeable, A1 with each other one by automorphisms that keep
places; those generate all permutations of the branches. So the orbit of a downset under a group
holds the one whose branches are sorted by what has run of them.

Candidates come from colours (refined by those of neighbours, as in Weisfeiler and Leman 1968) and
grow from one pair of units; each is checked as defined above, so a wrong guess costs time only.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from onnxremat.core.graph import Graph
from onnxremat.core.memory import MemoryRules
from onnxremat.planners.exact_order.downsets import Facts, Unit

MOST_PAIRS = 50_000
"""Pairs of units looked at before no more twins are searched for."""
_ROUNDS = 12

Exchange = dict[int, int]


@dataclass(frozen=True, slots=True)
class Twins:
    """Branches that can be exchanged: `branches[i][p]` is the unit at place p of branch i."""

    branches: tuple[tuple[int, ...], ...]
    mask: int

    def sorted(self, done: int) -> int:
        """The downset of the orbit of `done` whose branches are sorted. O(units of the group)."""
        if done & self.mask in (0, self.mask):
            return done
        progress = [tuple(done >> i & 1 for i in branch) for branch in self.branches]
        result = done & ~self.mask
        for branch, runs in zip(self.branches, sorted(progress, reverse=True), strict=True):
            for i, run in zip(branch, runs, strict=True):
                result |= run << i
        return result


def canonical(done: int, groups: Sequence[Twins]) -> int:
    """One downset for many of the orbit of `done`: for all of it if the groups are disjoint."""
    for group in groups:
        done = group.sorted(done)
    return done


def twins(graph: Graph, rules: MemoryRules, joined: Sequence[Unit]) -> tuple[Twins, ...]:
    """Groups of exchangeable branches of the units `joined`, small branches first.

    O(rounds x reads + pairs looked at x reads of a branch).
    """
    return tuple(_Finder(Facts(graph, rules), joined).groups())


class _Finder:
    """The units with what an automorphism has to keep, and the search for twins."""

    def __init__(self, facts: Facts, joined: Sequence[Unit]) -> None:
        graph = facts.graph
        place = {v: i for i, unit in enumerate(joined) for v in unit}
        self._size = facts.size
        self._place = [place.get(v, -1) for v in graph.producer]
        self._members = [facts.members(unit) for unit in joined]
        self._made = [[t for v in unit for t in graph.ops[v].outputs] for unit in joined]
        self._reads = [set(read) for read in facts.unit_reads(joined)]
        self._readers: list[set[int]] = [set() for _ in graph.tensors]
        for i, read in enumerate(self._reads):
            for t in read:
                self._readers[t].add(i)
        self._position = {t: k for made in self._made for k, t in enumerate(made)}
        self._colour = self._colours()
        self._pairs_left = MOST_PAIRS

    def groups(self) -> list[Twins]:
        """All groups found."""
        alike: dict[int, list[int]] = defaultdict(list)
        for i, colour in enumerate(self._colour):
            alike[colour].append(i)
        found: list[Twins] = []
        known: set[frozenset[frozenset[int]]] = set()
        labels: list[set[tuple[int, int]]] = [set() for _ in self._colour]
        for units in alike.values():
            for first, u in enumerate(units):
                others = [v for v in units[first + 1 :] if not labels[u] & labels[v]]
                for branches in self._branches(u, others):
                    key = frozenset(map(frozenset, branches))
                    if key in known:
                        continue
                    known.add(key)
                    mask = sum(1 << i for branch in branches for i in branch)
                    for branch in branches:
                        for place, i in enumerate(branch):
                            labels[i].add((len(found), place))
                    found.append(Twins(branches, mask))
        return sorted(found, key=lambda group: len(group.branches[0]))

    def _branches(self, u: int, others: Sequence[int]) -> Iterator[tuple[tuple[int, ...], ...]]:
        """Groups in which unit u is in the first branch and one of the others in each other one."""
        images: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
        for v in others:
            pairs = self._grow(u, v)
            if pairs is None or not self._is_automorphism(pairs):
                continue
            branch = tuple(sorted(pairs))
            images.setdefault(branch, []).append(tuple(pairs[i] for i in branch))
        for branch, candidates in images.items():
            used: set[int] = set(branch)
            chosen = [branch]
            for image in candidates:
                if used.isdisjoint(image):
                    used.update(image)
                    chosen.append(image)
            yield tuple(chosen)

    def _colours(self) -> list[int]:
        """For each unit a number; units that an automorphism exchanges have the same."""
        keys: list[object] = [
            (
                tuple(
                    (m.made_bytes, m.workspace_bytes, m.kept_bytes, m.own_freed_bytes)
                    for m in members
                ),
                tuple(self._size[t] for t in made),
            )
            for members, made in zip(self._members, self._made, strict=True)
        ]
        colour: list[int] = []
        for _ in range(_ROUNDS):
            number: dict[object, int] = {}
            new = [number.setdefault(key, len(number)) for key in keys]
            if colour and len(number) == len(set(colour)):
                break
            colour = new
            keys = [
                (
                    colour[i],
                    tuple(sorted((colour[self._place[t]], self._position[t]) for t in reads)),
                    tuple(tuple(sorted(colour[r] for r in self._readers[t])) for t in made),
                )
                for i, (reads, made) in enumerate(zip(self._reads, self._made, strict=True))
            ]
        return colour

    def _grow(self, u: int, v: int) -> Exchange | None:
        """The smallest exchange found that takes u to v; None if it cannot be one."""
        pairs: Exchange = {}
        images: dict[int, int] = {}
        waiting = [(u, v)]
        while waiting:
            i, j = waiting.pop()
            if pairs.get(i) == j:
                continue
            self._pairs_left -= 1
            clash = i == j or i in pairs or j in images or i in images or j in pairs
            if clash or self._colour[i] != self._colour[j] or self._pairs_left < 0:
                return None
            pairs[i] = j
            images[j] = i
            behind = [
                (self._readers[s], self._readers[t])
                for s, t in zip(self._made[i], self._made[j], strict=True)
            ]
            before = (
                {self._place[t] for t in self._reads[i] - self._reads[j]},
                {self._place[t] for t in self._reads[j] - self._reads[i]},
            )
            for ours, theirs in (before, *behind):
                matched = self._match(ours - theirs, theirs - ours, pairs)
                if matched is None:
                    return None
                waiting += matched
        return pairs

    def _match(
        self, ours: set[int], theirs: set[int], pairs: Exchange
    ) -> list[tuple[int, int]] | None:
        """Units of two sets by colour and index, those first that are paired already."""
        known = [(i, pairs[i]) for i in ours if i in pairs]
        rest = theirs - {j for _, j in known}
        left = sorted(ours - {i for i, _ in known}, key=lambda i: (self._colour[i], i))
        right = sorted(rest, key=lambda i: (self._colour[i], i))
        if len(left) != len(right) or len(rest) != len(theirs) - len(known):
            return None
        return [*zip(left, right, strict=True)]

    def _is_automorphism(self, pairs: Exchange) -> bool:
        """Whether an exchange is one, as defined above."""
        swap = pairs | {j: i for i, j in pairs.items()}
        tensors = {
            s: t for i, j in swap.items() for s, t in zip(self._made[i], self._made[j], strict=True)
        }
        if any(self._size[s] != self._size[t] for s, t in tensors.items()):
            return False
        touched = set(swap).union(*(self._readers[t] for t in tensors))
        return all(self._same(i, swap.get(i, i), tensors) for i in touched)

    def _same(self, i: int, j: int, tensors: dict[int, int]) -> bool:
        """Whether unit j is what the exchange of tensors makes of unit i."""

        def image(values: Sequence[int] | set[int] | frozenset[int]) -> set[int]:
            return {tensors.get(t, t) for t in values}

        if image(self._reads[i]) != self._reads[j]:
            return False
        if len(self._members[i]) != len(self._members[j]):
            return False
        for a, b in zip(self._members[i], self._members[j], strict=True):
            numbers = (
                (m.made_bytes, m.workspace_bytes, m.kept_bytes, m.own_freed_bytes) for m in (a, b)
            )
            if len(set(numbers)) != 1 or image(a.frees) != set(b.frees) or image(a.own) != b.own:
                return False
            moved = tuple((tensors.get(t, t), o) for t, o in a.pairs)
            one_output = len({o for _, o in moved}) <= 1 and set(moved) == set(b.pairs)
            if moved != b.pairs and not one_output:
                return False
        return True
