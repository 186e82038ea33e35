import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, helper

from onnxremat.core.errors import ModelError
from onnxremat.core.graph import TensorKind
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.schedule import given_order
from onnxremat.importer import ValueType, View, from_proto, import_model

from .build import imported, model, node, reads_by_name, types_of, value


def names(result_kind: TensorKind, proto: ModelProto, **options: object) -> list[str]:
    return [t.name for t in imported(proto, **options).graph.tensors if t.kind is result_kind]


def test_a_chain() -> None:
    proto = model(
        [node("Add", ["x", "w"], ["a"], name="sum"), node("Relu", ["a"], ["y"])],
        weights={"w": np.ones(4, np.float32)},
    )
    result = imported(proto)
    graph = result.graph
    assert [(t.name, t.kind.value, t.nbytes) for t in graph.tensors] == [
        ("x", "input", 16),
        ("w", "weight", 16),
        ("a", "activation", 16),
        ("y", "activation", 16),
    ]
    assert [(op.name, op.op_type, op.inputs, op.outputs) for op in graph.ops] == [
        ("sum", "Add", (0, 1), (2,)),
        ("Relu_1", "Relu", (2,), (3,)),
    ]
    assert (graph.inputs, graph.outputs) == ((0,), (3,))
    assert result.op_nodes == (0, 1)
    assert result.input_shapes == {"x": (4,)}
    assert result.tensor_of == {"x": 0, "w": 1, "a": 2, "y": 3}
    assert result.model == proto


def test_node_names_are_unique_and_readable() -> None:
    nodes = [
        node("Relu", ["x"], ["a"], name="Neg_1"),
        node("Neg", ["a"], ["b"]),
        node("Neg", ["b"], ["c"], name="n"),
        node("Neg", ["c"], ["y"], name="n"),
    ]
    assert [op.name for op in imported(model(nodes)).graph.ops] == ["Neg_1", "Neg_1_2", "n", "n_2"]


def test_many_nodes_of_one_name_and_a_long_chain_of_views() -> None:
    """As many as a file may hold: counting from the start for each name, and following a chain for
    each view, would take hours."""
    count = 12_000
    nodes = [node("Neg", ["x"], ["v0"], name="n")]
    nodes += [node("Identity", [f"v{i}"], [f"v{i + 1}"], name="n") for i in range(count)]
    nodes += [node("Neg", [f"v{count}"], [f"y{i}"], name="n") for i in range(count)]
    proto = model(nodes, outputs=[f"y{i}" for i in range(count)])
    loaded = from_proto(proto)
    kind = ValueType("float", (4,))
    types = {name: kind for one in nodes for name in one.output} | {"x": kind}
    result = import_model(loaded, types)
    assert result.graph.ops[-1].name == f"n_{2 * count + 1}"
    assert result.tensor_of[f"v{count}"] == result.tensor_of["v0"]


def test_views_that_are_their_own_shapes() -> None:
    """Each is made twice from the one before: 2^60 ways lead back to the root."""
    nodes = [node("Neg", ["x"], ["v0"])]
    nodes += [node("Reshape", [f"v{i}", f"v{i}"], [f"v{i + 1}"]) for i in range(60)]
    nodes.append(node("Neg", ["v60"], ["y"]))
    proto = model(nodes, [value("x", [1], TensorProto.INT64)], [value("y", [1], TensorProto.INT64)])
    kind = ValueType("int64", (1,))
    types = {name: kind for one in nodes for name in one.output} | {"x": kind}
    result = import_model(from_proto(proto), types)
    assert reads_by_name(result) == {"v0": ("x",), "y": ("v0",)}


@pytest.mark.parametrize("shape", [[2**31] * 3, [2**62, 4], [2**55]])
def test_sizes_that_no_machine_has_are_errors(shape: list[int]) -> None:
    with pytest.raises(ModelError, match=r"value 'x' of shape .* takes more memory than there is"):
        imported(model([node("Relu", ["x"], ["y"])], [value("x", shape)]))


def test_readers_of_a_view_read_its_root_and_its_computed_shape() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Shape", ["a"], ["s"]),
        node("Concat", ["s", "one"], ["s2"], axis=0),
        node("Reshape", ["a", "s2"], ["v"]),
        node("Unsqueeze", ["v", "axes"], ["v2"]),
        node("Identity", ["v2"], ["v3"]),
        node("Mul", ["v3", "v3"], ["y"]),
    ]
    weights = {"one": np.array([1]), "axes": np.array([0])}
    result = imported(model(nodes, weights=weights), eager_ops={"Shape"})
    assert reads_by_name(result) == {
        "a": ("x",),
        "s": ("a",),
        "s2": ("s", "one"),
        "y": ("a", "a", "s2"),
    }
    assert dict(result.views) == {"v": View(3, "a"), "v2": View(4, "v"), "v3": View(5, "v2")}
    assert result.tensor_of["v3"] == result.tensor_of["a"]
    assert result.op_nodes == (0, 1, 2, 6)
    eager = {op.op_type: (op.eager, op.recomputable) for op in result.graph.ops}
    assert eager["Shape"] == (True, False)
    assert eager["Mul"] == (False, True)


