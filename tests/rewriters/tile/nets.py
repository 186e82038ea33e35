"""Small networks, and running a model before and after tiling."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import sqrt
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from onnxremat.importer.nodes import LAYOUT_DOMAIN
from onnxremat.importer.values import ValueType, concrete_type
from onnxremat.ort.blocked_layout import block_channels
from onnxremat.ort.library import ort
from onnxremat.ort.recipe import RECIPE, session_options
from onnxremat_rewriters.tile import Region, Tiled, tile

Array = NDArray[Any]
THREADS = 2


@dataclass
class Net:
    """Builds a graph node by node; every value's name is that of its node."""

    seed: int = 0
    inputs: dict[str, tuple[int, ...]] = field(default_factory=dict)
    weights: dict[str, Array] = field(default_factory=dict)
    nodes: list[onnx.NodeProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)

    def input(self, name: str, *shape: int) -> str:
        self.inputs[name] = shape
        return name

    def weight(self, *shape: int, scale: float = 1.0) -> str:
        name = f"w{len(self.weights)}"
        self.weights[name] = np.asarray(self.rng.standard_normal(shape) * scale, np.float32)
        return name

    def constant(self, value: Any) -> str:
        name = f"c{len(self.weights)}"
        self.weights[name] = np.asarray(value)
        return name

    def add(self, op: str, *inputs: str, **attributes: Any) -> str:
        name = f"{op.lower()}{len(self.nodes)}"
        self.nodes.append(helper.make_node(op, list(inputs), [name], name, **attributes))
        return name

    def conv(self, x: str, cin: int, cout: int, k: int, s: int = 1, g: int = 1) -> str:
        w = self.weight(cout, cin // g, k, k, scale=sqrt(2 / (cin // g * k * k)))
        pads = [(k - 1) // 2] * 4
        return self.add("Conv", x, w, self.weight(cout), pads=pads, strides=[s, s], group=g)

    def model(self, *outputs: str, opset: int = 17) -> onnx.ModelProto:
        return build(self.nodes, self.inputs, self.weights, outputs, opset)


def build(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, tuple[int, ...]],
    weights: Mapping[str, Array],
    outputs: Sequence[str],
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
    given: Mapping[str, Array] | None = None,
) -> onnx.ModelProto:
    """A model whose value_info names every value's type. `given` are inputs as these arrays are."""
    stated = [helper.make_tensor_value_info(n, dtype, s) for n, s in inputs.items()]
    for name, array in (given or {}).items():
        kind = helper.np_dtype_to_tensor_dtype(array.dtype)
        stated.append(helper.make_tensor_value_info(name, kind, array.shape))
    graph = helper.make_graph(
        nodes,
        "test",
        stated,
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(a, name) for name, a in weights.items()],
    )
    domains = ("com.microsoft", LAYOUT_DOMAIN)
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(d, 1) for d in domains)]
    made = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return onnx.shape_inference.infer_shapes(made, data_prop=True)


def types_of(model: onnx.ModelProto) -> dict[str, ValueType]:
    graph = model.graph
    found = {
        v.name: concrete_type(v.type, {}) for v in (*graph.input, *graph.value_info, *graph.output)
    }
    return {name: kind for name, kind in found.items() if kind is not None}


ZEROS = 0.3
"""This share of floats are zeros of either sign: what compares them may keep one or the other."""


def feeds(model: onnx.ModelProto, seed: int = 1) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    made = {}
    for v in model.graph.input:
        kind = v.type.tensor_type
        dtype = helper.tensor_dtype_to_np_dtype(kind.elem_type)
        numbers = rng.standard_normal([d.dim_value for d in kind.shape.dim])
        zeros = rng.random(numbers.shape) < ZEROS
        numbers = np.where(zeros, np.copysign(0.0, numbers), numbers)
        made[v.name] = np.asarray(numbers if dtype.kind == "f" else numbers * 40, dtype)
    return made


def run(model: onnx.ModelProto, given: Mapping[str, Array], threads: int = THREADS) -> list[Array]:
    options = session_options(RECIPE.with_threads(threads))
    options.log_severity_level = 4
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    made: list[Array] = session.run(None, dict(given))
    return made


def with_measured_types(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with a value_info for every value, from a run."""
    wide = onnx.ModelProto()
    wide.CopyFrom(model)
    names = [name for node in model.graph.node for name in node.output if name]
    del wide.graph.output[:]
    wide.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    del model.graph.value_info[:]
    for name, value in zip(names, run(wide, feeds(model)), strict=True):
        dtype = helper.np_dtype_to_tensor_dtype(value.dtype)
        kind = helper.make_tensor_value_info(name, dtype, value.shape)
        outputs = [one for one in model.graph.output if one.name == name]
        (outputs[0] if outputs else model.graph.value_info.add()).CopyFrom(kind)
    return model


def same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def tiled_exactly(
    model: onnx.ModelProto,
    *regions: Region,
    threads: int = THREADS,
    known: bool = True,
    given: Mapping[str, Array] | None = None,
) -> Tiled:
    """Tile, and check: the argument unchanged, a valid model (if onnx knows its ops), nothing
    refused, the same bits. Inputs that are not `given` are random."""
    before = model.SerializeToString()
    types, channels = types_of(model), block_channels(model)
    made = tile(model, regions, types, threads=threads, block_channels=channels)
    assert model.SerializeToString() == before
    assert made.refused == (), made.refused
    assert made.rounded == ()
    assert len(made.origin) == len(made.model.graph.node)
    if known:
        onnx.checker.check_model(made.model, full_check=False)
    fed = {**feeds(model), **(given or {})}
    pairs = zip(run(model, fed, threads), run(made.model, fed, threads), strict=True)
    assert all(same_bits(a, b) for a, b in pairs)
    return made


def espcn(size: int = 48) -> onnx.ModelProto:
    """Super-resolution: four convolutions and a DepthToSpace."""
    net = Net()
    a = net.input("x", 1, 1, size, size + 8)
    for cin, cout, k in ((1, 16, 5), (16, 16, 3), (16, 8, 3)):
        a = net.add("Tanh", net.conv(a, cin, cout, k))
    a = net.add("DepthToSpace", net.conv(a, 8, 4, 3), blocksize=2, mode="CRD")
    return net.model(a)


def unet(size: int = 64, width: int = 8, levels: int = 3) -> tuple[onnx.ModelProto, list[str]]:
    """A U-Net; with it the names of its cuts: pooled values going down, decoded going up, output."""
    net = Net()
    a = net.input("x", 1, 3, size, size)
    cin, skips, down, up = 3, [], [], []

    def block(x: str, cin: int, cout: int) -> str:
        x = net.add("Relu", net.conv(x, cin, cout, 3))
        return net.add("Relu", net.conv(x, cout, cout, 3))

    for level in range(levels):
        cout = width << level
        a = block(a, cin, cout)
        cin = cout
        if level < levels - 1:
            skips.append(a)
            a = net.add("MaxPool", a, kernel_shape=[2, 2], strides=[2, 2])
            down.append(a)
    for level in reversed(range(levels - 1)):
        cout = width << level
        w = net.weight(cin, cout, 2, 2, scale=sqrt(1 / cin))
        a = net.add("ConvTranspose", a, w, net.weight(cout), strides=[2, 2])
        a = block(net.add("Concat", a, skips[level], axis=1), 2 * cout, cout)
        cin = cout
        up.append(a)
    return net.model(net.conv(a, cin, 2, 1)), [*down, *up, net.nodes[-1].output[0]]
