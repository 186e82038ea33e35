"""The pages as a site: what is in the navigation, links, and a strict build."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.contributing import ROOT

NAVIGATION = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]


def listed() -> list[str]:
    """The pages in the navigation."""
    return re.findall(r"^ +- [^#\n:]+: (\S+\.md)$", NAVIGATION, re.M)


@pytest.mark.parametrize("page", sorted(ROOT.glob("docs/*.md")), ids=lambda page: page.name)
def test_every_page_is_in_the_navigation(page: Path) -> None:
    assert page.name in listed(), "mkdocs.yml: list it under nav"


def test_the_site_is_built_strictly_and_without_a_network(tmp_path: Path) -> None:
    for name in ("mkdocs", "material", "mkdocstrings"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"{name} is missing: pip install '.[docs]'")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "http_proxy": "http://127.0.0.1:9"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    pages = {path.relative_to(tmp_path / "site"): path for path in tmp_path.rglob("*.html")}
    assert Path("start/index.html") in pages and Path("benchmarks/process/index.html") in pages
    assert "mem_of" in pages[Path("api/index.html")].read_text(encoding="utf-8")
    for place, page in pages.items():
        asked = re.findall(
            r'(?:src|<link[^>]* href)="?(https?://[^"\s>]+)', page.read_text("utf-8")
        )
        assert not asked, f"{place} loads from the network: {asked}"