def test_a_shape_that_is_itself_a_view() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Shape", ["a"], ["s"]),
        node("Shape", ["s"], ["t"]),
        node("Reshape", ["s", "t"], ["sv"]),
        node("Reshape", ["a", "sv"], ["v"]),
        node("Neg", ["v"], ["y"]),
    ]
    assert reads_by_name(imported(model(nodes)))["y"] == ("a", "s", "t")


def test_a_view_that_is_a_graph_output_is_an_op() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Reshape", ["a", "s"], ["y"]),
        node("Neg", ["y"], ["z"]),
    ]
    result = imported(model(nodes, outputs=["y", "z"], weights={"s": np.array([2, 2])}))
    assert reads_by_name(result) == {"a": ("x",), "y": ("a", "s"), "z": ("y",)}
    assert not result.views


def test_views_of_inputs_and_weights() -> None:
    nodes = [
        node("Unsqueeze", ["w", "axes"], ["wv"]),
        node("Unsqueeze", ["x", "axes"], ["xv"]),
        node("Add", ["xv", "wv"], ["y"]),
    ]
    weights = {"w": np.ones(4, np.float32), "axes": np.array([0])}
    assert reads_by_name(imported(model(nodes, weights=weights))) == {"y": ("x", "w")}


@pytest.mark.parametrize(
    ("nodes", "is_view"),
    [
        ([node("Dropout", ["x"], ["v"])], True),
        ([node("Dropout", ["x"], ["v", "unread"])], True),
        ([node("Dropout", ["x"], ["v", "m"]), node("Not", ["m"], ["z"])], False),
        ([node("Dropout", ["x", "", "no"], ["v"])], True),
        ([node("Dropout", ["x", "", "yes"], ["v"])], False),
        ([node("Cast", ["x"], ["v"], to=TensorProto.FLOAT)], True),
        ([node("Cast", ["x"], ["v"], to=TensorProto.FLOAT16)], False),
        ([node("Flatten", ["x"], ["v"])], True),
        ([node("Transpose", ["x"], ["v"])], False),
        ([node("Reshape", ["x", "s"], ["v"], domain="org.example")], False),
    ],
)
def test_what_is_a_view(nodes: list[NodeProto], is_view: bool) -> None:
    proto = model(
        [*nodes, node("Neg", ["v"], ["y"])],
        weights={"no": np.array(False), "yes": np.array(True), "s": np.array([4])},
        domains=["org.example"],
        stated=[value("v")] if nodes[0].domain else [],
    )
    result = imported(proto)
    assert ("v" in result.views) == is_view
    assert len(result.graph.ops) == len(nodes) + 1 - is_view


def test_the_runtime_says_which_ops_are_views_and_eager() -> None:
    nodes = [
        node("Identity", ["x"], ["a"]),
        node("Shape", ["a"], ["s"]),
        node("Reshape", ["a", "s"], ["b"]),
        node("Neg", ["b"], ["y"]),
    ]
    result = imported(model(nodes), view_ops={"Reshape"}, eager_ops={"Identity"})
    assert reads_by_name(result) == {"a": ("x",), "s": ("a",), "y": ("a", "s")}
    assert [op.eager for op in result.graph.ops] == [True, False, False]


def test_training_dropout_is_random_and_inference_dropout_is_not() -> None:
    def dropout(mode: str) -> bool:
        proto = model(
            [node("Dropout", ["x", "", mode], ["y", "m"])],
            outputs=["y", "m"],
            inputs=[value("x"), value("fed", [], TensorProto.BOOL)],
            weights={"no": np.array(False), "yes": np.array(True)},
        )
        return imported(proto).graph.ops[0].recomputable

    assert [dropout(mode) for mode in ("no", "yes", "fed")] == [True, False, False]


WEIGHT_ONLY = model(
    [
        node("Constant", [], ["c"], value_ints=[4]),
        node("ConstantOfShape", ["c"], ["filled"]),
        node("Neg", ["filled"], ["w"]),
        node("Identity", ["w"], ["wv"]),
        node("Add", ["x", "wv"], ["a"]),
        node("Neg", ["c"], ["out"]),
        node("RandomNormalLike", ["w"], ["r"]),
        node("Add", ["a", "r"], ["y"]),
    ],
    outputs=["y", value("out", None, TensorProto.INT64)],
)


