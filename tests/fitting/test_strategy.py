"""How whole ops and tiles share the seconds of `--time-limit`, on a clock that only tests move."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.commands import rewrite as rewriting
from onnxremat.commands.rewrite import rewrite
from onnxremat.core.bounds import peak_bound
from onnxremat.core.deadline import Deadline
from onnxremat.core.errors import NoPlanFoundError
from onnxremat.core.problem import Limits, Plan, Planner, Problem, make_plan
from onnxremat.core.schedule import given_order
from onnxremat.fitting import in_tiles, searches, strategy
from onnxremat.fitting.in_tiles import ONLY_TILES
from onnxremat.fitting.loop import FIRST_SHARE, SMALLEST_SECONDS, SMALLEST_SHARE
from onnxremat.fitting.strategy import UNTILED, USUAL
from onnxremat.fitting.substitution import substituted
from onnxremat.options import Options
from onnxremat.stages import silent
from onnxremat.subject import prepare
from onnxremat.targets.recipe_target import RecipeTarget
from onnxremat.tiling import TilingPlan
from tests.commands.test_rewrite import diamond

pytestmark = pytest.mark.slow

OPTIONS = Options(session="recipe", time_limit=100, threads=1)
IMPOSSIBLE, MISSED = "75%", "95%"
"""Limits below the bound of one op, and above it but below the order of the file."""


class Used:
    """Who was given how many seconds, all of which are used: a planner's name, or "tiles"."""

    def __init__(self, *, late: bool = False) -> None:
        self.now_seconds = 0.0
        self.given: list[tuple[str, float]] = []
        self.starts: list[int] = []
        self.budgets: list[int | None] = []
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
            self.budgets.append(problem.budget_bytes)
            return make_plan(problem, given_order(problem.graph), name, peak_bound_bytes=0)

        return plan

    def search(self, *_: object) -> "Used":
        """In the place of `TileSearch`: finds nothing."""
        return self

    def plan(self, budget_bytes: int | None, seconds: float) -> TilingPlan:
        del budget_bytes
        self._use("tiles", seconds)
        reasons = () if self.late else ("no part of the model can be cut",)
        return TilingPlan((), 0, 0, 0, 1, 0, 1, False, reasons=reasons, late=self.late)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return diamond(tmp_path / "m.onnx")


def used(monkeypatch: pytest.MonkeyPatch, *, late: bool = False) -> Used:
    """Planners and tiles that use all their seconds for nothing."""
    made = Used(late=late)
    planners = {
        name: SimpleNamespace(function=made.planner(name), counts_work=False)
        for name in ("auto", "reorder")
    }
    monkeypatch.setattr(searches, "PLANNERS", planners)
    monkeypatch.setattr(in_tiles, "TileSearch", made.search)
    planning = partial(Deadline, now=made.now, busy=made.now, waits=True)
    monkeypatch.setattr(rewriting, "Deadline", SimpleNamespace(of_planning=planning))
    return made


