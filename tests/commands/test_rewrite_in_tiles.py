"""`rewrite` in tiles: when whole ops do not do, and what is said of it."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import onnxremat
from models import BUILDERS
from onnxremat.cli.audit_report import audit_text
from onnxremat.cli.report import as_json, rewrite_text, verification_text
from onnxremat.commands.audit import audit
from onnxremat.commands.rewrite import rewrite
from onnxremat.core.errors import InfeasibleError, NoPlanFoundError
from onnxremat.core.units import parse_limit
from onnxremat.options import ModelOptions, Options
from onnxremat.ort.blocked_layout import layout_width
from onnxremat.ort.library import RUNTIME_ERRORS
from onnxremat.ort.measuring.measure import TimeComparison
from onnxremat.ort.outside import NOT_PORTABLE
from onnxremat.ort.record import read_record
from onnxremat.subject import Subject, prepare
from onnxremat.targets.recipe_target import RecipeTarget
from onnxremat.targets.stock_target import StockTarget
from onnxremat.targets.stock_trial import StockTrial
from onnxremat.targets.target import Made
from onnxremat.tiling.routes import TOLERANCE
from onnxremat.verification import Verification, verify_files
from tests.rewriters.tile.nets import Net

pytestmark = pytest.mark.slow

QUICK = Options(session="recipe", time_limit=3, threads=2)
TWO_THREADS = ModelOptions(threads=2)


@pytest.fixture(scope="module")
def espcn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four convolutions; every tensor of ops that count is at full resolution."""
    path = tmp_path_factory.mktemp("tiles") / "espcn.onnx"
    onnx.save(BUILDERS["espcn"](size=96, widths=(16, 16, 8)), path)
    return path


def test_a_limit_below_the_bound_of_one_op_is_met_in_tiles(espcn: Path, tmp_path: Path) -> None:
    output = tmp_path / "tiled.onnx"
    result = rewrite(espcn, "35%", QUICK, output=output)
    assert result.limit_bytes is not None and result.verification is not None
    assert result.limit_bytes < result.floor.nbytes
    assert result.rewritten.peak_bytes <= result.limit_bytes
    assert result.verification.identical and result.verification.order_as_planned
    assert result.tiling is not None and result.tiling.regions
    assert result.extra_time > 0
    weights = {w.name for w in onnx.load(espcn).graph.initializer}
    written = onnx.load(output)
    assert weights <= {w.name for w in written.graph.initializer}
    assert any("/tile" in node.name for node in written.graph.node)
    record = read_record(written)
    assert record is not None and record.planner.endswith("in tiles")
    assert record.recipe.threads == record.threads == result.tiling.threads == 2
    text = rewrite_text(result)
    assert "tiled" in text and "for 2 threads" in text
    assert json.loads(json.dumps(as_json(result)))["tiling"]["regions"]
    assert verify_files(espcn, output, TWO_THREADS).identical


def test_a_number_of_iterations_gives_the_same_file_again(espcn: Path) -> None:
    counted = replace(QUICK, iterations=500, threads=1, verify=False)
    for limit in ("35%", "90%"):
        made = [rewrite(espcn, limit, counted).model.SerializeToString() for _ in range(2)]
        assert made[0] == made[1]


def test_the_smallest_peak_uses_tiles(espcn: Path) -> None:
    result = rewrite(espcn, "min", QUICK)
    assert result.tiling is not None
    assert result.rewritten.peak_bytes < 0.5 * result.floor.nbytes


def test_no_tiling_forbids_it(espcn: Path) -> None:
    with pytest.raises(InfeasibleError, match="no schedule goes below"):
        rewrite(espcn, "35%", replace(QUICK, tiling=False))


def test_a_limit_that_whole_ops_meet_needs_no_tiles(espcn: Path) -> None:
    result = rewrite(espcn, "100%", QUICK)
    assert result.tiling is None
    assert "tiled" not in rewrite_text(result)


def test_what_tiles_miss_is_not_called_impossible(espcn: Path) -> None:
    with pytest.raises(NoPlanFoundError, match="the smallest peak found in tiles is about"):
        rewrite(espcn, "14%", QUICK)


def test_a_limit_that_is_missed_names_what_the_smallest_peak_reaches(espcn: Path) -> None:
    smallest = rewrite(espcn, "min", QUICK)
    with pytest.raises(NoPlanFoundError) as error:
        rewrite(espcn, str(int(0.95 * smallest.rewritten.peak_bytes)), QUICK)
    named = re.search(r"smallest peak found in tiles is about ([0-9.]+) kB", str(error.value))
    assert named is not None
    assert float(named[1]) * 1000 <= 1.02 * smallest.rewritten.peak_bytes
    assert "none below" in str(error.value) or "no schedule goes below" in str(error.value)


