"""The worked examples of CONTRIBUTING.md do what they say, from one module and one row each."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.cli.app import app
from onnxremat.cli.report import as_json, rewrite_text
from onnxremat.commands.rewrite import RewriteResult, outputs, rewrite
from onnxremat.core.errors import UsageError
from onnxremat.core.problem import Limits, Problem
from onnxremat.core.units import parse_limit
from onnxremat.options import Options
from onnxremat.planners import PLANNERS
from onnxremat.target_table import TARGETS
from onnxremat_rewriters.substitutes import SUBSTITUTIONS
from onnxremat_rewriters.tile.table import ROWS
from tests.commands.test_rewrite import diamond
from tests.contributing import ROOT, example, module_of
from tests.planners.retention.test_windows import certify, problems
from tests.rewriters.tile import cases
from tests.rewriters.tile.cases import Draw
from tests.rewriters.tile.nets import Net
from tests.rewriters.tile.test_ops import check

pytestmark = pytest.mark.slow

Add = Callable[[str], Any]


@pytest.fixture
def add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """Puts the module of a section where its name says; what it returns is the row."""
    added: list[ModuleType] = []

    def put(title: str) -> Any:
        one = example(title)
        file = tmp_path / one.path
        file.parent.mkdir(parents=True)
        file.write_text(one.code, encoding="utf-8")
        name = module_of(one.path)
        package = import_module(name.rpartition(".")[0])
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(file.parent)])
        module = import_module(name)
        added.append(module)
        table = vars(import_module(module_of(one.table)))
        return eval(one.row, {**table, **vars(module), file.stem: module})

    yield put
    for module in added:
        package, _, stem = module.__name__.rpartition(".")
        del sys.modules[module.__name__]
        delattr(sys.modules[package], stem)


@pytest.mark.parametrize("title", ["A planner", "A tile rule", "A rewriter", "A target"])
def test_examples_are_written_as_the_code_is(title: str) -> None:
    one = example(title)
    for command in (["check"], ["format", "--check"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *command, "--stdin-filename", one.path, "-"],
            cwd=ROOT,
            input=one.code,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout


def certified(result: RewriteResult) -> None:
    assert result.verification is not None and result.verification.identical
    assert result.limit_bytes is not None
    assert result.rewritten.peak_bytes <= result.limit_bytes


def test_a_planner(
    add: Add,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = add("A planner")
    monkeypatch.setitem(PLANNERS, row.name, row)

    @settings(max_examples=60, deadline=None, derandomize=True)
    @given(problem=problems(max_ops=9))
    def a_plan_is_what_it_says(problem: Problem) -> None:
        certify(problem, row.function(problem, Limits()))

    a_plan_is_what_it_says()
    app(["planners"], standalone_mode=False)
    assert f"{row.name}  " in capsys.readouterr().out
    options = Options(session="recipe", planner=row.name, threads=1, time_limit=2, tiling=False)
    result = rewrite(diamond(tmp_path / "m.onnx"), "95%", options)
    certified(result)
    assert result.plan.planner == row.name
    assert result.recomputed == 1


def test_a_tile_rule(add: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (op, row), *_ = add("A tile rule").items()
    monkeypatch.setitem(ROWS, op, row)
    net = Net()
    x = net.conv(net.input("x", 1, 3, 64, 64), 3, 24, 3)
    x = net.add(op, x, net.constant(3), upper=1)
    path = tmp_path / "m.onnx"
    onnx.save(net.model(net.conv(x, 24, 3, 3)), path)
    result = rewrite(path, "60%", Options(session="recipe", threads=2, time_limit=3))
    certified(result)
    tiles = [node for node in result.model.graph.node if node.op_type == op]
    assert len(tiles) > 1 and all("/tile" in node.name for node in tiles)


def test_the_case_of_a_tile_rule(add: Add, monkeypatch: pytest.MonkeyPatch) -> None:
    (op, row), *_ = add("A tile rule").items()
    monkeypatch.setitem(ROWS, op, row)
    made = dict(vars(cases))
    exec(example("A tile rule").case, made)

    @settings(max_examples=40, deadline=None, derandomize=True)
    @given(data=st.data())
    def tiles_have_the_bits_of_the_whole(data: st.DataObject) -> None:
        draw = Draw(data)
        check(draw, made[op.lower()](draw))

    tiles_have_the_bits_of_the_whole()


def test_a_rewriter(add: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = add("A rewriter")
    (op,) = row.op_types
    net = Net()
    x = net.add(op, net.add("Neg", net.input("x", 4, 32, 64, 8)), axis=1)
    path = tmp_path / "m.onnx"
    onnx.save(net.model(net.add("ReduceMax", x, axes=[1, 2, 3])), path)
    options = Options(session="recipe", threads=1, time_limit=2, tiling=False)
    monkeypatch.setitem(SUBSTITUTIONS, row.name, row)
    result = rewrite(path, "55%", options)
    certified(result)
    assert [(one.substitution, one.exact) for one in result.replaced] == [(row.name, True)]


def test_a_target(add: Add, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    row = add("A target")
    with pytest.raises(UsageError, match=f"'{row.name}' is none of stock, recipe"):
        Options(session=row.name)
    monkeypatch.setitem(TARGETS, row.name, row)
    path = diamond(tmp_path / "m.onnx")
    options = Options(session=row.name, threads=1, time_limit=2)
    output, plan = outputs(path, parse_limit("95%"), options, None, None)
    assert (output.name, plan) == (f"m.95pct.{row.suffix}.onnx", None)
    result = rewrite(path, "95%", options, output=output)
    certified(result)
    assert result.recomputed == 1
    assert result.rewritten.peak_bytes == result.plan.peak_bytes
    assert row.figure in rewrite_text(result)
    assert as_json(result)["target"] == row.name
    assert as_json(result)["stock"] is None
    with pytest.raises(UsageError, match="is not for --optimize"):
        Options(session=row.name, optimize="all")
    with pytest.raises(UsageError, match="not with --runtime generic"):
        Options(session=row.name, runtime="generic")
