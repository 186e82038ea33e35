"""Path decompositions of a graph's ops, and spines: directed paths through all of them.

Source: Kumar et al. 2019, supplement, section A.1. Terms as in `decompositions.tree_decomposition`;
a *path decomposition* is a tree decomposition whose tree is a path, so that each vertex is in an
interval of bags. A *layout* is a sequence of all vertices; it gives a path decomposition in which
each vertex stays from its place to that of its last neighbour (its width is the vertex separation).
"""

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

from onnxremat.core.graph import Graph
from onnxremat.planners.decompositions.tree_decomposition import (
    DecompositionError,
    Edge,
    TreeDecomposition,
    dependency_edges,
    neighbours,
    tree_search,
)


@dataclass(frozen=True)
class PathDecomposition:
    """`left[v]` and `right[v]` are the first and last bag of a vertex; there are `count` bags."""

    left: tuple[int, ...]
    right: tuple[int, ...]
    count: int

    def bags(self) -> tuple[tuple[int, ...], ...]:
        """All bags, ascending. O(sum of bag sizes)."""
        bags: list[list[int]] = [[] for _ in range(self.count)]
        for v, (first, last) in enumerate(zip(self.left, self.right, strict=True)):
            for i in range(first, last + 1):
                bags[i].append(v)
        return tuple(tuple(bag) for bag in bags)

    @property
    def width(self) -> int:
        """The size of the largest bag, less one."""
        change = [0] * (self.count + 1)
        for first, last in zip(self.left, self.right, strict=True):
            change[first] += 1
            change[last + 1] -= 1
        size = most = 0
        for step in change:
            size += step
            most = max(most, size)
        return most - 1


def check_path(edges: Iterable[Edge], found: PathDecomposition) -> None:
    """Raise DecompositionError, saying why, unless both ends of each edge share a bag and each
    vertex has an interval of bags. O(vertices + edges)."""
    for v, (first, last) in enumerate(zip(found.left, found.right, strict=True)):
        if not 0 <= first <= last < found.count:
            raise DecompositionError(f"vertex {v} is in the bags from {first} to {last}")
    for u, v in edges:
        if max(found.left[u], found.left[v]) > min(found.right[u], found.right[v]):
            raise DecompositionError(f"no bag has both ends of the edge {u}, {v}")


def from_layout(edges: Iterable[Edge], layout: Sequence[int]) -> PathDecomposition:
    """The path decomposition of a layout, without bags that lie within a neighbour.
    O(vertices + edges)."""
    place = {v: i for i, v in enumerate(layout)}
    right = [place[v] for v in range(len(layout))]
    for u, v in edges:
        a, b = (u, v) if place[u] < place[v] else (v, u)
        right[a] = max(right[a], place[b])
    return without_subsets([place[v] for v in range(len(layout))], right)


def without_subsets(left: Sequence[int], right: Sequence[int]) -> PathDecomposition:
    """Intervals of bags as a decomposition without bags that lie within a neighbour (lemma 1).

    A bag is kept if a vertex begins in it or after the one kept before it, and one ends before the
    next beginning. O(n log n).
    """
    begins = sorted(set(left))
    ends = sorted(right)
    kept: list[int] = []
    position = 0
    for index, begin in enumerate(begins):
        following = begins[index + 1] if index + 1 < len(begins) else None
        while position < len(ends) and ends[position] < begin:
            position += 1
        if following is None or ends[position] < following:
            kept.append(begin)
    first, last = [], []
    for a, b in zip(left, right, strict=True):
        first.append(bisect_left(kept, a))
        last.append(bisect_right(kept, b) - 1)
    return PathDecomposition(tuple(first), tuple(last), len(kept))


