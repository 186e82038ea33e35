"""What a session takes in all, and what it needs of one heap."""

import sys
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.ort.child.malloc import Malloc
from onnxremat.ort.child.process import ModelSource
from onnxremat.ort.measuring.inputs import make_inputs
from onnxremat.ort.measuring.measure import in_memory
from onnxremat.ort.measuring.session_memory import (
    HeapNeed,
    measure_one_heap,
    measure_opening,
    measure_session,
)
from onnxremat.ort.recipe import STOCK
from tests.ort.measuring.test_measure import MEGABYTES, ladder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memray is there for Linux"),
]


def test_one_heap_grows_by_the_most_that_is_held() -> None:
    """So many values, beside what opening takes; all lie in it one after the other."""

    def need(rungs: int) -> HeapNeed:
        held = ladder(rungs)
        found = measure_one_heap(in_memory(held, Path()), make_inputs(held), STOCK)
        assert found is not None
        assert found.held_bytes <= found.end_bytes
        return found

    eight, two = need(8), need(2)
    for name in ("held_bytes", "end_bytes"):
        grown = getattr(eight, name) - getattr(two, name)
        assert abs(grown - 2 * 6 * MEGABYTES) < MEGABYTES // 4


def test_a_block_that_finds_no_hole_lies_behind_all_else() -> None:
    need = HeapNeed(100, 90, 70)
    assert need.with_block(20) == need
    assert need.with_block(40) == HeapNeed(110, 90, 70)


def test_external_weights_lie_in_one_heap(tmp_path: Path) -> None:
    """They are mapped here, and nowhere there."""
    weight = np.random.default_rng(0).standard_normal((1024, 1024), dtype=np.float32)
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 1024]) for n in "xy")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    weights = [numpy_helper.from_array(weight, "w")]
    held = helper.make_model(
        helper.make_graph(nodes, "product", [x], [y], weights),
        opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
    )  # fmt: skip
    inputs = make_inputs(held)
    outside = tmp_path / "m.onnx"
    onnx.save(held, outside, save_as_external_data=True, location="m.data")
    inside = tmp_path / "inside.onnx"
    onnx.save(onnx.load(outside), inside)
    needs = [measure_one_heap(ModelSource(path=path), inputs, STOCK) for path in (outside, inside)]
    assert needs[0] is not None
    assert needs[1] is not None
    megabytes = [need.held_bytes / weight.nbytes for need in needs if need is not None]
    # As it is, and packed; the file beside both.
    assert megabytes == pytest.approx([2, 3], abs=0.6)


def test_one_heap_takes_time_that_is_limited() -> None:
    held = ladder(2)
    source = in_memory(held, Path())
    assert measure_one_heap(source, make_inputs(held), STOCK, seconds=0) is None


def test_all_that_is_measured_says_how_long_opening_took() -> None:
    model = ladder(2)
    began = time.perf_counter()
    found = measure_session(in_memory(model, Path()), make_inputs(model), STOCK, returning=True)
    passed = time.perf_counter() - began
    assert found.returning is not None
    assert found.load_seconds > 0
    assert found.returning.load_seconds > 0
    assert found.load_seconds + found.returning.load_seconds < passed


def test_of_two_models_it_is_told_which_opens_sooner() -> None:
    """What has a thousand nodes takes longer to open than what has one."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xy")

    def chain(length: int) -> onnx.ModelProto:
        names = ["x", *(f"v{number}" for number in range(1, length)), "y"]
        nodes = [helper.make_node("Sigmoid", [a], [b]) for a, b in pairwise(names)]
        return helper.make_model(
            helper.make_graph(nodes, "chain", [x], [y]),
            opset_imports=[helper.make_opsetid("", 17)], ir_version=8,
        )  # fmt: skip

    sources = [in_memory(chain(length), Path()) for length in (1000, 1)]
    long, short = measure_opening(sources, make_inputs(chain(1)), STOCK, openings=3)
    assert 0 < short < long


def test_each_malloc_says_something_else() -> None:
    assert len({frozenset(one.value.items()) for one in Malloc}) == len(Malloc)
