"""Files whose inputs leave sizes open: what runs at other sizes, and what says that it does not."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxremat
from onnxremat.cli.report import rewrite_text
from onnxremat.commands.rewrite import rewrite
from onnxremat.options import Options
from onnxremat.ort.library import RUNTIME_ERRORS, ort
from onnxremat.ort.measuring.inputs import make_inputs
from onnxremat.ort.record import attach_record, read_record

pytestmark = pytest.mark.slow

QUICK = {"time_limit": 1.0, "threads": 1, "verify": False}
WHOLE = {**QUICK, "session": "recipe", "tiling": False}
Shapes = Mapping[str, tuple[int | str | None, ...]]
node = helper.make_node


def saved(
    path: Path,
    nodes: list[onnx.NodeProto],
    inputs: Shapes,
    outputs: Shapes,
    weights: Mapping[str, np.ndarray] | None = None,
) -> Path:
    values = [
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
        for shapes in (inputs, outputs)
    ]
    stored = [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()]
    for index, one in enumerate(nodes):
        one.name = f"n{index}"
    graph = helper.make_graph(nodes, "g", *values, stored)
    opset = helper.make_opsetid("", 21)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=10), path)
    return path


def weight(*shape: int) -> np.ndarray:
    return (np.random.default_rng(len(shape)).standard_normal(shape) * 0.1).astype("f")


def images(path: Path) -> Path:
    """Convolutions with a value that is read at once and again at the end, made by an op that the
    runtime expands."""
    nodes = [
        node("Conv", ["x", "w0"], ["a"], pads=[1] * 4),
        node("HardSwish", ["a"], ["early"]),
        node("Conv", ["early", "w1"], ["b"], pads=[1] * 4),
        node("Relu", ["b"], ["c"]),
        node("Conv", ["c", "w2"], ["d"], pads=[1] * 4),
        node("Add", ["d", "early"], ["y"]),
    ]
    weights = {"w0": weight(8, 3, 3, 3), "w1": weight(32, 8, 3, 3), "w2": weight(8, 32, 3, 3)}
    inputs, outputs = (1, 3, "height", "width"), (1, 8, "height", "width")
    return saved(path, nodes, {"x": inputs}, {"y": outputs}, weights)


def attention(path: Path) -> Path:
    """Heads of a self-attention as exporters write them for open sizes, over an inner axis; the
    last input has a size without a name."""
    nodes = [
        node("Shape", ["x"], ["size"], end=2),
        node("Concat", ["size", "heads"], ["split"], axis=0),
        node("Reshape", ["x", "split"], ["s"]),
        node("Transpose", ["s"], ["q"], perm=[0, 2, 1, 3]),
        node("Transpose", ["s"], ["k"], perm=[0, 2, 3, 1]),
        node("MatMul", ["q", "k"], ["scores"]),
        node("Softmax", ["scores"], ["p"], axis=2),
        node("MatMul", ["p", "q"], ["o"]),
        node("Transpose", ["o"], ["t"], perm=[0, 2, 1, 3]),
        node("Shape", ["x"], ["whole"]),
        node("Reshape", ["t", "whole"], ["r"]),
        node("Sum", ["r", "x", "bias"], ["y"]),
    ]
    inputs: Shapes = {"x": ("batch", "length", 32), "bias": (None, 1, 32)}
    weights = {"heads": np.array([4, 8])}
    return saved(path, nodes, inputs, {"y": ("batch", "length", 32)}, weights)


def cached(path: Path) -> Path:
    """New keys behind those of a cache, which may be empty."""
    nodes = [
        node("MatMul", ["x", "w"], ["new"]),
        node("Concat", ["past", "new"], ["present"], axis=1),
        node("Transpose", ["present"], ["k"], perm=[0, 2, 1]),
        node("MatMul", ["x", "k"], ["scores"]),
        node("Softmax", ["scores"], ["p"]),
        node("MatMul", ["p", "present"], ["y"]),
    ]
    inputs: Shapes = {"x": (1, 4, 32), "past": (1, "past", 32)}
    outputs: Shapes = {"y": (1, 4, 32), "present": (1, "total", 32)}
    return saved(path, nodes, inputs, outputs, {"w": weight(32, 32)})


def chosen(path: Path) -> Path:
    """A Where that holds most, for which pieces are substituted."""
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("Greater", ["x", "a"], ["c"]),
        node("Where", ["c", "x", "a"], ["w"]),
        node("ReduceMax", ["w"], ["y"], keepdims=0),
    ]
    return saved(path, nodes, {"x": ("rows", 256)}, {"y": ()})


def session_of(path: Path, name: str = "ORT_DISABLE_ALL") -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, name)
    options.intra_op_num_threads = 1
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def inputs_at(path: Path, sizes: Mapping[str, int]) -> dict[str, np.ndarray]:
    """Values for a model, its open dimensions by name, or by the name of the input."""
    model = onnx.load(path)
    shapes = {
        value.name: tuple(
            d.dim_value if d.HasField("dim_value") else sizes[d.dim_param or value.name]
            for d in value.type.tensor_type.shape.dim
        )
        for value in model.graph.input
    }
    return make_inputs(model, shapes)


OPEN = {
    "recomputed": (images, "95%", {"time_limit": 10}, [{"height": 64, "width": 64}, {"height": 40, "width": 16}, {"height": 9, "width": 7}]),
    "reordered": (images, "min", {"recompute": False}, [{"height": 24, "width": 24}, {"height": 9, "width": 7}, {"height": 40, "width": 16}]),
    "default order": (attention, "min", {"recompute": False, "order": "default"}, [{"batch": 2, "length": 8, "bias": 2}, {"batch": 1, "length": 20, "bias": 1}, {"batch": 5, "length": 3, "bias": 1}]),
    "substituted": (attention, "min", {}, [{"batch": 2, "length": 20, "bias": 1}, {"batch": 2, "length": 40, "bias": 2}, {"batch": 5, "length": 3, "bias": 1}]),
    "empty cache": (cached, "min", {}, [{"past": 0}, {"past": 5}, {"past": 31}]),
}  # fmt: skip


@pytest.mark.parametrize("case", OPEN)
def test_what_does_not_depend_on_sizes_runs_at_others(case: str, tmp_path: Path) -> None:
    build, mem, options, (planned, *others) = OPEN[case]
    path, output = build(tmp_path / "m.onnx"), tmp_path / "small.onnx"
    dims = {name if name != "bias" else "bias:0": size for name, size in planned.items()}
    result = rewrite(path, mem, Options(dims=dims, **WHOLE | options), output=output)
    assert result.any_size
    assert "others run, too" in rewrite_text(result)
    if case == "recomputed":
        assert result.recomputed
    if case == "substituted":
        assert {one.op_type for one in result.replaced} >= {"Softmax"}
    assert onnx.load(output).graph.input == onnx.load(path).graph.input
    original, plain, session = session_of(path), session_of(output), onnxremat.open_session(output)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        for sizes in (planned, *others, planned):
            feed = inputs_at(path, sizes)
            expected = original.run(None, feed)
            for one in (plain, session):
                for want, got in zip(expected, one.run(None, feed), strict=True):
                    assert want.tobytes() == got.tobytes() and want.shape == got.shape, sizes
    assert [str(w.message).count("promised for") for w in said] == [1]
    assert str(list(inputs_at(path, planned)["past" if "past" in planned else "x"].shape)) in str(
        said[0].message
    )
    assert Path(said[0].filename) == Path(__file__)


SIZED = {
    "tiles": (images, "45%", {"tiling": True, "time_limit": 10}, {"height": 64, "width": 64}),
    "substitutes": (chosen, "min", {}, {"rows": 64}),
    "optimized": (images, "100%", {"optimize": "basic"}, {"height": 24, "width": 24}),
    "static plan": (images, "100%", {"runtime": "generic"}, {"height": 24, "width": 24}),
    "cache": (cached, "100%", {"runtime": "generic"}, {"past": 0}),
}


@pytest.mark.parametrize("case", SIZED)
def test_what_depends_on_sizes_declares_them(case: str, tmp_path: Path) -> None:
    build, mem, options, planned = SIZED[case]
    path, output = build(tmp_path / "m.onnx"), tmp_path / "small.onnx"
    result = rewrite(path, mem, Options(dims=planned, **WHOLE | options), output=output)
    assert not result.any_size
    assert "declared in the file" in rewrite_text(result)
    if case == "tiles":
        assert result.tiling is not None
    if case == "substitutes":
        assert [one.substitution for one in result.replaced] == ["where-sliced"]
    written = onnx.load(output)
    onnx.checker.check_model(written, full_check=case != "optimized")
    declared = {v.name: v.type.tensor_type.shape.dim for v in written.graph.input}
    feed = inputs_at(path, planned)
    assert {n: tuple(d.dim_value for d in s) for n, s in declared.items()} == {
        name: value.shape for name, value in feed.items()
    }
    plain = session_of(output)
    for value, made in zip(written.graph.output, plain.run(None, feed), strict=True):
        dims = value.type.tensor_type.shape.dim
        assert all(
            d.dim_value == n or d.dim_param == "total"
            for d, n in zip(dims, made.shape, strict=True)
        )
    for name in planned:
        other = inputs_at(path, {**planned, name: planned[name] + 1})
        with pytest.raises(RUNTIME_ERRORS, match="Expected"):
            plain.run(None, other)
        with pytest.raises(onnxremat.UsageError, match="planned for"):
            onnxremat.open_session(output).run(None, other)


def test_a_file_of_an_older_version_runs_at_its_own_sizes_only(tmp_path: Path) -> None:
    """It may be in tiles, and its inputs do not say so; what is made of it declares the sizes."""
    path, old = images(tmp_path / "m.onnx"), tmp_path / "old.onnx"
    options = Options(dims={"height": 24, "width": 24}, **WHOLE)
    made = rewrite(path, "100%", options).model
    record = read_record(made)
    assert record is not None and record.any_size
    old_record = record.to_json().replace('"any_size": true, ', "")
    assert old_record != record.to_json()
    made = attach_record(made, record)
    made.metadata_props[0].value = old_record
    onnx.save(made, old)
    with pytest.raises(onnxremat.UsageError, match="planned for"):
        onnxremat.open_session(old).run(None, inputs_at(path, {"height": 9, "width": 7}))
    again = rewrite(old, "100%", options, output=tmp_path / "again.onnx")
    assert not again.any_size
    with pytest.raises(RUNTIME_ERRORS, match="Expected"):
        session_of(tmp_path / "again.onnx").run(None, inputs_at(path, {"height": 9, "width": 7}))


def test_a_stock_file_runs_at_other_sizes(tmp_path: Path) -> None:
    path, output = images(tmp_path / "m.onnx"), tmp_path / "stock.onnx"
    sizes = [{"height": 24, "width": 24}, {"height": 40, "width": 16}, {"height": 9, "width": 7}]
    options = Options(dims=sizes[0], **{**WHOLE, "recompute": False, "session": "stock"})
    assert rewrite(path, "1GB", options, output=output).any_size
    for size in sizes:
        feed = inputs_at(path, size)
        want, got = (session_of(p, "ORT_ENABLE_ALL").run(None, feed)[0] for p in (path, output))
        assert want.shape == got.shape
        assert np.allclose(want, got, atol=1e-5)
