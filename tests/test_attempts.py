"""How whole ops and tiles share the seconds of `--time-limit`, on a clock that only tests move."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from onnxremat import attempts, rewriting
from onnxremat.attempts import ORDER_SHARE, REGIONS_SHARE, WHOLE_SHARE
from onnxremat.errors import InfeasibleError, NoPlanFoundError
from onnxremat.plan import Limits, Plan, Planner, Problem, make_plan
from onnxremat.planning import FIRST_SHARE, SMALLEST_SECONDS, PlanningTime
from onnxremat.prepare import Options, Subject
from onnxremat.rewriting import rewrite
from onnxremat.schedule import given_order
from onnxremat.tiling import TilingPlan
from tests.test_rewrite import diamond

OPTIONS = Options(time_limit=100, threads=1)
IMPOSSIBLE, MISSED = "75%", "95%"
"""Limits below the bound of one op, and above it but below the order of the file."""


class Used:
    """Who was given how many seconds, all of which are used: a planner's name, or "tiles"."""

    def __init__(self, *, late: bool = False) -> None:
        self.now_seconds = 0.0
        self.given: list[tuple[str, float]] = []
        self.starts: list[int] = []
        self.late = late

    def now(self) -> float:
        return self.now_seconds

    def _use(self, who: str, seconds: float) -> None:
        self.given.append((who, seconds))
        self.now_seconds += seconds

    def planner(self, name: str) -> Planner:
        def plan(problem: Problem, limits: Limits) -> Plan:
            self._use(name, limits.seconds)
            self.starts.append(len(problem.starts))
            return make_plan(problem, given_order(problem.graph), name, peak_bound_bytes=0)

        return plan

    def choose_regions(
        self, subject: Subject, *_: object, seconds: float, **__: object
    ) -> TilingPlan:
        self._use("tiles", seconds)
        reasons = () if self.late else ("no part of the model can be cut",)
        return TilingPlan((), 0, 0, 0, 1, 0, 1, False, reasons=reasons, late=self.late)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return diamond(tmp_path / "m.onnx")


def used(monkeypatch: pytest.MonkeyPatch, *, late: bool = False) -> Used:
    """Planners and tiles that use all their seconds for nothing."""
    made = Used(late=late)
    planners = {name: SimpleNamespace(function=made.planner(name)) for name in ("auto", "reorder")}
    monkeypatch.setattr(attempts, "PLANNERS", planners)
    monkeypatch.setattr(attempts, "choose_regions", made.choose_regions)
    monkeypatch.setattr(rewriting, "PlanningTime", lambda seconds: PlanningTime(seconds, made.now))
    return made


def test_a_missed_limit_takes_the_seconds_once(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole ops, tiles, and whole ops again from what they had."""
    seen = used(monkeypatch)
    with pytest.raises(NoPlanFoundError, match="no part of the model can be cut") as error:
        rewrite(model, MISSED, OPTIONS)
    whole = 100 * WHOLE_SHARE * FIRST_SHARE
    order = ORDER_SHARE * (100 - whole)
    tiles = REGIONS_SHARE * (100 - whole - order)
    rest = 100 - whole - order - tiles
    names, seconds = zip(*seen.given, strict=True)
    assert names == ("auto", "reorder", "tiles", "auto")
    assert seconds == pytest.approx((whole, order, tiles, FIRST_SHARE * rest))
    assert seen.starts == [1, 0, 2]
    assert "try a longer --time-limit" in str(error.value)


def test_where_one_op_exceeds_the_limit_tiles_come_first(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = used(monkeypatch)
    with pytest.raises(InfeasibleError, match="can be cut"):
        rewrite(model, IMPOSSIBLE, OPTIONS)
    assert seen.given == [("reorder", 20), ("tiles", 60), ("auto", SMALLEST_SECONDS)]


def test_without_tiles_whole_ops_have_all(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = used(monkeypatch)
    with pytest.raises(NoPlanFoundError):
        rewrite(model, MISSED, replace(OPTIONS, tiling=False))
    assert seen.given == [("auto", 100 * FIRST_SHARE)]


def test_a_limit_that_is_met_takes_one_plan(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = used(monkeypatch)
    assert rewrite(model, "1GB", OPTIONS).extra_time == 0
    assert [name for name, _ in seen.given] == ["auto"]


def test_tiles_that_had_no_time_prove_nothing(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used(monkeypatch, late=True)
    with pytest.raises(NoPlanFoundError, match="no tiles were found that help; try a longer"):
        rewrite(model, IMPOSSIBLE, OPTIONS)


def test_the_smallest_peak_takes_the_seconds_once(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = used(monkeypatch)
    rewrite(model, "min", OPTIONS)
    assert [name for name, _ in seen.given] == ["auto", "reorder", "tiles", "auto"]
    assert sum(seconds for _, seconds in seen.given) == pytest.approx(100)
