"""`tile`: regions of a model run tile by tile, with the same bits.

    view (a model's graph and shapes)
      -> follow (how far back a cut goes) -> Region -> plan_region (the boxes of every tile)
      -> program (its nodes in order, with shapes) -> tile (the rewritten model)

`table` has a row for each op: what it needs of its inputs (receptive fields) and which tiles have
the bits of the whole (`exactness`, `tails`); `region` says what each tile computes, `emit` writes
it.
"""

from onnxremat_rewriters.tile.boxes import Box, extent
from onnxremat_rewriters.tile.emit import Origin, RefusedRegion, Tiled, tile
from onnxremat_rewriters.tile.program import (
    Instruction,
    InstructionKind,
    Piece,
    RegionProgram,
    Strips,
    TileProgram,
    program,
    program_of_tile,
)
from onnxremat_rewriters.tile.region import (
    Carried,
    Demand,
    NodeTile,
    Reach,
    Region,
    RegionPlan,
    TilePlan,
    follow,
    never_cut,
    plan_region,
    region_nodes,
)
from onnxremat_rewriters.tile.view import CannotTile, Site, TileStep, TileView, ValuePart, view

__all__ = [
    "Box",
    "CannotTile",
    "Carried",
    "Demand",
    "Instruction",
    "InstructionKind",
    "NodeTile",
    "Origin",
    "Piece",
    "Reach",
    "RefusedRegion",
    "Region",
    "RegionPlan",
    "RegionProgram",
    "Site",
    "Strips",
    "TilePlan",
    "TileProgram",
    "TileStep",
    "TileView",
    "Tiled",
    "ValuePart",
    "extent",
    "follow",
    "never_cut",
    "plan_region",
    "program",
    "program_of_tile",
    "region_nodes",
    "tile",
    "view",
]
