"""Orders as walks through downsets: the state of the exact search for the smallest peak.

A *downset* is a set of ops that holds the producers of all it reads: what has run at some point of
an order. Each op runs once here, so the bytes held between two steps depend on the downset alone:

    live(S) = bytes of tensors made in S that an op outside S reads, or that are held to the end

and so do those during the step that adds op v (inputs cannot have been freed, v reads them):

    step(S, v) = live(S) + outputs of v - what v takes over in place + workspace of v

*Lemma (submodularity).* For downsets S in S' and an op v that both can be extended by,
live(S' + v) - live(S') <= live(S + v) - live(S) and step(S', v) - live(S') <= step(S, v) - live(S).
Both differences hold the outputs of v, less inputs whose other readers have all run; with more ops
run there are more of those. So live is a submodular set function on downsets.

Source of the state space: Ahn et al. 2020 (Serenity), section 3.1; the lemmas are ours.
"""

from collections.abc import Iterator

from onnxremat.graph import Graph, TensorKind
from onnxremat.memory import MemoryRules, inplace_allowed


class Walk:
    """A downset that grows and shrinks by one op at a time. Each step is O(reads + readers).

    `done` has bit v set if op v has run, `trail` the ops in order, `ready` those that can run next
    and `live_bytes` what is held between steps.
    """

    def __init__(self, graph: Graph, rules: MemoryRules) -> None:
        self.graph = graph
        count = len(graph.ops)
        size = [rules.nbytes(tensor) for tensor in graph.tensors]
        held = set(graph.outputs)
        made = TensorKind.ACTIVATION
        self._size = size
        self._reads = [
            tuple(dict.fromkeys(t for t in op.inputs if graph.tensors[t].kind is made))
            for op in graph.ops
        ]
        self._freeable = [tuple(t for t in reads if t not in held) for reads in self._reads]
        self._left = [len(readers) for readers in graph.readers]
        self._made_bytes = [sum(size[t] for t in op.outputs) for op in graph.ops]
        self._kept_bytes = [
            sum(
                size[t]
                for t in op.outputs
                if graph.readers[t] or t in held or rules.unread_held
            )
            for op in graph.ops
        ]
        self._scratch = [op.workspace_bytes if rules.count_workspace else 0 for op in graph.ops]
        self._pairs = [_pairs(graph, rules, v, held) for v in range(count)]
        self.successors = [
            tuple(dict.fromkeys(r for t in op.outputs for r in graph.readers[t]))
            for op in graph.ops
        ]
        self._missing = [len(graph.predecessors(v)) for v in range(count)]
        self.done = 0
        self.live_bytes = rules.constant_bytes(graph)
        self.trail: list[int] = []
        self._freed: list[int] = []
        self.ready = {v for v in range(count) if self._missing[v] == 0}

    def growth(self, v: int) -> int:
        """live(S + v) - live(S) for a ready op v."""
        left, size = self._left, self._size
        return self._kept_bytes[v] - sum(size[t] for t in self._freeable[v] if left[t] == 1)

    def step_bytes(self, v: int) -> int:
        """Bytes held while the ready op v runs."""
        total = self.live_bytes + self._made_bytes[v] + self._scratch[v]
        return total - self._taken_bytes(v) if self._pairs[v] else total

    def _taken_bytes(self, v: int) -> int:
        filled: set[int] = set()
        taken: set[int] = set()
        nbytes = 0
        for t, o in self._pairs[v]:
            if self._left[t] == 1 and t not in taken and o not in filled:
                filled.add(o)
                taken.add(t)
                nbytes += self._size[t]
        return nbytes

    def run(self, v: int) -> None:
        """Add a ready op."""
        self.live_bytes += self.growth(v)
        for t in self._reads[v]:
            self._left[t] -= 1
        self.done |= 1 << v
        self.trail.append(v)
        self.ready.discard(v)
        for w in self.successors[v]:
            self._missing[w] -= 1
            if self._missing[w] == 0:
                self.ready.add(w)

    def back_to(self, length: int) -> None:
        """Take back steps until the trail has this length."""
        while len(self.trail) > length:
            v = self.trail.pop()
            for w in self.successors[v]:
                if self._missing[w] == 0:
                    self.ready.discard(w)
                self._missing[w] += 1
            self.ready.add(v)
            self.done &= ~(1 << v)
            for t in self._reads[v]:
                self._left[t] += 1
            self.live_bytes -= self.growth(v)


def _pairs(
    graph: Graph, rules: MemoryRules, v: int, held: set[int]
) -> tuple[tuple[int, int], ...]:
    """The (tensor, output position) pairs that op v may share a buffer for, in order."""
    op = graph.ops[v]
    return tuple(
        (op.inputs[i], o)
        for i, o in rules.inplace.get(op.op_type, ())
        if i < len(op.inputs)
        and o < len(op.outputs)
        and graph.tensors[op.inputs[i]].kind is TensorKind.ACTIVATION
        and op.inputs[i] not in held
        and op.outputs[o] not in held
        and inplace_allowed(graph, op.inputs[i], op.outputs[o], op.inputs)
    )


def segments(graph: Graph) -> Iterator[int]:
    """The downsets, as bits and growing, that every order passes through: everything up to an op
    that all others come before or behind. The last is the whole graph. O(n^2 / 64 + reads)."""
    count = len(graph.ops)
    before = [0] * count
    behind = [0] * count
    for v in range(count):
        for u in graph.predecessors(v):
            before[v] |= before[u] | (1 << u)
    for v in reversed(range(count)):
        for u in graph.predecessors(v):
            behind[u] |= behind[v] | (1 << v)
    everything = (1 << count) - 1
    for v in range(count):
        if before[v] | behind[v] | (1 << v) == everything and behind[v]:
            yield before[v] | (1 << v)
    yield everything
