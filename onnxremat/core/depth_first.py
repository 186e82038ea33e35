"""Depth-first post-orders: the orders that a search from the leaves of a graph can give.

ONNX Runtime's DEFAULT order is such a search (`onnxremat.importer.execution_order`): the leaves,
and the producers of a node, are visited from the highest position in the file to the lowest, and a
node executes when all its producers have. A producer that another one depends on stands below it in
every file, so it is always reached through that one: nothing is chosen there. All other choices are
relations between two positions, and a file exists if those and the dataflow have no cycle.
"""

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from onnxremat.core.graph import Graph


@dataclass(frozen=True)
class Visit:
    """`order`: nodes as they execute. `pairs`: of each, the first must stand above the second."""

    order: tuple[int, ...]
    pairs: tuple[tuple[int, int], ...]


class DepthFirst:
    """The depth-first orders of a graph, given by the producers of every node.

    Producers have smaller numbers than their readers. `ancestors[v]` are, as bits, the nodes that v
    depends on, `leaves` the nodes nobody reads from. O(n^2/64) to make.
    """

    def __init__(self, producers: Sequence[Sequence[int]]) -> None:
        self.producers = producers
        self.ancestors: list[int] = []
        for made_by in producers:
            bits = 0
            for p in made_by:
                bits |= self.ancestors[p] | (1 << p)
            self.ancestors.append(bits)
        read = {p for made_by in producers for p in made_by}
        self.leaves = [v for v in range(len(producers)) if v not in read]

    @classmethod
    def of(cls, graph: Graph) -> "DepthFirst":
        """The searches of a graph's ops."""
        return cls([graph.predecessors(v) for v in range(len(graph.ops))])

    def choices(self, nodes: Iterable[int]) -> list[int]:
        """Of nodes that are all to be visited, those that may be visited first."""
        nodes = list(nodes)
        below = 0
        for p in nodes:
            below |= self.ancestors[p]
        return [p for p in nodes if not below >> p & 1]

    def visit(self, rank: Sequence[int]) -> Visit:
        """The search that, wherever it can choose, visits the node of the least rank first.

        With a wanted order as the rank, the answer's order is that one if any search gives it: at
        each choice what the order executes first must come first. O(n + m) sets of n bits.
        """
        seen = bytearray(len(self.producers))
        order: list[int] = []
        leaves = sorted(self.leaves, key=rank.__getitem__)
        pairs = list(pairwise(leaves))
        stack = [(v, False) for v in reversed(leaves)]
        while stack:
            v, done = stack.pop()
            if done:
                order.append(v)
            elif not seen[v]:
                seen[v] = True
                fresh = self.choices(p for p in self.producers[v] if not seen[p])
                fresh.sort(key=rank.__getitem__)
                pairs.extend(pairwise(fresh))
                stack.append((v, True))
                stack.extend((p, False) for p in reversed(fresh))
        return Visit(tuple(order), tuple(pairs))

    def default(self) -> Visit:
        """The search if the nodes stand in the file by their numbers."""
        return self.visit([-v for v in range(len(self.producers))])

    def gives(self, order: Sequence[int]) -> bool:
        """Whether a file exists in which the search executes every node once, in this order."""
        if sorted(order) != list(range(len(self.producers))):
            return False
        visit = self.visit(ranks_of(order))
        return visit.order == tuple(order) and self.positions(visit) is not None

    def positions(self, visit: Visit) -> list[int] | None:
        """The nodes from the lowest position in the file to the highest, such that the search is
        this visit; None if there is no such file. O((n + m) log n)."""
        behind: list[list[int]] = [[] for _ in self.producers]
        waiting = [len(made_by) for made_by in self.producers]
        for v, made_by in enumerate(self.producers):
            for p in made_by:
                behind[p].append(v)
        for higher, lower in visit.pairs:
            behind[lower].append(higher)
            waiting[higher] += 1
        ready = [v for v, count in enumerate(waiting) if count == 0]
        heapq.heapify(ready)
        result = []
        while ready:
            v = heapq.heappop(ready)
            result.append(v)
            for w in behind[v]:
                waiting[w] -= 1
                if waiting[w] == 0:
                    heapq.heappush(ready, w)
        return result if len(result) == len(self.producers) else None


def ranks_of(order: Sequence[int]) -> list[int]:
    """The place of every node in an order of all nodes."""
    ranks = [0] * len(order)
    for i, v in enumerate(order):
        ranks[v] = i
    return ranks
