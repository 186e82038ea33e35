"""`recompute`: the file says what the schedule says, and nothing but nodes changes."""

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper, numpy_helper

from onnxremat.core.schedule import Schedule, ScheduleError, given_order
from onnxremat.importer import ImportedModel, bind_dimensions, from_proto, import_model, infer_types
from onnxremat_rewriters.recompute import MARK, Rewritten, apply_schedule
from tests.graphs import schedules


def imported(model: onnx.ModelProto) -> ImportedModel:
    loaded = from_proto(model)
    return import_model(loaded, infer_types(loaded, bind_dimensions(loaded, {})))


def value(name: str, shape: tuple[int, ...] = (2, 3)) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def model_of(nodes: list[onnx.NodeProto], outputs: list[onnx.ValueInfoProto]) -> onnx.ModelProto:
    weights = [
        numpy_helper.from_array(np.array([3, 2], np.int64), "shape"),
        numpy_helper.from_array(np.full((2, 3), 0.5, "f"), "w"),
    ]
    graph = helper.make_graph(nodes, "g", [value("x")], outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def run(model: onnx.ModelProto, x: np.ndarray) -> list[bytes]:
    options = ort.SessionOptions()
    options.log_severity_level = 3
    session = ort.InferenceSession(model.SerializeToString(), options)
    return [out.tobytes() for out in session.run(None, {"x": x})]


def node(op: str, reads: list[str], makes: str) -> onnx.NodeProto:
    return helper.make_node(op, reads, [makes], makes)


VIEWED = model_of(
    [
        node("Exp", ["x"], "a"),
        node("Reshape", ["a", "shape"], "v"),
        node("Neg", ["v"], "b"),
        node("Abs", ["v"], "c"),
        node("Add", ["b", "c"], "d"),
        node("Mul", ["v", "d"], "y"),
    ],
    [value("y", (3, 2)), value("a")],
)


def test_a_copy_is_named_marked_and_read_by_who_comes_later() -> None:
    graph = imported(VIEWED).graph
    names = [op.name for op in graph.ops]
    assert names == ["a", "b", "c", "d", "y"]
    result = apply_schedule(imported(VIEWED), Schedule((0, 1, 2, 3, 0, 4)))
    nodes = {n.name: n for n in result.model.graph.node}
    copy = nodes["a__recompute1"]
    assert [a.i for a in copy.attribute if a.name == MARK] == [1]
    # The graph output `a` keeps its name on the last instance; the first goes by another.
    assert list(copy.output) == ["a"]
    assert list(nodes["a"].output) == ["a__early0"]
    assert list(nodes["v"].input) == ["a__early0", "shape"]
    assert list(nodes["v__view1"].input) == ["a", "shape"]
    assert list(nodes["y"].input) == ["v__view1", "d"]
    assert result.recomputed == 1
    assert [VIEWED.graph.node[i].name for i in result.origin] == [
        "a",
        "v",
        "b",
        "c",
        "d",
        "a",
        "v",
        "y",
    ]
    x = np.random.default_rng(0).standard_normal((2, 3)).astype("f")
    assert run(result.model, x) == run(VIEWED, x)
    onnx.checker.check_model(result.model, full_check=True)


def test_what_is_no_schedule_is_refused() -> None:
    with pytest.raises(ScheduleError, match="before it is made"):
        apply_schedule(imported(VIEWED), Schedule((1, 0, 2, 3, 4)))


def everything_else(model: onnx.ModelProto) -> onnx.ModelProto:
    rest = onnx.ModelProto()
    rest.CopyFrom(model)
    del rest.graph.node[:]
    return rest


def test_nothing_but_nodes_and_marks_changes() -> None:
    model = onnx.ModelProto()
    model.CopyFrom(VIEWED)
    model.doc_string = "kept"
    model.metadata_props.add(key="k", value="v")
    model.graph.value_info.append(value("a"))
    model.graph.quantization_annotation.add(tensor_name="a")
    unread = numpy_helper.from_array(np.ones(3, "f"), "unread")
    unread.data_location = TensorProto.EXTERNAL
    unread.external_data.add(key="location", value="nowhere.bin")
    before = model.SerializeToString()
    source = imported(model)
    result = apply_schedule(source, Schedule((0, 1, 2, 0, 3, 4)))
    assert model.SerializeToString() == before
    assert everything_else(result.model) == everything_else(model)
    for made, origin in zip(result.model.graph.node, result.origin, strict=True):
        old = model.graph.node[origin]
        assert made.op_type == old.op_type
        assert [a for a in made.attribute if a.name != MARK] == list(old.attribute)
        assert len(made.input) == len(old.input)


def test_the_given_order_of_a_model_without_dead_views_is_the_model() -> None:
    source = imported(VIEWED)
    assert apply_schedule(source, given_order(source.graph)).model == VIEWED


def test_names_already_taken_are_not_given_again() -> None:
    model = model_of(
        [node("Exp", ["x"], "a"), node("Neg", ["a"], "a__recompute1"), node("Add", ["a", "a__recompute1"], "y")],
        [value("y")],
    )  # fmt: skip
    result = apply_schedule(imported(model), Schedule((0, 1, 0, 2)))
    made = [name for n in result.model.graph.node for name in n.output]
    assert len(made) == len(set(made))
    x = np.ones((2, 3), "f")
    assert run(result.model, x) == run(model, x)


def test_a_branch_reads_the_instance_that_is_current_where_it_stands() -> None:
    def branch(name: str) -> onnx.GraphProto:
        return helper.make_graph([node("Neg", ["a"], name)], name, [], [value(name)])

    condition = numpy_helper.from_array(np.array(True))
    model = model_of(
        [
            node("Exp", ["x"], "a"),
            helper.make_node("Constant", [], ["c"], "c", value=condition),
            node("Abs", ["a"], "b"),
            helper.make_node(
                "If", ["c"], ["d"], "d", then_branch=branch("t"), else_branch=branch("e")
            ),
            node("Add", ["b", "d"], "y"),
        ],
        [value("y")],
    )
    source = imported(model)
    result = apply_schedule(source, Schedule((0, 1, 0, 2, 3)))
    (conditional,) = (n for n in result.model.graph.node if n.op_type == "If")
    bodies = [a.g for a in conditional.attribute]
    assert [body.node[0].input[0] for body in bodies] == ["a__recompute1"] * 2
    x = np.linspace(-1, 1, 6, dtype="f").reshape(2, 3)
    assert run(result.model, x) == run(model, x)


@st.composite
def random_models(draw: st.DrawFn) -> onnx.ModelProto:
    """Random elementwise models with views of views, several outputs and repeated reads."""
    names, nodes = ["x", "w"], []
    for i in range(draw(st.integers(2, 9))):
        kind = draw(st.sampled_from(["Exp", "Neg", "Add", "Mul", "Identity", "Reshape2", "Split"]))
        reads = [draw(st.sampled_from(names)) for _ in range(2)]
        if kind in {"Add", "Mul"}:
            nodes.append(helper.make_node(kind, reads, [f"v{i}"], f"n{i}"))
        elif kind == "Reshape2":
            nodes.append(helper.make_node("Reshape", [reads[0], "shape"], [f"r{i}"], f"r{i}"))
            nodes.append(helper.make_node("Reshape", [f"r{i}", "back"], [f"v{i}"], f"n{i}"))
        elif kind == "Split":
            nodes.append(helper.make_node("Split", reads[:1], [f"s{i}", f"u{i}"], f"s{i}", axis=0))
            nodes.append(helper.make_node("Concat", [f"u{i}", f"s{i}"], [f"v{i}"], f"n{i}", axis=0))
        else:
            nodes.append(helper.make_node(kind, reads[:1], [f"v{i}"], f"n{i}"))
        names.append(f"v{i}")
    made = [n for n in names if n.startswith("v")]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=2, unique=True))
    model = model_of(nodes, [value(name) for name in outputs])
    model.graph.initializer.append(numpy_helper.from_array(np.array([2, 3], np.int64), "back"))
    return model


