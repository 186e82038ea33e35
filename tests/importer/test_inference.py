"""Inference comes to an end, whatever sizes a file states."""

import threading
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.importer import inference, symbolic
from onnxremat.importer.inference import MOST_PROPAGATED, infer_shapes

from .build import model, node, types_of, value


def test_values_that_would_be_long_are_not_computed() -> None:
    """onnx would write down 2^50 sizes."""
    fill = numpy_helper.from_array(np.array([4], np.int64))
    nodes = [
        node("ConstantOfShape", ["n"], ["long"], value=fill),
        node("Shape", ["x"], ["s"]),
        node("Relu", ["x"], ["y"]),
    ]
    made = model(nodes, outputs=["y"], weights={"n": np.array([2**50])})
    found = infer_shapes(made, data_prop=True)
    assert found is not None
    shapes = {
        v.name: [d.dim_value for d in v.type.tensor_type.shape.dim] for v in found.graph.value_info
    }
    assert shapes["long"] == [2**50]


@pytest.mark.parametrize(
    ("length", "computes"), [(MOST_PROPAGATED, True), (MOST_PROPAGATED + 1, False)]
)
def test_small_values_are_computed_unless_one_is_long(
    length: int, computes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    monkeypatch.setattr(
        inference, "_inferred", lambda m, *, data_prop: asked.append(data_prop) or m
    )
    infer_shapes(model([node("Relu", ["x"], ["y"])], [value("x", [length])]), data_prop=True)
    assert asked == [False, True][: 1 + computes]


def test_a_model_that_inference_does_not_take_is_none() -> None:
    made = model([node("MatMul", ["x", "x"], ["y"])], [value("x", [2, 3])])
    made.graph.input[0].type.tensor_type.shape.dim[0].dim_value = -5
    del made.opset_import[:]
    assert infer_shapes(made) is None


class Endless:
    """A tool that thinks for ever, and takes no notice of errors."""

    def __init__(self) -> None:
        self.run_ = True
        self.known_vi_: dict[str, Any] = {"a": value("a", [7])}
        self.ended = threading.Event()

    def _preprocess(self, copy: object) -> None:
        return

    def _infer_impl(self) -> None:
        try:
            while True:
                sum(range(1000))
        finally:
            self.ended.set()


def test_the_symbolic_tool_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    tool = Endless()
    attempt = symbolic._Attempt(tool, model([node("Relu", ["x"], ["y"])]))
    attempt.run(0.05)
    assert not attempt.finished
    assert tool.ended.wait(10)


def test_overflowing_sizes_end_as_errors_of_sizes() -> None:
    huge = [value("x", [2**31, 2**31, 2**31])]
    _, types = types_of(model([node("Relu", ["x"], ["y"])], huge))
    assert types["y"].nbytes == 4 * 2**93


def test_types_of_eight_and_less_bits_have_sizes() -> None:
    bits = {name: 8 for name in ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ")}
    bits |= {"FLOAT8E8M0": 8, "FLOAT4E2M1": 4, "INT4": 4, "UINT4": 4, "INT2": 2, "UINT2": 2}
    for name, count in bits.items():
        cast = helper.make_node("Cast", ["x"], ["q"], to=TensorProto.DataType.Value(name))
        made = model([cast, node("Cast", ["q"], ["y"], to=1)], [value("x", [3, 3])], opset=25)
        _, types = types_of(made)
        assert types["q"].nbytes == -(-9 * count // 8)