def test_the_smallest_peak_itself_is_a_limit_that_is_met(espcn: Path) -> None:
    smallest = rewrite(espcn, "min", QUICK)
    again = rewrite(espcn, str(smallest.rewritten.peak_bytes), QUICK)
    assert again.rewritten.peak_bytes <= smallest.rewritten.peak_bytes
    assert again.extra_time <= smallest.extra_time + TOLERANCE


@pytest.mark.parametrize("runtime", ["generic", "ort-cpu"])
def test_scratch_counts_in_tiles_where_it_counts_for_the_limit(
    tmp_path: Path, runtime: str
) -> None:
    """Convolutions that need tiles and an op that is not cut: what that holds is within the limit,
    but not with its scratch."""
    net = Net()
    x = net.conv(net.input("x", 1, 3, 64, 64), 3, 48, 3)
    x = net.conv(net.add("Relu", x), 48, 8, 3)
    x = net.add("LRN", x, size=3)
    path = tmp_path / "m.onnx"
    onnx.save(net.model(net.conv(x, 8, 1, 3)), path)
    options = replace(QUICK, runtime=runtime, verify=False)
    limit = 4 * 8 * 64 * 64 * 2 * 5 // 4
    if runtime == "generic":
        assert rewrite(path, str(limit), options).rewritten.peak_bytes <= limit
    else:
        with pytest.raises(InfeasibleError, match=r"nor do tiles go below.*LRN"):
            rewrite(path, str(limit), options)


def test_less_than_the_outputs_is_impossible(espcn: Path) -> None:
    with pytest.raises(InfeasibleError):
        rewrite(espcn, "1%", QUICK)


def test_time_that_ran_out_proves_nothing(espcn: Path) -> None:
    with pytest.raises(NoPlanFoundError, match="no tiles were found that help; try a longer"):
        rewrite(espcn, "35%", replace(QUICK, time_limit=1e-6))


def test_what_cannot_be_cut_stays_impossible(tmp_path: Path) -> None:
    net = Net()
    x = net.add("LRN", net.add("LRN", net.input("x", 1, 8, 32, 32), size=3), size=3)
    path = tmp_path / "m.onnx"
    onnx.save(net.model(net.add("ReduceMax", x, axes=[1, 2, 3])), path)
    with pytest.raises(InfeasibleError, match=r"nor do tiles go below .*made whole: lrn\d"):
        rewrite(path, "40%", QUICK)
    assert "no part of the model" in audit_text(audit(path, TWO_THREADS))


def test_audit_says_what_tiles_reach(espcn: Path) -> None:
    result = audit(espcn, TWO_THREADS, limit=parse_limit("35%"))
    assert result.tiling.peak_bytes < 0.5 * result.floor.nbytes
    text = audit_text(result)
    assert "in tiles" in text and "tiles may meet it" in text


def test_files_in_the_default_order_have_no_tiles() -> None:
    assert Options(session="stock").tiles
    assert not Options(session="recipe", order="default", recompute=False).tiles


