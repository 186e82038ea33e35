"""Canonical strategies over lower sets of a forward graph: exact and approximate search.

Source: Kusumoto, Inoue, Watanabe, Akiba, Koyama 2019, "A graph theoretic framework of recomputation
algorithms for memory-efficient backpropagation". This module works on the forward graph alone, as
the paper does: node v has a size M_v, a time T_v and predecessors. A *lower set* is closed under
predecessors; its *boundary* are its nodes that have a successor outside. A sequence of lower sets
L_1 < ... < L_k = V is a strategy: of each segment V_i = L_i - L_(i-1) only the boundary of L_i is
kept, and what is gone is recomputed once, before the backward of V_i.

What a backward step reads, as in equation 2: the gradient of node v needs the gradients and values
of its successors, and the other values that those were made of (outputs and inputs).

Sets are bit masks: bit v of an int is node v. Deviation: times are rounded to at most TIME_UNITS
units in all; below that they are exact.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from onnxremat.core.deadline import ENDLESS, Deadline, StoppedError
from onnxremat.planners.chains.lower_set_arrays import NO_CACHE, Arrays, Ints

TIME_UNITS = 4096

MOST_SETS = 40_000
"""Lower sets looked at by the exact search at most: it takes their number squared in steps."""

FIRST_ENTRIES = 1 << 16

STEPS_UNASKED = 20_000_000
"""Steps of a dynamic program between two questions whether to stop: some hundredths of a second."""
RANGE_SECONDS = 1e-3
"""Of work, counted for one such range, which has fewer steps in short chains."""


@dataclass(frozen=True)
class ForwardGraph:
    """Nodes in a topological order: sizes (bytes), times, and predecessors as indices.

    Raises ValueError if a node has a negative size or time, or a predecessor behind it.
    """

    sizes: tuple[int, ...]
    times: tuple[int, ...]
    predecessors: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        if not len(self.sizes) == len(self.times) == len(self.predecessors):
            raise ValueError("a node needs a size, a time and its predecessors")
        if min((*self.sizes, *self.times), default=0) < 0:
            raise ValueError("a size or time is negative")
        if any(u >= v or u < 0 for v, made in enumerate(self.predecessors) for u in made):
            raise ValueError("a node reads one that does not come before it")

    @cached_property
    def before(self) -> tuple[int, ...]:
        """The predecessors of each node, as a set."""
        return tuple(sum(1 << u for u in set(made)) for made in self.predecessors)

    @cached_property
    def after(self) -> tuple[int, ...]:
        """The successors of each node, as a set."""
        result = [0] * len(self.sizes)
        for v, made in enumerate(self.predecessors):
            for u in made:
                result[u] |= 1 << v
        return tuple(result)

    @property
    def everything(self) -> int:
        """V."""
        return (1 << len(self.sizes)) - 1

    def size(self, nodes: int) -> int:
        """M of a set."""
        return sum(self.sizes[v] for v in members(nodes))

    def time(self, nodes: int) -> int:
        """T of a set."""
        return sum(self.times[v] for v in members(nodes))

    def boundary(self, lower: int) -> int:
        """The nodes of a lower set that have a successor outside."""
        return sum(1 << v for v in members(lower) if self.after[v] & ~lower)

    def beside(self, lower: int) -> int:
        """The size of what the backward below a lower set needs from above: terms (iii) and (iv)
        of equation 2, the gradients of successors and the other values that those read."""
        above = 0
        for v in members(lower):
            above |= self.after[v]
        above &= ~lower
        read = 0
        for w in members(above):
            read |= self.before[w]
        return self.size(above) + self.size(read & ~lower)


def members(nodes: int) -> list[int]:
    """The nodes of a set, ascending. O(nodes in it)."""
    result = []
    while nodes:
        low = nodes & -nodes
        result.append(low.bit_length() - 1)
        nodes ^= low
    return result


def equation_2(graph: ForwardGraph, sequence: Sequence[int]) -> int:
    """The peak of a strategy, by equation 2. O(length * nodes)."""
    peak = cached = lower = 0
    for following in sequence:
        segment = following & ~lower
        held = graph.size(cached) + 2 * graph.size(segment) + graph.beside(following)
        peak = max(peak, held)
        cached |= graph.boundary(following)
        lower = following
    return peak


def equation_1(graph: ForwardGraph, sequence: Sequence[int]) -> int:
    """The time of recomputation of a strategy, by equation 1: the last segment counts, too."""
    lower, overhead = 0, 0
    for following in sequence:
        overhead += graph.time(following & ~lower & ~graph.boundary(following))
        lower = following
    return overhead


def all_lower_sets(
    graph: ForwardGraph, most: int = MOST_SETS, deadline: Deadline = ENDLESS
) -> list[int] | None:
    """Every lower set but the empty one, or None if there are more than `most`.

    O(sets * nodes). Raises StoppedError at the deadline.
    """
    found = {0}
    todo = [0]
    nodes = range(len(graph.sizes))
    while todo:
        deadline.ask()
        lower = todo.pop()
        for v in nodes:
            if not lower >> v & 1 and not graph.before[v] & ~lower:
                larger = lower | 1 << v
                if larger not in found:
                    if len(found) > most:
                        return None
                    found.add(larger)
                    todo.append(larger)
    found.discard(0)
    return list(found)


def reachability_family(graph: ForwardGraph) -> list[int]:
    """For each node, itself and all it depends on; and V (section 4.3)."""
    below: list[int] = []
    for v, made in enumerate(graph.predecessors):
        own = 1 << v
        for u in made:
            own |= below[u]
        below.append(own)
    return list({*below, graph.everything} - {0})


class Family:
    """A family of lower sets that holds V, ready for the dynamic programs.

    O(sets * (nodes + edges)) to make. Whatever takes a `deadline` asks it now and then, and raises
    StoppedError once it is true.
    """

    def __init__(
        self, graph: ForwardGraph, sets: Iterable[int], deadline: Deadline = ENDLESS
    ) -> None:
        self.graph = graph
        self.sets = [0, *sets]
        if graph.everything not in self.sets[1:]:
            raise ValueError("the family lacks the set of all nodes")
        self.unit = max(1, -(-sum(graph.times) // TIME_UNITS))
        times = np.array([round(time / self.unit) for time in graph.times], dtype=np.int64)
        self.time_units = int(times.sum())
        sizes = np.array(graph.sizes, dtype=np.int64)
        deadline.ask()
        inside = self._inside()
        mass = _sums(inside, sizes)
        order = np.lexsort((inside.sum(axis=0), mass))
        self.sets = [self.sets[i] for i in order]
        inside = inside[:, order]
        deadline.ask()
        rims, beside = self._surroundings(inside, sizes, deadline)
        self.arrays = Arrays(
            self._bits(inside),
            mass[order],
            _sums(inside, times),
            beside,
            np.concatenate(([0], np.cumsum(rims.sum(axis=0)))).astype(np.int64),
            np.nonzero(rims.T)[1].astype(np.int64),
            sizes,
            times,
        )

    def _inside(self) -> npt.NDArray[np.bool_]:
        """[v, i]: whether node v is in set i."""
        count = len(self.graph.sizes)
        nbytes = max(1, -(-count // 8))
        raw = b"".join(lower.to_bytes(nbytes, "little") for lower in self.sets)
        rows = np.frombuffer(raw, dtype=np.uint8).reshape(len(self.sets), nbytes)
        bits = np.unpackbits(rows, axis=1, count=count, bitorder="little")
        return np.ascontiguousarray(bits.T).astype(np.bool_)

    def _surroundings(
        self, inside: npt.NDArray[np.bool_], sizes: Ints, deadline: Deadline
    ) -> tuple[npt.NDArray[np.bool_], Ints]:
        """[v, i]: whether node v is in the boundary of set i; and `beside` of each set."""
        rims, above, read = (np.zeros_like(inside) for _ in range(3))
        for v, made in enumerate(self.graph.predecessors):
            deadline.ask()
            outside = ~inside[v]
            for u in made:
                crossed = inside[u] & outside
                rims[u] |= crossed
                above[v] |= crossed
        for v, made in enumerate(self.graph.predecessors):
            deadline.ask()
            for u in made:
                read[u] |= above[v] & ~inside[u]
        return rims, _sums(above, sizes) + _sums(read, sizes)

    @staticmethod
    def _bits(inside: npt.NDArray[np.bool_]) -> npt.NDArray[np.uint64]:
        """By set, its nodes in whole words."""
        nodes, sets = inside.shape
        wide = np.zeros((sets, max(1, -(-nodes // 64)) * 64), dtype=np.bool_)
        wide[:, :nodes] = inside.T
        return np.packbits(wide, axis=1, bitorder="little").view(np.uint64)

    def _least_cache(self, budget: int, deadline: Deadline) -> tuple[Ints, Ints, int]:
        """By set the least that is kept below it within a budget, and the set before; and the next
        larger budget that can make a difference. O(sets ** 2) at most."""
        from onnxremat.planners.chains import lower_set_kernels as _lower_set_kernels

        count, following = len(self.sets), NO_CACHE
        cache, origin = (np.zeros(count, dtype=np.int64) for _ in range(2))
        for begin, end in _ranges(count, count, deadline):
            above = _lower_set_kernels.least_cache(self.arrays, budget, cache, origin, begin, end)
            following = min(following, int(above))
        return cache, origin, following

    def smallest_budget(
        self, known: list[int] | None = None, deadline: Deadline = ENDLESS
    ) -> tuple[int, list[int]]:
        """The least budget for which there is a strategy, and one for it: by bisection, which
        first tries whether anything is better than a `known` strategy. At the deadline, the
        least found so far."""
        best = [self.graph.everything] if known is None else known
        low, high = 0, equation_2(self.graph, best)
        attempt = (low + high) // 2 if known is None else high - 1
        while low < high:
            try:
                cache, origin, following = self._least_cache(attempt, deadline)
            except StoppedError:
                break
            if cache[-1] >= NO_CACHE:
                low = min(max(attempt + 1, following), high)
            else:
                best, high = self._sequence(cache, origin)
            attempt = (low + high) // 2
        return high, best

    def _sequence(self, cache: Ints, origin: Ints) -> tuple[list[int], int]:
        """The strategy that keeps the least, and its peak by equation 2. O(its length)."""
        sequence, peak = [], 0
        large = len(self.sets) - 1
        while large > 0:
            sequence.append(self.sets[large])
            small = int(origin[large])
            mass, beside = self.arrays.mass, self.arrays.beside
            peak = max(peak, int(cache[small] + 2 * (mass[large] - mass[small]) + beside[large]))
            large = small
        return sequence[::-1], peak

    def strategy(
        self, budget: int, *, slowest: bool = False, deadline: Deadline = ENDLESS
    ) -> list[int] | None:
        """The strategy of least time of recomputation within a budget, or None (section 4.2).

        `slowest`: of most time, the memory-centric strategy (section 4.4). Sets from which V cannot
        be reached are left out first, and so is what takes more time (or, if `slowest`, keeps more)
        than a bound that is raised from a lower bound until there is a strategy.
        O(sets ** 2 * TIME_UNITS) at most.
        """
        from onnxremat.planners.chains import lower_set_kernels as _lower_set_kernels

        cache, _, _ = self._least_cache(budget, deadline)
        if cache[-1] >= NO_CACHE:
            return None
        slack = np.full(len(self.sets), -1, dtype=np.int64)
        slack[-1] = NO_CACHE
        for begin, end in _ranges(len(self.sets), len(self.sets), deadline):
            _lower_set_kernels.most_cache(self.arrays, budget, slack, begin, end)
        chosen = cache <= slack
        indices = np.flatnonzero(chosen)
        arrays, slack, go = self.arrays.only(chosen), slack[chosen], np.zeros_like(indices)
        cache = cache[chosen]
        for begin, end in _ranges(len(indices), len(indices), deadline):
            _lower_set_kernels.price_to_go(arrays, budget, cache, slack, slowest, go, begin, end)
        most = int(go[0])
        while True:
            stored, starts = self._fronts(arrays, budget, slack, go, most, slowest, deadline)
            if starts[-1] > starts[-2]:
                break
            most = min(most + 1 + most // 8, self.time_units)
        owner = np.repeat(indices, np.diff(starts))
        sequence = []
        entry = int(starts[-2])
        while entry > 0:
            sequence.append(self.sets[int(owner[entry])])
            entry = int(stored[2, entry])
        return sequence[::-1]

    @staticmethod
    def _fronts(
        arrays: Arrays,
        budget: int,
        slack: Ints,
        go: Ints,
        most: int,
        slowest: bool,
        deadline: Deadline,
    ) -> tuple[Ints, Ints]:
        """`stored` and `starts` of the kernel `fronts`, for prices of at most `most`."""
        from onnxremat.planners.chains import lower_set_kernels as _lower_set_kernels

        count = len(go)
        stored = np.zeros((3, FIRST_ENTRIES), dtype=np.int64)
        starts = np.zeros(count + 1, dtype=np.int64)
        starts[1] = 1
        scratch = np.empty((2, most + 1), dtype=np.int64)
        for begin, end in _ranges(count, count * (most + 1), deadline):
            where = (stored, starts, scratch, begin, end)
            while _lower_set_kernels.fronts(arrays, budget, slack, go, slowest, *where) < 0:
                stored = np.concatenate((stored, np.zeros_like(stored)), axis=1)
                where = (stored, *where[1:])
        return stored, starts


def _sums(chosen: npt.NDArray[np.bool_], values: Ints) -> Ints:
    """By column, the sum of the values of the rows that are chosen there."""
    total = np.zeros(chosen.shape[1], dtype=np.int64)
    for row, value in zip(chosen, values, strict=True):
        total += row * value
    return total


def _ranges(rows: int, steps_a_row: int, deadline: Deadline) -> Iterator[tuple[int, int]]:
    """Rows 1 to `rows` - 1 in ranges of about STEPS_UNASKED steps; asks before each."""
    length = max(1, STEPS_UNASKED // steps_a_row)
    for begin in range(1, rows, length):
        deadline.ask()
        deadline.worked(RANGE_SECONDS)
        yield begin, min(begin + length, rows)
