"""`sweep`: models x limits x targets, each a `rewrite` in a process of its own, a row for each.

A run that is finished is in the journal at once (`fleet.run_journal`), and the table is written
anew from that. A sweep that is started again does what is not there: runs that have not finished,
those that crashed or could not be done, those whose model or options are others now, and those
whose files are gone or others.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from onnxremat.commands.files import write_files
from onnxremat.commands.sweep_plan import SweepRun, planned_runs
from onnxremat.commands.sweep_row import (
    COLUMNS,
    CRASHED,
    PASSING,
    SweepRow,
    checked_row,
    row_of_crash,
    row_of_run,
)
from onnxremat.core.errors import UsageError
from onnxremat.core.text import printable
from onnxremat.core.units import MemoryLimit
from onnxremat.fleet.dask_jobs import run_on_dask
from onnxremat.fleet.fleet_job import FleetJob, JobEnd
from onnxremat.fleet.local_jobs import run_here
from onnxremat.fleet.run_journal import RunJournal
from onnxremat.fleet.run_table import Cell, check_table, table_bytes
from onnxremat.options import Options
from onnxremat.ort.outside import data_beside
from onnxremat.planners.search.engine import usable_processors

WORKER = "onnxremat.commands.sweep_run"
JOURNAL_SUFFIX = ".jsonl"
PROCESS_BYTES, COPIES = 700_000_000, 40
"""What a run takes, as long as none of its model has told: its processes with all libraries and the
compiled planner, and copies of the model (as it is, changed, in variants, loaded, packed): up to 38
of a ResNet-50."""
_MORE = 1.2
"""Of what an earlier run of the model took: another limit may take more."""


class SweepWatch(Protocol):
    """Told how a sweep goes. Runs are named by their place in it."""

    def planned(self, runs: Sequence[SweepRun], rows: Mapping[int, SweepRow]) -> None:
        """All runs, and the rows of those that were finished before."""

    def started(self, place: int) -> None: ...

    def finished(self, place: int, row: SweepRow) -> None: ...


class NobodyWatches:
    """A SweepWatch that tells nobody."""

    def planned(self, runs: Sequence[SweepRun], rows: Mapping[int, SweepRow]) -> None:
        """Nothing is done."""

    def started(self, place: int) -> None:
        """Nothing is done."""

    def finished(self, place: int, row: SweepRow) -> None:
        """Nothing is done."""


@dataclass(frozen=True)
class SweepResult:
    """The rows of all runs, in their order. `before`: how many had been finished before."""

    output: Path
    journal: Path
    rows: tuple[SweepRow, ...]
    before: int

    @property
    def crashed(self) -> tuple[SweepRow, ...]:
        """Those whose process ended without an answer."""
        return tuple(row for row in self.rows if row["status"] == CRASHED)


def jobs_at_once(asked: int, threads: int | None) -> int:
    """How many of the jobs that are asked for the processors permit, each with so many threads."""
    return max(1, min(asked, usable_processors() // (threads or 1)))


def journal_of(output: Path) -> Path:
    """The journal beside a table."""
    return output.with_name(output.name + JOURNAL_SUFFIX)


def sweep(
    models: Sequence[Path],
    limits: Sequence[MemoryLimit],
    options: Sequence[Options],
    *,
    output: Path,
    keep: Path | None = None,
    jobs: int | None = None,
    scheduler: str | None = None,
    watch: SweepWatch | None = None,
) -> SweepResult:
    """Rewrite each of the models to each of the limits with each of the options (one for each
    target), and write a table, CSV or Parquet, to `output`.

    `keep`: a folder for the files that are made, else they are not kept. `jobs`: runs at once, one
    if it is None, since they disturb each other's times; never more than there are processors and
    memory for. With `scheduler`, the address of a Dask scheduler, its workers do the runs, all of
    them unless `jobs` is less.

    What goes wrong in a run is in its row. Raises UsageError for what cannot be read or written,
    or is not installed.
    """
    check_table(output)
    _check_folder(output)
    runs = planned_runs(models, limits, options, keep)
    with RunJournal(journal_of(output), checked_row) as journal:
        done = _finished(runs, journal)
        progress = _Sweep(output, runs, journal, watch or NobodyWatches(), dict(done))
        progress.watch.planned(runs, done)
        progress.write()
        waiting = [_job(i, run) for i, run in enumerate(runs) if i not in done]
        with _folders([runs[int(job.key)].file for job in waiting]):
            if scheduler is not None and waiting:
                run_on_dask(scheduler, waiting, progress, at_once=jobs)
            elif waiting:
                at_once = jobs_at_once(jobs or 1, options[0].threads)
                run_here(waiting, progress, at_once=at_once, memory=progress.memory)
        rows = progress.in_order()
    return SweepResult(output, journal_of(output), tuple(rows), len(done))


def _job(place: int, run: SweepRun) -> FleetJob:
    return FleetJob(str(place), WORKER, run.asked)


@contextmanager
def _folders(files: Sequence[Path | None]) -> Iterator[None]:
    """The folders of files are there in the block; those that nothing was written to are removed
    after it."""
    folders = {file.parent for file in files if file is not None}
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot make the folder {folder}: {error.strerror}") from None
    try:
        yield
    finally:
        for folder in folders:
            with suppress(OSError):  # it is not empty
                folder.rmdir()


def _names(run: SweepRun, row: Mapping[str, Cell]) -> SweepRow:
    """Paths of a row as they were written for this sweep."""
    names: SweepRow = {"model": printable(str(run.model))}
    return names if row.get("file") is None else {**names, "file": printable(str(run.file))}


def _check_folder(output: Path) -> None:
    if not output.parent.is_dir():
        raise UsageError(f"cannot write {output}: there is no folder {output.parent}")
    if output.is_dir():
        raise UsageError(f"cannot write {output}: it is a folder")


def _finished(runs: Sequence[SweepRun], journal: RunJournal) -> dict[int, SweepRow]:
    """The rows of the runs that need not be done, by their place."""
    found = {}
    for place, run in enumerate(runs):
        row = journal.answers.get(run.key)
        if row is None or row["status"] in PASSING or not _is_there(run, row):
            continue
        found[place] = {**row, **_names(run, row)}
    return found


def _is_there(run: SweepRun, row: Mapping[str, Cell]) -> bool:
    """Whether the files that a run left, if they are kept, are there as it left them."""
    if row.get("file") is None or run.file is None:
        return True
    data = data_beside(run.file)
    try:
        whole = hashlib.sha256(run.file.read_bytes()).hexdigest() == row["file_sha256"]
        whole = whole and (not row["data_bytes"] or data.stat().st_size == row["data_bytes"])
    except OSError:
        return False
    return whole and (run.plan_file is None or run.plan_file.is_file())


@dataclass
class _Sweep:
    """What has been found so far; a JobListener that keeps what comes."""

    output: Path
    runs: Sequence[SweepRun]
    journal: RunJournal
    watch: SweepWatch
    rows: dict[int, SweepRow]
    measured: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for place, row in self.rows.items():
            self._learn(place, row)

    def started(self, job: FleetJob) -> None:
        self.watch.started(int(job.key))

    def ended(self, end: JobEnd) -> None:
        place = int(end.key)
        run = self.runs[place]
        answer = row_of_crash(end.reason) if end.answer is None else dict(end.answer)
        row = {"seconds": end.seconds, **row_of_run(run), **answer, **_names(run, answer)}
        self.journal.add(run.key, row)
        self.rows[place] = row
        self._learn(place, row)
        self.write()
        self.watch.finished(place, row)

    def memory(self, job: FleetJob) -> int:
        """What a run takes in bytes, about."""
        content = self.runs[int(job.key)].content
        known = self.measured.get(content.sha256)
        if known is not None:
            return int(_MORE * known)
        return PROCESS_BYTES + COPIES * content.nbytes

    def in_order(self) -> list[SweepRow]:
        """The rows that there are, in the order of the runs."""
        return [self.rows[place] for place in sorted(self.rows)]

    def write(self) -> None:
        """Put the table in place."""
        write_files({self.output: table_bytes(self.output, COLUMNS, self.in_order())})

    def _learn(self, place: int, row: SweepRow) -> None:
        taken = row.get("run_bytes")
        if isinstance(taken, int):
            name = self.runs[place].content.sha256
            self.measured[name] = max(taken, self.measured.get(name, 0))
