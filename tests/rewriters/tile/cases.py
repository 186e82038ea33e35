"""A random node of every op that can be cut."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import onnx
from hypothesis import assume
from hypothesis import strategies as st
from onnx import TensorProto, helper

from tests.rewriters.tile.nets import Array, build

T = TypeVar("T")
MICROSOFT = "com.microsoft"


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
    """A node, its inputs' shapes, its weights, and the axes of its output that may be cut.

    `dtype`: of the inputs. `given`: inputs that are known at run time only, whose values cannot be
    random (indices). `made`: shape and type of the output, where onnx cannot tell.
    """

    op: str
    inputs: dict[str, tuple[int, ...]]
    axes: Sequence[int]
    weights: dict[str, Array] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    order: Sequence[str] = ()
    outputs: Sequence[str] = ("y",)
    opset: int = 17
    dtype: int = TensorProto.FLOAT
    given: dict[str, Array] = field(default_factory=dict)
    domain: str = ""
    made: tuple[tuple[int, ...], int] | None = None

    def model(self) -> onnx.ModelProto:
        order = self.order or [*self.inputs, *self.given, *self.weights]
        node = helper.make_node(
            self.op, list(order), list(self.outputs), "node", domain=self.domain, **self.attributes
        )
        made = build(
            [node], self.inputs, self.weights, self.outputs, self.opset, self.dtype, self.given
        )
        if self.made is not None:
            shape, dtype = self.made
            made.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", dtype, shape))
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


def global_pool(op: str) -> Callable[[Draw], Case]:
    return lambda draw: Case(op, {"x": tuple(draw.ints(4, 2, 9))}, [0, 1])


def shape_of(draw: Draw, low: int = 1, high: int = 4, most: int = 9) -> tuple[int, ...]:
    return tuple(draw.ints(draw.int(low, high), 1, most))


def unary(op: str, opset: int = 17, domain: str = "") -> Callable[[Draw], Case]:
    def make(draw: Draw) -> Case:
        shape = (*shape_of(draw, 0, 2), *draw.ints(2, 1, 40))
        made = (shape, TensorProto.FLOAT) if domain else None
        return Case(op, {"x": shape}, range(len(shape)), opset=opset, domain=domain, made=made)

    return make


def half(op: str) -> Callable[[Draw], Case]:
    def make(draw: Draw) -> Case:
        shape = tuple(draw.ints(3, 1, 30))
        return Case(op, {"x": shape}, range(3), dtype=TensorProto.FLOAT16)

    return make


def with_tail(op: str) -> Callable[[Draw], Case]:
    """Sizes with which the whole ends with a vector, and also such with which it does not."""

    def make(draw: Draw) -> Case:
        step = draw.one([1, 2, 4, 4, 8])
        shape = (*draw.ints(2, 1, 6), draw.int(1, 40) * step, draw.int(1, 40) * draw.one([1, 4]))
        return Case(op, {"x": shape}, range(4), opset=18)

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


def logical(op: str) -> Callable[[Draw], Case]:
    def make(draw: Draw) -> Case:
        shape = tuple(draw.ints(2, 1, 20))
        inputs = {"x": shape, "z": broadcast(draw, shape)}
        return Case(op, inputs, range(2), dtype=TensorProto.BOOL)

    return make


def integer(op: str) -> Callable[[Draw], Case]:
    def make(draw: Draw) -> Case:
        shape = tuple(draw.ints(2, 1, 20))
        weights = {"w": np.asarray(draw.rng.integers(1, 9, broadcast(draw, shape)), np.int32)}
        return Case(op, {"x": shape}, range(2), weights, opset=18, dtype=TensorProto.INT32)

    return make


def inverted(op: str) -> Callable[[Draw], Case]:
    dtype = TensorProto.BOOL if op == "Not" else TensorProto.INT32

    def make(draw: Draw) -> Case:
        return Case(op, {"x": tuple(draw.ints(2, 1, 20))}, range(2), opset=18, dtype=dtype)

    return make


def parametric(op: str) -> Callable[[Draw], Case]:
    """QLinear ops of one operand: with its scale and zero point, then the result's."""

    def make(draw: Draw) -> Case:
        shape = (*shape_of(draw, 0, 2), *draw.ints(2, 1, 40))
        signed = draw.int(0, 1)
        kind = TensorProto.INT8 if signed else TensorProto.UINT8
        weights = {}
        for name in "ac":
            weights[f"{name}s"] = np.asarray(np.float32(draw.one([0.02, 0.1, 0.37])))
            zero = draw.int(-9, 9) if signed else draw.int(90, 140)
            weights[f"{name}z"] = np.asarray(zero, np.int8 if signed else np.uint8)
        inputs, order = {"x": shape}, ["x", "as", "az"]
        attributes = {"alpha": 0.3} if op == "QLinearLeakyRelu" else {}
        order += ["cs", "cz"]
        read = {name: value for name, value in weights.items() if name in order}
        return Case(
            op, inputs, range(len(shape)), read, attributes, order, dtype=kind, domain=MICROSOFT,
            made=(shape, kind),
        )  # fmt: skip

    return make


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


