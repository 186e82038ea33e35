"""Inputs made from a seed and inputs loaded from a file."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxremat.errors import ModelError, UsageError
from onnxremat.runtimes.inputs import bound_dimensions, input_specs, load_inputs, make_inputs
from tests.runtimes.build import FLOAT, INT64, model, node, value

ALL_TYPES = [
    "FLOAT", "DOUBLE", "FLOAT16", "BFLOAT16", "INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32",
    "INT64", "UINT64", "BOOL", "STRING", "COMPLEX64", "FLOAT8E4M3FN", "FLOAT8E5M2",
]  # fmt: skip


def batched(elem_type: int = FLOAT) -> onnx.ModelProto:
    return model([node("Identity", ["x"], ["y"])], [value("x", elem_type, ["batch", 3])], ["y"])


@pytest.mark.parametrize("label", ALL_TYPES)
def test_every_type_can_be_made(label: str) -> None:
    elem_type = TensorProto.DataType.Value(label)
    made = make_inputs(batched(elem_type), {"x": (50, 3)})["x"]
    assert made.shape == (50, 3)
    if label == "STRING":
        assert set(made.ravel()) == {"0", "1"}
        return
    assert made.dtype == helper.tensor_dtype_to_np_dtype(elem_type)
    if made.dtype.kind in "iub":
        assert set(made.ravel().tolist()) == {0, 1}
    else:
        assert 0.05 < np.abs(made.astype(np.complex128)).std() < 0.2


def test_the_seed_decides_and_inputs_do_not_depend_on_each_other() -> None:
    other = model(
        [node("Identity", ["x"], ["y"])],
        [value("first", FLOAT, [7]), value("x", FLOAT, [4, 3])],
        ["y"],
    )
    made = make_inputs(batched(), {"x": (4, 3)}, seed=1)["x"]
    assert np.array_equal(made, make_inputs(other, seed=1)["x"])
    assert not np.array_equal(made, make_inputs(other, seed=2)["x"])


def test_a_size_that_is_neither_given_nor_declared_is_refused() -> None:
    with pytest.raises(UsageError, match=r"the size of input 'x' is not known: \['batch', 3\]"):
        make_inputs(batched())


def test_initializers_that_are_also_inputs_are_not_asked_for() -> None:
    graph = model(
        [node("Add", ["x", "w"], ["y"])],
        [value("x", FLOAT, [2]), value("w", FLOAT, [2])],
        ["y"],
        {"w": np.ones(2, np.float32)},
    )
    graph.ir_version = 3
    assert [spec.name for spec in input_specs(graph)] == ["x"]
    assert list(make_inputs(graph)) == ["x"]


def test_inputs_that_cannot_be_fed_are_refused() -> None:
    sequence = helper.make_tensor_sequence_value_info("s", FLOAT, [2])
    graph = model([node("SequenceLength", ["s"], ["n"])], [sequence], ["n"])
    with pytest.raises(ModelError, match="input 's' is no tensor but has type: sequence"):
        make_inputs(graph)
    with pytest.raises(ModelError, match="input 'x' has no declared shape"):
        make_inputs(model([], [value("x", FLOAT, None)], []))
    with pytest.raises(ModelError, match="input 'x' is of type int4"):
        make_inputs(batched(TensorProto.INT4), {"x": (2, 3)})


def test_loaded_inputs_are_checked(tmp_path: Path) -> None:
    graph = model(
        [node("Identity", ["x"], ["y"])],
        [value("x", FLOAT, ["n", 3]), value("i", INT64, ["n"])],
        ["y"],
    )
    file = tmp_path / "inputs.npz"
    good = {"x": np.ones((2, 3), np.float32), "i": np.zeros(2, np.int64)}

    def loading(**arrays: object) -> dict[str, np.ndarray]:
        np.savez(file, **arrays)
        return load_inputs(file, graph)

    loaded = loading(**good)
    assert all(np.array_equal(loaded[name], good[name]) for name in good)
    assert bound_dimensions(graph, loaded) == {"n": 2}
    with pytest.raises(UsageError, match="no value for input 'i'"):
        loading(x=good["x"])
    with pytest.raises(UsageError, match="has 'z', but the model has no such input"):
        loading(**good, z=good["x"])
    with pytest.raises(UsageError, match="input 'x' must be float, but the file has float64"):
        loading(x=np.ones((2, 3)), i=good["i"])
    with pytest.raises(UsageError, match="input 'x', axis 1: the model says 3, its value has 4"):
        loading(x=np.ones((2, 4), np.float32), i=good["i"])
    with pytest.raises(UsageError, match="input 'i', axis 0: the model says 2, its value has 5"):
        loading(x=good["x"], i=np.zeros(5, np.int64))
    with pytest.raises(UsageError, match="has 2 dimensions, but its value has 1"):
        loading(x=np.ones(3, np.float32), i=good["i"])
    with pytest.raises(UsageError, match="the model says 7, its value has 2"):
        load_inputs(_saved(file, good), graph, {"n": 7})


def test_files_that_are_no_npz_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "inputs.npz"
    for content in (b"", b"text"):
        file.write_bytes(content)
        with pytest.raises(UsageError, match="cannot read inputs"):
            load_inputs(file, batched())
    with pytest.raises(UsageError, match="cannot read inputs"):
        load_inputs(tmp_path / "absent.npz", batched())


def test_bfloat16_may_be_stored_as_bits(tmp_path: Path) -> None:
    graph = batched(TensorProto.BFLOAT16)
    made = make_inputs(graph, {"x": (2, 3)})["x"]
    file = _saved(tmp_path / "inputs.npz", {"x": made.view(np.uint16)})
    loaded = load_inputs(file, graph)["x"]
    assert loaded.dtype == made.dtype
    assert np.array_equal(loaded.view(np.uint16), made.view(np.uint16))


def _saved(file: Path, arrays: dict[str, np.ndarray]) -> Path:
    np.savez(file, **arrays)  # type: ignore[arg-type]
    return file
