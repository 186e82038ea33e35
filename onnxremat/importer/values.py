"""Element type and shape of a value, and the bytes that follow from them."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod

from onnx import TensorProto, TypeProto

MOST_DIMENSIONS = 64
"""Of numpy's arrays: what has more cannot be fed, nor looked at where it is stored."""

_BITS = {
    "float": 32,
    "double": 64,
    "float16": 16,
    "bfloat16": 16,
    "float8e4m3fn": 8,
    "float8e4m3fnuz": 8,
    "float8e5m2": 8,
    "float8e5m2fnuz": 8,
    "float8e8m0": 8,
    "float4e2m1": 4,
    "int2": 2,
    "uint2": 2,
    "int4": 4,
    "uint4": 4,
    "int8": 8,
    "uint8": 8,
    "bool": 8,
    "int16": 16,
    "uint16": 16,
    "int32": 32,
    "uint32": 32,
    "int64": 64,
    "uint64": 64,
    "complex64": 64,
    "complex128": 128,
}
"""Bits of one element in a buffer; elements below a byte are packed, the last byte filled up."""

_INTEGERS = frozenset(name for name in _BITS if "int" in name) | {"bool"}


@dataclass(frozen=True, slots=True)
class ValueType:
    """`dtype` is the ONNX name in lower case (`float`, `int64`); `shape` counts elements."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def elements(self) -> int:
        """How many elements there are: 1 for a scalar."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of a dense buffer. Raises KeyError for strings, whose size no shape gives."""
        return -(-self.elements * _BITS[self.dtype] // 8)

    @property
    def has_size(self) -> bool:
        """Whether shape and element type determine the bytes: false for strings."""
        return self.dtype in _BITS

    @property
    def is_integer(self) -> bool:
        """Whether the elements are integers or truth values."""
        return self.dtype in _INTEGERS


@dataclass(frozen=True)
class ValueTypes(Mapping[str, ValueType]):
    """The types of a model's values by name, and what is known of the others.

    `partial[name]` is a shape of which some dimensions are unknown: a number, a symbol's name, or
    "?". `non_tensor[name]` says what a value is that is no tensor ("sequence", "optional", "map").
    """

    known: Mapping[str, ValueType]
    partial: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    non_tensor: Mapping[str, str] = field(default_factory=dict)

    def __getitem__(self, name: str) -> ValueType:
        return self.known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.known)

    def __len__(self) -> int:
        return len(self.known)


def dtype_name(data_type: int) -> str:
    """`float` for TensorProto.FLOAT; "undefined" for 0 and for numbers this onnx does not know."""
    if data_type not in TensorProto.DataType.values():
        return "undefined"
    return str(TensorProto.DataType.Name(data_type)).lower()


def runtime_dtype(name: str) -> str:
    """The type that ONNX Runtime calls `name`: its `Float8E4M3FN` is `float8e4m3fn`, its `Int4x2`
    (two elements in a byte) `int4`."""
    return re.sub(r"(int[24])x[24]$", r"\1", name.lower())


def tensor_type(tensor: TensorProto) -> ValueType:
    """The type of a stored tensor; its data is not looked at."""
    return ValueType(dtype_name(tensor.data_type), tuple(tensor.dims))


def declared_shape(proto: TypeProto, symbols: Mapping[str, int]) -> tuple[int | str, ...] | None:
    """A declared shape with `symbols` put in, or None if not even the rank is declared.

    Unknown dimensions are their symbol, or "?" if they have none. Some exporters write -1.
    """
    if not proto.tensor_type.HasField("shape"):
        return None
    return tuple(
        d.dim_value
        if d.HasField("dim_value") and d.dim_value >= 0
        else symbols.get(d.dim_param, d.dim_param or "?")
        for d in proto.tensor_type.shape.dim
    )


def concrete_type(proto: TypeProto, symbols: Mapping[str, int]) -> ValueType | None:
    """The type a declaration gives, or None if it leaves anything open or is no tensor's."""
    dtype = dtype_name(proto.tensor_type.elem_type)
    shape = declared_shape(proto, symbols)
    if shape is None or dtype == "undefined":
        return None
    sizes = tuple(d for d in shape if isinstance(d, int))
    return ValueType(dtype, sizes) if len(sizes) == len(shape) else None


def non_tensor_kind(proto: TypeProto) -> str | None:
    """ "sequence", "optional", "map" ... for a declaration that is no dense tensor's."""
    kind = proto.WhichOneof("value")
    return None if kind in (None, "tensor_type") else str(kind).removesuffix("_type")
