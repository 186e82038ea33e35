"""How the kernels of this package are compiled: by numba, cached on disk, without allocation.

Importing this module imports numba, so only modules of kernels do, and those only when they run.

Numba checks only the file of the function that it loads from the cache, not the files of the
functions that it calls. Kernels here call each other across files, so one stamp for all of them
replaces it: a change of any kernel file makes every cached kernel stale.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
F = TypeVar("F", bound=Callable[..., Any])


def _stamp() -> tuple[float, int]:
    stats = [path.stat() for path in Path(__file__).parent.glob("_[a-z]*.py")]
    return max(s.st_mtime for s in stats), sum(s.st_size for s in stats)


STAMP = _stamp()


def entry(function: F) -> F:
    """Compile `function` for callers in Python, without the interpreter lock, cached."""
    return _compile(function, no_cpython_wrapper=False)


def kernel(function: F) -> F:
    """Compile `function` for callers that are compiled themselves, cached."""
    return _compile(function, no_cpython_wrapper=True)


def _compile(function: F, *, no_cpython_wrapper: bool) -> F:
    # Typed as anything: numba's stubs do not know all of its options.
    compile_function: Any = numba.njit
    compiled = compile_function(
        cache=True,
        nogil=True,
        error_model="numpy",
        no_cpython_wrapper=no_cpython_wrapper,
        no_cfunc_wrapper=True,
        _nrt=False,
    )(function)
    cache_file: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if hasattr(cache_file, "_source_stamp"):
        cache_file._source_stamp = STAMP
    return compiled  # type: ignore[no-any-return]
