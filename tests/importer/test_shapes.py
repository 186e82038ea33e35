import os
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper

from onnxremat.importer import ValueType, bind_dimensions, from_proto, infer_types

from .build import model, node, types_of, value

SHAPE_ARITHMETIC = model(
    [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["n"]),
        node("Mul", ["n", "two"], ["twice"]),
        node("Unsqueeze", ["twice", "axes"], ["t1"]),
        node("Concat", ["t1", "minus"], ["target"], axis=0),
        node("Reshape", ["x", "target"], ["y"]),
    ],
    inputs=[value("x", ["b", 8])],
    weights={
        "zero": np.array(0),
        "two": np.array(2),
        "axes": np.array([0]),
        "minus": np.array([-1]),
    },
)


def test_bound_dimensions_reach_computed_shapes() -> None:
    _, types = types_of(SHAPE_ARITHMETIC, b=3)
    assert types["y"] == ValueType("float", (6, 4))
    assert types["x"] == ValueType("float", (3, 8))
    assert types["two"] == ValueType("int64", ())
    assert not types.partial


def test_measured_types_win() -> None:
    loaded = from_proto(SHAPE_ARITHMETIC)
    binding = bind_dimensions(loaded, {"b": 3})
    measured = {"y": ValueType("float16", (24,))}
    assert infer_types(loaded, binding, measured)["y"] == ValueType("float16", (24,))


def test_measured_types_are_a_start_for_inference() -> None:
    proto = model(
        [node("Custom", ["x"], ["a"], domain="org.example"), node("Neg", ["a"], ["y"])],
        domains=["org.example"],
    )
    loaded = from_proto(proto)
    binding = bind_dimensions(loaded, {})
    assert {"a", "y"}.isdisjoint(infer_types(loaded, binding))
    types = infer_types(loaded, binding, {"a": ValueType("float", (2, 2))})
    assert types["y"] == ValueType("float", (2, 2))


def test_the_file_knows_custom_ops() -> None:
    proto = model(
        [node("Custom", ["x"], ["a"], domain="org.example"), node("Neg", ["a"], ["y"])],
        inputs=[value("x", ["n"])],
        domains=["org.example"],
        stated=[value("a", ["n", 5])],
    )
    _, types = types_of(proto, n=3)
    assert types["y"] == ValueType("float", (3, 5))


def test_a_stale_statement_of_the_file_loses_against_inference() -> None:
    proto = model(
        [node("Relu", ["x"], ["a"]), node("Neg", ["a"], ["y"])],
        inputs=[value("x", ["n", 4])],
        outputs=[value("y", [1, 4])],
        stated=[value("a", [1, 4])],
    )
    _, types = types_of(proto, n=3)
    assert types["a"].shape == types["y"].shape == (3, 4)


def test_the_user_may_state_a_size_that_depends_on_data() -> None:
    proto = model(
        [node("NonZero", ["x"], ["y"])], outputs=[value("y", [1, "found"], TensorProto.INT64)]
    )
    _, types = types_of(proto)
    assert types.partial["y"] == (1, "found")
    assert types_of(proto, found=2)[1]["y"] == ValueType("int64", (1, 2))


@pytest.mark.parametrize(("opset", "dtype"), [(7, "float"), (10, "bool"), (17, "bool")])
def test_the_mask_of_dropout(opset: int, dtype: str) -> None:
    proto = model([node("Dropout", ["x"], ["y", "mask"])], opset=opset)
    assert types_of(proto)[1]["mask"] == ValueType(dtype, (4,))


def fused() -> ModelProto:
    """onnx knows no shape for Gelu of com.microsoft; onnxruntime's symbolic inference does."""
    return model(
        [
            node("Gelu", ["x"], ["a"], domain="com.microsoft"),
            node("Unknown", ["a"], ["b"], domain="org.example"),
            node("Neg", ["a"], ["y"]),
        ],
        outputs=["y", "b"],
        domains=["com.microsoft", "org.example"],
    )