def test_a_missed_limit_takes_the_seconds_once(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole ops, tiles, and whole ops again, now for the smallest peak, from what they had."""
    seen = used(monkeypatch)
    with pytest.raises(NoPlanFoundError, match="no part of the model can be cut") as error:
        rewrite(model, MISSED, OPTIONS)
    whole, order, tiles = 100 * USUAL.whole * FIRST_SHARE, 100 * USUAL.order, 100 * USUAL.tiles
    rest = 100 - whole - order - tiles
    names, seconds = zip(*seen.given, strict=True)
    smallest = 100 * SMALLEST_SHARE * USUAL.smallest
    assert names == ("auto", "reorder", "tiles", "auto", "auto")
    last = FIRST_SHARE * (rest - smallest)
    assert seconds == pytest.approx((whole, order, tiles, smallest, last))
    assert seen.starts == [1, 0, 2, 2]
    assert seen.budgets[0] == seen.budgets[-1] is not None
    assert seen.budgets[1:-1] == [None, None]
    assert "the smallest peak found is" in str(error.value)


def test_where_one_op_exceeds_the_limit_tiles_come_first(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = used(monkeypatch)
    with pytest.raises(NoPlanFoundError, match="can be cut"):
        rewrite(model, IMPOSSIBLE, OPTIONS)
    order, tiles = ("reorder", 100 * USUAL.order), ("tiles", pytest.approx(100 * ONLY_TILES))
    assert seen.given == [order, tiles, ("auto", SMALLEST_SECONDS)]


def test_without_tiles_whole_ops_have_all(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = used(monkeypatch)
    with pytest.raises(NoPlanFoundError):
        rewrite(model, MISSED, replace(OPTIONS, tiling=False))
    first = 100 * UNTILED.whole * FIRST_SHARE
    smallest = 100 * SMALLEST_SHARE * UNTILED.smallest
    last = FIRST_SHARE * (100 - first - smallest)
    assert [seconds for _, seconds in seen.given] == pytest.approx([first, smallest, last])


def test_a_limit_that_is_met_takes_one_plan(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = used(monkeypatch)
    assert rewrite(model, "1GB", OPTIONS).extra_time == 0
    assert [name for name, _ in seen.given] == ["auto"]


@pytest.mark.parametrize("late", [False, True])
def test_a_search_that_found_nothing_proves_nothing(
    model: Path, monkeypatch: pytest.MonkeyPatch, late: bool
) -> None:
    used(monkeypatch, late=late)
    with pytest.raises(NoPlanFoundError, match="no tiles were found that help") as error:
        rewrite(model, IMPOSSIBLE, OPTIONS)
    assert ("try a longer" in str(error.value)) is late


@pytest.mark.parametrize(
    ("options", "shares"),
    [
        (OPTIONS, USUAL),
        (OPTIONS, strategy.TRAINING),
        (replace(OPTIONS, tiling=False), UNTILED),
    ],
)
def test_a_limit_has_the_seconds_of_the_smallest_peak(
    model: Path, monkeypatch: pytest.MonkeyPatch, options: Options, shares: strategy.Shares
) -> None:
    """Each search that `min` has is a part of planning for a limit, with as many seconds."""
    monkeypatch.setattr(strategy.Attempts, "_shares", lambda *_: shares)
    seen = used(monkeypatch)
    rewrite(model, "min", options)
    smallest = dict(seen.given)
    seen = used(monkeypatch)
    with pytest.raises(NoPlanFoundError):
        rewrite(model, MISSED, options)
    assert set(smallest) == ({"auto", "reorder", "tiles"} if options.tiling else {"auto"})
    assert None in seen.budgets
    assert sum(seconds for _, seconds in seen.given) <= 100
    for name, seconds in smallest.items():
        assert max(given for one, given in seen.given if one == name) >= seconds


def masked(path: Path) -> Path:
    """A Where that broadcasts: in the runtime it holds five times its output."""
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Where", ["c", "r", "k"], ["w"], "where"),
        helper.make_node("Neg", ["w"], ["y"], "neg"),
    ]
    inputs = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [64, 256]),
        helper.make_tensor_value_info("c", TensorProto.BOOL, [1, 256]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [64, 256])
    k = numpy_helper.from_array(np.zeros((), np.float32), "k")
    graph = helper.make_graph(nodes, "masked", inputs, [output], [k])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


@pytest.mark.parametrize(("share", "replaced"), [(1.1, True), (1.5, False)])
def test_ops_that_alone_take_most_of_a_limit_are_replaced(
    tmp_path: Path, share: float, replaced: bool
) -> None:
    """Beside them there is always more, so that whatever the smallest peak needs is there."""
    subject = prepare(masked(tmp_path / "m.onnx"), OPTIONS)
    rules = RecipeTarget.rules
    limit = int(share * peak_bound(subject.imported.graph, rules).nbytes)
    made = substituted(subject, limit, rules, silent, allow_rounding=False)
    assert [one.op_type for one in made.replaced] == ["Where"] * replaced
