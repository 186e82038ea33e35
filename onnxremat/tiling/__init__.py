"""Planning of exact tiling: which parts of a model run in tiles.

Subject -> choose_regions -> TilingPlan -> tiled_subject -> Subject
"""

from onnxremat.tiling.choose import choose_regions
from onnxremat.tiling.order import ordered_subject
from onnxremat.tiling.plan import TilingPlan, most_nodes
from onnxremat.tiling.subject import tiled_subject

__all__ = ["TilingPlan", "choose_regions", "most_nodes", "ordered_subject", "tiled_subject"]
