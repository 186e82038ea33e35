"""What tiles cost: work done again, kernels that are slower on little, copies.

All in nanoseconds of `onnxremat.importer.costs`, of whose whole ops they are shares.
"""

from math import prod

from onnxremat.importer.costs import DEFAULT_COSTS
from onnxremat.tiling.grids import Grid
from onnxremat.tiling.sequence import Sequence
from onnxremat_rewriters.tile import Box, NodeTile, ValuePart, extent

RUN_NS = 60
"""What a run of bytes takes to be copied, however short (measured in columns of pictures)."""
SLOW_PIXELS = 40
"""A convolution of so many pixels a thread takes twice its time (measured: 15 to 20% more for 170
to 250)."""
COPY_WEIGHT = 2.5
"""Convolutions reach two (AVX2) to four times (AVX-512) the rate that the model
of costs has for all ops, copies of one thread just what it has: against each other, these count so
much more."""


def moving_ns(nbytes: int, runs: int = 1) -> int:
    """Nanoseconds of a Slice or Concat that writes so many bytes in so many contiguous runs."""
    busy = round(COPY_WEIGHT * 2 * nbytes * 1_000 / DEFAULT_COSTS.bytes_per_us) + runs * RUN_NS
    return busy + DEFAULT_COSTS.overhead_ns


def ns_of_all_tiles(sequence: Sequence, node: NodeTile, grid: Grid, threads: int) -> int:
    """Nanoseconds of a node in all tiles: views and crops count with the tile (`moved_ns`)."""
    if node.step.crop:
        return 0
    if node.step.parts:
        return grid.tiles * sum(ns_of_part(sequence, node.node, p) for p in node.step.parts)
    repeated = _repeated(node.step.makes, _whole_shape(sequence, node), grid)
    return ns_in_tiles(
        sequence, node.node, node.shape, repeated, started=grid.tiles, threads=threads
    )


def ns_of_first_tiles(sequence: Sequence, node: NodeTile, grid: Grid, threads: int) -> int:
    """The same of a node that runs in the first tile of each column only."""
    if node.step.crop:
        return 0
    share = prod(node.shape) / max(1, prod(_whole_shape(sequence, node)))
    return ns_in_tiles(
        sequence, node.node, node.shape, grid.columns * share,
        started=grid.columns, threads=threads,
    )  # fmt: skip


def ns_in_tiles(
    sequence: Sequence,
    node: int,
    made: tuple[int, ...],
    repeated: float,
    *,
    started: int,
    threads: int,
) -> int:
    """Nanoseconds of a node that is started so often, to make values of shape `made` each time, and
    does `repeated` times the work of the whole; 0 for a view."""
    v = sequence.op_of_node.get(node)
    if v is None:
        return 0
    overhead = DEFAULT_COSTS.overhead_ns
    busy = max(0, sequence.imported.graph.ops[v].cost - overhead)
    slower = _slower_in_tiles(sequence, node, made, threads)
    return round(busy * repeated * slower) + started * overhead


def ns_of_part(sequence: Sequence, node: int, part: ValuePart) -> int:
    """Nanoseconds of one of the nodes that stand for a node: its share of the whole if it is of the
    same type, else those of a copy."""
    name = sequence.view.nodes[node].output[0]
    if part.op == sequence.view.nodes[node].op_type:
        share = prod(part.shape) / max(1, sequence.view.types[name].elements)
        return ns_in_tiles(sequence, node, part.shape, share, started=1, threads=1)
    return moving_ns(sequence.part_bytes(name, part.shape))


def _whole_shape(sequence: Sequence, node: NodeTile) -> tuple[int, ...]:
    return sequence.view.types[sequence.view.nodes[node.node].output[node.output]].shape


def _slower_in_tiles(sequence: Sequence, node: int, made: tuple[int, ...], threads: int) -> float:
    """How much longer a convolution takes for the same work in tiles that make a value of shape
    `made`: with few pixels for a thread its kernel does not get going."""
    if sequence.view.nodes[node].op_type not in ("Conv", "ConvTranspose"):
        return 1.0
    whole = sequence.view.types[sequence.view.nodes[node].output[0]].shape
    least = SLOW_PIXELS * threads
    return (1 + least / max(1, prod(made[2:]))) / (1 + least / max(1, prod(whole[2:])))


def _repeated(makes: Box, shape: tuple[int, ...], grid: Grid) -> float:
    """How often the whole op's work is done in all tiles together, at least once. A tile at the
    border of the tensor has half a halo."""
    parts = {
        a: size / full
        for a, (size, full) in enumerate(zip(extent(makes), shape, strict=True))
        if size < full
    }
    total = 1.0
    for axis, tiles in grid.axes:
        a = axis if axis in parts else next(iter(parts), None)
        if a is None:
            total *= tiles
            continue
        share = parts.pop(a)
        if tiles == 2:
            total *= max(1.0, 2 * share)
        else:
            total *= max(1.0, 1 + (tiles - 1) * (share - 1 / tiles))
    return total
