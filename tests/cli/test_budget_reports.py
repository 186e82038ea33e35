"""What is written of a memory budget for other tools: SARIF, JUnit, and the text for people."""

import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from jsonschema import Draft4Validator, Draft202012Validator

from onnxremat.cli.budget_report import budget_text
from onnxremat.cli.junit import junit_text
from onnxremat.cli.sarif import sarif, sarif_text
from onnxremat.commands.audit import HeldTensor, Peak
from onnxremat.commands.budget import BudgetCheck, BudgetReport, parse_budget

RULES = json.loads((Path(__file__).parent / "sarif_rules.json").read_text(encoding="utf-8"))
HELD = HeldTensor("value", 4_000_000, (1000, 1000), "float32", "before", None)
PEAK = Peak(5_000_000, 2, 7, "evil\n\x1b[31m <op> & 'co'", "Conv", 1_000_000, (HELD,))
BUDGET = parse_budget("4MB")
REPORT = BudgetReport(
    BUDGET,
    BUDGET.figure,
    (
        BudgetCheck(Path("small.onnx"), 3_000_000, False, 1.25),
        BudgetCheck(Path("folder/large model ü.onnx"), 5_000_000, True, 2.5, PEAK),
        BudgetCheck(Path("none.onnx"), None, False, 0.0, error="no such file: none.onnx", exit_code=2),
        BudgetCheck(Path("/elsewhere/planned.onnx"), 4_000_001, True, 0.5),
    ),
)  # fmt: skip


def results(log: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = log["runs"][0]["results"]
    return found


def uri(result: dict[str, Any]) -> str:
    found: str = result["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
    return found


def test_sarif_keeps_to_the_standard() -> None:
    log = json.loads(sarif_text(REPORT, Path()))
    Draft202012Validator.check_schema(RULES)
    assert not list(Draft202012Validator(RULES).iter_errors(log))
    (run,) = log["runs"]
    rules, artifacts = run["tool"]["driver"]["rules"], run["artifacts"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        place = result["locations"][0]["physicalLocation"]["artifactLocation"]
        assert artifacts[place["index"]]["location"]["uri"] == place["uri"]


@pytest.mark.skipif("SARIF_SCHEMA" not in os.environ, reason="SARIF_SCHEMA names no schema file")
def test_sarif_keeps_to_the_schema_of_its_authors() -> None:
    schema = json.loads(Path(os.environ["SARIF_SCHEMA"]).read_text(encoding="utf-8"))
    assert not list(Draft4Validator(schema).iter_errors(sarif(REPORT, Path())))


def test_a_log_that_breaks_a_rule_is_found_out() -> None:
    log = sarif(REPORT, Path())
    results(log)[0]["level"] = "fatal"
    results(log)[1]["locations"][0]["physicalLocation"]["region"] = {"startLine": 0}
    del log["runs"][0]["tool"]["driver"]["name"]
    assert len(list(Draft202012Validator(RULES).iter_errors(log))) == 3


def test_sarif_has_what_is_above_and_what_is_not_known() -> None:
    above, unknown, planned = results(sarif(REPORT, Path()))
    assert (above["ruleId"], unknown["ruleId"]) == ("memory-budget", "not-measured")
    told = above["message"]["text"]
    assert told.startswith("The resident peak with default session options is 5.00 MB, above")
    assert "step 3 of 7" in told and "1.00 MB workspace" in told and "\x1b" not in told
    assert above["properties"]["measuredBytes"] == 5_000_000
    assert uri(above) == "folder/large%20model%20%C3%BC.onnx"
    assert uri(planned) == "file:///elsewhere/planned.onnx"
    assert "no such file" in unknown["message"]["text"]
    assert sarif(REPORT, Path())["runs"][0]["invocations"][0] == {
        "executionSuccessful": False,
        "exitCode": 2,
    }


def test_a_finding_is_the_same_one_whatever_was_measured(tmp_path: Path) -> None:
    def of(nbytes: int, model: str) -> str:
        check = BudgetCheck(tmp_path / model, nbytes, True, 1.0)
        (found,) = results(sarif(BudgetReport(BUDGET, BUDGET.figure, (check,)), tmp_path))
        assert uri(found) == model
        mark: str = found["partialFingerprints"]["onnxrematBudget/v1"]
        return mark

    assert of(5_000_000, "a.onnx") == of(6_000_000, "a.onnx") != of(5_000_000, "b.onnx")


def test_junit_has_a_case_for_each_model() -> None:
    root = ElementTree.fromstring(junit_text(REPORT).encode())
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    for one in (root, suite):
        assert (one.get("tests"), one.get("failures"), one.get("errors")) == ("4", "2", "1")
        assert one.get("time") == "4.250"
    small, large, none, planned = suite
    assert [case.get("name") for case in suite] == [str(one.model) for one in REPORT.checks]
    assert [case.get("time") for case in suite] == ["1.250", "2.500", "0.000", "0.500"]
    assert small.findtext("system-out") == f"{BUDGET.figure}: 3.00 MB, within 4MB"
    message = large.find("failure").get("message")  # type: ignore[union-attr]
    assert message and "above 4MB: most at step 3 of 7, evil\\n\\x1b[31m <op>" in message
    assert none.find("error") is not None and none.find("failure") is None
    assert planned.find("failure") is not None


def test_the_text_has_a_line_for_each_model() -> None:
    header, *lines = budget_text(REPORT).splitlines()
    assert header.split() == ["model", "resident", "peak", "budget"]
    assert len(lines) == 4
    assert lines[0].endswith("3.00 MB        within 4MB")
    assert "\x1b" not in budget_text(REPORT)
