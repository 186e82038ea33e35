"""ONNX Runtime's Python module as one name: it has no types, and re-exports nothing officially."""

import os
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

ort: Any = onnxruntime

RUNTIME_VERSION: str = ort.__version__


def native_path(path: str | os.PathLike[str]) -> bytes:
    """A path for a session option: the system's own bytes, whatever Python makes of them.

    In a locale that is not UTF-8, or for a name that is not, Python's text of a path holds escapes
    that the runtime does not take.
    """
    return os.fsencode(path)


def model_content(path: str | os.PathLike[str]) -> str | bytes:
    """A model file for a session, which takes a path only as text that is UTF-8: else its bytes.

    Bytes have no folder for external data: see `runner.DATA_FOLDER`.
    """
    try:
        return native_path(path).decode("utf-8")
    except UnicodeDecodeError:
        with open(path, "rb") as file:
            return file.read()


RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    *(t for t in vars(native).values() if isinstance(t, type) and issubclass(t, Exception)),
    RuntimeError,
    ValueError,
    TypeError,
)
"""What ONNX Runtime raises for a model or an input that it does not take."""
