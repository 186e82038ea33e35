"""Ctrl-C and other signals that end the command: what they do at any moment of it.

A signal ends the process where it stands: children are killed, what was begun is removed, one line
is printed, and the exit code is 128 and the signal's number. No exception is raised, for one that
comes while a module is imported, an object is freed or a library calls back is lost, and one that
comes while threads are waited for has to wait, too.

Two moments are different. The first Ctrl-C while a command plans that can stop early is a request
to do so (`requested`). And once files are put in place the command is going to end with 0: signals
are then ignored.

This belongs to the command line: nothing here is in force where the package is used from Python.
Nothing is imported here that takes time: this is loaded first. What comes before, while Python
itself starts, is left to Python.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import FrameType

PLACING = "putting the files in place"
"""The stage of a command that is not interrupted any more."""

ERROR_SCHEMA = "onnxremat/error/1"
"""The format of errors as JSON (`onnxremat.cli.schemas` has it, too, and is not to be loaded)."""
_ENDING = ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK")
_RESTORED_TERMINAL = b"\r\x1b[2K\x1b[?25h"
"""What progress may have left: a line, and a hidden cursor."""


class Interrupts:
    """What a signal does now. `polite`: the first Ctrl-C in a stage of planning is a request.
    `clean_up` is called before the end. `told`: a result was printed already. `left`: what an
    ended command leaves, in words."""

    def __init__(self) -> None:
        self.polite = self.planning = self.requested = self.told = self.final = False
        self.clean_up: Callable[[], None] = _nothing
        self.left = "nothing was written"

    def install(self) -> None:
        """Take over the signals that end a command, except those that the caller has set aside
        (nohup, commands in the background)."""
        for number in _numbers():
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self)

    def finish(self) -> None:
        """From now on the command ends with the code that it has, whatever comes."""
        self.final = True
        for number in _numbers():
            if signal.getsignal(number) is self:
                signal.signal(number, signal.SIG_IGN)

    def __call__(self, number: int, _frame: FrameType | None) -> None:
        if self.final:
            return
        if number == signal.SIGINT and self.polite and self.planning and not self.requested:
            self.requested = True
            return
        self.finish()
        try:
            self.clean_up()
        finally:
            word = "interrupted" if number == signal.SIGINT else "terminated"
            self._say(f"{word}, {self.left}", 128 + number)
            os._exit(128 + number)

    def _say(self, message: str, code: int) -> None:
        line = f"onnxremat: {message}\n".encode()
        if sys.platform != "win32" and os.isatty(2):
            line = _RESTORED_TERMINAL + line
        _write(2, line)
        if "--json" in sys.argv and not self.told:
            said = f'"error": "{message}", "exit_code": {code}, "attempts": []'
            _write(1, f'{{"schema": "{ERROR_SCHEMA}", {said}}}\n'.encode())


def open_standard_streams() -> None:
    """Give the numbers 0 to 2 to the null device where the caller has closed them: files that are
    opened later would get them, and what libraries print would go there."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def _numbers() -> list[signal.Signals]:
    return [getattr(signal, name) for name in _ENDING if hasattr(signal, name)]


def _nothing() -> None:
    """Before there is anything to clean up."""


def _write(stream: int, line: bytes) -> None:
    try:
        os.write(stream, line)
    except OSError:
        return


INTERRUPTS = Interrupts()
"""Those of this process."""