def quantize(op: str) -> Callable[[Draw], Case]:
    dtype = TensorProto.FLOAT if op == "QuantizeLinear" else TensorProto.INT8

    def make(draw: Draw) -> Case:
        shape = (draw.int(1, 3), draw.int(1, 9), *shape_of(draw, 0, 2))
        axis = draw.int(0, len(shape) - 1)
        vector = () if draw.int(0, 1) else (shape[axis],)
        weights = {
            "s": np.abs(draw.floats(*vector)) + np.float32(0.02),
            "z": np.asarray(draw.rng.integers(-9, 9, vector), np.int8),
        }
        attributes = {"axis": axis}
        return Case(op, {"x": shape}, range(len(shape)), weights, attributes, dtype=dtype)

    return make


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


def depth_to_space(draw: Draw) -> Case:
    block, c, h, w = draw.one([1, 2, 3]), draw.int(1, 3), draw.int(1, 7), draw.int(1, 7)
    shape = (draw.int(1, 2), c * block * block, h, w)
    attributes = {"blocksize": block, "mode": draw.one(["DCR", "CRD"])}
    return Case("DepthToSpace", {"x": shape}, [0, 2, 3], attributes=attributes)


def space_to_depth(draw: Draw) -> Case:
    block, c, h, w = draw.one([1, 2, 3]), draw.int(1, 3), draw.int(1, 7), draw.int(1, 7)
    shape = (draw.int(1, 2), c, h * block, w * block)
    return Case("SpaceToDepth", {"x": shape}, [0, 2, 3], attributes={"blocksize": block})


def gather(draw: Draw) -> Case:
    shape = tuple(draw.ints(3, 2, 9))
    axis = draw.int(0, 2)
    indices = np.asarray(draw.rng.integers(-2, 2, shape_of(draw, 0, 2)), np.int64)
    rank = 2 + indices.ndim
    return Case("Gather", {"x": shape}, range(rank), {"i": indices}, {"axis": axis})


def gather_elements(draw: Draw) -> Case:
    shape = tuple(draw.ints(draw.int(1, 4), 1, 9))
    rank = len(shape)
    axis = draw.int(0, rank - 1)
    taken = [draw.int(1, size) for size in shape]  # indices may leave out the ends of other axes
    taken[axis] = draw.int(1, 12)
    kind = draw.one([np.int32, np.int64])
    indices = {"i": np.asarray(draw.rng.integers(-shape[axis], shape[axis], taken), kind)}
    attributes = {"axis": axis - draw.one([0, rank])}
    weights, given = draw.one([(indices, {}), ({}, indices)])
    return Case("GatherElements", {"x": shape}, range(rank), weights, attributes, given=given)


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


def resize_anyhow(draw: Draw) -> Case:
    """Linear, to any size or by any scale, corners aligned or not."""
    modes = ["align_corners", "align_corners", "half_pixel", "pytorch_half_pixel", "asymmetric"]
    attributes = {"mode": "linear", "coordinate_transformation_mode": draw.one(modes)}
    size = draw.ints(2, 1, 70)
    weights: dict[str, Array] = {"r": np.zeros(0, np.float32), "s": np.zeros(0, np.float32)}
    if draw.int(0, 1):
        weights["z"] = np.array([1, 2, *draw.ints(2, 1, 99)], np.int64)
    else:
        scales = [draw.one([0.3, 0.75, 1.0, 1.5, 2.0, 2.3, 3.0]) for _ in range(2)]
        assume(all(n * s >= 1 for n, s in zip(size, scales, strict=True)))
        weights["s"] = np.array([1, 1, *scales], np.float32)
    return Case("Resize", {"x": (1, 2, *size)}, [1, 2, 3], weights, attributes, opset=18)


