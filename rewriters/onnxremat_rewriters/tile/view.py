"""`TileView`: a model as the tiling functions look at it, built once for many questions."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from onnxremat.importer.nodes import LAYOUT_DOMAIN, op_key, reads, replaceable
from onnxremat.importer.purity import is_pure
from onnxremat.importer.values import ValueType, tensor_type
from onnxremat_rewriters.tile.boxes import Box
from onnxremat_rewriters.tile.folding import fold

Array = NDArray[Any]
SMALL_ELEMENTS = 1024
"""Constants up to this many elements are looked at: shapes, axes, pads, scales."""


class CannotTile(Exception):
    """A node that cannot make a part of its output by itself; the message says why."""


@dataclass(frozen=True, slots=True)
class Given:
    """An input of the original node, by its place, as a `ValuePart` reads it."""

    input: int


@dataclass(frozen=True, slots=True)
class ValuePart:
    """One of several nodes that stand for a node in a tile.

    `reads`: inputs of the original node, what earlier parts made, by number, constants, or None
    where it has no input. `shape` is that of its only output.
    """

    op: str
    reads: tuple[Given | int | Array | None, ...]
    shape: tuple[int, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TileStep:
    """How a node makes the box `makes` of one of its outputs.

    `reads[i]`: the box needed of input i, None for the whole value. `constants[i]`: what input i
    is replaced by. An input that is in neither is left out. `attributes`: those that change, None
    for one to drop. `crop`: no node is needed, the output is the box that `reads` names. `inner`:
    the part of the box that has the values of the whole; None: all of it. `parts`: nodes that make
    the box instead, the last of them all of it, from what `reads` names; none: the node itself.
    """

    makes: Box
    reads: Mapping[int, Box | None]
    constants: Mapping[int, Array] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    crop: bool = False
    inner: Box | None = None
    parts: tuple[ValuePart, ...] = ()

    @property
    def good(self) -> Box:
        """The part of what is made that has the values of the whole."""
        return self.makes if self.inner is None else self.inner


Rule = Callable[[int, Box], TileStep]
"""From the index of an output and a box of it (no axis empty) to a step that makes at least the
box. Raises CannotTile."""


@dataclass(frozen=True)
class Site:
    """One node with what is known of its inputs and outputs.

    `inputs` and `outputs` have None where a type is not known or no value is there. `constants`
    are small values known before the run; `fixed` says which inputs are weights or constants,
    `stored` which of them are initializers (the runtime packs those), `baked` which of them become
    initializers in a tile. `blocked`: whether it reads values in the blocked layout.
    """

    index: int
    node: onnx.NodeProto
    op: str
    opset: int
    inputs: tuple[ValueType | None, ...]
    outputs: tuple[ValueType | None, ...]
    constants: tuple[Array | None, ...]
    fixed: tuple[bool, ...]
    stored: tuple[bool, ...]
    baked: tuple[bool, ...]
    blocked: bool = False

    @cached_property
    def attributes(self) -> dict[str, Any]:
        """All attributes of the node by name."""
        return {a.name: helper.get_attribute_value(a) for a in self.node.attribute}

    def has(self, i: int) -> bool:
        """Whether the node has an input i."""
        return i < len(self.node.input) and bool(self.node.input[i])

    def shape(self, i: int) -> tuple[int, ...]:
        """The shape of input i. Raises CannotTile if it is not known or empty."""
        return self._shape(self.inputs, i, "input")

    def made(self, i: int = 0) -> tuple[int, ...]:
        """The shape of output i. Raises CannotTile if it is not known or empty."""
        return self._shape(self.outputs, i, "output")

    def constant(self, i: int) -> Array:
        """The value of input i. Raises CannotTile if it is not known before the run."""
        found = self.constants[i] if i < len(self.constants) else None
        if found is None:
            raise CannotTile(f"{self.op}: input {i} is not a constant")
        return found

    def integers(self, name: str) -> tuple[int, ...]:
        """An attribute that is a list of integers; empty if the node does not have it."""
        return tuple(int(value) for value in self.attributes.get(name, ()))

    def _shape(self, types: tuple[ValueType | None, ...], i: int, what: str) -> tuple[int, ...]:
        found = types[i] if i < len(types) else None
        if found is None:
            raise CannotTile(f"{self.op}: the shape of {what} {i} is not known")
        if 0 in found.shape:
            raise CannotTile(f"{self.op}: {what} {i} is empty")
        return found.shape


@dataclass(frozen=True)
class TileView:
    """Producers, readers, types and small constants of the top-level graph of a model.

    `types` are of values whose sizes are the same in every run. `readers[name]` are indices of
    nodes, ascending; a node that captures a value in a subgraph reads it. `known` are small values
    that are the same in every run, those computed from shapes included; `stored` the initializers
    and outputs of Constant nodes; `derived` what nodes make from those alone, and initializers that
    a caller can replace. The model must not change while the view is in use. `blocked` values lie
    in blocks of `width` channels (see `blocked`).
    """

    model: onnx.ModelProto
    types: Mapping[str, ValueType]
    nodes: tuple[onnx.NodeProto, ...]
    reads: tuple[tuple[str, ...], ...]
    producer: Mapping[str, int]
    readers: Mapping[str, tuple[int, ...]]
    known: Mapping[str, Array]
    stored: frozenset[str]
    derived: frozenset[str]
    outputs: frozenset[str]
    opset: int
    blocked: frozenset[str] = frozenset()
    width: int = 0
    sites: dict[int, Site] = field(default_factory=dict, repr=False, compare=False)
    cache: dict[Any, Any] = field(default_factory=dict, repr=False, compare=False)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value. Raises CannotTile if it is not the same in every run."""
        kind = self.types.get(name)
        if kind is None:
            raise CannotTile(f"the shape of {name!r} is not known, or depends on values")
        return kind.shape

    def site(self, index: int) -> Site:
        """The node of that index, with what is known around it."""
        found = self.sites.get(index)
        if found is None:
            node = self.nodes[index]
            found = Site(
                index,
                node,
                op_key(node),
                self.opset,
                tuple(self.types.get(name) if name else None for name in node.input),
                tuple(self.types.get(name) if name else None for name in node.output),
                tuple(self.known.get(name) for name in node.input),
                tuple(self.is_constant(name) for name in node.input),
                tuple(name in self.stored for name in node.input),
                tuple(self.is_baked(name) for name in node.input),
                not self.blocked.isdisjoint(node.input),
            )
            self.sites[index] = found
        return found

    def is_constant(self, name: str) -> bool:
        """Whether the value is the same in every run and known to be."""
        return name in self.stored or name in self.derived or name in self.known

    def is_baked(self, name: str) -> bool:
        """Whether tiles read a new constant instead: what is computed from shapes."""
        return name in self.known and name not in self.stored and name not in self.derived

    def width_of(self, name: str) -> int:
        """How many channels a block of the value has; 0 if it does not lie in blocks."""
        return self.width if name in self.blocked else 0

    def label(self, index: int) -> str:
        """The node's name, or that of its first output."""
        node = self.nodes[index]
        return node.name or next((name for name in node.output if name), f"node {index}")


