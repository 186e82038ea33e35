"""What became of every plan: as a table, and where a limit is missed."""

from dataclasses import replace
from pathlib import Path

import pytest

from onnxremat.cli.explain import WIDTH, attempts_text
from onnxremat.cli.report import explained_text, rewrite_text
from onnxremat.commands.rewrite import rewrite
from onnxremat.core.attempt import TAKEN, Attempt
from onnxremat.core.errors import InfeasibleError, NoPlanFoundError
from onnxremat.options import Options
from tests.commands.test_rewrite import diamond

pytestmark = pytest.mark.slow

QUICK = Options(session="recipe", time_limit=2, threads=1)
ONE = Attempt(
    "12 regions", "auto/planner_of_a_long_name", 123_456_789, 999_900_000, 123_456_000,
    None, 12.345, "refused: no schedule goes below this " + "word " * 30 + "\x1b[2J", 1234.5,
)  # fmt: skip


def test_the_table_fits_and_says_what_became_of_each() -> None:
    text = attempts_text([ONE, replace(ONE, target_bytes=None, outcome=TAKEN)])
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert all(line.isprintable() for line in lines)
    assert lines[-1].strip() == TAKEN
    assert "smallest" in lines[-2]
    assert "\\x1b[2J" in text


def test_a_result_has_all_its_plans_and_one_is_taken(tmp_path: Path) -> None:
    result = rewrite(diamond(tmp_path / "m.onnx"), "95%", QUICK)
    (taken,) = [one for one in result.attempts if one.outcome == TAKEN]
    assert taken.planned_bytes == result.plan.peak_bytes
    assert taken.measured_bytes == result.rewritten.peak_bytes
    assert taken.extra_time == pytest.approx(result.extra_time)
    tiles = [one for one in result.attempts if one.by == "tiles"]
    assert [one.outcome for one in tiles] == ["not planned: no better than whole ops"]
    text = explained_text(result)
    assert text.startswith(rewrite_text(result)) and "plan of" in text


@pytest.mark.parametrize(
    ("limit", "tiling", "kind"),
    [
        ("60%", False, InfeasibleError),
        ("1%", True, InfeasibleError),
        ("20%", True, NoPlanFoundError),
    ],
)
def test_a_miss_has_its_plans(tmp_path: Path, limit: str, tiling: bool, kind: type) -> None:
    with pytest.raises(kind) as error:
        rewrite(diamond(tmp_path / "m.onnx"), limit, replace(QUICK, tiling=tiling))
    assert error.value.attempts
    for one in error.value.attempts:
        assert one.outcome.startswith(("refused: ", "not planned: "))
