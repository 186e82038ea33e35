"""Which tiles are made and measured, one after the other, where nothing predicts what they take."""

from typing import Any, cast

import pytest

from onnxremat.fitting.in_tiles import Tiles, _Became
from onnxremat.fitting.outcomes import TriedTiles

SHARES = (0.5, 0.32, 0.08)
LESS, SAME, SLOW, NO_BETTER = _Became


class Target:
    tile_shares = SHARES


class Searches:
    """Of a model whose own peak is 1000 bytes."""

    target = Target()

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
        ((SLOW,), SHARES[:1]),
        ((SAME, SLOW), SHARES[:2]),
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
    nothing = cast("Any", None)
    Tiles(cast("Any", Searches()))._measured(nothing, nothing, nothing, [], 0.1)
    assert tried == pytest.approx(asked, rel=1e-3)
