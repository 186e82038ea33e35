"""The picture of memory in characters."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxremat.cli.memory_chart import ROWS, fits, memory_chart

STEPS = st.lists(st.integers(0, 10**9), min_size=1, max_size=300)


@given(STEPS, st.integers(20, 200), st.booleans())
def test_it_fits_and_its_mark_is_under_the_peak(steps: list[int], width: int, blocks: bool) -> None:
    text = memory_chart(steps, "conv (Conv)" + "x" * 50, width, blocks=blocks)
    *bars, axis, marked = text.splitlines()
    assert len(bars) == ROWS
    assert max(map(len, text.splitlines())) <= max(width, 40)
    assert text.isascii() or blocks
    assert axis.strip().startswith("0 B")
    place = marked.index("▲" if blocks else "^")
    full = "█" if blocks else "#"
    if max(steps):
        assert bars[0][place] == full, "the highest column"


def test_what_is_held_is_seen_however_little_it_is() -> None:
    text = memory_chart([1, 10**9], "op", 40)
    assert text.splitlines()[ROWS - 1].split("│")[1][0] == "▁"
    assert "1.00 GB" in text and "500.0 MB" in text


def test_of_many_steps_each_column_has_the_most() -> None:
    steps = [0] * 20_000
    steps[12_345] = 100
    text = memory_chart(steps, "op", 80)
    assert text.splitlines()[0].count("█") == 1


@pytest.mark.parametrize(("encoding", "there"), [("utf-8", True), ("ascii", False), ("cp1252", False), ("none", False)])  # fmt: skip
def test_not_every_encoding_has_blocks(encoding: str, there: bool) -> None:
    assert fits(encoding) is there


def test_nothing_to_show_is_an_error() -> None:
    with pytest.raises(ValueError, match="without steps"):
        memory_chart([], "op")
