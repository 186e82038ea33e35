"""What the page of an audit is made of, on a real model: sessions, process, levers, no names."""

from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper
from typer.testing import CliRunner

from models import BUILDERS
from onnxremat.cli.app import app
from onnxremat.cli.pages.shell import page_data
from onnxremat.commands import audit as audit_module
from onnxremat.commands import inspection as inspection_module
from onnxremat.commands.inspection import ACTIVATIONS, PROCESS, Inspection, inspect
from onnxremat.core.errors import UsageError
from onnxremat.options import ModelOptions

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def little_planning() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(audit_module, "_SECONDS", 0.3)
        patch.setattr(inspection_module, "_PLANNING_SECONDS", 0.3)
        yield


@pytest.fixture(scope="module")
def found(unet: Path) -> Inspection:
    return inspect(unet, ModelOptions(threads=1), second=unet)


def test_both_sessions_are_there_step_by_step(found: Inspection) -> None:
    default, recipe = found.first.timelines
    assert (default.session, recipe.session) == ("default options", "as written")
    assert recipe.peak_bytes == found.audit.peak.nbytes
    assert recipe.peak_step == found.audit.peak.step
    assert recipe.times_measured and default.times_measured
    assert default.peak_bytes > 0 and default.weight_bytes > 0
    for timeline in found.first.timelines:
        for number, step in enumerate(timeline.steps):
            for i in step.reads:
                assert timeline.values[i].start < number < timeline.values[i].end + 1
            for i in step.makes:
                assert timeline.values[i].maker == number
    assert any(value.kept for value in default.values)


def test_the_process_is_measured_from_before_it_opens_the_model(found: Inspection) -> None:
    process = found.first.process
    assert process.before_bytes > 5e6
    assert process.opening_bytes >= process.loaded_bytes > 0
    assert process.returning is not None
    assert found.audit.sessions[0].process_bytes == process.grown_bytes, "measured once"
    assert found.second is not None
    assert len(found.second.timelines) == 2


def test_each_lever_says_of_what_it_is_and_whether_it_was_measured(found: Inspection) -> None:
    of = {lever.figure: [] for lever in found.levers}
    for lever in found.levers:
        of[lever.figure].append(lever)
        assert lever.after_bytes is None or lever.after_bytes >= 0
        assert lever.after_bytes is not None or lever.reason
    assert all(lever.measured for lever in of[PROCESS])
    assert len(of[PROCESS]) == 4
    assert not any(lever.measured for lever in of[ACTIVATIONS])
    for lever in of[ACTIVATIONS]:
        assert lever.after_bytes is None or lever.after_bytes <= lever.before_bytes


def test_another_model_with_other_inputs_is_refused(unet: Path, tmp_path: Path) -> None:
    kind = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in ("a", "b")]
    graph = helper.make_graph([helper.make_node("Exp", ["a"], ["b"])], "g", kind[:1], kind[1:])
    other = tmp_path / "other.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), other)
    with pytest.raises(UsageError, match=r"--with: .* has other inputs"):
        inspect(unet, second=other)


def test_the_command_writes_a_page_without_a_name_of_the_model(tmp_path: Path) -> None:
    model = BUILDERS["unet"](size=16, levels=2, base=8)
    path, page = tmp_path / "owner.onnx", tmp_path / "a.html"
    onnx.save(model, path)
    words = ["audit", str(path), "--threads", "1", "--html", str(page), "--anonymous"]
    ended = CliRunner().invoke(app, words)
    assert ended.exit_code == 0, ended.output
    text = page.read_text(encoding="utf-8")
    data = page_data(text)
    names = {name for node in model.graph.node for name in (node.name, *node.output) if name}
    told = {*data["names"], *data["models"][0]["file"].split("\n")}
    for session in data["models"][0]["sessions"]:
        for stack in session["stacks"].values():
            told.update(stack["labels"])
    assert not told & names
    words_shown = text.partition("<script")[0]
    assert "owner" not in text and not [n for n in names if "/" in n and n in words_shown]
