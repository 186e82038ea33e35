"""The optimized file runs without optimizations as the original does with them, and can be planned."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from models import BUILDERS
from onnxremat.core.errors import ModelError, UsageError
from onnxremat.importer.execution_order import default_order, priority_order
from onnxremat.importer.nodes import LAYOUT_DOMAIN
from onnxremat.importer.purity import is_recomputable
from onnxremat.options import Options
from onnxremat.ort import optimize
from onnxremat.ort.measuring.inputs import make_inputs
from onnxremat.ort.measuring.measure import in_memory, run_outputs
from onnxremat.ort.optimize import optimize_offline
from onnxremat.ort.recipe import STOCK, OptimizationLevel, Recipe
from onnxremat.subject import prepare
from tests.ort.build import FLOAT, model, node, value

pytestmark = pytest.mark.slow

ONE = Recipe(threads=1)
LEVELS = [OptimizationLevel.BASIC, OptimizationLevel.EXTENDED, OptimizationLevel.ALL]


def residual() -> onnx.ModelProto:
    """Convolutions with a residual connection: NCHWc on x86, with a sum added in place."""
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((16, 16, 3, 3)).astype(np.float32) for i in range(3)}
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1, 1, 1, 1]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "w1"], ["c"], pads=[1, 1, 1, 1]),
        node("Add", ["c", "b"], ["d"]),
        node("Relu", ["d"], ["e"]),
        node("Concat", ["e", "b"], ["f"], axis=2),
        node("MaxPool", ["f"], ["g"], kernel_shape=[2, 2]),
        node("Conv", ["g", "w2"], ["y"]),
    ]
    shape = [1, 16, 12, 12]
    return model(nodes, [value("x", FLOAT, shape)], [value("y", FLOAT, [1, 16, 21, 9])], weights)


def transformer() -> onnx.ModelProto:
    return BUILDERS["transformer"](depth=1, width=16, heads=2, sequence=8)


def training() -> onnx.ModelProto:
    pytest.importorskip("onnx_ad", reason="training graphs are made with onnx-ad")
    return BUILDERS["unet_train"](size=16, levels=2, base=4)


def symbolic() -> onnx.ModelProto:
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Reshape", ["x", "s"], ["a"]),
        node("Gelu", ["a"], ["b"]),
        node("HardSwish", ["b"], ["y"]),
    ]
    return model(nodes, [value("x", FLOAT, ["n", 3])], [value("y", FLOAT, ["n", 3])], opset=20)


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("build", [residual, transformer, training, symbolic])
def test_bits_and_names_are_those_of_the_original(
    build: Callable[[], onnx.ModelProto], level: OptimizationLevel, tmp_path: Path
) -> None:
    graph = build()
    sizes = {"n": 5} if build is symbolic else {}
    recipe = ONE.with_dimensions(sizes)
    made = optimize_offline(graph, tmp_path, level, recipe)
    inputs = make_inputs(made.model)
    assert [i.name for i in made.model.graph.input] == [i.name for i in graph.graph.input]
    assert [o.name for o in made.model.graph.output] == [o.name for o in graph.graph.output]
    assert (made.level, made.provider, made.free_dimensions) == (level, STOCK.provider, sizes)
    original = Recipe(threads=1, optimization=level, free_dimensions=sizes)
    expected = run_outputs(in_memory(graph, tmp_path), inputs, original)
    unoptimized = Recipe(threads=1, optimization=OptimizationLevel.NONE)
    found = run_outputs(in_memory(made.model, tmp_path), inputs, unoptimized)
    assert {k: v.tobytes() for k, v in found.items()} == {
        k: v.tobytes() for k, v in expected.items()
    }


def test_blocked_convolutions_are_found_pure_and_imported(tmp_path: Path) -> None:
    made = optimize_offline(residual(), tmp_path, OptimizationLevel.ALL, ONE)
    if not made.needs_this_processor:
        pytest.skip("ONNX Runtime has no blocked layout on this processor")
    nodes = made.model.graph.node
    assert made.layout_nodes == sum(n.domain == LAYOUT_DOMAIN for n in nodes) > 3
    assert all(is_recomputable(n) for n in nodes)
    assert any(n.op_type == "Conv" and len(n.input) > 3 for n in nodes), "nothing adds in place"
    path = tmp_path / "optimized.onnx"
    onnx.save(made.model, path)
    subject = prepare(path, Options(session="recipe", threads=1))
    assert not subject.profile.unmeasured
    assert list(subject.profile.order) == priority_order(subject.released.model.graph.node)
    extended = optimize_offline(residual(), tmp_path, OptimizationLevel.EXTENDED, ONE)
    assert not extended.needs_this_processor


@pytest.mark.parametrize("build", [transformer, training])
def test_an_optimized_file_is_imported(
    build: Callable[[], onnx.ModelProto], tmp_path: Path
) -> None:
    made = optimize_offline(build(), tmp_path, OptimizationLevel.EXTENDED, ONE)
    path = tmp_path / "optimized.onnx"
    onnx.save(made.model, path)
    subject = prepare(path, Options(session="recipe", threads=1))
    assert not subject.profile.unmeasured
    assert list(subject.profile.order) == priority_order(subject.released.model.graph.node)


def external(folder: Path) -> onnx.ModelProto:
    """A weight that stays and one that is folded, both in an external file."""
    weights = {"w": np.ones((64, 64), np.float32), "v": np.full((64, 64), 2, np.float32)}
    nodes = [
        node("Neg", ["v"], ["folded"]),
        node("MatMul", ["x", "w"], ["a"]),
        node("MatMul", ["a", "folded"], ["y"]),
    ]
    graph = model(nodes, [value("x", FLOAT, [4, 64])], ["y"], weights)
    onnx.save(graph, folder / "m.onnx", save_as_external_data=True, size_threshold=0, location="w")
    return onnx.load(folder / "m.onnx", load_external_data=False)


def test_weights_in_external_files_stay_there(tmp_path: Path) -> None:
    graph = external(tmp_path)
    made = optimize_offline(graph, tmp_path, OptimizationLevel.BASIC, ONE)
    weights = {t.name: t for t in made.model.graph.initializer}
    assert weights["w"] == next(t for t in graph.graph.initializer if t.name == "w")
    others = [t for name, t in weights.items() if name != "w"]
    assert others
    assert not any(t.external_data for t in others)
    inputs = make_inputs(graph)
    basic = Recipe(threads=1, optimization=OptimizationLevel.BASIC)
    none = Recipe(threads=1, optimization=OptimizationLevel.NONE)
    expected = run_outputs(in_memory(graph, tmp_path), inputs, basic)["y"]
    found = run_outputs(in_memory(made.model, tmp_path), inputs, none)["y"]
    assert found.tobytes() == expected.tobytes()


def test_too_many_weights_are_one_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimize, "_PROTOBUF_LIMIT_BYTES", 16 * 1024)
    with pytest.raises(ModelError, match="no external file of the original holds"):
        optimize_offline(external(tmp_path), tmp_path, OptimizationLevel.BASIC, ONE)


def test_weights_that_are_inputs_before_ir_4_are_no_inputs_any_more(tmp_path: Path) -> None:
    graph = residual()
    graph.ir_version = 3
    graph.graph.input.extend(value(t.name, FLOAT, t.dims) for t in graph.graph.initializer)
    made = optimize_offline(graph, tmp_path, OptimizationLevel.EXTENDED, ONE).model
    assert [i.name for i in made.graph.input] == ["x"]
    assert made.ir_version == 4


def test_nodes_stand_as_the_optimizing_session_runs_them(tmp_path: Path) -> None:
    made = optimize_offline(transformer(), tmp_path, OptimizationLevel.ALL, ONE)
    assert sorted(default_order(made.model.graph.node)) == sorted(
        v for v, n in enumerate(made.model.graph.node) if n.op_type != "Constant"
    )
    assert {o.domain for o in made.model.opset_import} <= {"", "ai.onnx", "com.microsoft"}


def test_what_cannot_be_optimized_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="level above"):
        optimize_offline(residual(), tmp_path, OptimizationLevel.NONE, ONE)
    bad = model([node("NoSuchOp", ["x"], ["y"])], [value("x")], [value("y")])
    with pytest.raises(ModelError, match="refuses the model"):
        optimize_offline(bad, tmp_path, OptimizationLevel.BASIC, ONE)
