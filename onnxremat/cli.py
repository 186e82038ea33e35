"""The command line: reads options, shows progress, prints results. No planning happens here."""

import json
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import typer
from rich.console import Console

from onnxremat import report
from onnxremat.errors import (
    Interrupted,
    LimitExceededError,
    NoPlanFoundError,
    OnnxrematError,
    UsageError,
)
from onnxremat.files import check_output, write_file
from onnxremat.prepare import COMPILING, Options
from onnxremat.rewriting import default_output, rewrite
from onnxremat.units import format_bytes, parse_bytes, parse_limit

app = typer.Typer(
    name="onnxremat",
    help="Run ONNX models in less memory: nodes recomputed and reordered, results bit-identical.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
_out = Console(highlight=False, soft_wrap=True)
_emitted: list[Any] = []
"""Results printed: with --json an error is an object of its own only if there is none yet."""
_err = Console(stderr=True, highlight=False, soft_wrap=True)

Model = Annotated[Path, typer.Argument(help="An ONNX file.", show_default=False)]
Dim = Annotated[
    list[str],
    typer.Option("--dim", metavar="NAME=VALUE", help="Size of a symbolic dimension; repeatable."),
]
Inputs = Annotated[
    Path | None,
    typer.Option(help="An .npz file with the model inputs to measure with (default: random)."),
]
Threads = Annotated[
    int | None,
    typer.Option(min=1, max=256, help="Threads of the runtime (default: its own choice)."),
]
Seed = Annotated[int, typer.Option(min=0, help="Seed of the planner and of random inputs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]


class Interrupt:
    """Turns the first Ctrl-C during planning into a polite stop; elsewhere it ends the command."""

    def __init__(self) -> None:
        self.planning = False
        self.requested = False

    def __call__(self, _signal: int, _frame: FrameType | None) -> None:
        if self.planning and not self.requested:
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
        self._interrupt.planning = stage == "planning"
        if stage == COMPILING and not self._quiet:
            _err.print(f"onnxremat: {stage}")
        if self._status is not None:
            self._status.update(f"{stage} ... {detail}")
            self._status.start()

    def stop(self) -> None:
        if self._status is not None:
            self._status.stop()


@contextmanager
def _progress(*, quiet: bool) -> Iterator[tuple[Progress, Interrupt]]:
    interrupt = Interrupt()
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
        if not equals or not name or not size.isdigit() or int(size) < 1:
            raise UsageError(f"--dim: {pair!r} is not NAME=VALUE with a positive whole number")
        if dims.setdefault(name, int(size)) != int(size):
            raise UsageError(f"--dim: {name} is given as {dims[name]} and as {size}")
    return dims


def _emit(result: Any, text: Callable[[Any], str], *, as_json: bool) -> None:
    _emitted.append(result)
    if as_json:
        _out.print_json(json.dumps(report.as_json(result)))
    else:
        _out.print(text(result), markup=False)


@app.command("rewrite")
def rewrite_command(
    model: Model,
    mem: Annotated[
        str,
        typer.Option(
            help="Limit: 4MB, 4MiB, bytes, 60% of the model's own, or min. Of the activation peak "
            "by default, of resident memory with --session stock, of the arena with --runtime "
            "generic."
        ),
    ],
    output: Annotated[Path | None, typer.Option("-o", "--output", help="File to write.")] = None,
    runtime: Annotated[
        str, typer.Option(help="ort-cpu, or generic: fixed offsets in one arena.")
    ] = "ort-cpu",
    session: Annotated[
        str,
        typer.Option(
            help="recipe: the file is opened with the options stored in it. stock: with ONNX "
            "Runtime's defaults."
        ),
    ] = "recipe",
    order: Annotated[
        str,
        typer.Option(
            help="Who keeps the order of the nodes. priority: a session option in the file. "
            "default: their positions alone, for orders that ONNX Runtime's default can give (with "
            "--no-recompute)."
        ),
    ] = "priority",
    optimize: Annotated[
        str,
        typer.Option(
            help="none, basic, extended or all: ONNX Runtime optimizes the model first, and what "
            "it makes is planned."
        ),
    ] = "none",
    emit_plan: Annotated[
        Path | None,
        typer.Option(
            help="JSON file with order and buffer offsets (written beside the model with "
            "--runtime generic)."
        ),
    ] = None,
    dim: Dim = [],  # noqa: B006 - typer copies it
    inputs: Inputs = None,
    planner: Annotated[str, typer.Option(help="A name from `onnxremat planners`.")] = "auto",
    recompute: Annotated[
        bool, typer.Option("--recompute/--no-recompute", help="Whether nodes may run again.")
    ] = True,
    tiling: Annotated[
        bool,
        typer.Option(
            "--tiling/--no-tiling",
            help="Whether ops may be cut into tiles where whole ops miss the limit or take longer.",
        ),
    ] = True,
    allow_rounding: Annotated[
        bool,
        typer.Option(
            "--allow-rounding",
            help="Ops may be replaced by others that need less scratch and round differently.",
        ),
    ] = False,
    allow_op: Annotated[
        list[str], typer.Option(help="Custom op type that may be recomputed; repeatable.")
    ] = [],  # noqa: B006
    costs: Annotated[str, typer.Option(help="Times of ops: model or measured.")] = "model",
    time_limit: Annotated[
        float,
        typer.Option(
            min=0.1,
            max=86400,
            help="Seconds to plan in, up to four times, and as often in tiles; running and "
            "measuring come on top (with --session stock, one or two minutes).",
        ),
    ] = 10.0,
    threads: Threads = None,
    seed: Seed = 0,
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Run both models and compare every bit.")
    ] = True,
    as_json: AsJson = False,
) -> None:
    """Write a model that runs within a memory limit."""
    limit = parse_limit(mem)
    options = Options(
        runtime=runtime,
        session=session,
        order=order,
        optimize=optimize,
        dims=parse_dims(dim),
        inputs=inputs,
        planner=planner,
        recompute=recompute,
        tiling=tiling,
        allow_rounding=allow_rounding,
        allow_ops=tuple(allow_op),
        costs=costs,
        time_limit=time_limit,
        threads=threads,
        seed=seed,
        verify=verify,
    )
    target = output if output is not None else default_output(model, limit, options)
    if emit_plan is None and runtime == "generic":
        emit_plan = target.with_suffix(".plan.json")
    with _progress(quiet=as_json) as (progress, interrupt):
        result = rewrite(
            model,
            limit,
            options,
            output=target,
            plan_output=emit_plan,
            progress=progress,
            stop=lambda: interrupt.requested,
        )
    _emit(result, report.rewrite_text, as_json=as_json)


@app.command("audit")
def audit_command(
    model: Model,
    mem: Annotated[str | None, typer.Option(help="A limit to compare with.")] = None,
    dim: Dim = [],  # noqa: B006
    inputs: Inputs = None,
    fail_above: Annotated[
        str | None, typer.Option(help="Exit with 7 if the activation peak is above this size.")
    ] = None,
    threads: Threads = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Say what a model needs, where its peak is, and how far a schedule could lower it."""
    from onnxremat.auditing import audit

    limit = parse_limit(mem) if mem is not None else None
    ceiling = parse_bytes(fail_above, "--fail-above") if fail_above is not None else None
    options = Options(dims=parse_dims(dim), inputs=inputs, threads=threads, seed=seed)
    with _progress(quiet=as_json) as (progress, _):
        result = audit(model, options, limit=limit, progress=progress)
    _emit(result, report.audit_text, as_json=as_json)
    if ceiling is not None and result.original_peak_bytes > ceiling:
        raise LimitExceededError(
            f"the activation peak, {format_bytes(result.original_peak_bytes)}, is above "
            f"--fail-above {fail_above}"
        )


@app.command("frontier")
def frontier_command(
    model: Model,
    planners: Annotated[
        str | None, typer.Option(help="Names from `onnxremat planners`, with commas between.")
    ] = None,
    budgets: Annotated[
        int, typer.Option(min=1, max=100, help="Limits between the smallest peak and the own one.")
    ] = 6,
    time_limit: Annotated[
        float, typer.Option(min=0.1, max=86400, help="Seconds for each planner and limit.")
    ] = 2.0,
    html: Annotated[Path | None, typer.Option(help="Write a report with a plot there.")] = None,
    dim: Dim = [],  # noqa: B006
    inputs: Inputs = None,
    threads: Threads = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Plan for many limits with many planners: memory against time. Writes no model."""
    from onnxremat.frontier_report import frontier_html, frontier_text
    from onnxremat.frontiers import DEFAULT_PLANNERS, frontier

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
    original: Model,
    rewritten: Annotated[Path, typer.Argument(help="The rewritten file.", show_default=False)],
    mem: Annotated[
        str | None, typer.Option(help="A limit that the rewritten peak must keep.")
    ] = None,
    dim: Dim = [],  # noqa: B006
    inputs: Inputs = None,
    threads: Threads = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Run two models: outputs equal bit for bit, measured peaks, measured times."""
    from onnxremat.verification import require, verify_files

    limit = parse_limit(mem) if mem is not None else None
    options = Options(dims=parse_dims(dim), inputs=inputs, threads=threads, seed=seed)
    with _progress(quiet=as_json) as (progress, _):
        result = verify_files(original, rewritten, options, progress=progress)
    _emit(result, report.verification_text, as_json=as_json)
    require(result, limit.resolve(result.original_peak_bytes) if limit else None)


@app.command("planners")
def planners_command(as_json: AsJson = False) -> None:
    """List the planners, with the paper of each."""
    from onnxremat.planners import PLANNERS

    _emit(tuple(PLANNERS.values()), report.planners_text, as_json=as_json)


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        import onnxremat

        _out.print(f"onnxremat {onnxremat.__version__}")
        raise typer.Exit


def main() -> None:
    """Entry point of the `onnxremat` command: one clear line and an exit code for every error."""
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
