"""Tree decompositions of a graph's ops, and the balanced separators that cut them up.

Source: Kumar et al. 2019, "Efficient Rematerialization for Deep Networks", sections 2.2 and 3.

Terms. The *vertices* are the ops; an undirected edge joins an op and one whose outputs it reads. A
*tree decomposition* is a tree of *bags*, sets of vertices, such that each vertex is in a bag, both
ends of each edge are in one bag together, and the bags of a vertex are connected in the tree. Its
*width* is the size of its largest bag less one.

The decomposition is that of a minimum fill-in order, by the package goatd if it is installed, else
that of a minimum degree order by our own elimination. Neither is the smallest width; both are
certified by `check_tree`. In a dense graph either takes seconds, so what may take long asks a
`stop` now and then, and raises StoppedError once it is true.
"""

import heapq
import importlib
import importlib.util
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from onnxremat.core.deadline import ENDLESS, Deadline, StoppedError
from onnxremat.core.graph import Graph
from onnxremat.core.work import WALL_PATIENCE

Edge = tuple[int, int]

POLLING_SECONDS = 0.02

LONGEST_SECONDS = 3600.0
"""For one decomposition by goatd."""

EDGE_SECONDS = 1e-5
"""Of work, counted for each edge then."""


class DecompositionError(ValueError):
    """Bags and tree edges that are no decomposition of a graph; the message says why."""


@dataclass(frozen=True)
class TreeDecomposition:
    """A rooted tree of bags: `parent[i]` is a bag's parent, -1 for the root; bags are ascending."""

    bags: tuple[tuple[int, ...], ...]
    parent: tuple[int, ...]

    @property
    def width(self) -> int:
        """The size of the largest bag, less one; -1 if there is none."""
        return max((len(bag) for bag in self.bags), default=0) - 1


def dependency_edges(graph: Graph) -> tuple[Edge, ...]:
    """(producer, reader) for each op that reads another's output, ascending. O(reads)."""
    return tuple((u, v) for v in range(len(graph.ops)) for u in graph.predecessors(v))


def neighbours(count: int, edges: Iterable[Edge]) -> list[list[int]]:
    """For each of `count` vertices the other ends of its edges, in the order of the edges."""
    near: list[list[int]] = [[] for _ in range(count)]
    for u, v in edges:
        near[u].append(v)
        near[v].append(u)
    return near


def tree_search(near: Sequence[Sequence[int]], first: int) -> tuple[list[int], list[int]]:
    """The nodes of a tree by their distance from the first, and the parent of each (-1: none)."""
    parent = [-1] * len(near)
    order = [first]
    for a in order:
        for b in near[a]:
            if b != parent[a]:
                parent[b] = a
                order.append(b)
    return order, parent


def has_goatd() -> bool:
    """Whether the package goatd is installed."""
    return importlib.util.find_spec("goatd") is not None


def tree_decomposition(
    count: int,
    edges: Sequence[Edge],
    *,
    seed: int = 0,
    own: bool = False,
    deadline: Deadline = ENDLESS,
) -> TreeDecomposition:
    """A tree decomposition of the graph with vertices 0 to `count` - 1, at most `count` bags.

    By goatd's minimum fill-in where it is installed, unless `own` asks for the own elimination.
    The trees of a forest are joined, bags within neighbouring ones are merged (lemma 1), the root
    is the first bag. The same seed gives the same decomposition. goatd asks nobody: at the
    deadline it is left behind in its thread, where it ends by itself when the seconds are over, and
    leaves the rest of the graph in one bag.
    """
    if count == 0:
        return TreeDecomposition((), ())
    if has_goatd() and not own:
        found = _by_goatd(count, edges, seed, deadline)
        bags = [set(bag) for bag in deadline.asking(found.bags)]
        links = [(int(a), int(b)) for a, b in found.edges]
    else:
        bags, links = eliminate(count, edges, deadline)
    return _rooted(*merge_subsets(bags, deadline.asking(links)))


def _by_goatd(count: int, edges: Sequence[Edge], seed: int, deadline: Deadline) -> Any:
    goatd = importlib.import_module("goatd")
    graph = goatd.Graph(count, list(edges))
    deadline.worked(EDGE_SECONDS * len(edges))
    patience = 1.0 if deadline.limits.work is None else WALL_PATIENCE
    most = max(1, int(1000 * min(patience * deadline.left_seconds, LONGEST_SECONDS)))

    def work() -> Any:
        return goatd.decompose(graph, order="minfill", seed=seed, budget_ms=most)

    return _in_thread(work, deadline)


def _in_thread(work: Callable[[], Any], deadline: Deadline) -> Any:
    """What `work` returns or raises. At the deadline it goes on in a thread of its own."""
    made: list[Any] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            made.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again where it is waited for
            failed.append(error)

    deadline.ask()
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(POLLING_SECONDS)
        if thread.is_alive() and deadline.over():
            raise StoppedError
    if failed:
        raise failed[0]
    return made[0]


