"""Which tiles are made and measured, one after the other, where nothing predicts what they take."""

import math
from types import SimpleNamespace
from typing import Any, cast

import pytest

from onnxremat.fitting import in_tiles
from onnxremat.fitting.in_tiles import PREDICTED_HALVINGS, Tiles, _Became, _Measuring
from onnxremat.fitting.outcomes import Tried, TriedTiles
from onnxremat.tiling import TilingPlan
from onnxremat_rewriters.tile import Region

SHARES = (0.5, 0.32, 0.08)
LESS, SAME, SLOW, NO_BETTER = _Became


class Target:
    tile_shares = SHARES


class Searches:
    """Of a model whose own peak is 1000 bytes."""

    target = Target()
    deadline = SimpleNamespace(share=lambda part, *, busy: None)
    options = SimpleNamespace(max_slowdown=0.1)

    def own(self, subject: object) -> None:
        return None

    def peak(self, subject: object, order: object) -> int:
        return 1000


@pytest.mark.parametrize(
    ("became", "asked"),
    [
        ((LESS, LESS, LESS), SHARES),
        ((LESS, NO_BETTER), SHARES[:2]),
        ((SAME, LESS, SLOW, LESS, NO_BETTER), (*SHARES, 0.16, 0.1131)),
        ((LESS, SLOW, SLOW, LESS, SAME), (0.5, 0.32, 0.4, 0.4472, 0.4230)),
        ((SLOW, SLOW, SLOW), SHARES),
        ((SLOW, LESS, SLOW, NO_BETTER), (*SHARES, 0.16)),
        ((SAME, SLOW, NO_BETTER), SHARES),
    ],
)
def test_a_step_is_halved_where_it_takes_too_long(
    became: tuple[_Became, ...], asked: tuple[float, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are factors: half of one is its root."""
    tried: list[float] = []

    def measured_at(
        tiles: Tiles, share: float, found: TriedTiles, of: object
    ) -> tuple[TriedTiles, _Became]:
        tried.append(share)
        return found, became[len(tried) - 1]

    monkeypatch.setattr(Tiles, "_measured_at", measured_at)
    monkeypatch.setattr(Tiles, "_promising", lambda tiles, fast, slow, of: math.sqrt(fast * slow))
    nothing = cast("Any", None)
    Tiles(cast("Any", Searches()))._measured(nothing, nothing, nothing, [], 0.1)
    assert tried == pytest.approx(asked, rel=1e-3)


@pytest.mark.parametrize(
    ("fast_above", "promising"),
    [
        # Of shares between 0.4 and 0.1: the root of their product is 0.2.
        (0.35, 0.2),
        (0.19, 0.2),
        (0.13, 0.1414),
        (0.1, 0.1189),
    ],
)
def test_the_smallest_tiles_that_may_be_fast_enough_are_tried_first(
    fast_above: float, promising: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By what is predicted, and the middle where none of them is fast enough."""
    looked_at: list[float] = []

    def chosen(search: object, asked: int, part: object) -> SimpleNamespace:
        looked_at.append(asked / 1e6)
        return SimpleNamespace(extra_time=0.05 if asked / 1e6 >= fast_above else 0.15)

    monkeypatch.setattr(in_tiles, "_chosen", chosen)
    tiles = Tiles(cast("Any", Searches()))
    of = cast("Any", SimpleNamespace(search=None, part=None, own_bytes=10**6))
    assert tiles._promising(0.4, 0.1, of) == pytest.approx(promising, rel=1e-3)
    assert len(looked_at) == PREDICTED_HALVINGS
    assert looked_at[0] == pytest.approx(0.2)


@pytest.mark.parametrize(
    ("refused", "load_share", "most"),
    [
        ("it takes longer to open", 0.6, 60),
        ("it takes longer to open", 0.99, 95),
        ("+9% time", None, None),
        ("", 0.6, None),
    ],
)
def test_where_a_file_takes_too_long_to_open_later_ones_have_fewer_nodes(
    refused: str, load_share: float | None, most: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where a form of it was taken."""
    regions = (Region(("x",), ("y",), ((2, 4),)),)
    tiling = TilingPlan(regions, 500, 1000, 0, 100, 100, threads=1, allow_rounding=False)
    made = SimpleNamespace(refused=refused, load_share=load_share, compared_bytes=700)
    planned = SimpleNamespace(made=made, attempts=())
    narrowed: list[int] = []
    monkeypatch.setattr(in_tiles, "_chosen", lambda search, asked, part: tiling)
    monkeypatch.setattr(Tiles, "_learned", lambda tiles, base, tiling: base)
    searches = SimpleNamespace(
        budget=None,
        options=SimpleNamespace(max_slowdown=0.1),
        deadline=SimpleNamespace(share=lambda part: part),
        tell=lambda said: None,
        tried=lambda search: Tried(cast("Any", planned)),
    )
    of = _Measuring(
        cast("Any", None), cast("Any", SimpleNamespace(narrow=narrowed.append)),
        cast("Any", None), [], 0.1, 1000,
    )  # fmt: skip
    found, became = Tiles(cast("Any", searches))._measured_at(0.5, TriedTiles(), of)
    assert became is (SLOW if refused else LESS)
    assert narrowed == ([] if most is None else [most])
    assert len(found.tried) == 1
