"""Values to run a model on: made from a seed, or loaded from a file.

Made values keep training graphs finite and indices valid: floats are 0.1 of a standard normal,
integers 0 or 1.
"""

import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from onnxremat.core.errors import ModelError, UsageError
from onnxremat.core.text import printable
from onnxremat.core.units import LARGEST_SIZE, format_bytes
from onnxremat.importer.values import MOST_DIMENSIONS
from onnxremat.ort.child.machine import memory_bytes
from onnxremat.ort.child.wire import Array, is_foreign
from onnxremat.ort.measuring.feeds import read_feeds

_FLOAT_SCALE = 0.1
_TEXT_BYTES = 200
"""An element takes so much while text is made: four bytes a letter, and an object."""

_MADE_AT_ONCE = 1 << 20
"""So many elements are drawn as random numbers of eight bytes, then kept as what they become: an
input takes its own size while it is made, and a few MB."""

_SHOWN = 200
_UNSUPPORTED = ("INT4", "UINT4", "FLOAT4E2M1", "INT2", "UINT2", "FLOAT8E8M0", "UNDEFINED")


@dataclass(frozen=True)
class InputSpec:
    """An input that the caller must give: `dims` are sizes, or names of sizes not known yet
    (None where a dimension has neither)."""

    name: str
    elem_type: int
    dims: tuple[int | str | None, ...]

    @property
    def numpy_type(self) -> np.dtype[Any]:
        """The numpy type of its values. Raises ModelError where ONNX Runtime takes none."""
        known = self.elem_type in TensorProto.DataType.values()
        label = TensorProto.DataType.Name(self.elem_type) if known else str(self.elem_type)
        if not known or label in _UNSUPPORTED:
            raise ModelError(
                f"input {self.name!r} is of type {label.lower()}, which cannot be fed from Python"
            )
        return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(self.elem_type))


def input_specs(model: onnx.ModelProto) -> tuple[InputSpec, ...]:
    """The inputs a caller must give: those that are not also initializers (as in IR 3 files).

    Raises ModelError for an input that is no tensor or has no declared rank.
    """
    given = {tensor.name for tensor in model.graph.initializer}
    given.update(tensor.values.name for tensor in model.graph.sparse_initializer)
    return tuple(_spec(value) for value in model.graph.input if value.name not in given)


def make_inputs(
    model: onnx.ModelProto,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    seed: int = 0,
) -> dict[str, Array]:
    """A value for every input, of the size in `shapes` or else of its declared one.

    The same seed gives the same values, whatever other inputs the model has. Raises ModelError as
    `input_specs` does, UsageError if a size is neither given nor declared; either, before anything
    is made, for more elements than this machine has memory for.
    """
    given = shapes or {}
    specs = input_specs(model)
    sizes = {spec.name: given.get(spec.name) or _declared_shape(spec) for spec in specs}
    _require_room(specs, sizes)
    return {spec.name: _value(spec, sizes[spec.name], seed) for spec in specs}


