"""The pass for Microsoft Olive, run by the real package."""

import json
import os
import subprocess
import sys
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxremat.importer.external import data_files
from onnxremat.options import Options
from tests.commands.small_models import wide
from tests.pipelines.checkout import ROOT
from tests.pipelines.page import blocks, file_block

if find_spec("olive") is None:
    pytest.skip("the package olive-ai is not there", allow_module_level=True)
pytestmark = pytest.mark.slow

from olive.hardware import DEFAULT_CPU_ACCELERATOR, AcceleratorSpec  # noqa: E402
from olive.model import ONNXModelHandler  # noqa: E402

from onnxremat.integrations import olive as integration  # noqa: E402
from onnxremat.integrations.olive import NAME, OnnxrematRewrite  # noqa: E402

QUICK = {"threads": 1, "time_limit": 1, "measure_limit": 2, "max_slowdown": 4.0}


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Olive keeps a cache in the current folder, and tells Microsoft of each run."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OLIVE_DISABLE_TELEMETRY", "1")
    onnx.save(wide(), "model.onnx")


def made_pass(**config: Any) -> OnnxrematRewrite:
    generated = OnnxrematRewrite.generate_config(
        DEFAULT_CPU_ACCELERATOR, QUICK | config, disable_search=True
    )
    return OnnxrematRewrite(DEFAULT_CPU_ACCELERATOR, generated)


def computed(path: str | Path) -> bytes:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    x = np.random.default_rng(1).standard_normal((2048, 16)).astype("f")
    return bytes(ort.InferenceSession(path, options).run(None, {"x": x})[0].tobytes())


def test_parameters_are_the_options_of_a_rewrite_for_default_sessions() -> None:
    found = OnnxrematRewrite.default_config(DEFAULT_CPU_ACCELERATOR)
    default = Options()
    known = {one.name for one in fields(Options)}
    assert found.keys() - known == {"mem"}
    left_out = {"runtime", "session", "order", "optimize", "allow_ops", "costs", "run_memory"}
    assert known - found.keys() == left_out
    for name, one in found.items():
        assert one.description, name
        assert name == "mem" or one.default_value == getattr(default, name)


def test_a_model_goes_in_and_one_that_takes_less_comes_out(tmp_path: Path) -> None:
    model = ONNXModelHandler("model.onnx", model_attributes={"kept": 1})
    made = made_pass(mem="80%").run(model, str(tmp_path / "out"))
    assert isinstance(made, ONNXModelHandler)
    assert computed(made.model_path) == computed("model.onnx")
    told = made.model_attributes["onnxremat"]
    assert told["rewritten_bytes"] <= told["limit_bytes"] <= 0.8 * told["original_bytes"]
    assert told["identical"] is True and made.model_attributes["kept"] == 1
    assert Path(made.get_resource("model_path")).is_dir(), "the weights lie beside the file"
    assert made.inference_settings["session_options"] == {"intra_op_num_threads": 1}
    x = {"x": np.zeros((2048, 16), np.float32)}
    assert made.run_session(made.prepare_session(), x)[0].shape == (2048, 16)


def test_weights_in_other_files_are_kept(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    onnx.save(wide(), folder / "m.onnx", save_as_external_data=True, location="w", size_threshold=0)
    model = ONNXModelHandler(str(folder), onnx_file_name="m.onnx")
    made = made_pass(mem="80%", embed_weights=True).run(model, str(tmp_path / "out"))
    assert "w" in data_files(onnx.load(made.model_path, load_external_data=False))
    assert computed(made.model_path) == computed(folder / "m.onnx")


def test_what_cannot_be_used_is_told_to_olive(tmp_path: Path) -> None:
    from olive.exception import OlivePassError

    model = ONNXModelHandler("model.onnx")
    with pytest.raises(ValueError, match=f"{NAME}: --mem: 'much' is not a size"):
        made_pass(mem="much").run(model, str(tmp_path / "a"))
    with pytest.raises(OlivePassError, match=NAME):
        made_pass(mem="1KB", tiling=False).run(model, str(tmp_path / "b"))
    with pytest.raises(ValueError, match="no parameter 'time_limt'; 'time_limit' is nearest"):
        made_pass(time_limt=3)
    with pytest.raises(ValueError, match="no parameter 'memory'"):
        OnnxrematRewrite.get_config_params(DEFAULT_CPU_ACCELERATOR, {"memory": "4MB"})
    gpu = AcceleratorSpec("gpu", "CUDAExecutionProvider")
    assert not OnnxrematRewrite.validate_config(made_pass().config, gpu)
    assert OnnxrematRewrite.validate_config(made_pass().config, DEFAULT_CPU_ACCELERATOR)


def test_the_workflow_of_the_page(tmp_path: Path) -> None:
    name, text = file_block("Microsoft Olive")
    (tmp_path / name).write_text(text, encoding="utf-8")
    (commands,) = blocks("Microsoft Olive", "sh")
    done = subprocess.run(
        ["bash", "-e", "-c", commands],
        env=os.environ
        | {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'rewriters'}",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    (made,) = (tmp_path / "made").rglob("*.onnx")
    assert computed(made) == computed("model.onnx")
    assert Path(f"{made}.data").is_file()


def test_limits_of_a_list_are_searched() -> None:
    given = {"mem": ["80%", "90%"], "threads": 1}
    _, fixed, searched = OnnxrematRewrite.get_config_params(DEFAULT_CPU_ACCELERATOR, dict(given))
    assert fixed["threads"] == 1 and searched["mem"].get_support() == ["80%", "90%"]
    _, fixed, searched = OnnxrematRewrite.get_config_params(
        DEFAULT_CPU_ACCELERATOR, {"mem": "4MB"}, disable_search=True
    )
    assert fixed["mem"] == "4MB" and not searched


def test_the_package_configuration_has_the_passes_of_olive_too(tmp_path: Path) -> None:
    package = integration.write_package_config(tmp_path / "package.json")
    assert json.loads(package.read_text("utf-8"))["passes"].keys() > {NAME, "OnnxConversion"}
