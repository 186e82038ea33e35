"""Weights in a file beside the model, and files for processors with blocks of one width."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from models import BUILDERS
from onnxremat.core.errors import ModelError
from onnxremat.importer.calls import all_graphs
from onnxremat.importer.external import all_external_tensors, data_files
from onnxremat.importer.nodes import LAYOUT_DOMAIN
from onnxremat.ort.child.process import ModelSource
from onnxremat.ort.measuring.compare import different_names
from onnxremat.ort.measuring.inputs import make_inputs
from onnxremat.ort.measuring.measure import in_memory, run_outputs
from onnxremat.ort.outside import (
    DATA_FILE,
    ModelPair,
    Weights,
    name_data,
    optimized_outside,
    with_weights_outside,
)
from onnxremat.ort.recipe import STOCK, OptimizationLevel
from onnxremat.ort.session_kernels import other_kernels, session_kernels
from onnxremat_rewriters.stock import largest_first, planned_graph, stock
from onnxremat_rewriters.stock.build import with_weights_in_function
from onnxremat_rewriters.stock.optimized import in_plan_order
from tests.rewriters.tile.nets import Net

ONE_THREAD = STOCK.with_threads(1)


def convolutions() -> onnx.ModelProto:
    """Two convolutions that the runtime lays out in blocks, and a product that it packs."""
    net = Net()
    x = net.conv(net.input("x", 1, 3, 16, 16), 3, 32, 3)
    x = net.add("GlobalAveragePool", net.conv(net.add("Relu", x), 32, 32, 3))
    x = net.add("Flatten", x)
    return net.model(net.add("MatMul", x, net.weight(32, 64)))


def outside(model: onnx.ModelProto, weights: Weights) -> ModelPair:
    made = with_weights_outside(model, Path.cwd(), ONE_THREAD, weights)
    assert made is not None
    return made


@pytest.mark.parametrize("weights", [Weights.EXTERNAL, Weights.PACKED])
def test_the_bits_of_a_default_session_with_all_weights_in_one_file(weights: Weights) -> None:
    model = convolutions()
    inputs = make_inputs(model)
    made = outside(model, weights)
    assert data_files(made.model) == (DATA_FILE,)
    assert made.data.path.is_file()
    expected = run_outputs(in_memory(model, "."), inputs, ONE_THREAD)
    assert not different_names(expected, run_outputs(made.source(), inputs, ONE_THREAD))


def test_the_pair_may_be_renamed_together(tmp_path: Path) -> None:
    model = convolutions()
    inputs = make_inputs(model)
    made = outside(model, Weights.EXTERNAL)
    named = onnx.ModelProto()
    named.CopyFrom(made.model)
    name_data(named, "other.onnx.data")
    (tmp_path / "other.onnx.data").write_bytes(made.data.path.read_bytes())
    onnx.save(named, tmp_path / "other.onnx")
    source = ModelSource(path=tmp_path / "other.onnx")
    expected = run_outputs(in_memory(model, "."), inputs, ONE_THREAD)
    assert not different_names(expected, run_outputs(source, inputs, ONE_THREAD))


def pools() -> onnx.ModelProto:
    """Pools that the runtime lays out in blocks, without a weight there, and a product."""
    net = Net()
    x = net.add("MaxPool", net.input("x", 1, 32, 16, 16), kernel_shape=[3, 3], pads=[1] * 4)
    x = net.add("MaxPool", x, kernel_shape=[2, 2], strides=[2, 2])
    return net.model(net.add("MatMul", x, net.weight(8, 64)))


def expecting_narrow_blocks(made: ModelPair) -> ModelPair:
    """As if the file came from a processor with blocks of half the width."""
    width = made.optimized_for.layout_width
    if width is None:
        pytest.skip("this processor has no blocked layout")
    (expected,) = (t for t in made.model.graph.initializer if t.name.endswith("guard_expected"))
    picture = np.sort(numpy_helper.to_array(expected)).reshape(width, 2)
    halves = (picture[: width // 2], picture[width // 2 :])
    narrow = np.concatenate([part.T.ravel() for part in halves])
    expected.CopyFrom(numpy_helper.from_array(narrow, expected.name))
    return made


def test_a_file_in_blocks_of_another_width_is_refused_by_the_runtime() -> None:
    model = convolutions()
    made = expecting_narrow_blocks(outside(model, Weights.PACKED))
    with pytest.raises(ModelError, match="this file is for processors with blocks of"):
        run_outputs(made.source(), make_inputs(model), ONE_THREAD)


@pytest.mark.slow
def test_where_no_weight_is_in_blocks_the_branch_is_checked() -> None:
    model = pools()
    inputs = make_inputs(model)
    made = optimized_outside(model, Path.cwd(), ONE_THREAD, Weights.PACKED)
    if made.optimized_for.layout_width is None:
        pytest.skip("this runtime lays no pools out in blocks")
    wrapped = made.guarded(stock(in_plan_order(made.model, model)).model)
    assert any(n.domain == LAYOUT_DOMAIN for g in all_graphs(wrapped.model.graph) for n in g.node)
    expected = run_outputs(in_memory(model, "."), inputs, ONE_THREAD)
    assert not different_names(expected, run_outputs(wrapped.source(), inputs, ONE_THREAD))
    with pytest.raises(ModelError, match="this file is for processors with blocks of"):
        run_outputs(expecting_narrow_blocks(wrapped).source(), inputs, ONE_THREAD)
    # Without a branch there is nothing to be checked: no blocks then.
    plain = outside(model, Weights.PACKED)
    assert not any(node.domain == LAYOUT_DOMAIN for node in plain.model.graph.node)


def test_portable_files_have_no_blocks() -> None:
    made = outside(convolutions(), Weights.EXTERNAL)
    assert made.optimized_for.layout_width is None
    assert not any(node.domain.endswith("nchwc") for node in made.model.graph.node)


def test_additions_are_fused_alike_where_there_are_no_blocks() -> None:
    """The runtime adds into the first convolution that it comes to: where a shortcut has one, too,
    the order of the nodes in the file decides."""
    model = BUILDERS["resnet"](depth=18, size=32, classes=10)
    plain = replace(ONE_THREAD, blocks=False)
    inputs = make_inputs(model)
    made = outside(model, Weights.EXTERNAL)
    sources = (in_memory(model, "."), made.source())
    kernels = [session_kernels(one, plain, OptimizationLevel.ALL) for one in sources]
    assert any(one.inputs == 4 for found in kernels[0].values() for one in found)
    assert not any(one.domain == LAYOUT_DOMAIN for found in kernels[0].values() for one in found)
    assert other_kernels(*kernels) == ""
    assert not different_names(*(run_outputs(one, inputs, plain) for one in sources))


@pytest.mark.parametrize("ir_version", [3, 8])
def test_no_weight_of_a_branch_lies_in_a_file(ir_version: int) -> None:
    """WebAssembly does not find one there; convolutions need theirs in the branch all the same."""
    model = convolutions()
    model.ir_version = ir_version
    if ir_version < 4:
        for tensor in model.graph.initializer:
            kind = onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            model.graph.input.append(kind)
    inputs = make_inputs(model)
    made = outside(stock(model, hide=False, chain=False).model, Weights.EXTERNAL)
    branch = planned_graph(made.model)
    assert any(t.data_location == onnx.TensorProto.EXTERNAL for t in branch.initializer)
    before = {tensor.name for tensor in all_external_tensors(made.model)}
    with_weights_in_function(made.model)
    branch = planned_graph(made.model)
    assert not any(t.data_location == onnx.TensorProto.EXTERNAL for t in branch.initializer)
    assert {tensor.name for tensor in all_external_tensors(made.model)} == before
    sources = (in_memory(model, "."), made.source())
    first, second = (run_outputs(one, inputs, ONE_THREAD) for one in sources)
    assert not different_names(first, second)
    kernels = [session_kernels(one, ONE_THREAD, OptimizationLevel.ALL) for one in sources]
    assert any(one.domain == LAYOUT_DOMAIN for found in kernels[0].values() for one in found)
    assert other_kernels(*kernels) == ""


def growing(channels: list[int]) -> onnx.ModelProto:
    """Convolutions whose weights grow from one to the next, two of them of the input."""
    net = Net()
    image = net.input("x", 1, channels[0], 6, 6)
    x = net.conv(net.conv(image, channels[0], channels[0], 1), channels[0], channels[0], 3)
    x = net.add("Mul", x, net.conv(image, channels[0], channels[0], 1))
    for before, after in pairwise(channels):
        x = net.add("Relu", net.conv(x, before, after, 3))
    return net.model(net.add("GlobalAveragePool", x))


@pytest.mark.parametrize("opset", [11, 17])
@pytest.mark.parametrize("hide", [True, False])
def test_large_weights_are_laid_out_first(
    opset: int, hide: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By convolutions that compute nothing, before all others; nothing else changes."""
    monkeypatch.setattr(largest_first, "LARGE_BYTES", 4 * 64 * 32 * 9)
    model = growing([32, 64, 128])
    model.opset_import[0].version = opset
    inputs = make_inputs(model)
    stated = stock(model, hide=hide, chain=hide, local_weights=True, stated=True)
    pairs = [outside(stated.model, Weights.EXTERNAL) for _ in range(2)]
    for by_size, pair in zip((False, True), pairs, strict=True):
        with_weights_in_function(pair.model, by_size=by_size)
    plain, sorted_ = (planned_graph(pair.model).node for pair in pairs)
    early = [n for n in sorted_ if n.op_type == "Conv" and n.output[0].startswith("stock__")]
    assert not any(n.op_type == "Conv" and n.output[0].startswith("stock__") for n in plain)
    dims = {
        name: node.attribute[0].t.dims
        for function in pairs[1].model.functions
        for name, node in zip(sorted_[0].output, function.node, strict=True)
    }
    assert [dims[node.input[1]][:2] for node in early] == [[128, 64], [64, 32]]
    order = [n.output[0] for n in sorted_]
    convolves = {"Conv", "FusedConv"}
    convolutions = {n.output[0] for n in plain if n.op_type in convolves}
    behind = [n for n in sorted_ if n.op_type in convolves and "behind" in n.input[0]]
    assert len(behind) == 2
    assert min(map(order.index, convolutions)) > max(order.index(n.output[0]) for n in early)
    source = in_memory(model, ".")
    for recipe in (ONE_THREAD, replace(ONE_THREAD, blocks=False)):
        expected = run_outputs(source, inputs, recipe)
        assert not different_names(expected, run_outputs(pairs[1].source(), inputs, recipe))
        kernels = [
            session_kernels(one, recipe, OptimizationLevel.ALL)
            for one in (source, pairs[1].source())
        ]
        assert other_kernels(*kernels) == ""