def view(
    model: onnx.ModelProto, types: Mapping[str, ValueType], block_channels: int = 0
) -> TileView:
    """Look at a model whose values have `types`. O(nodes + reads + small constants).

    The nodes must be in topological order, as ONNX demands. `block_channels`: how many a block of
    ONNX Runtime's blocked layout has, needed if there are ops of it.
    """
    graph = model.graph
    nodes = tuple(graph.node)
    all_reads = tuple(tuple(dict.fromkeys(reads(node))) for node in nodes)
    producer = {name: i for i, node in enumerate(nodes) for name in node.output if name}
    readers: dict[str, list[int]] = {}
    for index, names in enumerate(all_reads):
        for name in names:
            readers.setdefault(name, []).append(index)
    kinds, stored, replaceable = _constants(model)
    blocked = blocked_values(nodes)
    if blocked and not block_channels:
        raise ValueError("there are values in blocks, and nobody said how wide a block is")
    return TileView(
        model,
        {**kinds, **types},
        nodes,
        all_reads,
        producer,
        {name: tuple(found) for name, found in readers.items()},
        fold(nodes, stored, types),
        frozenset(kinds),
        replaceable | _derived(nodes, all_reads, frozenset(kinds) | replaceable),
        frozenset(value.name for value in graph.output),
        max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1),
        blocked,
        block_channels,
    )


def blocked_values(nodes: Iterable[onnx.NodeProto]) -> frozenset[str]:
    """The values in blocks: what ops of the layout make, and what others make of that."""
    found: set[str] = set()
    for node in nodes:
        if node.domain == LAYOUT_DOMAIN and node.op_type == "ReorderOutput":
            continue
        if node.domain == LAYOUT_DOMAIN or not found.isdisjoint(reads(node)):
            found.update(name for name in node.output if name)
    return frozenset(found)


def _derived(
    nodes: tuple[onnx.NodeProto, ...],
    all_reads: tuple[tuple[str, ...], ...],
    stored: frozenset[str],
) -> frozenset[str]:
    """Values that pure nodes make from stored ones alone."""
    found = set(stored)
    for node, names in zip(nodes, all_reads, strict=True):
        if names and is_pure(node) and found.issuperset(names):
            found.update(name for name in node.output if name)
    return frozenset(found - stored)


def _constants(
    model: onnx.ModelProto,
) -> tuple[dict[str, ValueType], dict[str, Array], frozenset[str]]:
    """Types of stored values, the data of those that are small, and the names of initializers that
    a caller can replace (since IR version 4 those that are inputs too): the runtime packs none."""
    graph = model.graph
    inputs = replaceable(model)
    tensors = {t.name: t for t in graph.initializer if t.name not in inputs}
    for node in graph.node:
        if op_key(node) == "Constant":
            for attribute in node.attribute:
                if attribute.name == "value":
                    tensors[node.output[0]] = attribute.t
                elif attribute.name in ("value_int", "value_ints"):
                    made = np.array(helper.get_attribute_value(attribute), np.int64)
                    tensors[node.output[0]] = numpy_helper.from_array(made)
                elif attribute.name in ("value_float", "value_floats"):
                    made = np.array(helper.get_attribute_value(attribute), np.float32)
                    tensors[node.output[0]] = numpy_helper.from_array(made)
    kinds = {name: tensor_type(tensor) for name, tensor in tensors.items()}
    small = {
        name: numpy_helper.to_array(tensor)
        for name, tensor in tensors.items()
        if kinds[name].has_size
        and kinds[name].elements <= SMALL_ELEMENTS
        and tensor.data_location != TensorProto.EXTERNAL
    }
    return kinds, small, frozenset(t.name for t in graph.initializer if t.name in inputs)
