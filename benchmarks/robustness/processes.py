"""The product started under limits, and how it ended.

`forked` runs a function in a fork of this process, which has imported everything and compiled the
kernels once (`load_product`): a few hundredths of a second instead of two seconds. `spawned` runs a
command as a process of its own. Both are told apart by nothing else: an own process group, an own
folder for temporary files, a limit of time and of memory; what the process leaves running is found,
because this process adopts it, and ended. Linux only.
"""

import atexit
import contextlib
import ctypes
import gc
import os
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.robustness import TELEMETRY

ORPHAN_SECONDS = 5.0
"""So long may what a process started live on after it."""

GUARD_BYTES = 4 << 30
"""No process may hold more than this of its own (it then gets no memory, and has to say so)."""

_SUBREAPER = 36
_OUTPUT, _ERRORS = "stdout.txt", "stderr.txt"


@dataclass(frozen=True)
class Ended:
    """How a process ended: `code` as in subprocess (negative: by a signal), None if it was ended
    here because it was over its limit of time. `peak_bytes`: the most resident memory that it or
    one of its children had. `orphans`: how many processes it left for over ORPHAN_SECONDS."""

    code: int | None
    seconds: float
    peak_bytes: int
    stdout: str
    stderr: str
    orphans: int = 0

    @property
    def hang(self) -> bool:
        """Whether it had to be ended."""
        return self.code is None

    @property
    def last_line(self) -> str:
        """What it said last on stderr."""
        lines = [line for line in self.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else ""


def load_product(model: Path) -> None:
    """Import what commands import, and compile the kernels, by running some on a small model."""
    import memray  # noqa: F401

    from benchmarks.robustness import forked_jobs
    from onnxremat.cli import app as cli
    from onnxremat.ort import session  # noqa: F401
    from onnxremat.ort.child import actions, worker  # noqa: F401
    from onnxremat.planners import compile_kernels
    from onnxremat.system.interrupts import INTERRUPTS, Interrupts

    compile_kernels()
    target = model.with_name("loaded.onnx")
    quick = ["--mem", "min", "--time-limit", "0.3", "-o", str(target)]
    before = subprocess.Popen
    forked_jobs.install()
    try:
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            for command in (
                ["rewrite", "--session=recipe", str(model), *quick],
                ["audit", str(model)],
                ["verify", str(model), str(target)],
            ):
                cli.app(command, standalone_mode=False)
    finally:
        subprocess.Popen = before  # type: ignore[misc]
        vars(INTERRUPTS).update(vars(Interrupts()))  # the commands above have ended, ours has not
    gc.collect()
    gc.freeze()


def adopt_orphans() -> None:
    """Make this process the parent of what its children leave behind."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl")


def forked(
    function: Callable[[], int], folder: Path, *, seconds: float, temporary: Path | None = None
) -> Ended:
    """Run `function` in a fork, in `folder`; what it returns, or raises, is its exit code."""
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        with leaving():
            _become_command(folder, temporary)
            os._exit(ended_as(function))
    return _wait(pid, start, seconds, folder)


def spawned(
    command: Sequence[str],
    folder: Path,
    *,
    seconds: float,
    environment: Mapping[str, str] | None = None,
) -> Ended:
    """Run a command as a process of its own, in `folder`."""
    start = time.monotonic()
    with (folder / _OUTPUT).open("wb") as output, (folder / _ERRORS).open("wb") as errors:
        child = subprocess.Popen(
            command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
            stderr=errors, start_new_session=True, preexec_fn=guard_memory,  # noqa: PLW1509
        )  # fmt: skip
    ended = _wait(child.pid, start, seconds, folder)
    child.returncode = 0  # it was waited for here
    return ended


def environment_of_users(**changes: str | None) -> dict[str, str]:
    """This process's environment with changes (None: without), and without what it set itself."""
    changed: dict[str, str | None] = {**os.environ, TELEMETRY: None, **changes}
    return {name: value for name, value in changed.items() if value is not None}


def guard_memory() -> None:
    """Limit what this process and its children may hold."""
    resource.setrlimit(resource.RLIMIT_DATA, (GUARD_BYTES, GUARD_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class leaving:
    """Inside, a forked process never gets back into the code of its parent."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, *_raised: object) -> None:
        traceback.print_exc()
        os._exit(1)


def _become_command(folder: Path, temporary: Path | None) -> None:
    """What a fork needs to be like a command that was just started."""
    os.setsid()
    os.chdir(folder)
    guard_memory()
    if temporary is not None:
        os.environ["TMPDIR"] = str(temporary)
    nothing = os.open(os.devnull, os.O_RDONLY)
    output = os.open(folder / _OUTPUT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    errors = os.open(folder / _ERRORS, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    fresh_python(nothing, output, errors)


def fresh_python(stdin: int, stdout: int, stderr: int) -> None:
    """Let go of what a started interpreter would not have: handlers of signals, what is to be done
    at the end, buffered output, the folder for temporary files that was found before."""
    import tempfile

    atexit._clear()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tempfile.tempdir = None
    for number, given in enumerate((stdin, stdout, stderr)):
        if given >= 0 and given != number:
            os.dup2(given, number)
    sys.stdin = os.fdopen(0, "r", closefd=False)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(
        2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False
    )


def ended_as(function: Callable[[], int]) -> int:
    """Run a function as the main program of an interpreter: the exit code it has then."""
    try:
        code: object = function()
    except SystemExit as stop:
        code = stop.code
    except BaseException:  # noqa: BLE001 - as the interpreter does
        traceback.print_exc()
        code = 1
    try:
        atexit._run_exitfuncs()
        sys.stdout.flush()
    except OSError:
        return 120
    finally:
        sys.stderr.flush()
    return code if isinstance(code, int) else int(code is not None)


def _wait(pid: int, start: float, seconds: float, folder: Path) -> Ended:
    """Wait for a process, at most until `seconds` after `start`; then nothing of it is left."""
    handle = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        done = bool(poll.poll(max(start + seconds - time.monotonic(), 0) * 1000))
    finally:
        os.close(handle)
    if not done:
        os.killpg(pid, signal.SIGKILL)
    _, status, used = os.wait4(pid, 0)
    elapsed = time.monotonic() - start
    code = os.waitstatus_to_exitcode(status) if done else None
    orphans = end_orphans(ORPHAN_SECONDS if done else 0)
    texts = (_read(folder / _OUTPUT), _read(folder / _ERRORS))
    return Ended(code, elapsed, used.ru_maxrss * 1024, *texts, orphans if done else 0)


def end_orphans(seconds: float) -> int:
    """Wait for what was adopted, so long; end and count what is still there."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return 0
        if pid == 0:
            if time.monotonic() >= deadline:
                break
            time.sleep(0.01)
    left = _children()
    for child in left:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return len(left) + (end_orphans(0.2) if left else 0)


def _children() -> list[int]:
    """The processes whose parent this one is."""
    tasks = Path("/proc/self/task")
    found = [(task / "children").read_text().split() for task in tasks.iterdir()]
    return sorted({int(pid) for pids in found for pid in pids})


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
