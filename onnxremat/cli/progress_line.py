"""What a command is doing, for whoever waits: on the last line of a terminal, once a second, or as
one line every ten seconds where standard error is none.
"""

import threading
import time
from collections.abc import Callable

from rich.console import Console
from rich.text import Text

from onnxremat.core.text import printable

LINE_SECONDS = 10.0
"""How often a line is printed where there is no terminal."""
_STATUS_SECONDS = 1.0
_LONGEST = 200
"""Characters of a stage and its detail that are shown."""


class ProgressLine:
    """A ProgressReport that shows what it was told last, and how long that stage has taken.

    `tell` prints a line on `console`, if it can. `quiet`: nothing is shown. `announced` begins
    a stage that gets a line at once. A thread of its own shows it, from the first stage on until
    `stop`.
    """

    def __init__(
        self,
        console: Console,
        tell: Callable[[str], None],
        *,
        quiet: bool,
        announced: str = "",
        every: float = LINE_SECONDS,
    ) -> None:
        self._tell, self._quiet, self._announced = tell, quiet, announced
        self._stage = self._detail = ""
        self._began = time.monotonic()
        self._over = threading.Event()
        self._status = None if quiet or not console.is_terminal else console.status("")
        self._every = every if self._status is None else _STATUS_SECONDS
        self._thread: threading.Thread | None = None

    def __call__(self, stage: str, detail: str = "") -> None:
        if stage != self._stage:
            self._began = time.monotonic()
        self._stage, self._detail = stage, detail
        if self._quiet:
            return
        if self._announced and stage.startswith(self._announced):
            self._tell(f"onnxremat: {stage}")
        if self._status is not None:
            self._status.update(Text(self._said()))
            self._status.start()
        if self._thread is None:
            self._thread = threading.Thread(target=self._show, daemon=True)
            self._thread.start()

    def _said(self) -> str:
        detail = f": {self._detail}" if self._detail else ""
        said = printable(f"{self._stage}{detail}", _LONGEST)
        return f"{said} ({time.monotonic() - self._began:.0f} s)"

    def _show(self) -> None:
        while not self._over.wait(self._every):
            if self._status is not None:
                self._status.update(Text(self._said()))
            else:
                self._tell(f"onnxremat: {self._said()}")

    def stop(self) -> None:
        """Show nothing any more."""
        self._over.set()
        if self._thread is not None:
            self._thread.join()
        if self._status is not None:
            self._status.stop()
