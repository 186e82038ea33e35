"""Outputs of two runs compared: bit for bit, or how far apart."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from onnxremat.ort.child.wire import Array


def different_names(expected: Mapping[str, Array], got: Mapping[str, Array]) -> tuple[str, ...]:
    """Names of outputs that are missing on one side or differ in type, shape or any bit."""
    return tuple(
        name
        for name in sorted(expected.keys() | got.keys())
        if name not in expected or name not in got or not _same_bits(expected[name], got[name])
    )


def _same_bits(a: Array, b: Array) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.hasobject or a.dtype.kind in "US":
        return bool(np.array_equal(a, b))
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


@dataclass(frozen=True)
class Rounding:
    """How far the outputs of two runs are apart: for each output the largest difference divided by
    the largest value, of these the `worst`, in output `name`, and the `median`."""

    worst: float
    name: str
    median: float


def rounding(expected: Mapping[str, Array], got: Mapping[str, Array]) -> Rounding:
    """How far apart two runs with the same outputs are. Infinite where shapes or types differ, or
    only one side is finite."""
    apart = {name: _apart(expected[name], got[name]) for name in expected}
    name = max(apart, key=lambda n: apart[n], default="")
    values = sorted(apart.values()) or [0.0]
    return Rounding(values[-1], name, values[len(values) // 2])


def _apart(a: Array, b: Array) -> float:
    if _same_bits(a, b):
        return 0.0
    if a.dtype != b.dtype or a.shape != b.shape or a.dtype.kind not in "fiub":
        return float("inf")
    x, y = a.astype(np.float64), b.astype(np.float64)
    if not np.array_equal(np.isfinite(x), np.isfinite(y)):
        return float("inf")
    finite = np.isfinite(x)
    largest = np.abs(x[finite]).max(initial=0.0)
    difference = np.abs(x[finite] - y[finite]).max(initial=0.0)
    return float(difference / largest) if largest else float(difference)
