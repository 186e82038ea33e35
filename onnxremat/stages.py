"""What a command is doing, told to whoever waits; the words that more than words depends on."""

import re
from typing import Protocol, Self

from onnxremat.ort.child.watching import Listener

COMPILING = "compiling the planner"
"""How a stage begins that is worth telling even where progress is not shown."""

PLANNING, CHOOSING = "planning", "choosing regions to tile"
"""The stages that time limits, and that an interruption ends with the best plan so far."""

NOTE = "note"
"""No stage: its detail is something that was found in one (what a variant takes, what became of a
plan), for those who want to know everything. The stage that was told last goes on."""

_COUNTED = re.compile(r"\b(\d+) of (\d+)\b|\b(\d+)%")


class ProgressReport(Protocol):
    """Called with what is being done, and now and then with how it is going: a text, which may be
    a `Detail` that knows how much of it is done. With NOTE it is no stage."""

    def __call__(self, stage: str, detail: str = "") -> None: ...


class Detail(str):
    """How a stage is going, in words, and how much is done: `done` of `total`, in steps, or in
    seconds, which pass by themselves, where it is `timed`."""

    done: float
    total: float
    timed: bool
    steps: str
    """Which step of a stage it is, "" where that is no part of its name."""
    words: str
    """The text without that."""

    @classmethod
    def _of(cls, text: str, done: float, total: float, *, timed: bool) -> Self:
        detail = cls(text)
        detail.done, detail.total, detail.timed = done, total, timed
        detail.steps, detail.words = "", text
        return detail

    @classmethod
    def step(cls, number: int, count: int, text: str = "") -> Self:
        """The beginning of step `number`, from 1, of `count`: "2 of 5: text"."""
        steps = f"{number} of {count}"
        said = f"{steps}: {text}" if text else steps
        detail = cls._of(said, number - 1, count, timed=False)
        detail.steps, detail.words = steps, text
        return detail

    @classmethod
    def limited(cls, text: str, passed_seconds: float, limit_seconds: float) -> Self:
        """What ends after `limit_seconds` at the latest, of which some have passed."""
        return cls._of(text, passed_seconds, limit_seconds, timed=True)

    @classmethod
    def counted(cls, text: str) -> str:
        """A text that ends with a count ("run 2 of 5", "40%") as a Detail, others as they are."""
        found = list(_COUNTED.finditer(text))
        if not found:
            return text
        number, count, percent = found[-1].groups()
        if percent is not None:
            return cls._of(text, int(percent), 100, timed=False)
        return cls._of(text, int(number) - 1, int(count), timed=False)


def stage(progress: ProgressReport, name: str) -> Listener:
    """Announces a stage; what is returned takes how it is going (see `ort.child.watching`)."""
    progress(name)
    return lambda detail: progress(name, Detail.counted(detail))


def silent(stage: str, detail: str = "") -> None:
    """A ProgressReport that reports nothing."""
