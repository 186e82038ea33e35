"""Outputs of two runs compared bit for bit."""

from collections.abc import Mapping

import numpy as np

from onnxremat.runtimes.wire import Array


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
