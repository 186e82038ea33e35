"""How a sweep looks: a live table on a terminal, a line for each run elsewhere, and the rows."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from onnxremat.cli.tables import columns, paragraph, table
from onnxremat.commands.sweep import NobodyWatches, SweepResult, SweepWatch
from onnxremat.commands.sweep_plan import SweepRun
from onnxremat.commands.sweep_row import MADE, SweepRow
from onnxremat.core.text import printable
from onnxremat.core.units import format_bytes
from onnxremat.stages import ProgressReport

HEADER = ("model", "limit", "target", "result", "original", "rewritten", "time", "took")
_NAME_SHOWN, _REASON_SHOWN = 16, 160
"""Letters: a row has room in 80 columns."""
_REFRESHED = 4
"""How often in a second."""
_AROUND = 6
"""Lines of a terminal that are not for runs."""


@contextmanager
def display(
    console: Console, tell: Callable[[str], None], progress: ProgressReport, *, quiet: bool
) -> Iterator[SweepWatch]:
    """Shows how a sweep goes, inside the block; `progress` is told what runs, where that is no
    terminal."""
    if quiet:
        yield NobodyWatches()
    elif not console.is_terminal:
        yield _Lines(tell, progress)
    else:
        table = _LiveTable(console)
        with Live(
            get_renderable=table.drawn,
            console=console,
            refresh_per_second=_REFRESHED,
            transient=True,
        ):
            yield table


class _Lines:
    """A line for each run that has finished."""

    def __init__(self, tell: Callable[[str], None], progress: ProgressReport) -> None:
        self._tell, self._progress = tell, progress
        self._runs: Sequence[SweepRun] = ()
        self._running: list[int] = []
        self._done = 0

    def planned(self, runs: Sequence[SweepRun], rows: Mapping[int, SweepRow]) -> None:
        self._runs, self._done = runs, len(rows)
        before = f", {len(rows)} of them finished before" if rows else ""
        self._tell(f"onnxremat: {len(runs)} run{'s' if len(runs) > 1 else ''}{before}")

    def started(self, place: int) -> None:
        self._running.append(place)
        self._say_what_runs()

    def finished(self, place: int, row: SweepRow) -> None:
        self._done += 1
        self._running.remove(place)
        self._say_what_runs()
        name, limit, target, result, original, rewritten, ratio, took = _cells(row)
        said = f"{original} -> {rewritten}, {ratio} time" if row["status"] == MADE else result
        why = _reason(row)
        of = f"{self._done}/{len(self._runs)} {name} {limit} {target}"
        self._tell(f"onnxremat: {of}: {said}, {took}{why}")

    def _say_what_runs(self) -> None:
        runs = [self._runs[place] for place in self._running]
        if runs:
            self._progress(", ".join(" ".join(_known(run)) for run in runs))


class _LiveTable:
    """The runs as far as there is room: those that run, and around them what came last and what
    comes next."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._runs: Sequence[SweepRun] = ()
        self._rows: dict[int, SweepRow] = {}
        self._began: dict[int, float] = {}
        self._first = time.monotonic()

    def planned(self, runs: Sequence[SweepRun], rows: Mapping[int, SweepRow]) -> None:
        self._runs, self._rows = runs, dict(rows)

    def started(self, place: int) -> None:
        self._began[place] = time.monotonic()

    def finished(self, place: int, row: SweepRow) -> None:
        self._began.pop(place, None)
        self._rows = {**self._rows, place: row}

    def drawn(self) -> Table:
        """The table as it is now; called from a thread of the display."""
        rows, began = self._rows, dict(self._began)
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for name in HEADER:
            right = name in HEADER[4:]
            table.add_column(name, justify="right" if right else "left", no_wrap=True)
        shown = self._shown(began)
        for place in shown:
            table.add_row(*map(Text, self._line(place, rows, began)))
        hidden = len(self._runs) - len(shown)
        more = f", {hidden} not shown" if hidden else ""
        table.caption = Text(
            f"{len(rows)} of {len(self._runs)} finished, {len(began)} running{more} "
            f"({time.monotonic() - self._first:.0f} s)"
        )
        table.caption_justify = "left"
        return table

    def _shown(self, began: Mapping[int, float]) -> range:
        room = max(1, self._console.height - _AROUND)
        middle = max(began, default=max(self._rows, default=0))
        first = min(max(0, middle - room // 2), max(0, len(self._runs) - room))
        return range(first, min(len(self._runs), first + room))

    def _line(
        self, place: int, rows: Mapping[int, SweepRow], began: Mapping[int, float]
    ) -> Sequence[str]:
        if place in rows:
            return _cells(rows[place])
        run = self._runs[place]
        known = _known(run)
        if place in began:
            took = f"{time.monotonic() - began[place]:.0f} s"
            return (*known, "running", "", "", "", took)
        return (*known, "", "", "", "", "")


def sweep_text(result: SweepResult, width: int | None = None) -> str:
    """All rows, and what became of how many, in `width` columns at most (None: any)."""
    lines = columns([HEADER, *map(_cells, result.rows)], width, names=(0,))
    whys = [
        f"{_name(str(row['model']))} {row['mem']} {row['target']}{_reason(row)}"
        for row in result.rows
        if row["status"] != MADE
    ]
    counts = Counter(str(row["status"]) for row in result.rows)
    said = ", ".join(f"{count} {status}" for status, count in counts.items())
    before = f"; {result.before} finished before" if result.before else ""
    written = f"{result.output} ({len(result.rows)} rows: {said}{before})"
    end = table([("written", written)], width, paths=("written",))
    reasons = "\n".join(paragraph(why, width) for why in whys)
    return "\n\n".join(filter(None, [lines, reasons, end]))


def _known(run: SweepRun) -> tuple[str, str, str]:
    return _name(str(run.model)), run.limit.text, run.options.target.name


def _cells(row: SweepRow) -> tuple[str, ...]:
    ratio = row.get("time_ratio")
    return (
        _name(str(row["model"])),
        str(row["mem"]),
        str(row["target"]),
        str(row["status"]),
        _bytes(row, "original_peak_bytes"),
        _bytes(row, "rewritten_peak_bytes"),
        f"{100 * (ratio - 1):+.1f}%" if isinstance(ratio, float) else "-",
        f"{row['seconds']:.1f} s",
    )


def _bytes(row: SweepRow, name: str) -> str:
    nbytes = row.get(name)
    return format_bytes(nbytes) if isinstance(nbytes, int) else "-"


def _reason(row: SweepRow) -> str:
    why = row.get("reason")
    return f": {printable(why, _REASON_SHOWN)}" if isinstance(why, str) and why else ""


def _name(model: str) -> str:
    """The end of a path, as much as a table has room for, without what all models end in."""
    name = printable(model).removesuffix(".onnx")
    return name if len(name) <= _NAME_SHOWN else f"...{name[3 - _NAME_SHOWN :]}"
