"""How far back a tile reaches, for all starts of a segment that ends at one cut at once.

A `Walk` belongs to a cut j and a grid. It takes one tile from the middle of the grid and goes back
op by op from j: what is wanted of a value depends on later ops only, so the state at cut i is that
of the segment [i, j). What a segment reads of values that are not held at i (views, dropped
values) is followed further, op by op before i.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf

from onnxremat.tiling.footprint import Written, written
from onnxremat.tiling.grids import Grid
from onnxremat.tiling.repetition import cost_of_all_tiles
from onnxremat.tiling.sequence import Sequence
from onnxremat_rewriters.tile import Box, CannotTile, NodeTile, Step
from onnxremat_rewriters.tile.boxes import hull, whole
from onnxremat_rewriters.tile.region import node_step


@dataclass(frozen=True)
class TileOfSegment:
    """The sampled tile of a segment: its nodes in the order of the file, those made again from
    before the segment first (`earlier` of them); its results and what it reads from outside.

    `replaced_cost`: nanoseconds of the ops that tiles stand for; `extra_cost`: what the nodes of
    all tiles take beyond that, Slices, views and Concats apart."""

    nodes: tuple[Written, ...]
    earlier: int
    replaced_cost: int
    extra_cost: int
    results: Mapping[str, Box]
    boundary: Mapping[str, Box]


class Walk:
    """Goes back from cut j; `tile(i)` is what a tile of segment [i, j) does.

    `failure` says why it cannot go further back than cut `position`; empty if it can.
    """

    def __init__(
        self, sequence: Sequence, j: int, grid: Grid, threads: int, allow_rounding: bool
    ) -> None:
        self._sequence = sequence
        self._j = j
        self._grid = grid
        self._options = (threads, allow_rounding)
        self._wanted: dict[str, Box] = {}
        self._results: dict[str, Box] = {}
        self._nodes: list[Written] = []
        self._next_node = sequence.imported.op_nodes[j - 1]
        self._states: dict[int, _State] = {}
        self._tiles: dict[int, TileOfSegment | None] = {}
        self._first: tuple[int, ...] | None = None
        self._extra = self._replaced = 0
        self.position = j
        self.failure = ""

    def tile(self, i: int, below_cost: float = inf) -> TileOfSegment | None:
        """What a tile of the segment [i, j) does; None if it cannot be cut, or if it would cost
        `below_cost` more than the ops that it replaces (then `position` is still behind i)."""
        while self.position > i and not self.failure and self._extra < below_cost:
            self._go_back()
        if self.position > i and not self.failure:
            return None
        if i not in self._tiles:
            state = self._states.get(i)
            self._tiles[i] = None if state is None else self._complete(state, i)
        return self._tiles[i]

    def _go_back(self) -> None:
        """One op further."""
        sequence = self._sequence
        v = self.position - 1
        first = sequence.imported.op_nodes[v]
        try:
            for t in sequence.imported.graph.ops[v].outputs:
                name = sequence.imported.graph.tensors[t].name
                if sequence.last_read[t] >= self._j and name not in sequence.free:
                    self._leave(name, first)
            done = len(self._nodes)
            for index in range(self._next_node, first - 1, -1):
                self._node(index, self._wanted, self._nodes)
            self._count(self._nodes[done:])
        except CannotTile as error:
            self.failure = str(error)
            return
        self._next_node = first - 1
        self.position = v
        if self._results:
            self._states[v] = _State(
                len(self._nodes),
                dict(self._wanted),
                dict(self._results),
                self._replaced,
                self._extra,
            )

    def _count(self, nodes: list[Written]) -> None:
        sequence = self._sequence
        self._extra += sum(cost_of_all_tiles(sequence, node, self._grid) for node in nodes)
        for node in {one.tile.node for one in nodes} & sequence.op_of_node.keys():
            cost = sequence.imported.graph.ops[sequence.op_of_node[node]].cost
            self._replaced += cost
            self._extra -= cost

    def _leave(self, name: str, index: int) -> None:
        """A value of node `index` that is read behind j: the tile makes its share of it."""
        view = self._sequence.view
        try:
            box = self._share(view.types[name].shape)
        except CannotTile as error:
            raise CannotTile(f"{view.label(index)}: {error}") from None
        self._results[name] = box
        self._wanted[name] = hull(self._wanted[name], box) if name in self._wanted else box

    def _share(self, shape: tuple[int, ...]) -> Box:
        self._first = self._first or shape
        box = list(whole(shape))
        for axis, tiles in self._grid:
            if len(shape) != len(self._first):
                raise CannotTile("values of different ranks are not cut together")
            size, of = shape[axis], self._first[axis]
            if size < tiles or (size % of and of % size):
                raise CannotTile(f"values of {size} and {of} elements are not cut together")
            start = tiles // 2 * size // tiles
            box[axis] = (start, min(size, start + -(-size // tiles)))
        return tuple(box)

    def _node(self, index: int, wanted: dict[str, Box], nodes: list[Written]) -> None:
        """Plan a node for what is wanted of it; its outputs are no longer wanted then."""
        view = self._sequence.view
        for output, name in reversed(list(enumerate(view.nodes[index].output))):
            if name in wanted:
                step = node_step(view, index, output, wanted[name], *self._options)
                self._want(index, step, wanted)
                tile = NodeTile(index, output, step)
                nodes.append(written(self._sequence, tile, self._options[0]))
                del wanted[name]

    def _want(self, index: int, step: Step, wanted: dict[str, Box]) -> None:
        view = self._sequence.view
        for i, box in step.reads.items():
            name = view.nodes[index].input[i]
            if not name or view.is_constant(name) or name in self._sequence.free:
                continue
            if name not in view.types:
                raise CannotTile(f"the shape of {name!r} is not known")
            if box is None:
                box = whole(view.types[name].shape)
            wanted[name] = hull(wanted[name], box) if name in wanted else box

    def _complete(self, state: "_State", i: int) -> TileOfSegment | None:
        """The tile, with what it makes again of what is not held at i."""
        sequence = self._sequence
        wanted = dict(state.wanted)
        earlier: list[Written] = []
        kept: set[str] = set()
        while True:
            missing = [
                sequence.view.producer[name]
                for name in wanted
                if name not in kept and not sequence.is_held(name, i)
            ]
            if not missing:
                break
            index = max(missing)
            try:
                self._node(index, wanted, earlier)
            except CannotTile:
                names = [n for n in sequence.view.nodes[index].output if n in wanted]
                if not all(sequence.is_view_of_held(name, i) for name in names):
                    return None
                kept.update(names)
        nodes = (*reversed(earlier), *reversed(self._nodes[: state.nodes]))
        again = sum(cost_of_all_tiles(sequence, node, self._grid) for node in earlier)
        return TileOfSegment(
            nodes,
            len(earlier),
            state.replaced_cost,
            state.extra_cost + again,
            state.results,
            wanted,
        )


@dataclass(frozen=True)
class _State:
    """What was known when the walk stood at a cut: nodes planned, boxes open, results."""

    nodes: int
    wanted: Mapping[str, Box]
    results: Mapping[str, Box]
    replaced_cost: int
    extra_cost: int
