"""The entry point of the command: one clear line and an exit code for every error."""

import errno
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from io import TextIOWrapper
from typing import TYPE_CHECKING

import typer

from onnxremat.cli import terminal
from onnxremat.cli.app import app
from onnxremat.cli.schemas import schema_name
from onnxremat.core.errors import Interrupted, ModelError, OnnxrematError, UsageError
from onnxremat.core.text import printable
from onnxremat.system.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from onnxremat.core.attempt import Attempt

_UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


def main() -> None:
    """Run the `onnxremat` command, and exit.

    ONNX Runtime is told not to collect telemetry, unless the environment says otherwise: without a
    home folder it would warn that it cannot store an identity for it.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    code = ended()
    INTERRUPTS.finish()
    sys.exit(code)


def ended() -> int:
    """Run the command that the arguments name; its exit code."""
    try:
        code = app(standalone_mode=False) or 0
    except OnnxrematError as error:
        return _failed(str(error), error.exit_code, error.attempts)
    except KeyboardInterrupt:
        code = Interrupted.exit_code
    except typer.Exit as stop:
        code = stop.exit_code
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        terminal.discard(sys.stdout)
        return _failed(f"cannot write to standard output: {error.strerror}", UsageError.exit_code)
    except MemoryError:
        return _failed("this machine has not enough memory for the model", ModelError.exit_code)
    except Exception as error:
        if not type(error).__module__.startswith(("click", "typer")) or not hasattr(
            error, "format_message"
        ):
            raise
        return _not_read(error.format_message(), is_help=_is_help(error))
    if code == Interrupted.exit_code:  # typer returns it for a KeyboardInterrupt
        return _failed("interrupted, nothing was written", code)
    return int(code)


def _not_read(message: str, *, is_help: bool) -> int:
    """Say what the parser says of the arguments, which is an error unless it is the help."""
    if not is_help:
        return _failed(printable(message), UsageError.exit_code)
    terminal.tell(message)
    return UsageError.exit_code


def _is_help(error: Exception) -> bool:
    """Whether no command was given, and the message is the help."""
    return type(error).__name__ == "NoArgsIsHelpError"


def _failed(message: str, code: int, attempts: "Sequence[Attempt]" = ()) -> int:
    """Say why a command failed; if no result was printed as an object too with --json, or with the
    attempts in a table with --explain."""
    terminal.tell(f"onnxremat: {message}")
    if INTERRUPTS.told:
        return code
    try:
        if "--json" in sys.argv:
            INTERRUPTS.told = True
            plans = [asdict(one) for one in attempts]
            said = {"schema": schema_name("error"), "error": message, "exit_code": code}
            terminal.print_json(said | {"attempts": plans})
        elif "--explain" in sys.argv and attempts:
            from onnxremat.cli.explain import attempts_text

            terminal.print_report(attempts_text(attempts, terminal.OUT.width))
    except OSError:
        terminal.discard(sys.stdout)
    return code
