"""`graft`: only what differs is taken from the graph that a runtime wrote down."""

from collections.abc import Callable

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxremat_rewriters.graft import INSERTED_CAST, graft, labelled
from tests.ort.build import BOOL, FLOAT, model, node, value

HALF = TensorProto.FLOAT16


def chain() -> onnx.ModelProto:
    """A function of two nodes between two others, with a constant node in front."""
    nodes = [
        node("Constant", [], ["k"], value_float=2.0),
        node("Mul", ["x", "k"], ["a"]),
        node("Mish", ["a"], ["b"]),
        node("Neg", ["b"], ["y"]),
    ]
    for name, one in zip(("k", "times", "act", "last"), nodes, strict=True):
        one.name = name
    nodes[1].doc_string = "kept"
    return model(nodes, [value("x", FLOAT, [4])], [value("y", FLOAT, [4])])


def written(asked: onnx.ModelProto, change: Callable[[onnx.GraphProto], None]) -> onnx.ModelProto:
    """What a runtime might write: constants are weights, documentation is lost, order is another."""
    made = onnx.ModelProto()
    made.CopyFrom(asked)
    graph = made.graph
    for one in [n for n in graph.node if n.op_type == "Constant"]:
        data = numpy_helper.from_array(np.float32(one.attribute[0].f), one.output[0])
        graph.initializer.append(data)
        graph.node.remove(one)
    for one in graph.node:
        one.doc_string = ""
    change(graph)
    made.opset_import.append(helper.make_opsetid("com.microsoft.experimental", 1))
    return made


def grafted(
    original: onnx.ModelProto, change: Callable[[onnx.GraphProto], None]
) -> tuple[onnx.ModelProto, tuple[int | None, ...]]:
    asked = labelled(original)
    result = graft(original, asked, written(asked, change))
    assert result.changed == (result.model is not original)
    return result.model, result.origin


def test_a_graph_that_is_the_same_is_the_argument_itself() -> None:
    original = chain()

    def another_order(graph: onnx.GraphProto) -> None:
        nodes = [onnx.NodeProto.FromString(n.SerializeToString()) for n in graph.node]
        del graph.node[:]
        graph.node.extend(reversed(nodes))

    model_of, origin = grafted(original, another_order)
    assert model_of is original
    assert origin == (0, 1, 2, 3)


def test_a_function_stands_where_its_node_stood() -> None:
    def expand(graph: onnx.GraphProto) -> None:
        mish = next(n for n in graph.node if n.op_type == "Mish")
        graph.node.remove(mish)
        parts = [node("Softplus", ["a"], ["f_s"]), node("Tanh", ["f_s"], ["f_t"])]
        parts.append(node("Mul", ["a", "f_t"], ["b"]))
        parts.append(node("Add", ["f_t", "f_c"], ["f_unread"]))
        graph.node.extend(parts)
        graph.initializer.append(numpy_helper.from_array(np.float32(1), "f_c"))
        graph.initializer.append(numpy_helper.from_array(np.float32(1), "f_unused"))

    original = chain()
    made, origin = grafted(original, expand)
    kinds = [n.op_type for n in made.graph.node]
    assert kinds[:5] == ["Constant", "Mul", "Softplus", "Tanh", "Mul"]
    assert sorted(kinds[5:]) == ["Add", "Neg"]
    assert origin[:5] == (0, 1, 2, 2, 2) and origin[kinds.index("Add")] is None
    assert [n.name for n in made.graph.node[1:5]] == [
        "times",
        "act/Softplus",
        "act/Tanh",
        "act/Mul",
    ]
    assert made.graph.node[1] == original.graph.node[1]
    assert [t.name for t in made.graph.initializer] == ["f_c"]
    assert made.opset_import == original.opset_import


def test_a_node_that_reads_something_else_keeps_the_rest() -> None:
    def bypass(graph: onnx.GraphProto) -> None:
        graph.node.remove(next(n for n in graph.node if n.op_type == "Mish"))
        next(n for n in graph.node if n.op_type == "Neg").input[0] = "a"

    original = chain()
    original.graph.node[3].doc_string = "of the last"
    original.graph.value_info.extend(value(name, FLOAT, [4]) for name in ("a", "b"))
    made, origin = grafted(original, bypass)
    assert [n.name for n in made.graph.node] == ["k", "times", "last"]
    assert origin == (0, 1, 3)
    last = made.graph.node[2]
    assert (list(last.input), last.doc_string) == (["a"], "of the last")
    assert [v.name for v in made.graph.value_info] == ["a"], "b is made by nobody now"


def test_a_cast_that_several_read_stands_before_the_first() -> None:
    def insert(graph: onnx.GraphProto) -> None:
        cast = node("Cast", ["x"], [f"{INSERTED_CAST}x"], to=FLOAT)
        cast.name = f"{INSERTED_CAST}x"
        for one in graph.node:
            if one.op_type in ("Mul", "Mish"):
                one.input[0] = cast.output[0]
        graph.node.insert(0, cast)

    made, origin = grafted(chain(), insert)
    assert [n.op_type for n in made.graph.node] == ["Constant", "Cast", "Mul", "Mish", "Neg"]
    assert made.graph.node[1].name == "times/Cast"
    assert origin == (0, 1, 1, 2, 3)


def test_names_of_inserted_casts_are_not_kept() -> None:
    """The runtime takes a Cast of such a name away where it keeps others."""
    original = chain()
    original.graph.node[1].name = f"{INSERTED_CAST}last"
    assert labelled(original).graph.node[1].name.startswith(INSERTED_CAST)
    made, _ = grafted(original, lambda graph: None)
    assert made.graph.node[1].name == "last_2"


def test_bodies_are_grafted_and_types_of_their_values_too() -> None:
    inner = [node("Abs", ["x"], ["h"]), node("Mish", ["h"], ["r"])]
    branch = helper.make_graph(
        inner, "b", [], [value("r", HALF, [4])], value_info=[value("h", HALF, [4])]
    )
    choice = node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    choice.name = "choice"
    original = model(
        [choice], [value("x", HALF, [4]), value("c", BOOL, [])], [value("y", HALF, [4])]
    )

    def change(graph: onnx.GraphProto) -> None:
        body = graph.node[0].attribute[0].g
        body.node[1].op_type = "Tanh"
        body.node[1].name = ""
        body.value_info[0].type.tensor_type.elem_type = FLOAT

    made, origin = grafted(original, change)
    first, second = (a.g for a in made.graph.node[0].attribute)
    assert [n.op_type for n in first.node] == ["Abs", "Tanh"]
    assert first.value_info[0].type.tensor_type.elem_type == FLOAT
    assert second == original.graph.node[0].attribute[1].g
    assert (made.graph.node[0].name, origin) == ("choice", (0,))


def test_large_weights_are_inputs_for_the_runtime_and_nothing_for_the_result() -> None:
    original = chain()
    big = numpy_helper.from_array(np.zeros(2**17, np.float32), "big")
    original.graph.initializer.extend([big, numpy_helper.from_array(np.float32(1), "small")])
    asked = labelled(original)
    assert [t.name for t in asked.graph.initializer] == ["small"]
    assert [v.name for v in asked.graph.input] == ["x", "big"]
    assert len(asked.SerializeToString()) < 2000
    names = [n.name for n in asked.graph.node]
    assert len(set(names)) == len(names) == 4
    made, _ = grafted(
        original, lambda graph: graph.node.add(op_type="Relu", output=["u"], input=["x"])
    )
    assert list(made.graph.initializer) == list(original.graph.initializer)
    assert list(made.graph.input) == list(original.graph.input)
