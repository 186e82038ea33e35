"""Small models of all kinds that files come in, to be damaged. Each runs in a few milliseconds."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

_HEADER = '<ir_version: 9, opset_import: ["": {opset}{domains}]>\n'


@dataclass(frozen=True)
class Seed:
    """A model file with what belongs to it: other files by name, sizes of open dimensions, and,
    if the product wrote it, the name of the file it was made from."""

    name: str
    model: bytes
    files: tuple[tuple[str, bytes], ...] = ()
    dims: tuple[str, ...] = ()
    original: str = ""

    def write(self, folder: Path, model: bytes | None = None) -> Path:
        """Store the seed, or a damaged form of its model, in a folder; the path of the model."""
        for name, data in self.files:
            (folder / name).write_bytes(data)
        path = folder / "model.onnx"
        path.write_bytes(self.model if model is None else model)
        return path


def _model(
    text: str,
    weights: Mapping[str, Sequence[int]] | None = None,
    *,
    opset: int = 17,
    domains: str = "",
    values: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """A model from text; random `weights` by name and shape, and `values`, are its initializers."""
    model = parser.parse_model(_HEADER.format(opset=opset, domains=domains) + text)
    for name, shape in (weights or {}).items():
        rng = np.random.default_rng(list(name.encode()))
        array = (0.2 * rng.standard_normal(shape)).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(array, name))
    model.graph.initializer.extend(values)
    return model


def _stored(name: str, values: object, kind: object = np.int64) -> onnx.TensorProto:
    return numpy_helper.from_array(np.asarray(values, dtype=kind), name)  # type: ignore[call-overload]


def convolutions() -> onnx.ModelProto:
    """A small U-Net with a pooled level, Resize and Concat."""
    return _model(
        """net (float[1,3,16,16] x) => (float[1,4,16,16] y) {
            a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w1, b1)
            r = Relu (a)
            p = MaxPool <kernel_shape = [2,2], strides = [2,2]> (r)
            c = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (p, w2)
            s = Sigmoid (c)
            u = Resize <mode = "nearest"> (s, , scales)
            k = Concat <axis = 1> (r, u)
            y = Conv <kernel_shape = [1,1]> (k, w3)
        }""",
        {"w1": (8, 3, 3, 3), "b1": (8,), "w2": (8, 8, 3, 3), "w3": (4, 16, 1, 1)},
        values=[_stored("scales", [1, 1, 2, 2], np.float32)],
    )


def open_convolutions() -> onnx.ModelProto:
    """Convolutions with open dimensions and an upsampling by Resize to sizes computed."""
    return _model(
        """net (float[batch,3,height,width] x) => (float[batch,4,h2,w2] y) {
            a = Conv <kernel_shape = [3,3], pads = [1,1,1,1]> (x, w1)
            r = LeakyRelu <alpha = 0.1> (a)
            n = InstanceNormalization (r, g, b)
            t = ConvTranspose <kernel_shape = [2,2], strides = [2,2]> (n, w2)
            f = Shape (t)
            m = AveragePool <kernel_shape = [2,2], strides = [2,2]> (t)
            y = Resize <mode = "linear"> (m, , , f)
        }""",
        {"w1": (8, 3, 3, 3), "g": (8,), "b": (8,), "w2": (8, 4, 2, 2)},
    )


def attention() -> onnx.ModelProto:
    """A block of attention with LayerNormalization and a Gelu of parts."""
    return _model(
        """net (float[2,8,16] x) => (float[2,8,16] y) {
            n = LayerNormalization (x, g, b)
            q0 = MatMul (n, wq)
            k0 = MatMul (n, wk)
            v0 = MatMul (n, wv)
            q1 = Reshape (q0, heads)
            k1 = Reshape (k0, heads)
            v1 = Reshape (v0, heads)
            q = Transpose <perm = [0,2,1,3]> (q1)
            k = Transpose <perm = [0,2,3,1]> (k1)
            v = Transpose <perm = [0,2,1,3]> (v1)
            s = MatMul (q, k)
            d = Div (s, two)
            p = Softmax <axis = -1> (d)
            o = MatMul (p, v)
            t = Transpose <perm = [0,2,1,3]> (o)
            f = Reshape (t, flat)
            a = Add (x, f)
            m = MatMul (a, wm)
            e = Erf (m)
            h = Mul (m, e)
            z = MatMul (h, wo)
            y = Add (a, z)
        }""",
        {"g": (16,), "b": (16,), "wq": (16, 16), "wk": (16, 16), "wv": (16, 16), "wm": (16, 64)}
        | {"wo": (64, 16)},
        values=[
            _stored("heads", [2, 8, 4, 4]),
            _stored("flat", [2, 8, 16]),
            _stored("two", 2, np.float32),
        ],
    )


def half_attention() -> onnx.ModelProto:
    """Products in float16 with casts, and an operator that is a function."""
    model = _model(
        """net (float16[4,16] x) => (float16[4,16] y) {
            q = MatMul (x, w)
            c = Cast <to = 1> (q)
            s = Softmax <axis = -1> (c)
            h = Cast <to = 10> (s)
            e = HardSwish (h)
            g = CastLike (e, x)
            y = Add (g, x)
        }"""
    )
    weight = 0.2 * np.random.default_rng(0).standard_normal((16, 16))
    model.graph.initializer.append(_stored("w", weight, np.float16))
    return model


def branches() -> onnx.ModelProto:
    """An If whose branches read values from outside, one of them with an If in it."""
    return _model(
        """net (float[4,8] x, bool c) => (float[4,8] y) {
            a = Exp (x)
            b = If (c) <
                then_branch = yes () => (float[4,8] t) { t0 = Mul (a, w)
                    t = Add (t0, x) },
                else_branch = no () => (float[4,8] e) { n = Not (c)
                    e = If (n) <
                        then_branch = deep () => (float[4,8] d) { d0 = Relu (a)
                            d = Sub (d0, w) },
                        else_branch = flat () => (float[4,8] f) { f = Identity (x) }
                    > }
            >
            y = Add (b, a)
        }""",
        {"w": (4, 8)},
    )


def loops() -> onnx.ModelProto:
    """A Loop with a carried value and a scan output, and a Scan."""
    return _model(
        """net (float[4,8] x) => (float[4,8] y, float[3,4,8] z, float[4,8] t) {
            y, z = Loop (trips, go, x) <
                body = step (int64 i, bool c, float[4,8] v)
                    => (bool c2, float[4,8] v2, float[4,8] o) {
                    c2 = Identity (c)
                    m = Mul (v, w)
                    v2 = Add (m, x)
                    o = Tanh (v2)
                }
            >
            s0 = ReduceSum <keepdims = 0> (x, axis)
            last, t = Scan (s0, x) < num_scan_inputs = 1,
                body = row (float[8] s, float[8] r) => (float[8] s2, float[8] q) {
                    s2 = Add (s, r)
                    q = Sigmoid (s2)
                }
            >
        }""",
        {"w": (4, 8)},
        values=[_stored("trips", 3), _stored("go", True, np.bool_), _stored("axis", [0])],
    )


def functions() -> onnx.ModelProto:
    """Functions of the model itself, one called by another, with attributes handed on, or not
    given: then they have a default."""
    text = """<ir_version: 9, opset_import: ["": 17, "own": 1]>
        net (float[4,8] x) => (float[4,8] y) {
            a = own.outer <slope = 0.3> (x)
            b = own.outer (a)
            y = Mul (a, b)
        }
        <domain: "own", opset_import: ["": 17, "own": 1]>
        outer <slope> (v) => (o) {
            h = own.inner <alpha: float = @slope> (v)
            e = Exp (h)
            o = Add (e, v)
        }
        <domain: "own", opset_import: ["": 17]>
        inner <alpha: float = 0.7> (v) => (o) {
            l = LeakyRelu <alpha: float = @alpha> (v)
            o = Neg (l)
        }"""
    return parser.parse_model(text)


def quantized() -> onnx.ModelProto:
    """A convolution and a product on eight-bit integers, in both styles."""
    model = _model(
        """net (float[1,4,8,8] x) => (float[1,4,8,8] y) {
            q = QuantizeLinear (x, s, z)
            c = QLinearConv <kernel_shape = [3,3], pads = [1,1,1,1]> (q, s, z, w, s, zi, s, z)
            d = DequantizeLinear (c, s, z)
            u, us, uz = DynamicQuantizeLinear (d)
            m = MatMulInteger (u, p, uz)
            f = Cast <to = 1> (m)
            k = Mul (f, us)
            y = Add (k, d)
        }""",
        values=[
            _stored("s", 0.02, np.float32),
            _stored("z", 128, np.uint8),
            _stored("zi", 0, np.int8),
        ],
    )
    rng = np.random.default_rng(1)
    model.graph.initializer.extend(
        _stored(name, rng.integers(-9, 9, shape), np.int8)
        for name, shape in (("w", (4, 4, 3, 3)), ("p", (8, 8)))
    )
    return model


def texts() -> onnx.ModelProto:
    """Strings inside, numbers outside."""
    return _model(
        """net (float[4,3] x) => (int64[4,3] y, float[4,3] z) {
            s = Cast <to = 8> (x)
            n = Concat <axis = 0> (names, one)
            g = Gather (n, last)
            e = Equal (s, g)
            y = Cast <to = 7> (e)
            z = Exp (x)
        }""",
        opset=19,
        values=[
            numpy_helper.from_array(np.array(["Ab", "cd"], dtype=object), "names"),
            numpy_helper.from_array(np.array(["1"], dtype=object), "one"),
            _stored("last", 2),
        ],
    )


def sparse() -> onnx.ModelProto:
    """A sparse initializer, and a Constant with a sparse value."""
    model = _model(
        """net (float[4,6] x) => (float[4,6] y) {
            a = MatMul (x, w)
            b = Relu (a)
            c = Exp (a)
            y = Add (b, c)
        }"""
    )
    values = helper.make_tensor("w", TensorProto.FLOAT, [3], [0.5, -1.0, 2.0])
    places = helper.make_tensor("w_places", TensorProto.INT64, [3], [0, 9, 30])
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(values, places, [6, 6]))
    return model


def sequences() -> onnx.ModelProto:
    """A sequence and an optional value inside."""
    return _model(
        """net (float[6,4] x) => (float[6,4] y) {
            s = SplitToSequence <axis = 0> (x, parts)
            a = SequenceAt (s, one)
            i = SequenceInsert (s, a)
            c = ConcatFromSequence <axis = 0> (i)
            k = Slice (c, zero, six)
            e = Exp (k)
            y = Add (e, x)
        }""",
        values=[
            _stored("parts", [2, 2, 2]),
            _stored("one", 1),
            _stored("zero", [0]),
            _stored("six", [6]),
        ],
    )


def recurrent() -> onnx.ModelProto:
    """An LSTM and a GRU with an output that nobody reads."""
    return _model(
        """net (float[5,2,4] x) => (float[5,1,2,3] y, float[1,2,3] h) {
            y, h, c = LSTM <hidden_size = 3> (x, w, r)
            g, l = GRU <hidden_size = 3> (x, w2, r2)
            k = Dropout (g)
        }""",
        {"w": (1, 12, 4), "r": (1, 12, 3), "w2": (1, 9, 4), "r2": (1, 9, 3)},
    )


def shapes() -> onnx.ModelProto:
    """Sizes computed in the graph, NonZero, a Gather of places, TopK, NonMaxSuppression."""
    return _model(
        """net (float[n,8] x, float[1,6,4] boxes, float[1,2,6] scores)
            => (float[n,m] y, int64[k,3] p, int64[2,j] z) {
            s = Shape (x)
            h = Gather (s, zero)
            hu = Unsqueeze (h, axis)
            two = ConstantOfShape <value = int64[1] {4}> (single)
            size = Concat <axis = 0> (hu, two)
            r = Tile (x, reps)
            c = Slice (r, zeros, size, axes)
            y = Exp (c)
            p = NonMaxSuppression (boxes, scores, most, most_overlap)
            z = NonZero (x)
        }""",
        values=[
            _stored("zero", 0),
            _stored("axis", [0]),
            _stored("single", [1]),
            _stored("reps", [1, 2]),
            _stored("zeros", [0, 0]),
            _stored("axes", [0, 1]),
            _stored("most", [3]),
            _stored("most_overlap", [0.5], np.float32),
        ],
    )


def chain() -> onnx.ModelProto:
    """A long chain with skips, where recomputation and order matter."""
    steps = ["v0 = MatMul (x, w)"]
    for i in range(1, 24):
        op = ("Relu", "Exp", "Tanh", "Sigmoid")[i % 4]
        steps.append(f"v{i} = {op} (v{i - 1})")
    steps += [f"s{i} = Add (v{i}, v{23 - i})" for i in range(4)]
    steps += ["m1 = Mul (s0, s1)", "m2 = Mul (s2, s3)", "y = Sub (m1, m2)"]
    text = " ".join(steps)
    return _model(f"net (float[16,16] x) => (float[16,16] y) {{ {text} }}", {"w": (16, 16)})


def custom() -> onnx.ModelProto:
    """Operators of the runtime's own domain."""
    return _model(
        """net (float[4,16] x) => (float[4,16] y) {
            g = com.microsoft.Gelu (x)
            f = com.microsoft.FusedMatMul <alpha = 0.5> (g, w)
            b = com.microsoft.BiasGelu (f, c)
            y = Add (b, g)
        }""",
        {"w": (16, 16), "c": (16,)},
        domains=', "com.microsoft": 1',
    )


