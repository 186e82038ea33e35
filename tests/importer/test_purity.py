import pytest
from onnx import NodeProto, helper

from onnxremat.importer import is_recomputable
from onnxremat.importer.purity import NON_TENSOR_OPS, RANDOM_OPS

from .build import node, value

BODY = helper.make_graph([node("Neg", ["x"], ["z"])], "b", [], [value("z")])


@pytest.mark.parametrize(
    "pure",
    [
        node("Conv", ["x", "w"], ["y"]),
        node("BatchNormalization", ["x", "s", "b", "m", "v"], ["y"]),
        node("Softmax", ["x"], ["y"], domain="ai.onnx"),
        node("TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml"),
        node("FusedConv", ["x", "w"], ["y"], domain="com.microsoft"),
        node("Attention", ["x", "w"], ["y"], domain="com.microsoft"),
        node("ConvGrad", ["d", "x", "w"], ["y"], domain="com.microsoft"),
        node("Conv", ["x", "w"], ["y"], domain="com.microsoft.nchwc"),
        node("MaxPoolGrad", ["x"], ["y"]),
    ],
)
def test_known_pure_ops(pure: NodeProto) -> None:
    assert is_recomputable(pure)


@pytest.mark.parametrize(
    "op",
    [
        *(node(name, ["x"], ["y"]) for name in sorted(RANDOM_OPS | NON_TENSOR_OPS)),
        node("Dropout", ["x", "r", "t"], ["y"]),
        node("If", ["c"], ["y"], then_branch=BODY, else_branch=BODY),
        node("Mystery", ["x"], ["y"]),
        node("Relu", ["x"], ["y"], domain="org.example"),
        node("InPlaceAccumulatorV2", ["x"], ["y"], domain="com.microsoft"),
        node("BiasDropout", ["x"], ["y"], domain="com.microsoft"),
        node("Attention", ["x"], ["y"], domain="com.microsoft", past_present_share_buffer=1),
    ],
)
def test_what_must_run_once(op: NodeProto) -> None:
    assert not is_recomputable(op)


def test_the_user_may_vouch_for_an_op() -> None:
    custom = node("Mystery", ["x"], ["y"], domain="org.example")
    assert is_recomputable(custom, ["Mystery"])
    assert is_recomputable(custom, ["org.example::Mystery"])
    assert not is_recomputable(custom, ["other::Mystery"])


def test_but_not_for_subgraphs_and_sequences() -> None:
    branch = node("If", ["c"], ["y"], then_branch=BODY, else_branch=BODY)
    assert not is_recomputable(branch, ["If"])
    assert not is_recomputable(node("SequenceEmpty", [], ["y"]), ["SequenceEmpty"])
