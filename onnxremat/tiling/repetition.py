"""How much of a whole op's work all tiles of a grid do together, told from one of them."""

from collections.abc import Callable
from math import prod

from onnxremat.costs import DEFAULT_COSTS
from onnxremat.tiling.grids import Grid
from onnxremat.tiling.sequence import Sequence
from onnxremat_rewriters.tile import Box, NodeTile, extent


def cost_of_all_tiles(sequence: Sequence, node: NodeTile, grid: Grid) -> int:
    """Nanoseconds of a node in all tiles: views and crops count with the tile (`moved`)."""
    return _cost(sequence, node, grid.tiles, lambda shape: _repeated(node.step.makes, shape, grid))


def cost_of_first_tiles(sequence: Sequence, node: NodeTile, grid: Grid) -> int:
    """The same of a node that runs in the first tile of each column only."""
    columns = 1 if len(grid.axes) == 1 else grid.axes[0][1]
    return _cost(
        sequence, node, columns, lambda shape: columns * prod(node.shape) / max(1, prod(shape))
    )


def _cost(
    sequence: Sequence,
    node: NodeTile,
    started: int,
    repeated: Callable[[tuple[int, ...]], float],
) -> int:
    v = sequence.op_of_node.get(node.node)
    if v is None or node.step.crop:
        return 0
    overhead = DEFAULT_COSTS.overhead_ns
    busy = max(0, sequence.imported.graph.ops[v].cost - overhead)
    name = sequence.view.nodes[node.node].output[node.output]
    return round(busy * repeated(sequence.view.types[name].shape)) + started * overhead


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
