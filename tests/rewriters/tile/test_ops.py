"""Every op of the table: cut on random axes into random tiles, the bits are those of the whole."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from onnxremat_rewriters.tile import Region, tile
from onnxremat_rewriters.tile.ranges import ELEMENTWISE, REDUCTIONS
from tests.rewriters.tile.nets import Array, build, tiled_exactly, types_of

T = TypeVar("T")
EXAMPLES = 20
UNARY = sorted(
    ELEMENTWISE
    & {
        "Abs", "Ceil", "Erf", "Exp", "Floor", "Gelu", "HardSigmoid", "FastGelu", "HardSwish", "Identity", "IsInf", "IsNaN",
        "LeakyRelu", "Neg", "QuickGelu", "Reciprocal", "Relu", "Round", "Sigmoid", "Sign",
        "Softsign", "Sqrt", "Tanh", "ThresholdedRelu",
    }
)  # fmt: skip
BINARY = ["Add", "Sub", "Mul", "Div", "Pow", "PRelu", "Max", "Min", "Mean", "Sum"]
COMPARING = ["Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"]
MICROSOFT = {"FastGelu", "Gelu", "QuickGelu"}


class Draw:
    """Random numbers that hypothesis can shrink."""

    def __init__(self, data: st.DataObject) -> None:
        self._data = data
        self.rng = np.random.default_rng(data.draw(st.integers(0, 9)))

    def int(self, low: int, high: int) -> int:
        return self._data.draw(st.integers(low, high))

    def ints(self, count: int, low: int, high: int) -> list[int]:
        return [self.int(low, high) for _ in range(count)]

    def one(self, choices: Sequence[T]) -> T:
        return choices[self.int(0, len(choices) - 1)]

    def floats(self, *shape: int) -> Array:
        return np.asarray(self.rng.standard_normal(shape), np.float32)


@dataclass
class Case:
    """A node, its inputs' shapes, its weights, and the axes of its output that may be cut."""

    op: str
    inputs: dict[str, tuple[int, ...]]
    axes: Sequence[int]
    weights: dict[str, Array] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    order: Sequence[str] = ()
    outputs: Sequence[str] = ("y",)
    opset: int = 17
    dtype: int = TensorProto.FLOAT

    def model(self) -> onnx.ModelProto:
        order = self.order or [*self.inputs, *self.weights]
        domain = "com.microsoft" if self.op in MICROSOFT and self.opset < 20 else ""
        node = helper.make_node(
            self.op, list(order), list(self.outputs), "node", domain=domain, **self.attributes
        )
        nodes = [node]
        made = build(nodes, self.inputs, self.weights, self.outputs, self.opset, self.dtype)
        if domain:  # elementwise ops that the checker does not know
            kind = helper.make_tensor_value_info("y", self.dtype, self.inputs["x"])
            made.graph.output[0].CopyFrom(kind)
        return made


def check(draw: Draw, case: Case) -> None:
    model = case.model()
    output = model.graph.output[draw.int(0, len(model.graph.output) - 1)]
    shape = [d.dim_value for d in output.type.tensor_type.shape.dim]
    assume(shape and 0 not in shape)
    axes = [a for a in case.axes if shape[a] > 1]
    assume(axes)
    first = draw.one(axes)
    grid = [(first, draw.int(2, shape[first]))]
    rest = [a for a in axes if a != first]
    if rest and draw.int(0, 1):
        second = draw.one(rest)
        grid.append((second, draw.int(2, shape[second])))
    carry = bool(draw.int(0, 1))
    if carry:
        model = behind_identities(model)
    region = Region(tuple(case.inputs), (output.name,), tuple(grid), carry=carry)
    made = tiled_exactly(model, region)
    crops_only = case.op in ("Concat", "Split", "Slice")
    crops_only |= carry  # the first tile may have had to make all
    assert crops_only or len({o.tile for o in made.origin if o.tile is not None}) > 1


