"""TARGETS: what reads it, and that a target is one module and one row."""

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import get_args

import pytest

from onnxremat.cli import options as cli_options
from onnxremat.cli.report import as_json, rewrite_text
from onnxremat.commands.rewrite import outputs, rewrite
from onnxremat.core.errors import UsageError
from onnxremat.core.units import parse_limit
from onnxremat.options import Options
from onnxremat.subject import prepare
from onnxremat.target_table import TARGETS
from onnxremat.targets.target import Target
from tests.commands.test_rewrite import diamond
from tests.targets.toy_target import TOY, ToyTarget

ROOT = Path(__file__).parent.parent


def test_rows_are_chosen_by_different_options_and_lead_to_targets() -> None:
    assert len({(info.session, info.runtime) for info in TARGETS.values()}) == len(TARGETS)
    for name, info in TARGETS.items():
        assert name == info.name
        assert issubclass(info.kind, Target)
        assert Options(session=info.session, runtime=info.runtime).target is info


@pytest.mark.parametrize("name", TARGETS)
def test_the_readme_has_the_table(name: str) -> None:
    info = TARGETS[name]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("|")
    ]
    (found,) = [row for row in rows if f"`{info.option}`" in row[0] and len(row) == 3]
    assert found[1].startswith(f"the {info.figure}")


def test_the_command_line_names_every_target() -> None:
    limit, session, runtime = (
        get_args(one)[1].help
        for one in (cli_options.Limit, cli_options.Session, cli_options.Runtime)
    )
    for info in TARGETS.values():
        assert f"{info.short_figure} with {info.option}" in limit
        assert info.summary in session + runtime


def test_a_target_is_one_module_and_one_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="'toy' is none of recipe, stock"):
        Options(session="toy")
    monkeypatch.setitem(TARGETS, "toy", TOY)
    path = diamond(tmp_path / "m.onnx")
    options = Options(session="toy", threads=1, time_limit=2)
    output, plan = outputs(path, parse_limit("95%"), options, None, None)
    assert (output.name, plan) == ("m.95pct.toy.onnx", None)
    result = rewrite(path, "95%", options, output=output)
    assert result.recomputed == 1
    assert result.verification is not None and result.verification.identical
    assert result.rewritten.peak_bytes == result.plan.peak_bytes
    assert "toy peak" in rewrite_text(result)
    assert as_json(result)["target"] == "toy"
    assert as_json(result)["stock"] is None
    with pytest.raises(UsageError, match="a toy is not for --optimize"):
        Options(session="toy", optimize="all")
    with pytest.raises(UsageError, match="not with --runtime generic"):
        Options(session="toy", runtime="generic")


def test_a_target_is_never_changed(tmp_path: Path) -> None:
    target = ToyTarget.of(prepare(diamond(tmp_path / "m.onnx"), Options(threads=1)))
    with pytest.raises(FrozenInstanceError):
        target.recipe = target.recipe.with_threads(2)  # type: ignore[misc]
