"""Predictions equal what ONNX Runtime takes: small models, every combination of settings."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxremat.core.errors import ModelError, UsageError
from onnxremat.ort.emulation.predict import predict
from onnxremat.ort.measuring.inputs import make_inputs
from onnxremat.ort.measuring.measure import in_memory, measure_activation, measure_resident
from onnxremat.ort.measuring.profile import profile_run
from onnxremat.ort.measuring.provable import ProvableType, provable_types
from onnxremat.ort.recipe import RECIPE, STOCK, ExecutionOrder, OptimizationLevel, Recipe
from tests.ort.build import FLOAT, INT64, model, node, value

pytestmark = pytest.mark.slow

pytest.importorskip("memray", reason="the heap is counted by memray")

UNOPTIMIZED = replace(STOCK, optimization=OptimizationLevel.NONE, threads=1)
FIXED = RECIPE.with_threads(1)
SIDE = 128
SLACK_BYTES = 12_000
"""Bookkeeping of a run may be off by this; the smallest tensor that counts has 64 KB."""


def pooled_model(seed: int, size: int) -> onnx.ModelProto:
    """Random: in-place ops, views, sizes that differ, pools of which only one output is read."""
    rng = random.Random(seed)
    nodes: list[onnx.NodeProto] = []
    names = ["x"]
    for i in range(size):
        a, b = rng.choice(names[-4:]), rng.choice(names)
        kind = rng.randrange(7)
        new = f"v{i}"
        if kind == 0:
            nodes.append(node("MaxPool", [a], [new, f"w{i}"], kernel_shape=[1, 1]))
            if rng.random() < 0.5:
                new = f"c{i}"
                nodes.append(node("Cast", [f"w{i}"], [new], to=FLOAT))
        elif kind == 1:
            nodes.append(node("Flatten", [a], [f"f{i}"], axis=3))
            nodes.append(node("Reshape", [f"f{i}", "shape"], [new]))
        elif kind == 2:
            nodes.append(node("Concat", [a, b], [f"d{i}"], axis=1))
            nodes.append(node("ReduceMax", [f"d{i}"], [new], axes=[1], keepdims=1))
        elif kind == 3:
            nodes.append(node("Add", [a, b], [new]))
        else:
            nodes.append(node(rng.choice(["Relu", "Abs", "Tanh"]), [a], [new]))
        names.append(new)
    nodes.append(node("Abs", [names[-1]], ["y"]))
    shape = [1, 1, SIDE, SIDE]
    return model(
        nodes,
        [value("x", FLOAT, shape)],
        [value("y", FLOAT, shape)],
        {"shape": np.array(shape, np.int64)},
        opset=13,
    )


@pytest.mark.parametrize("seed", range(2))
def test_heap_peaks_of_every_setting(seed: int, tmp_path: Path) -> None:
    graph = pooled_model(seed, 20 + 10 * seed)
    inputs = make_inputs(graph)
    profile = profile_run(graph, tmp_path, inputs, FIXED)
    types = provable_types(graph, tmp_path, FIXED, profile)
    for recipe in (
        FIXED,
        replace(FIXED, mem_reuse=True, mem_pattern=True),
        replace(FIXED, mem_pattern=True, execution_order=ExecutionOrder.DEFAULT),
        UNOPTIMIZED,
    ):
        predicted = predict(graph, profile, recipe, types)
        measured = measure_activation(in_memory(graph, tmp_path), inputs, recipe, runs=2)
        first, later = measured.run_peaks_bytes
        assert predicted.first.heap_bytes == pytest.approx(first, abs=SLACK_BYTES)
        if not recipe.cpu_arena:
            assert predicted.later.heap_bytes == pytest.approx(later, abs=SLACK_BYTES)


def test_a_training_graph(unet_train: Path) -> None:
    graph = onnx.load(unet_train)
    inputs = make_inputs(graph)
    profile = profile_run(graph, unet_train.parent, inputs, FIXED)
    types = provable_types(graph, unet_train.parent, FIXED, profile)
    heap = measure_activation(unet_train, inputs, FIXED, runs=2).peak_bytes
    assert predict(graph, profile, FIXED, types).heap_bytes == pytest.approx(heap, rel=0.005)
    stock = predict(graph, profile, UNOPTIMIZED, types)
    resident = measure_resident(unet_train, inputs, UNOPTIMIZED)
    off = 1_500_000
    assert stock.first.resident_bytes == pytest.approx(resident.first_bytes, abs=off)
    assert stock.later.resident_bytes == pytest.approx(resident.steady_bytes, abs=off)
    assert stock.first.resident_bytes < stock.later.resident_bytes
    assert stock.block_bytes <= stock.reserved_bytes


def test_what_is_held_adds_up_to_the_peak(tmp_path: Path) -> None:
    graph = pooled_model(1, 20)
    profile = profile_run(graph, tmp_path, make_inputs(graph), FIXED)
    found = predict(graph, profile, FIXED, {})
    held = sum(h.nbytes for h in found.first.held)
    node_at_peak = profile.nodes[found.order[found.first.peak_step]]
    assert held + node_at_peak.workspace_bytes == found.first.live_bytes
    assert [h.nbytes for h in found.first.held] == sorted(
        (h.nbytes for h in found.first.held), reverse=True
    )
    assert found.first.heap_bytes > found.first.live_bytes


def test_an_order_can_be_given(tmp_path: Path) -> None:
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("ReduceMax", ["a"], ["m"], axes=[3]),
        node("Exp", ["x"], ["b"]),
        node("ReduceMax", ["b"], ["n"], axes=[3]),
        node("Add", ["m", "n"], ["y"]),
    ]
    graph = model(nodes, [value("x", FLOAT, [1, 1, SIDE, SIDE])], ["y"], opset=13)
    profile = profile_run(graph, tmp_path, make_inputs(graph), FIXED)
    one = predict(graph, profile, FIXED, {}).first.live_bytes
    both = predict(graph, profile, FIXED, {}, order=[0, 2, 1, 3, 4]).first.live_bytes
    assert both == pytest.approx(2 * one, rel=0.02)


def test_constant_filters_of_a_transposed_convolution_are_in_the_arena_before(
    tmp_path: Path,
) -> None:
    graph = model(
        [node("ConvTranspose", ["x", "w"], ["y"])],
        [value("x", FLOAT, [1, 4, 8, 8])],
        [value("y", FLOAT, [1, 4, 10, 10])],
        {"w": np.ones((4, 4, 3, 3), np.float32)},
    )
    profile = profile_run(graph, tmp_path, make_inputs(graph), FIXED)
    found = predict(graph, profile, UNOPTIMIZED, {})
    assert found.reserved_bytes == 1 << 20
    measured = measure_activation(in_memory(graph, tmp_path), make_inputs(graph), UNOPTIMIZED)
    assert found.heap_bytes == pytest.approx(measured.peak_bytes, abs=SLACK_BYTES)


def test_what_cannot_be_predicted_is_an_error(tmp_path: Path) -> None:
    graph = model([node("HardSwish", ["x"], ["y"])], [value("x")], [value("y")])
    profile = profile_run(graph, tmp_path, make_inputs(graph), FIXED)
    with pytest.raises(UsageError, match="expands HardSwish"):
        predict(graph, profile, FIXED, {})
    with pytest.raises(UsageError, match="no optimization"):
        predict(graph, profile, STOCK, {})
    with pytest.raises(UsageError, match="not CUDAExecutionProvider"):
        predict(graph, profile, Recipe(provider="CUDAExecutionProvider"), {})


def test_the_runtime_tells_what_it_can_prove(tmp_path: Path) -> None:
    nodes = [
        node("Abs", ["x"], ["a"]),
        node("NonZero", ["a"], ["nz"]),
        node("Shape", ["nz"], ["s"]),
        node("ReduceSum", ["a"], ["scalar"], keepdims=0),
        node("SequenceConstruct", ["a"], ["seq"]),
        node("SequenceLength", ["seq"], ["len"]),
    ]
    outputs = ["s", "scalar", "len"]
    graph = model(nodes, [value("x", FLOAT, ["n", 8])], outputs)
    inputs = {"x": np.ones((3, 8), np.float32)}
    profile = profile_run(graph, tmp_path, inputs, FIXED)
    types = provable_types(graph, tmp_path, FIXED, profile)
    assert types["a"] == ProvableType("float", ("n", 8))
    assert types["nz"] == ProvableType("int64", (2, None))
    assert types["scalar"] == ProvableType("float", ())
    assert "seq" not in types
    bound = provable_types(graph, tmp_path, FIXED.with_dimensions({"n": 3}), profile)
    assert bound["a"] == ProvableType("float", (3, 8))


def test_a_model_that_the_runtime_refuses_is_named(tmp_path: Path) -> None:
    good = model([node("Abs", ["x"], ["y"])], [value("x", INT64, [2])], [value("y", INT64, [2])])
    profile = profile_run(good, tmp_path, make_inputs(good), FIXED)
    bad = model([node("NoSuchOp", ["x"], ["y"])], [value("x")], [value("y")])
    with pytest.raises(ModelError, match="refuses the model"):
        provable_types(bad, tmp_path, FIXED, profile)
