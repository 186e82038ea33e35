"""The nodes of a tiled region in the order in which they run, before any is written.

    RegionPlan -> program -> Instructions -> emit.tile

A planner reads from them what is held when, and how much is computed: every instruction makes one
value, of a known shape, and its reads say until when others are needed.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import count
from types import MappingProxyType
from typing import Any

from onnxremat_rewriters.tile.boxes import Box, common, extent, whole
from onnxremat_rewriters.tile.region import Carried, NodeTile, RegionPlan, TilePlan
from onnxremat_rewriters.tile.view import Array, Given, TileView, ValuePart

SMALL_BYTES = 1024
"""A weight up to this size is cut when the model is written, a larger one by a Slice in the run."""


class InstructionKind(StrEnum):
    """What an instruction is: a node of the model in a tile, a Slice, or a Concat of pieces."""

    NODE = "node"
    SLICE = "slice"
    JOIN = "join"


@dataclass(frozen=True)
class Piece:
    """The part `box` of the value `name`, made in a tile (None: joined from several). `serial`
    numbers the pieces of a region."""

    name: str
    box: Box
    tile: int | None
    serial: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the piece; its element type is that of the value."""
        return extent(self.box)


Read = Piece | str | Array | None
"""A piece, a value from outside or weight by name, a new constant, or no input at that place."""


@dataclass(frozen=True, eq=False)
class Instruction:
    """One node to be written. The last JOIN of an output makes all of it.

    `node` is the original node of a NODE, which makes output number `output` of it with
    `attributes` changed (None: dropped), or `part` of what stands for it: what that makes has a box
    for its shape only, unless it is the last. A SLICE cuts `box` out of `have`, both in places of
    the whole value. A JOIN puts its reads together along `axis`. `width`: of the blocks of channels
    in which a value that a SLICE or JOIN makes lies; 0 for none.
    """

    kind: InstructionKind
    makes: Piece
    reads: tuple[Read, ...]
    node: int | None = None
    output: int = 0
    attributes: Mapping[str, Any] = field(default_factory=dict)
    have: Box = ()
    axis: int = 0
    part: ValuePart | None = None
    width: int = 0

    @property
    def nodes(self) -> int:
        """How many nodes are written for it."""
        cuts = self.kind is InstructionKind.SLICE or (
            self.kind is InstructionKind.JOIN and len(self.reads) > 1
        )
        return len(self.reads) + 2 if self.width and cuts else 1

    @property
    def box(self) -> Box:
        """The part of the value that is made."""
        return self.makes.box


@dataclass(frozen=True)
class RegionProgram:
    """Everything that a region runs, tile by tile; the joined outputs at the end (the rows of a
    grid when each is complete). `left`: of each output all of it, or, where it is left open, its
    strips in their order."""

    instructions: tuple[Instruction, ...]
    left: Mapping[str, tuple[Piece, ...]]


Strips = Mapping[str, tuple[Piece, ...]]
"""Values that are there in strips along one axis."""


def program(
    view: TileView,
    plan: RegionPlan,
    *,
    opened: Collection[str] = (),
    strips: Strips = MappingProxyType({}),
    serials: Iterator[int] | None = None,
) -> RegionProgram:
    """What a region runs. O(tiles x nodes).

    `opened`: outputs that are not joined. `strips`: values from outside that are not either.
    `serials`: numbers for pieces, those of other regions not among them.
    """
    left: dict[str, tuple[Piece, ...]] = {}
    made = _instructions(view, plan, opened, strips, serials or count(), left)
    return RegionProgram(tuple(made), left)


@dataclass(frozen=True)
class TileProgram:
    """What one tile runs, its results cut off; `taken`: the pieces that it finds there, `left`:
    those that it leaves to the region and to the tile behind it."""

    instructions: tuple[Instruction, ...]
    taken: tuple[Piece, ...]
    left: tuple[Piece, ...]


def program_of_tile(view: TileView, plan: TilePlan) -> TileProgram:
    """One tile by itself. O(nodes)."""
    serials = count()
    taken = {name: Piece(name, one.box, None, next(serials)) for name, one in plan.carried.items()}
    lowered = _Lowered(view, plan, 0, serials, {}, taken)
    instructions = list(lowered.nodes())
    left = list(lowered.kept.values())
    for name, box in plan.results.items():
        part, cut = lowered.part(name, box)
        instructions += cut
        left.append(part)
    pieces = tuple(one for one in left if isinstance(one, Piece))
    return TileProgram(tuple(instructions), tuple(taken.values()), pieces)


