"""The program that measures whole processes, and what its table calls a failure."""

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from benchmarks.process import GROUPS, Row, group_rows, processes, unchanged

SIZE = 1024


def product(path: Path) -> Path:
    """A MatMul with 4 MB of weights."""
    weight = np.random.default_rng(0).standard_normal((SIZE, SIZE), dtype=np.float32)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, SIZE]) for n in "xy")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "product", [x], [y], [numpy_helper.from_array(weight, "w")],
    )  # fmt: skip
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="only Linux tells that")
def test_a_process_holds_its_weights_and_gives_the_same_bits_each_time(tmp_path: Path) -> None:
    model, inputs = product(tmp_path / "m.onnx"), tmp_path / "x.npz"
    np.savez(inputs, x=np.ones((1, SIZE), np.float32))
    again = shutil.copy(model, tmp_path / "again.onnx")
    both = processes([model, again], inputs, 2)
    for found in both:
        assert len(found.bits) == 1
        for nbytes in (found.unset_bytes, found.set_bytes, found.loaded_bytes):
            assert 4 * SIZE**2 < nbytes < 100e6
    assert both[0].bits == both[1].bits


def test_a_group_fails_by_its_mean() -> None:
    asked = GROUPS["training"].factor
    good, bad = (Row([], factor, 1.0, []) for factor in (2 * asked, asked / 4))
    verdicts = [
        next(group_rows({"training": rows}, portable=False))[-1]
        for rows in ([good], [good, bad], [good, bad, good])
    ]
    assert verdicts[0] == verdicts[2] == "holds"
    assert verdicts[1].endswith("FAILED")
    slow = Row([], 2 * asked, 1.5, [])
    assert "time" in next(group_rows({"training": [slow]}, portable=False))[-1]


def test_a_file_is_its_original_whatever_is_recorded_in_it(tmp_path: Path) -> None:
    original, made = product(tmp_path / "m.onnx"), tmp_path / "made.onnx"
    model = onnx.load(original)
    model.metadata_props.add(key="measured", value="1")
    onnx.save(model, made)
    assert unchanged(original, made)
    model.graph.node[0].name = "other"
    onnx.save(model, made)
    assert not unchanged(original, made)
    shutil.copy(original, made)
    (tmp_path / "made.onnx.data").write_bytes(b"weights")
    assert not unchanged(original, made)
