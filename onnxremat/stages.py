"""What a command is doing, told to whoever waits; the words that more than words depends on."""

from typing import Protocol

from onnxremat.ort.child.watching import Listener

COMPILING = "compiling the planner"
"""How a stage begins that is worth telling even where progress is not shown."""

PLANNING, CHOOSING = "planning", "choosing regions to tile"
"""The stages that time limits, and that an interruption ends with the best plan so far."""


class ProgressReport(Protocol):
    """Called with what is being done, and now and then with how it is going."""

    def __call__(self, stage: str, detail: str = "") -> None: ...


def stage(progress: ProgressReport, name: str) -> Listener:
    """Announces a stage; what is returned takes how it is going (see `ort.child.watching`)."""
    progress(name)
    return lambda detail: progress(name, detail)


def silent(stage: str, detail: str = "") -> None:
    """A ProgressReport that reports nothing."""
