"""Commands ended by signals at random moments: what they leave, also after the next start.

A kill is a real process in a session of its own. The moment is uniform over the time that the same
command takes when it is left alone. The signal goes to the process alone, or to its group as on a
terminal. Afterwards the input is intact; the output is not there, or whole; a command that ended by
itself has cleaned up; no process is left after 5 s; and the next start removes what SIGKILL left.
"""

import hashlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.robustness import direct, seeds
from benchmarks.robustness.judging import Line, exception, in_parallel, temporary_left
from benchmarks.robustness.processes import ORPHAN_SECONDS, end_orphans, environment_of_users

END_SECONDS = 60.0
"""So long may a command take to end after SIGINT (which keeps a plan that was found) or SIGTERM."""

ALONE_SECONDS = 300.0

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
INTERRUPTED = 130
_QUICK = ("--time-limit", "1")
_REWRITE = ("rewrite", "--session=recipe", "model.onnx", "--mem")
COMMANDS: Mapping[str, tuple[str, ...]] = {
    "rewrite": (*_REWRITE, "min", *_QUICK, "-o", "out/new.onnx"),
    "rewrite with a plan": (
        *_REWRITE, "100%", *_QUICK, "-o", "out/new.onnx",
        "--emit-plan", "out/new.json",
    ),
    "replace": (*_REWRITE, "min", *_QUICK, "-o", "out/old.onnx"),
    "audit": ("audit", "model.onnx"),
}  # fmt: skip
NEXT = (*_REWRITE, "min", "--time-limit", "0.1", "--no-verify", "--no-tiling")
_OLD = b"an older file"


@dataclass(frozen=True)
class Kill:
    """A kill and how it ended; `wrong` is empty if that was right."""

    number: int
    command: str
    signal: str
    group: bool
    moment: float
    code: int | None
    seconds_to_end: float
    wrong: tuple[str, ...]
    message: str = ""


@dataclass(frozen=True)
class Plan:
    """What kills need: folder, number that random choices depend on, seconds of commands alone."""

    root: Path
    seed: int
    alone: Mapping[str, float]


def _start(folder: Path, arguments: Sequence[str]) -> subprocess.Popen[bytes]:
    environment = environment_of_users(TMPDIR=str(folder / "tmp"))
    with (folder / "stdout.txt").open("wb") as output, (folder / "stderr.txt").open("wb") as errors:
        return subprocess.Popen(
            [sys.executable, "-m", "onnxremat", *arguments],
            cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors,
            start_new_session=True,
        )  # fmt: skip


def _prepare(folder: Path) -> Path:
    """A folder with a model, its weights, an older output, and a folder for temporary files."""
    for name in ("out", "tmp"):
        (folder / name).mkdir(parents=True)
    (folder / "out" / "old.onnx").write_bytes(_OLD)
    seed = next(one for one in seeds.seeds() if one.name == "external")
    seed.write(folder)
    return folder


def _hashes(folder: Path) -> dict[str, str]:
    return {
        name: hashlib.sha256((folder / name).read_bytes()).hexdigest()
        for name in ("model.onnx", seeds.DATA)
    }


def seconds_alone(root: Path) -> dict[str, float]:
    """How long each command takes that nobody kills. Raises RuntimeError if one fails."""
    found = {}
    for number, (name, arguments) in enumerate(COMMANDS.items()):
        folder = _prepare(root / f"alone{number}")
        start = time.monotonic()
        code = _start(folder, arguments).wait(ALONE_SECONDS)
        found[name] = time.monotonic() - start
        if code != 0:
            raise RuntimeError(f"{name}: exit {code}: {(folder / 'stderr.txt').read_text()}")
    return found


