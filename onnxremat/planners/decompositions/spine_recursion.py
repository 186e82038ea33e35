"""The recursion of PWRemat over a path decomposition with a spine.

Source: Kumar et al. 2019, supplement, algorithm 3 (PWRemat, InterleavedSchedule, Flatten,
Condense), lemmas 9 to 11 and theorem 22.

Vertices are numbered along the spine, so that `last` is a maximum and the spine's predecessor of u
is u - 1. A stretch of bags `first` to `last` cut at u stands for the interval graph of section A.2:
the vertices up to u whose intervals meet the stretch, in those bags. Everything outside is *known*.

An interleaved schedule is a set of tuples (schedule, x), one or more for each x of a bag. It is not
made as a whole: `Whole` and `SpinePart` name a schedule, and `items` says what it consists of, one
level deep. So a schedule of a great length can be walked from its end, and what nobody reads is
passed over without being made (`pruned`): the result is that of `without_unread` on the full
schedule.

Deviations: a vertex that is known, here or to a caller (`held`), is not executed (definition 12
lets it stand in a schedule; executing it would read what is gone), and a stretch without bags has
empty schedules (the published recursion has no such case). The middle of b bags is the bag
ceil(b / 2), counted from the near end. The inner part of the lower schedules (those for X less X')
also stops at X', which is known by then: the published one does not, and where the spine leaves the
stretch through X', it executes vertices whose inputs inside it has not made (claim 2 of theorem 22
fails: lemma 9 gives a vertex of X', which is no stop). There are still at most 2 p stops.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from onnxremat.core.deadline import ENDLESS, Deadline
from onnxremat.core.graph import Graph
from onnxremat.core.schedule import Schedule
from onnxremat.planners.decompositions.path_decomposition import PathDecomposition, Spined

ITEM_SECONDS = 8e-5
"""Of work, counted for each item that is expanded."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Bags `first` to `last` (none if `last` is less), without vertices after `cut`."""

    first: int
    last: int
    cut: int


@dataclass(frozen=True, slots=True)
class Whole:
    """PWRemat: a schedule that computes `u`, with `known` vertices, in bags cut at u.

    `held` are vertices of them that only callers know: what is computed does not depend on that."""

    first: int
    last: int
    u: int
    known: frozenset[int]
    held: frozenset[int]


@dataclass(frozen=True, slots=True)
class Interleaved:
    """InterleavedSchedule: schedules for the vertices `bag`, ascending, from the stretch beside it,
    whose near end is its first bag if `rising`, else its last; `held` as in Whole."""

    bag: tuple[int, ...]
    stretch: Stretch
    rising: bool
    known: frozenset[int]
    held: frozenset[int]


@dataclass(frozen=True, slots=True)
class SpinePart:
    """What an interleaved schedule executes for x, a vertex of its bag, before x itself."""

    of: Interleaved
    x: int


@dataclass(frozen=True, slots=True)
class Split:
    """An interleaved schedule taken apart at a middle bag: its `latest` vertex; the vertices
    `through` which the inner part goes (the middle bag, and the earlier ones of the bag beside the
    stretch, those that are known included); the `inner` stretch; the schedules for the middle bag
    from `beyond` it, and for the rest of the bag from `beneath`, the inner stretch."""

    latest: int
    through: tuple[int, ...]
    inner: Stretch
    beyond: Interleaved
    beneath: Interleaved


Item = int | Whole | SpinePart
"""A vertex to execute, or a schedule to expand."""


