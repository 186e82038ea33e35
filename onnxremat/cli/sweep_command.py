"""The `sweep` command: reads its options, shows what runs and what became of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onnxremat.cli import arguments as option
from onnxremat.cli import terminal
from onnxremat.cli.option_groups import FileArguments, PlanArguments, Shown, read
from onnxremat.cli.working import working
from onnxremat.core.errors import OnnxrematError, UsageError
from onnxremat.core.text import printable
from onnxremat.core.units import parse_limit
from onnxremat.system.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from onnxremat.stages import ProgressReport


def sweep_command(
    models: option.Models,
    mem: option.Limits,
    output: option.Table,
    *,
    session: option.Sessions = [],  # noqa: B006 - typer copies it
    runtime: option.Runtimes = [],  # noqa: B006
    keep: option.Keep = None,
    jobs: option.Jobs = None,
    scheduler: option.Scheduler = None,
    file: FileArguments,
    plan: PlanArguments,
    shown: Shown,
) -> None:
    """Rewrite many models to many limits and targets: a table with a row for each run."""
    given = read(file, plan)
    limits = [parse_limit(one) for one in mem]
    live = terminal.ERR.is_terminal
    with working(replace(shown, as_json=shown.as_json or live)) as progress:
        progress("reading the models")
        _sweep(
            progress, given, limits, models=models, sessions=session, runtimes=runtime,
            quiet=shown.quiet or shown.as_json, as_json=shown.as_json,
            output=output, keep=keep, jobs=jobs, scheduler=scheduler,
        )  # fmt: skip


def _sweep(
    progress: "ProgressReport",
    given: dict[str, Any],
    limits: list[Any],
    *,
    models: list[Any],
    sessions: list[str],
    runtimes: list[str],
    quiet: bool,
    as_json: bool,
    **how: Any,
) -> None:
    from onnxremat.cli.sweep_display import display, sweep_text
    from onnxremat.commands.sweep import sweep
    from onnxremat.commands.sweep_plan import chosen_targets
    from onnxremat.options import Options
    from onnxremat.planners import PLANNERS

    if given["planner"] not in PLANNERS:
        raise UsageError(
            f"--planner: there is no {given['planner']!r}: `onnxremat planners` lists them"
        )
    options = [
        Options(session=info.session, runtime=info.runtime, **given)
        for info in chosen_targets(sessions, runtimes)
    ]
    if not quiet and how["scheduler"] is None and (how["jobs"] or 1) > 1:
        terminal.tell(f"onnxremat: {_beside_each_other(how['jobs'], given['threads'])}")
    with (
        _leaving_what_is_finished(how["output"]),
        display(terminal.ERR, terminal.tell, progress, quiet=quiet) as watch,
    ):
        result = sweep(models, limits, options, watch=watch, **how)
    terminal.emit("sweep", result, sweep_text, as_json=as_json, written=result.output)
    if result.crashed:
        raise OnnxrematError(
            f"{len(result.crashed)} of {len(result.rows)} runs crashed; the same command does them "
            "again, and no other"
        )


def _beside_each_other(jobs: int, threads: int | None) -> str:
    """What several runs at once mean here."""
    from onnxremat.commands.sweep import jobs_at_once

    at_once = jobs_at_once(jobs, threads)
    if at_once == 1:
        return "one run at once: there are no processors for more"
    fewer = "" if at_once == jobs else " (there are no processors for more)"
    return f"up to {at_once} runs at once{fewer}: they disturb the times that they measure"


@contextmanager
def _leaving_what_is_finished(output: Path) -> Iterator[None]:
    """What a signal does inside the block: runs end, what they had begun is removed, and the
    journal has all that were finished."""
    from onnxremat.system.temporary import sweep as remove_what_was_left

    end_all = INTERRUPTS.clean_up

    def clean_up() -> None:
        end_all()
        remove_what_was_left()

    usual = INTERRUPTS.left
    INTERRUPTS.clean_up = clean_up
    INTERRUPTS.left = (
        f"{printable(str(output))} has the finished runs, and the same command goes on"
    )
    try:
        yield
    finally:
        INTERRUPTS.clean_up, INTERRUPTS.left = end_all, usual
