"""`tile`: a model in which regions run tile by tile.

In a tile the nodes stand in the order of the file; what is read of a larger value is cut off by a
Slice right before its first reader. The pieces of an output are joined by Concat, columns within a
row first: it holds pieces and whole at once. (Two regions with the same grid, one after the other,
need no Concat between them if they are given as one region.)
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from onnxremat.importer.values import ValueType
from onnxremat_rewriters.naming import NameSource, node_names, value_names
from onnxremat_rewriters.tile.boxes import Box, whole
from onnxremat_rewriters.tile.region import NodeTile, Region, RegionPlan, TilePlan, plan_region
from onnxremat_rewriters.tile.view import CannotTile, View, view

SMALL_BYTES = 1024
"""A weight up to this size is cut when the model is written, a larger one by a Slice in the run."""


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
    `refused`: the regions that were not tiled.
    """

    model: onnx.ModelProto
    origin: tuple[Origin, ...]
    rounded: tuple[int, ...]
    refused: tuple[RefusedRegion, ...]


def tile(
    model: onnx.ModelProto,
    regions: Sequence[Region],
    types: Mapping[str, ValueType],
    *,
    threads: int,
    allow_rounding: bool = False,
) -> Tiled:
    """Run each of `regions` tile by tile. The argument is never changed; weights are shared.

    Nodes that no graph output needs any more are left out: those of a region stay whole, beside
    their tiles, if a node outside reads what they make. `types` are those of all values, graph
    inputs included; the result holds for these sizes. The bits of the result are those of `model`
    for runs with `threads` threads, unless `allow_rounding`. O(nodes + tiles x nodes of regions).

    Raises ValueError if a value is an output of two regions, or regions wait for each other.
    """
    looked_at = view(model, types)
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
    writer = _Writer(looked_at, outputs)
    for unit in _ordered_units(looked_at, plans):
        if unit.region is None:
            writer.copy(unit.index)
        else:
            writer.region(unit.region, plans[unit.region])
    rounded = sorted({index for plan in plans.values() for index in plan.rounded})
    return Tiled(writer.finish(), tuple(writer.origin), tuple(rounded), tuple(refused))


@dataclass(frozen=True, order=True)
class _Unit:
    """A node outside of regions, or (`region`) a region; `index` is its place in the file."""

    index: int
    region: int | None = None


def _ordered_units(looked_at: View, plans: Mapping[int, RegionPlan]) -> list[_Unit]:
    """What the graph outputs need, in the order of the file as far as regions allow."""
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
        found = (_maker(looked_at, maker, name) for name in _unit_reads(looked_at, plans, unit))
        needs[unit] = {one for one in found if one is not None}
        pending.extend(needs[unit])
    return _topological(needs)


def _maker(looked_at: View, maker: Mapping[str, _Unit], name: str) -> _Unit | None:
    if name in maker:
        return maker[name]
    index = looked_at.producer.get(name)
    return None if index is None else _Unit(index)


def _unit_reads(looked_at: View, plans: Mapping[int, RegionPlan], unit: _Unit) -> Sequence[str]:
    if unit.region is None:
        return looked_at.reads[unit.index]
    plan = plans[unit.region]
    constants = {
        name
        for index in plan.nodes
        for name in looked_at.nodes[index].input
        if name in looked_at.stored
    }
    return (*plan.boundary, *sorted(constants))


def _topological(needs: Mapping[_Unit, set[_Unit]]) -> list[_Unit]:
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
    if len(done) < len(needs):
        raise ValueError("regions wait for each other: an input of one needs an output of another")
    return done


def _key(unit: _Unit) -> tuple[int, int, _Unit]:
    return unit.index, -1 if unit.region is None else unit.region, unit


