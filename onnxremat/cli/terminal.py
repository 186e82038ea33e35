"""What commands print: results on standard output, all else on standard error, if they can."""

import errno
import json
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TextIO

from rich.console import Console

from onnxremat.cli.colours import coloured
from onnxremat.core.errors import UsageError
from onnxremat.system.interrupts import INTERRUPTS


class TerminalConsole(Console):
    """One that raises where it cannot write, as files do. Where there are no columns it has 80."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        if self.width <= 0:
            self.width = 80

    def on_broken_pipe(self) -> None:
        """What is called where nobody reads any more."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


OUT = TerminalConsole(highlight=False, soft_wrap=True, emoji=False)
ERR = TerminalConsole(stderr=True, highlight=False, soft_wrap=True, emoji=False)


def emit(
    command: str,
    result: Any,
    text: Callable[[Any, int], str],
    *,
    as_json: bool,
    written: Path | None = None,
) -> None:
    """Print a result. If it cannot be printed, a command that has `written` its file is done all
    the same, and any other raises UsageError."""
    INTERRUPTS.told = True
    try:
        if sys.stdout is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if as_json:
            from onnxremat.cli import report

            print_json(report.json_document(command, result))
        else:
            print_report(text(result, OUT.width))
    except OSError as error:
        discard(sys.stdout)
        reason = f"cannot write to standard output: {error.strerror}"
        if written is None:
            raise UsageError(reason) from None
        tell(f"onnxremat: {reason}; {written} was written")


def print_report(text: str) -> None:
    """A report, with colours on a terminal that has some."""
    OUT.print(text if OUT.no_color else coloured(text), markup=False)


def print_json(data: Any) -> None:
    """ASCII alone: a terminal obeys some characters, and not every output takes the others."""
    OUT.print_json(json.dumps(data), ensure_ascii=True)


def tell(line: str) -> None:
    """A line on standard error, if it can be written there."""
    try:
        ERR.print(line, markup=False)
    except OSError:
        discard(sys.stderr)


def discard(stream: TextIO | None) -> None:
    """Send what is left in a stream, and what comes, to nowhere: Python writes it when it ends."""
    if stream is None:
        return
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)
