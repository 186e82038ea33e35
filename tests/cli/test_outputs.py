"""What commands print of real results: JSON that its schema describes, and text that fits."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import onnx
import pytest
from jsonschema import Draft202012Validator, ValidationError
from onnx import TensorProto, helper
from typer.testing import CliRunner

from docs import json_schemas
from onnxremat.cli import frontier_report, main, terminal
from onnxremat.cli.app import app
from onnxremat.cli.audit_report import audit_text
from onnxremat.cli.report import json_document
from onnxremat.cli.schemas import VERSIONS, schema_name, schema_text
from onnxremat.cli.sweep_display import sweep_text
from onnxremat.commands.process_frontier import MeasuredPoint, ProcessFrontier
from onnxremat.commands.rewrite import rewrite
from onnxremat.commands.sweep import sweep
from onnxremat.commands.sweep_row import row_of_result
from onnxremat.core.attempt import Attempt
from onnxremat.core.errors import InfeasibleError, NoPlanFoundError, UsageError
from onnxremat.core.units import parse_limit
from onnxremat.options import Options
from onnxremat.system.interrupts import INTERRUPTS
from tests.commands.test_rewrite import diamond

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
QUICK = ("--time-limit", "0.3", "--measure-limit", "1", "--threads", "1")
LONG = "a/scope/of/a/name/that/an/exporter/wrote/which/nobody/would/type" * 3


class Printed(NamedTuple):
    """A result of a command, and how it becomes text."""

    command: str
    result: Any
    text: Any


def closed(schema: Any) -> Any:
    """The same schema, in which no field may be that it does not name."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    inner = {key: closed(value) for key, value in schema.items()}
    return inner | {"additionalProperties": False} if "properties" in schema else inner


