"""Memory under default options: originals, files of the stock rewriter, branches in general."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.instruments.predict_stock import predict_stock, stock_sessions
from benchmarks.instruments.slack import load_slack, written_pages
from onnxremat.core.errors import ModelError
from onnxremat.ort.branches import early_outputs, with_branch_inlined, working_branch
from onnxremat.ort.emulation.arena import RegionUse
from onnxremat.ort.measuring.inputs import make_inputs
from onnxremat.ort.measuring.measure import in_memory, measure_activation, run_outputs
from onnxremat.ort.recipe import STOCK, OptimizationLevel
from onnxremat_rewriters.stock import stock
from tests.ort.build import FLOAT, INT64, model, node, value
from tests.ort.test_optimize import residual

pytestmark = pytest.mark.slow

pytest.importorskip("memray", reason="the heap is counted by memray")

ONE = STOCK.with_threads(1)
SLACK_BYTES = 40_000
"""Bookkeeping of a run; regions of the arena are multiples of 1 MB."""


def many_sizes() -> onnx.ModelProto:
    """Buffers of several sizes and lifetimes, fused and folded nodes, two outputs."""
    nodes = [node("Identity", ["x"], ["v0"])]
    for i in range(8):
        nodes.append(node("Add", [f"v{i}", "one"], [f"a{i}"]))
        nodes.append(node("MatMul", [f"a{i}", f"w{i % 2}"], [f"m{i}"]))
        nodes.append(node("Concat", [f"m{i}", f"v{i}"], [f"c{i}"], axis=1))
        nodes.append(node("Softmax", [f"c{i}"], [f"s{i}"], axis=1))
        nodes.append(node("ReduceSum", [f"s{i}", "axis"], [f"r{i}"]))
        nodes.append(node("Mul", [f"m{i}", f"r{i}"], [f"v{i + 1}"]))
    nodes.append(node("Add", ["v8", "v3"], ["y"]))
    nodes.append(node("Relu", ["v5"], ["z"]))
    rng = np.random.default_rng(0)
    weights = {f"w{i}": rng.standard_normal((512, 512)).astype(np.float32) for i in range(2)}
    weights |= {"one": np.ones(512, np.float32), "axis": np.array([1], np.int64)}
    shape = [400, 512]
    outputs = [value("y", FLOAT, shape), value("z", FLOAT, shape)]
    return model(nodes, [value("x", FLOAT, shape)], outputs, weights)


def in_a_branch(*, hide: bool) -> onnx.ModelProto:
    return stock(many_sizes(), hide=hide, chain=hide).model


@pytest.mark.parametrize("kind", ["original", "hidden", "wrapped"])
def test_regions_of_every_run_are_as_predicted(kind: str, tmp_path: Path) -> None:
    graph = many_sizes() if kind == "original" else in_a_branch(hide=kind == "hidden")
    inputs = make_inputs(graph)
    predicted = predict_stock(graph, tmp_path, inputs, threads=1)
    measured = measure_activation(in_memory(graph, tmp_path), inputs, ONE, runs=3)
    first, *_, later = measured.run_peaks_bytes
    assert predicted.first.heap_bytes == pytest.approx(first, abs=SLACK_BYTES)
    assert predicted.later.heap_bytes == pytest.approx(later, abs=SLACK_BYTES)
    assert (predicted.block_bytes > 0) == (kind == "original")


def test_a_training_graph_in_a_branch(unet_train: Path) -> None:
    graph = stock(onnx.load(unet_train)).model
    inputs = make_inputs(graph)
    session, *_ = stock_sessions(graph, unet_train.parent, inputs, threads=1, tries=1)
    assert session.in_branch
    measured = measure_activation(in_memory(graph, unet_train.parent), inputs, ONE, runs=2)
    expected = session.predict().first.heap_bytes
    assert expected == pytest.approx(measured.run_peaks_bytes[0], abs=10 * SLACK_BYTES)


def test_blocked_convolutions(tmp_path: Path) -> None:
    graph = residual()
    inputs = make_inputs(graph)
    predicted = predict_stock(graph, tmp_path, inputs, threads=1)
    measured = measure_activation(in_memory(graph, tmp_path), inputs, ONE, runs=1)
    assert predicted.first.heap_bytes == pytest.approx(measured.peak_bytes, abs=SLACK_BYTES)


def test_an_inlined_branch_computes_the_same(tmp_path: Path) -> None:
    graph = in_a_branch(hide=True)
    index = working_branch(graph)
    assert index == len(graph.graph.node) - 1
    flat = with_branch_inlined(graph, index, "then_branch")
    assert working_branch(flat) is None
    inputs = make_inputs(graph)
    plain = ONE.__class__(threads=1, optimization=OptimizationLevel.NONE)
    one = run_outputs(in_memory(graph, tmp_path), inputs, plain)
    other = run_outputs(in_memory(flat, tmp_path), inputs, plain)
    assert one.keys() == other.keys()
    assert all(one[name].tobytes() == other[name].tobytes() for name in one)


def test_outputs_of_known_size_are_allocated_early() -> None:
    shapes = {"a": [2, 3], "b": ["n", 3], "c": None}
    body = onnx.helper.make_graph(
        [node("Abs", ["x"], [name]) for name in shapes], "body", [],
        [value(name, FLOAT, shape) for name, shape in shapes.items()],
    )  # fmt: skip
    branch = node("If", ["k"], ["p", "q", "r"], then_branch=body, else_branch=body)
    assert early_outputs(branch, "then_branch") == ("p",)


def test_other_models_have_no_working_branch() -> None:
    assert working_branch(many_sizes()) is None
    body = onnx.helper.make_graph(
        [node("Abs", ["x"], ["inner"])], "body", [], [value("inner", FLOAT, None)]
    )
    choice = node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    inputs = [value("x"), value("c", onnx.TensorProto.BOOL, [])]
    assert working_branch(model([choice], inputs, ["y"])) is None, "no sequence is captured"


def test_a_branch_that_passes_on_outer_values_is_refused() -> None:
    body = onnx.helper.make_graph([], "body", [], [value("x", INT64, None)])
    choice = node("If", ["c"], ["y"], then_branch=body, else_branch=body)
    inputs = [value("x", INT64), value("c", onnx.TensorProto.BOOL, [])]
    with pytest.raises(ModelError, match="cannot be put in place"):
        with_branch_inlined(model([choice], inputs, ["y"]), 0, "then_branch")


def test_what_loading_leaves_is_no_more_than_what_is_written(tmp_path: Path) -> None:
    uses = [RegionUse(1 << 20, b"\1" * 100 + b"\0" * 100 + b"\1" * 56), RegionUse(8192, b"\1\1")]
    assert list(written_pages(uses[0])) == [(0, 100), (200, 56)]
    graph = many_sizes()
    few, many = load_slack(graph, tmp_path, make_inputs(graph), ONE, [uses[:1], uses])
    assert 0 <= few <= 156 * 4096
    assert 0 <= many <= 158 * 4096


def test_graphs_that_differ_in_names_alone_are_one(tmp_path: Path) -> None:
    graph = many_sizes()
    sessions = stock_sessions(graph, tmp_path, make_inputs(graph), threads=1, tries=2)
    assert len(sessions) == 1
    assert sessions[0].recipe.mem_pattern
    assert not sessions[0].in_branch
