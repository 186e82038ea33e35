"""Inputs made from a seed and inputs loaded from a file."""

import os
import sys
import tracemalloc
from pathlib import Path
from zipfile import ZipFile

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxremat.core.errors import ModelError, UsageError
from onnxremat.ort.child.machine import memory_bytes
from onnxremat.ort.measuring import inputs
from onnxremat.ort.measuring.inputs import input_specs, load_inputs, make_inputs
from tests.ort.build import FLOAT, INT64, model, node, value

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


@pytest.mark.parametrize(
    ("kind", "shape", "declared"),
    [
        (FLOAT, (10**12, 16), False),
        (FLOAT, (1 << 40,), True),
        (INT64, (1 << 40,), True),
        (TensorProto.STRING, (1 << 34,), True),
        (FLOAT, ((1 << 63) - 1,), True),
        (FLOAT, (1 << 31,) * 3, True),
    ],
)
def test_no_more_is_made_than_there_is_memory_for(
    kind: int, shape: tuple[int, ...], declared: bool
) -> None:
    graph = model([], [value("x", kind, shape if declared else ["n", 16])], [])
    error = ModelError if declared else UsageError
    with pytest.raises(error, match=r"input 'x' of shape .* takes more memory than this machine"):
        make_inputs(graph, {"x": shape})


def test_inputs_together_are_no_more_than_there_is_memory_for() -> None:
    most = memory_bytes() // 6  # elements of four bytes: two thirds
    graph = model([], [value(name, FLOAT, [most]) for name in "ab"], [])
    with pytest.raises(ModelError, match="input 'b' of shape"):
        make_inputs(graph)


@pytest.mark.parametrize("kind", [FLOAT, INT64, TensorProto.BOOL, TensorProto.BFLOAT16, 14])
def test_values_made_in_parts_are_those_made_at_once(
    kind: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph, shapes = batched(kind), {"x": (41, 3)}
    whole = make_inputs(graph, shapes)["x"]
    monkeypatch.setattr(inputs, "_MADE_AT_ONCE", 7)
    parts = make_inputs(graph, shapes)["x"]
    assert len(np.unique(whole.astype(np.complex64))) > 1
    assert parts.dtype == whole.dtype
    assert parts.tobytes() == whole.tobytes()


def test_making_a_value_takes_little_beside_it() -> None:
    size = 1 << 24
    tracemalloc.start()
    make_inputs(model([], [value("x", FLOAT, [size])], []))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert 4 * size < peak < 6 * size


def test_more_dimensions_than_values_have() -> None:
    assert make_inputs(model([], [value("x", FLOAT, [1] * 64)], []))["x"].ndim == 64
    with pytest.raises(ModelError, match="input 'x' has 100 dimensions"):
        make_inputs(model([], [value("x", FLOAT, [1] * 100)], []))


def test_an_element_type_that_does_not_exist() -> None:
    with pytest.raises(ModelError, match="input 'x' is of type 99"):
        make_inputs(model([], [value("x", 99, [1])], []))


def damaged(path: Path, kind: str) -> None:
    """A file for `--inputs` that is none."""
    good = {"x": np.ones((2, 3), np.float32)}
    np.savez(path, **good)
    content = path.read_bytes()
    if kind == "pickled":
        np.savez(path, x=np.array([{}], object))
    elif kind == "truncated":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "flipped":
        at = content.index(b"NUMPY") + 20
        path.write_bytes(content[:at] + b"(((((" + content[at + 5 :])
    elif kind == "nested header":
        header = b"\x93NUMPY\x01\x00" + (9000).to_bytes(2, "little") + b"(" * 9000
        with ZipFile(path, "w") as archive:
            archive.writestr("x.npy", header)
    elif kind == "claims more":
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1099511627776,), }\n"
        with ZipFile(path, "w") as archive:
            archive.writestr(
                "x.npy", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
            )
    elif kind == "no array":
        with ZipFile(path, "w") as archive:
            archive.writestr("x", b"not an array")
    elif kind == "no ASCII":
        np.savez(path, x=np.array([b"\xff"]))


@pytest.mark.parametrize(
    "kind",
    ["pickled", "truncated", "flipped", "nested header", "claims more", "no array", "no ASCII"],
)
def test_damaged_files_of_inputs_are_one_line(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "inputs.npz"
    damaged(path, kind)
    text = kind == "no ASCII"
    graph = model([], [value("x", TensorProto.STRING, [1])], []) if text else batched()
    with pytest.raises(UsageError) as raised:
        load_inputs(path, graph)
    assert str(raised.value).isprintable()


def test_archives_that_unpack_to_more_than_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "inputs.npz"
    np.savez_compressed(path, x=np.zeros((1000, 3), np.float32))
    assert path.stat().st_size < 1000
    monkeypatch.setattr("onnxremat.ort.measuring.feeds.memory_bytes", lambda: 10_000)
    with pytest.raises(UsageError, match=r"unpacks to 12\.\d+ kB, and this machine has 10\.00 kB"):
        load_inputs(path, batched())


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other pipes and devices")
def test_what_may_never_end_is_no_file_of_inputs(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npz")
    for path in (tmp_path / "pipe.npz", Path("/dev/zero"), tmp_path):
        with pytest.raises(UsageError, match="it is no regular file"):
            load_inputs(path, batched())
    with pytest.raises(UsageError, match="cannot read inputs"):
        load_inputs(tmp_path / ("a" * 6000), batched())


def test_an_empty_array_that_numpy_cannot_make_is_refused() -> None:
    with pytest.raises(ModelError, match=r"input 'x' has shape .*: there is no such array"):
        make_inputs(model([], [value("x", FLOAT, [0, 2**63 - 1, 4])], []))
