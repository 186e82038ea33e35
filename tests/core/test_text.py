"""What is printed is one line that a terminal does not obey."""

import pytest

from onnxremat.cli.tables import columns, table
from onnxremat.core.errors import LONGEST_MESSAGE, ModelError
from onnxremat.core.text import ELLIPSIS, printable

EVIL = "\x1b]0;title\x07\x1b[31mred\nonnxremat: all is well\r\x9b2J\u202e\u2028\x7f\udcff"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("conv1/weight:0", "conv1/weight:0"),
        ("größe · 2 層", "größe · 2 層"),
        ("a\nb\tc", r"a\nb\tc"),
        ("\x1b[2J", r"\x1b[2J"),
        ("\x9b\u202e\u2028\udcff", r"\x9b\u202e\u2028\udcff"),
        ("\U000e0001", r"\U000e0001"),
        ("", ""),
    ],
)
def test_what_is_not_printable_is_escaped_once(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert printable(shown) == shown


@pytest.mark.parametrize("letter", ["a", "\x1b", "\U000e0001"])
@pytest.mark.parametrize("length", [1, 29, 30, 31, 10**6])
def test_of_long_text_the_middle_is_left_out(letter: str, length: int) -> None:
    shown = printable(letter * length, 30)
    whole = printable(letter * min(length, 100))
    assert len(shown) <= 30
    assert shown == whole if len(whole) <= 30 else ELLIPSIS in shown


def test_an_error_is_one_line_of_bounded_length() -> None:
    error = ModelError(f"value {EVIL} is wrong")
    assert str(error).isprintable()
    assert "all is well" in str(error)
    assert len(str(ModelError("n" * 10**6))) == LONGEST_MESSAGE


def test_tables_have_the_lines_they_were_given() -> None:
    lines = table([("label", f"made by {EVIL}"), ("", "b")]).splitlines()
    assert len(lines) == 2
    rows = columns([("name", "size"), (EVIL, "1"), ("b", "2")]).splitlines()
    assert len(rows) == 3
    assert all(line.isprintable() for line in (*lines, *rows))
    assert len(rows[1].rstrip()) == len(rows[0].replace("size", "1"))
