"""`rewrite` from Python: what comes back, what is written, what is carried along."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxremat
from onnxremat.plan import PlanStatus
from onnxremat.prepare import Options
from onnxremat.rewriting import default_output, rewrite
from onnxremat.runtimes.record import METADATA_KEY, read_record
from onnxremat.units import parse_limit

QUICK = Options(time_limit=3, threads=1)


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
    result = rewrite(path, "95%", Options(dims={"n": 32}, time_limit=3))
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
    result = rewrite(path, "95%", Options(inputs=inputs, time_limit=3))
    record = read_record(result.model)
    assert record is not None
    assert record.input_shapes == {"x": (16, 64)}


def test_a_stop_keeps_the_best_plan_so_far(tmp_path: Path) -> None:
    path = diamond(tmp_path / "m.onnx")
    result = rewrite(path, "min", Options(time_limit=600, threads=1), stop=lambda: True)
    assert result.limit_bytes is None
    assert result.rewritten.peak_bytes <= 1.01 * result.original.peak_bytes


def test_no_recompute_only_reorders(tmp_path: Path) -> None:
    path = diamond(tmp_path / "m.onnx")
    with pytest.raises(onnxremat.OnnxrematError, match="found"):
        rewrite(path, "95%", Options(time_limit=2, recompute=False, threads=1))


def test_a_limit_that_is_met_already_changes_nothing_but_the_record(tmp_path: Path) -> None:
    path = diamond(tmp_path / "m.onnx")
    result = rewrite(path, "1GB", QUICK)
    assert result.recomputed == 0
    assert result.plan.status is PlanStatus.OPTIMAL
    assert result.model.graph == onnx.load(path).graph


def test_names_of_outputs_follow_from_the_limit() -> None:
    for limit, name in (("4MB", "m.4mb.onnx"), ("60%", "m.60pct.onnx"), ("min", "m.min.onnx")):
        assert default_output(Path("a/m.onnx"), parse_limit(limit)) == Path("a") / name
