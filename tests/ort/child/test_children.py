"""Children end with their parent, and signals of a terminal do not reach them."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from onnxremat.ort.child.children import child_environment, end_children, run_child
from onnxremat.ort.child.malloc import Malloc
from tests.ort.child import code_worker
from tests.ort.child.code_worker import CODE

ROOT = Path(__file__).parent.parent.parent.parent
SLEEPER = "import os, time; open('pid.new', 'w').write(str(os.getpid())); os.rename('pid.new', 'pid'); time.sleep(120)"
PARENT = "import sys; from pathlib import Path; from onnxremat.ort.child.children import run_child; run_child(sys.argv[1], Path(sys.argv[2]))"


def worker(folder: Path, code: str) -> str:
    """A worker that does `code` in the folder of the job, which it makes, too."""
    (folder / "job").mkdir()
    (folder / "job" / CODE).write_text(code, encoding="utf-8")
    return code_worker.__name__


def running(folder: Path) -> int:
    """The number of a sleeper, once it sleeps."""
    path = folder / "job" / "pid"
    while not path.exists():
        time.sleep(0.01)
    return int(path.read_text(encoding="ascii"))


def ends(process: int) -> bool:
    """Whether a process ends within a minute; one that nobody has waited for yet has ended."""
    for _ in range(600):
        try:
            os.kill(process, 0)
            stat = Path(f"/proc/{process}/stat")
            if stat.exists() and stat.read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (ProcessLookupError, FileNotFoundError):
            return True
        time.sleep(0.1)
    return False


def test_a_child_has_a_process_group_and_a_temporary_folder_of_its_own(tmp_path: Path) -> None:
    code = "import os, sys, tempfile\nopen('said', 'w').write(f'{os.getpgid(0)} {tempfile.gettempdir()} {sys.argv[1]} {os.getcwd()}')"
    ended = run_child(worker(tmp_path, code), tmp_path / "job")
    assert (ended.returncode, ended.log) == (0, "")
    group, *folders = (tmp_path / "job" / "said").read_text().split()
    assert int(group) != os.getpgid(0)
    assert folders == [str(tmp_path / "job")] * 3


def test_the_last_words_of_a_worker_are_kept(tmp_path: Path) -> None:
    ended = run_child("this", tmp_path)
    assert (ended.returncode, ended.log) == (0, "")
    ended = run_child("no_such_module", tmp_path)
    assert ended.returncode == 1
    assert "no_such_module" in ended.log.splitlines()[-1]


@pytest.mark.skipif(sys.platform == "win32", reason="os.kill has other meanings there")
def test_a_child_does_not_outlive_a_parent_that_is_killed(tmp_path: Path) -> None:
    sleeper = worker(tmp_path, SLEEPER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", PARENT, sleeper, str(tmp_path / "job")]
    with subprocess.Popen(command, env=environment) as parent:
        child = running(tmp_path)
        parent.send_signal(signal.SIGKILL)
        assert ends(child)


def test_without_help_of_the_system_a_child_watches_the_pipe_of_its_parent() -> None:
    code = (
        "import time; from onnxremat.ort.child import start; start._killed_by_kernel = lambda: False; "
        "start.tie_to_parent(0); print('tied', flush=True); time.sleep(120)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        assert child.poll() is None
        child.stdin.close()
        assert child.wait(timeout=60) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux for a signal")
def test_a_child_whose_parent_is_gone_already_ends_at_once() -> None:
    code = "from onnxremat.ort.child.start import tie_to_parent; tie_to_parent(1); print('went on')"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, check=False
    )
    assert (done.returncode, done.stdout) == (1, b"")


def test_children_can_be_ended_while_they_are_waited_for(tmp_path: Path) -> None:
    waiter = threading.Thread(target=run_child, args=(worker(tmp_path, SLEEPER), tmp_path / "job"))
    waiter.start()
    child = running(tmp_path)
    end_children()
    waiter.join(timeout=60)
    assert not waiter.is_alive()
    assert ends(child)


def test_the_environment_of_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    dirty = {
        "MALLOC_ARENA_MAX": "1",
        "LD_PRELOAD": "x.so",
        "OMP_NUM_THREADS": "7",
        "PYTHONMALLOC": "debug",
        "ORT_LOAD_CONFIG_FROM_MODEL": "1",
        "HOME": "/nowhere",
    }
    for name, text in dirty.items():
        monkeypatch.setenv(name, text)
    made = child_environment(Malloc.USUAL)
    assert set(dirty) & set(made) == {"HOME"}
    thresholds = child_environment(Malloc.RETURNING)
    assert thresholds["MALLOC_MMAP_THRESHOLD_"] == "65536"
    assert thresholds["MALLOC_TRIM_THRESHOLD_"] == "65536"
