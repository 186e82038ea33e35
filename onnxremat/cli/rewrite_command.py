"""The `rewrite` command."""

from onnxremat.cli import arguments as option
from onnxremat.cli import terminal
from onnxremat.cli.option_groups import FileArguments, PlanArguments, Shown, read
from onnxremat.cli.working import working
from onnxremat.core.units import parse_limit
from onnxremat.system.interrupts import INTERRUPTS


def rewrite_command(
    model: option.Model,
    mem: option.Limit,
    *,
    output: option.Output = None,
    runtime: option.Runtime = "ort-cpu",
    session: option.Session = None,
    file: FileArguments,
    emit_plan: option.EmitPlan = None,
    plan: PlanArguments,
    explain: option.Explain = False,
    shown: Shown,
) -> None:
    """Write a model that runs within a memory limit."""
    from onnxremat.cli.report import explained_text, rewrite_text
    from onnxremat.commands.rewrite import outputs, rewrite
    from onnxremat.options import Options

    limit = parse_limit(mem)
    options = Options(runtime=runtime, session=session, **read(file, plan))
    target, plan_output = outputs(model, limit, options, output, emit_plan)
    with working(shown, polite=True) as progress:
        result = rewrite(
            model,
            limit,
            options,
            output=target,
            plan_output=plan_output,
            progress=progress,
            stop=lambda: INTERRUPTS.requested,
        )
    text = explained_text if explain else rewrite_text
    terminal.emit("rewrite", result, text, as_json=shown.as_json, written=target)
