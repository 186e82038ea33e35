"""Random nodes of the ops that the runtime's own optimizations make."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import onnx
from onnx import TensorProto, helper

from onnxremat.importer.nodes import LAYOUT_DOMAIN
from onnxremat.ort.blocked_layout import layout_width
from onnxremat_rewriters.tile.blocked import PREFIX
from tests.rewriters.tile.cases import MICROSOFT, Case, Draw
from tests.rewriters.tile.nets import Array, build

Maker = Callable[[Draw], Case]


def width() -> int:
    """Channels in a block."""
    found = layout_width()
    assert found is not None
    return found


@dataclass
class Blocked(Case):
    """A node of the blocked layout between the ops that make it and end it; `shape`: of what the
    node makes; `reordered`: the operands that are put in blocks."""

    shape: tuple[int, ...] = ()
    reordered: tuple[str, ...] = ("x",)
    channels_last: int = 0

    def model(self) -> onnx.ModelProto:
        nodes, order = [], list(self.order or [*self.inputs, *self.weights])
        for name in self.reordered:
            nodes.append(self._node("ReorderInput", [name], f"{name}_in", channels_last=0))
            order[order.index(name)] = f"{name}_in"
        kind = self.op.removeprefix(PREFIX)
        if not kind.startswith("Reorder"):
            domain = LAYOUT_DOMAIN if self.op.startswith(PREFIX) else ""
            nodes.append(self._node(kind, order, "made", domain=domain, **self.attributes))
        last = nodes[-1].output[0]
        size = self.shape
        options = {"channels": size[1], "channels_last": self.channels_last}
        nodes.append(self._node("ReorderOutput", [last], "y", **options))
        made = build(nodes, self.inputs, self.weights, ("y",), self.opset)
        shapes = {f"{name}_in": self._padded(self.inputs[name]) for name in self.reordered}
        shapes["made"] = self._padded(size)
        for name, shape in shapes.items():
            made.graph.value_info.append(helper.make_tensor_value_info(name, 1, shape))
        if self.channels_last:
            size = (size[0], *size[2:], size[1])
        made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 1, size))
        return made

    def _node(
        self, op: str, read: list[str], made: str, domain: str = LAYOUT_DOMAIN, **attributes: Any
    ) -> onnx.NodeProto:
        return helper.make_node(op, read, [made], made, domain=domain, **attributes)

    def _padded(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], -(-shape[1] // width()) * width(), *shape[2:])


def slid(size: int, kernel: int, stride: int, dilation: int, pads: int) -> int:
    return (size + pads - (kernel - 1) * dilation - 1) // stride + 1


ACTIVATIONS: tuple[dict[str, Any], ...] = (
    {},
    {"activation": "Relu"},
    {"activation": "Tanh"},
    {"activation": "Sigmoid"},
    {"activation": "LeakyRelu", "activation_params": [0.1]},
    {"activation": "Clip", "activation_params": [-0.5, 0.5]},
    {"activation": "HardSigmoid", "activation_params": [0.2, 0.5]},
)


def blocked_conv(draw: Draw) -> Case:
    """Of blocks of channels, by channel, or of a few channels that are in no blocks yet."""
    kind = draw.one(["blocks", "blocks", "pointwise", "depthwise", "few"])
    made = width() * draw.int(1, 2)
    cin = {"few": draw.int(1, 3), "depthwise": made}.get(kind, width() * draw.one([1, 2, 9]))
    kernel = [1, 1] if kind == "pointwise" else draw.ints(2, 1, 4)
    stride, dilation = draw.ints(2, 1, 2), draw.ints(2, 1, 2)
    pads = [draw.int(0, k - 1) for k in kernel * 2]
    n, size = draw.int(1, 2), draw.ints(2, 8, 24)
    out = [slid(size[a], kernel[a], stride[a], dilation[a], pads[a] + pads[a + 2]) for a in (0, 1)]
    group = made if kind == "depthwise" else 1
    attributes: dict[str, Any] = {
        "kernel_shape": kernel, "strides": stride, "dilations": dilation, "pads": pads,
        "group": group, "auto_pad": "NOTSET", **draw.one(ACTIVATIONS),
    }  # fmt: skip
    weights = {"w": draw.floats(made, cin // group, *kernel), "b": draw.floats(made)}
    inputs: dict[str, tuple[int, ...]] = {"x": (n, cin, *size)}
    reordered: tuple[str, ...] = () if kind == "few" else ("x",)
    order = ["x", "w", "b"]
    if kind != "depthwise" and draw.int(0, 1):
        inputs["z"] = (n, made, *out)
        reordered, order = (*reordered, "z"), [*order, "z"]
    return Blocked(
        f"{PREFIX}Conv", inputs, [0, 2, 3], weights, attributes, order,
        shape=(n, made, *out), reordered=reordered,
    )  # fmt: skip


def blocked_pool(op: str) -> Maker:
    def make(draw: Draw) -> Case:
        shape = (draw.int(1, 2), width() * draw.int(1, 2), *draw.ints(2, 6, 20))
        attributes: dict[str, Any] = {}
        out: list[int] = [1, 1]
        if not op.startswith("Global"):
            kernel, stride = draw.ints(2, 1, 4), draw.ints(2, 1, 3)
            pads = [draw.int(0, k - 1) for k in kernel * 2]
            attributes = {"kernel_shape": kernel, "strides": stride, "pads": pads}
            if op == "AveragePool":
                attributes["count_include_pad"] = draw.int(0, 1)
            out = [
                slid(shape[a + 2], kernel[a], stride[a], 1, pads[a] + pads[a + 2]) for a in (0, 1)
            ]
        axes = [0] if op.startswith("Global") else [0, 2, 3]
        made = (*shape[:2], *out)
        return Blocked(f"{PREFIX}{op}", {"x": shape}, axes, attributes=attributes, shape=made)

    return make


def blocked_upsample(draw: Draw) -> Case:
    shape = (draw.int(1, 2), width() * draw.int(1, 2), *draw.ints(2, 2, 12))
    mode = draw.one(["nearest", "linear"])
    scales = [draw.one([1, 2, 4] if mode == "linear" else [1, 2, 3]) for _ in range(2)]
    attributes: dict[str, Any] = {"scales": [1, 1, *scales], "mode": mode}
    attributes["coordinate_transformation_mode"] = "asymmetric"
    if mode == "linear":
        transforms = ["asymmetric", "half_pixel"]
        attributes["coordinate_transformation_mode"] = draw.one(transforms)
    made = (*shape[:2], shape[2] * scales[0], shape[3] * scales[1])
    return Blocked(f"{PREFIX}Upsample", {"x": shape}, [0, 2, 3], attributes=attributes, shape=made)


def reorder(op: str) -> Maker:
    def make(draw: Draw) -> Case:
        shape = (draw.int(1, 2), width() * draw.int(1, 2), *draw.ints(2, 2, 12))
        last = draw.int(0, 1)
        made = (shape[0], shape[1] - draw.int(0, 3), *shape[2:])
        axes = [0, 1, 2] if last else [0, 2, 3]
        return Blocked(f"{PREFIX}{op}", {"x": shape}, axes, shape=made, channels_last=last)

    return make


def among_blocks(op: str) -> Maker:
    """An op that does not know of the layout, on operands in blocks."""

    def make(draw: Draw) -> Case:
        shape = (draw.int(1, 2), width() * draw.int(1, 2), *draw.ints(2, 2, 24))
        inputs = {"x": shape}
        attributes: dict[str, Any] = {}
        made = shape
        if op in ("Add", "Concat", "Mul", "Sum"):
            inputs["z"] = shape
        if op == "Concat":
            attributes["axis"] = 1
            made = (shape[0], 2 * shape[1], *shape[2:])
        return Blocked(
            op, inputs, [0, 2, 3], attributes=attributes, shape=made, reordered=tuple(inputs)
        )

    return make


def fused_conv(draw: Draw) -> Case:
    kernel = draw.ints(2, 1, 3)
    cin, cout, group = draw.one([1, 3, 20, 150]), draw.one([1, 9]), draw.one([1, 2])
    size, pads = draw.ints(2, 6, 20), [draw.int(0, k - 1) for k in kernel * 2]
    out = [slid(size[a], kernel[a], 1, 1, pads[a] + pads[a + 2]) for a in (0, 1)]
    n, made = draw.int(1, 2), group * cout
    inputs = {"x": (n, group * cin, *size)}
    weights = {"w": draw.floats(made, cin, *kernel), "b": draw.floats(made)}
    order = ["x", "w", "b"]
    if draw.int(0, 1):
        inputs["z"] = (n, made, *out)
        order.append("z")
    attributes = {"kernel_shape": kernel, "pads": pads, "group": group, **draw.one(ACTIVATIONS)}
    return Case(
        "FusedConv", inputs, [0, 2, 3], weights, attributes, order, domain=MICROSOFT,
        made=((n, made, *out), TensorProto.FLOAT),
    )  # fmt: skip


def fused_gemm(draw: Draw) -> Case:
    inner, rows, columns = draw.one([3, 64, 200]), draw.int(1, 80), draw.int(1, 80)
    turned = draw.int(0, 1)
    weights = {
        "w": draw.floats(*((columns, inner) if turned else (inner, columns))),
        "b": draw.floats(columns),
    }
    attributes = {"transB": turned, "activation": draw.one(["Relu", "Tanh", "Sigmoid"])}
    return Case(
        "FusedGemm", {"x": (rows, inner)}, [0], weights, attributes, domain=MICROSOFT,
        made=((rows, columns), TensorProto.FLOAT),
    )  # fmt: skip


def fused_matmul(draw: Draw) -> Case:
    inner, rows, columns = draw.one([3, 64, 128, 200, 600]), draw.int(1, 60), draw.int(1, 60)
    leading = tuple(draw.ints(draw.int(0, 2), 1, 4))
    turn_left, turn_right = draw.int(0, 1), draw.int(0, 1)
    left = (*leading, *((inner, rows) if turn_left else (rows, inner)))
    right = (columns, inner) if turn_right else (inner, columns)
    attributes = {"transA": turn_left, "transB": turn_right, "alpha": draw.one([1.0, 0.25])}
    made = ((*leading, rows, columns), TensorProto.FLOAT)
    axes = range(len(leading) + 2)
    inputs: dict[str, tuple[int, ...]] = {"x": left}
    weights: dict[str, Array] = {}
    if draw.int(0, 1):
        weights["w"] = draw.floats(*right)
        axes = axes[:-1]
    else:
        inputs["z"] = right if draw.int(0, 2) == 0 else (*leading, *right)
    return Case("FusedMatMul", inputs, axes, weights, attributes, domain=MICROSOFT, made=made)


def bias_gelu(draw: Draw) -> Case:
    shape = tuple(draw.ints(draw.int(2, 3), 1, 40))
    weights = {"b": draw.floats(shape[-1])}
    made = (shape, TensorProto.FLOAT)
    return Case(
        "BiasGelu", {"x": shape}, range(len(shape) - 1), weights, domain=MICROSOFT, made=made
    )


def skip_norm(op: str) -> Maker:
    def make(draw: Draw) -> Case:
        shape = tuple(draw.ints(3, 1, 40))
        skip = draw.one([shape, shape, (1, *shape[1:]), shape[1:]])
        weights = {"g": draw.floats(shape[-1])}
        if op == "SkipLayerNormalization":
            weights["h"] = draw.floats(shape[-1])
        if draw.int(0, 1):
            weights["i"] = draw.floats(shape[-1])
        made = (shape, TensorProto.FLOAT)
        inputs = {"x": shape, "z": skip}
        return Case(op, inputs, [0, 1], weights, {"epsilon": 1e-5}, domain=MICROSOFT, made=made)

    return make


CASES: dict[str, tuple[Maker, ...]] = {
    f"{PREFIX}Conv": (blocked_conv,),
    **{
        f"{PREFIX}{op}": (blocked_pool(op),)
        for op in ("AveragePool", "MaxPool", "GlobalAveragePool", "GlobalMaxPool")
    },
    f"{PREFIX}Upsample": (blocked_upsample,),
    **{f"{PREFIX}{op}": (reorder(op),) for op in ("ReorderInput", "ReorderOutput")},
    "FusedConv": (fused_conv,),
    "FusedGemm": (fused_gemm,),
    "FusedMatMul": (fused_matmul,),
    "BiasGelu": (bias_gelu,),
    **{
        op: (skip_norm(op),)
        for op in ("SkipLayerNormalization", "SkipSimplifiedLayerNormalization")
    },
}