def layouts(graph: Graph, tree: TreeDecomposition) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Layouts worth trying, by name.

    Along the tree decomposition; the given order with what follows its fullest point folded onto
    what it reads before that (a training graph's backward half onto its forward half); the given
    order; reverse Cuthill-McKee. O(n log n + reads).
    """
    count = len(graph.ops)
    edges = dependency_edges(graph)
    yield "tree", along_tree(tree)
    yield "folded", folded(graph)
    yield "topological", tuple(range(count))
    yield "Cuthill-McKee", cuthill_mckee(count, edges)


def cuthill_mckee(count: int, edges: Iterable[Edge]) -> tuple[int, ...]:
    """The reverse Cuthill-McKee layout: breadth first from vertices of the fewest neighbours, those
    of the fewest first (Cuthill & McKee 1969; George 1971). O(edges log edges)."""
    near = [list(set(others)) for others in neighbours(count, edges)]
    order: dict[int, None] = {}
    for first in sorted(range(count), key=lambda v: (len(near[v]), v)):
        if first in order:
            continue
        order[first] = None
        queue = deque([first])
        while queue:
            ahead = [v for v in near[queue.popleft()] if v not in order]
            for v in sorted(ahead, key=lambda v: (len(near[v]), v)):
                order[v] = None
                queue.append(v)
    return tuple(reversed(order))


def folded(graph: Graph) -> tuple[int, ...]:
    """Every op of the second half beside the latest op of the first half that it depends on
    directly, or else beside what it reads in the second half; what reads nothing beside its first
    reader."""
    count = len(graph.ops)
    last = list(range(count))
    for u, v in dependency_edges(graph):
        last[u] = max(last[u], v)
    held = turn = most = 0
    leaving = [0] * count
    for v in range(count):
        held += 1
        leaving[last[v]] += 1
        if held > most:
            most, turn = held, v
        held -= leaving[v]
    place = list(range(count))
    for v in range(turn + 1, count):
        reads = graph.predecessors(v)
        forward = [u for u in reads if u <= turn]
        if reads:
            place[v] = max(forward) if forward else min(place[u] for u in reads)
    readers: list[list[int]] = [[] for _ in range(count)]
    for u, v in dependency_edges(graph):
        readers[u].append(v)
    for v in range(count):
        if readers[v] and not graph.predecessors(v):
            place[v] = min(place[w] for w in readers[v])
    return tuple(sorted(range(count), key=lambda v: (place[v], v)))


def along_tree(found: TreeDecomposition) -> tuple[int, ...]:
    """The vertices in the order of the bags that hold them, along a longest path of the tree, with
    what branches off before the path goes on, the smallest first. O(sum of bag sizes)."""
    near = neighbours(len(found.bags), ((a, b) for a, b in enumerate(found.parent) if b >= 0))
    far = tree_search(near, 0)[0][-1] if near else 0
    order, parent = tree_search(near, far) if near else ([], [])
    size, depth = [1] * len(near), [1] * len(near)
    for a in reversed(order):
        above = parent[a]
        if above >= 0:
            size[above] += size[a]
            depth[above] = max(depth[above], depth[a] + 1)
    layout: dict[int, None] = {}
    stack = [far] if near else []
    while stack:
        a = stack.pop()
        layout.update(dict.fromkeys(found.bags[a]))
        below = [b for b in near[a] if b != parent[a]]
        below.sort(key=lambda b: (depth[b], size[b], b), reverse=True)
        stack.extend(below)
    return tuple(layout)


@dataclass(frozen=True)
class Spined:
    """A path decomposition of a graph with its spine, which is the topological order `spine`."""

    spine: tuple[int, ...]
    path: PathDecomposition

    def edges(self) -> Iterator[Edge]:
        """The edges of the spine."""
        yield from pairwise(self.spine)


def given_spine(count: int, edges: Sequence[Edge], layout: Sequence[int]) -> Spined:
    """The given order as the spine, with the layout's path decomposition of both together."""
    spine = tuple(range(count))
    both = [*edges, *pairwise(spine)]
    return Spined(spine, from_layout(both, layout))


def add_spine(count: int, edges: Iterable[Edge], path: PathDecomposition) -> Spined:
    """A spine that about doubles the bags (algorithm 2): to 2 width + 3 vertices, by theorem 8.

    A search from the sources goes from each vertex to those that had only it left to wait for, by
    their last bags; the end of each branch is kept until the next branch begins, the last end until
    the last bag of the vertex that branched. Lists are the stack. O((n + edges) log n).

    Deviations: a vertex that ends after the one that it waited for last becomes a branch of the
    nearest open vertex that ends no earlier. The proof takes for granted that the end of a branch
    begins before the last bag of the next branch, which the published search does not ensure; here
    it does, since no branch ends after the vertex that it leaves. So what the proof says holds: a
    bag gains at most one vertex for each that it had, and one for the root. The last end of all is
    not kept until the last bag of all, for nothing follows.
    """
    readers: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    for u, v in edges:
        readers[u].append(v)
        waits[v] += 1
    right = list(path.right)
    spine: list[int] = []
    # Of each open vertex, the root first: its branches, the next one to take on top, and its last
    # bag, negative, so that these ascend.
    branches = [sorted((path.right[v], v) for v in range(count) if not waits[v])]
    reach = [-path.count]
    while branches:
        if not branches[-1]:
            branches.pop()
            last = -reach.pop()
            if branches:
                right[spine[-1]] = max(right[spine[-1]], last)
            continue
        _, v = heappop(branches[-1])
        if spine:
            right[spine[-1]] = max(right[spine[-1]], path.left[v])
        spine.append(v)
        branches.append([])
        reach.append(-path.right[v])
        for w in readers[v]:
            waits[w] -= 1
            if not waits[w]:
                nearest = bisect_right(reach, -path.right[w]) - 1
                heappush(branches[nearest], (path.right[w], w))
    return Spined(tuple(spine), PathDecomposition(path.left, tuple(right), path.count))
