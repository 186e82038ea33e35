"""Planning of exact tiling: which parts of a model run in tiles.

Subject -> tileable_subject -> choose_regions -> TilingPlan -> tiled_subject -> Subject
"""

from onnxremat.tiling.choose import TileSearch, Tiling, choose_regions, uncut_bound
from onnxremat.tiling.forms import tileable_subject
from onnxremat.tiling.order import ordered_subject
from onnxremat.tiling.plan import TilingPlan, most_nodes
from onnxremat.tiling.subject import tiled_subject

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
