"""What the pages say of the repository: links, names of files, tables made from the code."""

import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from docs import tile_ops_page
from docs.planners_page import PAGE, PAPERS, page
from onnxremat.planners import PLANNERS
from tests.contributing import ROOT, example

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *(ROOT / "rewriters" / "README.md", ROOT / "models" / "README.md"),
    *sorted((ROOT / "docs").glob("*.md")),
]
EXAMPLES = {
    Path(example(title).path) for title in ("A planner", "A tile rule", "A rewriter", "A target")
}


def linked(document: Path) -> list[str]:
    """The files that a page links, as they are written."""
    found = re.findall(r"\]\(([^)#\s]+)(?:#\S*)?\)", document.read_text(encoding="utf-8"))
    return [link for link in found if "://" not in link]


def named(document: Path) -> list[str]:
    """The files of code and documentation that a page names between backticks."""
    return re.findall(r"`(\w[\w./-]*\.(?:py|md|json))`", document.read_text(encoding="utf-8"))


@pytest.mark.parametrize("document", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_name_files_that_are_there(document: Path) -> None:
    for link in linked(document):
        assert (document.parent / link).is_file(), link
    there = [path.relative_to(ROOT) for path in _files()]
    for name in named(document):
        parts = Path(name).parts
        assert any(path.parts[-len(parts) :] == parts for path in there), name


def _files() -> list[Path]:
    folders = ("onnxremat", "rewriters", "models", "benchmarks", "tests", "docs")
    found = [path for folder in folders for path in (ROOT / folder).rglob("*.*")]
    return [*found, *ROOT.glob("*.md"), *(ROOT / path for path in EXAMPLES)]


def test_the_source_distribution_has_what_the_readme_names(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--sdist", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (made,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    readme = ROOT / "README.md"
    assert len(linked(readme)) > 5
    assert not [link for link in linked(readme) if link not in names]
    assert not [name for name in named(readme) if (ROOT / name).exists() and name not in names]


def test_the_page_of_planners_is_what_the_table_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "write it: python -m docs.planners_page"


def test_the_page_of_ops_that_are_cut_is_what_the_table_says() -> None:
    made = tile_ops_page.page()
    assert tile_ops_page.PAGE.read_text(encoding="utf-8") == made, "python -m docs.tile_ops_page"


def test_the_papers_of_planners_are_those_that_the_table_names() -> None:
    sources = " ".join(info.source for info in PLANNERS.values())
    assert set(re.findall(r"[A-Z]\w+ [12]\d{3}", sources)) == set(PAPERS)