def _instructions(
    view: TileView,
    plan: RegionPlan,
    opened: Collection[str],
    strips: Strips,
    serials: Iterator[int],
    left: dict[str, tuple[Piece, ...]],
) -> Iterator[Instruction]:
    """The instructions of a region; `left` is filled in."""
    grid = plan.region.grid
    outputs = plan.region.outputs
    rows: dict[str, list[Read]] = {name: [] for name in outputs}
    row: dict[str, list[Read]] = {name: [] for name in outputs}
    whole_boxes = {name: whole(view.types[name].shape) for name in outputs}
    shared: Mapping[tuple[str, Box], Piece] = {}
    kept: Mapping[str, Read] = {}
    for number, tile in enumerate(plan.tiles):
        lowered = _Lowered(view, tile, number, serials, shared, kept, strips)
        yield from lowered.nodes()
        for name, box in tile.results.items():
            part, cut = lowered.part(name, box)
            yield from cut
            row[name].append(part)
        shared, kept = lowered.outside, lowered.kept
        if len(grid) == 1 or tile.place[-1] < grid[1][1] - 1:
            continue
        for name, box in tile.results.items():
            axis = grid[1][0]
            if len(row[name]) > 1 and grid[0][1] > 1:
                wide = (*box[:axis], whole_boxes[name][axis], *box[axis + 1 :])
                joined = Piece(name, wide, None, next(serials))
                reads = tuple(row[name])
                width = view.width_of(name)
                yield Instruction(InstructionKind.JOIN, joined, reads, axis=axis, width=width)
                row[name] = [joined]
            rows[name] += row[name]
            row[name] = []
    axis = grid[-1][0] if grid[0][1] == 1 else grid[0][0]
    for name in outputs:
        reads = tuple(rows[name] + row[name])
        parts = tuple(one for one in reads if isinstance(one, Piece))
        if name in opened and len(parts) == len(reads):
            left[name] = parts
            continue
        made = Piece(name, whole_boxes[name], None, next(serials))
        left[name] = (made,)
        yield Instruction(InstructionKind.JOIN, made, reads, axis=axis, width=view.width_of(name))


