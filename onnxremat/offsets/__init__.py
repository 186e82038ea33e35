"""Static offsets: where in one arena each buffer of a schedule lies.

The problem. A *block* has a size and a half-open lifetime. Blocks that live at the same time must
not overlap in address; the *arena* is the highest address used, and it should be small. It is
dynamic storage allocation, NP-hard in the strong sense (Garey & Johnson 1979, SR2). The *live
peak*, the most bytes alive at once, is a lower bound; how far above it the optimum lies depends on
the instance, often not at all.

`place` tries greedy rules first, then repairs their order, then searches a tree for the bound
itself; `check_placement` is independent of all of that. Importing this package imports no
compiler: that waits until `place` runs.
"""

from onnxremat.offsets.blocks import Block, Placement, live_peak_bytes
from onnxremat.offsets.check import check_placement
from onnxremat.offsets.place import place

__all__ = ["Block", "Placement", "check_placement", "live_peak_bytes", "place"]
