"""Functions are expanded into what ONNX Runtime makes of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import AttributeProto, FunctionProto, NodeProto, TensorProto, helper, numpy_helper

from onnxremat.core.errors import ModelError
from onnxremat.importer.functions import with_functions_expanded

LEVELS = [ort.GraphOptimizationLevel.ORT_DISABLE_ALL, ort.GraphOptimizationLevel.ORT_ENABLE_ALL]


def call(name: str, read: str, made: str, **given: Any) -> NodeProto:
    return helper.make_node(name, [read], [made], domain=given.pop("domain", "my"), **given)


def refers(node: NodeProto, name: str, to: str, kind: int = AttributeProto.FLOAT) -> NodeProto:
    """The node, an attribute of it being one of the function that it is in."""
    node.attribute.append(AttributeProto(name=name, ref_attr_name=to, type=kind))  # type: ignore[arg-type]
    return node


def function(
    name: str,
    nodes: Sequence[NodeProto],
    *,
    opset: int = 17,
    domain: str = "my",
    names: Sequence[str] = (),
    overload: str = "",
    **defaults: Any,
) -> FunctionProto:
    """From `a` to `b`; `names` of attributes without a default."""
    made = helper.make_function(
        domain, name, ["a"], ["b"], nodes, [helper.make_opsetid("", opset), helper.make_opsetid("my", 1)],
        attributes=list(names),
        attribute_protos=[helper.make_attribute(key, value) for key, value in defaults.items()],
    )  # fmt: skip
    made.overload = overload
    return made


def model(
    nodes: Sequence[NodeProto],
    functions: Sequence[FunctionProto],
    opset: int = 17,
    versions: Mapping[str, int] | None = None,
) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, 8]) for n in "xy")
    versions = versions or {"my": 1}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(*v) for v in versions.items())]
    graph = helper.make_graph(nodes, "g", [x], [y])
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=10)


GATE = function(
    "Gate", [refers(helper.make_node("ThresholdedRelu", ["a"], ["b"]), "alpha", "t")], t=6.0
)
LEAKY = function(
    "Leaky", [refers(helper.make_node("LeakyRelu", ["a"], ["b"]), "alpha", "t")], t=0.3
)
ROWS = function(
    "Rows",
    [refers(helper.make_node("Softmax", ["a"], ["b"]), "axis", "at", AttributeProto.INT)],
    at=0,
)
PLAIN = function(
    "Plain", [refers(helper.make_node("LeakyRelu", ["a"], ["b"]), "alpha", "t")], names=["t"]
)
HANDS_ON = function("Outer", [refers(call("Gate", "a", "b"), "t", "u")], names=["u"])
HANDS_ON_OWN = function("Outer", [refers(call("Gate", "a", "b"), "t", "u")], u=2.0)
CALLS = function("Outer", [call("Gate", "a", "b")])
EXP = function("Exp2", [helper.make_node("Exp", ["a"], ["b"])], opset=16)


def in_branch() -> onnx.ModelProto:
    """The call stands in a branch of an If."""
    y = helper.make_tensor_value_info("inner", TensorProto.FLOAT, [4, 8])
    branches = [
        helper.make_graph([node], name, [], [y])
        for name, node in (("then", call("Gate", "x", "inner")), ("else", helper.make_node("Neg", ["x"], ["inner"])))
    ]  # fmt: skip
    yes = numpy_helper.from_array(np.asarray(True), "yes")
    made = model(
        [helper.make_node("If", ["yes"], ["y"], then_branch=branches[0], else_branch=branches[1])],
        [GATE],
    )
    made.graph.initializer.append(yes)
    return made


CASES: Mapping[str, onnx.ModelProto] = {
    "a default": model([call("Gate", "x", "y")], [GATE]),
    "a default of a small effect": model([call("Leaky", "x", "y")], [LEAKY]),
    "a default that is no number of the operator": model([call("Rows", "x", "y")], [ROWS]),
    "given": model([call("Gate", "x", "y", t=1.5)], [GATE]),
    "no default": model([call("Plain", "x", "y")], [PLAIN]),
    "in a function": model([call("Outer", "x", "y")], [CALLS, GATE]),
    "handed on, given": model([call("Outer", "x", "y", u=3.0)], [GATE, HANDS_ON]),
    "handed on, not given": model([call("Outer", "x", "y")], [GATE, HANDS_ON]),
    "handed on, a default": model([call("Outer", "x", "y")], [HANDS_ON_OWN, GATE]),
    "in a body": in_branch(),
    "twice": model([call("Gate", "x", "m"), call("Gate", "m", "y", t=9.0)], [GATE]),
    "an older operator set": model([call("Exp2", "x", "y")], [EXP]),
    "nobody calls it": model([helper.make_node("Neg", ["x"], ["y"])], [GATE, function(
        "Old", [helper.make_node("Softmax", ["a"], ["b"])], opset=12
    )]),
    "overloads": model(
        [call("F", "x", "m", overload="p"), call("F", "m", "y", overload="q")],
        [function("F", [refers(helper.make_node("LeakyRelu", ["a"], ["b"]), "alpha", "t")], t=v, overload=o)
         for o, v in (("p", 0.2), ("q", 0.7))],
    ),
    "a domain that begins like the standard one": model(
        [call("Foo", "x", "y", domain="ai.onnx.contrib")],
        [function("Foo", [helper.make_node("Exp", ["a"], ["b"])], domain="ai.onnx.contrib")],
        versions={"ai.onnx.contrib": 1},
    ),
    "a domain that begins like the runtime's": model(
        [call("Foo", "x", "y", domain="com.microsoftware")],
        [function("Foo", [helper.make_node("Exp", ["a"], ["b"])], domain="com.microsoftware")],
        versions={"com.microsoftware": 1},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_expanded_they_compute_what_they_did(case: str) -> None:
    """Of values that are large enough for every threshold."""
    whole = CASES[case]
    before = whole.SerializeToString()
    expanded = with_functions_expanded(whole)
    assert whole.SerializeToString() == before
    assert not expanded.functions
    x = 8 * np.random.default_rng(0).standard_normal((4, 8)).astype(np.float32)
    for level in LEVELS:
        options = ort.SessionOptions()
        options.graph_optimization_level = level
        made = [
            ort.InferenceSession(
                one.SerializeToString(), options, providers=["CPUExecutionProvider"]
            ).run(None, {"x": x})[0]
            for one in (whole, expanded)
        ]
        assert made[0].tobytes() == made[1].tobytes()


def test_an_operator_that_another_operator_set_has_otherwise_is_refused() -> None:
    old = function("Old", [helper.make_node("Softmax", ["a"], ["b"])], opset=12)
    with pytest.raises(
        ModelError, match="'Old' has Softmax of operator set 12, in a model of operator set 17"
    ):
        with_functions_expanded(model([call("Old", "x", "y")], [old]))


@pytest.mark.parametrize(
    ("domain", "name"), [("com.microsoft.nchwc", "Foo"), ("ai.onnx.preview.training", "Adam")]
)
def test_what_may_be_an_operator_of_the_runtime_is_refused(domain: str, name: str) -> None:
    one = function(name, [helper.make_node("Exp", ["a"], ["b"])], domain=domain)
    with pytest.raises(ModelError, match="may have an operator of that name"):
        with_functions_expanded(model([call(name, "x", "y", domain=domain)], [one]))


def test_overloads_that_call_each_other_are_not_mixed_up() -> None:
    outer = function(
        "F", [refers(call("F", "a", "b", overload="q"), "t", "t")], names=["t"], overload="p"
    )
    inner = function(
        "F",
        [refers(helper.make_node("LeakyRelu", ["a"], ["b"]), "alpha", "t")],
        t=0.7,
        overload="q",
    )
    with pytest.raises(ModelError, match="an overload of its function 'F' calls another one"):
        with_functions_expanded(model([call("F", "x", "y", overload="p")], [outer, inner]))
