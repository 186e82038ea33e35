"""The command line: which commands there are. No planning happens here.

What a command needs is imported when it runs: help and versions answer without loading onnx, the
runtime or any solver.
"""

from collections.abc import Callable, Mapping

import typer

from onnxremat.cli import arguments as option
from onnxremat.cli import terminal
from onnxremat.cli.audit_command import audit_command
from onnxremat.cli.check_command import check_command
from onnxremat.cli.frontier_command import frontier_command
from onnxremat.cli.option_groups import flattened
from onnxremat.cli.planners_command import planners_command
from onnxremat.cli.rewrite_command import rewrite_command
from onnxremat.cli.schema_command import schema_command
from onnxremat.cli.sweep_command import sweep_command
from onnxremat.cli.verify_command import verify_command

COMMANDS: Mapping[str, Callable[..., None]] = {
    "rewrite": rewrite_command,
    "audit": audit_command,
    "frontier": frontier_command,
    "verify": verify_command,
    "check": check_command,
    "planners": planners_command,
    "schema": schema_command,
    "sweep": sweep_command,
}
_NO_HELP = {"help": False}
"""Where --help is not given, typer takes it to be False instead of None: to see that None is no
truth value it would load pydantic, as long as all the rest takes."""

app = typer.Typer(
    name="onnxremat",
    help="Run ONNX models in less memory: nodes recomputed and reordered, results bit-identical.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"default_map": _NO_HELP | {name: _NO_HELP for name in COMMANDS}},
)
for _name, _command in COMMANDS.items():
    app.command(_name)(flattened(_command))


@app.callback(invoke_without_command=True)
def _main(version: option.Version = False) -> None:
    if version:
        import onnxremat

        terminal.OUT.print(f"onnxremat {onnxremat.__version__}")
        raise typer.Exit
