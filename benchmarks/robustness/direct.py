"""Models in ONNX Runtime without the product: the judge of what the product wrote.

Nothing of onnxremat is used here: a session with the five options of the README, the inputs as they
are, and outputs compared by type, shape and bytes.
"""

import ctypes
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto
from onnxruntime.capi import onnxruntime_pybind11_state as native

ort: Any = onnxruntime

FOREIGN = {
    f"tensor({name})": TensorProto.DataType.Value(name.upper())
    for name in ("bfloat16", "float8e4m3fn", "float8e4m3fnuz", "float8e5m2", "float8e5m2fnuz")
}
"""Tensors that numpy has no type for, and their element type in ONNX."""


class CannotFeed(Exception):
    """Values that cannot be handed to ONNX Runtime from Python."""


REFUSALS: tuple[type[Exception], ...] = (
    *(t for t in vars(native).values() if isinstance(t, type) and issubclass(t, Exception)),
    RuntimeError,
    ValueError,
    TypeError,
    MemoryError,
    CannotFeed,
)
"""What opening or running a model raises that ONNX Runtime does not take."""


def session(path: Path) -> Any:
    """A session with the options that the README asks for."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_mem_reuse = False
    options.enable_mem_pattern = False
    options.enable_cpu_mem_arena = False
    content: str | bytes = str(path)
    if not _is_text(path):
        content = path.read_bytes()  # the runtime's Python module takes no such path
    return ort.InferenceSession(
        content, options, providers=["CPUExecutionProvider"], enable_fallback=0
    )


def _is_text(path: Path) -> bool:
    return os.fsencode(path).decode(errors="replace") == str(path)


def run(path: Path, feed: Mapping[str, Any]) -> dict[str, Any]:
    """Every output of a run, by name, in a form that pickles and that `differences` compares."""
    opened = session(path)
    asked = {value.name: value.type for value in opened.get_inputs()}
    fed = {name: _fed(value, asked[name]) for name, value in feed.items() if name in asked}
    outputs = opened.get_outputs()
    if not any(value.type in FOREIGN for value in outputs):
        special = any(isinstance(value, ort.OrtValue) for value in fed.values())
        made = _with_values(opened, fed) if special else opened.run(None, fed)
        return {o.name: made[i] for i, o in enumerate(outputs)}
    made = opened.run_with_ort_values(None, {name: _as_value(v) for name, v in fed.items()})
    return {o.name: _bytes_of(value) for o, value in zip(outputs, made, strict=True)}


def _with_values(opened: Any, fed: Mapping[str, Any]) -> list[Any]:
    made = opened.run_with_ort_values(None, {name: _as_value(v) for name, v in fed.items()})
    return [value.numpy() for value in made]


def _as_value(value: Any) -> Any:
    if isinstance(value, ort.OrtValue):
        return value
    if not isinstance(value, np.ndarray) or value.dtype.kind in "OUS":
        raise CannotFeed("text or a sequence beside a type that numpy does not have")
    return ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value).reshape(value.shape))


def _fed(value: Any, type_name: str) -> Any:
    if value is None or isinstance(value, list):
        return value
    array = np.asarray(value)
    if type_name in FOREIGN:
        bits = np.array(array.view(f"u{array.dtype.itemsize}"), order="C")
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, FOREIGN[type_name])
    if array.dtype.kind in "US":
        return array.astype(object)
    return array


def _bytes_of(value: Any) -> Any:
    if not value.is_tensor():
        return None
    if value.data_type() not in FOREIGN:
        return np.array(value.numpy())
    shape, size = tuple(value.shape()), value.tensor_size_in_bytes()
    content = bytes((ctypes.c_ubyte * size).from_address(value.data_ptr())) if size else b""
    item = max(size // max(math.prod(shape), 1), 1)
    return np.frombuffer(content, dtype=f"u{item}").reshape(shape)


def differences(expected: Mapping[str, Any], got: Mapping[str, Any]) -> list[str]:
    """The names of outputs that are not the same, bit for bit."""
    if list(expected) != list(got):
        return ["the names of the outputs"]
    return [name for name, value in expected.items() if not same(value, got[name])]


def same(a: Any, b: Any) -> bool:
    """Whether two outputs are the same: type, shape and bits; sequences by element."""
    if isinstance(a, np.ndarray) and isinstance(b, np.ndarray):
        if a.dtype != b.dtype or a.shape != b.shape:
            return False
        return a.tolist() == b.tolist() if a.dtype.kind == "O" else a.tobytes() == b.tobytes()
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return type(a) is type(b) and bool(a == b)


def executed_nodes(path: Path, target: Path) -> tuple[list[str], list[str]]:
    """The ops of a file, and of what ONNX Runtime makes of it with its optimizations off, both
    sorted; constants apart."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.optimized_model_filepath = str(target)
    ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"], enable_fallback=0)
    found = []
    for file in (path, target):
        graph = onnx.load(file, load_external_data=False).graph
        found.append(sorted(n.op_type for n in graph.node if n.op_type != "Constant"))
    return found[0], found[1]


def random_feed(shapes: Sequence[tuple[str, str, Sequence[int]]], seed: int) -> dict[str, Any]:
    """Values for inputs (name, type of ONNX Runtime, shape) from a seed. Raises CannotFeed."""
    rng = np.random.default_rng(seed)
    feed: dict[str, Any] = {}
    for name, type_name, shape in shapes:
        kind = type_name.removeprefix("tensor(").removesuffix(")")
        if kind == "string":
            feed[name] = rng.choice(["a", "b", "ccc"], shape).astype(object)
        elif kind in ("float", "double", "float16"):
            feed[name] = rng.standard_normal(shape).astype(
                np.dtype("f4" if kind == "float" else kind)
            )
        elif kind == "bool" or kind.lstrip("u").removeprefix("int").isdigit():
            feed[name] = rng.integers(0, 2, shape).astype(kind)
        else:
            raise CannotFeed(f"input {name!r} is {type_name}")
    return feed