def grid_sample(draw: Draw) -> Case:
    n, c = draw.int(1, 2), draw.int(1, 4)
    made = draw.ints(2, 1, 20)
    attributes = {
        "mode": draw.one(["linear", "nearest", "cubic"]),
        "padding_mode": draw.one(["zeros", "border", "reflection"]),
        "align_corners": draw.int(0, 1),
    }
    inputs, axes, weights = {"x": (n, c, *draw.ints(2, 2, 20))}, range(4), {}
    if draw.int(0, 1):
        inputs["z"] = (n, *made, 2)
    else:
        weights["g"] = draw.floats(n, *made, 2)
    return Case("GridSample", inputs, axes, weights, attributes, opset=20)


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


EQUATIONS = (
    "bchw,cd->bdhw", "bij,bjk->bik", "bhqd,bhkd->bhqk", "bhqk,bhkd->bqhd", "ij,jk->ki", "bij->bji",
    "bqhc,bkhc->bhqk", "i,j->ij", "bi,bi->b", "bij,kj->bik", "ab,bc->ac", "abc->cab",
)  # fmt: skip


def einsum(draw: Draw) -> Case:
    equation = draw.one(EQUATIONS)
    left, _, result = equation.partition("->")
    operands = left.split(",")
    summed = set("".join(operands)) - set(result)
    most = {c: [1, 3, 64, 130, 200] if c in summed else [1, 2, 3, 9, 20, 33] for c in equation}
    size = {c: draw.one(most[c]) for c in sorted(set(left) - {","})}
    shapes = [tuple(size[c] for c in term) for term in operands]
    attributes = {"equation": equation}
    if len(operands) == 2 and draw.int(0, 1):
        axes = [a for a, c in enumerate(result) if c not in operands[1]]
        weights = {"w": draw.floats(*shapes[1])}
        return Case("Einsum", {"x": shapes[0]}, axes, weights, attributes)
    inputs = dict(zip("xz", shapes, strict=False))
    return Case("Einsum", inputs, range(len(result)), attributes=attributes)


def matmul_integer(draw: Draw) -> Case:
    inner, rows, columns = draw.one([3, 64, 200]), draw.int(1, 60), draw.int(1, 60)
    leading = tuple(draw.ints(draw.int(0, 2), 1, 3))
    weights = {"w": np.asarray(draw.rng.integers(0, 255, (inner, columns)), np.uint8)}
    if draw.int(0, 1):
        weights["a"] = np.asarray(draw.int(0, 200), np.uint8)
        weights["b"] = np.asarray(draw.int(0, 200), np.uint8)
    shape = (*leading, rows, inner)
    axes = range(len(leading) + 1)
    return Case("MatMulInteger", {"x": shape}, axes, weights, dtype=TensorProto.UINT8)


def qlinear_matmul(draw: Draw) -> Case:
    inner, rows, columns = draw.one([3, 64, 200]), draw.int(1, 60), draw.int(1, 60)
    leading = tuple(draw.ints(draw.int(0, 2), 1, 3))
    vector = () if draw.int(0, 1) else (columns,)
    signed = np.int8
    weights = {
        "xs": np.asarray(np.float32(0.03)), "xz": np.asarray(draw.int(-9, 9), signed),
        "w": np.asarray(draw.rng.integers(-99, 99, (inner, columns)), signed),
        "ws": np.abs(draw.floats(*vector)) * np.float32(0.02) + np.float32(0.001),
        "wz": np.zeros(vector, signed),
        "ys": np.asarray(np.float32(0.4)), "yz": np.asarray(-5, signed),
    }  # fmt: skip
    shape = (*leading, rows, inner)
    axes = range(len(leading) + 1)
    return Case("QLinearMatMul", {"x": shape}, axes, weights, dtype=TensorProto.INT8)


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


def softmax(op: str) -> Callable[[Draw], Case]:
    def make(draw: Draw) -> Case:
        shape = tuple(draw.ints(draw.int(2, 4), 1, 20))
        axis = draw.int(0, len(shape) - 1)
        opset = draw.one([11, 17])
        axes = [a for a in range(len(shape)) if (a < axis if opset < 13 else a != axis)]
        return Case(op, {"x": shape}, axes, attributes={"axis": axis}, opset=opset)

    return make