class Spine:
    """A graph with a path decomposition and a spine, vertices numbered along the spine."""

    def __init__(self, graph: Graph, spined: Spined) -> None:
        self.ops = spined.spine
        number = {v: i for i, v in enumerate(spined.spine)}
        self.left = tuple(spined.path.left[v] for v in spined.spine)
        self.right = tuple(spined.path.right[v] for v in spined.spine)
        self.bags = PathDecomposition(self.left, self.right, spined.path.count).bags()
        self.reads = [tuple(sorted(number[u] for u in graph.predecessors(v))) for v in spined.spine]

    def top(self) -> Whole:
        """The schedule of the last vertex of the spine, which executes all."""
        return Whole(0, len(self.bags) - 1, len(self.ops) - 1, frozenset(), frozenset())

    def bag(self, i: int, cut: int) -> tuple[int, ...]:
        """A bag without the vertices after `cut`, ascending."""
        bag = self.bags[i]
        return bag[: bisect_left(bag, cut + 1)]

    def within(self, v: int, stretch: Stretch) -> bool:
        """Whether a vertex is one of a stretch."""
        return v <= stretch.cut and self.left[v] <= stretch.last and self.right[v] >= stretch.first

    def items(self, item: Whole | SpinePart) -> list[Item]:
        """What a schedule consists of, in order of execution, one level deep."""
        return self._whole(item) if isinstance(item, Whole) else self._part(item.of, item.x)

    def _whole(self, item: Whole) -> list[Item]:
        u, known = item.u, item.known
        stretch = Stretch(item.first, item.last, u)
        if u in known or not self.within(u, stretch):
            return []
        inputs = (*self.reads[u], u - 1) if u else ()
        if all(v in known or not self.within(v, stretch) for v in inputs):
            return [] if u in item.held else [u]
        if self._largest_at_most(stretch, 2):
            inside = {v for i in range(item.first, item.last + 1) for v in self.bag(i, u)}
            return [*sorted(inside - known - item.held)]
        middle = (item.first + item.last) // 2
        i = min(max(middle, self.left[u], item.first), self.right[u], item.last)
        bag = self.bag(i, u)
        sides = (
            Interleaved(bag, Stretch(item.first, i - 1, u), False, known, item.held),
            Interleaved(bag, Stretch(i + 1, item.last, u), True, known, item.held),
        )
        items: list[Item] = []
        for x in bag:
            items.extend(
                SpinePart(side, x) for side in sides if side.stretch.first <= side.stretch.last
            )
            if x not in known and x not in item.held:
                items.append(x)
        return items

    def _largest_at_most(self, stretch: Stretch, size: int) -> bool:
        for i in range(stretch.first, stretch.last + 1):
            bag = self.bags[i]
            if len(bag) > size and bag[size] <= stretch.cut:
                return False
        return True

    def split(self, of: Interleaved) -> Split:
        """The middle bag of a stretch and what is on its two sides."""
        first, last, cut = of.stretch.first, of.stretch.last, of.stretch.cut
        near = (last - first) // 2
        i = first + near if of.rising else last - near
        inner, outer = Stretch(first, i - 1, cut), Stretch(i + 1, last, cut)
        if not of.rising:
            inner, outer = outer, inner
        middle = self.bag(i, cut)
        latest = middle[-1] if middle else -1
        beside = self.bag(first - 1 if of.rising else last + 1, cut)
        through = tuple(sorted({*(y for y in beside if y < latest), *middle}))
        lower = tuple(y for y in of.bag if y >= latest)
        return Split(
            latest,
            through,
            inner,
            Interleaved(middle, outer, of.rising, of.known, of.held),
            Interleaved(lower, inner, of.rising, of.known | set(through), of.held),
        )

    def _part(self, of: Interleaved, x: int) -> list[Item]:
        """The tuples of the three parts (inner, outer, lower) condensed to x."""
        if of.stretch.last < of.stretch.first or of.known.issuperset(of.bag):
            return []
        split = self.split(of)
        before = bisect_left(of.bag, x)
        above = of.bag[before - 1] if before else -1
        items: list[Item] = []
        for y in sorted({*split.through, *split.beneath.bag}):
            if not above < y <= x:
                continue
            if y <= split.latest:
                items.extend(self._chain(split, y, of.known | of.held))
                if y in split.beyond.bag:
                    items.append(SpinePart(split.beyond, y))
            if y in split.beneath.bag:
                items.append(SpinePart(split.beneath, y))
            if y != x and y not in of.known and y not in of.held:
                items.append(y)
        return items

    def _chain(self, split: Split, y: int, held: frozenset[int]) -> Iterator[Item]:
        """What precedes y in the inner part: for each vertex up to y, the schedule of its
        predecessor on the spine, given the vertices before."""
        held = frozenset(v for v in held if self.within(v, split.inner))
        for j in range(bisect_left(split.through, y) + 1):
            u = split.through[j] - 1
            if u >= 0:
                known = frozenset(split.through[:j])
                yield Whole(split.inner.first, split.inner.last, u, known, held)

    def _stretch(self, item: Whole | SpinePart) -> tuple[Stretch, frozenset[int]]:
        """The vertices that an item may execute lie in this stretch and are not known."""
        if isinstance(item, Whole):
            return Stretch(item.first, item.last, item.u), item.known | item.held
        of = item.of
        return Stretch(
            of.stretch.first, of.stretch.last, min(of.stretch.cut, item.x - 1)
        ), of.known | of.held

    def pruned(
        self,
        wanted: Iterable[int],
        *,
        most_steps: int,
        most_items: int,
        deadline: Deadline = ENDLESS,
    ) -> Schedule | None:
        """The schedule of all ops without what nobody reads, walked from its end; `wanted` are the
        ops that somebody reads then. None if it has more than `most_steps` steps, if more than
        `most_items` schedules had to be expanded, or at the deadline.
        """
        number = {v: i for i, v in enumerate(self.ops)}
        starting, ended = [0] * (len(self.bags) + 1), [0] * (len(self.bags) + 1)
        for v in range(len(self.ops)):
            starting[self.left[v] + 1] |= 1 << v
            ended[self.right[v] + 1] |= 1 << v
        for i in range(len(self.bags)):
            starting[i + 1] |= starting[i]
            ended[i + 1] |= ended[i]
        needed = sum(1 << number[v] for v in wanted)
        steps: list[int] = []
        stack: list[Item] = [self.top()]
        expanded = 0
        while stack:
            item = stack.pop()
            if isinstance(item, int):
                if needed >> item & 1:
                    steps.append(self.ops[item])
                    needed &= ~(1 << item)
                    for u in self.reads[item]:
                        needed |= 1 << u
                    if len(steps) > most_steps:
                        return None
                continue
            stretch, known = self._stretch(item)
            if stretch.last < stretch.first or stretch.cut < 0:
                continue
            possible = needed & starting[stretch.last + 1] & ~ended[stretch.first]
            possible &= (1 << (stretch.cut + 1)) - 1
            for v in known if possible else ():
                possible &= ~(1 << v)
            if not possible:
                continue
            expanded += 1
            deadline.worked(ITEM_SECONDS)
            if expanded > most_items or (expanded % 256 == 0 and deadline.over()):
                return None
            stack.extend(self.items(item))
        steps.reverse()
        return Schedule(tuple(steps))
