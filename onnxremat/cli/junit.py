"""A budget report as JUnit XML, which build servers show as tests: one case for each model.

A model above the budget is a failure, one that could not be measured an error.
"""

from datetime import UTC, datetime
from xml.etree import ElementTree

from onnxremat.cli.budget_report import measured_text, verdict_text
from onnxremat.commands.budget import BudgetCheck, BudgetReport
from onnxremat.core.text import printable

_SUITE = "onnxremat.memory-budget"


def junit_text(report: BudgetReport) -> str:
    """The report as a document with one suite; seconds are those that each model took."""
    counts = {
        "tests": str(len(report.checks)),
        "failures": str(len(report.exceeded)),
        "errors": str(len(report.failed)),
        "time": _seconds(sum(one.seconds for one in report.checks)),
    }
    root = ElementTree.Element("testsuites", counts)
    now = datetime.now(UTC).replace(tzinfo=None).isoformat(timespec="seconds")
    suite = ElementTree.SubElement(
        root, "testsuite", {"name": _SUITE, **counts, "skipped": "0", "timestamp": now}
    )
    for one in report.checks:
        _add_case(suite, report, one)
    ElementTree.indent(root)
    text = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{text}\n'


def _add_case(suite: ElementTree.Element, report: BudgetReport, check: BudgetCheck) -> None:
    named = {"name": printable(str(check.model)), "classname": _SUITE}
    case = ElementTree.SubElement(suite, "testcase", named | {"time": _seconds(check.seconds)})
    told = printable(f"{report.figure}: {measured_text(check)}, {verdict_text(report, check)}")
    if check.error:
        problem = {"message": printable(check.error), "type": f"exit code {check.exit_code}"}
        ElementTree.SubElement(case, "error", problem)
    elif check.exceeded:
        ElementTree.SubElement(case, "failure", {"message": told, "type": "memory-budget"})
    else:
        ElementTree.SubElement(case, "system-out").text = told


def _seconds(seconds: float) -> str:
    return f"{seconds:.3f}"
