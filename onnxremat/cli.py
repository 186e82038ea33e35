"""The command line: reads options, shows progress, prints results. No planning happens here.

What a command needs is imported when it runs: help and versions answer without loading onnx, the
runtime or any solver.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import typer
from rich.console import Console

from onnxremat import cli_options as option
from onnxremat.errors import (
    Interrupted,
    LimitExceededError,
    NoPlanFoundError,
    OnnxrematError,
    UsageError,
)
from onnxremat.stages import CHOOSING, COMPILING, PLANNING
from onnxremat.units import format_bytes, parse_bytes, parse_limit

_COMMANDS = ("rewrite", "audit", "frontier", "verify", "planners")
_NO_HELP = {"help": False}
"""Where --help is not given, typer takes it to be False instead of None: to see that None is no
truth value it would load pydantic, as long as all the rest takes."""

app = typer.Typer(
    name="onnxremat",
    help="Run ONNX models in less memory: nodes recomputed and reordered, results bit-identical.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"default_map": _NO_HELP | {name: _NO_HELP for name in _COMMANDS}},
)
_out = Console(highlight=False, soft_wrap=True)
_emitted: list[Any] = []
"""Results printed: with --json an error is an object of its own only if there is none yet."""
_err = Console(stderr=True, highlight=False, soft_wrap=True)


class Interrupt:
    """Turns the first Ctrl-C during planning into a polite stop, if the command is `polite`; else
    it ends the command."""

    def __init__(self, *, polite: bool) -> None:
        self.polite = polite
        self.planning = False
        self.requested = False

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        if self.polite and self.planning and not self.requested:
            self.requested = True
            return
        raise KeyboardInterrupt


class Progress:
    """What the command is doing, on the last line of the terminal (nothing when piped)."""

    def __init__(self, interrupt: Interrupt, *, quiet: bool) -> None:
        self._interrupt = interrupt
        self._quiet = quiet
        self._status = None if quiet or not _err.is_terminal else _err.status("")

    def __call__(self, stage: str, detail: str = "") -> None:
        self._interrupt.planning = stage in (PLANNING, CHOOSING)
        if stage.startswith(COMPILING) and not self._quiet:
            _err.print(f"onnxremat: {stage}")
        if self._status is not None:
            self._status.update(f"{stage} ... {detail}")
            self._status.start()

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()


@contextmanager
def _progress(*, quiet: bool, polite: bool = False) -> Iterator[tuple[Progress, Interrupt]]:
    interrupt = Interrupt(polite=polite)
    before = signal.signal(signal.SIGINT, interrupt)
    progress = Progress(interrupt, quiet=quiet)
    try:
        yield progress, interrupt
    except KeyboardInterrupt:
        raise Interrupted("interrupted, nothing was written") from None
    except NoPlanFoundError:
        if interrupt.requested:
            raise Interrupted("interrupted before a plan met the limit") from None
        raise
    finally:
        progress.stop()
        signal.signal(signal.SIGINT, before)


def parse_dims(pairs: list[str]) -> dict[str, int]:
    """`["batch=4"]` as `{"batch": 4}`. Raises UsageError."""
    dims: dict[str, int] = {}
    for pair in pairs:
        name, equals, size = pair.rpartition("=")
        if not equals or not name or not (size.isascii() and size.isdecimal()):
            raise UsageError(f"--dim: {pair!r} is not NAME=VALUE with a whole number")
        if dims.setdefault(name, int(size)) != int(size):
            raise UsageError(f"--dim: {name} is given as {dims[name]} and as {size}")
    return dims


def _emit(result: Any, text: Callable[[Any], str], *, as_json: bool) -> None:
    _emitted.append(result)
    if as_json:
        from onnxremat import report

        _out.print_json(json.dumps(report.as_json(result)))
    else:
        _out.print(text(result), markup=False)


@app.command("rewrite")
def rewrite_command(
    model: option.Model,
    mem: option.Limit,
    output: option.Output = None,
    runtime: option.Runtime = "ort-cpu",
    session: option.Session = "recipe",
    order: option.Order = "priority",
    optimize: option.Optimize = "none",
    emit_plan: option.EmitPlan = None,
    dim: option.Dim = [],  # noqa: B006 - typer copies it
    inputs: option.Inputs = None,
    planner: option.Planner = "auto",
    recompute: option.Recompute = True,
    tiling: option.Tiling = True,
    allow_rounding: option.AllowRounding = False,
    allow_op: option.AllowOp = [],  # noqa: B006
    costs: option.Costs = "model",
    time_limit: option.TimeLimit = 10.0,
    threads: option.Threads = None,
    seed: option.Seed = 0,
    verify: option.Verify = True,
    as_json: option.AsJson = False,
) -> None:
    """Write a model that runs within a memory limit."""
    from onnxremat.prepare import Options
    from onnxremat.report import rewrite_text
    from onnxremat.rewriting import outputs, rewrite

    limit = parse_limit(mem)
    options = Options(
        runtime=runtime, session=session, order=order, optimize=optimize, dims=parse_dims(dim),
        inputs=inputs, planner=planner, recompute=recompute, tiling=tiling,
        allow_rounding=allow_rounding, allow_ops=tuple(allow_op), costs=costs,
        time_limit=time_limit, threads=threads, seed=seed, verify=verify,
    )  # fmt: skip
    target, plan = outputs(model, limit, options, output, emit_plan)
    with _progress(quiet=as_json, polite=True) as (progress, interrupt):
        result = rewrite(
            model,
            limit,
            options,
            output=target,
            plan_output=plan,
            progress=progress,
            stop=lambda: interrupt.requested,
        )
    _emit(result, rewrite_text, as_json=as_json)


@app.command("audit")
def audit_command(
    model: option.Model,
    mem: option.LimitToCompare = None,
    dim: option.Dim = [],  # noqa: B006
    inputs: option.Inputs = None,
    fail_above: option.FailAbove = None,
    threads: option.Threads = None,
    seed: option.Seed = 0,
    as_json: option.AsJson = False,
) -> None:
    """Say what a model needs, where its peak is, and how far a schedule could lower it."""
    from onnxremat.auditing import audit
    from onnxremat.prepare import Options
    from onnxremat.report import audit_text

    limit = parse_limit(mem) if mem is not None else None
    ceiling = parse_bytes(fail_above, "--fail-above") if fail_above is not None else None
    options = Options(dims=parse_dims(dim), inputs=inputs, threads=threads, seed=seed)
    with _progress(quiet=as_json) as (progress, _):
        result = audit(model, options, limit=limit, progress=progress)
    _emit(result, audit_text, as_json=as_json)
    if ceiling is not None and result.original_peak_bytes > ceiling:
        raise LimitExceededError(
            f"the activation peak, {format_bytes(result.original_peak_bytes)}, is above "
            f"--fail-above {fail_above}"
        )


@app.command("frontier")
def frontier_command(
    model: option.Model,
    planners: option.Planners = None,
    budgets: option.Budgets = 6,
    time_limit: option.TimeLimitEach = 2.0,
    html: option.Html = None,
    dim: option.Dim = [],  # noqa: B006
    inputs: option.Inputs = None,
    threads: option.Threads = None,
    seed: option.Seed = 0,
    as_json: option.AsJson = False,
) -> None:
    """Plan for many limits with many planners: memory against time. Writes no model."""
    from onnxremat.files import check_output, write_file
    from onnxremat.frontier_report import frontier_html, frontier_text
    from onnxremat.frontiers import DEFAULT_PLANNERS, frontier
    from onnxremat.prepare import Options

    chosen = DEFAULT_PLANNERS if planners is None else tuple(planners.split(","))
    options = Options(
        dims=parse_dims(dim), inputs=inputs, threads=threads, seed=seed, time_limit=time_limit
    )
    if html is not None:
        check_output(model, html)
    with _progress(quiet=as_json) as (progress, _):
        result = frontier(model, options, planners=chosen, budgets=budgets, progress=progress)
    if html is not None:
        write_file(frontier_html(result).encode(), html)
    _emit(result, frontier_text, as_json=as_json)


@app.command("verify")
def verify_command(
    original: option.Model,
    rewritten: option.Rewritten,
    mem: option.LimitToKeep = None,
    dim: option.Dim = [],  # noqa: B006
    inputs: option.Inputs = None,
    threads: option.Threads = None,
    seed: option.Seed = 0,
    as_json: option.AsJson = False,
) -> None:
    """Run two models: outputs equal bit for bit, measured peaks, measured times."""
    from onnxremat.prepare import Options
    from onnxremat.report import verification_text
    from onnxremat.verification import require, verify_files

    limit = parse_limit(mem) if mem is not None else None
    options = Options(dims=parse_dims(dim), inputs=inputs, threads=threads, seed=seed)
    with _progress(quiet=as_json) as (progress, _):
        result = verify_files(original, rewritten, options, progress=progress)
    _emit(result, verification_text, as_json=as_json)
    require(result, limit.resolve(result.original_peak_bytes) if limit else None)


@app.command("planners")
def planners_command(as_json: option.AsJson = False) -> None:
    """List the planners, with the paper of each."""
    from onnxremat.planners import PLANNERS
    from onnxremat.tables import planners_text

    _emit(tuple(PLANNERS.values()), planners_text, as_json=as_json)


@app.callback(invoke_without_command=True)
def _main(version: option.Version = False) -> None:
    if version:
        import onnxremat

        _out.print(f"onnxremat {onnxremat.__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point of the `onnxremat` command: one clear line and an exit code for every error.

    ONNX Runtime is told not to collect telemetry, unless the environment says otherwise: without a
    home folder it would warn that it cannot store an identity for it.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    try:
        app(standalone_mode=False)
    except OnnxrematError as error:
        _err.print(f"onnxremat: {error}", markup=False)
        if "--json" in sys.argv and not _emitted:
            _out.print_json(json.dumps({"error": str(error), "exit_code": error.exit_code}))
        sys.exit(error.exit_code)
    except KeyboardInterrupt:
        _err.print("onnxremat: interrupted, nothing was written", markup=False)
        sys.exit(Interrupted.exit_code)
    except typer.Exit as stop:
        sys.exit(stop.exit_code)
    except Exception as error:
        if type(error).__module__.startswith(("click", "typer")) and hasattr(
            error, "format_message"
        ):
            _err.print(f"onnxremat: {error.format_message()}", markup=False)
            sys.exit(2)
        raise
