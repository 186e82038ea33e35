"""Training graphs: forward pass, loss and the gradient of every weight in one ONNX model.

The backward pass is made by onnx-ad (https://github.com/yacoda/onnx-ad), a development dependency;
`models.depthwise` adds the one rule that the networks here need beyond it, and `models.tidy`
removes its scaffolding. Batch normalisation keeps its stored statistics (as in fine-tuning with
frozen statistics): onnx-ad has no rule for the training mode, nor for the weights of transposed
convolutions.
"""

import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from models.depthwise import Probe, probed, unprobed, weight_gradient
from models.folding import Shape, complete_shapes, fold, with_shapes
from models.losses import CONSTANTS, LOSSES
from models.tidy import tidy
from models.weights import trainable

_PREFIX = "adjoint/"  # onnx-ad's name for the gradient of x is this and x
_SEED = f"{_PREFIX}loss"
_LAST_AXIS = f"{_PREFIX}last_axis"


def gradient_name(weight: str) -> str:
    """The name of the graph output that is the gradient of the loss by `weight`."""
    return f"{weight}.grad"


def training(
    model: onnx.ModelProto,
    *,
    loss: str = "mse",
    weights: Sequence[str] | None = None,
    raw: bool = False,
) -> onnx.ModelProto:
    """The training graph of a forward model with one output and static shapes.

    Inputs: those of `model`, the target (see `models.losses`), and the weights, without values
    (`models.weights.initial_weights` gives them). Outputs: `loss`, of rank 0, and for each weight
    `w` the gradient `w.grad` in the shape of `w`. All operators are standard ONNX; every value has
    a static shape.

    loss: "mse" or "cross_entropy". weights: names of the initializers to train; None: all whose
    name ends in a kind of `models.weights.TRAINABLE`. raw: leave what onnx-ad emits as it is,
    constants folded (about twice the operators, many of them copies of whole activations).

    ImportError without onnx-ad; ValueError for a model that does not fit or has an operator
    without a rule. Time and size are linear in the nodes.
    """
    names = _checked_weights(model, weights)
    forward = _with_loss(_with_weight_inputs(model, names), loss)
    shapes = complete_shapes(forward)
    nodes, probes = probed(forward.graph.node, set(names), shapes)
    handled = {probe.node.input[1] for probe in probes}
    inputs = [_float_info(probe.name, shapes[probe.node.output[0]]) for probe in probes]
    differentiated = [name for name in names if name not in handled]
    differentiated += [probe.name for probe in probes]
    adjoint = _adjoint(_like(forward, nodes=nodes, inputs=inputs), differentiated)
    result = fold(_with_gradients(adjoint, names, probes, shapes))
    return result if raw else tidy(result)


def _checked_weights(model: onnx.ModelProto, weights: Sequence[str] | None) -> list[str]:
    stored = {tensor.name for tensor in model.graph.initializer}
    names = trainable(model) if weights is None else list(weights)
    if not names:
        raise ValueError("no initializer is named like a weight; pass their names as `weights`")
    unknown = sorted(set(names) - stored)
    if unknown:
        raise ValueError(f"these weights are no initializers of the model: {unknown}")
    if len(model.graph.output) != 1:
        raise ValueError(f"the model has {len(model.graph.output)} outputs, the loss reads one")
    return names


def _with_weight_inputs(model: onnx.ModelProto, weights: Sequence[str]) -> onnx.ModelProto:
    """The model with its weights as inputs, without their bytes; shapes inferred."""
    dims = {tensor.name: tuple(tensor.dims) for tensor in model.graph.initializer}
    trained = set(weights)
    graph = helper.make_graph(
        model.graph.node,
        f"{model.graph.name}_train",
        [*model.graph.input, *(_float_info(name, dims[name]) for name in weights)],
        model.graph.output,
        [tensor for tensor in model.graph.initializer if tensor.name not in trained],
    )
    return with_shapes(_model(model, graph))


def _with_loss(model: onnx.ModelProto, loss: str) -> onnx.ModelProto:
    """The model with a target input, and `loss` as the only output."""
    if loss not in LOSSES:
        raise ValueError(f"loss is {loss!r}, it must be in {sorted(LOSSES)}")
    target, operators = LOSSES[loss]
    prediction = model.graph.output[0].name
    nodes = operators(prediction, target)
    read = {name for node in nodes for name in node.input}
    constants = [_ints(name, values) for name, values in CONSTANTS.items() if name in read]
    extended = _like(
        model,
        nodes=[*model.graph.node, *nodes],
        inputs=[_float_info(target, complete_shapes(model)[prediction])],
        stored=constants,
    )
    extended.graph.ClearField("output")
    extended.graph.output.append(_float_info("loss", ()))
    return with_shapes(extended)