def eliminate(
    count: int, edges: Sequence[Edge], deadline: Deadline = ENDLESS
) -> tuple[list[set[int]], list[Edge]]:
    """Bags and tree edges by eliminating a vertex of the fewest neighbours again and again.

    The bag of a vertex is itself with its neighbours then, which become a clique; its parent is the
    bag of the neighbour that is eliminated next. O(count width^2 log count).
    """
    near = [set(others) for others in neighbours(count, edges)]
    heap = [(len(near[v]), v) for v in range(count)]
    heapq.heapify(heap)
    rank = [-1] * count
    bags: list[set[int]] = []
    while heap:
        degree, v = heapq.heappop(heap)
        if rank[v] >= 0 or degree != len(near[v]):
            continue
        rank[v] = len(bags)
        bags.append({v, *near[v]})
        for u in deadline.asking(near[v]):
            near[u] |= near[v]
            near[u] -= {u, v}
            heapq.heappush(heap, (len(near[u]), u))
    links = []
    for index, bag in enumerate(bags):
        later = [rank[u] for u in bag if rank[u] > index]
        if later:
            links.append((index, min(later)))
    return bags, links


def merge_subsets(
    bags: Sequence[set[int]], links: Iterable[Edge]
) -> tuple[list[set[int]], list[Edge]]:
    """The bags and tree edges after merging each bag into a neighbour that contains it (lemma 1).

    One pass over the edges with union-find; then no bag lies within a neighbour, so that there are
    no more bags than vertices. O(bags (width + log bags)), for the bag that
    contains the other leads, whatever their ranks.
    """
    leader = list(range(len(bags)))

    def find(a: int) -> int:
        while leader[a] != a:
            leader[a] = leader[leader[a]]
            a = leader[a]
        return a

    kept: list[Edge] = []
    for a, b in links:
        a, b = find(a), find(b)
        if bags[a] <= bags[b]:
            leader[a] = b
        elif bags[b] <= bags[a]:
            leader[b] = a
        else:
            kept.append((a, b))
    name = {a: i for i, a in enumerate(a for a in range(len(bags)) if leader[a] == a)}
    return [bags[a] for a in name], [(name[find(a)], name[find(b)]) for a, b in kept]


def _rooted(bags: Sequence[set[int]], links: Iterable[Edge]) -> TreeDecomposition:
    """A forest of bags as one tree: the later roots become children of the first."""
    near = neighbours(len(bags), links)
    parent = [-2] * len(bags)
    for root in range(len(bags)):
        if parent[root] != -2:
            continue
        parent[root] = -1 if root == 0 else 0
        stack = [root]
        while stack:
            a = stack.pop()
            for b in near[a]:
                if parent[b] == -2:
                    parent[b] = a
                    stack.append(b)
    return TreeDecomposition(tuple(tuple(sorted(bag)) for bag in bags), tuple(parent))


def check_tree(count: int, edges: Iterable[Edge], found: TreeDecomposition) -> None:
    """Raise DecompositionError, saying why, unless `found` is a tree decomposition of the graph.

    Checked: one root and no cycle; every vertex is in a bag; both ends of every edge are in a bag
    together; the bags of a vertex are connected. O(bags width + edges x bags of a vertex).
    """
    if len(found.bags) != len(found.parent):
        raise DecompositionError("there are not as many parents as bags")
    if found.bags and list(found.parent).count(-1) != 1:
        raise DecompositionError("there is not one root")
    _check_rooted(found.parent)
    tops = [0] * count
    where: list[set[int]] = [set() for _ in range(count)]
    for index, bag in enumerate(found.bags):
        above = found.parent[index]
        higher = set(found.bags[above]) if above >= 0 else set()
        for v in bag:
            if not 0 <= v < count:
                raise DecompositionError(f"bag {index} names vertex {v}, but there are {count}")
            where[v].add(index)
            tops[v] += v not in higher
    for v in range(count):
        if not where[v]:
            raise DecompositionError(f"vertex {v} is in no bag")
        if tops[v] != 1:
            raise DecompositionError(f"the bags of vertex {v} are not connected")
    for u, v in edges:
        if where[u].isdisjoint(where[v]):
            raise DecompositionError(f"no bag has both ends of the edge {u}, {v}")


def _check_rooted(parent: Sequence[int]) -> None:
    """Whether each bag's line of parents ends at the root."""
    ends = set()
    for index in range(len(parent)):
        line = []
        a = index
        while a not in ends and a != -1:
            line.append(a)
            a = parent[a]
            if not -1 <= a < len(parent) or len(line) > len(parent):
                raise DecompositionError(f"the parents of bag {index} do not lead to the root")
        ends.update(line)


