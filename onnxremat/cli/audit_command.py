"""The `audit` command, which holds models to a budget too."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from onnxremat.cli import arguments as option
from onnxremat.cli import terminal
from onnxremat.cli.option_groups import InputArguments, RunArguments, Shown, read
from onnxremat.cli.working import working
from onnxremat.core.errors import UsageError
from onnxremat.core.units import MemoryLimit, parse_limit
from onnxremat.system.interrupts import PLACING

if TYPE_CHECKING:
    from onnxremat.options import ModelOptions


def audit_command(
    models: option.Models,
    *,
    mem: option.LimitToCompare = None,
    html: option.Html = None,
    second: option.Second = None,
    anonymous: option.Anonymous = False,
    fed: InputArguments,
    fail_above: option.FailAbove = None,
    mem_of: option.BudgetOf = None,
    sarif: option.Sarif = None,
    junit: option.Junit = None,
    run: RunArguments,
    shown: Shown,
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
    limit = parse_limit(mem) if mem is not None else None
    options = ModelOptions(**read(fed, run))
    if fail_above is not None:
        if limit is not None:
            raise UsageError("--mem compares what an audit tells: not with --fail-above")
        _hold_budget(models, fail_above, mem_of, options, sarif, junit, shown)
        return
    for name, given in (("--mem-of", mem_of), ("--sarif", sarif), ("--junit", junit)):
        if given is not None:
            raise UsageError(f"{name} goes with --fail-above only")
    if len(models) > 1:
        _audit_each(models, limit, options, shown)
        return
    with working(shown) as progress:
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
    text = partial(audit_text, blocks=fits(terminal.OUT.encoding))
    terminal.emit("audit", result, text, as_json=shown.as_json, written=html)


def _audit_each(
    models: list[Path], limit: MemoryLimit | None, options: "ModelOptions", shown: Shown
) -> None:
    """What `audit` does with several models: those that can be are audited, and what is wrong with
    others is a line each; the exit code is that of the first."""
    from onnxremat.cli.audit_report import audits_text
    from onnxremat.cli.memory_chart import fits
    from onnxremat.commands.audits import audit_each

    with working(shown) as progress:
        found = audit_each(models, options, limit=limit, progress=progress)
    if found.audits or shown.as_json:
        text = partial(audits_text, blocks=fits(terminal.OUT.encoding))
        terminal.emit("audits", found, text, as_json=shown.as_json)
    for one in found.failed:
        terminal.tell(f"onnxremat: {one.error}")
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
) -> None:
    """What `audit --fail-above` does. Reports are written whatever the verdict is."""
    from onnxremat.cli.budget_report import budget_text
    from onnxremat.cli.junit import junit_text
    from onnxremat.cli.sarif import sarif_text
    from onnxremat.commands.budget import check_budget, parse_budget, require_within
    from onnxremat.commands.files import write_files

    budget = parse_budget(fail_above, mem_of)
    with working(shown) as progress:
        report = check_budget(models, budget, options, reports=(sarif, junit), progress=progress)
        contents: dict[Path, bytes | Path] = {}
        if sarif is not None:
            contents[sarif] = sarif_text(report, Path()).encode("ascii")
        if junit is not None:
            contents[junit] = junit_text(report).encode()
        if contents:
            write_files(contents, placing=lambda: progress(PLACING))
    terminal.emit("budget", report, budget_text, as_json=shown.as_json)
    require_within(report)
