"""Every builder: valid, runnable, deterministic, complete shapes, published sizes."""

import inspect
from typing import Any

import numpy as np
import onnx
import pytest

from models import (
    BUILDERS,
    DEPLOYED,
    EXPORTED,
    FORWARD,
    TRAINING,
    initial_weights,
    parameter_count,
    random_feeds,
    stored_weights,
    trainable,
)
from models.folding import complete_shapes
from models.weights import kind_of
from onnxremat.importer import bind_dimensions, from_proto
from onnxremat.ort.measuring.inputs import make_inputs
from tests.models.sizes import TINY, TINY_DEPLOYED, TINY_EXPORTED, run, session, tiny

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("mlp", {"activation": "gelu"}),
    ("mlp", {"activation": "silu", "opset": 21}),
    ("resnet", {"bottleneck": False}),
    ("resnet", {"blocks": (), "depth": 18, "size": 32}),
    ("transformer", {"norm_first": True, "opset": 18}),
    ("transformer", {"opset": 20}),
    ("unet", {"up": "transpose", "norm": True}),
    ("vae_decoder", {"groups": 0}),
    ("vgg", {"norm": True}),
    ("inception", {"lrn": False}),
]
CASES = [*((name, dict[str, Any]()) for name in FORWARD), *VARIANTS]
IDS = ["-".join([name, *map(str, options.values())]) for name, options in CASES]


def test_every_builder_is_tested_and_documented() -> None:
    assert set(TINY) == set(FORWARD)
    assert {f"{name}_train" for name in FORWARD} == set(TRAINING)
    assert set(TINY_EXPORTED) == set(EXPORTED)
    assert set(TINY_DEPLOYED) == set(DEPLOYED)
    for name, build in BUILDERS.items():
        assert "batch" in (inspect.getdoc(build) or ""), name
        options = inspect.signature(build).parameters.values()
        assert all(option.kind is option.KEYWORD_ONLY for option in options), name


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_model_is_valid_and_runs(name: str, options: dict[str, object]) -> None:
    model = FORWARD[name](**tiny(name, batch=2, **options))
    onnx.checker.check_model(model, full_check=True)
    complete_shapes(model)
    names = [node.name for node in model.graph.node]
    assert all(names) and len(set(names)) == len(names)
    assert {opset.domain for opset in model.opset_import} == {""}
    assert 8 <= model.ir_version <= 10
    (output,) = run(session(model), random_feeds(model)).values()
    declared = [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim]
    assert list(output.shape) == declared
    assert np.isfinite(output).all() and output.std() > 1e-3


@pytest.mark.parametrize("opset", [17, 21])
@pytest.mark.parametrize("name", DEPLOYED)
def test_deployed_model_is_valid_and_runs(name: str, opset: int) -> None:
    build = DEPLOYED[name]
    model = build(**TINY_DEPLOYED[name], opset=opset)
    onnx.checker.check_model(model, full_check=True)
    complete_shapes(model)
    again, other = (build(**TINY_DEPLOYED[name], opset=opset, seed=seed) for seed in (0, 1))
    assert again.SerializeToString() == model.SerializeToString() != other.SerializeToString()
    names = [node.name for node in model.graph.node]
    assert all(names) and len(set(names)) == len(names)
    (output,) = run(session(model), random_feeds(model)).values()
    declared = [dim.dim_value for dim in model.graph.output[0].type.tensor_type.shape.dim]
    assert list(output.shape) == declared
    assert np.isfinite(output).all() and output.std() > 1e-3


@pytest.mark.parametrize("name", DEPLOYED)
def test_deployed_models_are_deep(name: str) -> None:
    assert len(DEPLOYED[name]().graph.node) >= 40


@pytest.mark.parametrize("name", EXPORTED)
def test_exported_model_is_valid_and_runs_at_any_size(name: str) -> None:
    options, sizes = TINY_EXPORTED[name]
    model = EXPORTED[name](**options)
    onnx.checker.check_model(model, full_check=True)
    assert EXPORTED[name](**options).SerializeToString() == model.SerializeToString()
    assert EXPORTED[name](**options, seed=1).SerializeToString() != model.SerializeToString()
    opened = session(model)
    for more in range(3):
        dims = {dim: size + more for dim, size in sizes.items()}
        binding = bind_dimensions(from_proto(model), dims)
        made = run(opened, make_inputs(model, binding.input_shapes))
        for value in model.graph.output:
            output = made[value.name]
            known = [dims.get(d.dim_param, d.dim_value) for d in value.type.tensor_type.shape.dim]
            assert all(k in (0, size) for k, size in zip(known, output.shape, strict=True))
            assert np.isfinite(output).all() and output.std() > 1e-3


@pytest.mark.parametrize("name", ["gpt_cache", "open_encoder", "sam_encoder"])
def test_exported_models_have_casts_that_change_nothing(name: str) -> None:
    nodes = EXPORTED[name](**TINY_EXPORTED[name][0]).graph.node
    maker = {made: node for node in nodes for made in node.output}
    casts = [node for node in nodes if node.op_type == "Cast" and node.attribute[0].i == 7]
    assert any(maker[node.input[0]].op_type == "Cast" for node in casts)
    assert any(maker[node.input[0]].op_type == "Div" for node in casts)