@pytest.mark.parametrize(
    ("shape", "weight", "attributes"),
    [
        ((1, 16, 40), (32, 16, 5), {"pads": [2, 2]}),
        ((1, 16, 40), (32, 16, 5), {"dilations": [3], "strides": [2]}),
        ((2, 256, 9, 7), (256, 1, 3, 3), {"group": 256, "pads": [1] * 4}),
        ((1, 32, 9, 7), (64, 16, 3, 3), {"group": 2, "auto_pad": "SAME_UPPER"}),
        ((1, 32, 9, 7), (64, 32, 3, 2), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}),
        ((1, 64, 9, 9), (128, 64, 1, 1), {"strides": [2, 2], "kernel_shape": [1, 1]}),
        ((1, 3, 20, 20), (32, 3, 7, 7), {"strides": [2, 2], "pads": [3] * 4}),
        ((1, 8, 5, 6, 7), (16, 8, 3, 3, 3), {"pads": [1] * 6, "dilations": [1, 1, 2]}),
    ],
)
def test_a_convolution_over_no_pictures_is_like_the_one_that_follows(
    shape: tuple[int, ...],
    weight: tuple[int, ...],
    attributes: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(largest_first, "LARGE_BYTES", 1)
    stored = np.random.default_rng(0).standard_normal(weight, dtype=np.float32)
    graph = helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"], "conv", **attributes)], "one",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(stored, "w")],
    )  # fmt: skip
    opset = helper.make_opsetid("", 17)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=8)
    inputs = make_inputs(model)
    made = outside(stock(model, hide=False, chain=False).model, Weights.EXTERNAL)
    before = len(planned_graph(made.model).node)
    with_weights_in_function(made.model, by_size=True)
    assert len(planned_graph(made.model).node) > before + 1
    expected = run_outputs(in_memory(model, "."), inputs, ONE_THREAD)
    assert not different_names(expected, run_outputs(made.source(), inputs, ONE_THREAD))


def test_weights_stay_in_order_where_shapes_would_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing states what the first convolution reads, and pools need to know."""
    monkeypatch.setattr(largest_first, "LARGE_BYTES", 1)
    net = Net()
    x = net.conv(net.add("Exp", net.input("x", 1, 32, 8, 8)), 32, 32, 3)
    model = stock(net.model(net.add("MaxPool", x, kernel_shape=[2, 2])), hide=False, chain=False)
    made = outside(model.model, Weights.EXTERNAL)
    branch = planned_graph(made.model)
    del branch.value_info[:]
    before = len(branch.node)
    with_weights_in_function(made.model, by_size=True)
    assert len(planned_graph(made.model).node) == before + 1


def test_a_model_without_weights_stays_as_it_is() -> None:
    net = Net()
    model = net.model(net.add("Exp", net.input("x", 4)))
    assert with_weights_outside(model, Path.cwd(), ONE_THREAD, Weights.PACKED) is None


def test_the_file_goes_with_what_holds_it() -> None:
    made = outside(BUILDERS["mlp"](), Weights.EXTERNAL)
    path = made.data.path
    assert path.is_file()
    del made
    assert not path.parent.exists()