class _Lowered:
    """One tile. `_have`: for each value, what is there of it and which box that is.

    `outside`: the boxes of values from outside that the tile cuts off. What the next tile needs of
    them it takes over (keys and values of a head, for all groups of query rows). `kept`: the pieces
    that the tile leaves for the next one, each cut off behind its last reader.
    """

    def __init__(
        self,
        view: TileView,
        plan: TilePlan,
        number: int,
        serials: Iterator[int],
        shared: Mapping[tuple[str, Box], Piece],
        taken: Mapping[str, Read],
        strips: Strips = MappingProxyType({}),
    ) -> None:
        self._view = view
        self._strips = strips
        self._plan = plan
        self._number = number
        self._serials = serials
        self._taken = taken
        self._have: dict[str, tuple[Read, Box]] = {
            name: (taken[name], one.box) for name, one in plan.carried.items()
        }
        self._shared = shared
        self._cut: dict[tuple[str, Box], Piece] = {}
        self.outside: dict[tuple[str, Box], Piece] = {}
        self.kept: dict[str, Read] = {}

    def nodes(self) -> Iterator[Instruction]:
        """The instructions of the tile, without those for its results."""
        last = {name: -1 for name in self._plan.kept}
        for place, one in enumerate(self._plan.nodes):
            original = self._view.nodes[one.node]
            touched = (original.output[one.output], *(original.input[i] for i in one.step.reads))
            last.update({name: place for name in touched if name in last})
        yield from self._keep(last, -1)
        for place, one in enumerate(self._plan.nodes):
            yield from self._node(one)
            yield from self._keep(last, place)

    def _keep(self, last: Mapping[str, int], place: int) -> Iterator[Instruction]:
        """Cut off what the next tile takes over of values that were used for the last time."""
        for name, box in self._plan.kept.items():
            if last[name] == place:
                self.kept[name], cut = self.part(name, box)
                yield from cut

    def part(self, name: str, box: Box | None) -> tuple[Read, list[Instruction]]:
        """That box of a value, and the Slice for it if what is there is larger, or what puts it
        together of strips."""
        if name in self._strips and name not in self._have:
            return self._gathered(name, whole(self._view.types[name].shape) if box is None else box)
        there, have = self._there(name, box)
        if box is None or box == have:
            return there, []
        key = (name, box)
        if key in self._cut:
            return self._cut[key], []
        shared = self._shared.get(key) if name not in self._have else None
        made = shared or self._piece(name, box)
        self._cut[key] = made
        if name not in self._have:
            self.outside[key] = made
        if shared is not None:
            return made, []
        width = self._view.width_of(name)
        return made, [Instruction(InstructionKind.SLICE, made, (there,), have=have, width=width)]

    def _gathered(self, name: str, box: Box) -> tuple[Read, list[Instruction]]:
        """A box of a value that is there in strips, and the nodes that put it together."""
        key, width = (name, box), self._view.width_of(name)
        made = self._cut.get(key) or self._shared.get(key)
        instructions: list[Instruction] = []
        if made is None:
            parts: list[Piece] = []
            for strip in self._strips[name]:
                inner = common(strip.box, box)
                if inner is not None and inner != strip.box:
                    part = self._piece(name, inner)
                    instructions.append(
                        Instruction(
                            InstructionKind.SLICE, part, (strip,), have=strip.box, width=width
                        )
                    )
                    parts.append(part)
                elif inner is not None:
                    parts.append(strip)
            made = parts[0]
            if len(parts) > 1:
                made = self._piece(name, box)
                axis = next(a for a, r in enumerate(parts[0].box) if r != parts[1].box[a])
                instructions.append(
                    Instruction(InstructionKind.JOIN, made, tuple(parts), axis=axis, width=width)
                )
        self._cut[key] = self.outside[key] = made
        return made, instructions

    def _node(self, one: NodeTile) -> Iterator[Instruction]:
        original, step = self._view.nodes[one.node], one.step
        name = original.output[one.output]
        there: Read
        if step.crop:
            ((i, box),) = step.reads.items()
            there, cut = self.part(original.input[i], box)
            yield from cut
        elif step.parts:
            there = made = self._piece(name, step.makes)
            yield from self._parts(one, made)
        else:
            reads: list[Read] = []
            for i in range(max([len(original.input) - 1, *step.constants]) + 1):
                if i in step.constants:
                    reads.append(step.constants[i])
                elif i in step.reads:
                    read, cut = self.part(original.input[i], step.reads[i])
                    yield from cut
                    reads.append(read)
                elif i >= len(original.input) or not original.input[i]:
                    reads.append(None)
            there = made = self._piece(name, step.makes)
            yield Instruction(
                InstructionKind.NODE,
                made,
                tuple(reads),
                node=one.node,
                output=one.output,
                attributes=step.attributes,
            )
        self._have[name] = (there, step.makes)
        carried = self._plan.carried.get(name)
        if carried is not None:
            yield from self._put_together(name, carried)

    def _parts(self, one: NodeTile, last: Piece) -> Iterator[Instruction]:
        """The nodes that stand for one, the last of which makes `last`."""
        original, step = self._view.nodes[one.node], one.step
        given: dict[int, Read] = {}
        for i, box in step.reads.items():
            given[i], cut = self.part(original.input[i], box)
            yield from cut
        made: list[Piece] = []
        for part in step.parts:
            ends = len(made) == len(step.parts) - 1
            made.append(last if ends else self._piece(last.name, whole(part.shape)))
            reads: list[Read] = []
            for read in part.reads:
                if isinstance(read, Given):
                    reads.append(given[read.input])
                else:
                    reads.append(made[read] if isinstance(read, int) else read)
            yield Instruction(
                InstructionKind.NODE,
                made[-1],
                tuple(reads),
                node=one.node,
                part=part,
            )

    def _put_together(self, name: str, carried: Carried) -> Iterator[Instruction]:
        """What was taken over of a value and what was made of it, as one."""
        own, cut = self.part(name, carried.own)
        yield from cut
        made = self._piece(name, carried.together)
        reads, width = (self._taken[name], own), self._view.width_of(name)
        yield Instruction(InstructionKind.JOIN, made, reads, axis=carried.axis, width=width)
        self._have[name] = (made, carried.together)

    def _piece(self, name: str, box: Box) -> Piece:
        return Piece(name, box, self._number, next(self._serials))

    def _there(self, name: str, box: Box | None) -> tuple[Read, Box]:
        """What there is of a value: a piece of this tile, all of it, or a constant cut now."""
        if name in self._have:
            return self._have[name]
        full = whole(self._view.types[name].shape)
        value = self._view.known.get(name)
        whole_by_name = not self._view.is_baked(name) and (box is None or box == full)
        if value is None or whole_by_name:
            return name, full
        if box is not None and value.nbytes <= SMALL_BYTES:
            return value[tuple(slice(lo, hi) for lo, hi in box)], box
        return (value if self._view.is_baked(name) else name), full