class _Writer:
    """Nodes and constants written so far."""

    def __init__(self, looked_at: View, made_in_regions: frozenset[str]) -> None:
        self._made_in_regions = made_in_regions
        self._view = looked_at
        graph = looked_at.model.graph
        self._values = NameSource(value_names(graph))
        self._labels = NameSource(node_names(graph))
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._initializers: list[onnx.TensorProto] = []
        self._nodes: list[onnx.NodeProto] = []
        self.origin: list[Origin] = []

    def copy(self, index: int) -> None:
        """Write a node as it is, but for outputs that a region makes."""
        node = self._copied(index)
        for i, name in enumerate(node.output):
            if name in self._made_in_regions:
                node.output[i] = self._values.fresh(f"{name}__outside")
        self._append(node, Origin(index))

    def region(self, number: int, plan: RegionPlan) -> None:
        """Write all tiles of a region and join their pieces."""
        pieces: dict[str, list[str]] = {name: [] for name in plan.region.outputs}
        for count, tile_plan in enumerate(plan.tiles):
            made = _TileWriter(self, self._view, number, count, tile_plan)
            for name, piece in made.write().items():
                pieces[name].append(piece)
            self._join_rows(number, plan, pieces, count)
        for name, parts in pieces.items():
            self._join(number, parts, plan.region.grid[0][0], name, name)

    def _join_rows(
        self, number: int, plan: RegionPlan, pieces: dict[str, list[str]], count: int
    ) -> None:
        """With two axes: when a row of tiles is complete, put it in the place of its pieces."""
        if len(plan.region.grid) == 1:
            return
        axis, columns = plan.region.grid[1]
        row, place = divmod(count, columns)
        if place < columns - 1:
            return
        for name, parts in pieces.items():
            joined = self._values.fresh(f"{name}__region{number}_row{row}")
            parts[row:] = [self._join(number, parts[row:], axis, joined, name)]

    def _join(self, number: int, parts: list[str], axis: int, name: str, of: str) -> str:
        label = self.fresh_label(f"{of}/region{number}/concat")
        kind = "Concat" if len(parts) > 1 else "Identity"
        node = helper.make_node(kind, parts, [name], label)
        if len(parts) > 1:
            node.attribute.append(helper.make_attribute("axis", axis))
        self._append(node, Origin(None, number))
        return name

    def finish(self) -> onnx.ModelProto:
        """The model: all else of the argument stays as it was, but for statements about values
        that are no longer there."""
        model = onnx.ModelProto()
        model.CopyFrom(self._view.model)
        graph = model.graph
        del graph.node[:]
        graph.node.extend(self._nodes)
        graph.initializer.extend(self._initializers)
        there = {name for node in self._nodes for name in node.output}
        there.update(t.name for t in graph.initializer)
        kept = [value for value in graph.value_info if value.name in there]
        if len(kept) < len(graph.value_info):
            del graph.value_info[:]
            graph.value_info.extend(kept)
        return model

    def write(self, node: onnx.NodeProto, origin: Origin) -> None:
        """Write a node of a tile."""
        self._append(node, origin)

    def copied(self, index: int) -> onnx.NodeProto:
        """A copy of an original node."""
        return self._copied(index)

    def fresh_value(self, wanted: str) -> str:
        """A name for a value."""
        return self._values.fresh(wanted)

    def fresh_label(self, wanted: str) -> str:
        """A name for a node."""
        return self._labels.fresh(wanted)

    def constant(self, value: NDArray[Any]) -> str:
        """The name of an initializer of that value, shared by all that need the same."""
        value = np.ascontiguousarray(value).reshape(value.shape)
        key = (value.dtype.str, value.shape, value.tobytes())
        if key not in self._constants:
            numbers = "_".join(str(v) for v in value.ravel()[:4]).replace("-", "m")
            name = self._values.fresh(f"tiling__{value.dtype}_{numbers}")
            self._constants[key] = name
            self._initializers.append(numpy_helper.from_array(value, name))
        return self._constants[key]

    def _append(self, node: onnx.NodeProto, origin: Origin) -> None:
        self._nodes.append(node)
        self.origin.append(origin)

    def _copied(self, index: int) -> onnx.NodeProto:
        node = onnx.NodeProto()
        node.CopyFrom(self._view.nodes[index])
        return node


