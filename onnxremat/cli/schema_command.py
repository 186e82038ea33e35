"""The `schema` command."""

import sys

from onnxremat.cli import arguments as option
from onnxremat.cli import terminal
from onnxremat.cli.schemas import schema_text
from onnxremat.core.errors import UsageError


def schema_command(command: option.Described) -> None:
    """Print the JSON Schema of what a command prints with --json."""
    text = schema_text(command)
    try:
        terminal.OUT.print(text, markup=False, end="")
    except OSError as error:
        terminal.discard(sys.stdout)
        raise UsageError(f"cannot write to standard output: {error.strerror}") from None
