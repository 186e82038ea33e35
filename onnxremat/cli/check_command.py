"""The `check` command."""

from onnxremat.cli import arguments as option
from onnxremat.cli import terminal
from onnxremat.cli.option_groups import Shown
from onnxremat.cli.working import working


def check_command(file: option.Rewritten, *, shown: Shown) -> None:
    """Say whether this machine and this runtime are of the kind that a rewritten file is for."""
    from onnxremat.cli.report import check_text
    from onnxremat.commands.fitness import check, require_fit

    with working(shown) as progress:
        found = check(file, progress=progress)
    terminal.emit("check", found, check_text, as_json=shown.as_json)
    require_fit(file, found)
