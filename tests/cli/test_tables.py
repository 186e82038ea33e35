"""Tables are as wide as they may be, whatever is in them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxremat.cli.tables import LEAST_WIDTH, columns, in_groups, shortened, table

CELL = st.text("abcdefgh/. ", max_size=60)
FIGURE = st.from_regex(r"[0-9]{1,3}\.[0-9] MB", fullmatch=True)
ROW = st.tuples(CELL, FIGURE, FIGURE, CELL, CELL)
LONG = "encoder/layer.11/attention/self/" + "x" * 200 + "/MatMul_output_0"


@given(st.lists(ROW, min_size=1, max_size=5), st.integers(1, 200))
def test_no_line_is_wider_than_it_may_be(rows: list[tuple[str, ...]], width: int) -> None:
    header = ("held", "size", "counted", "made by", "what it does")
    text = columns(
        [header, *rows], width, names=(0, 3), words=(4,), below=["why " * 40] * len(rows)
    )
    assert max(map(len, text.splitlines())) <= max(width, LEAST_WIDTH)


@given(st.lists(ROW, min_size=1, max_size=5), st.integers(40, 200))
def test_figures_stay_whole(rows: list[tuple[str, ...]], width: int) -> None:
    text = columns([("a", "b", "c", "d", "e"), *rows], width, names=(0, 3), words=(4,))
    for row in rows:
        assert row[1] in text and row[2] in text


def test_names_lose_their_middle_and_only_where_there_is_no_room() -> None:
    rows = [("name", "size", "made by"), (LONG, "1.2 MB", "short"), ("b", "3.4 MB", LONG)]
    wide = columns(rows)
    assert LONG in wide
    text = columns(rows, 80, names=(0, 2))
    assert {len(line) for line in text.splitlines()} <= set(range(81))
    assert "..." in text and "MatMul_output_0" in text and "encoder/" in text
    assert columns(rows[:1], 80, names=(0, 2)) == "name  size  made by"


def test_a_table_of_figures_that_has_no_room_is_a_list() -> None:
    rows = [("name", *(f"figure {n}" for n in range(6))), ("conv", *("123.45 MB",) * 6)]
    lines = columns(rows, 40).splitlines()
    assert lines[:3] == ["name", "conv", "  figure 0  123.45 MB"]
    assert len(lines) == 8


def test_columns_that_have_no_room_are_below_beside_the_first_again() -> None:
    rows = [("limit", *(f"planner_{n}" for n in range(8))), ("3.2 MB", *("+12.3%",) * 8)]
    text = in_groups(rows, 40)
    assert max(map(len, text.splitlines())) <= 40
    assert text.count("3.2 MB") == text.count("limit") == 3
    assert text.count("+12.3%") == 8
    assert in_groups(rows) == columns(rows)


def test_texts_go_on_beside_their_labels() -> None:
    text = table([("lower bound", "inputs and outputs of one node " * 4), ("", "b")], 40)
    assert max(map(len, text.splitlines())) <= 40
    assert all(line.startswith(" " * 13) for line in text.splitlines()[1:])
    path = "/a/path/of/a/model/that/somebody/wants/to/copy.onnx"
    assert path in table([("written", path)], 40, paths=["written"]), "to be copied"
    assert path not in table([("held", path)], 40)


@pytest.mark.parametrize(("name", "longest", "shown"), [
    ("abcdefghij", 10, "abcdefghij"), ("abcdefghijk", 10, "abc...hijk"), ("abc", 2, "c"),
])  # fmt: skip
def test_a_name_is_shortened_in_the_middle(name: str, longest: int, shown: str) -> None:
    assert shortened(name, longest) == shown or longest < 3