def require_valid(command: str, document: Mapping[str, Any]) -> None:
    plain = json.loads(json.dumps(document, allow_nan=False))
    Draft202012Validator(closed(json.loads(schema_text(command)))).validate(plain)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of a few nodes with long names."""
    path = diamond(tmp_path_factory.mktemp("printed") / "m.onnx")
    model = onnx.load(path)
    for node in model.graph.node:
        node.name = f"{LONG}/{node.name}"
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def printed(model: Path) -> dict[str, Printed]:
    """Every command once, in this process: what it would print."""
    found: dict[str, Printed] = {}

    def run(case: str, *arguments: object, code: int = 0) -> None:
        def emit(command: str, result: Any, text: Any, **_: object) -> None:
            found[case] = Printed(command, result, text)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(terminal, "emit", emit)
            done = CliRunner().invoke(app, [*map(str, arguments)])
        assert (done.exit_code, done.exception) == (code, None), (case, done.output)

    stock, recipe = model.with_name("stock.onnx"), model.with_name("recipe.onnx")
    quick = ("--no-tiling", "--no-verify", "--no-recompute", "--embed-weights", *QUICK)
    run("rewrite", "rewrite", model, "--mem", "min", "-o", stock, *quick, "--explain")
    run("recipe", "rewrite", model, "--mem", "95%", "--session", "recipe", "-o", recipe, *QUICK)
    run("audit", "audit", model, "--mem", "50%", "--measure-limit", 1)
    run("audits", "audit", model, model, "--measure-limit", 1)
    run("budget", "audit", model, "--fail-above", "1GB", "--measure-limit", 1)
    names = "reorder,greedy,chain,lower_sets,auto,tiles"
    some = ("--planners", names, "--budgets", 2, "--time-limit", 0.1, "--measure-limit", 1)
    run("frontier", "frontier", model, *some)
    run("verify", "verify", model, recipe, "--measure-limit", 1)
    run("check", "check", recipe)
    run("planners", "planners")
    points = tuple(
        MeasuredPoint(
            f"file, at most +{n}%", "3 regions in tiles, 12 recomputed", 10**8, 10**7, 0.1
        )
        for n in (2, 10)
    )
    measured = ProcessFrontier(
        model, True, None, points, points[:1], {"at most +20%": "missed " * 9}
    )
    text = frontier_report.process_frontier_text
    options = Options(session="recipe", time_limit=0.3, measure_limit=1, threads=1)
    limits = [parse_limit("95%"), parse_limit("1kB")]
    swept = sweep([model], limits, [options], output=model.with_name("t.csv"))
    return found | {
        "process frontier": Printed("frontier", measured, text),
        "sweep": Printed("sweep", swept, sweep_text),
    }


CASES = (
    "rewrite", "recipe", "audit", "audits", "budget", "frontier", "process frontier", "verify",
    "check", "planners", "sweep",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_json_is_what_the_schema_says(case: str, printed: dict[str, Printed]) -> None:
    command, result, _ = printed[case]
    document = json_document(command, result)
    assert document["schema"] == schema_name(command)
    require_valid(command, document)


@pytest.mark.parametrize("width", [80, 40])
@pytest.mark.parametrize("case", CASES)
def test_text_fits_the_terminal(case: str, width: int, printed: dict[str, Printed]) -> None:
    _, result, text = printed[case]
    for line in text(result, width).splitlines():
        words = line.split()
        assert len(line) <= width or max(map(len, words)) > width // 3, line
        assert len(line) <= width or width == 40 or "/" in max(words, key=len), line


def test_rows_of_a_sweep_have_the_fields_of_its_schema(printed: dict[str, Printed]) -> None:
    """Of files for default sessions, too, which have the most columns."""
    swept, compared = printed["sweep"].result, printed["verify"].result
    figures = printed["audit"].result.sessions
    made = replace(printed["rewrite"].result, verification=replace(compared, figures=figures))
    row = {**swept.rows[0], **row_of_result(made)}
    assert {"variant", "option_process_bytes", "file_runs_bytes"} <= row.keys()
    require_valid("sweep", json_document("sweep", replace(swept, rows=(row,))))
    for wrong in ({"unheard": 1}, {"file_runs_bytes": "1"}, {"status": None}):
        with pytest.raises(ValidationError):
            require_valid("sweep", json_document("sweep", replace(swept, rows=(row | wrong,))))


def test_names_are_short_in_tables_and_whole_in_json(printed: dict[str, Printed]) -> None:
    command, result, _ = printed["audit"]
    text = audit_text(result, 80)
    assert LONG not in text and LONG[:5] in text
    assert LONG in json.dumps(json_document(command, result))


def test_a_picture_of_the_memory_is_in_the_audit(printed: dict[str, Printed]) -> None:
    result = printed["audit"].result
    assert "█" in audit_text(result, 80)
    assert audit_text(result, 80, blocks=False).isascii()
    assert max(result.timeline.live_bytes) == result.peak.nbytes


def test_the_audit_has_what_default_sessions_take(printed: dict[str, Printed]) -> None:
    result = printed["audit"].result
    assert [one.option for one in result.sessions] == [
        "", "enable_mem_pattern = False", "enable_cpu_mem_arena = False",
    ]  # fmt: skip
    assert result.sessions_limit_bytes == result.sessions[0].runs_bytes // 2
    text = audit_text(result, 80)
    assert "resident limit" in text and "without an arena" in text


@pytest.mark.parametrize("command", VERSIONS)
def test_schemas_are_those_of_the_results(command: str) -> None:
    """Whatever field is new, renamed or gone, the file says so; and the version, unless the field
    is new."""
    assert schema_text(command) == json_schemas.text(command), "write: python -m docs.json_schemas"
    Draft202012Validator.check_schema(json.loads(schema_text(command)))


def test_a_field_that_no_schema_names_is_seen(printed: dict[str, Printed]) -> None:
    command, result, _ = printed["check"]
    document = json_document(command, result)
    for wrong in (document | {"more": 1}, {k: v for k, v in document.items() if k != "data_bytes"}):
        assert list(
            Draft202012Validator(closed(json.loads(schema_text(command)))).iter_errors(wrong)
        )


def test_an_error_is_what_its_schema_says(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    attempt = Attempt("whole ops", "auto", None, 10, None, None, 0.0, "refused: \x1b", 1.0)

    def refuse(*_: object, **__: object) -> int:
        raise NoPlanFoundError("none", (attempt,))

    monkeypatch.setattr(main, "app", refuse)
    monkeypatch.setattr(sys, "argv", ["onnxremat", "rewrite", "--json"])
    monkeypatch.setattr(INTERRUPTS, "told", False)
    with monkeypatch.context() as patch:
        patch.setattr(terminal, "OUT", terminal.TerminalConsole(soft_wrap=True, emoji=False))
        assert main.ended() == NoPlanFoundError.exit_code
    require_valid("error", json.loads(capsys.readouterr().out))


@pytest.mark.parametrize(
    "arguments",
    [
        ["audit", "m.onnx", "--json", "--unheard"],
        ["audit", "--json"],
        ["audit", "m.onnx", "--threads", "many", "--json"],
        ["audit", "m.onnx", "--threads", "0", "--json"],
        ["audit", "m.onnx", "--json", "--mem"],
        ["unheard", "--json"],
        ["--json"],
    ],
)
def test_what_the_parser_refuses_is_an_error_in_json_too(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["onnxremat", *arguments])
    monkeypatch.setattr(INTERRUPTS, "told", False)
    assert main.ended() == UsageError.exit_code
    out, err = capsys.readouterr()
    told = json.loads(out)
    require_valid("error", told)
    assert told["exit_code"] == UsageError.exit_code
    assert err == f"onnxremat: {told['error']}\n"


def started(*arguments: object, **environment: str) -> "subprocess.CompletedProcess[str]":
    env = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "NO_COLOR")}
    env |= {"PYTHONPATH": f"{ROOT}:{ROOT / 'rewriters'}"} | environment
    return subprocess.run(
        [sys.executable, "-m", "onnxremat", *map(str, arguments)],
        env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def test_columns_are_those_of_the_terminal() -> None:
    assert max(map(len, started("planners", COLUMNS="40").stdout.splitlines())) <= 40
    for columns in ({}, {"COLUMNS": "0"}):
        assert 60 < max(map(len, started("planners", **columns).stdout.splitlines())) <= 80


def test_a_schema_is_printed() -> None:
    done = started("schema", "audit", COLUMNS="40")
    assert done.stdout == schema_text("audit")
    done = started("schema", "none")
    assert done.returncode == 2 and "rewrite, audit" in done.stderr


@pytest.mark.skipif(sys.platform == "win32", reason="there is no pty")
@pytest.mark.parametrize(
    ("environment", "coloured"),
    [({"TERM": "xterm"}, True), ({"TERM": "xterm", "NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)  # fmt: skip
def test_colours_are_for_terminals_that_have_some(
    environment: dict[str, str], coloured: bool
) -> None:
    paths = f"{ROOT}:{ROOT / 'rewriters'}"
    code = (
        "import os, pty, sys; os.environ.pop('NO_COLOR', None);"
        f"os.environ.update({environment!r}, PYTHONPATH={paths!r});"
        f"sys.exit(pty.spawn([{sys.executable!r}, '-m', 'onnxremat', 'planners']) >> 8)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 0
    assert b"planner" in done.stdout
    assert (b"\x1b[1" in done.stdout or b"\x1b[3" in done.stdout) is coloured
    assert b"\x1b[" not in started("planners", **environment).stdout.encode()


def test_a_limit_below_the_outputs_is_impossible_in_default_sessions_too(tmp_path: Path) -> None:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [256, 256]) for name in "xy"]
    nodes = [helper.make_node("Exp", ["x"], ["y"], "e")]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:])
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), tmp_path / "m.onnx")
    with pytest.raises(InfeasibleError, match=r"100.0 kB is impossible.*alone are 262.1 kB"):
        rewrite(tmp_path / "m.onnx", "100kB", Options(time_limit=0.3, measure_limit=1))


def test_quiet_and_verbose_contradict_each_other(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["audit", "none.onnx", "-q", "-v"])
    assert "--quiet and --verbose" in str(done.exception)
