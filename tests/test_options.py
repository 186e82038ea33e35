"""Each command takes what it uses: an option that it would ignore is refused."""

import inspect
from collections.abc import Callable
from dataclasses import fields

import pytest
from typer.testing import CliRunner

from onnxremat.cli.app import app
from onnxremat.options import FrontierOptions, ModelOptions, Options

SHOWN = ("quiet", "verbose", "as_json")
OWN = {
    "rewrite": {"model", "mem", "output", "emit_plan", "explain", *SHOWN},
    "audit": {
        "models", "mem", "fail_above", "mem_of", "sarif", "junit", "html", "second", "anonymous",
        *SHOWN,
    },
    "verify": {"original", "rewritten", "mem", *SHOWN},
    "frontier": {
        "model", "planners", "budgets", "html", *SHOWN, "session", "slowdowns", "portable",
    },
}  # fmt: skip
"""What a command does with by itself; what goes with one session of `frontier` alone is refused
with the other (`tests/commands/test_process_frontier.py`)."""

FIELDS = {"dim": "dims", "allow_op": "allow_ops"}
KINDS = {
    "rewrite": Options,
    "audit": ModelOptions,
    "verify": ModelOptions,
    "frontier": FrontierOptions,
}
COMMANDS = {one.name: one.callback for one in app.registered_commands}


@pytest.mark.parametrize("name", KINDS)
def test_a_command_line_has_the_fields_of_its_options(name: str) -> None:
    command, kind = COMMANDS[name], KINDS[name]
    assert command is not None
    given = set(inspect.signature(command).parameters) - OWN[name]
    taken = {field.name for field in fields(kind)}
    named = {FIELDS.get(one, one) for one in given}
    assert named == taken if kind is not FrontierOptions else named <= taken


@pytest.mark.parametrize(
    ("command", "option"),
    [
        ("audit", "--time-limit"),
        ("audit", "--iterations"),
        ("audit", "--optimize"),
        ("verify", "--time-limit"),
        ("verify", "--planner"),
        ("frontier", "--iterations"),
        ("frontier", "--order"),
        ("frontier", "--max-slowdown"),
    ],
)
def test_what_a_command_would_ignore_is_refused(command: str, option: str) -> None:
    files = ["a.onnx", "b.onnx"] if command == "verify" else ["a.onnx"]
    done = CliRunner().invoke(app, [command, *files, option, "1"])
    assert done.exit_code == 2
    assert option in done.output


@pytest.mark.parametrize("name", ["planner", "iterations", "session", "order", "time_limit"])
@pytest.mark.parametrize("kind", [ModelOptions, FrontierOptions])
def test_options_of_other_commands_do_not_exist(kind: Callable[..., object], name: str) -> None:
    if name == "time_limit" and kind is FrontierOptions:
        assert FrontierOptions(time_limit=1).time_limit == 1
        return
    with pytest.raises(TypeError, match=name):
        kind(**{name: 1})