def behind_identities(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its inputs passed on by nodes, whose values tiles can carry."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    inputs = [value.name for value in graph.input]
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name in inputs:
                node.input[i] = f"{name}_same"
    for value in reversed(graph.input):
        graph.node.insert(0, helper.make_node("Identity", [value.name], [f"{value.name}_same"]))
        kind = graph.value_info.add()
        kind.CopyFrom(value)
        kind.name = f"{value.name}_same"
    return made


def window(draw: Draw, n: int) -> tuple[list[int], dict[str, Any]]:
    kernel = draw.ints(n, 1, 4)
    attributes = {
        "strides": draw.ints(n, 1, 3),
        "dilations": draw.ints(n, 1, 2),
        "kernel_shape": kernel,
    }
    auto = draw.one(["NOTSET", "NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"])
    if auto == "NOTSET":
        attributes["pads"] = [draw.int(0, k - 1) for k in kernel * 2]
    else:
        attributes["auto_pad"] = auto
        if auto != "VALID":
            attributes["dilations"] = [1] * n
            attributes["strides"] = [draw.int(1, k) for k in kernel]
    return kernel, attributes


def conv(draw: Draw) -> Case:
    n = draw.one([1, 2, 2, 2, 3])
    kernel, attributes = window(draw, n)
    group = draw.one([1, 1, 2, 4])
    cin, cout = draw.one([1, 1, 3, 20]), draw.one([1, 2, 9])
    size = draw.ints(n, 8, 14 if n > 2 else 24)
    weights = {"w": draw.floats(group * cout, cin, *kernel), "b": draw.floats(group * cout)}
    shape = (draw.int(1, 2), group * cin, *size)
    attributes["group"] = group
    return Case("Conv", {"x": shape}, [0, *range(2, n + 2)], weights, attributes)


def conv_many_channels(draw: Draw) -> Case:
    k = draw.one([1, 3])
    cin, cout = draw.one([32, 150, 300]), draw.one([1, 8, 70, 200])
    shape = (draw.int(1, 2), cin, draw.int(3, 24), draw.int(3, 24))
    attributes = {"pads": [k // 2] * 4, "strides": [draw.one([1, 1, 2])] * 2}
    return Case("Conv", {"x": shape}, [0, 2, 3], {"w": draw.floats(cout, cin, k, k)}, attributes)


def conv_transpose(draw: Draw) -> Case:
    n = draw.one([1, 2, 2, 2])
    kernel, stride, dilation = draw.ints(n, 1, 4), draw.ints(n, 1, 3), draw.ints(n, 1, 2)
    group = draw.one([1, 1, 2])
    cin, cout = draw.one([1, 3, 20, 150]), draw.one([1, 4])
    weights = {"w": draw.floats(group * cin, cout, *kernel), "b": draw.floats(group * cout)}
    attributes: dict[str, Any] = {
        "strides": stride, "dilations": dilation, "group": group, "kernel_shape": kernel,
        "pads": [draw.int(0, (k - 1) * d // 2) for k, d in zip(kernel * 2, dilation * 2, strict=True)],
        "output_padding": [draw.int(0, s - 1) for s in stride],
    }  # fmt: skip
    shape = (draw.int(1, 2), group * cin, *draw.ints(n, 2, 14))
    return Case("ConvTranspose", {"x": shape}, [0, *range(2, n + 2)], weights, attributes)


def pool(op: str) -> Callable[[Draw], Case]:
    def make(draw: Draw) -> Case:
        n = draw.one([1, 2, 2, 2, 3])
        kernel, attributes = window(draw, n)
        if "auto_pad" not in attributes:
            attributes["ceil_mode"] = draw.int(0, 1)
            if attributes["ceil_mode"]:  # no window that lies in the padding alone
                attributes["strides"] = [draw.int(1, k) for k in kernel]
                attributes["pads"][n:] = [0] * n
        if op == "AveragePool":
            attributes["count_include_pad"] = draw.int(0, 1)
        shape = (draw.int(1, 2), draw.int(1, 5), *draw.ints(n, 8, 14 if n > 2 else 24))
        return Case(op, {"x": shape}, range(n + 2), attributes=attributes, opset=19)

    return make


def global_pool(draw: Draw) -> Case:
    op = draw.one(["GlobalAveragePool", "GlobalMaxPool"])
    return Case(op, {"x": tuple(draw.ints(4, 2, 9))}, [0, 1])


def shape_of(draw: Draw, low: int = 1, high: int = 4, most: int = 9) -> tuple[int, ...]:
    return tuple(draw.ints(draw.int(low, high), 1, most))


def unary(op: str) -> Callable[[Draw], Case]:
    def make(draw: Draw) -> Case:
        shape = (*shape_of(draw, 0, 2), *draw.ints(2, 1, 40))
        return Case(op, {"x": shape}, range(len(shape)))

    return make


def broadcast(draw: Draw, shape: tuple[int, ...]) -> tuple[int, ...]:
    kept = tuple(n if draw.int(0, 2) else 1 for n in shape)
    return kept[draw.int(0, len(shape)) if draw.int(0, 3) == 0 else 0 :]


def binary(op: str) -> Callable[[Draw], Case]:
    def make(draw: Draw) -> Case:
        shape = (*shape_of(draw, 0, 2), *draw.ints(2, 1, 20))
        other = broadcast(draw, shape)
        if draw.int(0, 1):
            weights = {"w": np.abs(draw.floats(*other)) + np.float32(0.1)}
            return Case(op, {"x": shape}, range(len(shape)), weights)
        inputs = {"x": shape, "z": other}
        swapped = draw.int(0, 1) and op not in ("PRelu",)
        order = ["z", "x"] if swapped else ["x", "z"]
        return Case(op, inputs, range(len(shape)), order=order)

    return make


def logical(draw: Draw) -> Case:
    shape = tuple(draw.ints(2, 1, 20))
    op = draw.one(["And", "Or", "Xor"])
    return Case(op, {"x": shape, "z": broadcast(draw, shape)}, range(2), dtype=TensorProto.BOOL)


def integer(draw: Draw) -> Case:
    shape = tuple(draw.ints(2, 1, 20))
    op = draw.one(["BitwiseAnd", "BitwiseOr", "BitwiseXor", "Mod"])
    weights = {"w": np.asarray(draw.rng.integers(1, 9, broadcast(draw, shape)), np.int32)}
    return Case(op, {"x": shape}, range(2), weights, opset=18, dtype=TensorProto.INT32)


def inverted(draw: Draw) -> Case:
    shape = tuple(draw.ints(2, 1, 20))
    if draw.int(0, 1):
        return Case("Not", {"x": shape}, range(2), dtype=TensorProto.BOOL)
    return Case("BitwiseNot", {"x": shape}, range(2), opset=18, dtype=TensorProto.INT32)


def clip(draw: Draw) -> Case:
    shape = shape_of(draw)
    bounds = {"lo": np.float32(-0.5), "hi": np.float32(0.5)}
    return Case(
        "Clip", {"x": shape}, range(len(shape)), {k: np.asarray(v) for k, v in bounds.items()}
    )


def where(draw: Draw) -> Case:
    shape = shape_of(draw, 2)
    condition = np.asarray(draw.rng.random(broadcast(draw, shape)) < 0.5)
    return Case(
        "Where", {"x": shape, "z": broadcast(draw, shape)}, range(len(shape)), {"c": condition},
        order=["c", "x", "z"],
    )  # fmt: skip


def cast(draw: Draw) -> Case:
    shape = shape_of(draw)
    to = draw.one([TensorProto.INT32, TensorProto.UINT8, TensorProto.DOUBLE, TensorProto.FLOAT16])
    return Case("Cast", {"x": shape}, range(len(shape)), attributes={"to": to})


def batch_norm(draw: Draw) -> Case:
    shape = (draw.int(1, 3), draw.int(1, 9), *shape_of(draw, 1, 3))
    weights = {name: draw.floats(shape[1]) for name in "abcd"}
    weights["d"] = np.abs(weights["d"]) + np.float32(0.1)
    return Case("BatchNormalization", {"x": shape}, range(len(shape)), weights)


def quantize(draw: Draw) -> Case:
    shape = (draw.int(1, 3), draw.int(1, 9), *shape_of(draw, 0, 2))
    axis = draw.int(0, len(shape) - 1)
    vector = () if draw.int(0, 1) else (shape[axis],)
    scale = np.abs(draw.floats(*vector)) + np.float32(0.02)
    zero = np.asarray(draw.rng.integers(-9, 9, vector), np.int8)
    if draw.int(0, 1):
        return Case(
            "QuantizeLinear",
            {"x": shape},
            range(len(shape)),
            {"s": scale, "z": zero},
            {"axis": axis},
        )
    return Case(
        "DequantizeLinear", {"x": shape}, range(len(shape)), {"s": scale, "z": zero},
        {"axis": axis}, dtype=TensorProto.INT8,
    )  # fmt: skip


def qlinear_conv(draw: Draw) -> Case:
    kernel, attributes = window(draw, 2)
    cin, cout, group = draw.one([1, 3, 40]), draw.int(1, 6), draw.one([1, 2])
    signed = np.int8
    weights = {
        "xs": np.asarray(np.float32(0.03)), "xz": np.asarray(3, signed),
        "w": np.asarray(draw.rng.integers(-99, 99, (group * cout, cin, *kernel)), signed),
        "ws": np.asarray(np.float32(0.02)), "wz": np.asarray(0, signed),
        "ys": np.asarray(np.float32(0.4)), "yz": np.asarray(-5, signed),
        "b": np.asarray(draw.rng.integers(-99, 99, group * cout), np.int32),
    }  # fmt: skip
    shape = (draw.int(1, 2), group * cin, *draw.ints(2, 8, 20))
    attributes["group"] = group
    return Case("QLinearConv", {"x": shape}, [0, 2, 3], weights, attributes, dtype=TensorProto.INT8)


def conv_integer(draw: Draw) -> Case:
    kernel, attributes = window(draw, 2)
    cin, cout = draw.one([1, 3, 40]), draw.int(1, 6)
    weights = {"w": np.asarray(draw.rng.integers(0, 99, (cout, cin, *kernel)), np.uint8)}
    shape = (draw.int(1, 2), cin, *draw.ints(2, 8, 20))
    return Case(
        "ConvInteger", {"x": shape}, [0, 2, 3], weights, attributes, dtype=TensorProto.UINT8
    )


def concat(draw: Draw) -> Case:
    shape = shape_of(draw)
    axis = draw.int(0, len(shape) - 1)
    inputs = {
        f"x{i}": (*shape[:axis], draw.int(1, 5), *shape[axis + 1 :]) for i in range(draw.int(1, 4))
    }
    return Case("Concat", inputs, range(len(shape)), attributes={"axis": axis - len(shape)})


def split(draw: Draw) -> Case:
    axis = draw.int(0, 2)
    sizes = draw.ints(draw.int(1, 3), 1, 6)
    shape = draw.ints(3, 1, 9)
    shape[axis] = sum(sizes)
    outputs = [f"y{i}" for i in range(len(sizes))]
    weights = {"s": np.array(sizes, np.int64)}
    return Case("Split", {"x": tuple(shape)}, range(3), weights, {"axis": axis}, outputs=outputs)


def slice_(draw: Draw) -> Case:
    shape = tuple(draw.ints(3, 4, 20))
    axes = [a for a in range(3) if draw.int(0, 1)]
    assume(axes)
    steps = [draw.one([1, 1, 2, 3, -1, -2]) for _ in axes]
    starts = [draw.int(0, 3) if s > 0 else draw.one([-1, -2, 100]) for s in steps]
    ends = [draw.one([100, -1]) if s > 0 else draw.one([-100, 1]) for s in steps]
    values = {"s": starts, "e": ends, "a": axes, "p": steps}
    return Case(
        "Slice", {"x": shape}, range(3), {k: np.array(v, np.int64) for k, v in values.items()}
    )


def transpose(draw: Draw) -> Case:
    shape = shape_of(draw)
    perm = [int(a) for a in draw.rng.permutation(len(shape))]
    return Case("Transpose", {"x": shape}, range(len(shape)), attributes={"perm": perm})


def depth_space(draw: Draw) -> Case:
    block, c, h, w = draw.one([1, 2, 3]), draw.int(1, 3), draw.int(1, 7), draw.int(1, 7)
    n = draw.int(1, 2)
    if draw.int(0, 1):
        shape = (n, c * block * block, h, w)
        mode = draw.one(["DCR", "CRD"])
        return Case(
            "DepthToSpace", {"x": shape}, [0, 2, 3], attributes={"blocksize": block, "mode": mode}
        )
    return Case(
        "SpaceToDepth",
        {"x": (n, c, h * block, w * block)},
        [0, 2, 3],
        attributes={"blocksize": block},
    )


def gather(draw: Draw) -> Case:
    shape = tuple(draw.ints(3, 2, 9))
    axis = draw.int(0, 2)
    indices = np.asarray(draw.rng.integers(-2, 2, shape_of(draw, 0, 2)), np.int64)
    rank = 2 + indices.ndim
    return Case("Gather", {"x": shape}, range(rank), {"i": indices}, {"axis": axis})


FACTORS = [
    (2, 3, 4),
    (6, 4),
    (24,),
    (4, 6),
    (2, 12),
    (12, 2),
    (2, 2, 6),
    (8, 3),
    (1, 24),
    (3, 1, 8),
]


def reshape(draw: Draw) -> Case:
    before, after = draw.one(FACTORS), draw.one(FACTORS)
    lead, behind = tuple(draw.ints(draw.int(0, 1), 1, 3)), tuple(draw.ints(draw.int(0, 1), 1, 5))
    shape, target = (*lead, *before, *behind), [*lead, *after, *behind]
    if draw.int(0, 1):
        target[draw.int(0, len(target) - 1)] = -1
    return Case("Reshape", {"x": shape}, range(len(target)), {"s": np.array(target, np.int64)})


def squeeze(draw: Draw) -> Case:
    shape = draw.one([(1, 6, 7), (6, 1, 7), (6, 1, 7, 1), (1, 6, 1)])
    weights = {} if draw.int(0, 1) else {"a": np.array([shape.index(1)], np.int64)}
    rank = len(shape) - (len(weights) or shape.count(1))
    return Case("Squeeze", {"x": shape}, range(rank), weights)


def unsqueeze(draw: Draw) -> Case:
    axes = draw.one([[0], [1], [0, 2], [-1]])
    return Case("Unsqueeze", {"x": (6, 7)}, range(2 + len(axes)), {"a": np.array(axes, np.int64)})


def flatten(draw: Draw) -> Case:
    return Case("Flatten", {"x": (4, 3, 2, 5)}, [0, 1], attributes={"axis": draw.int(0, 4)})


def expand(draw: Draw) -> Case:
    shape = tuple(draw.ints(3, 1, 9))
    source = broadcast(draw, shape)
    return Case("Expand", {"x": source}, range(3), {"s": np.array(shape, np.int64)})


def pad(draw: Draw) -> Case:
    mode = draw.one(["constant", "edge", "reflect"])
    shape = tuple(draw.ints(3, 4, 12))
    low = -1 if mode == "constant" else 0
    amounts = draw.ints(6, low, 3)
    weights = {"p": np.array(amounts, np.int64)}
    if mode == "constant" and draw.int(0, 1):
        weights["v"] = np.asarray(np.float32(1.5))
    return Case("Pad", {"x": shape}, range(3), weights, {"mode": mode})


def resize(draw: Draw) -> Case:
    mode = draw.one(["nearest", "linear", "cubic"])
    attributes: dict[str, Any] = {"mode": mode}
    modes = ["half_pixel", "pytorch_half_pixel", "asymmetric"]
    if mode == "nearest":
        modes = ["half_pixel", "asymmetric"]
        attributes["nearest_mode"] = draw.one(
            ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"]
        )
    attributes["coordinate_transformation_mode"] = draw.one(modes)
    if mode == "cubic":
        attributes["cubic_coeff_a"] = draw.one([-0.75, -0.5])
        attributes["exclude_outside"] = draw.int(0, 1)
    up = [1.0, 2.0, 4.0, 8.0, 3.0, 5.0] if mode == "nearest" else [1.0, 2.0, 4.0, 8.0]
    scales = [draw.one(up) for _ in range(2)]
    if draw.int(0, 2) == 0:
        scales = [draw.one([1.0, 0.5, 0.25]) for _ in range(2)]
    size = draw.ints(2, 4, 12)
    by_sizes = draw.int(0, 1)
    weights: dict[str, Array] = {"r": np.zeros(0, np.float32)}
    if by_sizes:
        size = [n // 4 * 4 for n in size]
        made = [int(n * s) for n, s in zip(size, scales, strict=True)]
        weights["s"] = np.zeros(0, np.float32)
        weights["z"] = np.array([1, 2, *made], np.int64)
    else:
        weights["s"] = np.array([1, 1, *scales], np.float32)
    return Case("Resize", {"x": (1, 2, *size)}, [1, 2, 3], weights, attributes, opset=18)


def upsample(draw: Draw) -> Case:
    mode = draw.one(["nearest", "linear"])
    weights = {"s": np.array([1, 1, draw.one([2, 4]), draw.one([1, 2])], np.float32)}
    shape = (1, 2, *draw.ints(2, 2, 9))
    return Case("Upsample", {"x": shape}, [1, 2, 3], weights, {"mode": mode}, opset=9)


def matmul(draw: Draw) -> Case:
    inner = draw.one([3, 64, 128, 200, 600])
    rows, columns = draw.int(1, 80), draw.int(1, 80)
    leading = tuple(draw.ints(draw.int(0, 2), 1, 4))
    left = (*leading, rows, inner)
    axes = range(len(leading) + 2)
    if draw.int(0, 1):
        weights = {"w": draw.floats(inner, columns)}
        return Case("MatMul", {"x": left}, axes[:-1], weights)
    shared = leading and draw.int(0, 2) == 0
    right = (inner, columns) if shared else (*leading, inner, columns)
    return Case("MatMul", {"x": left, "z": right}, axes)


def gemm(draw: Draw) -> Case:
    inner = draw.one([3, 64, 200, 600])
    rows, columns = draw.int(1, 80), draw.int(1, 80)
    turned = draw.int(0, 1), draw.int(0, 1)
    attributes = {"transA": turned[0], "transB": turned[1], "alpha": draw.one([1.0, 0.5])}
    left = (inner, rows) if turned[0] else (rows, inner)
    right = (columns, inner) if turned[1] else (inner, columns)
    bias = draw.one([(), (columns,), (rows, 1), (rows, columns)])
    if draw.int(0, 1):
        weights = {"w": draw.floats(*right), "b": draw.floats(*bias)}
        return Case("Gemm", {"x": left}, [0], weights, attributes)
    return Case("Gemm", {"x": left, "z": right}, [0, 1], {"b": draw.floats(*bias)}, attributes)


def softmax(draw: Draw) -> Case:
    shape = tuple(draw.ints(draw.int(2, 4), 1, 20))
    axis = draw.int(0, len(shape) - 1)
    opset = draw.one([11, 17])
    axes = [a for a in range(len(shape)) if (a < axis if opset < 13 else a != axis)]
    op = draw.one(["Softmax", "LogSoftmax"])
    return Case(op, {"x": shape}, axes, attributes={"axis": axis}, opset=opset)


def layer_norm(draw: Draw) -> Case:
    shape = tuple(draw.ints(draw.int(2, 4), 1, 40))
    axis = draw.int(1, len(shape) - 1)
    weights = {"w": draw.floats(*shape[axis:]), "b": draw.floats(*shape[axis:])}
    return Case("LayerNormalization", {"x": shape}, range(axis), weights, {"axis": axis})


def lp_norm(draw: Draw) -> Case:
    shape = tuple(draw.ints(3, 2, 12))
    axis = draw.int(0, 2)
    attributes = {"axis": axis, "p": draw.one([1, 2])}
    return Case("LpNormalization", {"x": shape}, [a for a in range(3) if a != axis], {}, attributes)


def cumsum(draw: Draw) -> Case:
    shape = tuple(draw.ints(3, 2, 12))
    axis = draw.int(0, 2)
    weights = {"a": np.asarray(axis, np.int64)}
    return Case("CumSum", {"x": shape}, [a for a in range(3) if a != axis], weights)


def instance_norm(draw: Draw) -> Case:
    shape = (draw.int(1, 3), draw.int(2, 6), draw.int(1, 3) * 4, draw.int(1, 3) * 4)
    weights = {"s": draw.floats(shape[1]), "b": draw.floats(shape[1])}
    return Case("InstanceNormalization", {"x": shape}, [0, 1], weights)


def reduction(op: str) -> Callable[[Draw], Case]:
    def make(draw: Draw) -> Case:
        shape = tuple(draw.ints(draw.int(2, 4), 1, 20))
        rank = len(shape)
        keep = draw.int(0, 1)
        axis = draw.int(0, rank - 1)
        axes = {axis} if op.startswith("Arg") else {axis, draw.int(0, rank - 1)}
        kept = [a for a in range(rank) if a not in axes]
        cut = kept if keep else range(len(kept))
        if op in ("ReduceSum", "ReduceMean"):
            last = 16 * draw.int(1, 3) if rank - 1 in axes else max(shape[-1], 2)
            shape = (*shape[:-1], last)
        attributes: dict[str, Any] = {"keepdims": keep}
        weights = {}
        if op.startswith("Arg"):
            attributes["axis"] = axis
        elif op == "ReduceSum":
            weights["a"] = np.array(sorted(axes), np.int64)
        else:
            attributes["axes"] = sorted(axes)
        return Case(op, {"x": shape}, cut, weights, attributes)

    return make


CASES: dict[str, Callable[[Draw], Case]] = {
    "Conv": conv,
    "Conv, many channels": conv_many_channels,
    "ConvTranspose": conv_transpose,
    "MaxPool": pool("MaxPool"),
    "AveragePool": pool("AveragePool"),
    "GlobalPool": global_pool,
    **{op: unary(op) for op in UNARY},
    **{op: binary(op) for op in BINARY},
    **{op: binary(op) for op in COMPARING},
    "logical": logical,
    "integer": integer,
    "inverted": inverted,
    "Clip": clip,
    "Where": where,
    "Cast": cast,
    "BatchNormalization": batch_norm,
    "quantize": quantize,
    "QLinearConv": qlinear_conv,
    "ConvInteger": conv_integer,
    "Concat": concat,
    "Split": split,
    "Slice": slice_,
    "Transpose": transpose,
    "DepthToSpace, SpaceToDepth": depth_space,
    "Gather": gather,
    "Reshape": reshape,
    "Squeeze": squeeze,
    "Unsqueeze": unsqueeze,
    "Flatten": flatten,
    "Expand": expand,
    "Pad": pad,
    "Resize": resize,
    "Upsample": upsample,
    "MatMul": matmul,
    "Gemm": gemm,
    "Softmax": softmax,
    "LayerNormalization": layer_norm,
    "LpNormalization": lp_norm,
    "CumSum": cumsum,
    "InstanceNormalization": instance_norm,
    **{op: reduction(op) for op in sorted(REDUCTIONS)},
}


@pytest.mark.parametrize("name", CASES)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(data=st.data())
def test_tiles_have_the_bits_of_the_whole(name: str, data: st.DataObject) -> None:
    draw = Draw(data)
    check(draw, CASES[name](draw))


RNG = np.random.default_rng(0)
SIZES: dict[str, tuple[Case, tuple[tuple[int, int], ...]]] = {
    "ReduceMean, fewer rows than threads": (
        Case("ReduceMean", {"x": (1, 8, 16, 25)}, [], attributes={"axes": [2]}), ((1, 4),)
    ),
    "ReduceSum, fewer images than threads": (
        Case("ReduceSum", {"x": (2, 4, 18, 36)}, [], {"a": np.array([2])}), ((0, 2), (1, 3))
    ),
    "ReduceSum, fewer rows than threads": (
        Case("ReduceSum", {"x": (5, 7, 16)}, [], {"a": np.array([0, 2])}), ((1, 5),)
    ),
    "AveragePool, a tile of one window": (
        Case("AveragePool", {"x": (1, 16, 5, 3)}, [], attributes={"kernel_shape": [3, 3]}),
        ((2, 3),),
    ),
    "AveragePool, one window in a row": (
        Case("AveragePool", {"x": (1, 8, 33)}, [], attributes={"kernel_shape": [9]}), ((2, 25),)
    ),
    "AveragePool, long rows": (
        Case("AveragePool", {"x": (1, 1, 4, 4100)}, [], attributes={"kernel_shape": [3, 3]}),
        ((3, 3),),
    ),
    "AveragePool, rows as long as the buffer": (
        Case("AveragePool", {"x": (1, 1, 4, 2046)}, [], attributes={"kernel_shape": [3, 3]}),
        ((3, 3),),
    ),
    "ConvTranspose, one filter, pixel by pixel": (
        Case("ConvTranspose", {"x": (1, 20, 4, 2)}, [], {"w": RNG.random((20, 1, 1, 1), "f")}),
        ((2, 4), (3, 2)),
    ),
    "Gemm, a row and a turned matrix": (
        Case("Gemm", {"x": (1, 300), "w": (33, 300)}, [], attributes={"transB": 1}), ((1, 10),)
    ),
    "Pow, the same power of each element": (
        Case("Pow", {"x": (3, 32, 8, 8)}, [], {"w": np.float32(3)}), ((3, 8),)
    ),
    "Pow, a power of each row": (
        Case("Pow", {"x": (1, 8, 34, 18)}, [], {"w": np.full((34, 1), 0.5, np.float32)}),
        ((3, 18),),
    ),
}  # fmt: skip
"""Tiles of sizes for which the runtime has another kernel."""


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", SIZES)
def test_tiles_that_another_kernel_would_take_are_widened(name: str, threads: int) -> None:
    case, grid = SIZES[name]
    tiled_exactly(case.model(), Region(("x",), ("y",), grid), threads=threads)


def refused_cases() -> dict[str, tuple[Case, int, str]]:
    """Cases that must not be cut on an axis, and words of the reason."""
    x = {"x": (4, 6, 10, 10)}
    norm = {"s": np.ones(6, np.float32), "b": np.ones(6, np.float32)}
    filters = {"w": np.ones((6, 6, 3, 3), np.float32)}
    roi = {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 1.5, 1.5], np.float32)}
    corners = {"r": roi["r"], "s": np.array([1, 1, 2, 2], np.float32)}
    align = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    tails = {op: (Case(op, x, []), 2, "last elements") for op in ("Log", "Softplus", "Elu", "Selu")}
    tails |= {op: (Case(op, x, []), 2, "last elements") for op in ("Sin", "Cos", "Atan", "Tan")}
    return {
        **tails,
        "Conv, channels": (Case("Conv", x, [], filters), 1, "channels"),
        "Conv, double": (
            Case("Conv", x, [], {"w": np.ones((6, 6, 3, 3))}, dtype=TensorProto.DOUBLE),
            2, "double were not measured",
        ),
        "Softmax": (Case("Softmax", x, [], attributes={"axis": 2}), 2, "all of axis 2"),
        "InstanceNormalization": (Case("InstanceNormalization", x, [], norm), 2, "whole images"),
        "LRN": (Case("LRN", x, [], attributes={"size": 3}), 2, "channels"),
        "Resize, other scale": (
            Case("Resize", x, [], roi, {"mode": "linear"}), 2, "scale of 1.5 round"
        ),
        "Resize, corners": (Case("Resize", x, [], corners, align), 2, "depend on the whole length"),
        "Pad, wrap": (
            Case("Pad", x, [], {"p": np.ones(8, np.int64)}, {"mode": "wrap"}, opset=19), 2, "wrap",
        ),
        "ReduceSum, odd": (
            Case("ReduceSum", x, [], {"a": np.array([3])}), 2, "odd addresses"
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", refused_cases())
def test_what_cannot_be_cut_exactly_is_refused_with_the_reason(name: str) -> None:
    case, axis, reason = refused_cases()[name]
    model = case.model()
    region = Region(("x",), ("y",), ((axis, 2),))
    made = tile(model, [region], types_of(model), threads=2)
    assert len(made.refused) == 1
    assert made.refused[0].reason.startswith("node: ")
    assert reason in made.refused[0].reason
    assert len(made.model.graph.node) == 1
