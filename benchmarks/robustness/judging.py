"""What is right of a command of the product, whatever it was given, and lines of the table.

A command ends with an exit code of the README, in its time and memory, with one line on stderr if
the code is not 0; it leaves no process, no temporary file and, on anything but 0, no new file.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.robustness.processes import Ended, adopt_orphans, forked

EXIT_CODES = (0, 2, 3, 4, 5, 6, 7)
MOST_PEAK_BYTES = 2 << 30
"""The product and each of its children may hold this much of a small model, damaged or not."""

_PROGRESS = re.compile(r"onnxremat: compiling the planner|onnxremat: .*\(\d+ s\)$")
"""Lines on stderr that say what is being done."""

_NO_MEMORY = re.compile("bad_alloc|Failed to allocate memory|not enough memory")
"""Said of a model whose own sizes need more than there is."""

_T, _R = TypeVar("_T"), TypeVar("_R")


@dataclass(frozen=True)
class Line:
    """A line of the table: what was tried, how often, what was found, and what does not hold."""

    part: str
    what: str
    count: int
    found: str
    faults: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.faults


def product(arguments: Sequence[str]) -> Callable[[], int]:
    """The command line of the product with these arguments, to be run in a fork."""

    def run() -> int:
        import sys

        from benchmarks.robustness import forked_jobs
        from onnxremat.__main__ import main

        forked_jobs.install()
        sys.argv = ["onnxremat", *arguments]
        main()
        return 0

    return run


def run_product(arguments: Sequence[str], folder: Path, *, seconds: float) -> Ended:
    """Run a command of the product in a fork, with a folder for temporary files of its own."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    return forked(product(arguments), folder, seconds=seconds, temporary=temporary)


def faults(
    ended: Ended, *, codes: Sequence[int] = EXIT_CODES, most_bytes: int = MOST_PEAK_BYTES
) -> list[str]:
    """What is wrong with the end of a command, in words; nothing if all is well."""
    if ended.hang:
        return [f"hang: no end after {ended.seconds:.0f} s"]
    wrong = []
    if "Traceback (most recent call last)" in ended.stderr:
        wrong.append(f"traceback: {exception(ended.stderr)}")
    elif ended.code not in codes:
        wrong.append(f"exit {ended.code}: {ended.last_line or 'no message'}")
    elif ended.code != 0:
        said = errors(ended.stderr)
        if len(said) != 1:
            wrong.append(f"{len(said)} lines on stderr: {ended.last_line}")
    if ended.peak_bytes > most_bytes and not _NO_MEMORY.search(ended.last_line):
        wrong.append(f"memory: {ended.peak_bytes / 2**30:.1f} GiB")
    if ended.orphans:
        wrong.append(f"{ended.orphans} processes left")
    return wrong


def errors(text: str) -> list[str]:
    """The lines of what was said on stderr, less those that tell of progress."""
    return [line for line in text.splitlines() if line.strip() and not _PROGRESS.match(line)]


def exception(text: str) -> str:
    """The first line of the exception that ended a program, of what it said on stderr."""
    lines = text.rpartition("Traceback (most recent call last):")[2].splitlines()
    said = [line for line in lines if line.strip() and not line.startswith(" ")]
    return said[0] if said else ""


def temporary_left(folder: Path) -> list[str]:
    """Names in the folder for temporary files of `run_product`."""
    return sorted(path.name for path in (folder / "tmp").iterdir())


def in_parallel(
    function: Callable[[_T], _R], tasks: Iterable[_T], jobs: int, chunk: int = 1
) -> Iterable[_R]:
    """`function` of every task, in `jobs` forks of this process that adopt orphans."""
    with get_context("fork").Pool(jobs, initializer=adopt_orphans) as pool:
        yield from pool.imap_unordered(function, tasks, chunk)


def examples(problems: Sequence[Any], most: int = 3) -> str:
    """The first few, for a table."""
    shown = "; ".join(str(problem) for problem in problems[:most])
    return shown + (f" and {len(problems) - most} more" if len(problems) > most else "")
