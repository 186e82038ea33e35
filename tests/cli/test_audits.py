"""`audit` of several models of which some are none."""

import json
from pathlib import Path

import onnx
import pytest
from jsonschema import Draft202012Validator
from onnx import helper
from typer.testing import CliRunner

from onnxremat.cli import app as command_line
from onnxremat.cli.schemas import schema_text
from onnxremat.core.errors import ModelError, UsageError
from tests.commands.test_rewrite import diamond

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """One that is no model, one without its data, a good one, one that no runtime runs, and one
    that is not there."""
    folder = tmp_path_factory.mktemp("models")
    good = diamond(folder / "good.onnx")
    (folder / "text.onnx").write_text("text")
    model = onnx.load(good)
    model.graph.initializer.append(helper.make_tensor("w", onnx.TensorProto.FLOAT, [4], [0.0] * 4))
    onnx.save(model, folder / "bare.onnx", save_as_external_data=True, location="w",
              size_threshold=0)  # fmt: skip
    (folder / "w").unlink()
    foreign = onnx.load(good)
    foreign.graph.node[0].op_type, foreign.graph.node[0].domain = "Unheard", "of.nobody"
    foreign.opset_import.append(helper.make_opsetid("of.nobody", 1))
    onnx.save(foreign, folder / "foreign.onnx")
    names = ("text", "bare", "good", "foreign", "none")
    return [folder / f"{name}.onnx" for name in names]


def test_a_model_that_is_none_hides_no_other(models: list[Path]) -> None:
    given = [*map(str, models), "--threads", "1", "--measure-limit", "1"]
    done = CliRunner().invoke(command_line.app, ["audit", *given, "--json"])
    assert done.exit_code == ModelError.exit_code
    told = json.loads(done.stdout)
    Draft202012Validator(json.loads(schema_text("audits"))).validate(told)
    text, bare, good, foreign, absent = map(str, models)
    assert [one["model"] for one in told["audits"]] == [good]
    codes = {one["model"]: one["exit_code"] for one in told["failed"]}
    assert codes == {
        **dict.fromkeys((text, bare, foreign), ModelError.exit_code),
        absent: UsageError.exit_code,
    }
    lines = done.stderr.splitlines()
    assert lines == [f"onnxremat: {one['error']}" for one in told["failed"]]
    assert all(name in line for name, line in zip(codes, lines, strict=True))


def test_where_none_is_a_model_there_are_lines_alone(models: list[Path]) -> None:
    done = CliRunner().invoke(command_line.app, ["audit", str(models[-1]), str(models[0])])
    assert (done.exit_code, done.stdout) == (UsageError.exit_code, "")
    assert len(done.stderr.splitlines()) == 2
