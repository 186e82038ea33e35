"""The `planners` command."""

from onnxremat.cli import arguments as option
from onnxremat.cli import terminal


def planners_command(as_json: option.AsJson = False) -> None:
    """List the planners, with the paper of each."""
    from onnxremat.cli.tables import planners_text
    from onnxremat.planners import PLANNERS

    terminal.emit("planners", tuple(PLANNERS.values()), planners_text, as_json=as_json)
