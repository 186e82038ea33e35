"""What the page about pipelines shows runs as it stands there."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import onnx
import pytest

import onnxremat
from tests.commands.small_models import wide
from tests.pipelines.checkout import ROOT
from tests.pipelines.page import PAGE, blocks, file_block

pytestmark = pytest.mark.slow


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with the models that the page names."""
    onnx.save(wide(), tmp_path / "model.onnx")
    onnx.save(wide(), tmp_path / "large.onnx", save_as_external_data=True, size_threshold=0)
    (tmp_path / "models").mkdir()
    shutil.copy(tmp_path / "model.onnx", tmp_path / "models" / "one.onnx")
    return tmp_path


@pytest.mark.skipif(
    "ONNXREMAT_EVERYTHING" not in os.environ,
    reason="three files for default sessions take a minute: benchmarks/everything.sh makes them",
)
def test_the_python_of_the_page(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace)
    quick = onnxremat.Options(threads=1, time_limit=1, measure_limit=2)
    usual = onnxremat.rewrite

    def rewrite(*arguments: object, **named: object) -> object:
        return usual(*arguments, options=quick, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(onnxremat, "rewrite", rewrite, raising=False)
    known: dict[str, object] = {}
    for code in blocks("From Python", "python"):
        exec(code, known)
    assert {"slim.onnx", "slim.onnx.data", "slim_large.onnx"} <= set(os.listdir())
    slim = known["slim"]
    assert isinstance(slim, onnxremat.RewriteResult)
    assert slim.rewritten.peak_bytes <= 0.8 * slim.original.peak_bytes


def test_the_commands_of_the_page(workspace: Path) -> None:
    (code,) = blocks("A memory budget", "sh")
    commands = code.splitlines()
    assert all(line.startswith("onnxremat audit ") for line in commands)
    paths = f"{ROOT}:{ROOT / 'rewriters'}"
    script = "\n".join(
        line.replace("onnxremat", f"'{sys.executable}' -m onnxremat", 1) for line in commands
    )
    done = subprocess.run(
        ["bash", "-e", "-c", script],
        cwd=workspace,
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("within 64MB") == 2
    assert json.loads(done.stdout[done.stdout.index("{") :])["budget"]["mem_of"] == "process"
    assert json.loads((workspace / "budget.sarif").read_text("utf-8"))["version"] == "2.1.0"
    assert ElementTree.parse(workspace / "budget.xml").getroot().get("tests") == "1"


def test_every_block_of_the_page_is_one_that_a_test_runs() -> None:
    shown = PAGE.read_text("utf-8").count("\n```") // 2
    run = [
        *blocks("From Python", "python"),
        *blocks("A memory budget", "sh"),
        *blocks("Microsoft Olive", "sh"),
        *(file_block(title) for title in ("pre-commit", "GitHub Actions", "Microsoft Olive")),
    ]
    assert len(run) == shown