def test_symbolic_inference_knows_fused_ops_and_is_silent(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _, types = types_of(fused())
    assert types["a"] == types["y"] == ValueType("float", (4,))
    assert "b" not in types
    assert capfd.readouterr() == ("", "")
    assert os.listdir(tmp_path) == []


def test_what_symbolic_inference_guesses_is_not_believed() -> None:
    """It takes axes that it cannot compute for "all sizes that are 1", and goes on from there."""
    proto = model(
        [
            node("Gelu", ["x"], ["a"], domain="com.microsoft"),
            node("Squeeze", ["a", "axis"], ["b"]),
            node("Neg", ["b"], ["y"]),
            node("Squeeze", ["a"], ["c"]),
            node("Squeeze", ["a", "first"], ["d"]),
        ],
        inputs=[value("x", [1, 1, 4]), value("axis", [1], TensorProto.INT64)],
        outputs=["y", "c", "d"],
        weights={"first": np.array([0])},
        domains=["com.microsoft"],
    )
    _, types = types_of(proto)
    assert (types["a"].shape, types["c"].shape, types["d"].shape) == ((1, 1, 4), (4,), (1, 4))
    assert {"b", "y"}.isdisjoint(types)


def test_a_node_that_symbolic_inference_fails_at_does_not_hide_those_before() -> None:
    proto = model(
        [
            node("Gelu", ["x"], ["a"], domain="com.microsoft"),
            node("ReduceSum", ["a", "axes"], ["y"], keepdims=0),
        ],
        inputs=[value("x", [2, 4]), value("axes", [1], TensorProto.INT64)],
        domains=["com.microsoft"],
    )
    _, types = types_of(proto)
    assert types["a"].shape == (2, 4)
    assert "y" not in types


def test_sequences_are_told_apart() -> None:
    proto = model(
        [
            node("SplitToSequence", ["x"], ["parts"], axis=0),
            node("ConcatFromSequence", ["parts"], ["y"], axis=0),
        ]
    )
    assert types_of(proto)[1].non_tensor == {"parts": "sequence"}


def test_all_forms_of_constants() -> None:
    nodes = [
        node("Constant", [], ["f"], value_float=1.0),
        node("Constant", [], ["fs"], value_floats=[1.0, 2.0]),
        node("Constant", [], ["i"], value_int=1),
        node("Constant", [], ["is"], value_ints=[2, 2]),
        node("Constant", [], ["s"], value_string="a"),
        node("Constant", [], ["ss"], value_strings=["a", "b"]),
        node("Constant", [], ["t"], value=helper.make_tensor("t", TensorProto.INT8, [3], [1] * 3)),
        node("Reshape", ["x", "is"], ["y"]),
    ]
    _, types = types_of(model(nodes))
    assert {name: types[name] for name in ("f", "fs", "i", "is", "s", "ss", "t", "y")} == {
        "f": ValueType("float", ()),
        "fs": ValueType("float", (2,)),
        "i": ValueType("int64", ()),
        "is": ValueType("int64", (2,)),
        "s": ValueType("string", ()),
        "ss": ValueType("string", (2,)),
        "t": ValueType("int8", (3,)),
        "y": ValueType("float", (2, 2)),
    }


def test_sparse_initializers_are_dense_in_memory() -> None:
    proto = model([node("MatMul", ["x", "w"], ["y"])])
    proto.graph.sparse_initializer.append(
        helper.make_sparse_tensor(
            helper.make_tensor("w", TensorProto.FLOAT, [1], [1.0]),
            helper.make_tensor("w_i", TensorProto.INT64, [1], [5]),
            [4, 6],
        )
    )
    _, types = types_of(proto)
    assert types["w"] == ValueType("float", (4, 6))
    assert types["y"] == ValueType("float", (6,))


def test_weights_in_constant_nodes_and_initializers_alike() -> None:
    """Large data is left out of what inference sees; shapes are the same."""
    big = np.zeros((64, 64), np.float32)
    constant = node(
        "Constant",
        [],
        ["v"],
        value=helper.make_tensor("v", TensorProto.FLOAT, [64, 64], big.tobytes(), raw=True),
    )
    proto = model(
        [constant, node("MatMul", ["x", "w"], ["a"]), node("MatMul", ["a", "v"], ["y"])],
        inputs=[value("x", [5, 64])],
        weights={"w": big},
    )
    before = proto.SerializeToString()
    assert types_of(proto)[1]["y"].shape == (5, 64)
    assert proto.SerializeToString() == before


def test_files_of_ir_version_3() -> None:
    proto = model(
        [node("Add", ["x", "w"], ["y"])],
        inputs=[value("x"), value("w")],
        weights={"w": np.ones(4, np.float32)},
        opset=9,
    )
    proto.ir_version = 3
    assert types_of(proto)[1]["y"].shape == (4,)
