"""Every plan that was made for a limit, and what became of it, as the table of `--explain`."""

from collections.abc import Sequence

from onnxremat.cli.tables import columns
from onnxremat.core.attempt import Attempt
from onnxremat.core.units import format_bytes

WIDTH = 100
"""Columns of the table where nothing else is said."""
_BY_SHOWN = 20
_HEADER = ("plan of", "by", "target", "planned", "expected", "measured", "time", "seconds")


def attempts_text(attempts: Sequence[Attempt], width: int | None = None) -> str:
    """A table of attempts within `width` columns (None: WIDTH), what became of each under its
    figures."""
    return columns(
        [_HEADER, *map(_figures, attempts)],
        WIDTH if width is None else width,
        names=(0, 1),
        below=[one.outcome for one in attempts],
    )


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
