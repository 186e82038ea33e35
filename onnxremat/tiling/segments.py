"""A segment [i, j) of the sequence run tile by tile: what it holds at most and what it adds.

While tiles run, everything held at cut i stays, beside the pieces made so far and what one tile
holds at most. The Concat at the end holds pieces and whole; what is opened stays in strips, which
die one by one in the segment that reads them last. Estimates come from one sampled tile, `exactly`
from all of them as the rewriter plans them.
"""

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from itertools import count
from math import inf, prod
from typing import NamedTuple

from onnxremat.core.deadline import Deadline
from onnxremat.importer.costs import DEFAULT_COSTS
from onnxremat.tiling.footprint import Footprint, footprint
from onnxremat.tiling.grids import Family, Grid, carrying, pairs, single_axes, strips
from onnxremat.tiling.sequence import Sequence
from onnxremat.tiling.tile_costs import moving_ns
from onnxremat.tiling.variations import Difference
from onnxremat.tiling.walk import TileOfSegment, TileWalk, TooDearError
from onnxremat_rewriters.tile import (
    CannotTile,
    Piece,
    Region,
    RegionPlan,
    Strips,
    TilePlan,
    extent,
    plan_region,
    program,
    program_of_tile,
)

WORTH_CARRYING = 0.01
"""Tiles that add no more than this share of a run do without carrying."""


@dataclass(frozen=True)
class Option:
    """One way to run a segment: peak in bytes, extra cost in nanoseconds, nodes more than before.

    `region` is there once it was planned exactly."""

    grid: Grid
    peak_bytes: int
    extra_ns: int
    nodes: int
    region: Region | None = None


@dataclass(frozen=True)
class Sampled:
    """What one tile of a segment says about all: bytes that it holds, and the first if that is
    another; nanoseconds and nodes more than before."""

    inner_bytes: int
    first_bytes: int
    extra_ns: int
    nodes: int


class Laid(NamedTuple):
    """A segment with all its tiles laid out: its footprint, and what it leaves in strips."""

    footprint: Footprint
    opened: Strips


