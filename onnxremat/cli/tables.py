"""Text in columns, as wide as the terminal at most; also of the planner table, which is printed
without loading anything else.

Where no width is given a line is as long as its text. Where one is, names are shortened in the
middle, words go on in the next line, and a table whose figures alone are wider becomes a list: each
row is a heading with a line for every other column.
"""

import textwrap
from collections.abc import Iterable, Sequence

from onnxremat.core.text import printable
from onnxremat.planners import PlannerInfo

LEAST_WIDTH = 40
"""Columns that there are at least: no table is made narrower."""
_LINE_SHOWN = 4000
_NAME_SHOWN = 51
_GAP = "  "
_INDENT = "  "
_LEAST_CELL = 10
"""Characters that a name is shortened to, or words are broken in, at least."""
_LEAST_TEXT = 20
"""Characters beside a label, at least; where there are fewer, the text stands below it."""
_ELLIPSIS = "..."


def planners_text(planners: Sequence[PlannerInfo], width: int | None = None) -> str:
    """The planner table."""
    rows = [
        ("planner", "what it does", "source"),
        *((p.name, p.summary, p.source) for p in planners),
    ]
    return columns(rows, width, words=(1, 2))


def table(
    rows: Sequence[tuple[str, str]], width: int | None = None, *, paths: Iterable[str] = ()
) -> str:
    """Labels and texts, one under the other, each on its line whatever names it holds. Within a
    `width` long names lose their middle, but in the rows of `paths`, which are there to be copied:
    those may be wider."""
    beside = max(len(label) for label, _ in rows)
    lines = [(f"{label:<{beside}}{_GAP}", printable(text, _LINE_SHOWN)) for label, text in rows]
    if width is None:
        return "\n".join(printable(label + text).rstrip() for label, text in lines)
    whole, width = set(paths), max(width, LEAST_WIDTH - len(_INDENT))
    return "\n".join(
        line
        for label, text in lines
        for line in _wrapped(label, text, width, short=label.strip() not in whole)
    )


def _wrapped(label: str, text: str, width: int, *, short: bool) -> list[str]:
    """A label and the text beside it, or below it where there is no room."""
    label = printable(label)
    if len(label) + _LEAST_TEXT <= width:
        beside = _broken(text, width, label, " " * len(label), short=short)
        return beside or [label.rstrip()]
    below = _broken(text, width, _INDENT, _INDENT, short=short)
    return [label.rstrip(), *below] if label.strip() else below


def paragraph(text: str, width: int | None = None) -> str:
    """A text as lines of at most `width` columns (None: one line)."""
    return text if width is None else "\n".join(_broken(text, max(width, LEAST_WIDTH)))


def _broken(
    text: str, width: int, first: str = "", others: str = "", *, short: bool = True
) -> list[str]:
    """The lines of a text. Words, names and paths among them, stay whole, or lose their middle if
    they are to be `short`."""
    if short:
        longest = min(_NAME_SHOWN, width - len(others))
        text = " ".join(shortened(word, longest) for word in text.split(" "))
    return textwrap.wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def columns(
    rows: Sequence[Sequence[str]],
    width: int | None = None,
    *,
    names: Iterable[int] = (),
    words: Iterable[int] = (),
    below: Sequence[str] = (),
) -> str:
    """Rows of cells in columns of equal width, each on its line whatever names it holds; the first
    row is the header. `names` are the columns whose cells may be shortened in the middle, `words`
    those that may be broken into lines, where all together are wider than `width`. `below` has a
    text for each row but the header, to stand under it."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = _widths(rows)
    names, words = set(names), set(words)
    if width is not None:
        fitted = _fitted(rows, max(width, LEAST_WIDTH), names | words)
        if fitted is None:
            return _listed(rows, max(width, LEAST_WIDTH), below)
        widths = fitted
    lines = []
    for place, row in enumerate(rows, start=-1):
        cells = [
            _broken_cell(cell, widths[i])
            if i in words
            else [shortened(cell, widths[i]) if i in names else cell]
            for i, cell in enumerate(row)
        ]
        for number in range(max(map(len, cells))):
            parts = [cell[number] if number < len(cell) else "" for cell in cells]
            line = _GAP.join(part.ljust(n) for part, n in zip(parts, widths, strict=True))
            lines.append(line.rstrip())
        if below and place >= 0:
            lines += _under(below[place], width)
    return "\n".join(lines)


def _under(text: str, width: int | None) -> list[str]:
    room = _LINE_SHOWN if width is None else max(width, LEAST_WIDTH)
    return _broken(printable(text), room, 2 * _INDENT, 2 * _INDENT)


def in_groups(rows: Sequence[Sequence[str]], width: int | None = None) -> str:
    """`columns` of figures: as many of them beside the first column as there is room for, the rest
    below, beside the first column again."""
    if width is None:
        return columns(rows)
    widths = [max(len(printable(row[i])) for row in rows) for i in range(len(rows[0]))]
    groups: list[list[int]] = []
    room = 0
    for i, needed in enumerate(widths[1:], start=1):
        if not groups or room < len(_GAP) + needed:
            groups.append([])
            room = max(width, LEAST_WIDTH) - widths[0]
        groups[-1].append(i)
        room -= len(_GAP) + needed
    return "\n\n".join(
        columns([[row[0], *(row[i] for i in group)] for row in rows]) for group in groups
    )


def shown_name(name: str) -> str:
    """A name as a report has room for it, on one line."""
    return shortened(printable(name), _NAME_SHOWN)


def shortened(name: str, longest: int) -> str:
    """A name without its middle, if it is longer: exporters write some that are hundreds of letters
    long, and differ at the end."""
    if len(name) <= longest:
        return name
    kept = max(0, longest - len(_ELLIPSIS))
    end = (kept + 1) // 2
    return name[: kept - end] + _ELLIPSIS + name[len(name) - end :]


def _fitted(rows: Sequence[Sequence[str]], width: int, flexible: set[int]) -> list[int] | None:
    """The widths of columns that are `width` together, the widest flexible ones made narrower
    first, but not than their headers; None if that is not enough."""
    widths = _widths(rows)
    room = width - len(_GAP) * (len(widths) - 1)
    least = [
        min(n, max(_LEAST_CELL, len(head))) if i in flexible else n
        for i, (n, head) in enumerate(zip(widths, rows[0], strict=True))
    ]
    for most in range(max(widths), -1, -1):
        fitted = [max(low, min(n, most)) for low, n in zip(least, widths, strict=True)]
        if sum(fitted) <= room:
            return fitted
    return None


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]


def _broken_cell(cell: str, width: int) -> list[str]:
    if len(cell) <= width:
        return [cell]
    return textwrap.wrap(cell, width, break_on_hyphens=False)


def _listed(rows: Sequence[Sequence[str]], width: int, below: Sequence[str]) -> str:
    """Every row as a heading, its first cell, and a line for each other one beside its header."""
    header, *others = rows
    lines = [shortened(header[0], width)]
    for place, row in enumerate(others):
        lines.append(shortened(row[0], width))
        beside = list(zip(header[1:], row[1:], strict=True))
        lines += [_INDENT + one for one in table(beside, width - len(_INDENT)).splitlines()]
        lines += _under(below[place], width) if below else []
    return "\n".join(lines)