def layer_norm(draw: Draw) -> Case:
    shape = tuple(draw.ints(draw.int(2, 4), 1, 40))
    axis = draw.int(1, len(shape) - 1)
    weights = {"w": draw.floats(*shape[axis:]), "b": draw.floats(*shape[axis:])}
    return Case("LayerNormalization", {"x": shape}, range(axis), weights, {"axis": axis})


def rms_norm(op: str, opset: int) -> Callable[[Draw], Case]:
    def make(draw: Draw) -> Case:
        shape = tuple(draw.ints(draw.int(2, 4), 1, 40))
        axis = draw.int(1, len(shape) - 1) if opset > 22 else len(shape) - 1
        weights = {"w": draw.floats(*shape[axis:])}
        made = (shape, TensorProto.FLOAT)
        attributes = {"axis": axis}
        return Case(op, {"x": shape}, range(axis), weights, attributes, opset=opset, made=made)

    return make


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
        if op in ("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum"):
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


def _each(make: Callable[[str], Callable[[Draw], Case]], ops: str) -> dict[str, Any]:
    return {op: (make(op),) for op in ops.split()}


CASES: dict[str, tuple[Callable[[Draw], Case], ...]] = {
    **_each(
        unary,
        "Abs Ceil Erf Exp Floor HardSigmoid HardSwish Identity LeakyRelu Neg Reciprocal Relu Round "
        "Sigmoid Sign Softsign Sqrt Tanh ThresholdedRelu Acosh Asinh Atanh Cosh Shrink Sinh Tan",
    ),
    "Gelu": (unary("Gelu", 20), unary("Gelu", domain=MICROSOFT)),
    **{op: (unary(op, domain=MICROSOFT),) for op in ("FastGelu", "QuickGelu")},
    **{op: (unary(op), half(op)) for op in ("Erf", "Exp", "Sigmoid", "Tanh")},
    **_each(unary, "IsInf IsNaN"),
    **_each(with_tail, "Acos Asin Atan Celu Cos Elu Log Mish Selu Sin Softplus"),
    **_each(binary, "Add Sub Mul Div Pow PRelu Mean Sum"),
    **_each(binary, "Equal Greater GreaterOrEqual Less LessOrEqual"),
    **_each(logical, "And Or Xor"),
    **_each(integer, "BitwiseAnd BitwiseOr BitwiseXor Max Min Mod"),
    **_each(inverted, "BitwiseNot Not"),
    **_each(parametric, "QLinearLeakyRelu QLinearSigmoid"),
    "Clip": (clip,),
    "Where": (where,),
    "Cast": (cast,),
    "Dropout": (unary("Dropout"),),
    "BatchNormalization": (batch_norm,),
    **_each(quantize, "QuantizeLinear DequantizeLinear"),
    "Conv": (conv, conv, conv_many_channels),
    "ConvInteger": (conv_integer,),
    "QLinearConv": (qlinear_conv,),
    "ConvTranspose": (conv_transpose,),
    **_each(pool, "MaxPool AveragePool"),
    **_each(global_pool, "GlobalAveragePool GlobalMaxPool"),
    "Concat": (concat,),
    "Split": (split,),
    "Slice": (slice_,),
    "Transpose": (transpose,),
    "DepthToSpace": (depth_to_space,),
    "SpaceToDepth": (space_to_depth,),
    "Gather": (gather,),
    "GatherElements": (gather_elements,),
    "Reshape": (reshape,),
    "Squeeze": (squeeze,),
    "Unsqueeze": (unsqueeze,),
    "Flatten": (flatten,),
    "Expand": (expand,),
    "Pad": (pad,),
    "Resize": (resize, resize_anyhow),
    "Upsample": (upsample,),
    "GridSample": (grid_sample,),
    "Einsum": (einsum,),
    "MatMul": (matmul,),
    "Gemm": (gemm,),
    "MatMulInteger": (matmul_integer,),
    "QLinearMatMul": (qlinear_matmul,),
    **_each(softmax, "LogSoftmax Softmax"),
    "LayerNormalization": (layer_norm,),
    "RMSNormalization": (rms_norm("RMSNormalization", 23),),
    "SimplifiedLayerNormalization": (rms_norm("SimplifiedLayerNormalization", 17),),
    "LpNormalization": (lp_norm,),
    "CumSum": (cumsum,),
    "InstanceNormalization": (instance_norm,),
    **_each(
        reduction,
        "ArgMax ArgMin ReduceL1 ReduceL2 ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum "
        "ReduceSumSquare",
    ),
}
"""For each op of the table the nodes that it is tried with."""
