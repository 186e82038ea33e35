"""TARGETS: what reads it."""

from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import get_args

import pytest

from onnxremat.cli import arguments
from onnxremat.options import Options
from onnxremat.subject import prepare
from onnxremat.target_table import DEFAULT, TARGETS
from onnxremat.targets.target import Target
from tests.commands.test_rewrite import diamond

ROOT = Path(__file__).parent.parent


def test_rows_are_chosen_by_different_options_and_lead_to_targets() -> None:
    assert len({(info.session, info.runtime) for info in TARGETS.values()}) == len(TARGETS)
    for name, info in TARGETS.items():
        assert name == info.name
        assert issubclass(info.kind, Target)
        assert Options(session=info.session, runtime=info.runtime).target is info


def test_files_are_for_default_sessions_unless_something_else_is_asked_for() -> None:
    assert Options().target is DEFAULT is TARGETS["stock"]
    assert Options(runtime="generic").target is TARGETS["static"]


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
        get_args(one)[1].help for one in (arguments.Limit, arguments.Session, arguments.Runtime)
    )
    for info in TARGETS.values():
        assert f"{info.short_figure} with {info.option}" in limit
        assert info.summary in session + runtime


def test_a_target_is_never_changed(tmp_path: Path) -> None:
    options = Options(session="recipe", threads=1)
    target = TARGETS["recipe"].kind.of(prepare(diamond(tmp_path / "m.onnx"), options))
    with pytest.raises(FrozenInstanceError):
        target.recipe = target.recipe.with_threads(2)  # type: ignore[misc]
