"""Around the work of a command: its progress is shown, and no signal leaves anything behind."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from onnxremat.cli import terminal
from onnxremat.cli.option_groups import Shown
from onnxremat.cli.progress_line import ProgressLine
from onnxremat.core.errors import Interrupted, NoPlanFoundError
from onnxremat.stages import CHOOSING, COMPILING, NOTE, PLANNING
from onnxremat.system.interrupts import INTERRUPTS, PLACING

if TYPE_CHECKING:
    from onnxremat.stages import ProgressReport


@contextmanager
def working(shown: Shown, *, polite: bool = False) -> Iterator["ProgressReport"]:
    """Around the work of a command: what others left is removed before it, and its own if a signal
    ends it. A `polite` one can stop planning early (`INTERRUPTS.requested`)."""
    from onnxremat.system.temporary import sweep

    INTERRUPTS.clean_up = _clean_up
    INTERRUPTS.polite, INTERRUPTS.requested = polite, False
    progress = ProgressLine(
        terminal.ERR,
        terminal.tell,
        quiet=shown.silent,
        verbose=shown.verbose,
        announced=COMPILING,
    )

    def report_progress(stage: str, detail: str = "") -> None:
        if stage != NOTE:
            INTERRUPTS.planning = stage in (PLANNING, CHOOSING)
        if stage == PLACING:
            INTERRUPTS.finish()
        progress(stage, detail)

    try:
        sweep()
        yield report_progress
    except NoPlanFoundError as error:
        if INTERRUPTS.requested:
            why = "interrupted before a plan met the limit"
            raise Interrupted(why, error.attempts) from None
        raise
    finally:
        INTERRUPTS.polite = INTERRUPTS.planning = False
        progress.stop()


def _clean_up() -> None:
    """What a signal leaves to do: no child goes on, no temporary file stays."""
    from onnxremat.ort.child.children import end_children
    from onnxremat.system.temporary import clean_up

    try:
        end_children()
    finally:
        clean_up()