def opened_with_nothing_set(path: Path, inputs: Path, threads: int) -> list[bytes]:
    """The outputs of a session as everybody opens one."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return [np.asarray(made).tobytes() for made in session.run(None, dict(np.load(inputs)))]


def test_tiles_are_for_sessions_with_nothing_set_too(tmp_path: Path) -> None:
    path, output = tmp_path / "espcn.onnx", tmp_path / "made.onnx"
    onnx.save(BUILDERS["espcn"](size=192), path)
    size = onnx.load(path).graph.input[0].type.tensor_type.shape.dim
    np.savez(
        tmp_path / "x.npz",
        **{
            onnx.load(path).graph.input[0].name: np.random.default_rng(0).standard_normal(
                [d.dim_value for d in size], dtype=np.float32
            )
        },
    )
    options = Options(
        session="stock", portable=False, mem_of="process", max_slowdown=1.0, threads=1,
        time_limit=4, inputs=tmp_path / "x.npz",
    )  # fmt: skip
    result = rewrite(path, "min", options, output=output)
    assert result.tiling is not None and result.tiling.regions
    assert result.figure == "memory of the process with default session options"
    assert result.rewritten.peak_bytes < 0.5 * result.original.peak_bytes
    assert output.with_name(f"{output.name}.data").is_file()
    before, after = (opened_with_nothing_set(p, tmp_path / "x.npz", 1) for p in (path, output))
    assert before == after
    assert "for 1 thread" in rewrite_text(result)
    again = verify_files(path, output, ModelOptions(threads=1, inputs=options.inputs))
    assert again.process and "memory of the process" in verification_text(again)
    for found in (again.rewritten.peak_bytes, again.promised_bytes):
        assert found == pytest.approx(result.rewritten.peak_bytes, rel=0.05, abs=1e6)
    kept = rewrite(path, "60%", options)
    assert kept.limit_bytes is not None and kept.rewritten.peak_bytes <= kept.limit_bytes


@pytest.mark.slow
@pytest.mark.skipif(layout_width() is None, reason="this processor has no blocked layout")
def test_tiles_leave_alone_what_is_added_up_and_averaged_in_blocks(tmp_path: Path) -> None:
    """Large pictures in front, and behind them a residual addition, which a default session fuses
    into a convolution, and an average. Taken apart, they round otherwise."""
    net = Net()
    x = net.add("Relu", net.conv(net.input("x", 1, 3, 192, 192), 3, 48, 3))
    x = net.add("Relu", net.conv(x, 48, 48, 3))
    x = net.conv(net.add("Relu", net.conv(x, 48, 32, 3, 4)), 32, 32, 3)
    y = net.conv(net.add("Relu", net.conv(x, 32, 32, 3)), 32, 32, 3)
    path, output = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.save(net.model(net.add("GlobalAveragePool", net.add("Add", x, y))), path)
    options = Options(
        session="stock", portable=False, mem_of="process", max_slowdown=1.0, threads=1,
        time_limit=4,
    )  # fmt: skip
    result = rewrite(path, "min", options, output=output)
    assert result.tiling is not None and result.tiling.regions
    assert result.verification is not None and result.verification.identical
    subject = prepare(path, options)
    target = StockTarget.of(subject)
    assert {"conv6", "conv9", "add10"} & target.fused(subject) == {"conv6", "conv9"}
    assert target.joined(subject) == {"globalaveragepool11"}
    kept = target.fused(subject) | target.joined(subject)
    assert all(kept.isdisjoint(region.outputs) for region in result.tiling.regions)


@pytest.mark.parametrize("embedded", [True, False])
def test_what_takes_longer_than_allowed_is_refused_with_both_figures(
    espcn: Path, monkeypatch: pytest.MonkeyPatch, embedded: bool
) -> None:
    twice = TimeComparison((1.0, 2.0), (1.0, 2.0), 7)
    monkeypatch.setattr(StockTrial, "_times", lambda *_: twice)
    options = replace(QUICK, session="stock", embed_weights=embedded, max_slowdown=0.1, threads=1)
    with pytest.raises(NoPlanFoundError) as error:
        rewrite(espcn, "60%", options)
    assert str(error.value).endswith(NOT_PORTABLE) is not embedded
    told = [one.outcome for one in error.value.attempts]
    assert any(
        " MB: +100% time, where +10% is allowed" in one and one.startswith("refused")
        for one in told
    ), told


def normalized(op: str, folder: Path) -> Path:
    """A convolution, a normalization over pictures, a convolution."""
    net = Net()
    a = net.conv(net.input("x", 1, 3, 160, 160), 3, 16, 3)
    weights = net.weight(16), net.weight(16)
    groups = {"num_groups": 4} if op == "GroupNormalization" else {}
    out = net.conv(net.add(op, a, *weights, **groups), 16, 1, 3)
    onnx.save(net.model(out, opset=21), folder / "model.onnx")
    return folder / "model.onnx"


@pytest.mark.parametrize("op", ["InstanceNormalization", "GroupNormalization"])
def test_what_needs_rounding_is_said_and_kept(op: str, tmp_path: Path) -> None:
    path = normalized(op, tmp_path)
    found = audit(path, TWO_THREADS).tiling
    assert not found.regions
    assert "with --allow-rounding about" in found.reasons[0]
    result = rewrite(path, "80%", replace(QUICK, allow_rounding=True))
    assert result.tiling is not None and result.tiling.regions
    assert [(one.op_type, one.exact) for one in result.replaced] == [(op, False)]
    assert result.verification is not None and result.verification.rounding
    assert result.verification.rounding.worst < 1e-4
    assert f"1 {op} (rounds differently)" in rewrite_text(result)


def compressed() -> onnx.ModelProto:
    """Rows that the values choose, convolved."""
    net = Net()
    image = net.input("x", 1, 3, 64, 48)
    x = net.conv(image, 3, 16, 3)
    means = net.add("ReduceMean", image, axes=[0, 1, 3], keepdims=0)
    chosen = net.add("Greater", means, net.constant(np.float32(0)))
    rows = net.add("Compress", x, chosen, axis=2)
    y = net.conv(net.add("Relu", net.conv(rows, 16, 96, 3)), 96, 4, 3)
    return net.model(net.add("Sigmoid", y))


def test_what_lies_behind_sizes_that_values_choose_is_not_cut(tmp_path: Path) -> None:
    """The file is right at values that keep more and fewer rows than those it was planned with."""
    path, written = tmp_path / "m.onnx", tmp_path / "o.onnx"
    onnx.save(compressed(), path)
    result = rewrite(path, "min", QUICK, output=written)
    assert result.verification is not None
    original = ort.InferenceSession(path, providers=["CPUExecutionProvider"])
    session = onnxremat.open_session(written)
    rng = np.random.default_rng(0)
    rows = set()
    for share in (0.2, 0.5, 0.9):
        shift = np.where(rng.random(64) < share, 1, -1)[:, None]
        x = np.asarray(rng.standard_normal((1, 3, 64, 48)) + shift, np.float32)
        (expected,) = original.run(None, {"x": x})
        (made,) = session.run(None, {"x": x})
        assert made.shape == expected.shape
        np.testing.assert_allclose(made, expected, atol=1e-4)
        rows.add(made.shape[2])
    assert len(rows) == 3


@pytest.mark.parametrize("mem", ["min", "35%"])
def test_where_tiles_change_bits_whole_ops_are_planned(
    mem: str, espcn: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the table of tiling had a fault."""
    verify = RecipeTarget.verify

    def differing(
        target: RecipeTarget, subject: Subject, made: Made, final: onnx.ModelProto
    ) -> Verification:
        found = verify(target, subject, made, final)
        cut = any("/tile" in node.name for node in final.graph.node)
        return replace(found, different_outputs=("y",)) if cut else found

    monkeypatch.setattr(RecipeTarget, "verify", differing)
    output = tmp_path / "whole.onnx"
    if mem != "min":
        with pytest.raises(NoPlanFoundError, match=r"in tiles outputs differ .*: y"):
            rewrite(espcn, mem, QUICK, output=output)
        assert not output.exists()
        return
    result = rewrite(espcn, mem, QUICK, output=output)
    assert result.tiling is None
    assert result.verification is not None
    assert result.verification.identical
    assert output.exists()
    assert any("outputs differ" in one.outcome for one in result.attempts)
    assert [one.outcome for one in result.attempts].count("taken") == 1


