"""What tiles hold at most, and what they cost: the rewriter's instructions, simulated.

Buffers are freed behind their last reader, views own no bytes, ops that run in place take over a
buffer that dies.
"""

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass
from math import prod
from types import MappingProxyType

from onnxremat.importer.costs import DEFAULT_COSTS
from onnxremat.importer.nodes import op_key
from onnxremat.importer.views import root_of
from onnxremat.tiling.sequence import Sequence
from onnxremat.tiling.tile_costs import moving_ns, ns_in_tiles, ns_of_part
from onnxremat_rewriters.tile import Box, Instruction, InstructionKind, Piece, Strips, extent

THREAD_WORKSPACE_BYTES = 65_536
"""Workspace of a convolution that does not depend on its size, for each thread."""
OUTSIDE = -1
"""The buffer of whatever is held anyway: whole values, weights."""


@dataclass(frozen=True)
class Footprint:
    """Of instructions: most bytes beside what is held anyway; nanoseconds of the model's nodes, and
    of the Slices, Concats and views between them; nodes written."""

    inner_bytes: int
    nodes_ns: int
    moved_ns: int
    nodes: int


def footprint(
    sequence: Sequence,
    instructions: Many[Instruction],
    threads: int,
    *,
    taken: Iterable[Piece] = (),
    left: Iterable[Piece] = (),
    dying: Mapping[str, int] | None = None,
    strips: Strips = MappingProxyType({}),
) -> Footprint:
    """The footprint of instructions in their order. O(reads).

    `taken`: pieces that are there before; `left`: those that stay; `dying`: bytes of values from
    outside that nobody needs behind these instructions; `strips`: those of values that are there in
    strips, each of which dies by itself.
    """
    dies = dying or {}
    whole = {name: nbytes for name, nbytes in dies.items() if name not in strips}
    layout = _Layout(sequence, threads, whole)
    for piece in taken:
        layout.piece(piece)
    for name, pieces in strips.items():
        for piece in pieces:
            layout.strip(piece, dies=name in dies)
    for one in instructions:
        layout.run(one)
    layout.leave(left)
    return Footprint(
        layout.peak(), layout.nodes_ns, layout.moved_ns, sum(i.nodes for i in instructions)
    )


def _runs_in(box: Box, have: Box) -> int:
    """In how many contiguous runs a box lies in what is there."""
    outer = len(box)
    while outer > 0 and box[outer - 1] == have[outer - 1]:
        outer -= 1
    return prod(extent(box)[: max(0, outer - 1)])


