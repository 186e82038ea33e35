import pytest
from onnx import TensorProto, TypeProto, helper

from onnxremat.importer import ValueType, ValueTypes
from onnxremat.importer.values import concrete_type, declared_shape, dtype_name, non_tensor_kind


@pytest.mark.parametrize(
    ("dtype", "shape", "nbytes"),
    [
        ("float", (2, 3), 24),
        ("float", (), 4),
        ("int64", (0, 5), 0),
        ("bool", (7,), 7),
        ("bfloat16", (3,), 6),
        ("int4", (3,), 2),
        ("int4", (4,), 2),
        ("uint2", (5,), 2),
        ("float8e4m3fn", (9,), 9),
        ("complex128", (2,), 32),
    ],
)
def test_bytes(dtype: str, shape: tuple[int, ...], nbytes: int) -> None:
    assert ValueType(dtype, shape).nbytes == nbytes


def test_strings_have_no_size() -> None:
    assert not ValueType("string", (3,)).has_size
    with pytest.raises(KeyError):
        _ = ValueType("string", (3,)).nbytes


def test_declarations() -> None:
    proto = helper.make_tensor_type_proto(TensorProto.INT64, ["n", 3, None, -1])
    assert declared_shape(proto, {}) == ("n", 3, "?", "?")
    assert declared_shape(proto, {"n": 2}) == (2, 3, "?", "?")
    assert concrete_type(proto, {"n": 2}) is None
    known = helper.make_tensor_type_proto(TensorProto.INT64, ["n", 3])
    assert concrete_type(known, {"n": 2}) == ValueType("int64", (2, 3))
    assert declared_shape(helper.make_tensor_type_proto(TensorProto.INT64, None), {}) is None
    assert concrete_type(TypeProto(), {}) is None
    assert non_tensor_kind(helper.make_sequence_type_proto(known)) == "sequence"
    assert non_tensor_kind(helper.make_optional_type_proto(known)) == "optional"
    assert non_tensor_kind(known) is None
    assert dtype_name(TensorProto.FLOAT8E5M2) == "float8e5m2"
    assert dtype_name(9999) == "undefined"


def test_value_types_is_a_mapping() -> None:
    types = ValueTypes({"a": ValueType("float", (2,))}, {"b": (1, "?")})
    assert dict(types) == {"a": ValueType("float", (2,))}
    assert "b" not in types
    assert len(types) == 1
