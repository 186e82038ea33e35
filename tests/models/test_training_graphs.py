"""Training graphs: valid, static, and their gradients checked against finite differences.

The loss is evaluated in float64 by ONNX's reference implementation, the gradients come from
onnxruntime in float32. Every weight takes part in one direction, scaled so that each adds about
the same to the directional derivative: an error in any one of them shows. Measured: relative
differences of 1e-8 to 3e-7, and of 5e-5 where the reference implementation itself computes a part
in float32 (Erf, LayerNormalization).
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from models import (
    FORWARD,
    TRAINING,
    gradient_name,
    initial_weights,
    layers,
    random_feeds,
    stored_weights,
    trainable,
    training,
)
from models.folding import complete_shapes
from models.net import Net
from tests.models.sizes import Feeds, run, session, tiny

pytestmark = pytest.mark.slow

pytest.importorskip("onnx_ad", reason="training graphs are made by onnx-ad, not installed here")

STEP = 1e-6
TOLERANCE = 2e-4
NO_GRADIENT = 1e-6
"""Below this norm a gradient is zero (the bias of the keys: a softmax ignores a common shift)."""


def loss_in_float64(model: onnx.ModelProto) -> Callable[[Feeds], float]:
    """The loss of a training graph as a function of float64 feeds."""
    needed, kept = {"loss"}, []
    for node in reversed(model.graph.node):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    stored = []
    for tensor in model.graph.initializer:
        array = numpy_helper.to_array(tensor)
        wide = array.astype(np.float64) if array.dtype == np.float32 else array
        stored.append(numpy_helper.from_array(wide, tensor.name))
    inputs = [helper.make_empty_tensor_value_info(value.name) for value in model.graph.input]
    outputs = [helper.make_empty_tensor_value_info("loss")]
    graph = helper.make_graph(kept[::-1], "loss", inputs, outputs, stored)
    wide_model = helper.make_model(graph, opset_imports=model.opset_import)
    evaluator: Any = ReferenceEvaluator(wide_model)
    return lambda feeds: float(evaluator.run(None, feeds)[0])


def direction(gradients: Feeds) -> Feeds:
    """Part along the gradient, part random, both scaled by its inverse norm."""
    generator = np.random.default_rng(0)
    result: Feeds = {}
    for name, gradient in gradients.items():
        norm = np.linalg.norm(gradient)
        if norm > NO_GRADIENT:
            noise = generator.standard_normal(gradient.shape) / np.sqrt(gradient.size)
            result[name] = gradient / norm**2 + noise / norm
    return result


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("unet_train", {"norm": True, "loss": "mse", "batch": 2}),
    ("mobilenet_train", {"batch": 3}),
    ("transformer_train", {"norm_first": True, "opset": 20, "batch": 2}),
    ("vgg_train", {"norm": True, "opset": 18, "batch": 2}),
]
CASES = [*((name, dict[str, Any]()) for name in TRAINING), *VARIANTS]
IDS = ["-".join([name, *map(str, options.values())]) for name, options in CASES]


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_gradients_are_finite_differences(name: str, options: dict[str, object]) -> None:
    model = TRAINING[name](**tiny(name, **options))
    onnx.checker.check_model(model, full_check=True)
    complete_shapes(model)
    assert {opset.domain for opset in model.opset_import} == {""}
    names = [node.name for node in model.graph.node]
    assert all(names) and len(set(names)) == len(names)

    feeds = random_feeds(model, seed=1)
    results = run(session(model), feeds)
    weights = initial_weights(model, seed=1)
    assert list(results) == ["loss", *map(gradient_name, weights)]
    gradients = {key: results[gradient_name(key)].astype(np.float64) for key in weights}
    assert all(gradients[key].shape == weights[key].shape for key in weights)

    wide = {key: array.astype(np.float64) for key, array in feeds.items()}
    loss = loss_in_float64(model)
    moved = direction(gradients)
    assert len(moved) >= len(weights) - 1  # one may have no gradient: the bias of the keys
    above, below = (
        loss(wide | {key: wide[key] + sign * STEP * moved[key] for key in moved})
        for sign in (1, -1)
    )
    assert results["loss"] == pytest.approx(loss(wide), rel=1e-5)
    expected = sum(float((gradients[key] * moved[key]).sum()) for key in moved)
    assert (above - below) / (2 * STEP) == pytest.approx(expected, rel=TOLERANCE)


@pytest.mark.parametrize("name", TRAINING)
def test_tidy_graph_is_smaller_and_computes_the_same(name: str) -> None:
    raw, tidied = (TRAINING[name](**tiny(name, raw=raw)) for raw in (True, False))
    onnx.checker.check_model(raw, full_check=True)
    complete_shapes(raw)
    assert len(tidied.graph.node) < 0.75 * len(raw.graph.node)
    assert not {"Identity", "Squeeze", "Unsqueeze"} & {n.op_type for n in tidied.graph.node}
    feeds = random_feeds(raw)
    wanted, found = (run(session(model), feeds) for model in (raw, tidied))
    assert list(wanted) == list(found)
    for key in wanted:
        scale = float(np.abs(wanted[key]).max())
        np.testing.assert_allclose(found[key], wanted[key], rtol=0, atol=1e-5 * scale + 1e-7)


def test_weights_are_those_of_the_forward_model() -> None:
    forward = FORWARD["vgg"](**tiny("vgg", seed=5))
    drawn, stored = initial_weights(training(forward), seed=5), stored_weights(forward)
    assert drawn.keys() == stored.keys()
    assert all(np.array_equal(drawn[key], stored[key]) for key in stored)


def test_forward_pass_is_left_as_it_is() -> None:
    forward = FORWARD["resnet"](**tiny("resnet"))
    before = forward.SerializeToString()
    nodes = list(forward.graph.node)
    assert list(training(forward).graph.node)[: len(nodes)] == nodes
    assert forward.SerializeToString() == before


def test_thousands_of_nodes_are_no_problem() -> None:
    model = TRAINING["mlp_train"](depth=100, width=4, batch=2)
    assert len(model.graph.node) > 1000
    assert np.isfinite(run(session(model), random_feeds(model))["loss"])


def test_two_gradients_may_be_one_value() -> None:
    """y = x + b1 + b2: the gradients of b1 and b2 are equal, yet both are outputs."""
    info, make = helper.make_tensor_value_info, helper.make_node
    ones = np.ones((2, 3), np.float32)
    graph = helper.make_graph(
        [make("Add", ["x", "b1"], ["u"], "u"), make("Add", ["u", "b2"], ["y"], "y")],
        "sum",
        [info("x", 1, [2, 3])],
        [info("y", 1, [2, 3])],
        [numpy_helper.from_array(ones, name) for name in ("b1", "b2")],
    )
    forward = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    with pytest.raises(ValueError, match="pass their names as `weights`"):
        training(forward)
    model = training(forward, weights=["b1", "b2"])
    onnx.checker.check_model(model, full_check=True)
    feeds = random_feeds(model)
    results = run(session(model), feeds)
    error = feeds["x"] + feeds["b1"] + feeds["b2"] - feeds["target"]
    for name in ("b1.grad", "b2.grad"):
        np.testing.assert_allclose(results[name], error / 3, rtol=1e-5)


def test_some_weights_only() -> None:
    forward = FORWARD["mlp"](**tiny("mlp"))
    chosen = trainable(forward)[:1]
    model = training(forward, weights=chosen)
    assert [output.name for output in model.graph.output] == ["loss", gradient_name(chosen[0])]
    with pytest.raises(ValueError, match="nowhere"):
        training(forward, weights=["nowhere"])


def test_what_cannot_be_trained_is_named() -> None:
    with pytest.raises(ValueError, match="ConvTranspose"):
        TRAINING["unet_train"](**tiny("unet", up="transpose"))
    with pytest.raises(ValueError, match="'x' has no static shape"):
        training(FORWARD["mlp"](**tiny("mlp", symbolic_batch=True)))
    with pytest.raises(ValueError, match="'hinge'"):
        TRAINING["mlp_train"](**tiny("mlp", loss="hinge"))
    with pytest.raises(TypeError, match="symbolic_batch"):
        TRAINING["mlp_train"](symbolic_batch=True)


def test_convolution_in_groups_must_be_depthwise() -> None:
    net = Net("grouped")
    x = net.input("image", (4, 8, 8))
    forward = net.model({"y": layers.conv(net, x, 6, 3, "conv", groups=2)})
    with pytest.raises(ValueError, match=r"'conv'.* 2 groups with 4 channels and 6 filters"):
        training(forward)


def test_missing_onnx_ad_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnx_ad", None)
    with pytest.raises(ImportError, match="pip install onnx-ad"):
        TRAINING["mlp_train"](**tiny("mlp"))
