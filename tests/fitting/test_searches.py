"""Which of several plans is taken."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from onnxremat.fitting.searches import Searches
from onnxremat.options import Options

PLANS = {(100, 0.10), (101, 0.05), (102, 0.03), (103, 0.01)}
"""What they take, and the share of a run that they add."""


@pytest.mark.parametrize(
    ("budget", "slowdown", "taken"),
    [(None, None, (102, 0.03)), (None, 0.2, (101, 0.05)), (200, None, (103, 0.01))],
)
def test_of_plans_that_take_about_the_same_the_fastest_is_taken(
    budget: int | None, slowdown: float | None, taken: tuple[int, float]
) -> None:
    options = Options(max_slowdown=slowdown)
    nothing = cast("Any", None)
    searches = Searches(nothing, options, budget, nothing, lambda stage: None)
    plans = [
        SimpleNamespace(made=SimpleNamespace(compared_bytes=nbytes), extra_time=time)
        for nbytes, time in PLANS
    ]
    best = searches.best_of(cast("Any", plans))
    assert (best.made.compared_bytes, best.extra_time) == taken
