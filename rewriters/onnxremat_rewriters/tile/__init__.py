"""`tile`: regions of a model run tile by tile, with the same bits.

    view (a model's graph and shapes)
      -> follow (how far back a cut goes) -> Region -> plan_region (shapes of all tiles) -> tile

`ranges` has what each op needs of its inputs (receptive fields), `exactness` which tiles have the
bits of the whole, `region` what each tile computes, `emit` writes it.
"""

from onnxremat_rewriters.tile.boxes import Box, extent
from onnxremat_rewriters.tile.emit import Origin, RefusedRegion, Tiled, tile
from onnxremat_rewriters.tile.region import (
    NodeTile,
    Reach,
    Region,
    RegionPlan,
    TilePlan,
    follow,
    plan_region,
    region_nodes,
)
from onnxremat_rewriters.tile.view import CannotTile, Site, Step, View, view

__all__ = [
    "Box",
    "CannotTile",
    "NodeTile",
    "Origin",
    "Reach",
    "RefusedRegion",
    "Region",
    "RegionPlan",
    "Site",
    "Step",
    "TilePlan",
    "Tiled",
    "View",
    "extent",
    "follow",
    "plan_region",
    "region_nodes",
    "tile",
    "view",
]
