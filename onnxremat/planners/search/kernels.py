"""How the kernels of this package are compiled (`onnxremat.system.compilation`): once for all
planners.

Importing this module imports numba (about half a second), so planners import it, and every
module of kernels, only when they run.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from onnxremat.system.compilation import compiled

F = TypeVar("F", bound=Callable[..., Any])

KERNEL_FILES = (
    "search/kernels",
    "search/flat",
    "search/arrays",
    "search/state",
    "search/edit",
    "search/moves",
    "search/anneal",
    "exact_order/beam",
    "chains/chain_kernels",
    "chains/chain_times",
    "chains/lower_set_arrays",
    "chains/lower_set_kernels",
)
"""The modules whose code ends up in compiled kernels, in the package of planners."""


def _stamp() -> tuple[float, int]:
    here = Path(__file__).parents[1]
    stats = [(here / f"{name}.py").stat() for name in KERNEL_FILES]
    return max(s.st_mtime for s in stats), sum(s.st_size for s in stats)


STAMP = _stamp()


def kernel(function: F) -> F:
    """Compile `function` for callers that are compiled themselves. It must not allocate."""
    return compiled(function, STAMP, for_python=False)


def entry(function: F) -> F:
    """Compile `function` for callers in Python, without the interpreter lock."""
    return compiled(function, STAMP, for_python=True)