def test_ops_on_weights_alone_run_when_nothing_is_folded() -> None:
    result = imported(WEIGHT_ONLY)
    assert reads_by_name(result) == {
        "filled": ("c",),
        "w": ("filled",),
        "a": ("x", "w"),
        "out": ("c",),
        "r": ("w",),
        "y": ("a", "r"),
    }
    assert result.constant_nodes == {0}
    assert names(TensorKind.WEIGHT, WEIGHT_ONLY) == ["c"]


def test_ops_on_weights_alone_are_weights_when_folded() -> None:
    result = imported(WEIGHT_ONLY, fold_constants=True)
    assert reads_by_name(result) == {
        "a": ("x", "wv"),
        "out": ("c",),
        "r": ("w",),
        "y": ("a", "r"),
    }
    assert result.constant_nodes == {0, 1, 2, 3}
    assert names(TensorKind.WEIGHT, WEIGHT_ONLY, fold_constants=True) == ["c", "filled", "w", "wv"]
    assert not result.views


def conditional(body_nodes: list[NodeProto]) -> NodeProto:
    body = helper.make_graph(body_nodes, "b", [], [value("inner")])
    return node("If", ["c"], ["y"], then_branch=body, else_branch=body)


def test_captured_values_are_read() -> None:
    nested = helper.make_graph(
        [node("Add", ["deep", "hidden"], ["inner2"])], "n", [], [value("inner2")]
    )
    body_nodes = [
        node("Neg", ["v"], ["hidden"]),
        node("If", ["c"], ["inner"], then_branch=nested, else_branch=nested),
    ]
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Reshape", ["a", "s"], ["v"]),
        node("Relu", ["x"], ["deep"]),
        node("Relu", ["x"], ["unrelated"]),
        conditional(body_nodes),
    ]
    proto = model(
        nodes,
        inputs=[value("x"), value("c", [], TensorProto.BOOL), value("s", [1], TensorProto.INT64)],
        outputs=[value("y"), "unrelated"],
    )
    result = imported(proto)
    assert reads_by_name(result)["y"] == ("c", "a", "deep", "s")
    assert not result.graph.ops[-1].recomputable
    assert result.graph.ops[-1].op_type == "If"


def test_dead_nodes_and_absent_operands() -> None:
    nodes = [
        node("Clip", ["x", "", "top"], ["a"]),
        node("Neg", ["a"], ["dead"]),
        node("MaxPool", ["i"], ["p", "unread"], kernel_shape=[2, 2]),
        node("BatchNormalization", ["i", "w", "w", "w", "w"], ["n"]),
        node("Neg", ["a"], ["y"]),
    ]
    proto = model(
        nodes,
        inputs=[value("x"), value("i", [1, 2, 4, 4])],
        outputs=["y", "p", "n"],
        weights={"top": np.array(1, np.float32), "w": np.ones(2, np.float32)},
    )
    result = imported(proto)
    assert reads_by_name(result) == {
        "a": ("x", "top"),
        "dead": ("a",),
        "p": ("i",),
        "n": ("i", "w", "w", "w", "w"),
        "y": ("a",),
    }
    pool = result.graph.ops[2]
    assert [result.graph.tensors[t].dtype for t in pool.outputs] == ["float", "int64"]


def test_inputs_and_weights_may_be_outputs() -> None:
    proto = model(
        [node("Relu", ["x"], ["y"])],
        outputs=["y", "x", "w"],
        weights={"w": np.ones(4, np.float32)},
    )
    graph = imported(proto).graph
    assert [graph.tensors[t].name for t in graph.outputs] == ["y", "x", "w"]


def test_workspace_costs_and_permissions_are_handed_on() -> None:
    proto = model(
        [
            node("Constant", [], ["c"], value_float=1.0),
            node("Mystery", ["x", "c"], ["a"], domain="org.example"),
            node("Relu", ["a"], ["y"]),
        ],
        domains=["org.example"],
        stated=[value("a")],
    )
    plain = imported(proto)
    assert [op.recomputable for op in plain.graph.ops] == [False, True]
    assert plain.graph.ops[0].op_type == "org.example::Mystery"
    given_numbers = imported(
        proto, workspace={1: 77}, measured_ns={2: 5}, allow_recompute=["Mystery"]
    )
    assert [op.workspace_bytes for op in given_numbers.graph.ops] == [77, 0]
    assert given_numbers.graph.ops[1].cost == 5
    assert given_numbers.graph.ops[0].cost == plain.graph.ops[0].cost > 0
    assert given_numbers.graph.ops[0].recomputable


