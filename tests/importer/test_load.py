import hashlib
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from onnxremat.core.errors import ModelError, UsageError
from onnxremat.importer import bind_dimensions, from_proto, import_model, infer_types, load
from onnxremat.importer.nodes import DEFAULT_DOMAINS
from onnxremat.ort.library import RUNTIME_ERRORS

from .build import model, node, value

RELU = model([node("Relu", ["x"], ["y"])])


def saved(folder: Path, proto: ModelProto) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(proto.SerializeToString())
    return path


def test_a_model_is_read_with_its_digest(tmp_path: Path) -> None:
    path = saved(tmp_path, RELU)
    loaded = load(path)
    assert loaded.model == RELU
    assert (loaded.path, loaded.base_dir) == (path, tmp_path)
    assert loaded.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert not loaded.resorted
    assert not loaded.inlined
    assert loaded.opset == 17
    assert load(str(path)).model == RELU


def test_paths_without_a_readable_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load(tmp_path / "absent.onnx")
    with pytest.raises(UsageError, match="directory"):
        load(tmp_path)
    below_a_file = saved(tmp_path, RELU) / "x.onnx"
    with pytest.raises(UsageError, match="cannot read"):
        load(below_a_file)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"this is not a model at all\n", "not an ONNX model"),
        (bytes(range(256)) * 8, "not an ONNX model"),
        (RELU.SerializeToString()[:-30], "not an? .*ONNX model|truncated"),
        (ModelProto(ir_version=8).SerializeToString(), "no graph"),
        (
            ModelProto(ir_version=8, graph=helper.make_graph([], "g", [], [])).SerializeToString(),
            "neither nodes nor outputs",
        ),
        (ModelProto(ir_version=8, graph=RELU.graph).SerializeToString(), "no operator set"),
    ],
)
def test_files_that_are_no_models(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=reason) as caught:
        load(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_every_truncation_is_an_error_or_a_smaller_model(tmp_path: Path) -> None:
    content = RELU.SerializeToString()
    path = tmp_path / "m.onnx"
    for length in range(len(content)):
        path.write_bytes(content[:length])
        with pytest.raises(ModelError):
            load(path)


def test_structural_errors_are_one_line() -> None:
    cases = {
        "made by nothing": model([node("Relu", ["x"], ["z"])]),
        "two graph inputs are named 'x'": model(
            [node("Relu", ["x"], ["y"])], inputs=[value("x"), value("x")]
        ),
        r"node 0 \(Conv\) has 1 inputs; it takes 2 to 3": model([node("Conv", ["x"], ["y"])]),
        r"Relu 'r'\) has 2 outputs; it takes 1 to 1": model(
            [node("Relu", ["x"], ["y", "z"], name="r")]
        ),
        "no op type": model([node("", ["x"], ["y"])]),
        "cycle": model([node("Add", ["x", "y"], ["y"])]),
    }
    for reason, proto in cases.items():
        with pytest.raises(ModelError, match=reason) as caught:
            from_proto(proto)
        assert "\n" not in str(caught.value)


def test_unsorted_nodes_are_sorted_in_a_copy(tmp_path: Path) -> None:
    proto = model([node("Neg", ["a"], ["y"]), node("Relu", ["x"], ["a"])])
    before = proto.SerializeToString()
    loaded = from_proto(proto)
    assert loaded.resorted
    assert [n.op_type for n in loaded.model.graph.node] == ["Relu", "Neg"]
    assert proto.SerializeToString() == before
    assert load(saved(tmp_path, proto)).resorted


def test_unknown_ops_and_domains_are_left_to_the_runtime() -> None:
    from_proto(model([node("MaxPoolGrad", ["x"], ["y"])]))
    from_proto(model([node("Anything", ["x"], ["y"], domain="org.example")]))


def external(location: str, name: str, shape: tuple[int, ...], data_type: int) -> TensorProto:
    tensor = TensorProto(name=name, dims=shape, data_type=data_type)
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return tensor


def test_external_data_over_2_gib_is_not_read(tmp_path: Path) -> None:
    rows = 3 * 2**30 // 4 // 1024
    proto = model([node("MatMul", ["x", "w"], ["y"])], inputs=[value("x", [2, rows])])
    proto.graph.initializer.append(external("w.bin", "w", (rows, 1024), TensorProto.FLOAT))
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(3 * 2**30)  # sparse: no disk is used
    loaded = load(saved(tmp_path, proto))
    types = infer_types(loaded, bind_dimensions(loaded, {}))
    result = import_model(loaded, types)
    assert types["y"].shape == (2, 1024)
    assert result.graph.tensors[result.tensor_of["w"]].nbytes == 3 * 2**30
    assert loaded.model == proto


def test_a_missing_data_file_is_named(tmp_path: Path) -> None:
    proto = model([node("Add", ["x", "w"], ["y"])])
    proto.graph.initializer.append(external("gone.bin", "w", (4,), TensorProto.FLOAT))
    with pytest.raises(ModelError, match=r"data of 'w' is missing: no file 'gone.bin'"):
        load(saved(tmp_path, proto))


def test_small_external_integers_serve_shape_inference(tmp_path: Path) -> None:
    proto = model([node("Reshape", ["x", "s"], ["y"])])
    (tmp_path / "s.bin").write_bytes(np.array([2, 2], np.int64).tobytes())
    proto.graph.initializer.append(external("s.bin", "s", (2,), TensorProto.INT64))
    loaded = load(saved(tmp_path, proto))
    assert infer_types(loaded, bind_dimensions(loaded, {}))["y"].shape == (2, 2)
    (tmp_path / "s.bin").write_bytes(b"\0")
    with pytest.raises(ModelError, match="data of 's' cannot be read"):
        infer_types(loaded, bind_dimensions(loaded, {}))


def test_model_local_functions_are_expanded() -> None:
    proto = model([node("Twice", ["x"], ["y"], domain="local")], domains=["local"])
    body = [node("Neg", ["a"], ["t"]), node("Neg", ["t"], ["b"])]
    proto.functions.append(
        helper.make_function("local", "Twice", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    )
    before = proto.SerializeToString()
    loaded = from_proto(proto)
    assert loaded.inlined
    assert [n.op_type for n in loaded.model.graph.node] == ["Neg", "Neg"]
    assert not loaded.model.functions
    assert proto.SerializeToString() == before


def function_of(domain: str, op_type: str, opset: int = 17) -> onnx.ModelProto:
    """A node of an op that a local function is named after, which computes something else."""
    proto = model([node(op_type, ["x"], ["y"], domain=domain)])
    if domain not in DEFAULT_DOMAINS:
        proto.opset_import.append(helper.make_opsetid(domain, 1))
    body = [node("Neg", ["a"], ["b"])]
    opsets = [helper.make_opsetid("", opset)]
    proto.functions.append(helper.make_function(domain, op_type, ["a"], ["b"], body, opsets))
    return proto


@pytest.mark.parametrize("domain", ["", "ai.onnx"])
def test_functions_that_the_runtime_does_not_look_at_are_not_expanded(domain: str) -> None:
    """It runs the operator that it has, and knows none where it has none."""
    proto = function_of(domain, "Relu")
    loaded = from_proto(proto)
    assert [n.op_type for n in loaded.model.graph.node] == ["Relu"]
    assert not loaded.model.functions
    feed = {"x": np.asarray([-1.0, 2.0, 3.0, -4.0], np.float32)}
    proto.ir_version = loaded.model.ir_version
    for one in (proto, loaded.model):
        session = ort.InferenceSession(one.SerializeToString(), providers=["CPUExecutionProvider"])
        assert np.array_equal(session.run(None, feed)[0], np.maximum(feed["x"], 0))
    unknown = from_proto(function_of(domain, "Twice")).model
    for one in (function_of(domain, "Twice"), unknown):
        with pytest.raises(RUNTIME_ERRORS):
            ort.InferenceSession(one.SerializeToString(), providers=["CPUExecutionProvider"])


def test_functions_in_a_domain_of_the_runtime_are_refused() -> None:
    with pytest.raises(ModelError, match=r"'Gelu' is in the domain 'com\.microsoft', where"):
        from_proto(function_of("com.microsoft", "Gelu"))


def test_loading_changes_nothing_in_a_file_with_unusual_parts(tmp_path: Path) -> None:
    proto = model([node("Relu", ["x"], ["y"])])
    proto.metadata_props.add(key="k", value="v")
    proto.graph.doc_string = "kept"
    proto.graph.initializer.append(numpy_helper.from_array(np.ones(3, np.float32), "unread"))
    onnx.save(proto, tmp_path / "m.onnx")
    assert load(tmp_path / "m.onnx").model == proto
