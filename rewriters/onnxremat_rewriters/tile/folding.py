"""Small values that follow from shapes and constants: what Reshape, Slice, Resize and Pad read."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from onnxremat.importer.nodes import attribute, op_key
from onnxremat.importer.values import ValueType

Array = NDArray[Any]
SMALL_ELEMENTS = 1024


def fold(
    nodes: Sequence[onnx.NodeProto], stored: Mapping[str, Array], types: Mapping[str, ValueType]
) -> dict[str, Array]:
    """`stored`, and what the nodes make from it and from known shapes. O(nodes)."""
    known = dict(stored)
    for node in nodes:
        op = op_key(node)
        if op in ("Shape", "Size"):
            kind = types.get(node.input[0])
            if kind is not None:
                known[node.output[0]] = _of_shape(node, op, kind)
        elif op in _FOLDED and all(name in known for name in node.input if name):
            made = _FOLDED[op](node, [known[name] for name in node.input if name])
            if made is not None and made.size <= SMALL_ELEMENTS:
                known[node.output[0]] = made
    return known


def _of_shape(node: onnx.NodeProto, op: str, kind: ValueType) -> Array:
    if op == "Size":
        return np.array(kind.elements, np.int64)
    start, end = attribute(node, "start", 0), attribute(node, "end", None)
    return np.array(kind.shape[start:end], np.int64)


def _gather(node: onnx.NodeProto, values: list[Array]) -> Array:
    return np.asarray(np.take(values[0], values[1], axis=attribute(node, "axis", 0)))


def _concat(node: onnx.NodeProto, values: list[Array]) -> Array:
    return np.concatenate(values, axis=attribute(node, "axis", 0))


def _cast(node: onnx.NodeProto, values: list[Array]) -> Array | None:
    dtype = helper.tensor_dtype_to_np_dtype(attribute(node, "to"))
    return values[0].astype(dtype) if dtype.kind in "iufb" else None


def _unsqueeze(node: onnx.NodeProto, values: list[Array]) -> Array:
    axes = values[1] if len(values) > 1 else np.array(attribute(node, "axes", ()))
    return np.expand_dims(values[0], tuple(int(axis) for axis in axes.ravel()))


def _squeeze(node: onnx.NodeProto, values: list[Array]) -> Array:
    axes = values[1] if len(values) > 1 else attribute(node, "axes", None)
    chosen = None if axes is None else tuple(int(axis) for axis in np.ravel(axes))
    return np.squeeze(values[0], chosen)


def _slice(node: onnx.NodeProto, values: list[Array]) -> Array | None:
    data = values[0]
    if len(values) == 1:
        starts, ends = attribute(node, "starts"), attribute(node, "ends")
        axes, steps = attribute(node, "axes", range(len(starts))), [1] * len(starts)
    elif len([name for name in node.input if name]) == len(node.input):
        starts, ends = (v.ravel().tolist() for v in values[1:3])
        axes = values[3].ravel().tolist() if len(values) > 3 else range(len(starts))
        steps = values[4].ravel().tolist() if len(values) > 4 else [1] * len(starts)
    else:
        return None
    index = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[axis] = slice(start, end, step)
    return data[tuple(index)]


def _divide(node: onnx.NodeProto, values: list[Array]) -> Array | None:
    a, b = values
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    if not np.all(b):
        return None
    quotient = np.abs(a) // np.abs(b)
    return np.asarray(quotient * np.sign(a) * np.sign(b))


def _reshape(node: onnx.NodeProto, values: list[Array]) -> Array | None:
    shape = values[1].tolist()
    if 0 in shape or len(values) != len(node.input):
        return None
    return values[0].reshape(shape)


def _range(_: onnx.NodeProto, values: list[Array]) -> Array | None:
    if values[0].dtype.kind != "i":
        return None
    start, limit, delta = (int(v.item()) for v in values)
    if not delta or (limit - start) // delta > SMALL_ELEMENTS:
        return None
    return np.arange(start, limit, delta).astype(values[0].dtype)


def _constant_of_shape(node: onnx.NodeProto, values: list[Array]) -> Array | None:
    if values[0].prod() > SMALL_ELEMENTS:
        return None
    return np.full(values[0].tolist(), *_fill(node))


_FOLDED: dict[str, Callable[[onnx.NodeProto, list[Array]], Array | None]] = {
    "Gather": _gather,
    "Concat": _concat,
    "Cast": _cast,
    "Unsqueeze": _unsqueeze,
    "Squeeze": _squeeze,
    "Slice": _slice,
    "Div": _divide,
    "Reshape": _reshape,
    "Range": _range,
    "ConstantOfShape": _constant_of_shape,
    "Transpose": lambda n, v: np.transpose(v[0], attribute(n, "perm", None)),
    "Neg": lambda _, v: np.asarray(-v[0]),
    "Identity": lambda _, v: v[0],
    "Add": lambda _, v: np.asarray(v[0] + v[1]),
    "Sub": lambda _, v: np.asarray(v[0] - v[1]),
    "Mul": lambda _, v: np.asarray(v[0] * v[1]),
    "Floor": lambda _, v: np.floor(v[0]),
    "Ceil": lambda _, v: np.ceil(v[0]),
    "Equal": lambda _, v: np.equal(v[0], v[1]),
    "Where": lambda _, v: np.where(v[0], v[1], v[2]),
}


def _fill(node: onnx.NodeProto) -> tuple[Any, Any]:
    tensor = attribute(node, "value")
    if tensor is None:
        return 0.0, np.float32
    value = onnx.numpy_helper.to_array(tensor)
    return value.ravel()[0], value.dtype
