"""The command as a user runs it: what it prints, what it leaves behind, how it ends."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxremat.commands.rewrite import rewrite
from onnxremat.options import Options
from onnxremat.stages import PLANNING

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent


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
    """The message of a command, without what it said every ten seconds of its progress."""
    lines = [line for line in err.strip().splitlines() if not re.search(r" \(\d+ s\)$", line)]
    assert len(lines) == 1, err
    assert lines[0].startswith("onnxremat: ")
    return lines[0]


def left_behind(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_rewrite_writes_a_verified_file_and_verify_agrees(unet_train: Path, tmp_path: Path) -> None:
    before = unet_train.read_bytes()
    code, out, err = onnxremat(
        "rewrite", "--session=recipe", unet_train, "--mem", "70%", "-o", "small.onnx", "--time-limit", 5, "--json", cwd=tmp_path
    )  # fmt: skip
    assert code == 0, err
    result = json.loads(out)
    assert result["rewritten"]["peak_bytes"] <= result["limit_bytes"]
    assert result["limit_bytes"] <= 0.7 * result["original"]["peak_bytes"]
    assert result["verification"]["different_outputs"] == []
    assert result["verification"]["order_as_planned"] is True
    assert result["attempts"][-1]["outcome"] and result["target"] == "recipe"
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
    (checked,) = json.loads(out)["checks"]
    assert checked["measured_bytes"] > 1000 and checked["exceeded"] and checked["peak"]["op"]
    assert left_behind(tmp_path) <= {".cache"}


def test_a_limit_below_the_bound_is_proved_impossible(unet: Path, tmp_path: Path) -> None:
    code, _, err = onnxremat(
        "rewrite",
        "--session=recipe",
        unet,
        "--mem",
        "60%",
        "--no-tiling",
        "-o",
        "x.onnx",
        cwd=tmp_path,
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
    assert {"name", "summary", "source"} <= json.loads(out)["planners"][0].keys()


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
    "one array": (["audit", "good.onnx", "--inputs", "array.npy"], 2, "no .npz file"),
    "feed of another name": (["audit", "good.onnx", "--inputs", "name.npz"], 2, "no such input"),
    "feed of no name": (["audit", "good.onnx", "--inputs", "none.npz"], 2, "no value for input 'x'"),
    "feed of another type": (["audit", "good.onnx", "--inputs", "type.npz"], 2, "'x' must be float"),
    "feed of another rank": (["audit", "good.onnx", "--inputs", "rank.npz"], 2, "has 2 dimensions"),
    "feed of another shape": (["audit", "good.onnx", "--inputs", "shape.npz"], 2, "'x', axis 1: the model says 4"),
    "feed without elements": (["audit", "good.onnx", "--inputs", "empty.npz"], 2, "'x', axis 1: the model says 4"),
    "feed for verify": (["verify", "good.onnx", "made.onnx", "--inputs", "type.npz"], 2, "'x' must be float"),
    "feed of another size": (["verify", "good.onnx", "made.onnx", "--inputs", "size.npz"], 2, "planned for input 'x' of shape [2, 4]"),
    "other inputs": (["verify", "other.onnx", "made.onnx"], 2, "made.onnx was made from another model than other.onnx"),
    "other outputs": (["verify", "like.onnx", "made.onnx"], 6, "made.onnx was made from another model than like.onnx: outputs differ (y)"),
    "not ours": (["verify", "good.onnx", "good.onnx", "--dim", "n=1"], 2, "not made by onnxremat"),
}  # fmt: skip


def save(path: Path, node: onnx.NodeProto, rows: str | int) -> bytes:
    """A model of one node from its input to y, both of `rows` times 4."""
    names = (*node.input, "y")
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, 4]) for n in names)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("nowhere", 1)]
    graph = helper.make_graph([node], "g", [x], [y])
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    onnx.save(model, path)
    return model.SerializeToString()


def save_good(path: Path) -> bytes:
    return save(path, helper.make_node("Relu", ["x"], ["y"]), "n")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """What `rewrite` makes of good.onnx for two rows alone."""
    folder = tmp_path_factory.mktemp("made")
    save_good(folder / "good.onnx")
    options = Options(dims={"n": 2}, time_limit=1, runtime="generic")
    rewrite(folder / "good.onnx", "1GB", options, output=folder / "made.onnx")
    return (folder / "made.onnx").read_bytes()


@pytest.fixture
def bad_files(tmp_path: Path, made: bytes) -> Path:
    content = save_good(tmp_path / "good.onnx")
    save(tmp_path / "like.onnx", helper.make_node("Neg", ["x"], ["y"]), "n")
    save(tmp_path / "other.onnx", helper.make_node("Relu", ["z"], ["y"]), 2)
    refused = helper.make_node("NoSuchOp", ["x"], ["y"], domain="nowhere")
    save(tmp_path / "refused.onnx", refused, 1)
    (tmp_path / "truncated.onnx").write_bytes(content[: len(content) // 2])
    (tmp_path / "text.onnx").write_text("this is no model")
    (tmp_path / "empty.onnx").write_bytes(b"")
    (tmp_path / "made.onnx").write_bytes(made)
    np.save(tmp_path / "array.npy", np.zeros((2, 4), "f"))
    np.savez(tmp_path / "none.npz")
    for name, feeds in FEEDS.items():
        np.savez(tmp_path / f"{name}.npz", **feeds)
    return tmp_path


FEEDS: dict[str, dict[str, np.ndarray]] = {
    "name": {"x": np.zeros((2, 4), "f"), "q": np.zeros(1, "f")},
    "type": {"x": np.zeros((2, 4), "d")},
    "rank": {"x": np.zeros((2, 4, 1), "f")},
    "shape": {"x": np.zeros((2, 5), "f")},
    "empty": {"x": np.zeros((2, 0), "f")},
    "size": {"x": np.zeros((3, 4), "f")},
}


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


def test_why_plans_were_refused(tmp_path: Path) -> None:
    """A table under the result; on a miss on standard output, and in the object of the error."""
    save_good(tmp_path / "good.onnx")
    call = [
        "rewrite",
        "--session=recipe",
        "good.onnx",
        "--dim",
        "n=2",
        "--no-tiling",
        "--time-limit",
        1,
    ]
    code, out, err = onnxremat(*call, "--mem", "1MB", "--explain", cwd=tmp_path)
    assert code == 0, err
    assert out.splitlines()[-1].strip() == "taken"
    code, out, err = onnxremat(*call, "--mem", "20B", "--explain", cwd=tmp_path)
    assert code == 3
    assert "impossible" in one_line(err)
    assert out.startswith("plan of") and "refused: no schedule goes below 32 B" in out
    code, out, _ = onnxremat(*call, "--mem", "20B", "--json", cwd=tmp_path)
    assert code == 3
    (one,) = json.loads(out)["attempts"]
    assert one["planned_bytes"] == 32 and one["measured_bytes"] is None


def test_ctrl_c_before_a_plan_meets_the_limit_ends_with_130(
    unet_train: Path, tmp_path: Path
) -> None:
    """A hair above the bound: nothing is found in ten minutes, whenever the signal comes."""
    code, out, err = onnxremat("audit", unet_train, "--json", cwd=tmp_path)
    assert code == 0, err
    limit = json.loads(out)["floor"]["nbytes"] + 1
    process = start(
        "rewrite",
        "--session=recipe",
        unet_train,
        "--mem",
        limit,
        "-o",
        "x.onnx",
        "--time-limit",
        600,
        cwd=tmp_path,
    )
    assert process.stderr is not None
    while f"{PLANNING}:" not in process.stderr.readline():
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert "interrupted" in one_line(err)
    assert left_behind(tmp_path) <= {".cache"}


EVIL = "\x1b]0;title\x07\x1b[31mred\nonnxremat: all is well\x9b2J"


def evil(kind: str) -> onnx.ModelProto:
    """A model whose names are orders to a terminal."""
    nodes = [
        helper.make_node("Exp", ["x"], [f"a{EVIL}"], name=f"first{EVIL}"),
        helper.make_node("Concat", ["x", f"a{EVIL}"], ["b"], axis=1, name=f"join{EVIL}"),
        helper.make_node("ReduceSum", ["b"], ["y"], keepdims=0),
    ]
    rows: str | int = 8
    if kind == "an open dimension":
        rows = f"dim{EVIL}"
    elif kind == "an unknown op":
        nodes[0].op_type, nodes[0].domain = f"Op{EVIL}", "own"
    elif kind == "a value that nothing makes":
        nodes[0].input[0] = f"none{EVIL}"
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 4])
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", 1, None)])
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("names in a report", 0),
        ("an open dimension", 2),
        ("an unknown op", 5),
        ("a value that nothing makes", 5),
    ],
)
def test_names_are_printed_escaped(kind: str, expected: int, tmp_path: Path) -> None:
    path = tmp_path / "\x1b[2Jevil.onnx"
    onnx.save(evil(kind), path)
    code, out, err = onnxremat("audit", path, cwd=tmp_path)
    assert code == expected, err
    lines = (out + err).splitlines()
    assert all(line.isprintable() for line in lines), lines
    assert not any(line.startswith("onnxremat: all is well") for line in lines)
    assert "\\x1b]0;title\\x07" in (out if code == 0 else err)


def test_json_is_ascii(tmp_path: Path) -> None:
    onnx.save(evil("names in a report"), tmp_path / "evil.onnx")
    code, out, err = onnxremat("audit", "evil.onnx", "--json", cwd=tmp_path)
    assert code == 0, err
    assert out.isascii()
    assert all(line.isprintable() for line in out.splitlines())
    assert any(EVIL in held["name"] for held in json.loads(out)["peak"]["held"])
