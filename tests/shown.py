"""The commands and code that pages show, and how a test may run them.

A fenced block of `sh`, `console` or `python` is run, unless a comment on the line before it says
otherwise:

    <!-- not run: REASON -->          never
    <!-- run when asked: REASON -->   only with ONNXREMAT_DOCUMENTS=1 in the environment
    <!-- exit code 4 -->              its last command ends with that code
    <!-- run when asked, exit code 4: REASON -->

What a console shows below its prompts has to be printed, but for the numbers, where everything is
run as it is shown. The blocks of a page run in their order, in one folder. So that this takes seconds, commands are
shortened by one rule, unless everything is asked for (`shortened`).
"""

import re
from dataclasses import dataclass
from pathlib import Path

from tests.models.sizes import TINY, TINY_EXPORTED

RUNNABLE = ("sh", "console", "python")
CODE = (*RUNNABLE, "bash", "shell", "js", "powershell")
"""Languages of what a reader would run: one that no test can run has to say so."""

_FENCE = re.compile(r"^( *)```(\S*)[^\n]*\n(.*?)^\1```$", re.M | re.S)
_MARK = re.compile(
    r"<!-- (not run|run when asked|(?=exit))(?:,? ?exit code (\d+))?(?:: (.+?))? -->\n *\Z"
)
_MODEL = re.compile(r"\bpython -m models (\w+)")
_COMMAND = re.compile(r"\bonnxremat (\w+)")
_SHORT = {
    "rewrite": "--time-limit 0.3 --measure-limit 0 --threads 1",
    "audit": "--measure-limit 0 --threads 1",
    "verify": "--measure-limit 0",
    "frontier": "--measure-limit 0 --threads 1 --time-limit 0.1 --budgets 1 --planners given_order",
}
_SMALL = {
    "unet": {"size": 32, "levels": 2, "base": 8},
    "unet_train": {"size": 32, "levels": 3, "base": 8},
    "resnet": {"size": 32, "base": 8, "blocks": (1, 1)},
}
"""Those of which something can be saved."""

_SIZES = TINY | {name: options for name, (options, _) in TINY_EXPORTED.items()} | _SMALL


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, text, line on the page, and what its mark says of it."""

    page: Path
    line: int
    language: str
    text: str
    mark: str
    reason: str
    exit_code: int

    @property
    def place(self) -> str:
        """For messages."""
        return f"{self.page.name}:{self.line}"

    @property
    def commands(self) -> str:
        """What is typed: of a console, the lines behind a prompt."""
        if self.language != "console":
            return self.text
        lines = re.findall(r"^\$ ((?:.*\\\n)*.*)$", self.text, re.M)
        return "\n".join(lines) + "\n"

    @property
    def said(self) -> list[str]:
        """What a console shows as printed, line by line."""
        if self.language != "console":
            return []
        lines = re.sub(r"^\$ (?:.*\\\n)*.*$", "", self.text, flags=re.M).split("\n")
        return [line for line in lines if line.strip()]


def without_numbers(line: str) -> str:
    """A line of which only what does not change from machine to machine is left."""
    return re.sub(r"[+-]?\d[\d.]*", "#", " ".join(line.split()))


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page that hold code which a reader would run."""
    text = page.read_text(encoding="utf-8")
    found = []
    for fence in _FENCE.finditer(text):
        if fence[2] not in CODE:
            continue
        mark = _MARK.search(text[: fence.start()])
        found.append(
            Block(
                page,
                text.count("\n", 0, fence.start()) + 1,
                fence[2],
                re.sub(rf"^{fence[1]}", "", fence[3], flags=re.M),
                mark[1] if mark else "",
                (mark[3] or "") if mark else "",
                int(mark[2] or 0) if mark else 0,
            )
        )
    return found


def shortened(commands: str) -> str:
    """The same commands on the smallest models, with little time to plan and measure, where they
    do not say themselves how large and how long: of an option that is given twice the last counts,
    and what is put in stands first."""
    small = _MODEL.sub(lambda found: f"{found[0]} {_options(found[1])}".rstrip(), commands)
    return _COMMAND.sub(lambda found: f"{found[0]} {_SHORT.get(found[1], '')}".rstrip(), small)


def _options(name: str) -> str:
    sizes = _SIZES.get(name, _SIZES.get(name.removesuffix("_train"), {}))
    return " ".join(
        f"--{option.replace('_', '-')} {' '.join(map(str, value if isinstance(value, tuple) else [value]))}"
        for option, value in sizes.items()
    )
