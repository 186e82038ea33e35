"""The command line: reads options, shows progress, prints results. No planning happens here.

What a command needs is imported when it runs: help and versions answer without loading onnx, the
runtime or any solver.
"""

import errno
import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import partial
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

import typer
from rich.console import Console

from onnxremat.cli import arguments as option
from onnxremat.cli.colours import coloured
from onnxremat.cli.progress_line import ProgressLine
from onnxremat.cli.schemas import schema_name, schema_text
from onnxremat.cli.sweep_command import Shell, add_sweep
from onnxremat.core.errors import (
    Interrupted,
    ModelError,
    NoPlanFoundError,
    OnnxrematError,
    UsageError,
)
from onnxremat.core.text import printable
from onnxremat.core.units import MemoryLimit, parse_bytes, parse_limit, parse_share
from onnxremat.ort.child.run_limit import RUN_SECONDS
from onnxremat.ort.measuring.measure_time import MEASURE_SECONDS
from onnxremat.stages import CHOOSING, COMPILING, NOTE, PLANNING
from onnxremat.system.interrupts import INTERRUPTS, PLACING
from onnxremat.target_table import DEFAULT, chosen_target

if TYPE_CHECKING:
    from onnxremat.core.attempt import Attempt
    from onnxremat.options import ModelOptions
    from onnxremat.stages import ProgressReport

_COMMANDS = ("rewrite", "audit", "frontier", "verify", "check", "planners", "sweep", "schema")
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
_COUNT = re.compile(r"[0-9]{1,1000}")


class Shown(NamedTuple):
    """What is shown beside results and errors: nothing, or everything, or what is usual."""

    quiet: bool
    verbose: bool

    @classmethod
    def of(cls, quiet: bool, verbose: bool, as_json: bool) -> "Shown":
        """By the options of a command. Raises UsageError where they contradict each other."""
        if quiet and verbose:
            raise UsageError("--quiet and --verbose do not go together")
        return cls(quiet or (as_json and not verbose), verbose)


