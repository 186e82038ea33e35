"""ONNX Runtime's Python module as one name: it has no types, and re-exports nothing officially."""

from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

ort: Any = onnxruntime

RUNTIME_VERSION: str = ort.__version__

RUNTIME_ERRORS: tuple[type[Exception], ...] = (
    *(t for t in vars(native).values() if isinstance(t, type) and issubclass(t, Exception)),
    RuntimeError,
    ValueError,
    TypeError,
)
"""What ONNX Runtime raises for a model or an input that it does not take."""
