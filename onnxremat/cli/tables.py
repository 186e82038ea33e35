"""Text in columns; also of the planner table, which is printed without loading anything else."""

from collections.abc import Sequence

from onnxremat.core.text import printable
from onnxremat.planners import PlannerInfo

_LINE_SHOWN = 4000


def planners_text(planners: Sequence[PlannerInfo]) -> str:
    """The planner table."""
    return columns([("planner", "what it does", "source"),
                     *((p.name, p.summary, p.source) for p in planners)])  # fmt: skip


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Labels and texts, one under the other, each on its line whatever names it holds."""
    width = max(len(label) for label, _ in rows)
    return "\n".join(printable(f"{label:<{width}}  {text}", _LINE_SHOWN) for label, text in rows)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells in columns of equal width, each on its line whatever names it holds."""
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