@dataclass
class Segments:
    """All segments of a sequence, evaluated when asked and remembered.

    `most_nodes` is what one segment may have at most; `deadline` counts the work. No segment
    reaches a cut of `apart`, or begins or ends at one of `inner`.
    `pruned` turns true where something was left out for its cost. `parent`: those of a variation of
    the sequence that this one adds to; where both are the same, its findings hold. Not thread-safe.
    """

    sequence: Sequence
    threads: int
    allow_rounding: bool
    most_nodes: int
    deadline: Deadline
    apart: frozenset[int] = frozenset()
    inner: frozenset[int] = frozenset()
    parent: "Segments | None" = None

    def __post_init__(self) -> None:
        self._owners: dict[tuple[int, int], Segments] = {}
        self._difference: Difference | None = None
        if self.parent is not None:
            self._difference = Difference(self.sequence, self.parent.sequence)
        self._sampled: dict[tuple[int, int, Grid], Sampled | None] = {}
        self._laid: dict[Hashable, Laid] = {}
        self._serials: Iterator[int] = count() if self.parent is None else self.parent._serials
        self._walks: dict[tuple[int, Grid], TileWalk] = {}
        self._families: dict[int, tuple[Family, ...]] = {}
        self._options: dict[tuple[int, int, Grid], Option | None] = {}
        self._plans: dict[tuple[int, int, Grid], RegionPlan | None] = {}
        self._inner: dict[tuple[int, Grid], list[tuple[int, int]]] = {}
        self._worth_carrying = WORTH_CARRYING * self.sequence.imported.graph.total_cost()
        self.failures: dict[int, str] = {}
        self.pruned = False

    def floor_bytes(self, i: int, j: int) -> int:
        """No way to run the segment in tiles holds less: what is held at i, the Concat at j."""
        s = self.sequence
        return max(s.cut_bytes[i], s.cut_bytes[j] + self._largest_joined(i, j))

    def _largest_joined(self, i: int, j: int) -> int:
        s = self.sequence
        return max((s.nbytes[t] for t in s.leaving(i, j) if t not in s.opened), default=0)

    def _fading_bytes(self, i: int, j: int) -> int:
        """Bytes of the strips that die in a segment, one by one."""
        s, graph = self.sequence, self.sequence.imported.graph
        return sum(s.nbytes[t] for t in s.opened if graph.producer[t] < i <= s.last_read[t] < j)

    def _touches_strips(self, i: int, j: int) -> bool:
        """Whether a segment makes or reads what is opened."""
        return any(i <= v < j for v in self.sequence.touching(self.sequence.opened))

    def _owner(self, i: int, j: int) -> "Segments":
        """Those of the simplest variation in which this part is the same."""
        if self.parent is None or self._difference is None:
            return self
        if (i, j) not in self._owners:
            touched = self._difference.touches(i, j)
            self._owners[i, j] = self if touched else self.parent._owner(i, j)
        return self._owners[i, j]

    def within(
        self, i: int, j: int, budget_bytes: int, below_ns: float, carry: bool
    ) -> Option | None:
        """The cheapest option found whose peak is within the budget, if it costs less than
        `below_ns`; in each family the one with the fewest tiles. O(log) options of each family
        are looked at."""
        if self.floor_bytes(i, j) > budget_bytes or self._parts(i, j):
            return None
        best: Option | None = None
        for family in self.families(j):
            if family[0].carry and not (carry and self._may_pay(best)):
                break
            found = self._first_within(i, j, family, budget_bytes, below_ns)
            if found is not None:
                best, below_ns = found, found.extra_ns
        return best

    def _parts(self, i: int, j: int) -> bool:
        """Whether the segment takes apart what the runtime has together."""
        return i in self.inner or j in self.inner or any(i <= cut <= j for cut in self.apart)

    def _may_pay(self, best: Option | None) -> bool:
        """Whether tiles that carry may be cheaper: they save a part of what others add."""
        return best is None or (not best.grid.carry and best.extra_ns > self._worth_carrying)

    def _first_within(
        self, i: int, j: int, family: Family, budget_bytes: int, below_ns: float
    ) -> Option | None:
        low, high, best = 0, len(family), None
        if high and self._is_too_dear(i, j, family[0], below_ns):
            self.pruned = True
            return None  # More tiles cost more.
        while low < high:
            middle = (low + high) // 2
            grid = family[middle]
            if self._least_bytes(i, j, grid) > budget_bytes:
                low = middle + 1
                continue
            found = self.option(i, j, grid, below_ns)
            if found is None or found.extra_ns >= below_ns:
                self.pruned |= found is not None
                high = middle
            elif found.peak_bytes <= budget_bytes:
                best, high = found, middle
            else:
                low = middle + 1
        return best

    def _is_too_dear(self, i: int, j: int, grid: Grid, below_ns: float) -> bool:
        try:
            self._tile(i, j, grid, below_ns - self._join_ns(i, j, grid))
        except TooDearError:
            return True
        return False

    def _least_bytes(self, i: int, j: int, grid: Grid) -> int:
        """About the least that a segment can hold: as much in a tile as a shorter one does."""
        inside = [inner for later, inner in self._inner.get((j, grid), ()) if later >= i]
        return self.sequence.cut_bytes[i] + max(inside, default=0) * 9 // 10

    def families(self, j: int) -> tuple[Family, ...]:
        """The grids for segments that end at j, by the value that its last op makes."""
        owner = self._owner(j - 1, j)
        if owner is not self:
            return owner.families(j)
        if j not in self._families:
            self._families[j] = self._find_families(j)
        return self._families[j]

    def _find_families(self, j: int) -> tuple[Family, ...]:
        s = self.sequence
        leaving = s.leaving(j - 1, j)
        if not leaving:
            return ()
        shape = s.imported.graph.tensors[leaving[0]].shape
        axes = []
        refusals = []
        if not single_axes(shape):
            label = s.view.label(s.imported.op_nodes[j - 1])
            self.failures.setdefault(j - 1, f"{label}: no axis of {list(shape)} is worth a cut")
        for axis in single_axes(shape):
            walk = self._walk(j, Grid(((axis, 2),)))
            if walk.tile(j - 1) is not None:
                axes.append(axis)
            else:
                refusals.append(walk.failure)
        said = [reason for reason in refusals if reason]
        if said and not axes:
            self.failures.setdefault(j - 1, said[0])
        # Rows of a picture do without its columns; in groups of channels rows come behind those.
        alone = [axis for axis in axes if axis < 3 or 2 not in axes or len(shape) > 4]
        families = [strips(shape, axis) for axis in alone]
        return (*families, *pairs(shape, axes), *carrying(shape, axes))

    def _walk(self, j: int, grid: Grid) -> TileWalk:
        key = (j, grid)
        if key not in self._walks:
            self._walks[key] = TileWalk(
                self.sequence, j, grid, self.threads, self.allow_rounding, self.deadline
            )
        return self._walks[key]

    def _tile(self, i: int, j: int, grid: Grid, below_ns: float = inf) -> TileOfSegment | None:
        return self._owner(i, j)._walk(j, grid).tile(i, below_ns)

    def option(self, i: int, j: int, grid: Grid, below_ns: float = inf) -> Option | None:
        """The estimate for a grid; None if the segment cannot be cut so, or costs as much as
        `below_ns` or more."""
        key = (i, j, grid)
        if key not in self._options:
            try:
                found = self._owner(i, j)._sample(i, j, grid, below_ns)
            except TooDearError:
                self.pruned = True
                return None
            if found is None:
                self._options[key] = None
                return None
            self._inner.setdefault((j, grid), []).append((i, found.inner_bytes))
            peak = self._peak(i, j, grid, found)
            self._options[key] = Option(grid, peak, found.extra_ns, found.nodes)
        return self._options[key]

    def _sample(self, i: int, j: int, grid: Grid, below_ns: float) -> Sampled | None:
        """What one tile says; None if the segment cannot be cut so. Raises TooDearError."""
        key = (i, j, grid)
        if key not in self._sampled:
            walk, tiles = self._walk(j, grid), grid.tiles
            joining = self._join_ns(i, j, grid)
            sample = walk.tile(i, below_ns - joining)
            if sample is None or self._is_pointless(sample, grid):
                if walk.failure and self._is_spatial(j, grid):
                    self.failures.setdefault(walk.position - 1, walk.failure)
                self._sampled[key] = None
                return None
            cost = sample.extra_ns + joining
            if cost + self._carry_ns(sample, grid) >= below_ns:
                raise TooDearError
            one = self._footprint(sample.tile)
            nodes, first_bytes = one.nodes * tiles, 0
            if sample.first is not None:
                first = self._footprint(sample.first)
                first_bytes = first.inner_bytes
                nodes += (first.nodes - one.nodes) * grid.columns
            self._sampled[key] = Sampled(
                one.inner_bytes,
                first_bytes,
                cost + one.moved_ns * tiles,
                nodes + self._joins(i, j, grid) - sample.replaced_nodes,
            )
        return self._sampled[key]

    def _is_spatial(self, j: int, grid: Grid) -> bool:
        """Whether the grid does not cut the channels of pictures: that ends at once, and explains
        nothing."""
        s = self.sequence
        ranks = [len(s.imported.graph.tensors[t].shape) for t in s.leaving(j - 1, j)]
        return max(ranks, default=0) < 4 or any(axis > 1 for axis, _ in grid.axes)

    def _footprint(self, tile: TilePlan) -> Footprint:
        run = program_of_tile(self.sequence.view, tile)
        self.deadline.count(len(run.instructions))
        return footprint(
            self.sequence, run.instructions, self.threads, taken=run.taken, left=run.left
        )

    def _is_pointless(self, sample: TileOfSegment, grid: Grid) -> bool:
        """Whether there would be too many nodes, nothing to carry, or tiles that make nothing
        since the one before had to make more than its share."""
        tile = sample.tile
        if grid.carry:
            carried = [tile.carried.get(name) for name in tile.results]
            if not tile.carried or any(one is not None and one.own is None for one in carried):
                return True
        return len(tile.nodes) * grid.tiles > self.most_nodes

    def _carry_ns(self, sample: TileOfSegment, grid: Grid) -> int:
        """Nanoseconds of putting together what tiles take over and what they make."""
        cost = sum(
            moving_ns(self.sequence.part_bytes(name, extent(one.together)))
            for name, one in sample.tile.carried.items()
            if one.own is not None
        )
        return cost * grid.tiles

    def _join_ns(self, i: int, j: int, grid: Grid) -> int:
        """Nanoseconds of the Concats: on each axis all is copied in runs of what lies behind it."""
        cost = self._joins(i, j, grid) * DEFAULT_COSTS.overhead_ns
        for t in self.sequence.leaving(i, j):
            shape = self.sequence.imported.graph.tensors[t].shape
            for axis, tiles in grid.axes:
                cost += moving_ns(self.sequence.nbytes[t], prod(shape[:axis]) * tiles)
        return cost

    def _joins(self, i: int, j: int, grid: Grid) -> int:
        """How many Concats there are."""
        rows = 0 if len(grid.axes) == 1 else grid.columns
        return len(self.sequence.leaving(i, j)) * (1 + rows)

    def _peak(self, i: int, j: int, grid: Grid, one: Sampled) -> int:
        """An estimate of the most bytes held in the segment, from those of one tile, and of the
        first if it is another."""
        s, tiles = self.sequence, grid.tiles
        total = sum(s.nbytes[t] for t in s.leaving(i, j))
        before = s.cut_bytes[i] + s.free_bytes(i, j)
        # A strip is read by the tile behind it, too.
        faded = self._fading_bytes(i, j) * max(0, tiles - 2) // tiles
        made = total * (tiles - 1) // tiles
        return max(
            before + max(total // tiles, made - faded) + one.inner_bytes,
            before + one.first_bytes,
            before + (total if len(grid.axes) > 1 else 0) - faded,
            s.cut_bytes[j] + self._largest_joined(i, j),
        )

    def exactly(
        self, i: int, j: int, option: Option, strips: dict[str, tuple[Piece, ...]]
    ) -> Option | None:
        """The option with all its tiles planned, remembered in the place of the estimate. `strips`
        are there from segments before it; what it leaves in strips is added."""
        if option.region is not None and not self._touches_strips(i, j):
            return option
        s, grid = self.sequence, option.grid
        sample, laid = self._tile(i, j, grid), self._lay_out(i, j, grid, strips)
        if sample is None or laid is None:
            self._options[i, j, grid] = None
            return None
        plan, one = laid
        strips.update(one.opened)
        held = s.cut_bytes[i] + s.free_bytes(i, j) - sum(s.dying(i, j).values())
        cost = one.footprint.nodes_ns + one.footprint.moved_ns - sample.replaced_ns
        added = one.footprint.nodes - sample.replaced_nodes
        found = Option(grid, held + one.footprint.inner_bytes, cost, added, plan.region)
        self._options[i, j, grid] = found
        return found

    def _lay_out(
        self, i: int, j: int, grid: Grid, strips: Strips
    ) -> tuple[RegionPlan, Laid] | None:
        s, owner = self.sequence, self._owner(i, j)
        plan = owner._planned(i, j, grid)
        if plan is None:
            return None
        read = {name: there for name, there in strips.items() if name in plan.boundary}
        boxes = tuple((name, tuple(one.box for one in there)) for name, there in read.items())
        dying = s.dying(i, j)
        key = (i, j, grid, tuple(dying), boxes)
        if key not in owner._laid:
            opened = plan.region.opened
            run = program(s.view, plan, opened=opened, strips=read, serials=self._serials)
            self.deadline.count(2 * len(run.instructions))
            left = [piece for pieces in run.left.values() for piece in pieces]
            one = footprint(s, run.instructions, self.threads, left=left, dying=dying, strips=read)
            owner._laid[key] = Laid(one, {name: run.left[name] for name in opened})
        return plan, owner._laid[key]

    def _planned(self, i: int, j: int, grid: Grid) -> RegionPlan | None:
        """All tiles of a segment; None if it cannot be cut so."""
        key = (i, j, grid)
        if key not in self._plans:
            sample = self._walk(j, grid).tile(i)
            self._plans[key] = None if sample is None else self._plan(i, j, grid, sample)
        return self._plans[key]

    def _plan(self, i: int, j: int, grid: Grid, sample: TileOfSegment) -> RegionPlan | None:
        s = self.sequence
        tensors, leaving = s.imported.graph.tensors, s.leaving(i, j)
        names = tuple(tensors[t].name for t in leaving)
        opened = tuple(tensors[t].name for t in leaving if t in s.opened)
        step = self._step(sample, names, grid)
        while True:
            region = Region(tuple(sample.tile.boundary), names, grid.axes, step, grid.carry, opened)
            try:
                return plan_region(
                    s.view, region, threads=self.threads, allow_rounding=self.allow_rounding
                )
            except CannotTile:
                if step == 1:
                    return None
                step = step // 2 if step % 2 == 0 else 1

    def _step(self, sample: TileOfSegment, names: tuple[str, ...], grid: Grid) -> int:
        """The ratio of the largest to the smallest resolution inside: cuts at multiples of it hit
        whole elements everywhere."""
        types = self.sequence.view.types
        step = 1
        if any(len(types[name].shape) <= axis for name in names for axis, _ in grid.axes):
            return step  # Such a region is refused.
        for axis, tiles in grid.axes:
            size = min(types[name].shape[axis] for name in names)
            for node in sample.tile.nodes:
                shape = types[self.sequence.view.nodes[node.node].output[node.output]].shape
                if len(shape) == len(types[names[0]].shape) and shape[axis] > 1:
                    ratio, rest = divmod(size, shape[axis])
                    if not rest and ratio > step and size // ratio >= tiles:
                        step = ratio
        return step
