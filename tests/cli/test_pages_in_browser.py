"""The pages in headless Chromium: nothing is complained of or asked for, and pointing works.

ONNXREMAT_NODE names a folder with node_modules, which has playwright-core, without which these are
skipped; a browser is looked for where Debian has it, or ONNXREMAT_CHROMIUM says where.
"""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from onnxremat.cli.frontier_report import frontier_html
from onnxremat.cli.pages.audit_page import audit_html
from onnxremat.commands.frontier import Frontier, Point
from onnxremat.core.units import format_bytes
from tests.cli.inspections import inspection

pytestmark = pytest.mark.slow

MODULES = os.environ.get("ONNXREMAT_NODE", "")
CHROMIUM = os.environ.get("ONNXREMAT_CHROMIUM") or shutil.which("chromium") or ""
LOOK = Path(__file__).with_name("look.mjs")
SECONDS_TO_DRAW = 2.0

NAMES = ("small", "large", "two", "frontier")


def frontier_of(made: Any) -> Frontier:
    budgets = (90, 60, None)
    points = tuple(
        Point("auto", budget, nbytes, 0.1 * i, True, False, 1.0)
        for i, (budget, nbytes) in enumerate(zip(budgets, (90, 60, 40), strict=True))
    )
    return Frontier(Path("m.onnx"), 3, 100, made.audit.floor, (90, 60), points, points[::-1], {})


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What is told of each page, at both widths and in both schemes."""
    if not MODULES or shutil.which("node") is None:
        pytest.skip("no node, or ONNXREMAT_NODE names no folder with its packages")
    if not CHROMIUM or not (Path(MODULES) / "node_modules" / "playwright-core").exists():
        pytest.skip("no chromium, or no playwright-core in node_modules")
    folder = tmp_path_factory.mktemp("pages")
    pages = {
        "small": audit_html(inspection()),
        "large": audit_html(inspection(20_000)),
        "two": audit_html(inspection(second=True)),
        "frontier": frontier_html(frontier_of(inspection())),
    }
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["node", LOOK, MODULES, CHROMIUM, *(folder / f"{name}.html" for name in NAMES)],
        capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, list[dict[str, Any]]] = {}
    for one in json.loads(done.stdout):
        told.setdefault(Path(one["path"]).stem, []).append(one)
    return told


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_complained_of_asked_for_or_cut_off(
    name: str, seen: dict[str, list[dict[str, Any]]]
) -> None:
    assert {(one["width"], one["colorScheme"]) for one in seen[name]} == {
        (width, scheme) for width in (1280, 390) for scheme in ("light", "dark")
    }
    for one in seen[name]:
        assert one["errors"] == [] and set(one["requests"]) == {"file"}
        assert one["overflow"] <= 0
        assert one["milliseconds"] < 1000 * SECONDS_TO_DRAW


@pytest.mark.parametrize("name", NAMES)
def test_ink_and_ground_follow_the_scheme(name: str, seen: dict[str, list[dict[str, Any]]]) -> None:
    for one in seen[name]:
        ink, ground = (sum(map(int, one[part][4:-1].split(","))) for part in ("ink", "ground"))
        assert abs(ink - ground) > 500
        assert (ink > ground) == (one["colorScheme"] == "dark")


@pytest.mark.parametrize(("name", "nodes"), [("small", 60), ("large", 20_000)])
def test_pointing_at_a_step_tells_op_tensors_and_sizes(
    name: str, nodes: int, seen: dict[str, list[dict[str, Any]]]
) -> None:
    timeline = inspection(nodes).audit.timeline
    names = [step.name for step in timeline.steps]
    for one in seen[name]:
        said = one["hovered"].splitlines()
        step = names.index(said[0])
        assert f"step {step + 1} of {nodes}" in one["hovered"] and step > 0.8 * nodes
        assert format_bytes(timeline.live_bytes[step]) in said
        for title in ("makes", "reads", "held, by"):
            assert title in one["hovered"]
        for i in (*timeline.steps[step].makes, *timeline.steps[step].reads):
            assert timeline.values[i].name in one["hovered"]
        assert one["hoverMilliseconds"] < 150


def test_keys_go_to_the_peak_and_on(seen: dict[str, list[dict[str, Any]]]) -> None:
    timeline = inspection().audit.timeline
    for one in (*seen["small"], *seen["two"]):
        assert one["peak"].splitlines()[0] == timeline.steps[timeline.peak_step].name
        assert "(the peak)" in one["peak"]
        assert format_bytes(timeline.peak_bytes) in one["peak"]
        assert one["next"].splitlines()[0] == timeline.steps[timeline.peak_step + 1].name
        assert one["zoomed"]
        assert "MatMul" in one["legend"] and "weights" in one["withWeights"]
        assert one["sections"] == 1


def test_two_models_are_in_one_picture(seen: dict[str, list[dict[str, Any]]]) -> None:
    for one in seen["two"]:
        for file in ("private_model.onnx", "private_second.onnx"):
            assert file in one["first"] and file in one["hovered"]


def test_a_spot_says_what_it_is(seen: dict[str, list[dict[str, Any]]]) -> None:
    for one in seen["frontier"]:
        assert one["spots"] == 3
        assert one["hovered"].startswith("auto: ")
