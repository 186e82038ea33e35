"""What all pages have in common: one file with its style, its scripts and its data.

Data lies in the page compressed (zlib, base64): names of 20,000 nodes shrink to a tenth. The
page forbids itself to load anything (Content-Security-Policy).
"""

import base64
import json
import zlib
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from onnxremat.core.text import printable

_FOLDER = Path(__file__).parent
_LIBRARY = _FOLDER / "uplot"
_DATA = '<script type="application/octet-stream" id="data">'
_NAME_SHOWN = 60


def page(
    title: str,
    body: Iterable[str],
    scripts: Sequence[str],
    data: Any = None,
    *,
    library: bool = True,
) -> str:
    """A page. `scripts` are files beside this one, in order; with the plotting `library`, and the
    `data`, before them unless they do without."""
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        '<meta name="color-scheme" content="light dark">',
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; '
        "style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:\">",
        f"<title>{shown(title)}</title>",
        f"<style>{_read(_FOLDER / 'page.css')}</style>",
        f"<style>{_read(_LIBRARY / 'uPlot.min.css')}</style>" if library else "",
        "</head><body><main>",
        *body,
        "</main>",
    ]
    if library:
        licence = _read(_LIBRARY / "LICENSE").replace("*/", "")
        parts.append(f"{_DATA}{_packed(data)}</script>")
        code = _read(_LIBRARY / "uPlot.iife.min.js")
        parts.append(f"<script>/* uPlot\n{licence}*/\n{code}</script>")
    parts += [f"<script>{_read(_FOLDER / name)}</script>" for name in scripts]
    return "\n".join([*filter(None, parts), "</body></html>"])


def page_data(text: str) -> Any:
    """The data of a page, as it was given to `page`."""
    packed = text.partition(_DATA)[2].partition("</script>")[0]
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def shown(name: object, longest: int | None = None) -> str:
    """A text from a model or a user as a page shows it."""
    return escape(printable(str(name), longest))


def named(name: str) -> str:
    """A name with room for its middle left out; all of it where one points at it."""
    short = shown(name, _NAME_SHOWN)
    whole = shown(name)
    return f"<code>{short}</code>" if short == whole else f'<code title="{whole}">{short}</code>'


def table(head: Sequence[str], rows: Iterable[Sequence[str]], label: str, numbers: int = 0) -> str:
    """A table of cells that are HTML already; the first `numbers` columns after the first one are
    numbers. It can be moved sideways where it is wider than the page, by keyboard, too."""
    side = ["", *["num"] * numbers]

    def line(cells: Sequence[str], tag: str) -> str:
        classes = [side[i] if i < len(side) else "" for i in range(len(cells))]
        made = [
            f"<{tag}{f' class={one}' if one else ''}>{cell}</{tag}>"
            for cell, one in zip(cells, classes, strict=True)
        ]
        return f"<tr>{''.join(made)}</tr>"

    lines = "\n".join(line(cells, "td") for cells in rows)
    return (
        f'<div class="wide" role="region" tabindex="0" aria-label="{shown(label)}"><table>'
        f"<thead>{line(head, 'th')}</thead><tbody>\n{lines}\n</tbody></table></div>"
    )


def _packed(data: Any) -> str:
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False)
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")
