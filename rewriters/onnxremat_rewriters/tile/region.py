"""What a region is, what each of its tiles computes, and how far a region can go.

Region -> plan_region -> RegionPlan (per tile: nodes, boxes made and read) -> emit.tile
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import gcd

from onnxremat_rewriters.tile.boxes import Box, cuts, extent, holds, hull, partial_axes, whole
from onnxremat_rewriters.tile.exactness import Guard, guard, may_round
from onnxremat_rewriters.tile.ranges import rule
from onnxremat_rewriters.tile.view import CannotTile, Rule, Step, View


@dataclass(frozen=True)
class Region:
    """The nodes between `inputs` and `outputs`, to be run tile by tile.

    A node belongs to the region if an output depends on it and it depends on an input. What an
    output needs besides (values that depend on no input) is read from outside like an input.
    `grid`: (axis, tiles) for one or two axes of the outputs, outer loop first. All outputs are cut
    at the same places, in proportion to their sizes; bounds of the smallest output are multiples
    of `step` (cuts that match the strides inside save rows computed twice).
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    grid: tuple[tuple[int, int], ...]
    step: int = 1


@dataclass(frozen=True)
class NodeTile:
    """One node in one tile: `step.makes` is the box of output number `output` that it makes."""

    node: int
    output: int
    step: Step

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the node makes."""
        return extent(self.step.makes)


@dataclass(frozen=True)
class TilePlan:
    """One tile: its place in the grid, its nodes in the order of the file, the boxes of the
    region's outputs that it is for, and the boxes that it reads of values from outside."""

    place: tuple[int, ...]
    nodes: tuple[NodeTile, ...]
    results: Mapping[str, Box]
    boundary: Mapping[str, Box]


@dataclass(frozen=True)
class RegionPlan:
    """All tiles of a region, row by row. `nodes` are its nodes, ascending; `boundary` what it reads
    from outside, constants apart; `rounded` those of its nodes that may round otherwise."""

    region: Region
    nodes: tuple[int, ...]
    boundary: tuple[str, ...]
    tiles: tuple[TilePlan, ...]
    rounded: tuple[int, ...]


def region_nodes(view: View, region: Region) -> tuple[int, ...]:
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
    view: View, region: Region, *, threads: int, allow_rounding: bool = False
) -> RegionPlan:
    """What each tile computes. O(tiles x nodes of the region).

    Raises CannotTile, naming the node, if a node cannot be cut as the grid asks.
    """
    nodes = region_nodes(view, region)
    tiles = [
        _plan_tile(view, nodes, place, results, threads, allow_rounding)
        for place, results in _targets(view, region)
    ]
    boundary = dict.fromkeys(name for tile in tiles for name in tile.boundary)
    rounded = [i for i in nodes if may_round(view.site(i))] if allow_rounding else []
    return RegionPlan(region, nodes, tuple(boundary), tuple(tiles), tuple(rounded))


def _targets(view: View, region: Region) -> Iterable[tuple[tuple[int, ...], dict[str, Box]]]:
    """For every tile its place and the boxes of the outputs that it is for."""
    if not region.outputs or not 1 <= len(region.grid) <= 2:
        raise ValueError("a region has at least one output and a grid of one or two axes")
    if len({axis for axis, _ in region.grid}) < len(region.grid):
        raise ValueError("an axis stands in the grid twice")
    shapes = {name: _shape(view, name) for name in region.outputs}
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
    view: View,
    nodes: Sequence[int],
    place: tuple[int, ...],
    results: Mapping[str, Box],
    threads: int,
    allow_rounding: bool,
) -> TilePlan:
    wanted = dict(results)
    done: list[NodeTile] = []
    made: set[str] = set()
    for index in reversed(nodes):
        # A node with several wanted outputs (Split) is planned for each of them.
        for output, name in reversed(list(enumerate(view.nodes[index].output))):
            if name in wanted:
                step = node_step(view, index, output, wanted[name], threads, allow_rounding)
                done.append(NodeTile(index, output, step))
                made.add(name)
                _want(view, index, step, wanted)
    boundary = {name: box for name, box in wanted.items() if name not in made}
    return TilePlan(place, tuple(reversed(done)), dict(results), boundary)


def _want(view: View, index: int, step: Step, wanted: dict[str, Box]) -> None:
    """Note what a step reads of values that are made in the run."""
    for i, box in step.reads.items():
        name = view.nodes[index].input[i]
        if view.is_constant(name):
            continue
        if box is None:
            box = whole(_shape(view, name))
        wanted[name] = hull(wanted[name], box) if name in wanted else box


def node_step(
    view: View, index: int, output: int, box: Box, threads: int, allow_rounding: bool
) -> Step:
    """How node `index` makes `box` of an output exactly. Raises CannotTile, naming the node."""
    key = (index, threads, allow_rounding)
    try:
        if key not in view.cache:
            view.cache[key] = _prepare(view, index, threads, allow_rounding)
        prepared = view.cache[key]
        if isinstance(prepared, CannotTile):
            raise CannotTile(str(prepared))
        made_by, widen = prepared
        step: Step = made_by(output, widen(box) if output == 0 else box)
    except CannotTile as error:
        raise CannotTile(f"{view.label(index)}: {error}") from None
    assert holds(step.makes, box), f"{view.label(index)} makes {step.makes}, asked for {box}"
    return step


def _prepare(
    view: View, index: int, threads: int, allow_rounding: bool
) -> tuple[Rule, Guard] | CannotTile:
    site = view.site(index)
    try:
        made_by = rule(site)
        return made_by, (lambda box: box) if allow_rounding else guard(site, made_by, threads)
    except CannotTile as error:
        return error


def _shape(view: View, name: str) -> tuple[int, ...]:
    kind = view.types.get(name)
    if kind is None:
        raise CannotTile(f"the shape of {name!r} is not known")
    return kind.shape


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
    view: View,
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
    shape = _shape(view, output)
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
            if not partial_axes(wanted[name], _shape(view, name)):
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
                    _want(view, index, step, wanted)
        except CannotTile as error:
            boundary.update(dict.fromkeys(names, str(error)))
            continue
        nodes.append(index)
    for name in wanted:
        if name not in view.producer:
            boundary[name] = "it is an input of the model"
    parts = {name: partial_axes(b, _shape(view, name)) for name, b in wanted.items()}
    return Reach(tuple(reversed(nodes)), boundary, parts)
