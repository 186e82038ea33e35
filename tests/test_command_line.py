"""The command as a user runs it: what it prints, what it leaves behind, how it ends."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper

ROOT = Path(__file__).parent.parent


def start(*arguments: object, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "onnxremat", *map(str, arguments)]
    paths = f"{ROOT}:{ROOT / 'rewriters'}"
    return subprocess.Popen(
        command,
        cwd=cwd,
        env={"PATH": "", "PYTHONPATH": paths, "HOME": str(cwd), "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def onnxremat(*arguments: object, cwd: Path) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of one command."""
    process = start(*arguments, cwd=cwd)
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def one_line(err: str) -> str:
    lines = err.strip().splitlines()
    assert len(lines) == 1, err
    assert lines[0].startswith("onnxremat: ")
    return lines[0]


def left_behind(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_rewrite_writes_a_verified_file_and_verify_agrees(unet_train: Path, tmp_path: Path) -> None:
    before = unet_train.read_bytes()
    code, out, err = onnxremat(
        "rewrite", unet_train, "--mem", "70%", "-o", "small.onnx", "--time-limit", 5, "--json", cwd=tmp_path
    )  # fmt: skip
    assert code == 0, err
    result = json.loads(out)
    assert result["rewritten"]["peak_bytes"] <= result["limit_bytes"]
    assert result["limit_bytes"] <= 0.7 * result["original"]["peak_bytes"]
    assert result["verification"]["different_outputs"] == []
    assert result["verification"]["order_as_planned"] is True
    assert left_behind(tmp_path) - {".cache"} == {"small.onnx"}
    assert unet_train.read_bytes() == before
    limit = result["limit_bytes"]
    code, out, err = onnxremat("verify", unet_train, "small.onnx", "--mem", limit, cwd=tmp_path)
    assert code == 0, err
    assert "identical bit for bit" in out
    assert "as planned" in out
    code, _, err = onnxremat("verify", unet_train, "small.onnx", "--mem", "1KB", cwd=tmp_path)
    assert code == 6
    assert "above the limit" in one_line(err)


def test_audit_says_where_the_peak_is(unet: Path, tmp_path: Path) -> None:
    code, out, err = onnxremat("audit", unet, "--mem", "10%", cwd=tmp_path)
    assert code == 0, err
    for label in (
        "activation peak",
        "at step",
        "lower bound",
        "held at the peak",
        "impossible for whole ops",
    ):
        assert label in out
    code, out, err = onnxremat("audit", unet, "--fail-above", "1KB", "--json", cwd=tmp_path)
    assert code == 7
    assert "above --fail-above 1KB" in one_line(err)
    assert json.loads(out)["original_peak_bytes"] > 1000
    assert left_behind(tmp_path) <= {".cache"}


def test_a_limit_below_the_bound_is_proved_impossible(unet: Path, tmp_path: Path) -> None:
    code, _, err = onnxremat(
        "rewrite", unet, "--mem", "60%", "--no-tiling", "-o", "x.onnx", cwd=tmp_path
    )
    assert code == 3
    line = one_line(err)
    for part in (
        "impossible with recomputation, reordering and exact substitutes",
        "no schedule goes below",
        "workspace of dec",
    ):
        assert part in line
    assert not (tmp_path / "x.onnx").exists()


def test_planners_are_listed_with_their_source(tmp_path: Path) -> None:
    code, out, _ = onnxremat("planners", cwd=tmp_path)
    assert code == 0
    assert "auto" in out
    assert "local_search" in out
    code, out, _ = onnxremat("planners", "--json", cwd=tmp_path)
    assert {"name", "summary", "source"} <= json.loads(out)[0].keys()


BAD_CALLS = {
    "no such file": (["rewrite", "none.onnx", "--mem", "4MB"], 2, "no such file"),
    "not ONNX": (["rewrite", "text.onnx", "--mem", "4MB"], 5, "not an ONNX model"),
    "empty": (["audit", "empty.onnx"], 5, "empty"),
    "truncated": (["rewrite", "truncated.onnx", "--mem", "4MB"], 5, "truncated.onnx"),
    "unknown dimension": (["rewrite", "good.onnx", "--mem", "4MB", "--dim", "n=2", "--dim", "q=1"], 2, "'q'"),
    "unbound dimension": (["rewrite", "good.onnx", "--mem", "4MB"], 2, "--dim n="),
    "bad dimension": (["audit", "good.onnx", "--dim", "n"], 2, "--dim"),
    "bad size": (["rewrite", "good.onnx", "--mem", "4 apples"], 2, "4 apples"),
    "negative size": (["rewrite", "good.onnx", "--mem=-4MB"], 2, "-4MB"),
    "no size": (["rewrite", "good.onnx"], 2, "--mem"),
    "unknown planner": (["rewrite", "good.onnx", "--mem", "4MB", "--planner", "best"], 2, "'best'"),
    "unknown option": (["rewrite", "good.onnx", "--men", "4MB"], 2, "--men"),
    "no folder": (["rewrite", "good.onnx", "--mem", "4MB", "-o", "none/x.onnx"], 2, "no folder"),
    "onto itself": (["rewrite", "good.onnx", "--mem", "4MB", "-o", "good.onnx"], 2, "untouched"),
    "refused by the runtime": (["rewrite", "refused.onnx", "--mem", "4MB"], 5, "NoSuchOp"),
    "negative seed": (["rewrite", "good.onnx", "--mem", "4MB", "--seed", "-1"], 2, "--seed"),
    "two sizes": (["audit", "good.onnx", "--dim", "n=1", "--dim", "n=2"], 2, "n is given as 1 and as 2"),
    "unknown session": (["rewrite", "good.onnx", "--mem", "4MB", "--session", "mine"], 2, "'mine'"),
    "contradiction": (["rewrite", "good.onnx", "--mem", "4MB", "--session", "stock", "--optimize", "all"], 2, "--optimize"),
    "no inputs": (["audit", "good.onnx", "--inputs", "text.onnx"], 2, "no .npz file"),
    "not ours": (["verify", "good.onnx", "good.onnx", "--dim", "n=1"], 2, "not made by onnxremat"),
}  # fmt: skip


@pytest.fixture
def bad_files(tmp_path: Path) -> Path:
    def save(name: str, node: onnx.NodeProto, rows: str | int) -> bytes:
        x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, 4]) for n in "xy")
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)]
        graph = helper.make_graph([node], "g", [x], [y])
        model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
        onnx.save(model, tmp_path / name)
        return model.SerializeToString()

    content = save("good.onnx", helper.make_node("Relu", ["x"], ["y"]), "n")
    save("refused.onnx", helper.make_node("NoSuchOp", ["x"], ["y"], domain="nowhere"), 1)
    (tmp_path / "truncated.onnx").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.onnx").write_text("this is no model")
    (tmp_path / "empty.onnx").write_bytes(b"")
    return tmp_path


