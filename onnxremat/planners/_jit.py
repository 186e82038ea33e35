"""Compilation of the kernels by numba, cached on disk.

Importing this module imports numba (about half a second), so planners import it, and every
module of kernels, only when they run. Compiled code is cached beside the package, or in the
user's cache folder when the package is read-only; NUMBA_CACHE_DIR overrides both.

Numba checks only the file of the function it loads from the cache, not the files of the functions
that it calls. The kernels here call each other across files, so one stamp for all of them
replaces it: a change of any kernel file makes every cached kernel stale.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

KERNEL_FILES = (
    "_jit",
    "_flat",
    "_layout",
    "_state",
    "_edit",
    "_moves",
    "_anneal",
    "_beam",
    "_chain_kernels",
    "_lower_set_kernels",
)
"""The modules whose code ends up in compiled kernels."""


def _stamp() -> tuple[float, int]:
    here = Path(__file__).parent
    stats = [(here / f"{name}.py").stat() for name in KERNEL_FILES]
    return max(s.st_mtime for s in stats), sum(s.st_size for s in stats)


STAMP = _stamp()


def kernel(function: F) -> F:
    """Compile `function` for callers that are compiled themselves, cached.

    Without wrappers for Python, which would take half of the compile time. It must not allocate:
    reference counting is off.
    """
    return _compile(function, no_cpython_wrapper=True)


def entry(function: F) -> F:
    """Compile `function` for callers in Python, without the interpreter lock, cached."""
    return _compile(function, no_cpython_wrapper=False)


def _compile(function: F, *, no_cpython_wrapper: bool) -> F:
    options: dict[str, Any] = {
        "cache": True,
        "nogil": True,
        "error_model": "numpy",
        "no_cpython_wrapper": no_cpython_wrapper,
        "no_cfunc_wrapper": True,
        "_nrt": False,
    }
    compiled: Any = numba.njit(**options)(function)
    cache_file: Any = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if hasattr(cache_file, "_source_stamp"):
        cache_file._source_stamp = STAMP
    return cast(F, compiled)


def is_cached(compiled: Callable[..., Any]) -> bool:
    """Whether a valid cache of `compiled` lies on disk (False also if that cannot be known)."""
    cache_file = getattr(getattr(compiled, "_cache", None), "_cache_file", None)
    if cache_file is None:
        return False
    try:
        return bool(cache_file._load_index())
    except (AttributeError, OSError):
        return False
