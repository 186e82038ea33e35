"""Children: started in one way, out of reach of the terminal's Ctrl-C, ended with their parent.

A child is a module that does the work in a folder (`worker`), started through `start`.
It gets the parent's environment without what changes memory, threads and imports, and puts
temporary files of its own into its folder. Ctrl-C on a terminal reaches the parent alone, which
decides what becomes of the child.

A child does not outlive its parent, however that ends:

- while the parent runs, it kills the child when it is interrupted itself, or when the child takes
  longer than any run of the model can (see `run_limit`);
- Linux: the kernel kills the child when its parent is gone (PR_SET_PDEATHSIG, set in `start`);
- elsewhere a thread of the child watches a pipe whose other end only the parent has, and ends the
  process when that is closed. What ONNX Runtime does without giving way to other threads of Python
  is finished first. The thread is tested on Linux; that macOS and Windows behave the same is not;
- Windows besides: the child belongs to a job object that is closed with the parent. Not tested.
"""

import os
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from onnxremat.core.errors import ModelError
from onnxremat.ort.child.job_object import close_handle, killed_on_close
from onnxremat.ort.child.malloc import Malloc
from onnxremat.ort.child.run_limit import LATER, current_limit

START = "onnxremat.ort.child.start"
_DROPPED = ("MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", "PYTHON", "OMP_", "KMP_", "ORT_", "MEMRAY_")
_PACKAGES = Path(__file__).resolve().parents[3]
_TEMPORARY = ("TMPDIR", "TEMP", "TMP")
_running: set[subprocess.Popen[str]] = set()


@dataclass(frozen=True)
class Ended:
    """A child that is over: its exit code (negative: the signal that ended it), and its stderr."""

    returncode: int
    log: str


def run_child(
    worker: str,
    folder: Path,
    malloc: Malloc = Malloc.USUAL,
    budget_seconds: float = 0.0,
) -> Ended:
    """Run the module named `worker` on `folder`, and wait for its end.

    The child is killed if the parent leaves by an exception. Raises ModelError if it does not end
    within the limit of runs (`run_limit`) and `budget_seconds`, the time that it is told to spend.
    """
    limit = current_limit()
    memory = "all" if limit.memory_bytes is None else str(limit.memory_bytes)
    command = [sys.executable, "-P", "-m", START, str(os.getpid()), memory, worker, str(folder)]
    seconds = limit.seconds() + budget_seconds
    started = time.monotonic()
    with lifeline() as theirs, _started(command, folder, malloc, theirs) as child:
        try:
            _, log = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            earlier = limit.seconds() > limit.granted_seconds
            why = f" ({LATER} times what a process of this model took before)" if earlier else ""
            raise ModelError(
                f"ONNX Runtime did not come to an end in {seconds:.0f} s{why}: a loop in the model "
                "may run for ever; if it only takes long, --run-limit gives it more time"
            ) from None
    limit.learn(time.monotonic() - started - budget_seconds)
    return Ended(child.returncode, log)


def end_children() -> None:
    """Kill all children that run, and wait until they are gone: for a process that is about to end.

    May be called while `run_child` waits for the same child, in a signal handler for one.
    """
    for child in tuple(_running):
        child.kill()
        if os.name == "posix":
            with suppress(ChildProcessError):
                os.waitpid(child.pid, 0)  # Popen.wait would wait for a lock of the waiting caller
        else:
            child.wait()


@contextmanager
def lifeline() -> Iterator[int]:
    """The end for the child of a pipe that is open as long as this process lives, and the block."""
    theirs, ours = os.pipe()
    try:
        yield theirs
    finally:
        os.close(theirs)
        os.close(ours)


@contextmanager
def _started(
    command: Sequence[str], folder: Path, malloc: Malloc, stdin: int
) -> Iterator[subprocess.Popen[str]]:
    """The child, known to `end_children` inside the block, and killed if that fails."""
    windows = sys.platform == "win32"
    with (
        subprocess.Popen(
            command,
            cwd=folder,
            env=child_environment(malloc) | dict.fromkeys(_TEMPORARY, str(folder)),
            stdin=stdin,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            errors="replace",
            process_group=None if windows else 0,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        ) as child,
        tied(child),
    ):
        yield child


@contextmanager
def tied(child: subprocess.Popen[str]) -> Iterator[None]:
    """Inside the block a child is known to `end_children`, and killed if the block fails."""
    job = None
    try:
        _running.add(child)
        job = killed_on_close(child)
        yield
    except BaseException:
        child.kill()
        child.wait()
        raise
    finally:
        _running.discard(child)
        close_handle(job)


def child_environment(malloc: Malloc) -> dict[str, str]:
    """The parent's environment without settings that change memory, threads or imports."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    kept["PYTHONDONTWRITEBYTECODE"] = "1"
    paths = [str(_PACKAGES), os.environ.get("PYTHONPATH", "")]
    if paths[0] == sysconfig.get_path("purelib"):
        del paths[0]  # in front of the standard library it would hide some of that
    kept["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    return kept | malloc.value