@pytest.mark.parametrize("name", FORWARD)
def test_seed_decides_the_weights(name: str) -> None:
    first, again, other = (FORWARD[name](**tiny(name, seed=seed)) for seed in (1, 1, 2))
    assert first.SerializeToString() == again.SerializeToString()
    weights, others = stored_weights(first), stored_weights(other)
    assert all(not np.array_equal(weights[key], others[key]) for key in weights)


@pytest.mark.parametrize("name", FORWARD)
def test_symbolic_batch_takes_any_batch(name: str) -> None:
    fixed = FORWARD[name](**tiny(name, batch=3))
    symbolic = FORWARD[name](**tiny(name, symbolic_batch=True))
    onnx.checker.check_model(symbolic, full_check=True)
    shape = symbolic.graph.input[0].type.tensor_type.shape
    assert shape.dim[0].dim_param == "batch"
    feeds = random_feeds(fixed)
    assert random_feeds(symbolic, batch=3).keys() == feeds.keys()
    (wanted,), (found,) = (run(session(m), feeds).values() for m in (fixed, symbolic))
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match="symbolic dimension 'batch'"):
        random_feeds(symbolic)


@pytest.mark.parametrize(
    ("name", "options", "published"),
    [
        ("resnet", {"depth": 50}, 25_557_032),  # He 2016; torchvision resnet50
        ("resnet", {"depth": 18}, 11_689_512),  # torchvision resnet18
        ("densenet", {}, 7_978_856),  # Huang 2017; torchvision densenet121
        ("mobilenet", {}, 3_504_872),  # Sandler 2018, 3.5M; torchvision mobilenet_v2
        ("unet", {"levels": 4, "base": 64, "channels": 1, "up": "transpose"}, 31_030_658),
    ],
)
def test_parameter_count_is_the_published_one(
    name: str, options: dict[str, object], published: int
) -> None:
    size = {"size": 32}  # the number of weights of these networks does not depend on it
    model = FORWARD[name](**size | options)
    assert parameter_count(model) == pytest.approx(published, rel=0.01)


def test_googlenet_has_the_sum_of_table_1() -> None:
    """Szegedy 2015, table 1, column params: 2.7 + 112 + ... + 1000 thousand, without biases."""
    thousands = [2.7, 112, 159, 380, 364, 437, 463, 580, 840, 1072, 1388, 1000]
    weights = stored_weights(FORWARD["inception"](size=32))
    matrices = sum(array.size for array in weights.values() if array.ndim > 1)
    assert matrices == pytest.approx(1000 * sum(thousands), rel=0.03)


def test_vgg16_has_the_published_convolutions() -> None:
    """138 million less the three dense layers (Simonyan 2015, table 2): 14.7 million."""
    weights = stored_weights(FORWARD["vgg"](depth=16, size=32, hidden=1, classes=1))
    convolutions = sum(array.size for key, array in weights.items() if key.startswith("stage"))
    assert convolutions == 14_714_688


def test_initial_weights_need_only_names_and_shapes() -> None:
    model = FORWARD["resnet"](**tiny("resnet", seed=3))
    bare = onnx.ModelProto()
    bare.CopyFrom(model)
    names = set(trainable(model))
    for tensor in model.graph.initializer:
        if tensor.name in names:
            info = onnx.helper.make_tensor_value_info(tensor.name, 1, tensor.dims)
            bare.graph.input.append(info)
    drawn, stored = initial_weights(bare, seed=3), stored_weights(model)
    assert drawn.keys() == stored.keys()
    assert all(np.array_equal(drawn[key], stored[key]) for key in stored)
    assert not {"mean", "variance"} & {kind_of(key) for key in stored}


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("unet", {"size": 30, "levels": 2}, "divisible by 2 \\*\\* levels = 4"),
        ("unet", {"up": "bilinear"}, "'bilinear'"),
        ("resnet", {"depth": 51}, "depth is 51"),
        ("transformer", {"width": 10, "heads": 3}, "divisible by heads = 3"),
        ("mlp", {"activation": "sin"}, "'sin'"),
        ("vgg", {"size": 40}, "divisible by 32"),
        ("vgg", {"depth": 12}, "depth is 12"),
        ("vae_decoder", {"size": 30}, "divisible by 2 \\*\\* levels"),
        ("vae_decoder", {"base": 12, "groups": 8}, "divisible by groups"),
        ("mlp", {"opset": 9}, "opset 9"),
        ("mlp", {"batch": 0}, "batch is 0"),
        ("gpt_cache", {"width": 10, "heads": 3}, "divisible by heads = 3"),
        ("half_attention", {"softmax": "double"}, "'double'"),
        ("sam_encoder", {"size": 100}, "divisible by patch = 16"),
        ("open_encoder", {"opset": 9}, "opset 9"),
    ],
)
def test_impossible_options_are_named(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BUILDERS[name](**options)
