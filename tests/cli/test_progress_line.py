"""What whoever waits is shown: a bar on a terminal, lines elsewhere, nothing, or everything."""

import io
import re
import time
from collections.abc import Callable
from functools import partial

import pytest
from rich.console import Console

from onnxremat.cli.progress_line import ProgressLine
from onnxremat.stages import NOTE, Detail, stage

WAIT_SECONDS = 30.0


def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT_SECONDS
    while not done() and time.monotonic() < end:
        time.sleep(0.01)
    assert done()


def lines_of(told: io.StringIO, *, quiet: bool = False, verbose: bool = False) -> ProgressLine:
    console = Console(file=told, soft_wrap=True)
    tell = partial(console.print, markup=False)
    return ProgressLine(
        console, tell, quiet=quiet, verbose=verbose, announced="compiling", every=0.05
    )


def on_terminal(told: io.StringIO, width: int, **environment: str) -> ProgressLine:
    console = Console(
        file=told, force_terminal=True, width=width, color_system="auto", _environ=environment
    )
    return ProgressLine(console, console.print, quiet=False)


def plain(text: str) -> str:
    """Without what moves the cursor and sets colours."""
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", text)


def test_where_there_is_no_terminal_progress_is_a_line_now_and_then() -> None:
    told = io.StringIO()
    progress = lines_of(told)
    progress("compiling")
    listener = stage(progress, "measuring [memory]")
    listener("run 2 of 3")
    until(lambda: "run 2 of 3" in told.getvalue())
    progress.stop()
    lines = told.getvalue().splitlines()
    assert lines[0] == "onnxremat: compiling"
    assert "onnxremat: measuring [memory]: run 2 of 3 (0 s)" in lines
    count = len(lines)
    time.sleep(0.2)
    assert len(told.getvalue().splitlines()) == count, "nothing after the end"


def test_lines_say_which_step_it_is_and_what_is_left() -> None:
    told = io.StringIO()
    progress = lines_of(told)
    progress("measuring the variant 'plan'", Detail.step(2, 5))
    until(lambda: "onnxremat: measuring the variant 'plan' (2 of 5) (0 s)\n" in told.getvalue())
    progress("planning", Detail.limited("3.9 MB", 4.0, 10.0))
    until(lambda: "onnxremat: planning: 3.9 MB, at most 6 s left (0 s)\n" in told.getvalue())
    progress.stop()


def test_quiet_progress_says_nothing() -> None:
    told = io.StringIO()
    progress = lines_of(told, quiet=True)
    progress("compiling")
    progress("measuring", "run 1 of 2")
    progress(NOTE, "something was found")
    time.sleep(0.1)
    progress.stop()
    assert told.getvalue() == ""


def test_verbose_progress_tells_each_stage_and_each_note_once() -> None:
    told = io.StringIO()
    progress = ProgressLine(
        Console(file=told), partial(print, file=told), quiet=False, verbose=True, every=60.0
    )
    for number in (1, 2):
        progress("measuring", Detail.step(number, 2))
        progress("measuring", Detail.step(number, 2, "run 1 of 3"))
        progress(NOTE, f"variant {number}: 3 MB")
    progress.stop()
    assert told.getvalue().splitlines() == [
        "onnxremat: measuring (1 of 2)",
        "onnxremat:   variant 1: 3 MB",
        "onnxremat: measuring (2 of 2)",
        "onnxremat:   variant 2: 3 MB",
    ]


def test_notes_are_for_those_who_want_to_know_everything() -> None:
    told = io.StringIO()
    progress = lines_of(told)
    progress(NOTE, "something was found")
    progress.stop()
    assert told.getvalue() == ""


@pytest.mark.parametrize("width", [100, 40])
def test_progress_on_a_terminal_is_one_line_that_changes(width: int) -> None:
    told = io.StringIO()
    progress = on_terminal(told, width)
    progress("measuring", Detail.counted("run 2 of 5"))
    until(lambda: "run 2 of 5" in told.getvalue())
    progress(f"measuring{' very' * 30} much", Detail.limited("", 2.0, 10.0))
    until(lambda: "very" in told.getvalue())
    progress.stop()
    frames = plain(told.getvalue()).replace("\r", "\n").splitlines()
    assert max(map(len, frames)) <= width
    assert any("measuring: run 2 of 5" in one and "━" in one and "0 s" in one for one in frames)
    left = any("at most 8 s left" in one for one in frames)
    assert left == (width == 100), "what is left is shown where there is room"


def test_a_bar_knows_how_much_is_done() -> None:
    one = Detail.counted("counting the heap, run 2 of 5")
    assert isinstance(one, Detail) and (one.done, one.total, one.steps) == (1, 5, "")
    percent = Detail.counted("reading what was allocated, 40%")
    assert isinstance(percent, Detail) and (percent.done, percent.total) == (40, 100)
    assert not isinstance(Detail.counted("round 9"), Detail)
    assert Detail.step(2, 5, "auto") == "2 of 5: auto"


@pytest.mark.parametrize("environment", [{"TERM": "dumb"}])
def test_a_terminal_that_cannot_move_its_cursor_has_lines(environment: dict[str, str]) -> None:
    told = io.StringIO()
    progress = on_terminal(told, 80, **environment)
    progress("measuring")
    assert told.getvalue() == ""
    progress.stop()
