"""Memory of the process against time, measured: what is compared, printed and drawn."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

from onnxremat.cli.app import app
from onnxremat.cli.frontier_report import process_frontier_html, process_frontier_text
from onnxremat.commands.process_frontier import (
    MeasuredPoint,
    ProcessFrontier,
    process_frontier,
)
from onnxremat.core.errors import UsageError
from onnxremat.options import Options

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def products(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three products with weights of 4 MB, which a default session copies and packs."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((1024, 1024), dtype=np.float32) / 32, f"w{i}")
        for i in range(3)
    ]
    nodes = [helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"]) for i in range(3)]
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [64, 1024]) for n in ("h0", "h3"))
    graph = helper.make_graph(nodes, "products", [x], [y], weights)
    path = tmp_path_factory.mktemp("products") / "m.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


@pytest.fixture(scope="module")
def found(products: Path) -> ProcessFrontier:
    options = Options(session="stock", threads=1, time_limit=1, measure_limit=10)
    return process_frontier(products, options, slowdowns=(3.0, 2.0))


def test_files_are_measured_over_what_people_run_today(found: ProcessFrontier) -> None:
    original, options, *files = found.points
    assert original == found.original and original.how == "default options"
    assert original.extra_time == 0.0 and original.process_bytes > 12e6
    assert options.opened == "original" and options.how.startswith("without ")
    assert [one.opened for one in files] == ["file, at most +200%", "file, at most +300%"]
    assert all(one.process_bytes < 0.6 * original.process_bytes for one in files)
    assert all(0 <= one.loaded_bytes <= one.process_bytes for one in found.points)
    assert not found.missed


def test_the_best_are_beaten_by_none(found: ProcessFrontier) -> None:
    for point in found.points:
        assert any(
            b.process_bytes <= point.process_bytes and b.extra_time <= point.extra_time
            for b in found.best
        )
    sizes = [one.process_bytes for one in found.best]
    assert sizes == sorted(set(sizes))


def test_text_and_page_have_every_point(found: ProcessFrontier) -> None:
    text, page = process_frontier_text(found), process_frontier_html(found)
    for point in found.points:
        assert point.opened in text and point.how in text
        assert f"<title>{point.opened}: " in page and "memory of the process" in page
    assert "for any processor" in text
    missed = replace(found, missed={"at most +1%": "no plan <here>"}, portable=False)
    assert "at most +1%: no plan <here>" in process_frontier_text(missed)
    assert "this kind of processor" in process_frontier_text(missed)
    assert "no plan &lt;here&gt;" in process_frontier_html(missed)


def test_what_takes_less_time_than_the_original_is_drawn_below_it() -> None:
    points = (
        MeasuredPoint("original", "default options", 100, 50, 0.0),
        MeasuredPoint("file, at most +2%", "plan", 40, 10, -0.25),
    )
    page = process_frontier_html(ProcessFrontier(Path("m"), True, 1, points, points[1:], {}))
    assert ">-25.0%<" in page
    heights = [
        float(line.split('cy="')[1].split('"')[0])
        for line in page.splitlines()
        if "<title>original: " in line or "<title>file, at most" in line
    ]
    assert heights[0] < heights[1]


def test_only_files_for_default_sessions_have_a_process(products: Path) -> None:
    with pytest.raises(UsageError, match="default sessions"):
        process_frontier(products, Options(session="recipe"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--slowdowns", "2%"], "--slowdowns goes with --session stock only"),
        (["--no-portable"], "--no-portable goes with --session stock only"),
        (["--session", "stock", "--planners", "auto"], "--planners goes with --session recipe"),
        (["--session", "stock", "--budgets", "3"], "--budgets goes with --session recipe only"),
        (["--session", "stock", "--slowdowns", "2"], "--slowdowns: '2' has no unit"),
        (["--session", "fast"], "--session: 'fast' is none of"),
    ],
)
def test_options_that_do_not_go_together(products: Path, words: list[str], said: str) -> None:
    ended = CliRunner().invoke(app, ["frontier", str(products), *words])
    assert isinstance(ended.exception, UsageError) and said in str(ended.exception)


def test_the_command_writes_the_page_and_prints_json(products: Path, tmp_path: Path) -> None:
    page = tmp_path / "f.html"
    words = ["--session", "stock", "--slowdowns", "200%", "--threads", "1", "--time-limit", "1"]
    more = ["--measure-limit", "5", "--json", "--html", str(page)]
    ended = CliRunner().invoke(app, ["frontier", str(products), *words, *more])
    assert ended.exit_code == 0, ended.output
    told = json.loads(ended.stdout)
    assert [one["opened"] for one in told["points"]][-1] == "file, at most +200%"
    assert page.read_text().count("<title>") == 1 + len(told["points"])
    assert {p.name for p in products.parent.iterdir()} == {"m.onnx"}
