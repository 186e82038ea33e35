"""How a parent and the child that executes models exchange arrays: files in a job directory.

numpy knows neither bfloat16 nor the eight-bit floats, and the child starts faster without the
packages that do; such arrays travel as unsigned integers of the same size, and an ONNX type name
(`float`, `int64`, `bfloat16`, ...) goes with every array.
"""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]

REINTERPRETED = {
    "bfloat16": 16,
    "float8e4m3fn": 17,
    "float8e4m3fnuz": 18,
    "float8e5m2": 19,
    "float8e5m2fnuz": 20,
}
"""ONNX types that travel as unsigned integers: TensorProto's element type of each."""

BITS_OUT = {"float8e8m0": 8, "float4e2m1": 4, "int4": 4, "uint4": 4, "int2": 2, "uint2": 2}
"""Bits of an element of the types that only come out, as bytes: no value can be handed in."""

_REGISTERED = 2
_BITS = {1: np.uint8, 2: np.uint16}


def as_numpy(array: Array) -> Array:
    """The array in a type that numpy itself knows; the bytes stay the same."""
    if array.dtype.kind in "OSU":
        return array.astype(np.str_)
    if is_foreign(array.dtype):
        return array.view(_BITS[array.dtype.itemsize])
    return array


def is_foreign(dtype: np.dtype[Any]) -> bool:
    """Whether a type is one that another package taught numpy (bfloat16, eight-bit floats)."""
    return dtype.isbuiltin == _REGISTERED or dtype.kind == "V"


def write_arrays(folder: Path, prefix: str, arrays: dict[str, Array]) -> list[dict[str, str]]:
    """Write arrays into a folder; what is returned (plain data) is what `read_arrays` takes."""
    written = []
    for index, (name, array) in enumerate(arrays.items()):
        file = f"{prefix}{index}.npy"
        np.save(folder / file, as_numpy(array), allow_pickle=False)
        written.append({"name": name, "file": file})
    return written


def read_arrays(folder: Path, written: list[dict[str, str]]) -> dict[str, Array]:
    """The arrays by name. Text comes back as numpy strings, small floats as integers."""
    return {w["name"]: np.load(folder / w["file"], allow_pickle=False) for w in written}
