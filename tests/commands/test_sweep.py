"""Sweeps: the files of single rewrites, and no run twice."""

import csv
import json
import re
from pathlib import Path

import pytest

from onnxremat.commands import sweep as sweep_module
from onnxremat.commands.rewrite import rewrite
from onnxremat.commands.sweep import SweepResult, journal_of, sweep
from onnxremat.commands.sweep_row import COLUMNS
from onnxremat.core.errors import UsageError
from onnxremat.core.units import parse_limit
from tests.commands.sweeps import QUICK, TOY, Watched, chain
from tests.commands.test_rewrite import diamond

pytestmark = pytest.mark.slow

ALL, NONE = parse_limit("100%"), parse_limit("4B")


@pytest.fixture
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs are those of `toy_run`."""
    monkeypatch.setattr(sweep_module, "WORKER", TOY)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def swept(folder: Path, *models: Path, keep: bool = True) -> tuple[SweepResult, list[int]]:
    """What a sweep of models to two limits gave, and the places of the runs that it did."""
    watched = Watched()
    result = sweep(
        models,
        [ALL, NONE],
        [QUICK],
        output=folder / "t.csv",
        keep=folder / "kept" if keep else None,
        watch=watched,
    )
    return result, watched.done


def test_a_sweep_writes_the_file_of_a_single_run_and_all_its_figures(tmp_path: Path) -> None:
    model, limit = diamond(tmp_path / "m.onnx"), parse_limit("95%")
    result = sweep(
        [model], [limit, NONE], [QUICK], output=tmp_path / "t.csv", keep=tmp_path / "kept"
    )
    first, second = result.rows
    assert (first["status"], second["status"]) == ("made", "impossible")
    assert "no schedule goes below" in str(second["reason"]) and second["exit_code"] == 3
    single = tmp_path / "single.onnx"
    made = rewrite(model, limit, QUICK, output=single)
    kept = tmp_path / "kept" / "m" / "m.95pct.recipe.onnx"
    assert kept.read_bytes() == single.read_bytes()
    assert first["rewritten_peak_bytes"] == made.rewritten.peak_bytes
    assert first["original_peak_bytes"] == made.original.peak_bytes
    assert (first["recomputed"], first["tiles"]) == (made.recomputed, 0)
    assert first["planner"] == made.plan.planner
    assert set(first) <= set(COLUMNS)
    assert int(str(first["run_bytes"])) > 10**8
    table = rows_of(tmp_path / "t.csv")
    assert list(table[0]) == list(COLUMNS)
    assert (table[0]["file"], table[1]["file"]) == (str(kept), "")


@pytest.mark.usefixtures("toys")
def test_what_is_finished_is_not_done_again_and_what_is_not_is(tmp_path: Path) -> None:
    one, other = tmp_path / "one.onnx", tmp_path / "other.onnx"
    one.write_bytes(b"a model")
    other.write_bytes(b"refuse")
    result, done = swept(tmp_path, one, other)
    assert done == [0, 1, 2, 3] and result.before == 0
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["one"]
    table = (tmp_path / "t.csv").read_bytes()

    result, done = swept(tmp_path, one, other)
    assert done == [] and result.before == 4
    assert (tmp_path / "t.csv").read_bytes() == table
    renamed = one.rename(tmp_path / "sub.onnx")
    assert swept(tmp_path, renamed, other, keep=False)[1] == [0, 1, 2, 3], "other files were asked"
    one = renamed.rename(one)
    assert swept(tmp_path, one, other)[1] == []

    journal = journal_of(tmp_path / "t.csv")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:2]) + lines[2][:50])  # as a kill leaves it
    assert swept(tmp_path, one, other)[1] == [2, 3]
    (tmp_path / "kept" / "one" / "one.4b.recipe.onnx").unlink()
    assert swept(tmp_path, one, other)[1] == [1]
    (tmp_path / "kept" / "one" / "one.4b.recipe.onnx").write_bytes(b"others")
    assert swept(tmp_path, one, other)[1] == [1]
    other.write_bytes(b"another model")
    result, done = swept(tmp_path, one, other)
    assert done == [2, 3] and [row["status"] for row in result.rows] == ["made"] * 4


@pytest.mark.usefixtures("toys")
def test_a_run_that_crashes_is_a_row_and_is_tried_again(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.onnx", tmp_path / "bad.onnx"
    good.write_bytes(b"a model")
    bad.write_bytes(b"crash")
    result, done = swept(tmp_path, bad, good)
    assert len(result.crashed) == 2 and done == [0, 1, 2, 3]
    assert [row["status"] for row in rows_of(tmp_path / "t.csv")] == ["crashed"] * 2 + ["made"] * 2
    assert result.rows[0]["reason"] == "its process ended with exit code 1"
    assert swept(tmp_path, bad, good)[1] == [0, 1]


@pytest.mark.usefixtures("toys")
def test_what_stood_in_the_way_of_a_run_may_be_gone(tmp_path: Path) -> None:
    model = tmp_path / "full.onnx"
    model.write_bytes(b"full")
    assert swept(tmp_path, model)[1] == [0, 1]
    assert swept(tmp_path, model)[1] == [0, 1]


@pytest.mark.usefixtures("toys")
@pytest.mark.parametrize("wrong", [{}, {"status": "made"}, {"status": "made", "seconds": {"a": 1}}])
def test_a_journal_with_rows_that_no_run_has_is_refused(
    wrong: dict[str, object], tmp_path: Path
) -> None:
    model = tmp_path / "one.onnx"
    model.write_bytes(b"a model")
    swept(tmp_path, model)
    journal = journal_of(tmp_path / "t.csv")
    before = journal.read_text("utf-8")
    key = json.loads(before.splitlines()[0])["key"]
    journal.write_text(before + json.dumps({"key": key, "answer": wrong}) + "\n", "utf-8")
    with pytest.raises(UsageError, match="no journal of a sweep"):
        swept(tmp_path, model)


def test_a_model_that_changes_on_the_way_is_refused_by_its_run(tmp_path: Path) -> None:
    model = chain(tmp_path / "a.onnx", "Exp")

    class Changes(Watched):
        def planned(self, *_: object) -> None:
            chain(model, "Sin")

    result = sweep([model], [ALL], [QUICK], output=tmp_path / "t.csv", watch=Changes())
    assert result.rows[0]["status"] == "not usable"
    assert "another model than the one" in str(result.rows[0]["reason"])


def test_what_cannot_be_written_is_refused_before_anything_runs(tmp_path: Path) -> None:
    model = chain(tmp_path / "a.onnx", "Exp")
    for output in (tmp_path / "no" / "t.csv", tmp_path / "t.txt"):
        with pytest.raises(UsageError):
            sweep([model], [ALL], [QUICK], output=output)
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="cannot make the folder"):
        sweep([model], [ALL], [QUICK], output=tmp_path / "t.csv", keep=tmp_path / "file")


def test_jobs_are_no_more_than_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep_module, "usable_processors", lambda: 8)
    at_once = sweep_module.jobs_at_once
    assert [at_once(64, None), at_once(64, 3), at_once(3, 2), at_once(5, 16)] == [8, 2, 3, 1]


def test_the_page_says_what_each_column_means() -> None:
    page = (Path(__file__).parent.parent.parent / "docs" / "fleets.md").read_text("utf-8")
    cells = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `")]
    named = [name for cell in cells for name in re.findall(r"`([a-z0-9_*]+)`", cell)]
    known = [name for name in COLUMNS if name not in named]
    assert all(re.match(r"(original|option|file)_", name) for name in known), known
    assert {name for name in named if not name.endswith("*")} <= set(COLUMNS)