def _adjoint(model: onnx.ModelProto, differentiated: Sequence[str]) -> onnx.ModelProto:
    """onnx-ad's model: for each `differentiated` input x an output `adjoint/x`, whose last axis
    (of the extent of the input `adjoint/loss`) stands for the seeds."""
    try:
        onnx_ad = importlib.import_module("onnx_ad")
    except ImportError as error:
        raise ImportError(
            "training graphs are made by onnx-ad, a development dependency: pip install onnx-ad"
        ) from error
    try:
        result: onnx.ModelProto = onnx_ad.reverse(
            model,
            inputs=list(differentiated),
            outputs=["loss"],
            prefix=_PREFIX,
            dim="seeds",
            layout="onnx",
        )
    except onnx_ad.UnsupportedOperator as error:
        raise ValueError(f"onnx-ad cannot differentiate this model: {error}") from error
    return result


def _with_gradients(
    adjoint: onnx.ModelProto,
    weights: Sequence[str],
    probes: Sequence[Probe],
    shapes: Mapping[str, Shape],
) -> onnx.ModelProto:
    """onnx-ad's model with one seed of value 1, without probes, gradients as outputs."""
    gradients, constants = _probe_gradients(adjoint, probes, shapes)
    handled = {probe.node.input[1] for probe in probes}
    squeezed = [
        helper.make_node("Squeeze", [_PREFIX + name, _LAST_AXIS], [gradient_name(name)])
        for name in weights
        if name not in handled
    ]
    names = {probe.name for probe in probes}
    unread = {_PREFIX + name for name in names}
    read = (node for node in adjoint.graph.node if unread.isdisjoint(node.output))
    nodes = _inserted(unprobed(read, probes), gradients)
    outputs = [_float_info(gradient_name(name), shapes[name]) for name in weights]
    seed = numpy_helper.from_array(np.ones(1, np.float32), _SEED)
    graph = helper.make_graph(
        [*nodes, *squeezed],
        adjoint.graph.name,
        [value for value in adjoint.graph.input if value.name not in {_SEED, *names}],
        [_float_info("loss", ()), *outputs],
        [*adjoint.graph.initializer, *constants, seed, _ints(_LAST_AXIS, [-1])],
    )
    return _model(adjoint, graph)


def _probe_gradients(
    adjoint: onnx.ModelProto, probes: Sequence[Probe], shapes: Mapping[str, Shape]
) -> tuple[dict[str, list[NodeProto]], list[onnx.TensorProto]]:
    """Operators for the gradients of depthwise weights, by the value they can follow at once
    (the gradient of a probe), and the constants they read."""
    identities = (node for node in adjoint.graph.node if node.op_type == "Identity")
    sources = {node.output[0]: node.input[0] for node in identities}
    gradients: dict[str, list[NodeProto]] = {}
    constants: list[onnx.TensorProto] = []
    for probe in probes:
        source = sources[_PREFIX + probe.name]
        output = gradient_name(probe.node.input[1])
        nodes, read = weight_gradient(probe, source, output, shapes)
        gradients.setdefault(source, []).extend(nodes)
        constants += read
    return gradients, constants


def _inserted(
    nodes: Iterable[NodeProto], attached: Mapping[str, list[NodeProto]]
) -> Iterator[NodeProto]:
    """The nodes, each followed by what is attached to one of its outputs."""
    for node in nodes:
        yield node
        for name in node.output:
            yield from attached.get(name, ())


def _like(
    model: onnx.ModelProto,
    *,
    nodes: Sequence[NodeProto],
    inputs: Sequence[onnx.ValueInfoProto] = (),
    stored: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """A copy of `model` with other nodes, and more inputs and initializers."""
    graph = helper.make_graph(
        nodes,
        model.graph.name,
        [*model.graph.input, *inputs],
        model.graph.output,
        [*model.graph.initializer, *stored],
    )
    return _model(model, graph)


def _model(origin: onnx.ModelProto, graph: onnx.GraphProto) -> onnx.ModelProto:
    result: onnx.ModelProto = helper.make_model(graph, opset_imports=origin.opset_import)
    result.ir_version = origin.ir_version
    result.producer_name = origin.producer_name
    return result


def _float_info(name: str, shape: Shape) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape)


def _ints(name: str, values: Sequence[int]) -> onnx.TensorProto:
    return numpy_helper.from_array(np.array(values, np.int64), name)