def _require_room(specs: Iterable[InputSpec], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Sizes that the model itself states are its fault, others the caller's."""
    room = memory_bytes()
    for spec in specs:
        shape = shapes[spec.name]
        if len(shape) > MOST_DIMENSIONS:
            raise ModelError(
                f"input {spec.name!r} has {len(shape)} dimensions; values of at most "
                f"{MOST_DIMENSIONS} can be made"
            )
        bytes_each = _element_bytes(spec)
        if 0 in shape and prod(size or 1 for size in shape) * bytes_each > LARGEST_SIZE:
            raise ModelError(
                f"input {spec.name!r} has shape {_shown(shape)}: there is no such array"
            )
        room -= prod(shape) * bytes_each
        if room < 0:
            declared = all(isinstance(dim, int) for dim in spec.dims)
            raise (ModelError if declared else UsageError)(
                f"input {spec.name!r} of shape {_shown(shape)} takes more memory than this "
                f"machine's {format_bytes(memory_bytes())}"
            )


def _shown(shape: Iterable[int]) -> str:
    return printable(str(list(shape)), _SHOWN)


def load_inputs(
    path: Path | str, model: onnx.ModelProto, dims: Mapping[str, int] | None = None
) -> dict[str, Array]:
    """The inputs stored by name in an .npz file, checked against the model.

    Types that numpy does not know may be stored as unsigned integers of the same size. Raises
    UsageError if the file cannot be read, lacks an input, has one too many, or a type or a shape
    does not fit; dimensions of one name must agree with each other and with `dims`.
    """
    stored = read_feeds(Path(path))
    specs = input_specs(model)
    names = {spec.name for spec in specs}
    for name in sorted(set(stored) - names):
        raise UsageError(f"{path} has {name!r}, but the model has no such input")
    bound = dict(dims or {})
    result = {}
    for spec in specs:
        if spec.name not in stored:
            raise UsageError(f"{path} has no value for input {spec.name!r}")
        result[spec.name] = _typed(spec, stored[spec.name])
        _check_shape(spec, stored[spec.name].shape, bound)
    return result


def _spec(value: onnx.ValueInfoProto) -> InputSpec:
    kind = value.type.WhichOneof("value")
    if kind != "tensor_type":
        described = (kind or "no type").removesuffix("_type").replace("_", " ")
        raise ModelError(f"input {value.name!r} is no tensor but has type: {described}")
    tensor = value.type.tensor_type
    if not tensor.HasField("shape"):
        raise ModelError(f"input {value.name!r} has no declared shape")
    return InputSpec(value.name, tensor.elem_type, tuple(_dims(tensor.shape)))


def _dims(shape: onnx.TensorShapeProto) -> Iterator[int | str | None]:
    for dim in shape.dim:
        if dim.HasField("dim_value") and dim.dim_value >= 0:
            yield dim.dim_value
        else:
            yield dim.dim_param or None


def _declared_shape(spec: InputSpec) -> tuple[int, ...]:
    sizes = tuple(dim for dim in spec.dims if isinstance(dim, int))
    if len(sizes) < len(spec.dims):
        raise UsageError(f"the size of input {spec.name!r} is not known: {list(spec.dims)}")
    return sizes


def _value(spec: InputSpec, shape: tuple[int, ...], seed: int) -> Array:
    rng = np.random.default_rng([seed, zlib.crc32(spec.name.encode())])
    if spec.elem_type == TensorProto.STRING:
        return rng.integers(0, 2, shape).astype(np.str_)
    values = np.empty(prod(shape), spec.numpy_type)
    for start in range(0, values.size, _MADE_AT_ONCE):
        part = values[start : start + _MADE_AT_ONCE]
        part[:] = _drawn(rng, part.size, values.dtype)
    return values.reshape(shape)


def _drawn(rng: np.random.Generator, count: int, dtype: np.dtype[Any]) -> Array:
    """The next so many elements; small floats go through float32, which every package converts."""
    if dtype.kind in "biu":
        return rng.integers(0, 2, count).astype(dtype)
    values = rng.standard_normal(count) * _FLOAT_SCALE
    if dtype.kind == "c":
        return values + 1j * values
    return values if dtype.itemsize >= 4 else values.astype(np.float32).astype(dtype)


def _element_bytes(spec: InputSpec) -> int:
    return _TEXT_BYTES if spec.elem_type == TensorProto.STRING else spec.numpy_type.itemsize


def _typed(spec: InputSpec, array: Array) -> Array:
    wanted = spec.numpy_type
    if spec.elem_type == TensorProto.STRING:
        if array.dtype.kind in "US":
            return _text(spec, array)
    elif array.dtype == wanted:
        return array
    elif _same_bits(wanted, array.dtype):
        return array.view(wanted)
    label = TensorProto.DataType.Name(spec.elem_type).lower()
    raise UsageError(f"input {spec.name!r} must be {label}, but the file has {array.dtype}")


def _text(spec: InputSpec, array: Array) -> Array:
    try:
        return array.astype(np.str_)
    except ValueError:
        raise UsageError(f"input {spec.name!r} has text that is not ASCII, in bytes") from None


def _same_bits(wanted: np.dtype[Any], stored: np.dtype[Any]) -> bool:
    """Whether stored integers are the bits of a type that numpy does not know."""
    return is_foreign(wanted) and stored.kind in "uV" and stored.itemsize == wanted.itemsize


def _check_shape(spec: InputSpec, shape: tuple[int, ...], bound: dict[str, int]) -> None:
    """Compare a shape with what is declared; sizes of named dimensions are added to `bound`."""
    if len(shape) != len(spec.dims):
        raise UsageError(
            f"input {spec.name!r} has {len(spec.dims)} dimensions, but its value has {len(shape)}"
        )
    for axis, (dim, size) in enumerate(zip(spec.dims, shape, strict=True)):
        wanted = bound.setdefault(dim, size) if isinstance(dim, str) else dim
        if wanted is not None and wanted != size:
            raise UsageError(
                f"input {spec.name!r}, axis {axis}: the model says {wanted}, its value has {size}"
            )
