"""What a region is, what each of its tiles computes, and how far a region can go.

Region -> plan_region -> RegionPlan (per tile: nodes, boxes made and read) -> emit.tile
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import gcd

from onnxremat_rewriters.tile.boxes import Box, cuts, extent, holds, hull, partial_axes, whole
from onnxremat_rewriters.tile.exactness import Guard
from onnxremat_rewriters.tile.table import guard, may_round, rule
from onnxremat_rewriters.tile.view import CannotTile, Rule, Site, TileStep, TileView


@dataclass(frozen=True)
class Region:
    """The nodes between `inputs` and `outputs`, to be run tile by tile.

    A node belongs to the region if an output depends on it and it depends on an input. What an
    output needs besides (values that depend on no input) is read from outside like an input.
    `grid`: (axis, tiles) for one or two axes of the outputs, outer loop first. All outputs are cut
    at the same places, in proportion to their sizes; bounds of the smallest output are multiples
    of `step` (cuts that match the strides inside save rows computed twice).

    `carry`: what two neighbours along the last axis of the grid both need is computed once and kept
    from tile to tile (line buffers); else each computes it again. `opened`: outputs that are left
    as they are made, in strips along the first axis of the grid, where only regions read them.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    grid: tuple[tuple[int, int], ...]
    step: int = 1
    carry: bool = False
    opened: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeTile:
    """One node in one tile: `step.makes` is the box of output number `output` that it makes."""

    node: int
    output: int
    step: TileStep

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the node makes."""
        return extent(self.step.makes)


@dataclass(frozen=True)
class Carried:
    """What a tile takes over of a value from the tile before, and with `own`, that part of what it
    makes itself, puts together along `axis`. Without `own` it makes none of the value."""

    box: Box
    own: Box | None = None
    axis: int = 0

    @property
    def together(self) -> Box:
        """The box that is there then."""
        return self.box if self.own is None else hull(self.box, self.own)

    def behind(self) -> Box:
        """As large a box at the end of what is there: about what the next tile takes over."""
        if self.own is None:
            return self.box
        start, stop = self.box[self.axis]
        end = self.own[self.axis][1]
        return (*self.box[: self.axis], (end - stop + start, end), *self.box[self.axis + 1 :])


@dataclass(frozen=True)
class TilePlan:
    """One tile: its place in the grid, its nodes in the order of the file, the boxes of the
    region's outputs that it is for, the boxes that it reads of values from outside, what it takes
    over from the tile before it, and which boxes it keeps for the one behind it."""

    place: tuple[int, ...]
    nodes: tuple[NodeTile, ...]
    results: Mapping[str, Box]
    boundary: Mapping[str, Box]
    carried: Mapping[str, Carried] = field(default_factory=dict)
    kept: Mapping[str, Box] = field(default_factory=dict)


@dataclass(frozen=True)
class RegionPlan:
    """All tiles of a region, row by row. `nodes` are its nodes, ascending; `boundary` what it reads
    from outside, constants apart; `rounded` those of its nodes that may round otherwise."""

    region: Region
    nodes: tuple[int, ...]
    boundary: tuple[str, ...]
    tiles: tuple[TilePlan, ...]
    rounded: tuple[int, ...]


def region_nodes(view: TileView, region: Region) -> tuple[int, ...]:
    """The nodes of a region, ascending. O(nodes + reads of its outputs' ancestors).

    Raises CannotTile if an output does not depend on an input.
    """
    inputs = set(region.inputs)
    needed: set[int] = set()
    pending = [name for name in region.outputs if name not in inputs]
    while pending:
        index = view.producer.get(pending.pop())
        if index is not None and index not in needed:
            needed.add(index)
            pending.extend(
                name
                for name in view.reads[index]
                if name not in inputs and not view.is_constant(name)
            )
    inside: set[str] = set(inputs)
    found = []
    for index in sorted(needed):
        if any(name in inside for name in view.reads[index]):
            found.append(index)
            inside.update(name for name in view.nodes[index].output if name)
    for name in region.outputs:
        if name in inputs or name not in inside:
            raise CannotTile(f"region output {name!r} does not depend on the region's inputs")
    return tuple(found)


def plan_region(
    view: TileView, region: Region, *, threads: int, allow_rounding: bool = False
) -> RegionPlan:
    """What each tile computes. O(tiles x nodes of the region).

    Raises CannotTile, naming the node, if a node cannot be cut as the grid asks.
    """
    nodes = region_nodes(view, region)
    tiles: list[TilePlan] = []
    there: Mapping[str, Box] = {}
    for place, results in _targets(view, region):
        if not region.carry or place[-1] == 0:
            there = {}
        demand = Demand(view, threads, allow_rounding, before=there)
        tile = _plan_tile(demand, nodes, place, results)
        there = demand.there
        if tile.carried:
            kept = {name: one.box for name, one in tile.carried.items()}
            tiles[-1] = replace(tiles[-1], kept=kept)
        tiles.append(tile)
    boundary = dict.fromkeys(name for tile in tiles for name in tile.boundary)
    rounded = [i for i in nodes if may_round(view.site(i))] if allow_rounding else []
    return RegionPlan(region, nodes, tuple(boundary), tuple(tiles), tuple(rounded))


def _targets(view: TileView, region: Region) -> Iterable[tuple[tuple[int, ...], dict[str, Box]]]:
    """For every tile its place and the boxes of the outputs that it is for."""
    if not region.outputs or not 1 <= len(region.grid) <= 2:
        raise ValueError("a region has at least one output and a grid of one or two axes")
    if len({axis for axis, _ in region.grid}) < len(region.grid):
        raise ValueError("an axis stands in the grid twice")
    shapes = {name: view.shape(name) for name in region.outputs}
    ranges = {}
    for axis, tiles in region.grid:
        if not all(0 <= axis < len(shape) for shape in shapes.values()):
            raise CannotTile(f"a region output has no axis {axis}")
        common = gcd(*(shape[axis] for shape in shapes.values()))
        try:
            parts = cuts(common, tiles, region.step)
        except ValueError as error:
            raise CannotTile(f"axis {axis}: {error}") from None
        for name, shape in shapes.items():
            ratio = shape[axis] // common
            ranges[name, axis] = [(lo * ratio, hi * ratio) for lo, hi in parts]
    for place in product(*(range(tiles) for _, tiles in region.grid)):
        results = {}
        for name, shape in shapes.items():
            box = list(whole(shape))
            for (axis, _), i in zip(region.grid, place, strict=True):
                box[axis] = ranges[name, axis][i]
            results[name] = tuple(box)
        yield place, results


def _plan_tile(
    demand: "Demand", nodes: Sequence[int], place: tuple[int, ...], results: Mapping[str, Box]
) -> TilePlan:
    for name, box in results.items():
        demand.want(name, box)
    done = [made for index in reversed(nodes) for made in demand.node(index)]
    return TilePlan(
        place, tuple(reversed(done)), dict(results), dict(demand.wanted), dict(demand.carried)
    )


class Demand:
    """What a tile still needs, while its nodes are planned from the last to the first.

    `before`: what the tile before has of each value, empty if nothing is carried. `ignored`: values
    that are there anyway. `wanted`: of each value the box that is needed, until the node that makes
    it is planned; `there`: the boxes of those for which it was; `carried`: what is taken over.
    """

    def __init__(
        self,
        view: TileView,
        threads: int,
        allow_rounding: bool,
        *,
        before: Mapping[str, Box] | None = None,
        ignored: Collection[str] = (),
    ) -> None:
        self._view = view
        self._options = (threads, allow_rounding)
        self._before = {} if before is None else before
        self._ignored = ignored
        self.wanted: dict[str, Box] = {}
        self.there: dict[str, Box] = {}
        self.carried: dict[str, Carried] = {}

    def copy(self, before: Mapping[str, Box] | None = None) -> "Demand":
        """The same, to go on in another way; `before` takes the place of the tile before."""
        other = Demand(self._view, *self._options, before=before, ignored=self._ignored)
        other.wanted.update(self.wanted)
        other.there.update(self.there)
        other.carried.update(self.carried)
        return other

    def want(self, name: str, box: Box) -> None:
        """A box of a value is needed."""
        _want(self.wanted, name, box)

    def node(self, index: int) -> list[NodeTile]:
        """Plan a node for what is wanted of its outputs, each by itself (Split), the last first;
        what it reads is wanted then. Raises CannotTile."""
        view, made = self._view, []
        for output, name in reversed(list(enumerate(view.nodes[index].output))):
            if name not in self.wanted:
                continue
            box = self.wanted[name]
            taken = _taken_over(self._before.get(name), box)
            if taken is not None and taken.own is not None and _grows(view.site(index)):
                taken = None
            lacking = box if taken is None else taken.own
            if lacking is not None:
                step = node_step(view, index, output, lacking, *self._options)
                made.append(NodeTile(index, output, step))
                for read, needed in _boxes_read(view, index, step):
                    if read not in self._ignored:
                        self.want(read, needed)
                taken = None if taken is None else _beside(taken, box, step.good)
                box = step.good
            if taken is not None:
                self.carried[name] = taken
                box = taken.together
            self.there[name] = box
            del self.wanted[name]
        return made


def _want(wanted: dict[str, Box], name: str, box: Box) -> None:
    wanted[name] = hull(wanted[name], box) if name in wanted else box


def _grows(site: Site) -> bool:
    """Whether a node makes more than it reads at little cost: then what it reads is carried."""
    if site.op not in ("Expand", "Resize", "Upsample"):
        return False
    made, read = site.outputs[0], site.inputs[0]
    return made is not None and read is not None and made.elements > read.elements


def _boxes_read(view: TileView, index: int, step: TileStep) -> Iterator[tuple[str, Box]]:
    """What a step reads of values that are made in the run."""
    for i, box in step.reads.items():
        name = view.nodes[index].input[i]
        if name and not view.is_constant(name):
            yield name, whole(view.shape(name)) if box is None else box


def _taken_over(before: Box | None, wanted: Box) -> Carried | None:
    """How much of a wanted box the tile before has, if the rest lies behind that on one axis."""
    if before is None:
        return None
    beyond = [
        a
        for a, (have, want) in enumerate(zip(before, wanted, strict=True))
        if want[0] < have[0] or want[1] > have[1]
    ]
    if not beyond:  # What more there is, later tiles may need.
        kept = zip(wanted, before, strict=True)
        return Carried(tuple((want[0], have[1]) for want, have in kept))
    axis = beyond[0]
    start, middle, stop = wanted[axis][0], before[axis][1], wanted[axis][1]
    if len(beyond) > 1 or not before[axis][0] <= start < middle:
        return None
    return _split(wanted, axis, start, middle, stop)


def _split(box: Box, axis: int, start: int, middle: int, stop: int) -> Carried:
    first = (*box[:axis], (start, middle), *box[axis + 1 :])
    return Carried(first, (*box[:axis], (middle, stop), *box[axis + 1 :]), axis)


def _beside(taken: Carried, wanted: Box, makes: Box) -> Carried | None:
    """The same, now that it is known which box is made: perhaps more than was lacking."""
    start, (middle, stop) = wanted[taken.axis][0], makes[taken.axis]
    return _split(wanted, taken.axis, start, middle, stop) if start < middle else None


def node_step(
    view: TileView, index: int, output: int, box: Box, threads: int, allow_rounding: bool
) -> TileStep:
    """How node `index` makes `box` of an output exactly. Raises CannotTile, naming the node."""
    key = (index, threads, allow_rounding)
    try:
        if key not in view.cache:
            view.cache[key] = _prepare(view, index, threads, allow_rounding)
        prepared = view.cache[key]
        if isinstance(prepared, CannotTile):
            raise CannotTile(str(prepared))
        made_by, widen = prepared
        step: TileStep = made_by(output, widen(box) if output == 0 else box)
    except CannotTile as error:
        raise CannotTile(f"{view.label(index)}: {error}") from None
    assert holds(step.good, box), f"{view.label(index)} makes {step.good}, asked for {box}"
    return step


def never_cut(view: TileView, index: int, threads: int, allow_rounding: bool) -> str | None:
    """Why no part of what node `index` makes can be made by itself, however it is cut; None if that
    is not known: then it depends on the cut."""
    prepared = _prepare(view, index, threads, allow_rounding)
    return f"{view.label(index)}: {prepared}" if isinstance(prepared, CannotTile) else None


def _prepare(
    view: TileView, index: int, threads: int, allow_rounding: bool
) -> tuple[Rule, Guard] | CannotTile:
    site = view.site(index)
    try:
        made_by = rule(site)
        return made_by, (lambda box: box) if allow_rounding else guard(site, made_by, threads)
    except CannotTile as error:
        return error


@dataclass(frozen=True)
class Reach:
    """How far back from a value a cut can be followed.

    `nodes`: those that can be tiled, ascending. `boundary`: the values where it ended, and why.
    `axes`: of every value inside and on the boundary, the axes of which a tile needs a part only;
    none if it needs the whole.
    """

    nodes: tuple[int, ...]
    boundary: Mapping[str, str]
    axes: Mapping[str, tuple[int, ...]]


def follow(
    view: TileView,
    output: str,
    axes: Sequence[int],
    *,
    threads: int,
    allow_rounding: bool = False,
    tiles: int = 8,
) -> Reach:
    """The largest set of nodes before `output` that can be tiled on `axes` of it. O(nodes).

    Tried with a tile in the middle, one of `tiles` on each axis (of at least one element).
    """
    shape = view.shape(output)
    box = list(whole(shape))
    for axis in axes:
        size = max(1, shape[axis] // tiles)
        start = max(0, min(shape[axis] - size, shape[axis] // 2))
        box[axis] = (start, start + size)
    wanted = {output: tuple(box)}
    nodes: list[int] = []
    boundary: dict[str, str] = {}
    last = view.producer.get(output, -1)
    for index in range(last, -1, -1):
        names = [name for name in view.nodes[index].output if name in wanted]
        for name in names:
            if not partial_axes(wanted[name], view.shape(name)):
                boundary[name] = "the whole of it is needed for every tile"
        if not names or any(name in boundary for name in names):
            boundary.update({n: boundary.get(n, "made with another output") for n in names})
            continue
        try:
            for output_index, name in enumerate(view.nodes[index].output):
                if name in names:
                    step = node_step(
                        view, index, output_index, wanted[name], threads, allow_rounding
                    )
                    for read, part in _boxes_read(view, index, step):
                        _want(wanted, read, part)
        except CannotTile as error:
            boundary.update(dict.fromkeys(names, str(error)))
            continue
        nodes.append(index)
    for name in wanted:
        if name not in view.producer:
            boundary[name] = "it is an input of the model"
    parts = {name: partial_axes(b, view.shape(name)) for name, b in wanted.items()}
    return Reach(tuple(reversed(nodes)), boundary, parts)
