"""Every plan that was made for a limit, and what became of it, as the table of `--explain`."""

import textwrap
from collections.abc import Sequence

from onnxremat.cli.tables import columns
from onnxremat.core.attempt import Attempt
from onnxremat.core.text import printable
from onnxremat.core.units import format_bytes

WIDTH = 100
"""Columns of the table."""
_BY_SHOWN = 20
_INDENT = "    "


def attempts_text(attempts: Sequence[Attempt]) -> str:
    """A table of attempts within WIDTH columns, what became of each under its figures."""
    header = ("plan of", "by", "target", "planned", "expected", "measured", "time", "seconds")
    head, *lines = columns([header, *map(_figures, attempts)]).splitlines()
    text = [head]
    for line, one in zip(lines, attempts, strict=True):
        text.append(line)
        text += textwrap.wrap(
            printable(one.outcome), WIDTH, initial_indent=_INDENT, subsequent_indent=_INDENT
        )
    return "\n".join(text)


def _figures(one: Attempt) -> tuple[str, ...]:
    return (
        one.of,
        one.by[-_BY_SHOWN:],
        "smallest" if one.target_bytes is None else format_bytes(one.target_bytes),
        *("-" if b is None else format_bytes(b)
          for b in (one.planned_bytes, one.expected_bytes, one.measured_bytes)),
        f"{100 * one.extra_time:+.1f}%",
        f"{one.seconds:.1f}",
    )  # fmt: skip
