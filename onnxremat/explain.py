"""Every plan that was made for a limit, and what became of it: what `--explain` prints."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from onnxremat.tables import columns
from onnxremat.text import printable
from onnxremat.units import format_bytes

TAKEN = "taken"
"""The outcome of the plan that is written."""
WHOLE_OPS = "whole ops"
"""Said of what is planned where nothing is cut."""

WIDTH = 100
"""Columns of the table."""
_BY_SHOWN = 20
_INDENT = "    "


@dataclass(frozen=True, slots=True)
class Attempt:
    """A plan and what became of it.

    `of`: what was planned, whole ops or tiles. `target_bytes`: what the planner was to keep by the
    model of memory, None for the smallest peak. `planned_bytes`: the peak by that model;
    `expected_bytes`: by the emulation of the runtime, None if it was not asked; `measured_bytes`:
    in the runtime, None if it did not come to that. `extra_time`: the share of one pass of whole
    ops that is added. `outcome`: TAKEN, or why it was not. `seconds`: of all that, on the wall.
    """

    of: str
    by: str
    target_bytes: int | None
    planned_bytes: int
    expected_bytes: int | None
    measured_bytes: int | None
    extra_time: float
    outcome: str
    seconds: float


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
