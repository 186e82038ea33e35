"""`rewrite` from Python: what comes back, what is written, what is carried along."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxremat
from onnxremat.cli.report import as_json, rewrite_text
from onnxremat.commands.rewrite import default_output, rewrite
from onnxremat.core.errors import ModelError, UsageError
from onnxremat.core.problem import PlanStatus
from onnxremat.core.units import parse_limit
from onnxremat.importer.calls import all_graphs
from onnxremat.importer.external import data_files
from onnxremat.options import ModelOptions, Options
from onnxremat.ort.outside import name_data
from onnxremat.ort.record import METADATA_KEY, read_record
from onnxremat.targets.stock_trial import StockResult
from onnxremat.targets.stock_variants import Variant
from onnxremat.verification import verify_files
from onnxremat_rewriters.recompute import MARK

pytestmark = pytest.mark.slow

QUICK = Options(session="recipe", time_limit=3, threads=1)


def diamond(path: Path, *, external: bool = False, symbolic: bool = False) -> Path:
    """A value that is read at once and again much later: worth computing again."""
    rows: str | int = "n" if symbolic else 64
    nodes = [
        helper.make_node("Exp", ["x"], ["early"], "early"),
        helper.make_node("MatMul", ["early", "w"], ["wide"], "wide"),
        helper.make_node("Mul", ["wide", "wide"], ["square"], "square"),
        helper.make_node("MatMul", ["square", "back"], ["narrow"], "narrow"),
        helper.make_node("Add", ["narrow", "early"], ["y"], "y"),
    ]
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((64, 256)).astype("f"), "w"),
        numpy_helper.from_array(rng.standard_normal((256, 64)).astype("f"), "back"),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, 64]) for n in "xy"]
    graph = helper.make_graph(nodes, "diamond", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path, save_as_external_data=external, location="weights.bin", size_threshold=0)
    return path


def test_the_result_says_what_was_measured_and_the_file_runs(tmp_path: Path) -> None:
    path = diamond(tmp_path / "m.onnx")
    output = tmp_path / "small.onnx"
    result = rewrite(path, "95%", QUICK, output=output)
    assert result.recomputed == 1
    assert result.plan.status is not PlanStatus.UNKNOWN
    assert result.limit_bytes is not None
    assert result.rewritten.peak_bytes <= result.limit_bytes < result.original.peak_bytes
    assert result.verification is not None
    assert result.verification.identical
    assert result.floor.nbytes <= result.plan.peak_bytes
    assert onnx.load(output) == result.model
    session = onnxremat.open_session(output)
    x = np.full((64, 64), 0.25, "f")
    assert session.run(None, {"x": x})[0].shape == (64, 64)
    with pytest.raises(onnxremat.UsageError, match=r"\[32, 64\]"):
        session.run(None, {"x": x[:32]})


def test_only_nodes_and_the_record_differ(tmp_path: Path) -> None:
    path = diamond(tmp_path / "m.onnx")
    result = rewrite(path, "95%", QUICK)
    assert result.output is None
    rest = onnx.ModelProto()
    rest.CopyFrom(result.model)
    original = onnx.load(path)
    del rest.graph.node[:]
    del original.graph.node[:]
    assert [entry.key for entry in rest.metadata_props] == [METADATA_KEY]
    del rest.metadata_props[:]
    assert rest == original
    record = read_record(result.model)
    assert record is not None
    assert record.input_shapes == {"x": (64, 64)}
    assert record.threads == 1
    assert record.measured_peak_bytes == result.rewritten.peak_bytes
    assert list(tmp_path.iterdir()) == [path]


def test_symbolic_dimensions_are_bound_and_recorded(tmp_path: Path) -> None:
    path = diamond(tmp_path / "m.onnx", symbolic=True)
    with pytest.raises(onnxremat.UsageError, match="--dim n="):
        rewrite(path, "95%", QUICK)
    result = rewrite(path, "95%", Options(session="recipe", dims={"n": 32}, time_limit=3))
    record = read_record(result.model)
    assert record is not None
    assert record.input_shapes == {"x": (32, 64)}


def test_external_weights_go_along_and_are_never_overwritten(tmp_path: Path) -> None:
    path = diamond(tmp_path / "m.onnx", external=True)
    elsewhere = tmp_path / "out"
    elsewhere.mkdir()
    rewrite(path, "95%", QUICK, output=elsewhere / "m.onnx")
    assert (elsewhere / "weights.bin").read_bytes() == (tmp_path / "weights.bin").read_bytes()
    onnx.checker.check_model(elsewhere / "m.onnx")
    (elsewhere / "weights.bin").write_bytes(b"something else")
    with pytest.raises(onnxremat.UsageError, match="another file is there"):
        rewrite(path, "95%", QUICK, output=elsewhere / "n.onnx")
    assert {p.name for p in elsewhere.iterdir()} == {"m.onnx", "weights.bin"}
    assert (elsewhere / "weights.bin").read_bytes() == b"something else"


def test_inputs_may_be_given(tmp_path: Path) -> None:
    path = diamond(tmp_path / "m.onnx", symbolic=True)
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, x=np.zeros((16, 64), "f"))
    result = rewrite(path, "95%", Options(session="recipe", inputs=inputs, time_limit=3))
    record = read_record(result.model)
    assert record is not None
    assert record.input_shapes == {"x": (16, 64)}


def test_a_stop_keeps_the_best_plan_so_far(tmp_path: Path) -> None:
    path = diamond(tmp_path / "m.onnx")
    result = rewrite(
        path, "min", Options(session="recipe", time_limit=600, threads=1), stop=lambda: True
    )
    assert result.limit_bytes is None
    assert result.rewritten.peak_bytes <= 1.01 * result.original.peak_bytes


def test_no_recompute_only_reorders(tmp_path: Path) -> None:
    path = diamond(tmp_path / "m.onnx")
    with pytest.raises(onnxremat.OnnxrematError, match="found"):
        rewrite(
            path,
            "95%",
            Options(session="recipe", time_limit=2, recompute=False, threads=1, tiling=False),
        )


def test_a_limit_that_is_met_already_changes_nothing_but_the_record(tmp_path: Path) -> None:
    path = diamond(tmp_path / "m.onnx")
    result = rewrite(path, "1GB", QUICK)
    assert result.recomputed == 0
    assert result.plan.status is PlanStatus.OPTIMAL
    assert result.model.graph == onnx.load(path).graph


def test_names_of_outputs_follow_from_the_limit() -> None:
    for limit, name in (("4MB", "m.4mb.onnx"), ("60%", "m.60pct.onnx"), ("min", "m.min.onnx")):
        assert default_output(Path("a/m.onnx"), parse_limit(limit)) == Path("a") / name
    for options, name in (
        (Options(session="recipe"), "m.60pct.recipe.onnx"),
        (Options(session="stock", portable=False), "m.60pct.packed.onnx"),
        (Options(session="stock", embed_weights=True), "m.60pct.embedded.onnx"),
        (Options(runtime="generic"), "m.60pct.static.onnx"),
        (
            Options(session="recipe", optimize="all", allow_rounding=True),
            "m.60pct.all.rounded.recipe.onnx",
        ),
    ):
        assert default_output(Path("m.onnx"), parse_limit("60%"), options) == Path(name)


def test_a_file_that_is_no_regular_one_is_never_replaced(tmp_path: Path) -> None:
    path, pipe = diamond(tmp_path / "m.onnx"), tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(onnxremat.UsageError, match="no regular file"):
        rewrite(path, "95%", QUICK, output=pipe)
    with pytest.raises(onnxremat.UsageError, match="no regular file"):
        rewrite(path, "95%", QUICK, output=tmp_path / "n.onnx", plan_output=pipe)
    with pytest.raises(onnxremat.UsageError, match="a file each"):
        rewrite(path, "95%", QUICK, output=tmp_path / "n", plan_output=tmp_path / "." / "n")


def test_an_op_that_the_model_does_not_have_is_not_allowed(tmp_path: Path) -> None:
    options = Options(session="recipe", time_limit=1, allow_ops=("Foo",))
    with pytest.raises(onnxremat.UsageError, match="--allow-op: the model has no 'Foo'"):
        rewrite(diamond(tmp_path / "m.onnx"), "95%", options)


def test_verify_takes_the_planned_sizes_and_names_what_does_not_fit(tmp_path: Path) -> None:
    path, output = diamond(tmp_path / "m.onnx", symbolic=True), tmp_path / "r.onnx"
    rewrite(
        path,
        "95%",
        Options(session="recipe", dims={"n": 32}, time_limit=2, threads=1),
        output=output,
    )
    for dims in ({}, {"n": 16}):
        assert onnxremat.verify_files(path, output, ModelOptions(threads=1, dims=dims)).identical
    static = replace(QUICK, dims={"n": 32}, runtime="generic")
    rewrite(path, "100%", static, output=tmp_path / "static.onnx")
    with pytest.raises(onnxremat.UsageError, match=r"planned for input 'x' of shape \[32, 64\]"):
        onnxremat.verify_files(path, tmp_path / "static.onnx", ModelOptions(dims={"n": 16}))
    for dims in ({}, {"n": 32}):
        options = ModelOptions(threads=1, dims=dims)
        assert onnxremat.verify_files(path, tmp_path / "static.onnx", options).identical
    other = saved(tmp_path / "o.onnx", [helper.make_node("Exp", ["x"], ["y"])], {})
    with pytest.raises(onnxremat.OnnxrematError, match="'x'"):
        onnxremat.verify_files(other, output, ModelOptions())
    damaged = onnx.load(output)
    damaged.metadata_props[0].value = damaged.metadata_props[0].value[:40]
    onnx.save(damaged, output)
    with pytest.raises(onnxremat.ModelError, match=r"r\.onnx: the plan's record is damaged"):
        onnxremat.verify_files(path, output, ModelOptions())
    with pytest.raises(onnxremat.ModelError, match=r"r\.onnx: the plan's record is damaged"):
        onnxremat.open_session(output)


def saved(
    path: Path,
    nodes: list[onnx.NodeProto],
    weights: dict[str, np.ndarray],
    opset: int = 21,
    shape: tuple[int, ...] = (1, 8, 16, 16),
) -> Path:
    """A model from x to y, both of that shape."""
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in "xy"]
    stored = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    onnx.save(model, path)
    return path


def test_a_rewritten_file_can_be_rewritten_again(tmp_path: Path) -> None:
    first, second = tmp_path / "first.onnx", tmp_path / "second.onnx"
    options = replace(QUICK, tiling=False)
    rewrite(diamond(tmp_path / "m.onnx"), "95%", options, output=first)
    result = rewrite(first, "min", options, output=second)
    assert result.verification is not None
    assert result.verification.identical
    onnx.checker.check_model(second, full_check=True)
    marks = [a.i for n in result.model.graph.node for a in n.attribute if a.name == MARK]
    assert len(marks) == len(set(marks))


def test_shapes_of_a_value_and_of_its_view_run_in_file_order(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], "exp"),
        helper.make_node("Unsqueeze", ["e", "axis"], ["u"], "view"),
        helper.make_node("Shape", ["u"], ["su"], "shape_of_view"),
        helper.make_node("Shape", ["e"], ["se"], "shape"),
        helper.make_node("Neg", ["e"], ["n"], "neg"),
        helper.make_node("Reshape", ["n", "su"], ["nu"], "to_view"),
        helper.make_node("Reshape", ["nu", "se"], ["nn"], "back"),
        helper.make_node("Add", ["nn", "e"], ["y"], "add"),
    ]
    path = saved(tmp_path / "m.onnx", nodes, {"axis": np.array([0])})
    result = rewrite(path, "1GB", QUICK)
    assert result.verification is not None
    assert result.verification.order_as_planned


def test_nodes_that_the_runtime_expands_are_planned_expanded(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], "exp"),
        helper.make_node("GroupNormalization", ["e", "scale", "bias"], ["n"], "norm", num_groups=2),
        helper.make_node("HardSwish", ["n"], ["h"], "swish"),
        helper.make_node("Add", ["h", "e"], ["y"], "add"),
    ]
    weights = {"scale": np.ones(8, "f"), "bias": np.zeros(8, "f")}
    result = rewrite(saved(tmp_path / "m.onnx", nodes, weights), "1GB", QUICK)
    assert result.verification is not None
    assert result.verification.identical
    assert result.verification.order_as_planned
    assert "GroupNormalization" not in {n.op_type for n in result.model.graph.node}


def test_quantized_values_with_several_readers(tmp_path: Path) -> None:
    """ONNX Runtime duplicates a DequantizeLinear for each of its readers, at any level."""
    scale = {"s": np.array(0.1, "f"), "z": np.array(0, np.uint8)}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"], "quantize"),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"], "dequantize"),
        helper.make_node("Exp", ["d"], ["e"], "exp"),
        helper.make_node("Neg", ["d"], ["n"], "neg"),
        helper.make_node("Add", ["e", "n"], ["y"], "add"),
    ]
    result = rewrite(saved(tmp_path / "m.onnx", nodes, scale), "1GB", QUICK)
    assert result.verification is not None
    assert result.verification.identical


def test_a_model_that_computes_nothing_is_named(tmp_path: Path) -> None:
    path = saved(tmp_path / "m.onnx", [], {"y": np.zeros((1, 8, 16, 16), "f")})
    with pytest.raises(onnxremat.ModelError, match="computes nothing"):
        rewrite(path, "1GB", QUICK)


def test_the_smallest_peak_is_not_above_the_original_where_ops_hold_little(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Greater", ["x", "z"], ["c"], "c"),
        helper.make_node("Where", ["c", "x", "z"], ["y"], "y"),
    ]
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [8, 8]) for n in "xzy"]
    graph = helper.make_graph(nodes, "small", values[:2], values[2:])
    path = tmp_path / "m.onnx"
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    result = rewrite(path, "min", QUICK)
    assert not result.replaced
    assert result.rewritten.peak_bytes <= result.original.peak_bytes


def partly_unread(path: Path, op: str, columns: int, stored: list[int]) -> Path:
    """An op between two others with two outputs, of which one is read, and a constant input."""
    nodes = [
        helper.make_node("Exp", ["x"], ["a"], "a"),
        helper.make_node(op, ["a", "k"], ["read", "unread"], op, axis=1),
        helper.make_node("Tanh", ["read"], ["t"], "t"),
        helper.make_node("ReduceMean", ["t"], ["y"], "y", axes=[0, 1]),
    ]
    constant = numpy_helper.from_array(np.array(stored, np.int64), "k")
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [512, columns])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1])
    graph = helper.make_graph(nodes, "unread", [x], [y], [constant])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def unread_indices(path: Path) -> Path:
    """A TopK whose indices nobody reads hold twice what its values do."""
    return partly_unread(path, "TopK", 256, [256])


def unread_half(path: Path) -> Path:
    """The Size that frees the unread half of a Split makes the peak eight bytes higher."""
    return partly_unread(path, "Split", 512, [256, 256])


@pytest.mark.parametrize("make", [unread_indices, unread_half])
def test_the_limit_that_the_model_itself_keeps_is_met(
    make: Callable[[Path], Path], tmp_path: Path
) -> None:
    path = make(tmp_path / "m.onnx")
    result = rewrite(path, "100%", replace(QUICK, tiling=False), output=tmp_path / "o.onnx")
    assert result.limit_bytes is not None
    assert result.rewritten.peak_bytes <= result.limit_bytes == result.original.peak_bytes
    assert result.floor.nbytes <= result.rewritten.peak_bytes
    assert result.verification is not None
    assert result.verification.identical
    onnxremat.open_session(tmp_path / "o.onnx")


@pytest.mark.parametrize("path", [".", "/", ""])
def test_a_path_without_a_name_is_refused(path: str) -> None:
    with pytest.raises(UsageError, match="no model file"):
        default_output(Path(path), parse_limit("min"))


def test_a_model_that_fails_on_random_values_says_how_to_give_others(tmp_path: Path) -> None:
    """A shape that is read: random integers are 0 or 1, and no such shape has seven elements."""
    nodes = [
        helper.make_node("Exp", ["x"], ["e"], "e"),
        helper.make_node("Add", ["shape", "one"], ["s"], "s"),
        helper.make_node("Reshape", ["e", "s"], ["r"], "r"),
        helper.make_node("Neg", ["r"], ["y"], "y"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [7])
    shape = helper.make_tensor_value_info("shape", TensorProto.INT64, [2])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b"])
    one = numpy_helper.from_array(np.array(1, np.int64), "one")
    graph = helper.make_graph(nodes, "particular", [x, shape], [y], [one])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path, given = tmp_path / "m.onnx", tmp_path / "given.npz"
    onnx.save(model, path)
    with pytest.raises(ModelError, match="random values: --inputs"):
        rewrite(path, "min", QUICK)
    np.savez(given, x=np.zeros(7, "f"), shape=np.array([0, 6]))
    result = rewrite(path, "min", replace(QUICK, inputs=given))
    assert result.verification is not None
    assert result.verification.identical


def perceptron(path: Path) -> Path:
    """Products whose weights hold more than what is computed; any number of rows."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((256, 256)).astype("f") / 16, f"w{i}")
        for i in range(3)
    ]
    nodes, last = [], "x"
    for i, weight in enumerate(weights):
        nodes.append(helper.make_node("MatMul", [last, weight.name], [f"m{i}"], f"m{i}"))
        nodes.append(helper.make_node("Relu", [f"m{i}"], [f"r{i}"], f"r{i}"))
        last = f"r{i}"
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["n", 256]) for n in ("x", last)]
    graph = helper.make_graph(nodes, "mlp", values[:1], values[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("portable", [True, False])
def test_a_stock_file_with_its_weights_beside_it(portable: bool, tmp_path: Path) -> None:
    path, output = perceptron(tmp_path / "m.onnx"), tmp_path / "o.onnx"
    options = replace(QUICK, session="stock", recompute=False, portable=portable, dims={"n": 8})
    result = rewrite(path, "1GB", options, output=output)
    assert result.data is not None, rewrite_text(result)
    assert data_files(onnx.load(output, load_external_data=False)) == ("o.onnx.data",)
    assert {p.name for p in tmp_path.iterdir()} == {"m.onnx", "o.onnx", "o.onnx.data"}
    text = rewrite_text(result)
    assert "in a file beside it" in text
    assert isinstance(result.details, StockResult) and result.details.chosen is not None
    assert result.any_size is (result.details.chosen.variant is Variant.ORIGINAL)
    assert "o.onnx.data" in text
    json.dumps(as_json(result))
    one_thread = ort.SessionOptions()
    one_thread.intra_op_num_threads = 1
    for size in (8, 3) if result.any_size else (8,):
        x = np.random.default_rng(1).standard_normal((size, 256)).astype("f")
        want, got = (
            ort.InferenceSession(p, one_thread).run(None, {"x": x})[0] for p in (path, output)
        )
        assert want.tobytes() == got.tobytes()
    checked = verify_files(path, output, ModelOptions(threads=1, dims={"n": 8}))
    assert checked.identical


def test_weights_beside_a_file_are_of_stock_files_only() -> None:
    with pytest.raises(UsageError, match="--no-portable goes with --session stock"):
        Options(session="recipe", portable=False)
    with pytest.raises(UsageError, match="--embed-weights goes with --session stock"):
        Options(session="recipe", embed_weights=True)
    with pytest.raises(UsageError, match="--embed-weights: what lies in the file is for any"):
        Options(session="stock", portable=False, embed_weights=True)


def test_weights_do_not_replace_those_of_the_model(tmp_path: Path) -> None:
    path = diamond(tmp_path / "m.onnx", external=True)
    (tmp_path / "weights.bin").rename(tmp_path / "o.onnx.data")
    model = onnx.load(path, load_external_data=False)
    name_data(model, "o.onnx.data")
    onnx.save(model, path)
    options = replace(QUICK, session="stock")
    with pytest.raises(UsageError, match="external data of the model"):
        rewrite(path, "min", options, output=tmp_path / "o.onnx")


def low_rank(path: Path) -> Path:
    """A weight and a product of two, added up when the model is opened, as adapters are."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["down", "up"], ["update"], "update"),
        helper.make_node("Add", ["w", "update"], ["adapted"], "adapted"),
        helper.make_node("MatMul", ["x", "adapted"], ["wide"], "wide"),
        helper.make_node("Exp", ["wide"], ["y"], "y"),
    ]
    sizes = {"w": (256, 256), "down": (256, 8), "up": (8, 256)}
    weights = {
        name: 0.1 * rng.standard_normal(size, dtype=np.float32) for name, size in sizes.items()
    }
    return saved(path, nodes, weights, 17, (64, 256))


@pytest.mark.slow
def test_what_other_processors_compute_otherwise_is_in_no_portable_file(tmp_path: Path) -> None:
    path, output = low_rank(tmp_path / "m.onnx"), tmp_path / "made.onnx"
    quick = Options(threads=1, time_limit=1, mem_of="process")
    result = rewrite(path, "min", quick, output=output)
    assert result.weights_inside.startswith("MatMul (update) is computed when a file")
    assert f"left where they were: {result.weights_inside}" in rewrite_text(result)
    assert not output.with_name("made.onnx.data").exists()
    for name in ("w", "down", "up"):
        assert name in {tensor.name for tensor in onnx.load(output).graph.initializer}
    packed = rewrite(path, "min", replace(quick, portable=False), output=output)
    assert not packed.weights_inside
    assert output.with_name("made.onnx.data").exists()


def positioned(path: Path) -> Path:
    """Positions made of the size of the input, as exporters write them, before a product."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("Shape", ["x"], ["size"], "size"),
        helper.make_node("ConstantOfShape", ["size"], ["ones"], "ones",
                         value=numpy_helper.from_array(np.array([0.7], np.float32))),
        helper.make_node("CumSum", ["ones", "axis"], ["places"], "places"),
        helper.make_node("Sin", ["places"], ["waves"], "waves"),
        helper.make_node("Add", ["x", "waves"], ["placed"], "placed"),
        helper.make_node("MatMul", ["placed", "w"], ["wide"], "wide"),
        helper.make_node("Exp", ["wide"], ["y"], "y"),
    ]  # fmt: skip
    weights = {
        "w": 0.1 * rng.standard_normal((256, 256), dtype=np.float32),
        "axis": np.array(0),
    }
    return saved(path, nodes, weights, 17, (64, 256))


@pytest.mark.slow
def test_what_is_made_of_sizes_is_in_no_portable_file_either(tmp_path: Path) -> None:
    path, output = positioned(tmp_path / "m.onnx"), tmp_path / "made.onnx"
    quick = Options(threads=1, time_limit=1, mem_of="process")
    result = rewrite(path, "min", quick, output=output)
    assert result.weights_inside.startswith("CumSum (places) is computed when a file")
    assert not output.with_name("made.onnx.data").exists()
    made = onnx.load(output)
    stored = {t.name for graph in all_graphs(made.graph) for t in graph.initializer}
    assert not stored & {"places", "waves"}


@pytest.mark.parametrize(
    ("name", "said"), [("m.onnx.data", "hold the weights"), ("b\udcff.onnx", "has to be UTF-8")]
)
def test_files_that_no_model_can_have_are_refused_before_anything_runs(
    tmp_path: Path, name: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        rewrite(tmp_path / "none.onnx", "min", output=tmp_path / name)
