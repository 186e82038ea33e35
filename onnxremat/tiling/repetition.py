"""How much of a whole op's work all tiles of a grid do together, told from one of them."""

from onnxremat.costs import DEFAULT_COSTS
from onnxremat.tiling.footprint import Written
from onnxremat.tiling.grids import Grid, tiles_of
from onnxremat.tiling.sequence import Sequence
from onnxremat_rewriters.tile import Box, extent


def cost_of_all_tiles(sequence: Sequence, node: Written, grid: Grid) -> int:
    """Nanoseconds of a node in all tiles: views and crops count with the tile (`moved`)."""
    v = sequence.op_of_node.get(node.tile.node)
    if v is None or node.tile.step.crop:
        return 0
    busy = max(0, sequence.imported.graph.ops[v].cost - DEFAULT_COSTS.overhead_ns)
    shape = sequence.view.types[node.name].shape
    started = tiles_of(grid) * DEFAULT_COSTS.overhead_ns
    return round(busy * _repeated(node.tile.step.makes, shape, grid)) + started


def _repeated(makes: Box, shape: tuple[int, ...], grid: Grid) -> float:
    """How often the whole op's work is done in all tiles together, at least once. A tile at the
    border of the tensor has half a halo."""
    parts = {
        a: size / full
        for a, (size, full) in enumerate(zip(extent(makes), shape, strict=True))
        if size < full
    }
    total = 1.0
    for axis, tiles in grid:
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
