"""Sizes that a file holds for take the place of open dimensions."""

import onnx
from onnx import helper

from onnxremat.importer import ValueType, bind_dimensions, declare_sizes, from_proto, open_inputs

from .build import model, node, value


def dims(values: object) -> dict[str, list[int | str | None]]:
    return {
        one.name: [d.dim_value if d.HasField("dim_value") else d.dim_param or None
                   for d in one.type.tensor_type.shape.dim]
        for one in values  # type: ignore[attr-defined]
    }  # fmt: skip


def test_inputs_are_fixed_and_what_is_stated_agrees() -> None:
    """An output that says the size of the input, but is twice as large, is left open; so is one
    that depends on the data."""
    proto = model(
        [node("Upsampled", ["x"], ["y"], domain="d"), node("NonZero", ["x"], ["z"])],
        inputs=[value("x", ["n", None, 3]), value("w", ["m"])],
        outputs=[value("y", ["n", "h"]), value("z", [2, "found"])],
        stated=[value("a", ["n", "m"]), value("unknown", ["n"])],
        domains=["d"],
    )
    proto.graph.initializer.append(helper.make_tensor("w", onnx.TensorProto.FLOAT, [4], [0.0] * 4))
    before = proto.SerializeToString()
    binding = bind_dimensions(from_proto(proto), {"n": 0, "x:1": 5, "m": 4, "h": 7})
    types = {
        "y": ValueType("float", (2, 7)),
        "z": ValueType("int64", (2, 9)),
        "a": ValueType("float", (0, 4)),
    }
    made = declare_sizes(proto, binding, types).graph
    assert dims(made.input) == {"x": [0, 5, 3], "w": ["m"]}
    assert dims(made.output) == {"y": [None, 7], "z": [2, "found"]}
    assert dims(made.value_info) == {"a": [0, 4], "unknown": ["n"]}
    assert proto.SerializeToString() == before
    assert open_inputs(proto) == {"x": (None, None, 3)}
    assert open_inputs(declare_sizes(proto, binding, types)) == {}