def try_kill(plan: Plan, number: int) -> Kill:
    """One kill, and what is wrong afterwards."""
    rng = np.random.default_rng([plan.seed, number])
    chosen = SIGNALS[number % len(SIGNALS)]
    group = bool(number // len(SIGNALS) % 2)
    name = str(rng.choice(list(COMMANDS)))
    moment = float(rng.uniform(0, plan.alone[name]))
    folder = _prepare(plan.root / f"kill{number}")
    before = _hashes(folder)
    child = _start(folder, COMMANDS[name])
    handle = os.pidfd_open(child.pid)
    try:
        _ended_within(handle, moment)
        (os.killpg if group else os.kill)(child.pid, chosen)
        killed = time.monotonic()
        hang = not _ended_within(handle, END_SECONDS)
        if hang:
            os.killpg(child.pid, signal.SIGKILL)
    finally:
        os.close(handle)
    child.wait()
    took = time.monotonic() - killed
    wrong = [f"no end {END_SECONDS:.0f} s after the signal"] if hang else []
    wrong += _after(folder, COMMANDS[name], chosen, child.returncode, before)
    message = (folder / "stderr.txt").read_text(errors="replace").strip()
    return Kill(
        number, name, chosen.name, group, moment, None if hang else child.returncode, took,
        tuple(wrong), message,
    )  # fmt: skip


def _ended_within(handle: int, seconds: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(seconds * 1000))


def _after(
    folder: Path, arguments: Sequence[str], sent: signal.Signals, code: int, before: dict[str, str]
) -> list[str]:
    """What is wrong once the process has ended."""
    wrong = []
    orphans = end_orphans(ORPHAN_SECONDS)
    if orphans:
        wrong.append(f"{orphans} processes live on after {ORPHAN_SECONDS:.0f} s")
    if _hashes(folder) != before:
        wrong.append("the input was changed")
    wrong += _output(folder, arguments, code)
    if sent is signal.SIGKILL:
        if _left(folder):
            wrong += _next_start(folder)
        return wrong
    if _left(folder):
        wrong.append(f"left after {sent.name}: {', '.join(_left(folder))}")
    allowed = (0, INTERRUPTED) if sent is signal.SIGINT else (0, -15, 128 + 15, INTERRUPTED)
    if code not in allowed:
        wrong.append(f"exit {code} after {sent.name}")
    said = (folder / "stderr.txt").read_text(errors="replace")
    if "Traceback" in said:
        wrong.append(f"traceback after {sent.name}: {exception(said)}")
    return wrong


def _output(folder: Path, arguments: Sequence[str], code: int) -> list[str]:
    """What is wrong with the file that was or was not written."""
    if "-o" not in arguments:
        return []
    target = folder / arguments[arguments.index("-o") + 1]
    there = target.is_file() and target.read_bytes() != _OLD
    wrong = []
    if target.name == "old.onnx" and not target.is_file():
        wrong.append("the older output is gone")
    if code == 0 and not there:
        wrong.append("exit 0, but no output")
    if code > 0 and there:
        wrong.append(f"exit {code}, but an output")
    if there:
        try:
            direct.session(target)
        except direct.REFUSALS as error:
            wrong.append(f"a partial output: {str(error)[:100]}")
    return wrong


def _left(folder: Path) -> list[str]:
    """Temporary files in both places where they may be."""
    ours = {"new.onnx", "old.onnx", "new.json", "next.onnx", seeds.DATA}
    return sorted(
        [
            *temporary_left(folder),
            *(p.name for p in (folder / "out").iterdir() if p.name not in ours),
        ]
    )


def _next_start(folder: Path) -> list[str]:
    """Start again, and say what is left even then."""
    child = _start(folder, [*NEXT, "-o", "out/next.onnx"])
    code = child.wait(ALONE_SECONDS)
    wrong = [f"the next start ends with {code}"] if code else []
    left = _left(folder)
    return [*wrong, f"left after the next start: {', '.join(left)}"] if left else wrong


def run_kills(
    count: int, jobs: int, *, seed: int = 0, report: Callable[[Kill], None] = print
) -> list[Kill]:
    """Kill so many commands."""
    with tempfile.TemporaryDirectory(prefix="robustness-") as name:
        root = Path(name)
        plan = Plan(root, seed, seconds_alone(root))
        found = []
        for kill in in_parallel(partial(try_kill, plan), range(count), jobs):
            report(kill)
            found.append(kill)
    return sorted(found, key=lambda one: one.number)


def lines(kills: Sequence[Kill]) -> Iterator[Line]:
    """The lines of the table: one a signal and whom it went to."""
    for group in (False, True):
        for sent in SIGNALS:
            these = [k for k in kills if k.signal == sent.name and k.group == group]
            if not these:
                continue
            wrong = tuple(
                f"kill {k.number} ({k.command}, after {k.moment:.1f} s): {'; '.join(k.wrong)}"
                for k in these
                if k.wrong
            )
            codes = Counter(k.code for k in these)
            words = ", ".join(f"exit {code}: {codes[code]}" for code in sorted(codes, key=str))
            slowest = max(k.seconds_to_end for k in these)
            to = "to the group" if group else "to the process"
            yield Line(
                "kills",
                f"{sent.name} {to}",
                len(these),
                f"{words}; at most {slowest:.1f} s to the end",
                wrong,
            )