class _Layout:
    """Instructions run one after the other; step 0 is before the first."""

    def __init__(self, sequence: Sequence, threads: int, dying: Mapping[str, int]) -> None:
        self._sequence = sequence
        self._threads = threads
        self._buffer_of: dict[int, int] = {}
        self._size: list[int] = []
        self._made: list[int] = []
        self._last: list[int] = []
        self._taken_over: list[tuple[int, int]] = []
        self._workspace = [0]
        self._dying = {name: self._buffer(nbytes) for name, nbytes in dying.items()}
        self.nodes_ns = 0
        self.moved_ns = 0

    def piece(self, piece: Piece) -> int:
        """A buffer for a piece that is made now."""
        buffer = self._buffer(self._sequence.part_bytes(piece.name, piece.shape))
        self._buffer_of[piece.serial] = buffer
        return buffer

    def strip(self, piece: Piece, *, dies: bool) -> None:
        """A piece from outside, which is held anyway, or until it is read for the last time."""
        if dies:
            self.piece(piece)
        else:
            self._buffer_of[piece.serial] = OUTSIDE

    def run(self, one: Instruction) -> None:
        """One instruction more."""
        self._workspace.append(0)
        reads = [self._use(read) for read in one.reads]
        if one.kind is InstructionKind.NODE:
            self._node(one, reads)
            return
        if one.kind is InstructionKind.SLICE:
            runs = _runs_in(one.box, one.have)
        else:
            runs = prod(one.makes.shape[: one.axis]) * len(reads)
        self.moved_ns += (one.nodes - 1) * DEFAULT_COSTS.overhead_ns
        self.moved_ns += moving_ns(self._size[self.piece(one.makes)], runs)

    def _node(self, one: Instruction, reads: Many[int]) -> None:
        """A node of the model. Cost and workspace are shares of those of the whole op, but for what
        starting a kernel takes, and the workspace that each thread of a convolution has."""
        sequence = self._sequence
        assert one.node is not None
        v = sequence.op_of_node.get(one.node)
        if v is None:
            self.moved_ns += DEFAULT_COSTS.overhead_ns
            self._buffer_of[one.makes.serial] = reads[0] if reads else OUTSIDE
            return
        op = sequence.imported.graph.ops[v]
        if one.part is not None:
            self.nodes_ns += ns_of_part(sequence, one.node, one.part)
            self.piece(one.makes)
            return
        full = sequence.view.types[one.makes.name].elements
        share = prod(one.makes.shape) / full if full else 1.0
        self.nodes_ns += ns_in_tiles(
            sequence, one.node, one.makes.shape, share, started=1, threads=self._threads
        )
        if sequence.rules.count_workspace:
            fixed = min(op.workspace_bytes, self._threads * THREAD_WORKSPACE_BYTES)
            workspace = fixed + round((op.workspace_bytes - fixed) * share)
            self._workspace[-1] = max(workspace, self._columns_bytes(one))
        buffer = self.piece(one.makes)
        pairs = sequence.rules.inplace.get(op.op_type, ())
        allowed = [i for i, o in pairs if o == one.output and i < len(reads)]
        self._take_over(buffer, [reads[i] for i in allowed], reads)

    def _columns_bytes(self, one: Instruction) -> int:
        """Of a convolution with more filters than pixels, which a tile may have where the whole has
        not: all columns are gathered at once (MLAS; measured)."""
        assert one.node is not None
        node, types = self._sequence.view.nodes[one.node], self._sequence.view.types
        weights = types.get(node.input[1]) if op_key(node) in ("Conv", "FusedConv") else None
        if weights is None or prod(weights.shape[2:]) == 1:
            return 0
        pixels = prod(one.makes.shape[2:])
        groups = max(1, types[node.input[0]].shape[1] // weights.shape[1])
        if weights.shape[0] // groups <= pixels:
            return 0
        return prod(weights.shape[1:]) * pixels * weights.nbytes // max(1, weights.elements)

    def _take_over(self, buffer: int, candidates: Many[int], reads: Many[int]) -> None:
        for source in candidates:
            if source == OUTSIDE or source in self._dying.values() or reads.count(source) > 1:
                continue
            if self._size[source] == self._size[buffer]:
                self._taken_over.append((source, len(self._workspace) - 1))
                return

    def _use(self, read: object) -> int:
        """The buffer of what the newest node reads."""
        if isinstance(read, Piece):
            buffer = self._buffer_of[read.serial]
        elif isinstance(read, str):
            root = root_of(read, self._sequence.imported.views)
            buffer = self._dying.get(root, OUTSIDE)
        else:
            return OUTSIDE
        if buffer != OUTSIDE:
            self._last[buffer] = len(self._workspace) - 1
        return buffer

    def leave(self, pieces: Iterable[Piece]) -> None:
        """These stay; the last step is behind all instructions."""
        self._workspace.append(0)
        for piece in pieces:
            self._use(piece)

    def _buffer(self, nbytes: int) -> int:
        self._size.append(nbytes)
        self._made.append(len(self._workspace) - 1)
        self._last.append(len(self._workspace) - 1)
        return len(self._size) - 1

    def peak(self) -> int:
        """Most bytes at once."""
        end = list(self._last)
        for buffer, step in self._taken_over:
            if end[buffer] == step:
                end[buffer] = step - 1
        change = [0] * (len(self._workspace) + 1)
        for size, start, stop in zip(self._size, self._made, end, strict=True):
            if stop >= start:
                change[start] += size
                change[stop + 1] -= size
        held = most = 0
        for step, workspace in enumerate(self._workspace):
            held += change[step]
            most = max(most, held + workspace)
        return most