@dataclass(frozen=True, slots=True)
class Component:
    """A connected part of the decomposition, cut off by the separators of its ancestors.

    `separator` are the vertices of its balanced separator, ascending, without those of the
    ancestors' separators; `bags` its bags; `children` what is left without the separator, as
    positions in `Separators.pieces`; `end` the position behind its last descendant; `depth` its
    level, 1 for a root.
    """

    separator: tuple[int, ...]
    bags: int
    children: tuple[int, ...]
    end: int
    depth: int


@dataclass(frozen=True)
class Separators:
    """All pieces, parents before children and each before its descendants; `roots` are those of
    the whole graph (one for each part that no edge joins with another); `owner[v]` is the piece in
    whose separator a vertex is."""

    pieces: tuple[Component, ...]
    roots: tuple[int, ...]
    owner: tuple[int, ...]

    @property
    def depth(self) -> int:
        """Levels of the recursion."""
        return max((piece.depth for piece in self.pieces), default=0)

    def vertices(self, piece: int) -> tuple[int, ...]:
        """All vertices of a piece, ascending. O(n log n) in their number."""
        within = self.pieces[piece : self.pieces[piece].end]
        return tuple(sorted(v for part in within for v in part.separator))


def separators(count: int, found: TreeDecomposition, deadline: Deadline = ENDLESS) -> Separators:
    """The balanced separators of a decomposition and of all pieces that they leave (lemma 3).

    Which piece is cut where does not depend on what is to be computed, so each is found once (the
    memoising of theorem 5). A piece's children have at most half its bags: there are at most
    floor(log2 bags) + 1 levels.

    Deviations: bags are merged (lemma 1) in every piece instead of once, and the tree is also cut
    where neighbouring bags share no vertex. Both only make pieces smaller. O(n width log n).
    """
    bags = [set(bag) for bag in deadline.asking(found.bags)]
    links = [(i, p) for i, p in enumerate(found.parent) if p >= 0]
    made: list[tuple[tuple[int, ...], int, int, int]] = []
    owner = [-1] * count
    waiting = [(part, -1, 1) for part in reversed(_parts(bags, links, deadline))]
    while waiting:
        deadline.ask()
        (bags, links), above, depth = waiting.pop()
        index = len(made)
        centre = _centre(len(bags), links)
        cut = bags[centre]
        made.append((tuple(sorted(cut)), len(bags), above, depth))
        for v in cut:
            owner[v] = index
        rest = [bag if bag.isdisjoint(cut) else bag - cut for bag in deadline.asking(bags)]
        below = _parts(rest, [e for e in links if centre not in e], deadline)
        waiting.extend((part, index, depth + 1) for part in reversed(below))
    children: list[list[int]] = [[] for _ in made]
    end = list(range(1, len(made) + 1))
    for index in reversed(range(len(made))):
        above = made[index][2]
        if above >= 0:
            children[above].append(index)
            end[above] = max(end[above], end[index])
    pieces = tuple(
        Component(cut, size, tuple(reversed(children[i])), end[i], depth)
        for i, (cut, size, _, depth) in enumerate(made)
    )
    roots = tuple(i for i, (_, _, above, _) in enumerate(made) if above < 0)
    return Separators(pieces, roots, tuple(owner))


def _parts(
    bags: Sequence[set[int]], links: Iterable[Edge], deadline: Deadline
) -> list[tuple[list[set[int]], list[Edge]]]:
    """The connected parts, without empty bags and each with its bags merged, by smallest vertex."""
    near: dict[int, list[int]] = {i: [] for i, bag in enumerate(bags) if bag}
    for a, b in deadline.asking(links):
        if not bags[a].isdisjoint(bags[b]):
            near[a].append(b)
            near[b].append(a)
    parts = []
    seen: set[int] = set()
    for first in near:
        if first in seen:
            continue
        seen.add(first)
        name, inner, stack = {first: 0}, [], [first]
        while stack:
            a = stack.pop()
            for b in near[a]:
                if b not in name:
                    name[b] = len(name)
                    inner.append((name[a], name[b]))
                    stack.append(b)
        seen.update(name)
        parts.append(merge_subsets([bags[i] for i in name], deadline.asking(inner)))
    return sorted(parts, key=lambda part: min(min(bag) for bag in part[0]))


def _centre(count: int, links: Sequence[Edge]) -> int:
    """The node of a tree without which no part has more than half the nodes (theorem 2)."""
    order, parent = tree_search(neighbours(count, links), 0)
    size, largest = [1] * count, [0] * count
    for a in reversed(order):
        largest[a] = max(largest[a], count - size[a])
        if parent[a] >= 0:
            size[parent[a]] += size[a]
            largest[parent[a]] = max(largest[parent[a]], size[a])
    return min(range(count), key=lambda a: (largest[a], a))
