"""How the kernels of this package are compiled (`onnxremat.system.compilation`).

Importing this module imports numba, so only modules of kernels do, and those only when they run.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from onnxremat.system.compilation import compiled

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
F = TypeVar("F", bound=Callable[..., Any])


def _stamp() -> tuple[float, int]:
    stats = [path.stat() for path in Path(__file__).parent.glob("_[a-z]*.py")]
    return max(s.st_mtime for s in stats), sum(s.st_size for s in stats)


STAMP = _stamp()


def entry(function: F) -> F:
    """Compile `function` for callers in Python, without the interpreter lock."""
    return compiled(function, STAMP, for_python=True)


def kernel(function: F) -> F:
    """Compile `function` for callers that are compiled themselves. It must not allocate."""
    return compiled(function, STAMP, for_python=False)
