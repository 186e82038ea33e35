"""Compilation of kernels by numba, and where the compiled code is kept.

Importing this module imports numba (about half a second), so only modules of kernels do, and those
only when they run. Compiled code is kept where numba keeps it: in NUMBA_CACHE_DIR, beside the
package, or in the user's cache folder. Where none of them can be written (a container, a package
that somebody else has installed) a private folder for temporary files takes their place, and where
there is none either, code is compiled in memory, by every process anew.

Numba checks only the file of the function that it loads from the cache, not the files of the
functions that it calls. Kernels call each other across files, so a stamp that is the same for all
of them replaces it: a change of any kernel file makes every cached kernel stale.
"""

import os
import pickle
import stat
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.caching import FunctionCache

from onnxremat.system.temporary import temporary_place

F = TypeVar("F", bound=Callable[..., Any])

# Typed as anything: numba's stubs do not know what is used of it here.
_njit: Any = numba.njit
_config: Any = numba.config
_FunctionCache: Any = FunctionCache

_UNUSABLE = (
    *(OSError, EOFError, pickle.PickleError),
    *(ValueError, TypeError, AttributeError, ImportError, LookupError),
)
"""What reading a cache raises that cannot be read, or that something else has written."""


class _Cache(_FunctionCache):  # type: ignore[misc]
    """Numba's cache of one function, of which no failure ends a run: what cannot be read is
    compiled again, and what cannot be written (a full disk) stays in memory.

    `private`: it is in the folder that takes the place of those that cannot be written.
    """

    private = False

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """As in numba; None also if there is something that cannot be read. It is emptied then."""
        try:
            return super().load_overload(sig, target_context)
        except _UNUSABLE:
            with suppress(OSError):
                self.flush()
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """As in numba, if that is possible."""
        with suppress(*_UNUSABLE):
            super().save_overload(sig, data)

    def holds_anything(self) -> bool:
        """Whether there is compiled code in it that is not stale."""
        try:
            return bool(self._cache_file._load_index())
        except _UNUSABLE:
            return False


def compiled(function: F, stamp: tuple[float, int], *, for_python: bool) -> F:
    """`function` compiled when it is first called, without the interpreter lock, and kept.

    It must not allocate: reference counting is off. `stamp`: of all the files whose code may be
    in it. Without wrappers for Python (`for_python`), which take half of the compile time, only
    compiled functions can call it.
    """
    made: Any = _njit(
        nogil=True,
        error_model="numpy",
        no_cpython_wrapper=not for_python,
        no_cfunc_wrapper=True,
        _nrt=False,
    )(function)
    cache = _cache_of(function)
    if cache is not None:
        cache._cache_file._source_stamp = stamp
        made._cache = cache
    return made  # type: ignore[no-any-return]


def is_ready(function: Callable[..., Any]) -> bool:
    """Whether what `compiled` made need not be compiled: this process has done it, or it is kept
    on disk."""
    made: Any = function
    cache = made._cache
    return bool(made.overloads) or (isinstance(cache, _Cache) and cache.holds_anything())


def kept_where(function: Callable[..., Any]) -> str:
    """Where the code of what `compiled` made is kept, in words, if numba has no place for it; ""
    otherwise."""
    made: Any = function
    cache = made._cache
    if not isinstance(cache, _Cache):
        return "in memory, for this run: no folder can be written"
    return f"kept in {_private_folder()}: no other folder can be written" if cache.private else ""


def _cache_of(function: Callable[..., Any]) -> _Cache | None:
    """The cache of a function where numba would have it, else in the private folder; None if that
    cannot be had either."""
    with suppress(RuntimeError):  # Numba found no folder that it can write.
        return _Cache(function)
    folder = _private_folder()
    if folder is None:
        return None
    chosen = _config.CACHE_DIR
    _config.CACHE_DIR = str(folder)
    try:
        cache = _Cache(function)
        cache.private = True
    except RuntimeError:
        return None
    finally:
        _config.CACHE_DIR = chosen
    return cache


@lru_cache(maxsize=1)
def _private_folder() -> Path | None:
    """A folder among the temporary ones that only this user can write or read: what is loaded from
    it is executed. None if there is none."""
    owner = os.getuid() if hasattr(os, "getuid") else None
    try:
        base = temporary_place()
        folder = base / ("numba-onnxremat" if owner is None else f"numba-onnxremat-{owner}")
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError:
        return None
    if not stat.S_ISDIR(found.st_mode):
        return None
    mine = owner is None or (found.st_uid == owner and not found.st_mode & 0o077)
    return folder if mine else None
