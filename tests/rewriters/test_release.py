"""`release`: what is repaired, what stays, and what nobody may touch."""

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxremat.importer.nodes import captured
from onnxremat_rewriters.naming import rename_reads
from onnxremat_rewriters.release import release


def value(name: str, shape: tuple[int, ...] = (1, 1, 4, 4)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model_of(nodes: list[onnx.NodeProto], outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "g", [value("x")], outputs)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def test_dead_nodes_go_and_what_only_they_read_goes_too() -> None:
    model = model_of(
        [
            helper.make_node("Relu", ["x"], ["a"], "a"),
            helper.make_node("Exp", ["a"], ["b"], "b"),
            helper.make_node("Neg", ["b"], ["c"], "c"),
            helper.make_node("Abs", ["a"], ["y"], "y"),
        ],
        [value("y")],
    )
    before = model.SerializeToString()
    result = release(model)
    assert [node.name for node in result.model.graph.node] == ["a", "y"]
    assert (result.dropped_nodes, result.origin) == (2, (0, 3))
    assert result.changed
    assert model.SerializeToString() == before


def test_unread_optional_outputs_go() -> None:
    pool = helper.make_node("MaxPool", ["x"], ["p", "indices"], "pool", kernel_shape=[2, 2])
    result = release(model_of([pool], [value("p", (1, 1, 3, 3))]))
    assert list(result.model.graph.node[0].output) == ["p"]
    assert result.dropped_outputs == 1


def test_unread_mandatory_outputs_get_a_size_reader() -> None:
    split = helper.make_node("Split", ["x"], ["s0", "s1"], "split", axis=2)
    result = release(model_of([split], [value("s1", (1, 1, 2, 4))]))
    assert [node.op_type for node in result.model.graph.node] == ["Split", "Size"]
    assert list(result.model.graph.node[1].input) == ["s0"]
    assert (result.size_readers, result.origin) == (1, (0, None))
    onnx.checker.check_model(result.model, full_check=True)
    again = release(result.model)
    assert not again.changed
    assert again.model == result.model


def test_a_value_kept_apart_from_its_only_reader_has_a_size_reader_too() -> None:
    model = model_of(
        [
            helper.make_node("Relu", ["x"], ["a"], "a"),
            helper.make_node("Neg", ["a"], ["gone"], "gone"),
            helper.make_node("Abs", ["a"], ["y"], "y"),
        ],
        [value("y")],
    )
    result = release(model, ["a", "gone"])
    assert [node.op_type for node in result.model.graph.node] == ["Relu", "Size", "Abs"]
    assert (result.size_readers, result.origin) == (1, (0, None, 2))
    assert not release(result.model).changed


def test_a_value_that_a_branch_captures_is_read() -> None:
    def branch(name: str) -> onnx.GraphProto:
        inner = helper.make_node("Neg", ["a"], [name])
        return helper.make_graph([inner], name, [], [value(name)])

    nodes = [
        helper.make_node("Relu", ["x"], ["a"], "a"),
        helper.make_node("Constant", [], ["c"], "c", value=numpy_helper.from_array(np.array(True))),
        helper.make_node(
            "If", ["c"], ["y"], "if", then_branch=branch("t"), else_branch=branch("e")
        ),
    ]
    result = release(model_of(nodes, [value("y")]))
    assert not result.changed
    assert captured(nodes[2]) == ("a",)
    rename_reads(nodes[2], {"a": "a2", "t": "never"})
    assert captured(nodes[2]) == ("a2",)
    assert nodes[2].attribute[0].g.output[0].name in {"t", "e"}


def test_nothing_but_nodes_changes() -> None:
    model = model_of(
        [helper.make_node("Split", ["x"], ["s0", "s1"], axis=2)], [value("s1", (1, 1, 2, 4))]
    )
    model.doc_string = "kept"
    model.metadata_props.add(key="k", value="v")
    model.graph.initializer.append(numpy_helper.from_array(np.ones(3, "f"), "unreferenced"))
    model.graph.quantization_annotation.add(tensor_name="s1")
    result = release(model)
    changed = onnx.ModelProto()
    changed.CopyFrom(result.model)
    del changed.graph.node[:]
    original = onnx.ModelProto()
    original.CopyFrom(model)
    del original.graph.node[:]
    assert changed == original