BUILDERS: dict[str, Callable[[], onnx.ModelProto]] = {
    builder.__name__: builder
    for builder in (
        convolutions, open_convolutions, attention, half_attention, branches, loops, functions,
        quantized, texts, sparse, sequences, recurrent, shapes, chain, custom,
    )
}  # fmt: skip

DIMS = {"open_convolutions": ("batch=1", "height=8", "width=8"), "shapes": ("n=4",)}

DATA = "weights.bin"
ORIGINAL = "original.onnx"


def _external(model: onnx.ModelProto) -> Seed:
    """Every weight of the model in one file beside it; what shapes depend on stays."""
    data = b""
    for tensor in model.graph.initializer:
        if tensor.data_type != TensorProto.FLOAT:
            continue
        raw = tensor.raw_data
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", DATA), ("offset", len(data)), ("length", len(raw))):
            tensor.external_data.add(key=key, value=str(value))
        data += raw
    return Seed("external", model.SerializeToString(), ((DATA, data),))


def seeds() -> list[Seed]:
    """One of each kind of model."""
    made = [
        Seed(name, build().SerializeToString(), dims=DIMS.get(name, ()))
        for name, build in BUILDERS.items()
    ]
    return [*made, _external(attention())]


def written_seed(seed: Seed, written: bytes) -> Seed:
    """What the product made of a seed, together with the original."""
    files = (*seed.files, (ORIGINAL, seed.model))
    return Seed(f"{seed.name}, written", written, files, original=ORIGINAL)
