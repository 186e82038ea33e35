"""The hook for pre-commit, with the real pre-commit: a budget holds a commit up."""

import re
import subprocess
import sys
from pathlib import Path

import onnx
import pytest

from tests.commands.small_models import wide
from tests.pipelines.checkout import committed, copied, offline_environment
from tests.pipelines.page import file_block

pytest.importorskip("pre_commit", reason="the package pre-commit is not there")
pytestmark = pytest.mark.slow

NAME, SHOWN = file_block("pre-commit")


@pytest.fixture(scope="module")
def hooks(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    folder = copied(tmp_path_factory.mktemp("hooks") / "onnxremat")
    return folder, committed(folder)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where pre-commit keeps the environments that it makes."""
    return tmp_path_factory.mktemp("store")


def run(
    folder: Path, hooks: tuple[Path, str], store: Path, arguments: str = ""
) -> subprocess.CompletedProcess[str]:
    repository, revision = hooks
    text = SHOWN.replace("URL-OF-ONNXREMAT", str(repository)).replace("COMMIT", revision)
    text = re.sub(r"args: \[.*\]", lambda shown: f"args: [{arguments or shown[0][7:-1]}]", text)
    (folder / NAME).write_text(text, encoding="utf-8")
    subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
    return subprocess.run(
        [sys.executable, "-m", "pre_commit", "run", "--color=never"],
        cwd=folder,
        env=offline_environment(PRE_COMMIT_HOME=str(store)),
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_commit_is_held_up_by_a_model_above_its_budget(
    hooks: tuple[Path, str], store: Path, tmp_path: Path
) -> None:
    committed_first = tmp_path / "README"
    committed_first.write_text("a repository with models\n", encoding="utf-8")
    committed(tmp_path)
    done = run(tmp_path, hooks, store)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "no files to check" in done.stdout
    model = tmp_path / "a model.onnx"
    onnx.save(wide(64), model)
    before = model.read_bytes()
    done = run(tmp_path, hooks, store)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Passed" in done.stdout
    done = run(tmp_path, hooks, store, "1KB")
    assert done.returncode == 1
    for part in ("exit code: 7", "a model.onnx", "above 1KB: most at step", "--fail-above 1KB"):
        assert part in done.stdout
    done = run(tmp_path, hooks, store, "--threads, '1'")
    assert done.returncode == 1, "the budget has to be there"
    assert "exit code: 2" in done.stdout
    assert model.read_bytes() == before