class _TileWriter:
    """Writes one tile. `_have`: for each value the name and the box of what is there of it."""

    def __init__(
        self, writer: _Writer, looked_at: View, region: int, count: int, plan: TilePlan
    ) -> None:
        self._writer = writer
        self._view = looked_at
        self._region = region
        self._tile = count
        self._plan = plan
        self._have: dict[str, tuple[str, Box]] = {}
        self._crops: dict[tuple[str, Box], str] = {}

    def write(self) -> dict[str, str]:
        """All nodes of the tile; the names of the pieces of the region's outputs."""
        for one in self._plan.nodes:
            self._node(one)
        return {name: self._part(name, box) for name, box in self._plan.results.items()}

    def _node(self, one: NodeTile) -> None:
        original = self._view.nodes[one.node]
        name = original.output[one.output]
        if one.step.crop:
            ((i, box),) = one.step.reads.items()
            assert box is not None
            self._have[name] = (self._part(original.input[i], box), one.step.makes)
            return
        node = self._writer.copied(one.node)
        inputs = []
        for i in range(max([len(node.input) - 1, *one.step.constants]) + 1):
            read = node.input[i] if i < len(node.input) else ""
            if i in one.step.constants:
                inputs.append(self._writer.constant(one.step.constants[i]))
            elif i in one.step.reads:
                inputs.append(self._part(read, one.step.reads[i]))
            elif not read:
                inputs.append("")
        made = self._writer.fresh_value(f"{name}__region{self._region}_tile{self._tile}")
        del node.input[:], node.output[:]
        node.input.extend(inputs)
        node.output.extend(["" for _ in range(one.output)] + [made])
        node.name = self._label(self._view.label(one.node))
        _set_attributes(node, one.step.attributes)
        self._writer.write(node, Origin(one.node, self._region, self._tile))
        self._have[name] = (made, one.step.makes)

    def _label(self, base: str, what: str = "") -> str:
        return self._writer.fresh_label(f"{base}/region{self._region}/tile{self._tile}{what}")

    def _part(self, name: str, box: Box | None) -> str:
        """The name of that box of a value, cut off if what is there is larger."""
        if name in self._have:
            there, have = self._have[name]
        else:
            there, have = name, whole(self._view.types[name].shape)
            if name in self._view.known:
                there, have = self._known_part(name, box)
        if box is None or box == have:
            return there
        key = (there, box)
        if key not in self._crops:
            self._crops[key] = self._slice(there, have, box, name)
        return self._crops[key]

    def _known_part(self, name: str, box: Box | None) -> tuple[str, Box]:
        """A constant: by its own name if it is stored whole, else a new one if it is small."""
        value = self._view.known[name]
        full = whole(value.shape)
        if (box is None or box == full) and name in self._view.stored:
            return name, full
        if box is None or value.nbytes <= SMALL_BYTES:
            part = value[tuple(slice(lo, hi) for lo, hi in box or full)]
            return self._writer.constant(part), box or full
        there = name if name in self._view.stored else self._writer.constant(value)
        return there, full

    def _slice(self, there: str, have: Box, box: Box, name: str) -> str:
        axes = [a for a in range(len(box)) if box[a] != have[a]]
        starts = [box[a][0] - have[a][0] for a in axes]
        ends = [box[a][1] - have[a][0] for a in axes]
        made = self._writer.fresh_value(f"{name}__region{self._region}_tile{self._tile}_part")
        label = self._label(name, "/slice")
        if self._view.opset < 10:
            node = helper.make_node(
                "Slice", [there], [made], label, starts=starts, ends=ends, axes=axes
            )
        else:
            lists = (starts, ends, axes)
            constants = [self._writer.constant(np.array(v, np.int64)) for v in lists]
            node = helper.make_node("Slice", [there, *constants], [made], label)
        self._writer.write(node, Origin(None, self._region, self._tile))
        return made


def _set_attributes(node: onnx.NodeProto, changed: Mapping[str, Any]) -> None:
    if not changed:
        return
    kept = [a for a in node.attribute if a.name not in changed]
    del node.attribute[:]
    node.attribute.extend(kept)
    node.attribute.extend(
        helper.make_attribute(name, value) for name, value in changed.items() if value is not None
    )
