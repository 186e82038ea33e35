"""Compiled code where no folder can be written, is damaged, or cannot be written any more."""

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from onnxremat import subject as prepare
from onnxremat.stages import COMPILING

pytestmark = pytest.mark.slow

KERNELS = '''
"""A kernel whose cache numba would keep beside this file."""

from onnxremat.system.compilation import compiled


def twice(n):
    return 2 * n


twice = compiled(twice, (1.0, 1), for_python=True)
'''
CALL = """
import json, sys
from pathlib import Path
from onnxremat.system.compilation import is_ready, kept_where
from kernels import twice
before = is_ready(twice)
exec(sys.argv[1])
print(json.dumps([before, twice(21), is_ready(twice), kept_where(twice)]))
"""

posix = pytest.mark.skipif(os.name != "posix", reason="owners and rights are POSIX ones")


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """A folder with a kernel, in which no place of numba's own can be made: a file is in the way
    of each (to whoever may write everywhere rights are no obstacle)."""
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "__pycache__").write_text("in the way")
    (tmp_path / "temporary").mkdir()
    return folder


def call(package: Path, between: str = "") -> tuple[bool, int, bool, str]:
    """Load the kernel in a process of its own, do something, call it: whether it was ready before,
    its answer, whether it is ready then, and where it is kept."""
    nowhere = str(package / "kernels.py" / "nowhere")
    taken = {"HOME": nowhere, "NUMBA_CACHE_DIR": nowhere, "XDG_CACHE_HOME": nowhere}
    done = subprocess.run(
        [sys.executable, "-c", CALL, between],
        cwd=package.parent,
        env={
            **os.environ,
            **taken,
            "PYTHONPATH": os.pathsep.join([str(package), *sys.path]),
            "TMPDIR": str(package.parent / "temporary"),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    before, answer, after, where = json.loads(done.stdout)
    return before, answer, after, where


def private_folder(package: Path) -> Path:
    return package.parent / "temporary" / f"numba-onnxremat-{os.getuid()}"


@posix
def test_a_private_folder_takes_the_place_of_those_that_cannot_be_written(package: Path) -> None:
    folder = private_folder(package)
    where = f"kept in {folder}: no other folder can be written"
    assert call(package) == (False, 42, True, where)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert call(package) == (True, 42, True, where)
    for file in folder.rglob("*.nb[ci]"):
        file.write_bytes(file.read_bytes()[:5])
    assert call(package)[1] == 42
    assert call(package) == (True, 42, True, where)


@posix
@pytest.mark.parametrize("others", ["may read", "own the link"])
def test_a_folder_that_others_can_reach_is_not_used(package: Path, others: str) -> None:
    """What is loaded from it would be executed."""
    folder = private_folder(package)
    if others == "may read":
        folder.mkdir()
        folder.chmod(0o755)
    else:
        (package.parent / "theirs").mkdir(mode=0o700)
        folder.symlink_to(package.parent / "theirs")
    before, answer, after, where = call(package)
    assert (before, answer, after) == (False, 42, True)
    assert where == "in memory, for this run: no folder can be written"
    assert not list(package.parent.rglob("*.nbi"))


@posix
def test_a_cache_that_cannot_be_written_any_more_ends_no_run(package: Path) -> None:
    """As with a full disk: numba looks whether a folder can be written before it compiles."""
    folder = private_folder(package)
    gone = f"import shutil; shutil.rmtree({str(folder)!r}); Path({str(folder)!r}).write_text('')"
    assert call(package, gone)[:3] == (False, 42, True)


@pytest.mark.parametrize("where", ["", "kept in /tmp/x: no other folder can be written"])
def test_where_compiled_code_is_kept_is_said(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    said: list[str] = []
    done: list[bool] = []
    monkeypatch.setattr(prepare, "compiled_kernels_cached", lambda: bool(done))
    monkeypatch.setattr(prepare, "kernels_kept_where", lambda: where)
    monkeypatch.setattr(prepare, "compile_kernels", lambda: done.append(True))
    monkeypatch.setattr(prepare, "load_kernels", lambda: None)
    for _ in range(2):
        prepare.prepare_planner(lambda stage, detail="": said.append(stage))
    assert said == [f"{COMPILING} (about 30 s), {where or 'once on this machine'}"]
