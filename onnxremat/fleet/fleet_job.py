"""One job in a process of its own: what it is asked, what it answers, and what is known if it died.

The process is a module, run as `python -m WORKER PARENT FOLDER`. It finds what it is asked in
FOLDER, puts its answer there, and ends with 0; `answer_job` is its side of that. It does not
outlive the process that started it (`ort.child.start.tie_to_parent`), and out of the terminal's
reach it gets no Ctrl-C.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, Self

from onnxremat.ort.child.children import child_environment, lifeline, tied
from onnxremat.ort.child.malloc import Malloc
from onnxremat.ort.child.start import tie_to_parent
from onnxremat.system.temporary import temporary_folder

POLL_SECONDS = 0.05
"""How often it is asked whether a process has ended."""
_ASKED, _ANSWER, _LOG = "asked.json", "answer.json", "log"
_LOG_BYTES = 4096


@dataclass(frozen=True)
class FleetJob:
    """`key` names it, `worker` is the module that does it, and `asked` is what that is told, in
    terms of JSON. `memory_bytes`: about what its processes take."""

    key: str
    worker: str
    asked: Mapping[str, Any]
    memory_bytes: int = 0


@dataclass(frozen=True)
class JobEnd:
    """The end of the job `key`: its `answer`, or `reason` says why there is none."""

    key: str
    answer: Mapping[str, Any] | None
    reason: str
    seconds: float


class JobListener(Protocol):
    """Told what becomes of jobs, one call at a time."""

    def started(self, job: FleetJob) -> None: ...

    def ended(self, end: JobEnd) -> None: ...


class RunningJob:
    """A job whose process runs inside the `with` block. It is killed at the end of the block."""

    def __init__(self, job: FleetJob) -> None:
        self.job = job
        self._began = time.monotonic()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._folder = stack.enter_context(temporary_folder())
            asked = json.dumps(dict(self.job.asked))
            (self._folder / _ASKED).write_text(asked, encoding="ascii")
            log = stack.enter_context((self._folder / _LOG).open("wb"))
            theirs = stack.enter_context(lifeline())
            self._process = stack.enter_context(_process(self.job, self._folder, theirs, log))
            stack.enter_context(tied(self._process))
            stack.callback(self._kill)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _kill(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def end(self) -> JobEnd | None:
        """How it ended, None as long as it runs."""
        code = self._process.poll()
        if code is None:
            return None
        answer = self._answer()
        reason = "" if answer is not None else _death(code, self._last_words())
        return JobEnd(self.job.key, answer, reason, time.monotonic() - self._began)

    def _answer(self) -> Mapping[str, Any] | None:
        try:
            answer = json.loads((self._folder / _ANSWER).read_text(encoding="ascii"))
        except FileNotFoundError:
            return None
        assert isinstance(answer, dict)
        return answer

    def _last_words(self) -> str:
        """The last line that the process wrote on standard error."""
        with (self._folder / _LOG).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _LOG_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


def run_job(job: FleetJob, wanted: Callable[[], bool]) -> JobEnd:
    """Run a job in a process of its own to its end, or until it is not `wanted` any more."""
    with RunningJob(job) as running:
        while (end := running.end()) is None:
            if not wanted():
                return JobEnd(job.key, None, "nobody waits for it any more", 0.0)
            time.sleep(POLL_SECONDS)
        return end


def answer_job(answer: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Be the process of a job (`sys.argv` has the rest): the answer is what `answer` makes of what
    was asked. What it raises ends the process."""
    parent, folder = int(sys.argv[1]), Path(sys.argv[2])
    tie_to_parent(parent)
    asked = json.loads((folder / _ASKED).read_text(encoding="ascii"))
    made = json.dumps(dict(answer(asked)))
    new = folder / f"{_ANSWER}.new"
    new.write_text(made, encoding="ascii")
    new.replace(folder / _ANSWER)


def _process(job: FleetJob, folder: Path, stdin: int, log: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", job.worker, str(os.getpid()), str(folder)],
        env=child_environment(Malloc.USUAL),
        stdin=stdin,
        stdout=subprocess.DEVNULL,
        stderr=log,
        text=True,
        process_group=None if sys.platform == "win32" else 0,
        creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
    )


def _death(code: int, last_words: str) -> str:
    """Why there is no answer, from the exit code of the process and what it wrote last."""
    if code >= 0:
        said = f": {last_words}" if last_words else ""
        return f"its process ended with exit code {code}{said}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    killed = " (as the system does where memory runs out)" if name == "SIGKILL" else ""
    return f"its process was ended by {name}{killed}"
