"""The `sweep` command: reads its options, shows what runs and what became of it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import typer
from rich.console import Console

from onnxremat.cli import arguments as option
from onnxremat.core.errors import OnnxrematError, UsageError
from onnxremat.core.text import printable
from onnxremat.core.units import parse_bytes, parse_limit, parse_share
from onnxremat.ort.child.run_limit import RUN_SECONDS
from onnxremat.ort.measuring.measure_time import MEASURE_SECONDS
from onnxremat.system.interrupts import INTERRUPTS

if TYPE_CHECKING:
    from onnxremat.stages import ProgressReport


class Shell(NamedTuple):
    """What commands share: what is shown beside results, the block around their work, printing a
    result and a line, reading --dim, and the console for people."""

    shown: Callable[[bool, bool, bool], Any]
    progress: Callable[..., AbstractContextManager["ProgressReport"]]
    emit: Callable[..., None]
    tell: Callable[[str], None]
    parse_dims: Callable[[list[str]], dict[str, int]]
    console: Console


def add_sweep(app: typer.Typer, shell: Shell) -> None:
    """Add the command to those of `app`."""

    @app.command("sweep")
    def sweep_command(
        models: option.Models,
        mem: option.Limits,
        output: option.Table,
        session: option.Sessions = [],  # noqa: B006 - typer copies it
        runtime: option.Runtimes = [],  # noqa: B006
        keep: option.Keep = None,
        jobs: option.Jobs = None,
        scheduler: option.Scheduler = None,
        order: option.Order = "priority",
        optimize: option.Optimize = "none",
        portable: option.Portable = True,
        embed_weights: option.EmbedWeights = False,
        mem_of: option.MemOf = None,
        max_slowdown: option.MaxSlowdown = None,
        dim: option.Dim = [],  # noqa: B006
        inputs: option.Inputs = None,
        planner: option.Planner = "auto",
        recompute: option.Recompute = True,
        tiling: option.Tiling = True,
        allow_rounding: option.AllowRounding = False,
        allow_op: option.AllowOp = [],  # noqa: B006
        costs: option.Costs = "model",
        time_limit: option.TimeLimit = 10.0,
        iterations: option.Iterations = None,
        measure_limit: option.MeasureLimit = MEASURE_SECONDS,
        run_limit: option.RunLimit = RUN_SECONDS,
        run_memory: option.RunMemory = None,
        threads: option.Threads = None,
        seed: option.Seed = 0,
        verify: option.Verify = True,
        quiet: option.Quiet = False,
        verbose: option.Verbose = False,
        as_json: option.AsJson = False,
    ) -> None:
        """Rewrite many models to many limits and targets: a table with a row for each run."""
        read = dict(
            order=order, optimize=optimize, portable=portable, embed_weights=embed_weights,
            mem_of=mem_of, max_slowdown=parse_share(max_slowdown, "--max-slowdown"),
            dims=shell.parse_dims(dim), inputs=inputs, planner=planner, recompute=recompute,
            tiling=tiling, allow_rounding=allow_rounding, allow_ops=tuple(allow_op), costs=costs,
            time_limit=time_limit, iterations=iterations, measure_limit=measure_limit,
            run_limit=run_limit, threads=threads, seed=seed, verify=verify,
            run_memory=None if run_memory is None else parse_bytes(run_memory, "--run-memory"),
        )  # fmt: skip
        limits = [parse_limit(one) for one in mem]
        live = shell.console.is_terminal
        shown = shell.shown(quiet, verbose, as_json or live)
        with shell.progress(shown) as progress:
            progress("reading the models")
            _sweep(
                shell, progress, read, limits, models=models, sessions=session, runtimes=runtime,
                quiet=quiet or as_json, as_json=as_json,
                output=output, keep=keep, jobs=jobs, scheduler=scheduler,
            )  # fmt: skip


def _sweep(
    shell: Shell,
    progress: "ProgressReport",
    read: dict[str, Any],
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

    if read["planner"] not in PLANNERS:
        raise UsageError(
            f"--planner: there is no {read['planner']!r}: `onnxremat planners` lists them"
        )
    options = [
        Options(session=info.session, runtime=info.runtime, **read)
        for info in chosen_targets(sessions, runtimes)
    ]
    if not quiet and how["scheduler"] is None and (how["jobs"] or 1) > 1:
        shell.tell(f"onnxremat: {_beside_each_other(how['jobs'], read['threads'])}")
    with (
        _leaving_what_is_finished(how["output"]),
        display(shell.console, shell.tell, progress, quiet=quiet) as watch,
    ):
        result = sweep(models, limits, options, watch=watch, **how)
    shell.emit("sweep", result, sweep_text, as_json=as_json, written=result.output)
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
