"""What docs/pipelines.md tells people to paste."""

import re

from tests.pipelines.checkout import ROOT

PAGE = ROOT / "docs" / "pipelines.md"
_BLOCK = re.compile(r"(?:^\*\*(\S+)\*\*\n\n)?^```(\w+)\n(.*?)^```", re.M | re.S)


def section(title: str) -> str:
    """The text of one section."""
    (found,) = [
        part for part in PAGE.read_text("utf-8").split("\n## ") if part.startswith(f"{title}\n")
    ]
    return found


def blocks(title: str, language: str) -> list[str]:
    """The blocks of a section in a language, without those that are files."""
    return [
        text for name, kind, text in _BLOCK.findall(section(title)) if kind == language and not name
    ]


def file_block(title: str) -> tuple[str, str]:
    """The file that a section shows: its name and what is in it."""
    ((name, text),) = [(name, text) for name, _, text in _BLOCK.findall(section(title)) if name]
    return name, text