class _Console(Console):
    """One that raises where it cannot write, as files do. Where there are no columns it has 80."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        if self.width <= 0:
            self.width = 80

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


_UNWRITABLE = (errno.EPIPE, errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_out = _Console(highlight=False, soft_wrap=True, emoji=False)
_err = _Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)


@contextmanager
def _progress(shown: Shown, *, polite: bool = False) -> Iterator["ProgressReport"]:
    """Around the work of a command: what others left is removed before it, and its own if a signal
    ends it. A `polite` one can stop planning early (`INTERRUPTS.requested`)."""
    from onnxremat.system.temporary import sweep

    INTERRUPTS.clean_up = _clean_up
    INTERRUPTS.polite, INTERRUPTS.requested = polite, False
    progress = ProgressLine(
        _err, _tell, quiet=shown.quiet, verbose=shown.verbose, announced=COMPILING
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


def parse_dims(pairs: list[str]) -> dict[str, int]:
    """`["batch=4"]` as `{"batch": 4}`. Raises UsageError."""
    dims: dict[str, int] = {}
    for pair in pairs:
        name, equals, size = pair.rpartition("=")
        if not equals or not name or not _COUNT.fullmatch(size):
            raise UsageError(f"--dim: {pair!r} is not NAME=VALUE with a whole number")
        if dims.setdefault(name, int(size)) != int(size):
            raise UsageError(f"--dim: {name} is given as {dims[name]} and as {size}")
    return dims


def _bytes(text: str | None, name: str) -> int | None:
    """The size that was given to an option, None if none was."""
    return None if text is None else parse_bytes(text, name)


def _emit(
    command: str,
    result: Any,
    text: Callable[[Any, int], str],
    *,
    as_json: bool,
    written: Path | None = None,
) -> None:
    """Print a result. If it cannot be printed, a command that has `written` its file is done all
    the same, and any other raises UsageError."""
    INTERRUPTS.told = True
    try:
        if sys.stdout is None:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        if as_json:
            from onnxremat.cli import report

            _print_json(report.json_document(command, result))
        else:
            _print(text(result, _out.width))
    except OSError as error:
        _discard(sys.stdout)
        reason = f"cannot write to standard output: {error.strerror}"
        if written is None:
            raise UsageError(reason) from None
        _tell(f"onnxremat: {reason}; {written} was written")


def _print(text: str) -> None:
    """A report, with colours on a terminal that has some."""
    _out.print(text if _out.no_color else coloured(text), markup=False)


def _print_json(data: Any) -> None:
    """ASCII alone: a terminal obeys some characters, and not every output takes the others."""
    _out.print_json(json.dumps(data), ensure_ascii=True)


def _tell(line: str) -> None:
    """A line on standard error, if it can be written there."""
    try:
        _err.print(line, markup=False)
    except OSError:
        _discard(sys.stderr)


def _discard(stream: TextIO | None) -> None:
    """Send what is left in a stream, and what comes, to nowhere: Python writes it when it ends."""
    if stream is None:
        return
    with suppress(OSError, ValueError):
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


@app.command("rewrite")
def rewrite_command(
    model: option.Model,
    mem: option.Limit,
    output: option.Output = None,
    runtime: option.Runtime = "ort-cpu",
    session: option.Session = None,
    order: option.Order = "priority",
    optimize: option.Optimize = "none",
    portable: option.Portable = True,
    embed_weights: option.EmbedWeights = False,
    mem_of: option.MemOf = None,
    max_slowdown: option.MaxSlowdown = None,
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
    iterations: option.Iterations = None,
    measure_limit: option.MeasureLimit = MEASURE_SECONDS,
    run_limit: option.RunLimit = RUN_SECONDS,
    run_memory: option.RunMemory = None,
    threads: option.Threads = None,
    seed: option.Seed = 0,
    verify: option.Verify = True,
    explain: option.Explain = False,
    quiet: option.Quiet = False,
    verbose: option.Verbose = False,
    as_json: option.AsJson = False,
) -> None:
    """Write a model that runs within a memory limit."""
    from onnxremat.cli.report import explained_text, rewrite_text
    from onnxremat.commands.rewrite import outputs, rewrite
    from onnxremat.options import Options

    shown = Shown.of(quiet, verbose, as_json)
    limit = parse_limit(mem)
    options = Options(
        runtime=runtime, session=session, order=order, optimize=optimize, portable=portable,
        embed_weights=embed_weights, mem_of=mem_of,
        max_slowdown=parse_share(max_slowdown, "--max-slowdown"),
        dims=parse_dims(dim), inputs=inputs, planner=planner, recompute=recompute, tiling=tiling,
        allow_rounding=allow_rounding, allow_ops=tuple(allow_op), costs=costs,
        time_limit=time_limit, iterations=iterations, measure_limit=measure_limit,
        run_limit=run_limit, run_memory=_bytes(run_memory, "--run-memory"), threads=threads,
        seed=seed, verify=verify,
    )  # fmt: skip
    target, plan = outputs(model, limit, options, output, emit_plan)
    with _progress(shown, polite=True) as progress:
        result = rewrite(
            model,
            limit,
            options,
            output=target,
            plan_output=plan,
            progress=progress,
            stop=lambda: INTERRUPTS.requested,
        )
    text = explained_text if explain else rewrite_text
    _emit("rewrite", result, text, as_json=as_json, written=target)


@app.command("audit")
def audit_command(
    models: option.Models,
    mem: option.LimitToCompare = None,
    html: option.Html = None,
    second: option.Second = None,
    anonymous: option.Anonymous = False,
    dim: option.Dim = [],  # noqa: B006
    inputs: option.Inputs = None,
    fail_above: option.FailAbove = None,
    mem_of: option.BudgetOf = None,
    sarif: option.Sarif = None,
    junit: option.Junit = None,
    run_limit: option.RunLimit = RUN_SECONDS,
    run_memory: option.RunMemory = None,
    threads: option.Threads = None,
    measure_limit: option.MeasureLimit = MEASURE_SECONDS,
    seed: option.Seed = 0,
    quiet: option.Quiet = False,
    verbose: option.Verbose = False,
    as_json: option.AsJson = False,
) -> None:
    """Say what a model needs, where its peak is, and how far a schedule could lower it.

    With --fail-above: whether models keep a memory budget, and nothing else.
    """
    from onnxremat.cli.audit_report import audit_text
    from onnxremat.cli.memory_chart import fits
    from onnxremat.commands.audit import audit
    from onnxremat.options import ModelOptions

    if html is None and (second is not None or anonymous):
        raise UsageError(f"{'--with' if second is not None else '--anonymous'} goes with --html")
    if html is not None and (len(models) > 1 or fail_above is not None):
        raise UsageError("--html shows one model, and goes without --fail-above")
    shown = Shown.of(quiet, verbose, as_json)
    limit = parse_limit(mem) if mem is not None else None
    options = ModelOptions(
        dims=parse_dims(dim), inputs=inputs, threads=threads, measure_limit=measure_limit,
        run_limit=run_limit, run_memory=_bytes(run_memory, "--run-memory"), seed=seed,
    )  # fmt: skip
    if fail_above is not None:
        if limit is not None:
            raise UsageError("--mem compares what an audit tells: not with --fail-above")
        _hold_budget(models, fail_above, mem_of, options, sarif, junit, shown, as_json=as_json)
        return
    for name, given in (("--mem-of", mem_of), ("--sarif", sarif), ("--junit", junit)):
        if given is not None:
            raise UsageError(f"{name} goes with --fail-above only")
    if len(models) > 1:
        _audit_each(models, limit, options, shown, as_json=as_json)
        return
    with _progress(shown) as progress:
        if html is None:
            result = audit(models[0], options, limit=limit, progress=progress)
        else:
            from onnxremat.cli.pages.audit_page import audit_html
            from onnxremat.commands.anonymity import without_names
            from onnxremat.commands.files import write_files
            from onnxremat.commands.inspection import inspect

            inspection = inspect(
                models[0], options, limit=limit, second=second, output=html, progress=progress
            )
            if anonymous:
                inspection = without_names(inspection)
            result, page = inspection.audit, audit_html(inspection)
            write_files({html: page.encode()}, placing=lambda: progress(PLACING))
    text = partial(audit_text, blocks=fits(_out.encoding))
    _emit("audit", result, text, as_json=as_json, written=html)


def _audit_each(
    models: list[Path],
    limit: MemoryLimit | None,
    options: "ModelOptions",
    shown: Shown,
    *,
    as_json: bool,
) -> None:
    """What `audit` does with several models: those that can be are audited, and what is wrong with
    others is a line each; the exit code is that of the first."""
    from onnxremat.cli.audit_report import audits_text
    from onnxremat.cli.memory_chart import fits
    from onnxremat.commands.audits import audit_each

    with _progress(shown) as progress:
        found = audit_each(models, options, limit=limit, progress=progress)
    if found.audits or as_json:
        text = partial(audits_text, blocks=fits(_out.encoding))
        _emit("audits", found, text, as_json=as_json)
    for one in found.failed:
        _tell(f"onnxremat: {one.error}")
    if found.failed:
        raise typer.Exit(found.failed[0].exit_code)


def _hold_budget(
    models: list[Path],
    fail_above: str,
    mem_of: str | None,
    options: "ModelOptions",
    sarif: Path | None,
    junit: Path | None,
    shown: Shown,
    *,
    as_json: bool,
) -> None:
    """What `audit --fail-above` does. Reports are written whatever the verdict is."""
    from onnxremat.cli.budget_report import budget_text
    from onnxremat.cli.junit import junit_text
    from onnxremat.cli.sarif import sarif_text
    from onnxremat.commands.budget import check_budget, parse_budget, require_within
    from onnxremat.commands.files import write_files

    budget = parse_budget(fail_above, mem_of)
    with _progress(shown) as progress:
        report = check_budget(models, budget, options, reports=(sarif, junit), progress=progress)
        contents: dict[Path, bytes | Path] = {}
        if sarif is not None:
            contents[sarif] = sarif_text(report, Path()).encode("ascii")
        if junit is not None:
            contents[junit] = junit_text(report).encode()
        if contents:
            write_files(contents, placing=lambda: progress(PLACING))
    _emit("budget", report, budget_text, as_json=as_json)
    require_within(report)


@app.command("frontier")
def frontier_command(
    model: option.Model,
    session: option.FrontierSession = "recipe",
    planners: option.Planners = None,
    budgets: option.Budgets = None,
    slowdowns: option.Slowdowns = None,
    portable: option.Portable = True,
    time_limit: option.TimeLimitEach = None,
    html: option.Html = None,
    dim: option.Dim = [],  # noqa: B006
    inputs: option.Inputs = None,
    run_limit: option.RunLimit = RUN_SECONDS,
    run_memory: option.RunMemory = None,
    threads: option.Threads = None,
    measure_limit: option.MeasureLimit = MEASURE_SECONDS,
    seed: option.Seed = 0,
    quiet: option.Quiet = False,
    verbose: option.Verbose = False,
    as_json: option.AsJson = False,
) -> None:
    """Memory against time, for many limits, with many planners or measured. Leaves no model."""
    from onnxremat.cli import frontier_report as pages
    from onnxremat.commands.files import write_files
    from onnxremat.commands.frontier import DEFAULT_BUDGETS, DEFAULT_PLANNERS, frontier
    from onnxremat.commands.process_frontier import DEFAULT_SLOWDOWNS, process_frontier
    from onnxremat.options import FrontierOptions, Options

    shown = Shown.of(quiet, verbose, as_json)
    target = chosen_target(session, DEFAULT.runtime)
    target.check({
        "planners": planners, "budgets": budgets, "slowdowns": slowdowns, "portable": portable,
    })  # fmt: skip
    read: dict[str, Any] = {
        "dims": parse_dims(dim), "inputs": inputs, "threads": threads, "seed": seed,
        "measure_limit": measure_limit, "run_limit": run_limit,
        "run_memory": _bytes(run_memory, "--run-memory"),
    }  # fmt: skip
    if time_limit is not None:
        read["time_limit"] = time_limit
    with _progress(shown) as progress:
        if target.optimizes:
            made_for = Options(session=session, portable=portable, **read)
            shares = [
                parse_share(one, "--slowdowns") for one in (slowdowns or "").split(",") if one
            ]
            found = process_frontier(
                model,
                made_for,
                slowdowns=[one for one in shares if one is not None] or DEFAULT_SLOWDOWNS,
                output=html,
                progress=progress,
            )
            told = partial(_emit, "frontier", found, pages.process_frontier_text)
            page = partial(pages.process_frontier_html, found)
        else:
            result = frontier(
                model,
                FrontierOptions(**read),
                planners=DEFAULT_PLANNERS if planners is None else tuple(planners.split(",")),
                budgets=DEFAULT_BUDGETS if budgets is None else budgets,
                output=html,
                progress=progress,
            )
            told = partial(_emit, "frontier", result, pages.frontier_text)
            page = partial(pages.frontier_html, result)
        if html is not None:
            content = page().encode()
            write_files({html: content}, placing=lambda: progress(PLACING))
    told(as_json=as_json, written=html)


@app.command("verify")
def verify_command(
    original: option.Model,
    rewritten: option.Rewritten,
    mem: option.LimitToKeep = None,
    dim: option.Dim = [],  # noqa: B006
    inputs: option.Inputs = None,
    run_limit: option.RunLimit = RUN_SECONDS,
    run_memory: option.RunMemory = None,
    threads: option.Threads = None,
    measure_limit: option.MeasureLimit = MEASURE_SECONDS,
    seed: option.Seed = 0,
    quiet: option.Quiet = False,
    verbose: option.Verbose = False,
    as_json: option.AsJson = False,
) -> None:
    """Run two models: outputs equal bit for bit, measured peaks, measured times."""
    from onnxremat.cli.report import verification_text
    from onnxremat.options import ModelOptions
    from onnxremat.verification import require, verify_files

    shown = Shown.of(quiet, verbose, as_json)
    limit = parse_limit(mem) if mem is not None else None
    options = ModelOptions(
        dims=parse_dims(dim), inputs=inputs, threads=threads, measure_limit=measure_limit,
        run_limit=run_limit, run_memory=_bytes(run_memory, "--run-memory"), seed=seed,
    )  # fmt: skip
    with _progress(shown) as progress:
        result = verify_files(original, rewritten, options, progress=progress)
    _emit("verify", result, verification_text, as_json=as_json)
    require(result, limit.resolve(result.original_peak_bytes) if limit else None)


@app.command("check")
def check_command(
    file: option.Rewritten,
    quiet: option.Quiet = False,
    verbose: option.Verbose = False,
    as_json: option.AsJson = False,
) -> None:
    """Say whether this machine and this runtime are of the kind that a rewritten file is for."""
    from onnxremat.cli.report import check_text
    from onnxremat.commands.fitness import check, require_fit

    with _progress(Shown.of(quiet, verbose, as_json)) as progress:
        found = check(file, progress=progress)
    _emit("check", found, check_text, as_json=as_json)
    require_fit(file, found)


@app.command("planners")
def planners_command(as_json: option.AsJson = False) -> None:
    """List the planners, with the paper of each."""
    from onnxremat.cli.tables import planners_text
    from onnxremat.planners import PLANNERS

    _emit("planners", tuple(PLANNERS.values()), planners_text, as_json=as_json)


@app.command("schema")
def schema_command(command: option.Described) -> None:
    """Print the JSON Schema of what a command prints with --json."""
    text = schema_text(command)
    try:
        _out.print(text, markup=False, end="")
    except OSError as error:
        _discard(sys.stdout)
        raise UsageError(f"cannot write to standard output: {error.strerror}") from None


add_sweep(app, Shell(Shown.of, _progress, _emit, _tell, parse_dims, _err))


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
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="backslashreplace")
    code = _run()
    INTERRUPTS.finish()
    sys.exit(code)


def _run() -> int:
    """Run the command that the arguments name; its exit code."""
    try:
        code = app(standalone_mode=False) or 0
    except OnnxrematError as error:
        return _failed(str(error), error.exit_code, error.attempts)
    except KeyboardInterrupt:
        code = Interrupted.exit_code
    except typer.Exit as stop:
        code = stop.exit_code
    except OSError as error:
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        _discard(sys.stdout)
        return _failed(f"cannot write to standard output: {error.strerror}", UsageError.exit_code)
    except MemoryError:
        return _failed("this machine has not enough memory for the model", ModelError.exit_code)
    except Exception as error:
        if not type(error).__module__.startswith(("click", "typer")) or not hasattr(
            error, "format_message"
        ):
            raise
        return _not_read(error.format_message(), is_help=_is_help(error))
    if code == Interrupted.exit_code:  # typer returns it for a KeyboardInterrupt
        return _failed("interrupted, nothing was written", code)
    return int(code)


def _not_read(message: str, *, is_help: bool) -> int:
    """Say what the parser says of the arguments, which is an error unless it is the help."""
    if not is_help:
        return _failed(printable(message), UsageError.exit_code)
    _tell(message)
    return UsageError.exit_code


def _is_help(error: Exception) -> bool:
    """Whether no command was given, and the message is the help."""
    return type(error).__name__ == "NoArgsIsHelpError"


def _failed(message: str, code: int, attempts: "Sequence[Attempt]" = ()) -> int:
    """Say why a command failed; if no result was printed as an object too with --json, or with the
    attempts in a table with --explain."""
    _tell(f"onnxremat: {message}")
    if INTERRUPTS.told:
        return code
    try:
        if "--json" in sys.argv:
            INTERRUPTS.told = True
            plans = [asdict(one) for one in attempts]
            said = {"schema": schema_name("error"), "error": message, "exit_code": code}
            _print_json(said | {"attempts": plans})
        elif "--explain" in sys.argv and attempts:
            from onnxremat.cli.explain import attempts_text

            _print(attempts_text(attempts, _out.width))
    except OSError:
        _discard(sys.stdout)
    return code
