"""How far back a tile reaches, for all starts of a segment that ends at one cut at once.

A `TileWalk` belongs to a cut j and a grid. It takes one tile from the middle of the grid and goes
back op by op from j: what is wanted of a value depends on later ops only, so the state at cut i is
that of the segment [i, j). What a segment reads of values that are not held at i (views, dropped
values) is followed further, op by op before i. Where tiles carry, the sampled one is the second of
a column, and the first goes along: what that has, the second need not make. It is the largest.
"""

from collections.abc import Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from math import inf

from onnxremat.core.deadline import Deadline
from onnxremat.tiling.grids import Grid
from onnxremat.tiling.sequence import Sequence
from onnxremat.tiling.tile_costs import ns_of_all_tiles, ns_of_first_tiles
from onnxremat_rewriters.tile import Box, CannotTile, Demand, NodeTile, TilePlan
from onnxremat_rewriters.tile.boxes import whole


@dataclass(frozen=True)
class TileOfSegment:
    """The sampled tile of a segment, with its nodes in the order of the file. `first`: the one
    before it, if tiles carry.

    `replaced_nodes`, `replaced_ns`: the nodes that tiles stand for, and nanoseconds of their ops;
    `extra_ns`: what the nodes of all tiles take beyond that, Slices, views and Concats apart."""

    tile: TilePlan
    first: TilePlan | None
    replaced_nodes: int
    replaced_ns: int
    extra_ns: int


class TooDearError(Exception):
    """A tile costs more than is asked for."""


