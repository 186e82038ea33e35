"""A budget report as SARIF 2.1.0, which code hosts show beside the changes that caused it.

A model above the budget is a result of the rule `memory-budget`, one that could not be measured a
result of `not-measured`; models within the budget are listed as artifacts alone. Places are whole
files, since a model has no lines (line 1 stands for it: hosts want one), and the op that runs where
the most is held. Names and sizes only: no weight and no value is in it.
"""

import hashlib
import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

import onnxremat
from onnxremat.cli.budget_report import measured_text, where_text
from onnxremat.commands.budget import BudgetCheck, BudgetReport
from onnxremat.core.errors import LimitExceededError
from onnxremat.core.text import printable

SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
_RULES = (
    (
        "memory-budget",
        "The model takes more memory than its budget",
        "The measured figure is above the size given as --fail-above. `onnxremat audit MODEL` says "
        "what is held at the peak, `onnxremat rewrite MODEL --mem SIZE` writes a model that takes "
        "less, with the same results.",
    ),
    (
        "not-measured",
        "The model could not be measured",
        "The file is missing, is no valid model, needs sizes (--dim) or inputs (--inputs), or the "
        "runtime refuses it. Whether it keeps the budget is not known.",
    ),
)


def sarif_text(report: BudgetReport, folder: Path) -> str:
    """The report as a SARIF log, in ASCII. Files in `folder` or below have names relative to it."""
    return json.dumps(sarif(report, folder), indent=2) + "\n"


def sarif(report: BudgetReport, folder: Path) -> dict[str, Any]:
    """The same as data."""
    found = [(i, one) for i, one in enumerate(report.checks) if one.exceeded or one.error]
    run = {
        "tool": {
            "driver": {
                "name": "onnxremat",
                "version": onnxremat.__version__,
                "rules": [
                    {
                        "id": name,
                        "shortDescription": {"text": f"{short}."},
                        "fullDescription": {"text": long},
                        "help": {"text": long},
                        "defaultConfiguration": {"level": "error"},
                    }
                    for name, short, long in _RULES
                ],
            }
        },
        "invocations": [{"executionSuccessful": not report.failed, "exitCode": _exit_code(report)}],
        "artifacts": [
            {"location": _location(one.model, folder), "roles": ["analysisTarget"]}
            for one in report.checks
        ],
        "results": [_result(report, one, index, folder) for index, one in found],
        "columnKind": "unicodeCodePoints",
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def _result(report: BudgetReport, check: BudgetCheck, index: int, folder: Path) -> dict[str, Any]:
    rule = 1 if check.error else 0
    location: dict[str, Any] = {
        "physicalLocation": {
            "artifactLocation": _location(check.model, folder) | {"index": index},
            "region": {"startLine": 1},
        }
    }
    if check.peak is not None:
        name = printable(check.peak.op)
        location["logicalLocations"] = [{"name": name, "kind": "element"}]
    return {
        "ruleId": _RULES[rule][0],
        "ruleIndex": rule,
        "level": "error",
        "message": {"text": printable(_message(report, check))},
        "locations": [location],
        "partialFingerprints": {"onnxrematBudget/v1": _fingerprint(report, check, folder)},
        "properties": {
            "figure": report.figure,
            "measuredBytes": check.measured_bytes,
            "limitBytes": report.budget.limit_bytes,
            "seconds": round(check.seconds, 3),
        },
    }


def _message(report: BudgetReport, check: BudgetCheck) -> str:
    if check.error:
        return f"Not measured: {check.error}"
    where = where_text(check)
    more = f" {where[0].upper()}{where[1:]}." if where else ""
    return (
        f"The {report.figure} is {measured_text(check)}, above the budget of "
        f"{report.budget.limit_text}.{more}"
    )


def _exit_code(report: BudgetReport) -> int:
    if report.failed:
        return report.failed[0].exit_code
    return LimitExceededError.exit_code if report.exceeded else 0


def _location(model: Path, folder: Path) -> dict[str, Any]:
    """A URI: relative, for what lies in the folder or below; absolute otherwise."""
    path = Path(os.path.abspath(model))
    base = Path(os.path.abspath(folder))
    if not path.is_relative_to(base):
        return {"uri": path.as_uri()}
    return {"uri": quote(os.fsencode(path.relative_to(base).as_posix()))}


def _fingerprint(report: BudgetReport, check: BudgetCheck, folder: Path) -> str:
    """The same for the same model and figure, whatever it takes: by this hosts know what they have
    shown before."""
    told = f"{_location(check.model, folder)['uri']} {report.budget.mem_of} {bool(check.error)}"
    return hashlib.sha256(told.encode()).hexdigest()[:32]
