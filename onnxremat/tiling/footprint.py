"""What one tile holds at most, and what it costs.

The nodes of a tile are laid out as the rewriter will write them (a Slice right before the first
reader of a part), and simulated like a little graph: buffers are freed behind their last reader,
views own no bytes, ops that run in place take over a buffer that dies.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import prod

from onnxremat.costs import DEFAULT_COSTS
from onnxremat.tiling.sequence import Sequence
from onnxremat_rewriters.tile import Box, NodeTile, extent
from onnxremat_rewriters.tile.boxes import whole
from onnxremat_rewriters.tile.program import SMALL_BYTES

THREAD_SCRATCH_BYTES = 65_536
"""Scratch of a convolution that does not depend on its size, for each thread."""
RUN_NS = 60
"""What a run of bytes takes to be copied, however short (measured in columns of pictures)."""
OUTSIDE = -1
"""The buffer of whatever is held anyway: whole values, weights."""


@dataclass(frozen=True, slots=True)
class Written:
    """A node of a tile, with what its footprint needs of it: bytes that it makes (0 for a view,
    which takes those of its first read, and for a crop), nanoseconds, bytes of scratch. `reads`:
    of values made in the run their position, name and box, and the bytes of a Slice if one is
    needed. `inplace`: positions of inputs whose buffers it may take over."""

    tile: NodeTile
    name: str
    alias: bool
    nbytes: int
    cost: int
    scratch_bytes: int
    reads: tuple[tuple[int, str, Box | None, int], ...]
    inplace: tuple[int, ...]


def written(sequence: Sequence, tile: NodeTile, threads: int) -> Written:
    """Prepare a node of a tile. Cost and scratch are shares of those of the whole op, but for what
    starting a kernel takes, and the scratch that each thread of a convolution has."""
    view, imported = sequence.view, sequence.imported
    node = view.nodes[tile.node]
    name = node.output[tile.output]
    reads = tuple(
        (i, node.input[i], box, _slice_bytes(sequence, node.input[i], box))
        for i, box in tile.step.reads.items()
        if node.input[i] in view.types
    )
    v = sequence.op_of_node.get(tile.node)
    if tile.step.crop or v is None:
        overhead = 0 if tile.step.crop else DEFAULT_COSTS.overhead_ns
        return Written(tile, name, bool(reads), 0, overhead, 0, reads, ())
    op = imported.graph.ops[v]
    full = view.types[name].elements
    share = prod(extent(tile.step.makes)) / full if full else 1.0
    fixed = min(op.workspace_bytes, threads * THREAD_SCRATCH_BYTES)
    pairs = sequence.rules.inplace.get(op.op_type, ())
    return Written(
        tile,
        name,
        False,
        round(view.types[name].nbytes * share),
        round(max(0, op.cost - DEFAULT_COSTS.overhead_ns) * share) + DEFAULT_COSTS.overhead_ns,
        fixed + round((op.workspace_bytes - fixed) * share),
        reads,
        tuple(i for i, o in pairs if o == tile.output),
    )


def _slice_bytes(sequence: Sequence, name: str, box: Box | None) -> int:
    """Bytes of that box of a value; 0 where no Slice is needed: constants cut beforehand."""
    kind = sequence.view.types[name]
    if box is None or not kind.has_size:
        return 0
    if sequence.view.is_constant(name) and kind.nbytes <= SMALL_BYTES:
        return 0
    return kind.nbytes * prod(extent(box)) // max(1, kind.elements)


@dataclass(frozen=True)
class Footprint:
    """Of one tile: most bytes beside the whole values it reads, its results included; nanoseconds
    of its nodes, and of the Slices and views between them; nodes written."""

    inner_bytes: int
    cost: int
    moved: int
    nodes: int


def moving_cost(nbytes: int, runs: int = 1) -> int:
    """Nanoseconds of a Slice or Concat that writes so many bytes in so many contiguous runs."""
    busy = 2 * nbytes * 1_000 // DEFAULT_COSTS.bytes_per_us + runs * RUN_NS
    return busy + DEFAULT_COSTS.overhead_ns


def runs_in(box: Box, have: Box) -> int:
    """In how many contiguous runs a box lies in what is there."""
    outer = len(box)
    while outer > 0 and box[outer - 1] == have[outer - 1]:
        outer -= 1
    return prod(extent(box)[: max(0, outer - 1)])


class _Layout:
    """Nodes of a tile written one after the other, as the rewriter does."""

    def __init__(self, sequence: Sequence) -> None:
        self._types = sequence.view.types
        self._have: dict[str, tuple[int, Box]] = {}
        self._crops: dict[tuple[int, str, Box], int] = {}
        self._size: list[int] = []
        self._made: list[int] = []
        self._last: list[int] = []
        self._taken: list[tuple[int, int]] = []
        self.scratch: list[int] = []
        self.cost = 0
        self.moved = 0

    def part(self, name: str, box: Box | None, nbytes: int) -> int:
        """The buffer of a box of a value, cut off first if what is there is larger."""
        found = self._have.get(name)
        there, have = (OUTSIDE, None) if found is None else found
        if box is None or box == have or not nbytes:
            return there
        if have is None and box == whole(self._types[name].shape):
            return OUTSIDE
        key = (there, name if there == OUTSIDE else "", box)
        if key not in self._crops:
            self.scratch.append(0)
            self.use(there)
            runs = runs_in(box, have or whole(self._types[name].shape))
            self.moved += moving_cost(nbytes, runs)
            self._crops[key] = self._buffer(nbytes)
        return self._crops[key]

    def node(self, one: Written) -> None:
        """Write a node behind the Slices that it needs."""
        read = [(i, self.part(name, box, nbytes)) for i, name, box, nbytes in one.reads]
        makes = one.tile.step.makes
        if one.tile.step.crop:
            self._have[one.name] = (read[0][1], makes)
            return
        self.scratch.append(one.scratch_bytes)
        for _, buffer in read:
            self.use(buffer)
        if one.alias:
            self.moved += one.cost
            self._have[one.name] = (read[0][1], makes)
            return
        self.cost += one.cost
        made = self._buffer(one.nbytes)
        self._have[one.name] = (made, makes)
        if one.inplace:
            buffers = [buffer for _, buffer in read]
            for i, buffer in read:
                if i not in one.inplace or buffer == OUTSIDE or buffers.count(buffer) > 1:
                    continue
                if self._size[buffer] == one.nbytes:
                    self._taken.append((buffer, len(self.scratch) - 1))
                    break

    def _buffer(self, nbytes: int) -> int:
        self._size.append(nbytes)
        self._made.append(len(self.scratch) - 1)
        self._last.append(len(self.scratch) - 1)
        return len(self._size) - 1

    def use(self, buffer: int) -> None:
        """A buffer is read by the newest node."""
        if buffer != OUTSIDE:
            self._last[buffer] = len(self.scratch) - 1

    def peak(self) -> int:
        """Most bytes at once."""
        end = list(self._last)
        for buffer, step in self._taken:
            if end[buffer] == step:
                end[buffer] = step - 1
        change = [0] * (len(self.scratch) + 1)
        for size, start, stop in zip(self._size, self._made, end, strict=True):
            if stop >= start:
                change[start] += size
                change[stop + 1] -= size
        held = most = 0
        for step, scratch in enumerate(self.scratch):
            held += change[step]
            most = max(most, held + scratch)
        return most


def footprint(
    sequence: Sequence, nodes: Iterable[Written], results: Mapping[str, Box]
) -> Footprint:
    """The footprint of a tile that runs `nodes`, in this order, for `results`. O(reads)."""
    layout = _Layout(sequence)
    for one in nodes:
        layout.node(one)
    parts = [
        layout.part(name, box, _slice_bytes(sequence, name, box)) for name, box in results.items()
    ]
    for buffer in parts:
        layout.use(buffer)
    return Footprint(layout.peak(), layout.cost, layout.moved, len(layout.scratch))
