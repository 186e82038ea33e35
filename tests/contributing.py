"""The worked examples of CONTRIBUTING.md: modules and rows, as they stand on the page."""

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "CONTRIBUTING.md"

_MODULE = re.compile(r"^`(\S+\.py)`\n\n```python\n(.*?)^```", re.M | re.S)
_ROW = re.compile(r"^The row in `\w+` \(`(\S+\.py)`.*?^```python\n(.*?)^```", re.M | re.S)
_CASE = re.compile(r"^```python\n(def .*?)^```", re.M | re.S)


@dataclass(frozen=True)
class Example:
    """A section: a module with its path, the file of the table, the row; `case` is code of a test,
    if there is any."""

    path: str
    code: str
    table: str
    row: str
    case: str


def example(title: str) -> Example:
    """The example of the section with that title."""
    (section,) = [
        part for part in PAGE.read_text("utf-8").split("\n### ") if part.startswith(f"{title}\n")
    ]
    ((path, code),) = _MODULE.findall(section)
    ((table, row),) = _ROW.findall(section)
    return Example(path, code, table, row, "".join(_CASE.findall(section)))


def module_of(path: str) -> str:
    """The name by which a file of the repository is imported."""
    return (
        path.removeprefix("rewriters/")
        .removesuffix(".py")
        .removesuffix("/__init__")
        .replace("/", ".")
    )
