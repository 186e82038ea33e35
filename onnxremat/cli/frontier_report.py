"""A Frontier as text, and as a page with a plot that needs nothing else."""

from collections.abc import Iterator, Sequence
from html import escape
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from onnxremat.cli.tables import columns, in_groups, paragraph, table
from onnxremat.commands.frontier import Frontier, Point
from onnxremat.commands.process_frontier import ProcessFrontier
from onnxremat.core.text import printable
from onnxremat.core.units import format_bytes

COLOURS = ("#0b62a4", "#d95f02", "#1b9e77", "#7570b3", "#e7298a", "#66a61e", "#a6761d", "#666666")
WIDTH, HEIGHT, LEFT, BOTTOM, MARGIN = 860, 420, 70, 50, 40
"""Of the plot in pixels: its size, the room for the labels of the axes, the rest of the frame."""

MOST_EXTRA = 1.0
"""The plot ends at this share of extra time: beyond it lies what nobody wants."""

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
    spots = [_Spot(p.planner, p.peak_bytes, p.extra_time) for p in result.points]
    best = [_Spot(p.planner, p.peak_bytes, p.extra_time) for p in result.best]
    return _page(
        result.model,
        f"{result.ops} ops. Peak of activations by the model of memory, extra time by the cost "
        "model; a point is a plan.",
        _plot(spots, best, low, max(result.own_peak_bytes, low + 1), "activation peak"),
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
    return _page(
        result.model,
        "Memory of the process and time, measured, over the original with default options; a point "
        "is a session.",
        _plot(
            [_Spot(p.opened, p.process_bytes, p.extra_time, p.how) for p in result.points],
            [_Spot(p.opened, p.process_bytes, p.extra_time, p.how) for p in result.best],
            min(sizes),
            max(*sizes, min(sizes) + 1),
            "memory of the process",
        ),
        process_frontier_text(result),
    )


class _Spot(NamedTuple):
    """A point of a plot; those of one `group` have one colour."""

    group: str
    nbytes: int
    extra_time: float
    said: str = ""


def _page(model: Path, about: str, plot: Iterator[str], text: str) -> str:
    name = escape(printable(model.name))
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            f"<title>Memory against time: {name}</title>",
            "<style>body{font:15px sans-serif;margin:2em;max-width:60em}"
            "svg{max-width:100%;height:auto}pre{font:13px monospace;overflow-x:auto}"
            "</style></head><body>",
            f"<h1>Memory against time: {name}</h1>",
            f"<p>{escape(about)}</p>",
            *plot,
            f"<pre>{escape(text)}</pre>",
            "</body></html>",
        ]
    )


def _plot(
    spots: Sequence[_Spot], best: Sequence[_Spot], low: int, high: int, figure: str
) -> Iterator[str]:
    """Memory to the right, from `low` to `high` bytes, extra time upwards; the best of all on the
    staircase."""
    shown = [p for p in spots if p.extra_time <= MOST_EXTRA]
    most = max((p.extra_time for p in shown), default=0.0) or 0.01
    least = min(0.0, *(p.extra_time for p in shown)) if shown else 0.0

    def place(nbytes: float, extra: float) -> tuple[float, float]:
        x = LEFT + (nbytes - low) / (high - low) * (WIDTH - LEFT - MARGIN)
        y = HEIGHT - BOTTOM - (extra - least) / (most - least) * (HEIGHT - BOTTOM - MARGIN)
        return x, y

    yield (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" '
        'aria-label="memory against time" font-size="12" font-family="sans-serif">'
    )
    for i in range(6):
        extra = least + (most - least) * i / 5
        x, y = place(low + (high - low) * i / 5, extra)
        size = format_bytes(int(low + (high - low) * i / 5))
        yield f'<line x1="{LEFT}" x2="{WIDTH - MARGIN}" y1="{y:.1f}" y2="{y:.1f}" stroke="#ddd"/>'
        yield f'<text x="{LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{100 * extra:.1f}%</text>'
        yield f'<text x="{x:.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{size}</text>'
    middle = f'x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle"'
    yield f"<text {middle}>{figure} (to the left: less memory); upwards: extra time</text>"
    corners = [place(p.nbytes, p.extra_time) for p in best if p.extra_time <= most]
    steps = [f"{x:.1f},{y:.1f}" for x, y in corners[:1]]
    for (_, above), (x, y) in pairwise(corners):
        steps += [f"{x:.1f},{above:.1f}", f"{x:.1f},{y:.1f}"]
    yield f'<polyline points="{" ".join(steps)}" fill="none" stroke="#999" stroke-width="1.5"/>'
    names = list(dict.fromkeys(p.group for p in spots))
    room = WIDTH - 30 - 7 * max(map(len, names), default=0)
    for i, name in enumerate(names):
        colour = COLOURS[i % len(COLOURS)]
        top = 16 * (i + 1)
        yield f'<circle cx="{room}" cy="{top}" r="4" fill="{colour}"/>'
        yield f'<text x="{room + 10}" y="{top + 4}">{escape(name)}</text>'
        for p in shown:
            if p.group == name:
                x, y = place(p.nbytes, p.extra_time)
                title = f"{name}: {format_bytes(p.nbytes)}, {100 * p.extra_time:+.1f}%"
                title = escape(f"{title}, {p.said}" if p.said else title)
                yield (
                    f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}" fill-opacity="0.75">'
                    f"<title>{title}</title></circle>"
                )
    yield "</svg>"
