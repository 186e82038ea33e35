"""`onnxremat sweep` as a user runs it: what it prints, how it ends, and how it goes on."""

import csv
import inspect
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from onnxremat.cli.app import app
from onnxremat.commands import sweep as sweep_module
from onnxremat.fleet import run_table
from onnxremat.options import Options
from tests.cli.test_ending import environment, gone, list_children, temporary_files
from tests.commands.sweeps import TOY

OWN = {"models", "mem", "output", "keep", "jobs", "scheduler", "quiet", "verbose", "as_json"}
FIELDS = {"dim": "dims", "allow_op": "allow_ops"}
TOYS = f"""
import onnxremat.commands.sweep as module
module.WORKER = {TOY!r}
from onnxremat.__main__ import main
main()
"""


@pytest.fixture
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Three models for runs of no time."""
    monkeypatch.setattr(sweep_module, "WORKER", TOY)
    monkeypatch.chdir(tmp_path)
    for name, content in (("good", b"a model"), ("bad", b"refuse"), ("crash", b"crash")):
        Path(f"{name}.onnx").write_bytes(content)
    return ["good.onnx", "bad.onnx", "crash.onnx"]


def sweep(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["sweep", *arguments])


def test_it_takes_the_options_of_rewrite() -> None:
    (command,) = (one.callback for one in app.registered_commands if one.name == "sweep")
    assert command is not None
    given = set(inspect.signature(command).parameters) - OWN
    assert {FIELDS.get(one, one) for one in given} == {field.name for field in fields(Options)}


def test_it_prints_a_line_for_each_run_and_all_rows(models: list[str]) -> None:
    done = sweep(*models[:2], "--mem", "50%", "--session", "recipe", "-o", "t.csv", "--keep", "k")
    assert done.exit_code == 0
    assert done.stderr.splitlines() == [
        "onnxremat: 2 runs",
        "onnxremat: 1/2 good 50% recipe: 7 B -> -, - time, 0.1 s",
        "onnxremat: 2/2 bad 50% recipe: no model, 0.1 s: refused",
    ]
    assert done.stdout.splitlines() == [
        "model  limit  target  result    original  rewritten  time  took",
        "good   50%    recipe  made      7 B       -          -     0.1 s",
        "bad    50%    recipe  no model  -         -          -     0.1 s",
        "",
        "bad 50% recipe: refused",
        "",
        "written  t.csv (2 rows: 1 made, 1 no model)",
    ]
    assert Path("k/good/good.50pct.recipe.onnx").is_file()
    with open("t.csv", newline="", encoding="utf-8") as file:
        assert [row["status"] for row in csv.DictReader(file)] == ["made", "no model"]
    again = sweep(*models[:2], "--mem", "50%", "--session", "recipe", "-o", "t.csv", "--keep", "k")
    assert again.stderr == "onnxremat: 2 runs, 2 of them finished before\n"
    assert again.stdout.endswith("no model; 2 finished before)\n")


def test_a_crash_is_exit_code_1_and_the_others_have_rows(models: list[str]) -> None:
    done = sweep(*models, "--mem", "50%", "--mem", "4MB", "-o", "t.csv", "--jobs", "2", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [row["status"] for row in rows] == ["made"] * 2 + ["no model"] * 2 + ["crashed"] * 2
    assert type(done.exception).__name__ == "OnnxrematError" and done.stderr == ""
    assert str(done.exception).startswith("2 of 6 runs crashed")


def test_runs_beside_each_other_are_warned_of(
    models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    done = sweep(models[0], "--mem", "50%", "-o", "t.csv", "--jobs", "2", "--threads", "256")
    assert done.stderr.startswith("onnxremat: one run at once: there are no processors for more")
    monkeypatch.setattr(sweep_module, "usable_processors", lambda: 2)
    done = sweep(models[0], "--mem", "40%", "-o", "t.csv", "--jobs", "3")
    assert done.stderr.startswith("onnxremat: up to 2 runs at once (there are no processors for")
    assert "they disturb the times" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("-o", "t.txt"), "has to end in .csv or .parquet"),
        (("-o", "t.csv", "--session", "no"), "--session: 'no' is none of"),
        (("-o", "t.csv", "--session", "recipe", "--no-portable"), "goes with --session stock only"),
        (("-o", "t.csv", "--planner", "no"), "--planner: there is no 'no'"),
        (("-o", "no/t.csv"), "there is no folder"),
        (("-o", "t.parquet"), "pip install 'onnxremat[parquet]'"),
        (("-o", "t.csv", "--scheduler", "tcp://x:1"), "pip install 'onnxremat[dask]'"),
    ],
)
def test_what_cannot_be_used_is_refused(
    arguments: tuple[str, ...], said: str, models: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_table, "find_spec", lambda name: None)
    monkeypatch.setitem(sys.modules, "distributed", None)
    done = sweep(models[0], "--mem", "50%", *arguments)
    assert getattr(done.exception, "exit_code", None) == 2
    assert said in str(done.exception)


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="processes are found in /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_sweep_that_was_ended_goes_on_where_it_was(
    number: signal.Signals, tmp_path: Path
) -> None:
    for name, content in (("good", b"a model"), ("slow", b"wait"), ("last", b"another")):
        (tmp_path / f"{name}.onnx").write_bytes(content)
    command = [
        *(sys.executable, "-c", TOYS, "sweep", "good.onnx", "slow.onnx", "last.onnx"),
        *("--mem", "50%", "-o", "t.csv"),
    ]
    how = {"cwd": tmp_path, "env": environment(tmp_path), "text": True}
    journal = tmp_path / "t.csv.jsonl"
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, **how)  # type: ignore[call-overload]
    children: list[int] = []
    while not (journal.exists() and journal.read_bytes() and children):
        assert process.poll() is None
        time.sleep(0.05)
        children = list_children(process.pid)
    process.send_signal(number)
    out, err = process.communicate(timeout=60)
    assert gone(children[0])
    assert out == "" and len(journal.read_bytes().splitlines()) == 1
    if number == signal.SIGINT:
        assert process.returncode == 130
        said = err.splitlines()[-1]
        assert said == (
            "onnxremat: interrupted, t.csv has the finished runs, and the same command goes on"
        )
        assert temporary_files(tmp_path) == []
    with (tmp_path / "t.csv").open(newline="", encoding="utf-8") as file:
        assert [row["model"] for row in csv.DictReader(file)] == ["good.onnx"]
    (tmp_path / "slow.onnx").write_bytes(b"quick now")
    done = subprocess.run(command, capture_output=True, check=True, **how)  # type: ignore[call-overload]
    assert "onnxremat: 3 runs, 1 of them finished before" in done.stderr
    assert "3/3 last 50% stock" in done.stderr
    assert temporary_files(tmp_path) == []
