"""Text in columns; also of the planner table, which is printed without loading anything else."""

from collections.abc import Sequence

from onnxremat.planners import PlannerInfo


def planners_text(planners: Sequence[PlannerInfo]) -> str:
    """The planner table."""
    return columns([("planner", "what it does", "source"),
                     *((p.name, p.summary, p.source) for p in planners)])  # fmt: skip


def table(rows: Sequence[tuple[str, str]]) -> str:
    """Labels and texts, one under the other."""
    width = max(len(label) for label, _ in rows)
    return "\n".join(f"{label:<{width}}  {text}" for label, text in rows)


def columns(rows: Sequence[Sequence[str]]) -> str:
    """Rows of cells in columns of equal width."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    )
