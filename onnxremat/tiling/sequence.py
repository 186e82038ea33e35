"""A model as one sequence of whole ops: what is held at its cuts, and what can be dropped.

Cut c lies before op c of the order of the file; cut n is the end of the run. A value is *held* at
the cuts between the op that makes it and the last that reads it, graph outputs at all later ones.
A *dropped* value is held up to the last of its near readers only: those behind the gap must make
it again, in tiles. An *opened* one is held in the strips that tiles make of it, and is made and
read in tiles only.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from math import prod

from onnxremat.core.graph import TensorKind
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.schedule import Schedule
from onnxremat.importer import ImportedModel
from onnxremat.importer.views import root_of
from onnxremat_rewriters.tile import TileView

Drop = tuple[int, int]
"""A tensor that is dropped, and the last of its readers before that, or the op that makes it."""

NEAR_OPS = 4
"""A reader so many ops behind the one before it is a far one."""


@dataclass(frozen=True)
class _Whole:
    """What is the same for all sequences of a model, so that it is asked for once."""

    imported: ImportedModel
    rules: MemoryRules

    @cached_property
    def nbytes(self) -> tuple[int, ...]:
        """`Sequence.nbytes`."""
        return tuple(
            self.rules.nbytes(t) if t.kind is TensorKind.ACTIVATION else 0
            for t in self.imported.graph.tensors
        )

    @cached_property
    def step_bytes(self) -> tuple[int, ...]:
        """Bytes held while each op runs, with nothing dropped."""
        graph = self.imported.graph
        order = Schedule(tuple(range(len(graph.ops))))
        return profile(graph, order, self.rules).live_bytes


@dataclass(frozen=True)
class Sequence:
    """The ops of a model in the order of the file, with the view that tiling needs of it.

    `dropped[t]` is the position of the last near reader of a dropped tensor, `kept[t]` the op until
    which another is held, longer than it is read, so that dropped ones can be made again of it;
    `opened` are held in strips.
    """

    imported: ImportedModel
    view: TileView
    rules: MemoryRules
    dropped: Mapping[int, int] = field(default_factory=dict)
    kept: Mapping[int, int] = field(default_factory=dict)
    opened: frozenset[int] = frozenset()
    _whole: _Whole | None = field(default=None, repr=False, compare=False)
    _leaving: dict[tuple[int, int], tuple[int, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def without(self, drops: Iterable[Drop]) -> "Sequence":
        """The same sequence with other values dropped, each behind the earliest of its drops."""
        near: dict[int, int] = {}
        for t, last in drops:
            near[t] = min(last, near.get(t, last))
        return replace(self, dropped=near, kept={}, _whole=self.whole)

    def keeping(self, tensors: Collection[int], until: int) -> "Sequence":
        """The same sequence with some values held until an op, at least."""
        later = {t: until for t in tensors if self.last_read[t] < until}
        if not later:
            return self
        return replace(self, kept={**self.kept, **later}, _whole=self.whole)

    def opening(self, tensors: Iterable[int]) -> "Sequence":
        """The same sequence with other values in strips."""
        return replace(self, opened=frozenset(tensors), _whole=self.whole)

    def gaps(self, t: int) -> list[tuple[int, int]]:
        """The far readers of a tensor, each with the reader before it, or what makes it."""
        graph = self.imported.graph
        if t in self.held_outputs or not graph.readers[t] or graph.producer[t] < 0:
            return []
        times = (graph.producer[t], *graph.readers[t])
        return [(last, far) for last, far in pairwise(times) if far - last >= NEAR_OPS]

    @cached_property
    def count(self) -> int:
        """How many ops there are."""
        return len(self.imported.graph.ops)

    @cached_property
    def held_outputs(self) -> frozenset[int]:
        """The tensors that are outputs of the graph."""
        return frozenset(self.imported.graph.outputs)

    @cached_property
    def last_read(self) -> tuple[int, ...]:
        """For each tensor the last op that reads it as it is held: n for graph outputs, -1 for
        what nobody reads."""
        graph = self.imported.graph
        last = [readers[-1] if readers else -1 for readers in graph.readers]
        for t, near in self.dropped.items():
            last[t] = near
        for t, until in self.kept.items():
            last[t] = max(last[t], until)
        for t in self.held_outputs:
            last[t] = self.count
        return tuple(last)

    @cached_property
    def whole(self) -> _Whole:
        """What does not depend on what is dropped."""
        return self._whole or _Whole(self.imported, self.rules)

    @property
    def nbytes(self) -> tuple[int, ...]:
        """Bytes of each tensor that a run holds; 0 for weights and what the caller gives."""
        return self.whole.nbytes

    def part_bytes(self, name: str, shape: tuple[int, ...]) -> int:
        """Bytes of a buffer for a part of a value; 0 where elements have no size."""
        kind = self.view.types[name]
        if not kind.has_size:
            return 0
        return self.rules.buffer_bytes(kind.nbytes * prod(shape) // max(1, kind.elements))

    @cached_property
    def cut_bytes(self) -> tuple[int, ...]:
        """Bytes held at each of the n + 1 cuts."""
        graph = self.imported.graph
        change = [0] * (self.count + 2)
        for t, last in enumerate(self.last_read):
            made = graph.producer[t]
            if made >= 0 and last > made:
                change[made + 1] += self.nbytes[t]
                change[last + 1] -= self.nbytes[t]
        total, found = 0, []
        for c in range(self.count + 1):
            total += change[c]
            found.append(total)
        return tuple(found)

    def around(self, names: Collection[str]) -> frozenset[int]:
        """The cuts at which one of these values is made and yet to be read."""
        graph = self.imported.graph
        lives = (
            (made, graph.readers[t][-1])
            for t, (tensor, made) in enumerate(zip(graph.tensors, graph.producer, strict=True))
            if made >= 0 and graph.readers[t] and tensor.name in names
        )
        return frozenset(c for made, last in lives for c in range(made + 1, last + 1))

    def into(self, names: Collection[str]) -> frozenset[int]:
        """The cuts between what makes one of these values and what makes its inputs."""
        graph = self.imported.graph
        makers = (
            (graph.producer[t], v)
            for v, op in enumerate(graph.ops)
            if any(graph.tensors[o].name in names for o in op.outputs)
            for t in op.inputs
            if graph.producer[t] >= 0
        )
        return frozenset(c for made, v in makers for c in range(made + 1, v + 1))

    @cached_property
    def step_bytes(self) -> tuple[int, ...]:
        """Bytes held while each op runs whole. An op that reads a value behind its gap could not
        do so, but is counted as if the value were there."""
        graph = self.imported.graph
        live = list(self.whole.step_bytes)
        for t, near in self.dropped.items():
            for v in range(near + 1, graph.readers[t][-1] + 1):
                if t not in graph.ops[v].inputs:
                    live[v] -= self.nbytes[t]
        for t, until in self.kept.items():
            for v in range(graph.readers[t][-1] + 1, until + 1):
                live[v] += self.nbytes[t]
        return tuple(live)

    @cached_property
    def lacking(self) -> frozenset[int]:
        """Ops that read a dropped value behind its gap, or make or read an opened one: they can
        only run in tiles."""
        graph = self.imported.graph
        far = (v for t, near in self.dropped.items() for v in graph.readers[t] if v > near)
        return self.touching(self.opened).union(far)

    def touching(self, tensors: Iterable[int]) -> frozenset[int]:
        """The ops that make or read some tensors."""
        graph = self.imported.graph
        return frozenset(v for t in tensors for v in (graph.producer[t], *graph.readers[t]))

    def leaving(self, i: int, j: int) -> tuple[int, ...]:
        """Tensors made by ops i to j - 1 that are read behind cut j as they are."""
        if (i, j) not in self._leaving:
            ops = self.imported.graph.ops[i:j]
            found = (t for op in ops for t in op.outputs if self.last_read[t] >= j)
            self._leaving[i, j] = tuple(found)
        return self._leaving[i, j]

    def dying(self, i: int, j: int) -> dict[str, int]:
        """Bytes of the values held at cut i that are read before cut j for the last time."""
        graph = self.imported.graph
        return {
            graph.tensors[t].name: self.nbytes[t]
            for t, last in enumerate(self.last_read)
            if 0 <= graph.producer[t] < i <= last < j
        }

    @cached_property
    def free(self) -> frozenset[str]:
        """Values that depend on no input of the graph: tiles read them whole, from outside."""
        view = self.view
        bound = {value.name for value in view.model.graph.input} - view.stored
        found: set[str] = set()
        for node, names in zip(view.nodes, view.reads, strict=True):
            if bound.isdisjoint(names):
                found.update(name for name in node.output if name)
            else:
                bound.update(name for name in node.output if name)
        return frozenset(found)

    def free_bytes(self, i: int, j: int) -> int:
        """Bytes of free values that ops i to j - 1 make: they are there before the first tile."""
        graph = self.imported.graph
        return sum(
            self.nbytes[t]
            for v in range(i, j)
            for t in graph.ops[v].outputs
            if graph.tensors[t].name in self.free
        )

    @cached_property
    def op_of_node(self) -> dict[int, int]:
        """From the index of a node to its op."""
        return {node: v for v, node in enumerate(self.imported.op_nodes)}

    def is_held(self, name: str, c: int) -> bool:
        """Whether a value that a node reads is there, whole, at cut c (given by the caller counts,
        and a view of it does not)."""
        if name in self.imported.views:
            return False
        t = self.imported.tensor_of.get(name)
        if t is None:
            return True
        made = self.imported.graph.producer[t]
        return made < 0 or (made < c <= self.last_read[t])

    def is_view_of_held(self, name: str, c: int) -> bool:
        """Whether a value is a view of one that is held at cut c as a whole."""
        views = self.imported.views
        if name not in views:
            return False
        root = root_of(name, views)
        return self.imported.tensor_of.get(root) not in self.opened and self.is_held(root, c)
