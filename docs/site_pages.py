"""A hook of mkdocs: pages that lie beside `docs/` are part of the site, too.

In the repository every link is one between files, as GitHub and editors follow them. On the site
the README is the first page and everything else keeps its place, so a link that leaves `docs/` is
written anew when its page is read.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
OUTSIDE = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    "rewriters/README.md",
    "models/README.md",
)
_LINK = re.compile(r"(\]\()([^)#\s:]+\.(?:md|svg|png))((?:#[^)\s]*)?\))")


def outside() -> list[str]:
    """The pages that are not in `docs/`, as paths in the repository."""
    tables = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("benchmarks/*.md"))
    return [*OUTSIDE, *tables]


def site_path(path: str) -> str:
    """Where a file of the repository is on the site."""
    return "index.md" if path == "README.md" else path.removeprefix("docs/")


def in_repository(path: str) -> str:
    """Where a page of the site is in the repository."""
    return next((one for one in outside() if site_path(one) == path), f"docs/{path}")


def relinked(text: str, page: str) -> str:
    """The text of a page of the site with links to where their files are on it."""
    folder = posixpath.dirname(in_repository(page))

    def link(found: re.Match[str]) -> str:
        target = site_path(posixpath.normpath(posixpath.join(folder, found[2])))
        return found[1] + posixpath.relpath(target, posixpath.dirname(page) or ".") + found[3]

    return _LINK.sub(link, text)


def on_config(config: Any) -> Any:
    """Called by mkdocs: the tables of measurements are listed behind the page about them."""
    (measurements,) = (part["Measurements"] for part in config.nav if "Measurements" in part)
    listed = {place for one in measurements for place in one.values()}
    tables = [path for path in outside() if path.startswith("benchmarks/")]
    measurements += [path for path in tables if path not in listed]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Called by mkdocs: add the pages that are not in `docs/`."""
    for path in outside():
        files.append(File.generated(config, site_path(path), abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page."""
    return relinked(markdown, page.file.src_uri)
