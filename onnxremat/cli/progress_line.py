"""What a command is doing, for whoever waits: a bar on the last line of a terminal, or one line
every ten seconds where standard error is none.
"""

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console

from onnxremat.core.text import printable
from onnxremat.stages import NOTE, Detail

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live
    from rich.spinner import Spinner

LINE_SECONDS = 10.0
"""How often a line is printed where there is no terminal."""
_DRAWN_A_SECOND = 4
_LONGEST = 200
"""Characters of a stage and its detail that are shown."""
_BAR, _NARROW_BAR, _NARROW = 20, 8, 60
"""Columns of the bar, on a terminal of so many and on a narrower one."""


class ProgressLine:
    """A ProgressReport that shows what it was told last, how long that has taken, and, where a
    detail knows it, how much is done and what is left.

    `tell` prints a line on `console`, if it can. `quiet`: nothing is shown. `verbose`: each stage
    and each note gets a line of its own, too. `announced` begins a stage that gets a line at once.
    A thread of its own shows the rest, from the first stage on until `stop`.
    """

    def __init__(
        self,
        console: Console,
        tell: Callable[[str], None],
        *,
        quiet: bool,
        verbose: bool = False,
        announced: str = "",
        every: float = LINE_SECONDS,
    ) -> None:
        self._console, self._tell = console, tell
        self._quiet, self._verbose, self._announced = quiet, verbose, announced
        self._stage, self._detail = "", ""
        self._began = self._told = time.monotonic()
        self._over = threading.Event()
        self._every = every
        self._thread: threading.Thread | None = None
        self._live: Live | None = None
        self._spinner: Spinner | None = None

    def __call__(self, stage: str, detail: str = "") -> None:
        if stage == NOTE:
            if self._verbose and not self._quiet:
                self._tell(f"onnxremat:   {printable(detail, 10 * _LONGEST)}")
            return
        before = self._name()
        if stage != self._stage:
            self._began = time.monotonic()
        self._stage, self._detail, self._told = stage, detail, time.monotonic()
        if self._quiet:
            return
        announced = self._announced and stage.startswith(self._announced)
        if announced or (self._verbose and self._name() != before):
            self._tell(f"onnxremat: {self._name()}")
        self._begin()
        if self._live is not None and self._name() != before:
            self._live.refresh()

    def _begin(self) -> None:
        if self._live is not None or self._thread is not None:
            return
        if self._console.is_interactive:
            self._live = self._on_the_last_line()
            self._live.start()
        else:
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()

    def _name(self) -> str:
        """The stage, and which of its parts."""
        detail = self._detail
        if isinstance(detail, Detail) and detail.steps:
            return printable(f"{self._stage} ({detail.steps})", _LONGEST)
        return printable(self._stage, _LONGEST)

    def _said(self) -> str:
        """All of it, but for what is left."""
        detail = self._detail
        how = detail.words if isinstance(detail, Detail) else detail
        return printable(f"{self._name()}: {how}", _LONGEST) if how else self._name()

    def _passed(self) -> str:
        return f"{time.monotonic() - self._began:.0f} s"

    def _done(self) -> tuple[float, float, str] | None:
        """How much is done, of how much, and what is left in words; None where that is unknown."""
        detail = self._detail
        if not isinstance(detail, Detail):
            return None
        if not detail.timed:
            return detail.done, detail.total, ""
        done = min(detail.total, detail.done + time.monotonic() - self._told)
        return done, detail.total, f"at most {detail.total - done:.0f} s left"

    def _show(self) -> None:
        while not self._over.wait(self._every):
            done = self._done()
            left = f", {done[2]}" if done is not None and done[2] else ""
            self._tell(f"onnxremat: {self._said()}{left} ({self._passed()})")

    def _on_the_last_line(self) -> "Live":
        from rich.live import Live
        from rich.spinner import Spinner

        kind = "dots" if self._console.encoding.startswith("utf") else "line"
        self._spinner = Spinner(kind, style="cyan")
        return Live(
            get_renderable=self._line,
            console=self._console,
            refresh_per_second=_DRAWN_A_SECOND,
            transient=True,
        )

    def _line(self) -> "RenderableType":
        """The line as it is now: no longer than the terminal is wide."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        assert self._spinner is not None
        width, done, end = self._console.width, self._done(), self._passed()
        bar = 0
        if done is not None:
            bar = _BAR if width >= _NARROW else _NARROW_BAR
            end += f", {done[2]}" if done[2] and width >= _NARROW else ""
        said = Text(self._said(), no_wrap=True)
        others = [1, bar, len(end)] if bar else [1, len(end)]
        said.truncate(max(1, width - sum(others) - len(others) - 1), overflow="ellipsis")
        line = Table.grid(padding=(0, 1))
        cells: list[RenderableType] = [self._spinner, said]
        if done is not None:
            cells.append(ProgressBar(total=done[1], completed=done[0], width=bar))
        line.add_row(*cells, Text(end, style="cyan", no_wrap=True))
        return line

    def stop(self) -> None:
        """Show nothing any more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._live is not None:
            self._live.stop()