@pytest.mark.slow
def test_a_file_for_one_size_has_the_bits_of_the_original_that_leaves_it_open(
    tmp_path: Path,
) -> None:
    """With declared sizes the runtime fuses a residual addition into a convolution, and with open
    ones it does not: what is compared has to be what is written."""
    net = Net()
    x = net.add("Relu", net.conv(net.input("x", 2, 3, 64, 96), 3, 16, 3, 2))
    for _ in range(3):
        y = net.add("Relu", net.conv(x, 16, 64, 1))
        y = net.add("Relu", net.conv(y, 64, 64, 3, 1, 64))
        share = net.conv(net.add("GlobalAveragePool", y), 64, 64, 1)
        y = net.add("Mul", y, net.add("Sigmoid", share))
        x = net.add("Add", x, net.conv(y, 64, 16, 1))
    model = net.model(net.conv(x, 16, 128, 1))
    for axis, name in ((0, "N"), (2, "H")):
        model.graph.input[0].type.tensor_type.shape.dim[axis].dim_param = name
    del model.graph.output[0].type.tensor_type.shape.dim[:]
    del model.graph.value_info[:]
    path, output = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.save(model, path)
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(5).standard_normal((2, 3, 64, 96), "f"))
    for portable in (True, False):
        options = Options(
            session="stock", portable=portable, threads=1, time_limit=1, dims={"N": 2, "H": 64}
        )
        result = rewrite(path, "min", options, output=output)
        before, after = (opened_with_nothing_set(p, tmp_path / "x.npz", 1) for p in (path, output))
        assert before == after, rewrite_text(result)
        assert onnx.load(output).graph.input[0] == model.graph.input[0]
        session = ort.InferenceSession(str(output), providers=["CPUExecutionProvider"])
        other = {"x": np.zeros((2, 3, 32, 96), "f")}
        if not result.any_size:
            with pytest.raises(RUNTIME_ERRORS, match="this file is for x of 2x3x64x96"):
                session.run(None, other)
            assert "checked when it runs" in rewrite_text(result)
