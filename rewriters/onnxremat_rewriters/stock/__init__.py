"""`stock`: a file that takes less memory in a session with nothing but default options.

Which parts pay depends on the model: `onnxremat.targets.stock_trial` measures them. ONNX Runtime's
defaults undo a plan in four ways, and the rewritten file prevents each from inside:

| the runtime by default                        | what the file does about it               |
|-----------------------------------------------|-------------------------------------------|
| reuses a dead buffer for the next tensor of   | *hide*: inner shapes are not known before |
| the same shape, and frees both only together  | the run, so no two are provably the same  |
| runs nodes in an order of its own             | *chain*: consecutive steps of the plan    |
|                                               | depend on each other at no cost           |
| folds and merges what looks constant          | *token*: an empty vector that only the    |
|                                               | run can tell to be empty                  |
| from the second run on lays all buffers out   | *wrap*: everything inside an `If` that    |
| in one block, beside the arena of the first   | captures a sequence, which a layout cannot|
|                                               | hold                                      |

Measured facts are in the modules that use them; all are from ONNX Runtime 1.31.1 on the CPU.
"""

from onnxremat_rewriters.stock.body import Edges
from onnxremat_rewriters.stock.build import (
    STOCK_KEY,
    StockModel,
    is_stock,
    planned_graph,
    read_stock,
    stock,
)

__all__ = [
    "STOCK_KEY",
    "Edges",
    "StockModel",
    "is_stock",
    "planned_graph",
    "read_stock",
    "stock",
]
