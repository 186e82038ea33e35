"""Files of any content: refused in one line that names the place, in bounded time and memory."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnx import AttributeProto, ModelProto, TensorProto, helper

from onnxremat.core.errors import ModelError, OnnxrematError, UsageError
from onnxremat.importer import from_proto, load
from onnxremat.importer.calls import MOST_CALLS, MOST_NESTED

from .build import model, node, value


def refused(proto: ModelProto) -> str:
    """What is said of a model; one line."""
    with pytest.raises(ModelError) as raised:
        from_proto(proto)
    text = str(raised.value)
    assert text.isprintable()
    assert len(text) < 500
    return text


def with_names() -> ModelProto:
    """A model with a word of six capitals wherever a file may have a name."""
    body = helper.make_graph([node("Relu", ["x"], ["INNERV"])], "INNERG", [], [value("INNERV")])
    nodes = [
        node("OPTYPE", ["x"], ["VALUEN"], name="NODENA", domain="DOMAIN", ATTRIB=1),
        node("If", ["c"], ["y"], then_branch=body, else_branch=body),
    ]
    made = model(
        nodes,
        [value("x", ["DIMENS"]), value("c", [], TensorProto.BOOL)],
        stated=[value("VALUEN", ["SYMBOL"])],
        domains=["DOMAIN"],
    )
    made.graph.name = "GRAPHN"
    tensor = made.graph.initializer.add(name="TENSOR", dims=[1], data_type=TensorProto.FLOAT)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="FOLDER")
    tensor.external_data.add(key="KEYKEY", value="1")
    function = made.functions.add(name="FUNCTI", domain="OWNDOM")
    function.input.append("FINPUT")
    function.output.append("FOUTPU")
    function.attribute.append("FATTRI")
    function.node.append(node("Relu", ["FINPUT"], ["FOUTPU"], name="FNODEN"))
    return made


NAMES = [
    "OPTYPE",
    "VALUEN",
    "NODENA",
    "DOMAIN",
    "ATTRIB",
    "DIMENS",
    "SYMBOL",
    "GRAPHN",
    "TENSOR",
    "FOLDER",
    "KEYKEY",
]
NAMES += ["INNERV", "INNERG", "FUNCTI", "OWNDOM", "FINPUT", "FOUTPU", "FATTRI", "FNODEN"]


@pytest.mark.parametrize("word", NAMES)
def test_names_that_are_not_utf8(word: str) -> None:
    data = with_names().SerializeToString()
    assert word.encode() in data
    made = ModelProto.FromString(data.replace(word.encode(), b"\xff" + word[1:].encode()))
    said = refused(made)
    assert "not UTF-8" in said
    assert "xff" in said


def changed(change: Callable[[ModelProto], object], *nodes: onnx.NodeProto) -> ModelProto:
    made = model(nodes or [node("Softmax", ["x"], ["y"], axis=0)])
    made.graph.initializer.add(name="w", dims=[2], data_type=TensorProto.FLOAT, raw_data=bytes(8))
    change(made)
    return made


def input_type(kind: int) -> Callable[[ModelProto], object]:
    return lambda m: setattr(m.graph.input[0].type.tensor_type, "elem_type", kind)


def first_attribute(name: str, to: object) -> Callable[[ModelProto], object]:
    return lambda m: setattr(m.graph.node[0].attribute[0], name, to)


def external(key: str, text: str) -> Callable[[ModelProto], object]:
    def change(made: ModelProto) -> None:
        tensor = made.graph.initializer[0]
        tensor.data_location = TensorProto.EXTERNAL
        tensor.external_data.add(key="location", value="w.bin")
        tensor.external_data.add(key=key, value=text)

    return change


def branch(made: ModelProto) -> onnx.GraphProto:
    """The body of the first node that has nodes."""
    return next(a.g for a in made.graph.node[0].attribute if a.g.node)


BROKEN: dict[str, tuple[ModelProto, str]] = {
    "input type 99": (changed(input_type(99)), "'x' has element type 99, which does not exist"),
    "no input type": (changed(input_type(0)), "'x' has element type 0"),
    "tensor type 99": (
        changed(lambda m: setattr(m.graph.initializer[0], "data_type", 99)),
        "initializer 'w' has element type 99",
    ),
    "less data than the shape": (
        changed(lambda m: m.graph.initializer[0].dims.__setitem__(0, 2**31 - 1)),
        "initializer 'w' has shape [2147483647], but not the data of that",
    ),
    "bytes beside numbers": (
        changed(lambda m: setattr(m.graph.initializer[0], "raw_data", b"abc")),
        "but not the data of that",
    ),
    "no data": (
        changed(lambda m: m.graph.initializer[0].ClearField("raw_data")),
        "but not the data of that",
    ),
    "negative size": (changed(lambda m: m.graph.initializer[0].dims.append(-1)), "negative size"),
    "many dimensions": (
        changed(lambda m: m.graph.initializer[0].dims.extend([1] * 100)),
        "dimensions; values of at most 64 can be read",
    ),
    "offset": (changed(external("offset", "many")), "the offset of its external data is 'many'"),
    "negative offset": (changed(external("offset", "-8")), "'-8', no size"),
    "huge length": (changed(external("length", "9" * 40)), "the length of its external data"),
    "unicode digits": (changed(external("length", "²")), "no size"),
    "operator set 2^31": (
        changed(lambda m: setattr(m.opset_import[0], "version", 2**31)),
        "operator set '' has version 2147483648",
    ),
    "operator set of a function 2^40": (
        changed(lambda m: m.functions.add(name="f", domain="f").opset_import.add(version=2**40)),
        "operator set '' has version 1099511627776",
    ),
    "operator set -1": (
        changed(lambda m: setattr(m.opset_import[0], "version", -1)),
        "has version -1",
    ),
    "reference": (
        changed(first_attribute("ref_attr_name", "other")),
        "'axis' of node 0 (Softmax) refers to 'other' of a function, but is in none",
    ),
    "no attribute type": (
        changed(first_attribute("type", AttributeProto.UNDEFINED)),
        "attribute 'axis' of node 0 (Softmax) has no type",
    ),
    "other attribute type": (
        changed(first_attribute("type", AttributeProto.STRING)),
        "attribute 'axis' of node 0 (Softmax) is of type STRING, not INT",
    ),
    "no attribute": (
        changed(lambda m: None, node("Concat", ["x"], ["y"])),
        "node 0 (Concat) lacks its attribute 'axis'",
    ),
    "no output": (changed(lambda m: None, node("Own", ["x"], [], domain="own")), "makes no value"),
    "reference in a body": (
        changed(
            lambda m: setattr(branch(m).node[0].attribute[0], "ref_attr_name", "other"),
            node(
                "If",
                ["w"],
                ["y"],
                then_branch=helper.make_graph(
                    [node("Softmax", ["x"], ["t"], axis=0)], "t", [], [value("t")]
                ),
                else_branch=helper.make_graph([], "e", [], [value("x")]),
            ),
        ),
        "refers to 'other' of a function",
    ),
}


@pytest.mark.parametrize("case", BROKEN)
def test_what_does_not_exist_is_named(case: str) -> None:
    made, said = BROKEN[case]
    assert said in refused(made)


def calling(*bodies: list[str]) -> ModelProto:
    """Functions f0, f1 ...: each body lists what it calls, one after the other; the graph calls
    f0."""
    made = model([node("f0", ["x"], ["y"], domain="own")], domains=["own"])
    for number, body in enumerate(bodies):
        names = ["a", *(f"v{i}" for i in range(1, len(body))), "b"]
        nodes = [
            node(op, [names[i]], [names[i + 1]], domain="own" if op.startswith("f") else "")
            for i, op in enumerate(body)
        ]
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
        made.functions.append(
            helper.make_function("own", f"f{number}", ["a"], ["b"], nodes, opsets)
        )
    return made


def test_functions_that_do_not_end_or_grow_too_large() -> None:
    assert "its function 'f0' calls itself" in refused(calling(["f0"]))
    assert "calls itself" in refused(calling(["Relu", "f1"], ["f2"], ["f0"]))
    assert "expand into over 10^18 nodes" in refused(
        calling(*([f"f{i + 1}"] * 10 for i in range(60)), ["Relu"])
    )
    assert "expand into 10,000,000 nodes" in refused(
        calling(*([f"f{i + 1}"] * 10 for i in range(7)), ["Relu"])
    )
    deep = calling(*([f"f{i + 1}"] for i in range(MOST_CALLS)), ["Relu"])
    assert f"more than {MOST_CALLS} deep" in refused(deep)
    loaded = from_proto(calling(["f1", "f1", "Neg"], ["Relu", "Exp"]))
    assert [n.op_type for n in loaded.model.graph.node] == ["Relu", "Exp", "Relu", "Exp", "Neg"]


def nested(depth: int) -> ModelProto:
    """An If in an If in an If ..."""
    made = model([node("If", ["c"], ["y"])], [value("x"), value("c", [], TensorProto.BOOL)])
    inner = made.graph.node[0]
    for level in range(depth):
        bodies = []
        for name in ("then_branch", "else_branch"):
            attribute = inner.attribute.add(name=name, type=AttributeProto.GRAPH)
            attribute.g.name = name
            attribute.g.output.append(value("y"))
            bodies.append(attribute.g)
        bodies[1].node.append(node("Neg", ["x"], ["y"]))
        last = level == depth - 1
        bodies[0].node.append(node("Relu", ["x"], ["y"]) if last else node("If", ["c"], ["y"]))
        inner = bodies[0].node[0]
    return made


def test_bodies_are_nested_as_deep_as_a_file_can_hold_them(tmp_path: Path) -> None:
    path = tmp_path / "nested.onnx"
    path.write_bytes(nested(30).SerializeToString())
    assert load(path).model == nested(30)
    path.write_bytes(nested(MOST_NESTED + 2).SerializeToString())
    with pytest.raises(ModelError, match="not an ONNX model"):
        load(path)
    assert "nested more than" in refused(nested(MOST_NESTED + 1))


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other pipes and devices")
def test_what_may_never_end_is_not_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(UsageError, match="is no regular file"):
            load(path)


def test_files_larger_than_any_model_are_not_read(tmp_path: Path) -> None:
    path = tmp_path / "large.onnx"
    with path.open("wb") as file:
        file.truncate(2**31)
    with pytest.raises(ModelError, match=r"has 2\.1 GB, and a model takes 2 GB"):
        load(path)


@pytest.mark.parametrize("name", ["a" * 6000, "a\0b"])
def test_paths_that_the_system_does_not_take(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="cannot read"):
        load(tmp_path / name)
    made = changed(lambda m: None)
    made.graph.initializer[0].data_location = TensorProto.EXTERNAL
    made.graph.initializer[0].external_data.add(key="location", value=name)
    with pytest.raises(OnnxrematError) as raised:
        from_proto(made, tmp_path)
    assert raised.value.exit_code == ModelError.exit_code
    assert len(str(raised.value)) < 500
