"""The `frontier` command."""

from functools import partial
from typing import Any

from onnxremat.cli import arguments as option
from onnxremat.cli import terminal
from onnxremat.cli.option_groups import InputArguments, RunArguments, Shown, read
from onnxremat.cli.working import working
from onnxremat.core.units import parse_share
from onnxremat.system.interrupts import PLACING
from onnxremat.target_table import DEFAULT, chosen_target


def frontier_command(
    model: option.Model,
    *,
    session: option.FrontierSession = "recipe",
    planners: option.Planners = None,
    budgets: option.Budgets = None,
    slowdowns: option.Slowdowns = None,
    portable: option.Portable = True,
    time_limit: option.TimeLimitEach = None,
    html: option.Html = None,
    fed: InputArguments,
    run: RunArguments,
    shown: Shown,
) -> None:
    """Memory against time, for many limits, with many planners or measured. Leaves no model."""
    from onnxremat.cli import frontier_report as pages
    from onnxremat.commands.files import write_files
    from onnxremat.commands.frontier import DEFAULT_BUDGETS, DEFAULT_PLANNERS, frontier
    from onnxremat.commands.process_frontier import DEFAULT_SLOWDOWNS, process_frontier
    from onnxremat.options import FrontierOptions, Options

    target = chosen_target(session, DEFAULT.runtime)
    target.check({
        "planners": planners, "budgets": budgets, "slowdowns": slowdowns, "portable": portable,
    })  # fmt: skip
    given: dict[str, Any] = read(fed, run)
    if time_limit is not None:
        given["time_limit"] = time_limit
    with working(shown) as progress:
        if target.optimizes:
            made_for = Options(session=session, portable=portable, **given)
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
            told = partial(terminal.emit, "frontier", found, pages.process_frontier_text)
            page = partial(pages.process_frontier_html, found)
        else:
            result = frontier(
                model,
                FrontierOptions(**given),
                planners=DEFAULT_PLANNERS if planners is None else tuple(planners.split(",")),
                budgets=DEFAULT_BUDGETS if budgets is None else budgets,
                output=html,
                progress=progress,
            )
            told = partial(terminal.emit, "frontier", result, pages.frontier_text)
            page = partial(pages.frontier_html, result)
        if html is not None:
            content = page().encode()
            write_files({html: content}, placing=lambda: progress(PLACING))
    told(as_json=shown.as_json, written=html)