def unknown_size(nodes: list[NodeProto], **options: object) -> str:
    loaded, types = types_of(model(nodes, **options))  # type: ignore[arg-type]
    with pytest.raises(ModelError) as caught:
        import_model(loaded, types)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_unknown_sizes_are_errors_that_say_what_to_do() -> None:
    nonzero = [node("NonZero", ["x"], ["a"], name="nz"), node("Neg", ["a"], ["y"])]
    message = unknown_size(nonzero, outputs=[value("y", None, TensorProto.INT64)])
    assert "value 'a', made by node 0 (NonZero 'nz'), is unknown" in message
    assert "dimension 1 of [1, ?] depends on the data" in message
    assert "measured in a profiled run" in message
    assert "1 more" in message
    message = unknown_size(
        nonzero, outputs=["y"], stated=[value("a", [1, "found"], TensorProto.INT64)]
    )
    assert "dimension 1 of [1, found] is open (bind it with --dim found=SIZE)" in message
    message = unknown_size([node("Mystery", ["x"], ["y"])])
    assert "no source knows its shape" in message


def test_values_that_are_no_tensors_are_not_supported() -> None:
    message = unknown_size(
        [
            node("SplitToSequence", ["x"], ["parts"], axis=0),
            node("ConcatFromSequence", ["parts"], ["y"], axis=0),
        ]
    )
    assert message == (
        "not supported: value 'parts', made by node 0 (SplitToSequence), is a sequence, "
        "not a tensor"
    )
    message = unknown_size(
        [node("Identity", ["x"], ["a"]), node("Identity", ["a"], ["y"])],
        inputs=[value("x", [3], TensorProto.STRING)],
        outputs=[value("y", [3], TensorProto.STRING)],
    )
    assert "elements of type 'string'" in message


def test_sequences_inside_a_subgraph_do_not_matter() -> None:
    body_nodes = [
        node("SplitToSequence", ["x"], ["parts"], axis=0),
        node("ConcatFromSequence", ["parts"], ["inner"], axis=0),
    ]
    proto = model(
        [conditional(body_nodes)],
        inputs=[value("x"), value("c", [], TensorProto.BOOL)],
        outputs=[value("y")],
    )
    assert reads_by_name(imported(proto)) == {"y": ("c", "x")}


def test_unsorted_models_are_imported_in_order() -> None:
    proto = model([node("Neg", ["a"], ["y"]), node("Relu", ["x"], ["a"])])
    result = imported(proto)
    assert [op.op_type for op in result.graph.ops] == ["Relu", "Neg"]
    assert [result.model.graph.node[i].op_type for i in result.op_nodes] == ["Relu", "Neg"]


@st.composite
def view_graphs(draw: st.DrawFn) -> tuple[ModelProto, dict[str, str]]:
    """A graph of Neg, Add, Reshape and Identity nodes, and the root of each of its values."""
    root = {"x": "x"}
    nodes = []
    for i in range(draw(st.integers(1, 15))):
        name = f"v{i}"
        source = draw(st.sampled_from(sorted(root)))
        kind = draw(st.sampled_from(["Neg", "Add", "Reshape", "Identity"]))
        if kind == "Add":
            inputs = [source, draw(st.sampled_from(sorted(root)))]
        else:
            inputs = [source, "s"] if kind == "Reshape" else [source]
        nodes.append(node(kind, inputs, [name]))
        root[name] = root[source] if kind in ("Reshape", "Identity") else name
    nodes.append(node("Sum", [nodes[-1].output[0], "x"], ["y"]))
    root["y"] = "y"
    return model(nodes, weights={"s": np.array([4])}), root


@given(view_graphs())
def test_views_resolve_to_their_roots(case: tuple[ModelProto, dict[str, str]]) -> None:
    proto, root = case
    result = imported(proto)
    tensors = result.graph.tensors
    for name, at in root.items():
        assert tensors[result.tensor_of[name]].name == at
        assert (name in result.views) == (at != name)
    for op, index in zip(result.graph.ops, result.op_nodes, strict=True):
        read = [root.get(name, name) for name in proto.graph.node[index].input]
        assert [tensors[t].name for t in op.inputs] == read
    made = {name for name, at in root.items() if at == name and name != "x"}
    assert {tensors[t].name for op in result.graph.ops for t in op.outputs} == made


def test_the_peak_of_a_small_model_by_hand() -> None:
    """x(16) -> a(16) -> view -> b(32, two copies) -> y(8): the peak is a and b together."""
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Reshape", ["a", "s"], ["v"]),
        node("Concat", ["v", "v"], ["b"], axis=0),
        node("ReduceSum", ["b"], ["y"], keepdims=0),
    ]
    result = imported(model(nodes, weights={"s": np.array([2, 2])}))
    rules = MemoryRules(count_workspace=False)
    assert profile(result.graph, given_order(result.graph), rules).live_bytes == (16, 48, 36)


def test_types_of_measured_runs_are_enough() -> None:
    loaded = from_proto(model([node("Mystery", ["x"], ["y"])]))
    result = import_model(loaded, {"x": ValueType("float", (4,)), "y": ValueType("int8", (9,))})
    assert result.graph.tensors[result.tensor_of["y"]].nbytes == 9
