"""Planning of exact tiling: which parts of a model run in tiles.

Subject -> tileable_subject -> choose_regions -> TilingPlan -> tiled_subject -> Subject
"""

from onnxremat.tiling.choose import TileSearch, choose_regions, uncut_bound
from onnxremat.tiling.reordered import ordered_subject
from onnxremat.tiling.routes import Tiling
from onnxremat.tiling.tile_forms import tileable_subject
from onnxremat.tiling.tiled_subject import tiled_subject
from onnxremat.tiling.tiling_plan import TilingPlan, most_nodes

__all__ = [
    "TileSearch",
    "Tiling",
    "TilingPlan",
    "choose_regions",
    "most_nodes",
    "ordered_subject",
    "tileable_subject",
    "tiled_subject",
    "uncut_bound",
]
