"""Arrays in an .npz file, which may come from anywhere: not unpickled, not larger than memory."""

import lzma
import struct
import tokenize
import zlib
from pathlib import Path
from zipfile import BadZipFile

import numpy as np

from onnxremat.core.errors import UsageError
from onnxremat.core.units import format_bytes
from onnxremat.ort.child.machine import memory_bytes
from onnxremat.ort.child.wire import Array

_ONE_ARRAY = b"\x93NUMPY"

_DAMAGED: tuple[type[Exception], ...] = (
    ValueError,
    TypeError,
    SyntaxError,
    LookupError,
    EOFError,
    OverflowError,
    RuntimeError,  # encrypted, or of an unknown method (NotImplementedError), or nested too deep
    BadZipFile,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    zlib.error,
)
"""What numpy and zipfile raise for a file that is none of theirs."""


def read_feeds(path: Path) -> dict[str, Array]:
    """The arrays of an .npz file by name.

    Raises UsageError if it cannot be read, is no regular file (a pipe or a device may never end),
    is no .npz file, holds Python objects, or unpacks to more than this machine's memory.
    """
    try:
        if path.exists() and not path.is_file():
            raise UsageError(f"cannot read inputs from {path}: it is no regular file")
        return _read(path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"cannot read inputs from {path}: {reason}") from error
    except MemoryError:
        raise UsageError(f"cannot read inputs from {path}: there is not enough memory") from None
    except _DAMAGED as error:
        raise UsageError(f"cannot read inputs from {path}: it is no .npz file") from error


def _read(path: Path) -> dict[str, Array]:
    with path.open("rb") as file:
        if file.read(len(_ONE_ARRAY)) == _ONE_ARRAY:
            raise UsageError(f"{path} holds one array: it is no .npz file, with names")
    stored = np.load(path, allow_pickle=False)
    if not isinstance(stored, np.lib.npyio.NpzFile):
        raise UsageError(f"{path} holds one array: it is no .npz file, with names")
    with stored:
        members = stored.zip.infolist() if stored.zip is not None else []
        nbytes = sum(member.file_size for member in members)
        if nbytes > memory_bytes():
            raise UsageError(
                f"{path} unpacks to {format_bytes(nbytes)}, and this machine has "
                f"{format_bytes(memory_bytes())}"
            )
        arrays = {name: stored[name] for name in stored.files}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            raise UsageError(f"{path}: {name!r} is no array")
    return arrays
