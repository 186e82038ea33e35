"""Memory against time: what the command finds, prints and writes."""

import json
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from typer.testing import CliRunner

from models import BUILDERS
from onnxremat.cli.app import app
from onnxremat.cli.frontier_report import frontier_html, frontier_text
from onnxremat.commands.frontier import Frontier, frontier
from onnxremat.core.errors import ModelError, UsageError
from onnxremat.options import FrontierOptions
from tests.importer.ortgrad import convolutions
from tests.models.sizes import tiny

pytestmark = pytest.mark.slow

PLANNERS = ("reorder", "chain", "local_search")


@pytest.fixture(scope="module")
def unet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("frontier") / "unet.onnx"
    onnx.save(BUILDERS["unet_train"](**tiny("unet", size=32)), path)
    return path


@pytest.fixture(scope="module")
def result(unet: Path) -> Frontier:
    return frontier(unet, FrontierOptions(time_limit=1), planners=PLANNERS, budgets=3)


def test_every_planner_has_a_point_for_every_limit(result: Frontier) -> None:
    wanted = {(name, budget) for name in PLANNERS for budget in (None, *result.budgets)}
    assert {(p.planner, p.budget_bytes) for p in result.points} == wanted
    assert len(result.budgets) == 3
    for point in result.points:
        assert point.meets == (point.budget_bytes is None or point.peak_bytes <= point.budget_bytes)
        assert point.peak_bytes >= result.floor.nbytes
        assert point.extra_time >= 0


def test_the_best_are_beaten_by_none(result: Frontier) -> None:
    assert result.best
    for point in result.points:
        assert any(
            b.peak_bytes <= point.peak_bytes and b.extra_time <= point.extra_time
            for b in result.best
        )
    peaks = [p.peak_bytes for p in result.best]
    times = [p.extra_time for p in result.best]
    assert peaks == sorted(set(peaks)) and times == sorted(set(times), reverse=True)


def test_text_and_page_show_all_planners_and_limits(result: Frontier) -> None:
    text, page = frontier_text(result), frontier_html(result)
    for name in PLANNERS:
        assert name in text and f"<title>{name}: " in page
    assert text.count("%)") >= len(result.budgets)
    assert page.count("<circle") > len(PLANNERS)


def test_the_dash_is_explained_where_there_is_one(result: Frontier) -> None:
    missed = replace(result, points=tuple(replace(p, meets=False) for p in result.points))
    assert "-: no plan within the limit" in frontier_text(missed)
    met = replace(result, points=tuple(replace(p, meets=True) for p in result.points))
    assert "-: no plan" not in frontier_text(met)


def test_planners_that_do_not_apply_say_why(tmp_path: Path) -> None:
    onnx.save(BUILDERS["unet"](**tiny("unet")), tmp_path / "m.onnx")
    found = frontier(
        tmp_path / "m.onnx", FrontierOptions(time_limit=1), planners=("chain",), budgets=1
    )
    assert "no training graph" in found.skipped["chain"]
    assert found.points == () and found.budgets == ()
    assert "no training graph" in frontier_text(found)
    assert "<svg" in frontier_html(found)


@pytest.fixture(scope="module")
def unloadable(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with ops that only ONNX Runtime's training has."""
    path = tmp_path_factory.mktemp("ortgrad") / "model.onnx"
    onnx.save(convolutions(), path)
    return path


def test_where_no_planner_has_a_point_the_text_says_so(result: Frontier) -> None:
    nothing = replace(result, points=(), best=(), skipped={"tiles": "nothing can be cut"})
    text = frontier_text(nothing)
    assert "none of the planners has a plan" in text and "nothing can be cut" in text


def test_ops_the_runtime_lacks_are_planned_without_a_run_and_a_note_says_so(
    unloadable: Path,
) -> None:
    found = frontier(unloadable, FrontierOptions(time_limit=1), planners=("chain",), budgets=1)
    assert min(p.peak_bytes for p in found.points) < found.own_peak_bytes
    assert "without a run" in found.note and "SoftmaxCrossEntropyLossGrad" in found.note
    assert found.note in frontier_text(found) and "\n" not in found.note


def test_nothing_is_noted_of_models_that_run(result: Frontier) -> None:
    assert not result.note and "note" not in frontier_text(result)


@pytest.mark.parametrize("wish", [{"costs": "measured"}, {"optimize": "basic"}])
def test_what_only_the_runtime_can_do_stays_an_error(
    unloadable: Path, wish: dict[str, str]
) -> None:
    with pytest.raises(ModelError, match="not a registered"):
        frontier(unloadable, FrontierOptions(time_limit=1, **wish), planners=("chain",))


def test_other_commands_refuse_ops_the_runtime_lacks(unloadable: Path) -> None:
    done = CliRunner().invoke(app, ["audit", str(unloadable)])
    assert isinstance(done.exception, ModelError) and done.exception.exit_code == 5


def test_an_unknown_planner_is_an_error(unet: Path) -> None:
    with pytest.raises(UsageError, match="nobody"):
        frontier(unet, planners=("nobody",))


def test_the_command_prints_json_and_writes_the_page(unet: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ["frontier", str(unet), "--planners", "reorder", "--budgets", "1", "--time-limit"]
    done = CliRunner().invoke(app, [*arguments, "0.5", "--json", "--html", str(page)])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["points"][0]["planner"] == "reorder"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")
