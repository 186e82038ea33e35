"""A hard cap on the arena: what counts, where a run ends, and that it is what was predicted."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from benchmarks.instruments.cap import (
    CAP_RECIPE,
    Regions,
    Stage,
    measure_arena,
    run_capped,
    smallest_cap,
)
from benchmarks.instruments.cap_prediction import one_region, predict_arena
from onnxremat.core.errors import ModelError, UsageError
from onnxremat.ort.emulation.arena import ArenaFullError, ArenaRequest, simulate
from onnxremat.ort.measuring.inputs import make_inputs
from onnxremat.ort.measuring.measure import in_memory
from onnxremat.ort.measuring.profile import profile_run
from onnxremat.ort.measuring.provable import provable_types
from onnxremat.ort.recipe import RECIPE, STOCK
from tests.ort.build import BOOL, FLOAT, SHAPE, TENSOR_BYTES, model, node, value

pytestmark = pytest.mark.slow

SQUARE = (256, 256)
SQUARE_BYTES = 4 * 256 * 256
RECIPE_1 = CAP_RECIPE.with_threads(1)


def with_weights() -> onnx.ModelProto:
    """One weight that is packed and one that is not."""
    nodes = [
        node("Add", ["x", "w"], ["a"]),
        node("MatMul", ["a", "p"], ["b"]),
        node("Add", ["a", "b"], ["y"]),
    ]
    weight = np.full(SQUARE, 0.01, np.float32)
    return model(nodes, [value("x", FLOAT, SQUARE)], ["y"], {"w": weight, "p": weight})


def unequal() -> onnx.ModelProto:
    """Sizes of 1, 2, 3, 4, 3 tensors: regions of their own cannot serve what comes later."""
    nodes = [node("Sin", ["x"], ["a1"])]
    for count in (2, 3, 4, 3):
        nodes.append(node("Concat", ["x"] * count, [f"c{len(nodes)}"], axis=2))
        nodes.append(node("ReduceMax", [nodes[-1].output[0]], [f"r{len(nodes)}"], keepdims=1))
    made = ["a1", *(n.output[0] for n in nodes if n.op_type == "ReduceMax")]
    nodes.append(node("Sum", made, ["y"]))
    return model(nodes, [value("x")], ["y"])


def test_packed_weights_count_and_others_and_inputs_do_not() -> None:
    found = measure_arena(
        in_memory(with_weights(), "."), make_inputs(with_weights()), RECIPE_1, runs=1
    )
    assert found.fits
    assert (found.failed_at, found.reason) == (None, "")
    assert found.reserved_bytes == SQUARE_BYTES
    assert found.arena_bytes == 4 * SQUARE_BYTES  # the packed weight, a, b, y


def test_where_a_run_ends() -> None:
    source, inputs = in_memory(with_weights(), "."), make_inputs(with_weights())
    enough = run_capped(source, inputs, RECIPE_1, 4 * SQUARE_BYTES)
    assert enough.fits
    scarce = run_capped(source, inputs, RECIPE_1, 4 * SQUARE_BYTES - 1)
    assert (scarce.fits, scarce.failed_at) == (False, Stage.RUN)
    assert "smaller than requested" in scarce.reason
    # The runtime itself would run without any limit here.
    below = run_capped(source, inputs, RECIPE_1, SQUARE_BYTES - 1)
    assert (below.fits, below.failed_at) == (False, Stage.LOADING)
    assert "packed weights" in below.reason


def test_loading_fails_where_a_filter_does_not_fit() -> None:
    transposed = node("ConvTranspose", ["x", "w"], ["y"], pads=[1] * 4)
    filters = np.ones((4, 4, 3, 3), np.float32)
    proto = model([transposed], [value("x")], ["y"], {"w": filters})
    found = run_capped(in_memory(proto, "."), make_inputs(proto), RECIPE_1, 256)
    assert found.failed_at is Stage.LOADING
    assert found.arena_bytes == 0


@pytest.mark.parametrize("regions", Regions)
def test_the_smallest_cap_is_as_predicted(regions: Regions) -> None:
    proto = unequal()
    source, inputs = in_memory(proto, "."), make_inputs(proto)
    profile = profile_run(proto, ".", inputs, RECIPE.with_threads(1), runs=1)
    types = provable_types(proto, ".", RECIPE_1, profile)
    predicted = predict_arena(proto, profile, RECIPE_1, types)
    expected = predicted.one_region_bytes if regions is Regions.ONE else predicted.peak_bytes
    found = smallest_cap(source, inputs, RECIPE_1, regions=regions, expected_bytes=expected)
    assert found == expected
    assert predicted.in_use_bytes <= predicted.one_region_bytes <= predicted.peak_bytes
    assert predicted.peak_bytes > predicted.one_region_bytes + TENSOR_BYTES
    assert predicted.loaded_bytes == 0


@pytest.mark.parametrize(("op", "tensors"), [("Where", 7), ("Sum", 6), ("Softmax", 5)])
def test_where_a_kernel_takes_its_output_decides_what_is_left(op: str, tensors: int) -> None:
    """Four tensors in one piece must fit beside `a`. If scratch came first, it lies below `a`."""
    inputs = [value("x"), value("c", BOOL)] if op == "Where" else [value("x")]
    read = {"Where": ["c", "x", "x"], "Sum": ["x", "x", "x"], "Softmax": ["x"]}[op]
    inner = {"axis": 1} if op == "Softmax" else {}
    nodes = [node(op, read, ["a"], **inner), node("Concat", ["a"] * 4, ["y"], axis=1)]
    proto = model(nodes, inputs, ["y"])
    source, given = in_memory(proto, "."), make_inputs(proto)
    profile = profile_run(proto, ".", given, RECIPE.with_threads(1), runs=1)
    types = provable_types(proto, ".", RECIPE_1, profile)
    expected = predict_arena(proto, profile, RECIPE_1, types).one_region_bytes
    found = smallest_cap(source, given, RECIPE_1, regions=Regions.ONE, expected_bytes=expected)
    assert found == expected
    assert found // TENSOR_BYTES == tensors


def test_bisection_finds_the_smallest_cap_from_a_wrong_guess() -> None:
    proto = model([node("Sin", ["x"], ["y"])], [value("x")], ["y"])
    source, inputs = in_memory(proto, "."), make_inputs(proto)
    for guess in (TENSOR_BYTES // 2, 2 * TENSOR_BYTES):
        found = smallest_cap(
            source, inputs, RECIPE_1, runs=1, tolerance_bytes=4096, expected_bytes=guess
        )
        assert TENSOR_BYTES <= found < TENSOR_BYTES + 4096
    assert int(np.prod(SHAPE)) * 4 == TENSOR_BYTES


def test_one_region_loses_less_than_regions_as_requested() -> None:
    requests = [
        ArenaRequest("a", 1024),
        ArenaRequest("b", 1024),
        ArenaRequest("a"),
        ArenaRequest("b"),
    ]
    requests += [ArenaRequest("c", 2048), ArenaRequest("c")]
    assert simulate(requests, one_region(2048)).reserved_bytes == 2048
    with pytest.raises(ArenaFullError):
        simulate(requests, one_region(1792))


def test_what_cannot_be_capped_is_an_error() -> None:
    proto = model([node("Sin", ["x"], ["y"])], [value("x")], ["y"])
    source, inputs = in_memory(proto, "."), make_inputs(proto)
    with pytest.raises(UsageError, match="arena"):
        run_capped(source, inputs, RECIPE, 1 << 20)
    with pytest.raises(UsageError, match="whole number"):
        run_capped(source, inputs, CAP_RECIPE, 0)
    with pytest.raises(UsageError, match="at least one"):
        run_capped(source, inputs, CAP_RECIPE, 1 << 20, runs=0)
    with pytest.raises(UsageError, match="tolerance"):
        smallest_cap(source, inputs, CAP_RECIPE, tolerance_bytes=0)
    wrong = model([node("Sin", ["nothing"], ["y"])], [value("x")], [value("y")])
    with pytest.raises(ModelError):
        run_capped(in_memory(wrong, "."), inputs, CAP_RECIPE, 1 << 30)


def test_only_a_file_that_runs_as_it_is_can_be_predicted() -> None:
    proto = model([node("Sin", ["x"], ["y"])], [value("x")], ["y"])
    profile = profile_run(proto, ".", make_inputs(proto), RECIPE, runs=1)
    for recipe in (STOCK, replace(CAP_RECIPE, mem_pattern=True)):
        with pytest.raises(UsageError, match="memory pattern"):
            predict_arena(proto, profile, recipe, {})
    with pytest.raises(UsageError, match="expands"):
        predict_arena(proto, replace(profile, expanded=(0,)), CAP_RECIPE, {})
