"""Models and a memory budget, as text for people."""

from onnxremat.cli.tables import columns, shown_name
from onnxremat.commands.budget import BudgetCheck, BudgetReport
from onnxremat.core.units import format_bytes


def budget_text(report: BudgetReport, width: int | None = None) -> str:
    """One line for each model: what it takes, whether that is within the budget, and where the most
    is held if it is not; of `width` columns at most (None: any)."""
    header = ("model", report.figure.split(" with ", maxsplit=1)[0], "budget")
    lines = [(str(one.model), measured_text(one), verdict_text(report, one))
             for one in report.checks]  # fmt: skip
    return columns([header, *lines], width, names=(0,), words=(2,))


def measured_text(check: BudgetCheck) -> str:
    """The figure, or a dash."""
    return "-" if check.measured_bytes is None else format_bytes(check.measured_bytes)


def verdict_text(report: BudgetReport, check: BudgetCheck) -> str:
    """What became of one model."""
    if check.error:
        return f"not measured: {check.error}"
    if not check.exceeded:
        return f"within {report.budget.limit_text}"
    where = where_text(check)
    return f"above {report.budget.limit_text}" + (f": {where}" if where else "")


def where_text(check: BudgetCheck) -> str:
    """Where the most is held, "" if that is not known."""
    peak = check.peak
    if peak is None:
        return ""
    step = f"step {peak.step + 1} of {peak.steps}"
    held = f"{len(peak.held)} value" + ("s" if len(peak.held) != 1 else "")
    workspace = f" and {format_bytes(peak.workspace_bytes)} workspace" * bool(peak.workspace_bytes)
    return f"most at {step}, {shown_name(peak.op)} ({peak.op_type}), with {held}{workspace}"