class TileWalk:
    """Goes back from cut j; `tile(i)` is what a tile of segment [i, j) does.

    `failure` says why it cannot go further back than cut `position`; empty if it can.
    """

    def __init__(
        self,
        sequence: Sequence,
        j: int,
        grid: Grid,
        threads: int,
        allow_rounding: bool,
        deadline: Deadline,
    ) -> None:
        self._sequence = sequence
        self._j = j
        self._grid = grid
        self._threads = threads
        self._deadline = deadline
        second = Demand(sequence.view, threads, allow_rounding, ignored=sequence.free)
        self._tile = _Pair(second)
        if grid.carry:
            first = Demand(sequence.view, threads, allow_rounding, ignored=sequence.free)
            self._tile = _Pair(second.copy(first.there), first)
        self._results: dict[str, tuple[Box, Box]] = {}
        self._next_node = sequence.imported.op_nodes[j - 1]
        self._states: dict[int, _WalkState] = {}
        self._tiles: dict[int, TileOfSegment | None] = {}
        self._least_ns: dict[int, float] = {}
        self._first: tuple[int, ...] | None = None
        self._extra = self._replaced = self._replaced_nodes = 0
        self.position = j
        self.failure = ""

    def tile(self, i: int, below_ns: float = inf) -> TileOfSegment | None:
        """What a tile of the segment [i, j) does; None if it cannot be cut. Raises TooDearError if
        that would cost `below_ns` more than the ops that it replaces."""
        if i in self._tiles:
            return self._tiles[i]
        if self._least_ns.get(i, 0) >= below_ns:
            raise TooDearError
        while self.position > i and not self.failure:
            if self._extra >= below_ns:
                raise TooDearError
            self._go_back()
        state = self._states.get(i)
        self._tiles[i] = None if state is None else self._complete(state, i, below_ns)
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
            self._deadline.count(1 + self._next_node - first)
            for index in range(self._next_node, first - 1, -1):
                self._count(*self._tile.node(index))
        except CannotTile as error:
            self.failure = str(error)
            return
        self._next_node = first - 1
        self.position = v
        if self._results:
            self._states[v] = _WalkState(
                self._tile.copy(),
                dict(self._results),
                self._replaced_nodes,
                self._replaced,
                self._extra,
            )

    def _count(self, nodes: Many[NodeTile], first: Many[NodeTile]) -> None:
        """Count what a node takes in all tiles, and what it took as a whole."""
        sequence = self._sequence
        self._extra += self._cost(nodes, first)
        replaced = {one.node for one in (*nodes, *first)}
        self._replaced_nodes += len(replaced)
        for node in replaced & sequence.op_of_node.keys():
            cost = sequence.imported.graph.ops[sequence.op_of_node[node]].cost
            self._replaced += cost
            self._extra -= cost

    def _cost(self, nodes: Many[NodeTile], first: Many[NodeTile]) -> int:
        """Nanoseconds in all tiles; what the second tile takes over whole is made once a column."""
        asked = self._grid, self._threads
        cost = sum(ns_of_all_tiles(self._sequence, node, *asked) for node in nodes)
        made = {(node.node, node.output) for node in nodes}
        for node in first:
            if (node.node, node.output) not in made:
                cost += ns_of_first_tiles(self._sequence, node, *asked)
        return cost

    def _leave(self, name: str, index: int) -> None:
        """A value of node `index` that is read behind j: the tile makes its share of it."""
        view = self._sequence.view
        number = 1 if self._grid.carry else self._grid.axes[-1][1] // 2
        try:
            shape = view.shape(name)
            box, before = self._share(shape, number), self._share(shape, number - 1)
        except CannotTile as error:
            raise CannotTile(f"{view.label(index)}: {error}") from None
        self._results[name] = box, before
        self._tile.want(name, box, before)

    def _share(self, shape: tuple[int, ...], last: int) -> Box:
        """What a tile is for of a value: number `last` on the last axis of the grid, one in the
        middle on the other."""
        self._first = self._first or shape
        box = list(whole(shape))
        for place, (axis, tiles) in enumerate(self._grid.axes):
            if len(shape) != len(self._first):
                raise CannotTile("values of different ranks are not cut together")
            size, of = shape[axis], self._first[axis]
            if size < tiles or (size % of and of % size):
                raise CannotTile(f"values of {size} and {of} elements are not cut together")
            number = last if place == len(self._grid.axes) - 1 else tiles // 2
            start = number * size // tiles
            box[axis] = (start, min(size, start + -(-size // tiles)))
        return tuple(box)

    def _complete(self, state: "_WalkState", i: int, below_ns: float) -> TileOfSegment | None:
        """The tile, with what it makes again of what is not held at i."""
        sequence = self._sequence
        tile = state.tile.copy()
        cost = state.extra_ns
        left: set[str] = set()
        while True:
            if cost >= below_ns:
                self._least_ns[i] = cost
                raise TooDearError
            wanted = tile.wanted()
            missing = [
                sequence.view.producer[name]
                for name in wanted
                if name not in left and not sequence.is_held(name, i)
            ]
            if not missing:
                break
            self._deadline.count(1)
            index = max(missing)
            names = [n for n in sequence.view.nodes[index].output if n in wanted]
            try:
                cost += self._cost(*tile.node(index))
            except CannotTile:
                if not all(sequence.is_view_of_held(name, i) for name in names):
                    return None
                left.update(names)
        return TileOfSegment(
            *tile.plans(state.results), state.replaced_nodes, state.replaced_ns, cost
        )


@dataclass
class _Pair:
    """What the sampled tile needs, and where tiles carry, what the first one does."""

    demand: Demand
    first: Demand | None = None
    nodes: list[NodeTile] = field(default_factory=list)
    first_nodes: list[NodeTile] = field(default_factory=list)

    def want(self, name: str, box: Box, of_first: Box) -> None:
        self.demand.want(name, box)
        if self.first is not None:
            self.first.want(name, of_first)

    def node(self, index: int) -> tuple[list[NodeTile], list[NodeTile]]:
        """Plan a node: what it is in the sampled tile and in the first. Raises CannotTile."""
        first = [] if self.first is None else self.first.node(index)
        made = self.demand.node(index)
        self.first_nodes += first
        self.nodes += made
        return made, first

    def wanted(self) -> dict[str, Box]:
        """What is needed; of a value that the second tile takes over, what the first needs."""
        return {**(self.first.wanted if self.first else {}), **self.demand.wanted}

    def copy(self) -> "_Pair":
        first = None if self.first is None else self.first.copy()
        second = self.demand.copy(None if first is None else first.there)
        return _Pair(second, first, list(self.nodes), list(self.first_nodes))

    def plans(self, results: Mapping[str, tuple[Box, Box]]) -> tuple[TilePlan, TilePlan | None]:
        """The sampled tile, and the first."""
        carried = self.demand.carried
        tile = TilePlan(
            (),
            tuple(reversed(self.nodes)),
            {name: boxes[0] for name, boxes in results.items()},
            self.wanted(),
            carried,
            {name: one.behind() for name, one in carried.items()},
        )
        if self.first is None:
            return tile, None
        first = TilePlan(
            (),
            tuple(reversed(self.first_nodes)),
            {name: boxes[1] for name, boxes in results.items()},
            self.first.wanted,
            kept={name: one.box for name, one in carried.items()},
        )
        return tile, first


@dataclass(frozen=True)
class _WalkState:
    """What was known when the walk stood at a cut."""

    tile: _Pair
    results: Mapping[str, tuple[Box, Box]]
    replaced_nodes: int
    replaced_ns: int
    extra_ns: int
