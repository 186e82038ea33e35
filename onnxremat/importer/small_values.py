"""Small values that follow from shapes and constants, node by node.

They are what exporters compute with: the shapes, axes, pads and scales that Reshape, Slice, Pad and
Resize read. Type inference looks at them (`opaque`), and tiling (`onnxremat_rewriters.tile`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, helper, numpy_helper

from onnxremat.importer.nodes import DEFAULT_DOMAINS, attribute
from onnxremat.importer.values import ValueType

Array = NDArray[Any]

SMALL_ELEMENTS = 1024
"""Values of more elements are not made: they are data, not shapes."""


def small_value(
    node: NodeProto, known: Mapping[str, Array], types: Mapping[str, ValueType]
) -> Array | None:
    """The value of the node's output, if it follows from `known` values and the `types` of what the
    node reads and has at most SMALL_ELEMENTS; None also if the node is invalid."""
    if node.domain not in DEFAULT_DOMAINS:
        return None
    try:
        with np.errstate(all="ignore"):
            made = _value(node, known, types)
    except (ArithmeticError, AttributeError, LookupError, MemoryError, TypeError, ValueError):
        return None  # The op refuses its inputs: the runtime will say why.
    return made if made is not None and made.size <= SMALL_ELEMENTS else None


def _value(
    node: NodeProto, known: Mapping[str, Array], types: Mapping[str, ValueType]
) -> Array | None:
    if node.op_type in ("Shape", "Size"):
        kind = types.get(node.input[0])
        return None if kind is None else _of_shape(node, kind)
    rule = _RULES.get(node.op_type)
    if rule is None or any(name not in known for name in node.input if name):
        return None
    return rule(node, [known[name] for name in node.input if name])


def _of_shape(node: NodeProto, kind: ValueType) -> Array:
    if node.op_type == "Size":
        return np.array(kind.elements, np.int64)
    start, end = attribute(node, "start", 0), attribute(node, "end", None)
    return np.array(kind.shape[start:end], np.int64)


def _gather(node: NodeProto, values: Sequence[Array]) -> Array:
    return np.asarray(np.take(values[0], values[1], axis=attribute(node, "axis", 0)))


def _concat(node: NodeProto, values: Sequence[Array]) -> Array | None:
    axis = attribute(node, "axis")
    return None if axis is None else np.concatenate(values, axis=axis)


def _cast(node: NodeProto, values: Sequence[Array]) -> Array | None:
    dtype = helper.tensor_dtype_to_np_dtype(attribute(node, "to"))
    return values[0].astype(dtype) if dtype.kind in "iufb" else None


def _unsqueeze(node: NodeProto, values: Sequence[Array]) -> Array:
    axes = values[1] if len(values) > 1 else np.array(attribute(node, "axes", ()))
    return np.expand_dims(values[0], tuple(int(axis) for axis in axes.ravel()))


def _squeeze(node: NodeProto, values: Sequence[Array]) -> Array:
    axes = values[1] if len(values) > 1 else attribute(node, "axes", None)
    chosen = None if axes is None else tuple(int(axis) for axis in np.ravel(axes))
    return np.squeeze(values[0], chosen)


def _slice(node: NodeProto, values: Sequence[Array]) -> Array | None:
    data = values[0]
    if len(values) == 1:
        starts, ends = attribute(node, "starts"), attribute(node, "ends")
        axes, steps = attribute(node, "axes", range(len(starts))), [1] * len(starts)
    elif all(node.input):
        starts, ends = (v.ravel().tolist() for v in values[1:3])
        axes = values[3].ravel().tolist() if len(values) > 3 else range(len(starts))
        steps = values[4].ravel().tolist() if len(values) > 4 else [1] * len(starts)
    else:
        return None
    index = [slice(None)] * data.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        index[axis] = slice(start, end, step)
    return data[tuple(index)]


def _divide(_: NodeProto, values: Sequence[Array]) -> Array | None:
    a, b = values
    if a.dtype.kind == "f":
        return np.asarray(np.divide(a, b))
    if not np.all(b):
        return None
    quotient = np.abs(a) // np.abs(b)
    return np.asarray(quotient * np.sign(a) * np.sign(b))


def _reshape(node: NodeProto, values: Sequence[Array]) -> Array | None:
    data, shape = values[0], values[1].tolist()
    if not attribute(node, "allowzero", 0):
        shape = [data.shape[axis] if extent == 0 else extent for axis, extent in enumerate(shape)]
    return data.reshape(shape)


def _range(_: NodeProto, values: Sequence[Array]) -> Array | None:
    if values[0].dtype.kind != "i":
        return None
    start, limit, delta = (int(v.item()) for v in values)
    if not delta or (limit - start) // delta > SMALL_ELEMENTS:
        return None
    return np.arange(start, limit, delta).astype(values[0].dtype)


def _constant_of_shape(node: NodeProto, values: Sequence[Array]) -> Array | None:
    if values[0].prod() > SMALL_ELEMENTS:
        return None
    fill = attribute(node, "value")
    value = np.zeros(1, np.float32) if fill is None else numpy_helper.to_array(fill)
    return np.full(values[0].tolist(), value.ravel()[0], value.dtype)


_RULES: dict[str, Callable[[NodeProto, Sequence[Array]], Array | None]] = {
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
    "Floor": lambda _, v: np.asarray(np.floor(v[0])),
    "Ceil": lambda _, v: np.asarray(np.ceil(v[0])),
    "Equal": lambda _, v: np.asarray(np.equal(v[0], v[1])),
    "Where": lambda _, v: np.where(v[0], v[1], v[2]),
}
