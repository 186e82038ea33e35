"""Weights drawn from a seed and a name, so that a file's names alone reproduce its values.

A weight is called `<operator>.<kind>`. Its values depend on (seed, name, shape) and on nothing
else: not on the order of building, not on the rest of the network. A training graph, whose
weights are graph inputs without values, is therefore fed with exactly the values that the
forward model stores (`initial_weights`).

Kinds and distributions. `weight`: normal with variance 2 / fan-in (He et al. 2015, "Delving Deep
into Rectifiers", equation 10); fan-in is the product of all dimensions but the first, or the
first one for a matrix, which is stored (in, out). The branch of a residual sum uses a
`residual_` kind, one tenth (weight) or one quarter (scale) of the plain one, so that activations
stay finite at any depth (in the spirit of Goyal et al. 2017, "Accurate, Large Minibatch SGD",
section 5.1). Nothing is exactly 0 or 1: a rewrite that lost a bias would not pass unnoticed.
"""

import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

Array = np.ndarray[Any, np.dtype[Any]]
_Draw = Callable[[np.random.Generator, tuple[int, ...]], Array]


def _fan_in(shape: tuple[int, ...]) -> int:
    return shape[0] if len(shape) == 2 else math.prod(shape[1:])


def _he(gain: float) -> _Draw:
    def values(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        deviation = np.float32(gain * np.sqrt(2 / _fan_in(shape)))
        return generator.standard_normal(shape, np.float32) * deviation

    return values


def _normal(mean: float, deviation: float) -> _Draw:
    def values(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        normal = generator.standard_normal(shape, np.float32)
        return normal * np.float32(deviation) + np.float32(mean)

    return values


def _uniform(low: float, high: float) -> _Draw:
    def values(generator: np.random.Generator, shape: tuple[int, ...]) -> Array:
        return generator.uniform(low, high, shape).astype(np.float32)

    return values


TRAINABLE: dict[str, _Draw] = {
    "weight": _he(1.0),
    "residual_weight": _he(0.1),
    "bias": _normal(0.0, 0.02),
    "scale": _normal(1.0, 0.1),
    "residual_scale": _normal(0.25, 0.025),
}
STATISTICS: dict[str, _Draw] = {"mean": _normal(0.0, 0.1), "variance": _uniform(0.8, 1.2)}
KINDS: dict[str, _Draw] = TRAINABLE | STATISTICS
"""What may follow the last dot of a weight's name. STATISTICS are the running mean and variance
of BatchNormalization: stored with the model, never trained by a gradient."""


def kind_of(name: str) -> str:
    """The part after the last dot of a weight's name."""
    return name.rpartition(".")[2]


def draw(name: str, shape: tuple[int, ...], seed: int) -> Array:
    """The float32 values of the weight `name`; KeyError for a kind that is not in KINDS."""
    generator = np.random.default_rng([seed, zlib.crc32(name.encode())])
    return KINDS[kind_of(name)](generator, shape)


def trainable(model: onnx.ModelProto) -> list[str]:
    """Names of the stored weights of `model` that a gradient trains, in file order."""
    names = [tensor.name for tensor in model.graph.initializer]
    return [name for name in names if "." in name and kind_of(name) in TRAINABLE]


def parameter_count(model: onnx.ModelProto) -> int:
    """How many numbers training adjusts (what papers call parameters)."""
    names = set(trainable(model))
    stored = [tensor for tensor in model.graph.initializer if tensor.name in names]
    return sum(math.prod(tensor.dims) for tensor in stored)


def stored_weights(model: onnx.ModelProto) -> dict[str, Array]:
    """The values of the trainable weights that `model` stores, by name."""
    names = set(trainable(model))
    stored = [tensor for tensor in model.graph.initializer if tensor.name in names]
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in stored}


def initial_weights(model: onnx.ModelProto, *, seed: int = 0) -> dict[str, Array]:
    """Values for the graph inputs of a training graph that are weights, by name.

    They equal `stored_weights` of the forward model built with the same seed. For a training
    graph made from a foreign model, use `stored_weights` of that model or its initializers.
    """
    inputs = [value for value in model.graph.input if kind_of(value.name) in TRAINABLE]
    return {value.name: draw(value.name, static_shape(value), seed) for value in inputs}


def random_feeds(
    model: onnx.ModelProto, *, seed: int = 0, batch: int | None = None
) -> dict[str, Array]:
    """One value for each graph input: weights, standard normal data, and a target.

    `batch` replaces symbolic dimensions. A `target_probabilities` input gets positive values
    that sum to 1 over axis 1.
    """
    feeds = initial_weights(model, seed=seed)
    for value in model.graph.input:
        if value.name not in feeds:
            generator = np.random.default_rng([seed, zlib.crc32(value.name.encode())])
            data = generator.standard_normal(static_shape(value, batch), np.float32)
            feeds[value.name] = _softmax(data) if value.name == "target_probabilities" else data
    return feeds


def static_shape(value: onnx.ValueInfoProto, batch: int | None = None) -> tuple[int, ...]:
    """The shape of a float32 value as integers; ValueError when that is not known."""
    tensor = value.type.tensor_type
    if tensor.elem_type != onnx.TensorProto.FLOAT:
        kind = helper.tensor_dtype_to_string(tensor.elem_type)
        raise ValueError(f"{value.name!r} is {kind}, only FLOAT values are drawn")
    shape = []
    for dim in tensor.shape.dim:
        extent = dim.dim_value or batch
        if extent is None:
            raise ValueError(f"{value.name!r} has the symbolic dimension {dim.dim_param!r}")
        shape.append(extent)
    return tuple(shape)


def _softmax(data: Array) -> Array:
    exponential = np.exp(data)
    probabilities: Array = exponential / exponential.sum(axis=1, keepdims=True)
    return probabilities