@pytest.mark.parametrize("case", BAD_CALLS)
def test_bad_input_gets_one_line_and_the_right_code(case: str, bad_files: Path) -> None:
    arguments, expected, words = BAD_CALLS[case]
    before = {path.name: path.read_bytes() for path in bad_files.iterdir() if path.is_file()}
    code, _, err = onnxremat(*arguments, cwd=bad_files)
    assert (code, words in one_line(err)) == (expected, True), err
    after = {path.name: path.read_bytes() for path in bad_files.iterdir() if path.is_file()}
    assert after == before


def test_an_error_is_an_object_too(bad_files: Path) -> None:
    code, out, err = onnxremat("rewrite", "none.onnx", "--mem", "4MB", "--json", cwd=bad_files)
    assert code == 2
    assert json.loads(out)["exit_code"] == 2
    assert json.loads(out)["error"] in one_line(err)


def test_ctrl_c_before_a_plan_meets_the_limit_ends_with_130(
    unet_train: Path, tmp_path: Path
) -> None:
    """A hair above the bound: nothing is found in ten minutes, whenever the signal comes."""
    code, out, err = onnxremat("audit", unet_train, "--json", cwd=tmp_path)
    assert code == 0, err
    limit = json.loads(out)["floor"]["nbytes"] + 1
    process = start(
        "rewrite", unet_train, "--mem", limit, "-o", "x.onnx", "--time-limit", 600, cwd=tmp_path
    )
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in one_line(err)
    assert left_behind(tmp_path) <= {".cache"}
