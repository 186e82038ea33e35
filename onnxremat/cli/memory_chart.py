"""Memory over an execution as a picture of characters: time to the right, bytes upwards."""

from collections.abc import Sequence
from itertools import pairwise

from onnxremat.cli.tables import LEAST_WIDTH, shortened
from onnxremat.core.text import printable
from onnxremat.core.units import format_bytes

ROWS = 8
BLOCKS, ASCII = " ▁▂▃▄▅▆▇█", " .:#"
"""What fills a cell of a column from below, from nothing to all of it."""
_WIDTH = 80


def memory_chart(
    live_bytes: Sequence[int],
    peak: str,
    width: int | None = None,
    *,
    blocks: bool = True,
    rows: int = ROWS,
) -> str:
    """The bytes held at each step, `rows` high and `width` wide (None: 80), the largest of them
    marked with `peak`, what runs there. Where there are more steps than columns, each column has
    the most of its steps. `blocks`: whether they can be printed; else it is ASCII. O(steps).

    Raises ValueError without steps.
    """
    if not live_bytes:
        raise ValueError("an execution without steps has no memory to show")
    width = max(_WIDTH if width is None else width, LEAST_WIDTH)
    most = max(live_bytes)
    labels = {rows - 1: format_bytes(most), rows // 2 - 1: format_bytes(most // 2)}
    beside = max(map(len, labels.values()))
    count = width - beside - 2
    columns = _columns(live_bytes, count)
    side, corner, line = ("│", "└", "─") if blocks else ("|", "+", "-")
    filled = BLOCKS if blocks else ASCII
    lines = [
        f"{labels.get(row, ''):>{beside}} {side}"
        + "".join(_cell(nbytes, row, rows, most, filled) for nbytes in columns).rstrip()
        for row in reversed(range(rows))
    ]
    lines.append(f"{'0 B':>{beside}} {corner}{line * count}")
    place = columns.index(max(columns))
    return "\n".join([*lines, " " * (beside + 2) + _marked(place, count, peak, blocks=blocks)])


def fits(encoding: str) -> bool:
    """Whether an encoding has the characters of the picture."""
    try:
        f"{BLOCKS}│└─▲".encode(encoding)
    except (LookupError, UnicodeEncodeError):
        return False
    return True


def _columns(live_bytes: Sequence[int], count: int) -> list[int]:
    """The most of the steps of each of `count` columns, which may share steps if there are few."""
    steps = len(live_bytes)
    starts = [number * steps // count for number in range(count + 1)]
    return [max(live_bytes[start : max(end, start + 1)]) for start, end in pairwise(starts)]


def _cell(nbytes: int, row: int, rows: int, most: int, filled: str) -> str:
    """The character of a column in a row, counted from below. What is more than nothing is seen."""
    full = len(filled) - 1
    levels = -(-nbytes * rows * full // max(most, 1))
    return filled[min(full, max(0, levels - row * full))]


def _marked(place: int, count: int, peak: str, *, blocks: bool) -> str:
    """The mark under a column, and what runs there on the side with more room."""
    mark = "▲" if blocks else "^"
    room = max(place, count - place - 1) - 1
    said = shortened(printable(peak), room)
    if count - place - 1 >= place:
        return " " * place + f"{mark} {said}"
    return f"{said} {mark}".rjust(place + 1)
