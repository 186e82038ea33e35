"""Small values are those that onnx's reference evaluator computes, or none."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnxremat.importer.small_values import _RULES, SMALL_ELEMENTS, small_value
from onnxremat.importer.values import ValueType

Array = NDArray[Any]

SHAPE = np.array([2, 3, 4, 5], np.int64)
DATA = np.arange(24, dtype=np.int64).reshape(2, 3, 4)
HALVES = np.array([0.5, -1.5, 2.5], np.float32)
LAST, FIRST = np.iinfo(np.int64).max, np.iinfo(np.int64).min


def ints(*values: int) -> Array:
    return np.array(values, np.int64)


def computed(
    op_type: str, inputs: Sequence[Array | None], opset: int = 17, **attributes: Any
) -> tuple[Array | None, Array]:
    """The small value of a node, and what the reference evaluator makes of it."""
    known = {f"x{i}": value for i, value in enumerate(inputs) if value is not None}
    names = ["" if value is None else f"x{i}" for i, value in enumerate(inputs)]
    node = helper.make_node(op_type, names, ["y"], **attributes)
    values = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(v.dtype), v.shape)
        for n, v in known.items()
    ]
    untyped = helper.make_tensor_value_info("y", TensorProto.UNDEFINED, None)
    graph = helper.make_graph([node], "one", values, [untyped])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    (expected,) = ReferenceEvaluator(model).run(None, known)
    kinds = {n: ValueType(v.dtype.name, v.shape) for n, v in known.items()}
    return small_value(node, known, kinds), np.asarray(expected)


CASES: list[tuple[str, list[Array | None], dict[str, Any]]] = [
    ("Shape", [DATA], {}),
    ("Shape", [DATA], {"start": -2, "end": 3}),
    ("Size", [DATA], {}),
    ("Gather", [SHAPE, np.array(-1)], {}),
    ("Gather", [DATA, ints(0, 2)], {"axis": 1}),
    ("Concat", [SHAPE, ints(7)], {"axis": 0}),
    ("Concat", [DATA, DATA], {"axis": -1}),
    ("Cast", [HALVES], {"to": TensorProto.INT64}),
    ("Cast", [SHAPE], {"to": TensorProto.FLOAT}),
    ("Unsqueeze", [SHAPE, ints(0, -1)], {}),
    ("Squeeze", [DATA[:1], ints(0)], {}),
    ("Squeeze", [DATA[:1, :, :1]], {}),
    ("Slice", [SHAPE, ints(1), ints(LAST)], {}),
    ("Slice", [SHAPE, ints(-1), ints(FIRST), ints(0), ints(-1)], {}),
    ("Slice", [DATA, ints(0, 1), ints(2, 99), ints(-1, 1)], {}),
    ("Div", [ints(7, -7, 7), ints(2, 2, -2)], {}),
    ("Div", [HALVES, HALVES], {}),
    ("Reshape", [DATA, ints(4, -1)], {}),
    ("Reshape", [DATA, ints(0, 0, -1, 2)], {}),
    ("Reshape", [DATA[:0], ints(0, 5)], {"allowzero": 1}),
    ("Range", [np.array(2), np.array(11), np.array(3)], {}),
    ("ConstantOfShape", [ints(2, 3)], {}),
    ("ConstantOfShape", [ints(2)], {"value": numpy_helper.from_array(ints(7))}),
    ("Transpose", [DATA], {}),
    ("Transpose", [DATA], {"perm": [1, 0, 2]}),
    ("Neg", [SHAPE], {}),
    ("Identity", [SHAPE], {}),
    ("Add", [SHAPE, ints(1)], {}),
    ("Sub", [SHAPE, ints(1)], {}),
    ("Mul", [HALVES, np.array(2, np.float32)], {}),
    ("Floor", [HALVES], {}),
    ("Ceil", [HALVES], {}),
    ("Equal", [SHAPE, ints(3)], {}),
    ("Where", [SHAPE == 3, SHAPE, ints(-1)], {}),
]


@pytest.mark.parametrize(("op_type", "inputs", "attributes"), CASES)
def test_values_are_those_of_the_reference(
    op_type: str, inputs: list[Array | None], attributes: dict[str, Any]
) -> None:
    made, expected = computed(op_type, inputs, **attributes)
    assert made is not None
    assert made.dtype == expected.dtype
    assert np.array_equal(made, expected)
    assert made.shape == expected.shape


def test_every_rule_has_a_case() -> None:
    assert {*_RULES, "Shape", "Size"} == {op_type for op_type, _, _ in CASES}


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("Unsqueeze", [SHAPE], {"axes": [0]}),
        ("Squeeze", [DATA[:1]], {"axes": [0]}),
    ],
)
def test_attributes_of_older_opsets_are_read(
    op_type: str, inputs: list[Array | None], attributes: dict[str, Any]
) -> None:
    made, expected = computed(op_type, inputs, 11, **attributes)
    assert made is not None
    assert np.array_equal(made, expected)
    assert made.shape == expected.shape


def test_slices_of_older_opsets_are_read() -> None:
    node = helper.make_node("Slice", ["x"], ["y"], starts=[1], ends=[LAST], axes=[0])
    made = small_value(node, {"x": SHAPE}, {})
    assert made is not None
    assert made.tolist() == [3, 4, 5]


def node(op_type: str, *inputs: str, domain: str = "", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op_type, inputs, ["y"], domain=domain, **attributes)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(node("Add", "x", "unknown"), id="an unknown input"),
        pytest.param(node("Shape", "unknown"), id="an unknown type"),
        pytest.param(node("Softmax", "x"), id="no rule"),
        pytest.param(node("Add", "x", "x", domain="other"), id="another domain"),
        pytest.param(node("Slice", "x", "one", "one", "", "one"), id="axes left out"),
        pytest.param(node("Concat", "x", "x"), id="no axis"),
        pytest.param(node("Gather", "x", "x"), id="an index outside"),
        pytest.param(node("Reshape", "x", "x"), id="another number of elements"),
        pytest.param(node("Cast", "x", to=TensorProto.STRING), id="text"),
        pytest.param(node("Div", "x", "zero"), id="a division by zero"),
        pytest.param(node("ConstantOfShape", "many"), id="many elements"),
        pytest.param(node("Range", "zero", "many", "one"), id="a long range"),
        pytest.param(node("Concat", "half", "half", "one", axis=0), id="a large result"),
        pytest.param(node("Shape"), id="no input"),
        pytest.param(node("Size", "huge"), id="a size beyond 63 bits"),
        pytest.param(node("ConstantOfShape", "wrap"), id="a product beyond 63 bits"),
        pytest.param(node("Cast", "x", to=99), id="a type that does not exist"),
    ],
)
def test_else_there_is_none(asked: onnx.NodeProto) -> None:
    known = {
        "x": SHAPE,
        "one": ints(1),
        "zero": ints(0),
        "many": ints(SMALL_ELEMENTS + 1),
        "half": np.zeros(SMALL_ELEMENTS // 2, np.int64),
        "wrap": ints(2**16, 2**16, 2**16, 2**16),
    }
    assert small_value(asked, known, {"huge": ValueType("float", (2**31,) * 3)}) is None
