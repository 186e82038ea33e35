"""Models in memory instead of files: given, and got back."""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from onnx.external_data_helper import load_external_data_for_model

import onnxremat
from onnxremat.core.errors import ModelError, UsageError, VerificationError
from onnxremat.importer import load_given
from onnxremat.importer.external import data_files
from onnxremat.options import ModelOptions, Options
from onnxremat.ort.record import read_record
from onnxremat.subject import feed_for
from onnxremat.verification import require_expanded_alike
from tests.commands.small_models import perceptron, saved_perceptron, wide

pytestmark = pytest.mark.slow

QUICK = Options(
    threads=1, time_limit=0.1, measure_limit=0, tiling=False, recompute=False, verify=False
)
RECIPE = replace(QUICK, session="recipe")
ONE_THREAD = ModelOptions(threads=1, measure_limit=0)


def computed(model: onnx.ModelProto | Path) -> bytes:
    """The bits of a default session, of the bytes of a model or of its file."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    given = model.SerializeToString() if isinstance(model, onnx.ModelProto) else model
    session = ort.InferenceSession(given, options)
    rows, width = session.get_inputs()[0].shape
    x = np.random.default_rng(1).standard_normal((rows, width)).astype("f")
    return bytes(session.run(None, {"x": x})[0].tobytes())


def test_a_model_in_memory_comes_back_with_its_weights_inside() -> None:
    model = wide()
    before = model.SerializeToString()
    slim = onnxremat.rewrite(model, mem="80%", options=QUICK)
    assert slim.output is None and slim.data is None
    assert slim.rewritten.peak_bytes <= 0.8 * slim.original.peak_bytes
    assert not data_files(slim.model)
    assert slim.weights_inside.startswith("the model stays in memory")
    assert computed(slim.model) == computed(model)
    assert model.SerializeToString() == before
    record = read_record(slim.model)
    assert record is not None and record.original_sha256 == load_given(model).sha256


def test_weights_in_files_are_found_where_they_are_said_to_be(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(wide(64), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    model = onnx.load(path, load_external_data=False)
    with pytest.raises(UsageError, match=r"weights in other files \('w\.bin'\): name their folder"):
        onnxremat.rewrite(model, "100%", RECIPE)
    with pytest.raises(UsageError, match="there is no folder"):
        onnxremat.rewrite(model, "100%", RECIPE, base_dir=tmp_path / "none")
    with pytest.raises(ModelError, match="is missing"):
        onnxremat.rewrite(model, "100%", RECIPE, base_dir=tmp_path.parent)
    (tmp_path / "other").mkdir()
    output = tmp_path / "other" / "slim.onnx"
    slim = onnxremat.rewrite(model, "100%", RECIPE, output=output, base_dir=tmp_path)
    assert (output.parent / "w.bin").is_file()
    assert data_files(slim.model) == ("w.bin",)
    held = onnx.ModelProto()
    held.CopyFrom(slim.model)
    load_external_data_for_model(held, str(tmp_path))
    assert computed(held) == computed(path) == computed(output)
    checked = onnxremat.verify_files(path, slim.model, ONE_THREAD, base_dir=tmp_path)
    assert checked.identical and not checked.other_model


def test_an_audit_takes_a_model_in_memory() -> None:
    found = onnxremat.audit(wide(64), ONE_THREAD)
    assert found.model is None
    assert (found.peak.op, found.nodes) == ("mix", 4)


def test_a_folder_is_for_models_in_memory_only(tmp_path: Path) -> None:
    path = saved_perceptron(tmp_path / "m.onnx")
    for call in (onnxremat.rewrite, onnxremat.audit):
        given: Callable[..., object] = call
        mem = {"mem": "min"} if call is onnxremat.rewrite else {}
        with pytest.raises(UsageError, match="base_dir is for a model in memory"):
            given(path, **mem, base_dir=tmp_path)


def test_a_model_in_memory_has_no_place_for_packed_weights() -> None:
    with pytest.raises(UsageError, match="--no-portable puts weights into a file"):
        onnxremat.rewrite(perceptron(), "min", Options(portable=False, dims={"n": 64}))


def test_what_no_file_can_hold_is_said_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["onnxremat.importer.load"]
    monkeypatch.setattr(module, "LARGEST_FILE_BYTES", 1000)
    with pytest.raises(ModelError, match=r"more than 2 GB in memory.*save_as_external_data=True"):
        load_given(perceptron())


def test_functions_of_a_model_in_memory_are_compared_too() -> None:
    model = perceptron()
    body = helper.make_node("Neg", ["a"], ["b"])
    opset = helper.make_opsetid("", 17)
    model.functions.append(helper.make_function("own", "Turn", ["a"], ["b"], [body], [opset]))
    model.opset_import.append(helper.make_opsetid("own", 1))
    last = model.graph.output[0]
    model.graph.node.append(helper.make_node("Turn", [last.name], ["turned"], domain="own"))
    made = helper.make_tensor_value_info("turned", TensorProto.FLOAT, ["n", 64])
    model.graph.output[0].CopyFrom(made)
    loaded = load_given(model)
    assert loaded.inlined and loaded.given is model and loaded.label == "the model"
    feed = feed_for(loaded, ModelOptions(dims={"n": 4}))
    require_expanded_alike(feed)
    loaded.model.graph.node[-1].op_type = "Abs"
    with pytest.raises(VerificationError, match="with its functions expanded"):
        require_expanded_alike(feed)


@pytest.mark.parametrize("model", [b"bytes", 4])
def test_what_is_no_model_is_refused(model: object) -> None:
    with pytest.raises((UsageError, ModelError, TypeError)):
        onnxremat.rewrite(model, "min")  # type: ignore[arg-type]
