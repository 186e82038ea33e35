"""A Frontier as text, and as a page with a plot that needs nothing else."""

from onnxremat.cli.pages.frontier_plot import Spot, frontier_page
from onnxremat.cli.tables import columns, in_groups, paragraph, table
from onnxremat.commands.frontier import Frontier, Point
from onnxremat.commands.process_frontier import ProcessFrontier
from onnxremat.core.units import format_bytes

MISSED = "-"
"""In the place of the extra time where a planner does not meet the limit."""


def frontier_text(result: Frontier, width: int | None = None) -> str:
    """The peaks of the model, a row for each limit with the extra time of each planner, and the
    best of all."""
    rows = [
        *([("note", result.note)] if result.note else []),
        ("own order", f"{format_bytes(result.own_peak_bytes)} by the model of memory"),
        ("lower bound", f"{format_bytes(result.floor.nbytes)}: {result.floor.reason}"),
        *(("left out", f"{name}: {reason}") for name, reason in result.skipped.items()),
    ]
    if not result.points:
        return (
            f"{table(rows, width)}\n\nnone of the planners has a plan beside the model's own order"
        )
    cells = in_groups(_cells(result), width)
    if not all(point.meets for point in result.points):
        missed = f"{MISSED}: no plan within the limit was found in the time given"
        cells += f"\n{paragraph(missed, width)}"
    return "\n\n".join([table(rows, width), cells, _best(result, width)])


def _planners(result: Frontier) -> list[str]:
    return list(dict.fromkeys(point.planner for point in result.points))


def _cells(result: Frontier) -> list[tuple[str, ...]]:
    """A header, and extra time by limit (down) and planner (across)."""
    names = _planners(result)
    at = {(p.planner, p.budget_bytes): p for p in result.points}
    lines = [("limit", *names)]
    for budget in result.budgets:
        share = f"{format_bytes(budget)} ({100 * budget / result.own_peak_bytes:.1f}%)"
        lines.append((share, *(_extra(at[name, budget]) for name in names)))
    lines.append(("smallest", *(format_bytes(at[name, None].peak_bytes) for name in names)))
    lines.append(("  in", *(_extra(at[name, None]) for name in names)))
    return lines


def _extra(point: Point) -> str:
    if not point.meets:
        return MISSED
    proved = " (optimal)" if point.optimal and point.budget_bytes is not None else ""
    return f"{100 * point.extra_time:+.1f}%{proved}"


def _best(result: Frontier, width: int | None) -> str:
    lines = [("best of all", "share", "extra time", "planner")]
    lines += [
        (
            format_bytes(p.peak_bytes),
            f"{100 * p.peak_bytes / result.own_peak_bytes:.1f}%",
            f"{100 * p.extra_time:+.1f}%",
            p.planner,
        )
        for p in result.best
    ]
    return columns(lines, width)


def frontier_html(result: Frontier) -> str:
    """A page with the plot and the text of `frontier_text`."""
    low = min((p.peak_bytes for p in result.points), default=result.own_peak_bytes)
    return frontier_page(
        result.model,
        f"{result.ops} ops. Peak of activations by the model of memory, extra time by the cost "
        "model; a point is a plan.",
        [Spot(p.planner, p.peak_bytes, p.extra_time) for p in result.points],
        [Spot(p.planner, p.peak_bytes, p.extra_time) for p in result.best],
        (low, max(result.own_peak_bytes, low + 1)),
        "activation peak",
        frontier_text(result),
    )


def process_frontier_text(result: ProcessFrontier, width: int | None = None) -> str:
    """The baseline, and a row for each session."""
    before = result.original.process_bytes
    threads = "the runtime's own number of" if result.threads is None else str(result.threads)
    rows = [
        ("baseline", f"the original with default options: {format_bytes(before)}"),
        ("files", f"for {'any' if result.portable else 'this kind of'} processor"),
        ("measured", f"resident, with loading, {threads} threads, by default options"),
        *(("missed", f"{said}: {why}") for said, why in result.missed.items()),
    ]
    lines = [("session", "of the process", "share", "loaded", "time", "how")]
    lines += [
        (
            point.opened,
            format_bytes(point.process_bytes),
            f"{100 * point.process_bytes / max(1, before):.1f}%",
            format_bytes(point.loaded_bytes),
            f"{100 * point.extra_time:+.1f}%",
            point.how + ("" if point in result.best else " (another is as small and as fast)"),
        )
        for point in result.points
    ]
    return "\n\n".join([table(rows, width), columns(lines, width, words=(0, 5))])


def process_frontier_html(result: ProcessFrontier) -> str:
    """A page with the plot and the text of `process_frontier_text`."""
    sizes = [point.process_bytes for point in result.points]
    return frontier_page(
        result.model,
        "Memory of the process and time, measured, over the original with default options; a point "
        "is a session.",
        [Spot(p.opened, p.process_bytes, p.extra_time, p.how) for p in result.points],
        [Spot(p.opened, p.process_bytes, p.extra_time, p.how) for p in result.best],
        (min(sizes), max(*sizes, min(sizes) + 1)),
        "memory of the process",
        process_frontier_text(result),
    )