def rewritten(data: st.DataObject) -> tuple[onnx.ModelProto, Rewritten]:
    model = data.draw(random_models())
    source = imported(model)
    return model, apply_schedule(source, data.draw(schedules(source.graph)))


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_any_schedule_of_any_model_gives_the_same_bits(data: st.DataObject) -> None:
    model, result = rewritten(data)
    onnx.checker.check_model(result.model, full_check=True)
    x = np.random.default_rng(1).standard_normal((2, 3)).astype("f")
    assert run(result.model, x) == run(model, x)


def test_views_that_are_their_own_shapes_are_written_once() -> None:
    """Each reads the one before twice: 2^40 ways lead back to the value behind them all."""
    nodes = [helper.make_node("Neg", ["x"], ["v0"])]
    nodes += [helper.make_node("Reshape", [f"v{i}", f"v{i}"], [f"v{i + 1}"]) for i in range(40)]
    nodes.append(helper.make_node("Neg", ["v40"], ["y"]))
    ends = [helper.make_tensor_value_info(name, TensorProto.INT64, [1]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = imported(model)
    assert len(made.graph.ops) == 2
    written = apply_schedule(made, given_order(made.graph)).model
    assert [node.op_type for node in written.graph.node] == ["Neg", *["Reshape"] * 40, "Neg"]
