"""Figures on pages are those of the tables that they are said to be from.

A figure is a number with a unit of memory, time or share. It stands in a section that links a table
of `benchmarks/`, where it is found, or that has a paragraph which begins with "Figures:" or a
comment, `<!-- figures: 10%, 50 ms: defaults -->`, and says where else it comes from. What stands in
one row is in one line of a table.
"""

import re
from pathlib import Path

import pytest

from tests.contributing import ROOT

PAGES = [
    ROOT / "README.md",
    *(
        ROOT / "docs" / f"{name}.md"
        for name in (
            "start",
            "options",
            "targets",
            "troubleshooting",
            "onnxruntime",
            "tiling",
            "plans",
        )
    ),
]
_FIGURE = re.compile(
    r"(?<![\w.,^/])(\d[\d,]*(?:\.\d+)?)\s?(?:MB|MiB|KB|kB|GB|GiB|ms|%)(?!\w)"
    r"|\b([01]\.\d{3})\b|(?<=\| )(\d+\.\d+)(?= \|)"
)
"""With a unit; a ratio of times, which has three places; or alone in its cell."""

_TABLE = re.compile(r"\]\((?:\.\./)?(benchmarks/\w+\.md)\)")
_APART = re.compile(r"<!-- figures: ([^:]*): ")
_FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)


def figures(text: str) -> list[str]:
    """The numbers of a text that are figures, as they are written."""
    plain = re.sub(r"`[^`\n]*`|<!--.*?-->", "", text, flags=re.S)
    return [found[1] or found[2] or found[3] for found in _FIGURE.finditer(plain)]


def numbers(table: str) -> set[float]:
    """All numbers of a page."""
    return {float(one.replace(",", "")) for one in re.findall(r"\d[\d,]*(?:\.\d+)?", table)}


def found(figure: str, there: set[float]) -> bool:
    """Whether a figure is one of those numbers, rounded to as many digits."""
    places = len(figure.partition(".")[2])
    return float(figure.replace(",", "")) in {round(one, places) for one in there}


def in_one_line(row: list[str], tables: list[str]) -> bool:
    """Whether the figures of a row are together in a line of a table."""
    lines = [numbers(line) for table in tables for line in table.splitlines()]
    return any(all(found(one, line) for one in row) for line in lines)


def unfounded(section: str) -> list[str]:
    """The figures of a section that are in no table which it links, and are not said to be from
    elsewhere."""
    apart = {one for said in _APART.findall(section) for one in figures(said)}
    said = [chunk for chunk in section.split("\n\n") if chunk.startswith("Figures:")]
    elsewhere = any("experiment" in chunk or not _TABLE.search(chunk) for chunk in said)
    wrong = []
    for chunk in section.split("\n\n"):
        linked = _TABLE.findall(chunk)
        if not linked and elsewhere:
            continue
        tables = [(ROOT / name).read_text("utf-8") for name in linked or _TABLE.findall(section)]
        there = {number for table in tables for number in numbers(table)}
        wrong += [one for one in figures(chunk) if one not in apart and not found(one, there)]
        rows = [figures(line) for line in chunk.split("\n") if line.startswith("|")]
        wrong += [" ".join(row) for row in rows if row and tables and not in_one_line(row, tables)]
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_figures_are_those_of_the_tables_they_are_from(page: Path) -> None:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    sections = re.split(r"^(?=##? )", text, flags=re.M)
    wrong = {section.partition("\n")[0]: unfounded(section) for section in sections}
    assert not {title: ones for title, ones in wrong.items() if ones}, "say where these are from"


def test_a_figure_that_is_in_no_table_is_found() -> None:
    link = "[t](../benchmarks/hard_cap.md)"
    assert unfounded(f"takes 38.863 MB ({link}) or 38.9 MB\n\nand 7% more") == ["7"]
    assert unfounded(f"takes 77.77 MB ({link})") == ["77.77"]
    assert unfounded("takes 3 MB") == ["3"]
    row = f"Figures: {link}\n\n|  | a | b |\n|---|---|---|\n| 38.863 | 33.202 | 45.753 |"
    assert unfounded(row) == ["38.863 33.202 45.753"]
    assert not unfounded("takes 3 MB\n\nFigures: an experiment.")
    assert not unfounded("takes 10%\n\n<!-- figures: 10%: the default -->")
    assert not unfounded("`--mem 60%` at 1.31.1 and onnxruntime 1.31")
