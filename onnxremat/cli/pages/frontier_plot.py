"""The plot of memory against time, as drawings for wide and narrow pages, and the page around it.

There are a few dozen points: they are elements that a keyboard reaches and a screen reader tells.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from onnxremat.cli.pages.shell import page, shown
from onnxremat.core.units import format_bytes

MOST_EXTRA = 1.0
"""The plot ends at this share of extra time: beyond it lies what nobody wants."""
_COLOURS = 8


class Spot(NamedTuple):
    """A point of a plot; those of one `group` have one colour."""

    group: str
    nbytes: int
    extra_time: float
    said: str = ""

    @property
    def label(self) -> str:
        """What is told of it."""
        told = f"{self.group}: {format_bytes(self.nbytes)}, {100 * self.extra_time:+.1f}%"
        return f"{told}, {self.said}" if self.said else told


class _Frame(NamedTuple):
    """Sizes in pixels: of the drawing, of the room for labels to the left and below, of the rest of
    the frame; and the number of lines of the grid."""

    width: int
    height: int
    left: int
    bottom: int
    margin: int
    lines: int
    titles: bool


_WIDE = _Frame(860, 420, 70, 50, 40, 5, titles=True)
_NARROW = _Frame(360, 340, 56, 46, 26, 3, titles=False)


def frontier_page(
    model: Path,
    about: str,
    spots: Sequence[Spot],
    best: Sequence[Spot],
    sizes: tuple[int, int],
    figure: str,
    text: str,
) -> str:
    """A page with the plot of `spots` from the smaller to the larger of `sizes`, `best` on the
    staircase, and `text` below. `figure` says of what the bytes are."""
    title = f"Memory against time: {model.name}"
    body = [
        f"<h1>{shown(title)}</h1>",
        f'<p class="soft">{shown(about)}</p>',
        '<div class="wide-only">', *_plot(spots, best, sizes, figure, _WIDE), "</div>",
        '<div class="narrow-only">', *_plot(spots, best, sizes, figure, _NARROW), "</div>",
        _legend(spots),
        '<p id="said" class="soft" role="status">Point at a spot, or go through them with Tab.</p>',
        f'<pre tabindex="0" aria-label="the same in a table">{_lines(text)}</pre>',
    ]  # fmt: skip
    return page(title, body, ("spots.js",), library=False)


def _lines(text: str) -> str:
    return "\n".join(shown(line) for line in text.split("\n"))


def _legend(spots: Sequence[Spot]) -> str:
    names = dict.fromkeys(spot.group for spot in spots)
    entries = [
        f'<li><i style="background:var(--c{i % _COLOURS})"></i><span>{shown(name)}</span></li>'
        for i, name in enumerate(names)
    ]
    return f'<ul id="legend">{"".join(entries)}</ul>'


def _plot(
    spots: Sequence[Spot],
    best: Sequence[Spot],
    sizes: tuple[int, int],
    figure: str,
    frame: _Frame,
) -> Iterator[str]:
    """Memory to the right, extra time upwards."""
    drawn = [p for p in spots if p.extra_time <= MOST_EXTRA]
    most = max((p.extra_time for p in drawn), default=0.0) or 0.01
    least = min(0.0, *(p.extra_time for p in drawn)) if drawn else 0.0
    low, high = sizes
    width, height, left, bottom, margin, lines, titles = frame

    def place(nbytes: float, extra: float) -> tuple[float, float]:
        x = left + (nbytes - low) / (high - low) * (width - left - margin)
        y = height - bottom - (extra - least) / (most - least) * (height - bottom - margin)
        return x, y

    yield (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" role="group" '
        'aria-label="memory against time" font-size="12" font-family="sans-serif">'
    )
    for i in range(lines + 1):
        extra = least + (most - least) * i / lines
        size = low + (high - low) * i / lines
        x, y = place(size, extra)
        yield f'<line class="grid" x1="{left}" x2="{width - margin}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{100 * extra:.1f}%</text>'
        side = "end" if i == lines and not titles else "middle"
        x = min(x, width - 2) if side == "middle" else width - 2
        below = f'y="{height - bottom + 18}" text-anchor="{side}"'
        yield f'<text x="{x:.1f}" {below}>{format_bytes(int(size))}</text>'
    middle = f'x="{width / 2}" y="{height - 8}" text-anchor="middle"'
    yield f"<text {middle}>{figure}; upwards: extra time</text>"
    corners = [place(p.nbytes, p.extra_time) for p in best if p.extra_time <= most]
    steps = [f"{x:.1f},{y:.1f}" for x, y in corners[:1]]
    for (_, above), (x, y) in pairwise(corners):
        steps += [f"{x:.1f},{above:.1f}", f"{x:.1f},{y:.1f}"]
    yield f'<polyline class="stair" points="{" ".join(steps)}" fill="none" stroke-width="1.5"/>'
    names = list(dict.fromkeys(p.group for p in spots))
    for p in drawn:
        x, y = place(p.nbytes, p.extra_time)
        label = shown(p.label)
        title = f"<title>{label}</title>" if titles else ""
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" tabindex="0" role="img" '
            f'aria-label="{label}" fill="var(--c{names.index(p.group) % _COLOURS})" '
            f'fill-opacity="0.85">{title}</circle>'
        )
    yield "</svg>"
