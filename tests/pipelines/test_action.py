"""The GitHub Action: its steps, run by the shell that GitHub runs them with."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.commands.small_models import saved_perceptron
from tests.pipelines.checkout import ROOT, copied, offline_environment
from tests.pipelines.page import file_block

yaml = pytest.importorskip("yaml", reason="the package PyYAML is not there")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash"),
]

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: list[dict[str, Any]] = ACTION["runs"]["steps"]
SHELL = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail"]
"""How GitHub runs a step of `shell: bash`."""


def given(**inputs: str) -> dict[str, str]:
    """The inputs of a workflow, with defaults for the others."""
    assert inputs.keys() <= ACTION["inputs"].keys()
    found = {}
    for name, one in ACTION["inputs"].items():
        assert not one.get("required") or name in inputs, name
        found[name] = inputs.get(name, str(one.get("default", "")))
    return found


def shown_inputs() -> dict[str, str]:
    """What the page gives the action."""
    workflow = yaml.safe_load(file_block("GitHub Actions")[1])
    (job,) = workflow["jobs"].values()
    (step,) = (one for one in job["steps"] if "onnxremat" in one["uses"])
    shown: dict[str, str] = step["with"]
    return shown


def filled_in(text: str, inputs: dict[str, str]) -> str:
    filled = re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda found: inputs[found[1]], text)
    assert "${{" not in filled, text
    return filled


def run_step(
    name: str, folder: Path, inputs: dict[str, str], environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    (step,) = (one for one in STEPS if one.get("name") == name)
    assert step["shell"] == "bash"
    assert "${{" not in step["run"], "what a workflow gives is no text of the script"
    script = folder.parent / "script.sh"
    script.write_text(step["run"], encoding="utf-8")
    own = {key: filled_in(value, inputs) for key, value in step.get("env", {}).items()}
    files = {
        key: str(folder.parent / key.lower()) for key in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")
    }
    return subprocess.run(
        [*SHELL, str(script)], cwd=folder, env=environment | files | own, capture_output=True,
        text=True, check=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment after the step that installs the folder of the action."""
    action = copied(tmp_path_factory.mktemp("action") / "onnxremat")
    site = tmp_path_factory.mktemp("site")
    folder = tmp_path_factory.mktemp("install") / "workspace"
    folder.mkdir()
    environment = offline_environment(PIP_TARGET=str(site), GITHUB_ACTION_PATH=str(action))
    inputs = given(models="m.onnx", **{"fail-above": "1GB"})
    done = run_step("Install onnxremat", folder, inputs, environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (site / "onnxremat" / "__main__.py").is_file()
    environment["PYTHONPATH"] = f"{site}:{environment['PYTHONPATH']}"
    return environment


def test_models_of_patterns_are_measured_and_the_reports_are_there(
    installed: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "workspace"
    (folder / "models" / "deep down").mkdir(parents=True)
    saved_perceptron(folder / "models" / "one.onnx")
    saved_perceptron(folder / "models" / "deep down" / "two.onnx")
    inputs = given(**shown_inputs())
    inputs["options"] += " --dim n=64"
    done = run_step("Measure the models", folder, inputs, installed)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("within 64MB") == 2
    assert "within 64MB" in (tmp_path / "github_step_summary").read_text(encoding="utf-8")
    assert (tmp_path / "github_output").read_text(encoding="utf-8") == "written=true\n"
    log = json.loads((folder / inputs["sarif"]).read_text(encoding="utf-8"))
    assert len(log["runs"][0]["artifacts"]) == 2 and not log["runs"][0]["results"]
    inputs["fail-above"] = "1KB"
    done = run_step("Measure the models", folder, inputs, installed)
    assert done.returncode == 7
    assert "is above --fail-above 1KB" in done.stderr
    log = json.loads((folder / inputs["sarif"]).read_text(encoding="utf-8"))
    places = [
        one["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        for one in log["runs"][0]["results"]
    ]
    assert sorted(places) == ["models/deep%20down/two.onnx", "models/one.onnx"]
    assert ElementTree.parse(folder / inputs["junit"]).getroot().get("failures") == "2"


def test_a_pattern_without_a_file_and_a_bad_budget_end_the_step(
    installed: dict[str, str], tmp_path: Path
) -> None:
    folder = tmp_path / "workspace"
    folder.mkdir()
    done = run_step(
        "Measure the models", folder, given(models="*.onnx", **{"fail-above": "1GB"}), installed
    )
    assert (done.returncode, done.stdout) == (2, "::error::no file matches *.onnx\n")
    saved_perceptron(folder / "--json.onnx")
    for budget in ("much", "$(touch evil)"):
        inputs = given(models="*.onnx", **{"fail-above": budget})
        done = run_step("Measure the models", folder, inputs, installed)
        assert done.returncode == 2
        assert "is not a size" in done.stderr
    assert {path.name for path in folder.iterdir()} == {"--json.onnx"}
    assert not (tmp_path / "github_output").exists()


def test_what_comes_before_and_after_is_conditional() -> None:
    before, _, measure, after = STEPS
    assert before["uses"].startswith("actions/setup-python@")
    assert after["uses"].startswith("github/codeql-action/upload-sarif@")
    assert f"steps.{measure['id']}.outputs.written == 'true'" in after["if"]
    assert after["if"].startswith("always()"), "verdicts are shown where the budget is exceeded"
    for one in STEPS:
        for name in re.findall(r"inputs\.([\w-]+)", json.dumps(one)):
            assert name in ACTION["inputs"]
