"""The recursion of TWRemat: what is computed where, and what is kept meanwhile.

Source: Kumar et al. 2019, algorithm 1, lemma 4 and theorem 5; TWRemat(k) is section 4.3.

To compute `wanted` ops of a piece (see `decompositions.tree_decomposition`), the vertices of its
separator run one after another, in topological order; what such a vertex v reads from a piece below
is first computed by the same means. The separator stays until the end; what v read goes once v has
run. In the end the rest of `wanted` is computed, piece by piece. A piece of fewer than k bags is
not cut: what is needed of it runs in topological order.

Deviations, none of which holds more than theorem 5 charges to the levels of the recursion:
- what is in memory is not computed again, and only what is needed for `wanted` runs at all;
- an op that the caller wants stays once it has run, by whichever call (its place is charged to the
  caller anyway, which wanted it);
- with `early`, wanted ops of a piece are computed as soon as a call goes there after the separator
  vertices that they need: it saves the call at the end;
- an op that must not run again (random, stateful, started by the runtime, or at its last permitted
  execution) stays in memory for good, which nothing pays for;
- there may be many wanted ops at the top: those that make graph outputs and those nobody reads.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from onnxremat.core.deadline import ENDLESS, Deadline
from onnxremat.core.graph import Graph
from onnxremat.core.schedule import Schedule
from onnxremat.planners.decompositions.tree_decomposition import Separators

Call = tuple[int, list[int]]

CALL_SECONDS = 1.3e-5
"""Of work, counted for each call."""


@dataclass(slots=True)
class Frame:
    """A call in progress: compute the `wanted` ops of `piece`; `at` is the separator vertex whose
    inputs are being computed, or that runs; -1 for none. `leaf`: the piece is not cut."""

    piece: int
    wanted: tuple[int, ...]
    leaf: bool
    at: int = -1
    calls: Iterator[Call] = field(default_factory=lambda: iter(()))


Watcher = Callable[[int, Sequence[Frame]], None]
"""Told about each op that runs, with the calls in progress, outermost first."""


def wanted_ops(graph: Graph) -> tuple[int, ...]:
    """What the top call computes: ops that make graph outputs, and ops of which nobody reads
    anything. Every op is one of them or needed for one. O(tensors)."""
    held = {graph.producer[t] for t in graph.outputs} - {-1}
    return tuple(
        v
        for v, op in enumerate(graph.ops)
        if v in held or not any(graph.readers[t] for t in op.outputs)
    )


def tree_schedule(
    graph: Graph,
    parts: Separators,
    k: int,
    *,
    early: bool = True,
    max_copies: int | None = None,
    most_steps: int | None = None,
    deadline: Deadline = ENDLESS,
    watch: Watcher | None = None,
) -> Schedule | None:
    """The schedule of TWRemat(k); None if it has more than `most_steps` steps, or at the deadline.

    Valid, and each op runs at most `max_copies` times; without a limit at most (k + 2)^depth times,
    k the width, and in a piece at most once per call (theorem 5). O(steps levels reads log n).
    """
    run = _RecursionRun(graph, parts, k, early, max_copies, watch)
    limit = most_steps if most_steps is not None else float("inf")
    return Schedule(tuple(run.steps)) if run.finish(limit, deadline) else None


class _RecursionRun:
    """One run of the algorithm, its call stack a list."""

    def __init__(
        self,
        graph: Graph,
        parts: Separators,
        k: int,
        early: bool,
        max_copies: int | None,
        watch: Watcher | None,
    ) -> None:
        self.parts, self.k, self.early, self.watch = parts, k, early, watch
        self.reads = [graph.predecessors(v) for v in range(len(graph.ops))]
        once = [not op.recomputable or op.eager for op in graph.ops]
        self.left = [1 if one else max_copies or -1 for one in once]
        """How many times each op may still run; negative for any number."""
        self.holders = [0] * len(graph.ops)
        self.in_memory = [False] * len(graph.ops)
        self.steps: list[int] = []
        self.wanted = wanted_ops(graph)
        self.stack: list[Frame] = []

    def finish(self, most_steps: float, deadline: Deadline) -> bool:
        """Run to the end; whether it was reached."""
        self._hold(self.wanted)
        for piece, wanted in self._by_piece(self.parts.roots, self.wanted).items():
            self._call(piece, wanted)
            while self.stack:
                call = next(self.stack[-1].calls, None)
                if call is None:
                    self.stack.pop()
                else:
                    self._call(*call)
                deadline.worked(CALL_SECONDS)
                if len(self.steps) > most_steps or deadline.over():
                    return False
        return True

    def _call(self, piece: int, wanted: Sequence[int]) -> None:
        leaf = self.parts.pieces[piece].bags < self.k or not self.parts.pieces[piece].children
        frame = Frame(piece, tuple(wanted), leaf)
        frame.calls = self._leaf(frame) if leaf else self._inner(frame)
        self.stack.append(frame)

    def _leaf(self, frame: Frame) -> Iterator[Call]:
        """Everything that is needed, in topological order; nothing is called."""
        needed = sorted(self._needed(frame))
        self._hold(needed)
        for v in needed:
            frame.at = v
            self._execute(v)
        self._release(needed)
        yield from ()

    def _inner(self, frame: Frame) -> Iterator[Call]:
        needed = self._needed(frame)
        cut = [v for v in self.parts.pieces[frame.piece].separator if v in needed]
        waiting = self._by_child(frame, [v for v in frame.wanted if v in needed])
        ready = self._ready(needed, cut) if self.early and waiting else {}
        self._hold(cut)
        for index, v in enumerate(cut):
            frame.at = v
            inputs = self._by_child(frame, self.reads[v])
            for child, some in inputs.items():
                self._hold(some)
                more = [w for w in waiting.get(child, ()) if ready.get(w, len(cut)) < index]
                yield child, [*some, *(w for w in more if w not in some)]
            self._execute(v)
            for some in inputs.values():
                self._release(some)
        frame.at = -1
        for child, some in waiting.items():
            rest = [w for w in some if not self.in_memory[w]]
            if rest:
                yield child, rest
        self._release(cut)

    def _needed(self, frame: Frame) -> set[int]:
        """The ops that must run for what is wanted, given what is in memory: all in the piece,
        since what the piece reads from outside is in memory (lemma 4)."""
        needed = {v for v in frame.wanted if not self.in_memory[v]}
        stack = list(needed)
        while stack:
            for u in self.reads[stack.pop()]:
                if not self.in_memory[u] and u not in needed:
                    if not self._within(frame.piece, u):
                        raise AssertionError(f"op {u} is neither in the piece nor in memory")
                    needed.add(u)
                    stack.append(u)
        return needed

    def _ready(self, needed: set[int], cut: Sequence[int]) -> dict[int, int]:
        """For each needed op, the place in `cut` of the last one that it depends on; -1: none."""
        place = {v: i for i, v in enumerate(cut)}
        last: dict[int, int] = {}
        for v in sorted(needed):
            last[v] = max((place.get(u, last.get(u, -1)) for u in self.reads[v]), default=-1)
        return last

    def _by_child(self, frame: Frame, ops: Sequence[int]) -> dict[int, list[int]]:
        """Those not in memory that are in pieces below, by the piece, in the order of pieces."""
        missing = [u for u in ops if not self.in_memory[u] and self._within(frame.piece, u)]
        return self._by_piece(self.parts.pieces[frame.piece].children, missing)

    def _by_piece(self, pieces: Sequence[int], ops: Sequence[int]) -> dict[int, list[int]]:
        """The ops in neighbouring pieces, by the piece, in the order of pieces; others left out."""
        found: dict[int, list[int]] = {}
        for u in ops:
            at = bisect_right(pieces, self.parts.owner[u]) - 1
            if at >= 0:
                found.setdefault(pieces[at], []).append(u)
        return {piece: found[piece] for piece in sorted(found)}

    def _within(self, piece: int, v: int) -> bool:
        return piece <= self.parts.owner[v] < self.parts.pieces[piece].end

    def _execute(self, v: int) -> None:
        if self.in_memory[v]:
            return
        self.steps.append(v)
        self.in_memory[v] = True
        self.left[v] -= 1
        if self.left[v] == 0:
            self.holders[v] += 1
        if self.watch is not None:
            self.watch(v, self.stack)

    def _hold(self, ops: Sequence[int]) -> None:
        for v in ops:
            self.holders[v] += 1

    def _release(self, ops: Sequence[int]) -> None:
        for v in ops:
            self.holders[v] -= 1
            if self.holders[v] == 0:
                self.in_memory[v] = False
