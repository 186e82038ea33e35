"""`tile`: a model in which regions run tile by tile.

In a tile the nodes stand in the order of the file; what is read of a larger value is cut off by a
Slice right before its first reader. The pieces of an output are joined by Concat, columns within a
row first: it holds pieces and whole at once. What only regions read may stay in strips
(`Region.opened`): each tile then puts together what it reads, and a strip is held until the last
tile that reads of it.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from onnxremat.importer.nodes import captured, reads
from onnxremat.importer.values import ValueType, tensor_type
from onnxremat_rewriters.naming import NameSource, node_names, value_names
from onnxremat_rewriters.tile.boxes import extent, whole
from onnxremat_rewriters.tile.program import Instruction, InstructionKind, Piece, Read, program
from onnxremat_rewriters.tile.region import Region, RegionPlan, plan_region
from onnxremat_rewriters.tile.view import CannotTile, TileView, view

_COLUMNS = 3
"""The axis of pictures along which a line of blocks lies."""


@dataclass(frozen=True)
class Origin:
    """Where a node comes from: the index of the original node it stands for (None for a Slice or
    Concat of the tiling), its region and tile, both counted from 0 (None outside of regions)."""

    node: int | None
    region: int | None = None
    tile: int | None = None


@dataclass(frozen=True)
class RefusedRegion:
    """A region, by its number, that was left as it was, and why."""

    region: int
    reason: str


@dataclass(frozen=True)
class Tiled:
    """The rewritten model; `origin[i]` says where its node i comes from.

    `rounded`: indices of original nodes whose tiles may round otherwise (none unless allowed).
    `refused`: the regions that were not tiled. `types`: of the values that the tiling made.
    """

    model: onnx.ModelProto
    origin: tuple[Origin, ...]
    rounded: tuple[int, ...]
    refused: tuple[RefusedRegion, ...]
    types: Mapping[str, ValueType]


def tile(
    model: onnx.ModelProto,
    regions: Sequence[Region],
    types: Mapping[str, ValueType],
    *,
    threads: int,
    allow_rounding: bool = False,
    block_channels: int = 0,
) -> Tiled:
    """Run each of `regions` tile by tile. The argument is never changed; weights are shared.

    Nodes that no graph output needs any more are left out: those of a region stay whole, beside
    their tiles, if a node outside reads what they make. `types` are those of all values, graph
    inputs included; the result holds for these sizes. The bits of the result are those of `model`
    for runs with `threads` threads, unless `allow_rounding`. `block_channels` is that of
    `view`. O(nodes + tiles x nodes of regions).

    Raises ValueError if a value is an output of two regions, or regions wait for each other.
    """
    looked_at = view(model, types, block_channels)
    plans: dict[int, RegionPlan] = {}
    refused = []
    for number, region in enumerate(regions):
        try:
            plans[number] = plan_region(
                looked_at, region, threads=threads, allow_rounding=allow_rounding
            )
        except CannotTile as error:
            refused.append(RefusedRegion(number, str(error)))
    outputs = frozenset(name for plan in plans.values() for name in plan.region.outputs)
    units, sizes = _ordered_units(looked_at, plans)
    writer = _Writer(looked_at, outputs, sizes)
    whole_elsewhere = looked_at.outputs.union(
        *(looked_at.reads[unit.index] for unit in units if unit.region is None)
    )
    serials, strips = count(), dict[str, tuple[Piece, ...]]()
    for unit in units:
        if unit.region is None:
            writer.copy(unit.index)
            continue
        plan = plans[unit.region]
        opened = set(plan.region.opened) - whole_elsewhere
        made = program(looked_at, plan, opened=opened, strips=strips, serials=serials)
        strips.update((name, made.left[name]) for name in opened)
        writer.region(unit.region, made.instructions)
    rounded = sorted({index for plan in plans.values() for index in plan.rounded})
    return Tiled(*writer.finish(), tuple(rounded), tuple(refused), writer.types)


@dataclass(frozen=True, order=True)
class _Unit:
    """A node outside of regions, or (`region`) a region; `index` is its place in the file."""

    index: int
    region: int | None = None


def _ordered_units(
    looked_at: TileView, plans: Mapping[int, RegionPlan]
) -> tuple[list[_Unit], frozenset[str]]:
    """What the graph outputs need, in the order of the file as far as regions allow; and the sizes
    that nodes outside of regions read as constants.

    There are such sizes only where regions would wait for each other, or for themselves: an input
    (a mask, say) that is cut to the size of an output (the keys of a cache) needs no more of it.
    """
    computed = frozenset(name for name in looked_at.known if looked_at.is_baked(name))
    for sizes in (frozenset[str](), computed):
        units = _topological(_needs(looked_at, plans, sizes))
        if units is not None:
            return units, sizes
    raise ValueError("regions wait for each other: an input of one needs an output of another")


def _needs(
    looked_at: TileView, plans: Mapping[int, RegionPlan], sizes: frozenset[str]
) -> dict[_Unit, set[_Unit]]:
    """Every unit that the graph outputs need, with the units that it needs itself."""
    maker: dict[str, _Unit] = {}
    for number, plan in plans.items():
        outputs = plan.region.outputs
        unit = _Unit(min(looked_at.producer[name] for name in outputs), number)
        for name in outputs:
            if name in maker:
                raise ValueError(f"{name!r} is an output of two regions")
            maker[name] = unit
    needs: dict[_Unit, set[_Unit]] = {}
    pending = [
        u
        for u in (_maker(looked_at, maker, name) for name in sorted(looked_at.outputs))
        if u is not None
    ]
    while pending:
        unit = pending.pop()
        if unit in needs:
            continue
        names = _unit_reads(looked_at, plans, unit, sizes)
        found = (_maker(looked_at, maker, name) for name in names)
        needs[unit] = {one for one in found if one is not None}
        pending.extend(needs[unit])
    return needs


def _maker(looked_at: TileView, maker: Mapping[str, _Unit], name: str) -> _Unit | None:
    if name in maker:
        return maker[name]
    index = looked_at.producer.get(name)
    return None if index is None else _Unit(index)


def _unit_reads(
    looked_at: TileView, plans: Mapping[int, RegionPlan], unit: _Unit, sizes: frozenset[str]
) -> Sequence[str]:
    if unit.region is None:
        node = looked_at.nodes[unit.index]
        inside = captured(node)
        return [n for n in looked_at.reads[unit.index] if n not in sizes or n in inside]
    plan = plans[unit.region]
    constants = {
        name
        for index in plan.nodes
        for name in looked_at.nodes[index].input
        if looked_at.is_constant(name) and not looked_at.is_baked(name)
    }
    return (*plan.boundary, *sorted(constants))


def _topological(needs: Mapping[_Unit, set[_Unit]]) -> list[_Unit] | None:
    """The units, each behind those it needs; None if some wait for each other."""
    waiting = {unit: len(before) for unit, before in needs.items()}
    after: dict[_Unit, list[_Unit]] = {unit: [] for unit in needs}
    for unit, before in needs.items():
        for one in before:
            after[one].append(unit)
    ready = [_key(unit) for unit, count in waiting.items() if count == 0]
    heapq.heapify(ready)
    done: list[_Unit] = []
    while ready:
        *_, unit = heapq.heappop(ready)
        done.append(unit)
        for one in after[unit]:
            waiting[one] -= 1
            if waiting[one] == 0:
                heapq.heappush(ready, _key(one))
    return done if len(done) == len(needs) else None


def _key(unit: _Unit) -> tuple[int, int, _Unit]:
    return unit.index, -1 if unit.region is None else unit.region, unit


class _Writer:
    """Nodes and constants written so far."""

    def __init__(
        self, looked_at: TileView, made_in_regions: frozenset[str], sizes: frozenset[str]
    ) -> None:
        self._made_in_regions = made_in_regions
        self._sizes = sizes
        self._view = looked_at
        graph = looked_at.model.graph
        self._values = NameSource(value_names(graph))
        self._labels = NameSource(node_names(graph))
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._pieces: dict[int, str] = {}
        self._initializers: list[onnx.TensorProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self._origin: list[Origin] = []
        self.types: dict[str, ValueType] = {}

    def copy(self, index: int) -> None:
        """Write a node as it is, but for outputs that a region makes, and sizes that are constants
        now."""
        node = self._copied(index)
        for i, name in enumerate(node.input):
            if name in self._sizes:
                node.input[i] = self._constant(self._view.known[name])
        for i, name in enumerate(node.output):
            if name in self._made_in_regions:
                node.output[i] = self._values.fresh(f"{name}__outside")
                self.types[node.output[i]] = self._view.types[name]
        self._append(node, Origin(index))

    def region(self, number: int, instructions: Sequence[Instruction]) -> None:
        """Write all nodes of a region."""
        for one in instructions:
            read = [self._read(r) for r in one.reads]
            made = self._piece_name(one.makes, number)
            self._pieces[one.makes.serial] = made
            if made != one.makes.name:
                dtype = self._view.types[one.makes.name].dtype
                self.types[made] = ValueType(dtype, one.makes.shape)
            write = {
                InstructionKind.NODE: self._node,
                InstructionKind.SLICE: self._slice,
                InstructionKind.JOIN: self._join,
            }
            blocks = one.nodes > 1
            if blocks:
                shapes = (
                    [extent(one.have)] if one.kind is InstructionKind.SLICE else _shapes(one.reads)
                )
                read = [
                    self._turned(one, number, name, _lines(shape, one.width))
                    for name, shape in zip(read, shapes, strict=True)
                ]
            put = self._values.fresh(f"{made}__lines") if blocks else made
            node = write[one.kind](one, read, put)
            node.name = self._labels.fresh(self._label(one, number))
            self._append(node, Origin(one.node, number, one.makes.tile))
            if blocks:
                dtype = self._view.types[one.makes.name].dtype
                self.types[put] = ValueType(dtype, _lines(one.makes.shape, one.width))
                self._turned(one, number, put, one.makes.shape, made)

    def finish(self) -> tuple[onnx.ModelProto, tuple[Origin, ...]]:
        """The model and the origins of its nodes. All else of the argument stays as it was, but for
        constants that nobody reads any more, and statements about values that are no longer there.
        """
        model = onnx.ModelProto()
        model.CopyFrom(self._view.model)
        graph = model.graph
        read = {name for node in self._nodes for name in reads(node)}
        read.update(value.name for value in graph.output)
        kept = [
            (node, origin)
            for node, origin in zip(self._nodes, self._origin, strict=True)
            if node.op_type != "Constant" or node.output[0] in read
        ]
        del graph.node[:]
        graph.node.extend(node for node, _ in kept)
        unread = {name for names in self._view.reads for name in names} - read
        unread -= {value.name for value in graph.input}
        for index in reversed(range(len(graph.initializer))):
            if graph.initializer[index].name in unread:
                del graph.initializer[index]
        graph.initializer.extend(self._initializers)
        there = {name for node in graph.node for name in node.output}
        there.update(t.name for t in graph.initializer)
        stated = [value for value in graph.value_info if value.name in there]
        del graph.value_info[:]
        graph.value_info.extend(stated)
        return model, tuple(origin for _, origin in kept)

    def _node(self, one: Instruction, read: list[str], made: str) -> onnx.NodeProto:
        assert one.node is not None
        if one.part is not None:
            return helper.make_node(one.part.op, read, [made], **one.part.attributes)
        node = self._copied(one.node)
        del node.input[:], node.output[:]
        node.input.extend(read)
        node.output.extend(["" for _ in range(one.output)] + [made])
        _set_attributes(node, one.attributes)
        return node

    def _slice(self, one: Instruction, read: list[str], made: str) -> onnx.NodeProto:
        axes = [a for a, (r, have) in enumerate(zip(one.box, one.have, strict=True)) if r != have]
        times = [max(1, one.width) if a == _COLUMNS else 1 for a in axes]
        offsets = [(one.box[a], one.have[a][0]) for a in axes]
        starts = [(r[0] - at) * n for (r, at), n in zip(offsets, times, strict=True)]
        ends = [(r[1] - at) * n for (r, at), n in zip(offsets, times, strict=True)]
        if self._view.opset < 10:
            return helper.make_node("Slice", read, [made], starts=starts, ends=ends, axes=axes)
        lists = [self._constant(np.array(v, np.int64)) for v in (starts, ends, axes)]
        return helper.make_node("Slice", [*read, *lists], [made])

    def _join(self, one: Instruction, read: list[str], made: str) -> onnx.NodeProto:
        if len(read) == 1:
            return helper.make_node("Identity", read, [made])
        return helper.make_node("Concat", read, [made], axis=one.axis)

    def _turned(
        self, one: Instruction, number: int, name: str, shape: tuple[int, ...], made: str = ""
    ) -> str:
        """A view of a value under another shape."""
        made = made or self._values.fresh(f"{name}__lines")
        size = self._constant(np.array(shape, np.int64))
        label = self._labels.fresh(f"{self._label(one, number)}/view")
        self._append(
            helper.make_node("Reshape", [name, size], [made], label),
            Origin(None, number, one.makes.tile),
        )
        self.types[made] = ValueType(self._view.types[one.makes.name].dtype, shape)
        return made

    def _label(self, one: Instruction, number: int) -> str:
        base = one.makes.name if one.node is None else self._view.label(one.node)
        place = "" if one.makes.tile is None else f"/tile{one.makes.tile}"
        what = {
            InstructionKind.NODE: "",
            InstructionKind.SLICE: "/slice",
            InstructionKind.JOIN: "/concat",
        }[one.kind]
        return f"{base}/region{number}{place}{what}"

    def _piece_name(self, piece: Piece, number: int) -> str:
        if piece.box == whole(self._view.types[piece.name].shape) and piece.tile is None:
            return piece.name
        place = "row" if piece.tile is None else f"tile{piece.tile}"
        return self._values.fresh(f"{piece.name}__region{number}_{place}")

    def _read(self, read: Read) -> str:
        if isinstance(read, Piece):
            return self._pieces[read.serial]
        if isinstance(read, str):
            return read
        return "" if read is None else self._constant(read)

    def _constant(self, value: NDArray[Any]) -> str:
        """The name of an initializer of that value, shared by all that need the same."""
        value = np.ascontiguousarray(value).reshape(value.shape)
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._constants:
            numbers = "_".join(str(v) for v in value.ravel()[:4]).replace("-", "m")
            name = self._values.fresh(f"tiling__{value.dtype}_{numbers}")
            self._constants[key] = name
            self._initializers.append(numpy_helper.from_array(value, name))
            self.types[name] = tensor_type(self._initializers[-1])
        return self._constants[key]

    def _append(self, node: onnx.NodeProto, origin: Origin) -> None:
        self._nodes.append(node)
        self._origin.append(origin)

    def _copied(self, index: int) -> onnx.NodeProto:
        node = onnx.NodeProto()
        node.CopyFrom(self._view.nodes[index])
        return node


def _lines(shape: tuple[int, ...], width: int) -> tuple[int, ...]:
    """The shape that says how a value in blocks of channels lies: blocks, rows, lines of blocks."""
    n, channels, rows, columns = shape
    return (n, channels // width, rows, columns * width)


def _shapes(reads: Sequence[Read]) -> list[tuple[int, ...]]:
    return [read.shape for read in reads if isinstance(read, Piece)]


def _set_attributes(node: onnx.NodeProto, changed: Mapping[str, Any]) -> None:
    if not changed:
        return
    kept = [a for a in node.attribute if a.name not in changed]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(
        helper.make_attribute(name, value) for name, value in changed.items() if value is not None
    )
