"""A settled model is what the runtime executes: same bits, a fixed point, nothing else changed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models import BUILDERS, EXPORTED
from onnxremat.importer import bind_dimensions, from_proto
from onnxremat.importer.nodes import is_constant
from onnxremat.ort.measuring.inputs import make_inputs
from onnxremat.ort.measuring.measure import in_memory, run_outputs
from onnxremat.ort.measuring.profile import seen_run
from onnxremat.ort.recipe import RECIPE, ExecutionOrder, Recipe
from onnxremat.ort.settle import kept_single, settled
from onnxremat_rewriters.graft import INSERTED_CAST
from tests.models.sizes import TINY_EXPORTED, tiny
from tests.ort.build import FLOAT, INT64, model, node, value

pytestmark = pytest.mark.slow

ONE = RECIPE.with_threads(1)
HALF = TensorProto.FLOAT16


def casts_of_sizes() -> onnx.ModelProto:
    """Half of the rows, as an exporter counts them."""
    return model(
        [
            node("Relu", ["x"], ["a"]),
            node("Shape", ["a"], ["s"]),
            node("Gather", ["s", "one"], ["rows"]),
            node("Div", ["rows", "two"], ["half"]),
            node("Cast", ["half"], ["c1"], to=INT64),
            node("Cast", ["c1"], ["c2"], to=INT64),
            node("Unsqueeze", ["c2", "zero"], ["end"]),
            node("Slice", ["a", "zero", "end", "axis"], ["b"]),
            node("Neg", ["b"], ["y"]),
        ],
        [value("x", FLOAT, [4, 6])],
        ["y"],
        {"one": np.int64(1), "two": np.int64(2), "zero": np.int64([0]), "axis": np.int64([1])},
    )


def half_precision(softmax: bool) -> onnx.ModelProto:
    """Products in float16, which has no kernel, around a Softmax or two Casts that count."""
    inner = [node("Softmax", ["s"], ["p"], axis=-1)]
    if not softmax:
        inner = [
            node("Cast", ["s"], ["s32"], to=FLOAT),
            node("Exp", ["s32"], ["p32"]),
            node("Cast", ["p32"], ["p"], to=HALF),
        ]
    return model(
        [
            node("MatMul", ["x", "w"], ["q"]),
            node("Transpose", ["q"], ["t"], perm=[1, 0]),
            node("MatMul", ["q", "t"], ["s"]),
            *inner,
            node("MatMul", ["p", "q"], ["y"]),
        ],
        [value("x", HALF, [6, 6])],
        [value("y", HALF, [6, 6])],
        {"w": np.linspace(-1, 1, 36, dtype=np.float16).reshape(6, 6)},
    )


def swish(**attributes: float) -> onnx.ModelProto:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Swish", ["a"], ["b"], **attributes),
        node("Add", ["a", "b"], ["y"]),
    ]
    made = model(nodes, [value("x", FLOAT, [4, 6])], ["y"], opset=24)
    made.ir_version = 11
    return made


def loss() -> onnx.ModelProto:
    """A function of two outputs."""
    return model(
        [
            node("SoftmaxCrossEntropyLoss", ["x", "labels"], ["z", "log_prob"], reduction="mean"),
            node("Neg", ["log_prob"], ["y"]),
        ],
        [value("x", FLOAT, [3, 5]), value("labels", INT64, [3])],
        ["z", "y"],
        opset=13,
    )


def function_of_a_type() -> onnx.ModelProto:
    """CastLike, whose function depends on the type of a value."""
    nodes = [node("Abs", ["x"], ["a"]), node("CastLike", ["n", "a"], ["f"])]
    nodes.append(node("Add", ["a", "f"], ["y"]))
    return model(nodes, [value("x", FLOAT, [4]), value("n", INT64, [4])], ["y"])


def bodies() -> onnx.ModelProto:
    """Functions and float16 in the branches of an If, which read an outer value."""
    branches = []
    for name in ("then", "else"):
        inner = [
            node("MatMul", ["x", "x"], [f"{name}_m"]),
            node("HardSwish", [f"{name}_m"], [f"{name}_h"]),
            node("Identity" if name == "then" else "Neg", [f"{name}_h"], [f"{name}_y"]),
        ]
        branches.append(helper.make_graph(inner, name, [], [value(f"{name}_y", HALF, [4, 4])]))
    choice = node("If", ["c"], ["r"], then_branch=branches[0], else_branch=branches[1])
    choice.name, choice.doc_string = "choice", "kept"
    return model(
        [choice, node("Neg", ["r"], ["y"])],
        [value("x", HALF, [4, 4]), value("c", TensorProto.BOOL, [])],
        [value("y", HALF, [4, 4])],
    )


def shared_dequantization() -> onnx.ModelProto:
    """The runtime makes a DequantizeLinear once for every reader."""
    scale = {"scale": np.float32(0.1), "zero": np.uint8(3)}
    return model(
        [
            node("QuantizeLinear", ["x", "scale", "zero"], ["q"]),
            node("DequantizeLinear", ["q", "scale", "zero"], ["d"]),
            node("Relu", ["d"], ["a"]),
            node("Neg", ["d"], ["b"]),
            node("Add", ["a", "b"], ["y"]),
        ],
        [value("x", FLOAT, [4, 6])],
        ["y"],
        scale,
    )


CHANGED: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "casts of sizes": casts_of_sizes,
    "float16": lambda: half_precision(True),
    "float16, Softmax in float32": lambda: half_precision(False),
    "Swish": lambda: swish(alpha=1.5),
    "Swish with its default": swish,
    "a loss": loss,
    "CastLike": function_of_a_type,
    "bodies": bodies,
    "DequantizeLinear": shared_dequantization,
}


def require_executed(made: onnx.ModelProto, inputs: Mapping[str, Any], recipe: Recipe) -> None:
    """Assert that the session's nodes, in order, are the file's."""
    seen = seen_run(made, Path.cwd(), inputs, recipe)
    assert (seen.expanded, seen.foreign) == ((), ())
    assert seen.is_of(made, ExecutionOrder.PRIORITY)


@pytest.mark.parametrize("name", CHANGED)
def test_what_the_runtime_changes_is_in_the_file(name: str) -> None:
    original = CHANGED[name]()
    before = original.SerializeToString()
    made = settled(original, Path.cwd(), ONE)
    assert original.SerializeToString() == before
    assert made is not original
    inputs = make_inputs(original)
    require_executed(made, inputs, ONE)
    assert settled(made, Path.cwd(), ONE) is made
    expected = run_outputs(in_memory(original, "."), inputs, ONE)
    found = run_outputs(in_memory(made, "."), inputs, ONE)
    assert {k: v.tobytes() for k, v in found.items()} == {
        k: v.tobytes() for k, v in expected.items()
    }
    assert list(made.graph.input) == list(original.graph.input)
    assert list(made.graph.output) == list(original.graph.output)
    assert list(made.opset_import) == list(original.opset_import)
    names = [inner.name for inner in made.graph.node]
    assert not any(name.startswith(INSERTED_CAST) for name in names)


def test_a_model_that_the_runtime_leaves_alone_is_returned_itself() -> None:
    graph = model(
        [
            node("Constant", [], ["k"], value_float=2.0),
            node("Mul", ["x", "k"], ["a"]),
            node("Cast", ["a"], ["b"], to=FLOAT),
            node("Sigmoid", ["b"], ["y"]),
        ],
        [value("x", FLOAT, [4])],
        ["y"],
    )
    assert settled(graph, Path.cwd(), ONE) is graph


def test_a_model_that_the_runtime_refuses_is_returned_itself() -> None:
    graph = model([node("Conv", ["x", "x"], ["y"])], [value("x", FLOAT, [4])], ["y"])
    assert settled(graph, Path.cwd(), ONE) is graph


def test_nodes_that_stay_keep_what_is_said_about_them() -> None:
    original = bodies()
    original.graph.doc_string = "about the graph"
    original.metadata_props.add(key="author", value="somebody")
    original.graph.node[1].metadata_props.add(key="from", value="module")
    made = settled(original, Path.cwd(), ONE)
    assert (made.graph.doc_string, made.metadata_props) == (
        "about the graph",
        original.metadata_props,
    )
    choice, last = made.graph.node[0], made.graph.node[-2]
    assert (choice.name, choice.doc_string) == ("choice", "kept")
    assert last.op_type == "Neg" and last.metadata_props[0].value == "module"
    inner = [n.op_type for n in choice.attribute[0].g.node]
    assert "HardSwish" not in inner and "HardSigmoid" in inner and "Cast" in inner


def test_new_nodes_stand_where_their_node_stood_and_say_so() -> None:
    original = swish(alpha=2.0)
    original.graph.node[1].name = "act"
    made = settled(original, Path.cwd(), ONE)
    kinds = [n.op_type for n in made.graph.node if not is_constant(n)]
    assert kinds[0] == "Relu" and kinds[-1] == "Add" and "Swish" not in kinds
    assert all(n.name.startswith("act/") for n in made.graph.node[1:-1])


def test_stale_types_are_corrected() -> None:
    original = half_precision(True)
    original.graph.value_info.extend(value(name, HALF, [6, 6]) for name in ("q", "s"))
    made = settled(original, Path.cwd(), ONE)
    makes = {name for n in made.graph.node for name in n.output}
    assert all(v.name in makes for v in made.graph.value_info)
    onnx.checker.check_model(made, full_check=True)


def test_weights_stay_where_they_are(tmp_path: Path) -> None:
    """Large ones are not even read: the file has none of the bytes that it should."""
    weight = numpy_helper.from_array(np.ones((256, 256), np.float16), "w")
    original = model(
        [node("MatMul", ["x", "w"], ["y"])],
        [value("x", HALF, [1, 256])],
        [value("y", HALF, [1, 256])],
    )
    original.graph.initializer.append(weight)
    stored = original.graph.initializer[0]
    stored.ClearField("raw_data")
    stored.data_location = TensorProto.EXTERNAL
    stored.external_data.add(key="location", value="weights.bin")
    made = settled(original, tmp_path, ONE)
    assert [n.op_type for n in made.graph.node] == ["Cast", "Cast", "MatMul", "Cast"]
    assert list(made.graph.initializer) == list(original.graph.initializer)


def test_casts_beside_casts_are_not_copied() -> None:
    graph = model(
        [
            node("Cast", ["x"], ["wide"], to=FLOAT),
            node("Exp", ["wide"], ["e"]),
            node("Cast", ["wide"], ["whole"], to=INT64),
            node("Cast", ["e"], ["alone"], to=INT64),
            node("Add", ["whole", "alone"], ["y"]),
        ],
        [value("x", HALF, [4])],
        ["y"],
    )
    assert kept_single(graph) == {0, 2}
    assert settled(graph, Path.cwd(), ONE) is graph


@pytest.mark.parametrize("name", BUILDERS)
def test_every_model_of_the_zoo_is_executed_as_it_is_settled(name: str) -> None:
    if name.endswith("_train"):
        pytest.importorskip("onnx_ad", reason="training graphs are made with onnx-ad")
    options, sizes = TINY_EXPORTED[name] if name in EXPORTED else (tiny(name), {})
    original = BUILDERS[name](**options)
    made = settled(original, Path.cwd(), ONE)
    assert (made is original) == (name not in EXPORTED)
    onnx.checker.check_model(made, full_check=True)
    binding = bind_dimensions(from_proto(original), sizes)
    inputs = make_inputs(original, binding.input_shapes)
    require_executed(made, inputs, ONE.with_dimensions(binding.symbols))
