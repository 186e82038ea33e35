"""Substitutions: same bits (or nearly, where rounding is allowed), less memory, told truthfully."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from onnxremat.importer.values import ValueType
from onnxremat.ort.library import ort
from onnxremat.ort.measuring.measure import in_memory, measure_activation
from onnxremat.ort.recipe import RECIPE, session_options
from onnxremat_rewriters.substitutes import (
    SUBSTITUTIONS,
    Substituted,
    apply_substitutions,
    substitute,
    substitutions,
)
from onnxremat_rewriters.substitutes.conv_transpose import turn_filters
from tests.ort.build import node, value

Array = NDArray[Any]
TRIALS = 25
ALL = tuple(SUBSTITUTIONS.values())
TOLERANCE = 1e-5
"""Relative to the largest element: another order of at most a few thousand additions."""

Case = tuple[onnx.NodeProto, dict[str, Array], dict[str, Array]]
"""A node that makes `y`, the values of graph inputs, and weights."""


def floats(rng: np.random.Generator, shape: Any, dtype: Any = np.float32) -> Array:
    return np.asarray(rng.standard_normal(shape), dtype)


def with_specials(rng: np.random.Generator, shape: Any, dtype: Any = np.float32) -> Array:
    """Numbers, NaN, infinities and zeros of both signs."""
    made = floats(rng, shape, dtype) * dtype(10.0 ** rng.integers(-3, 4))
    specials = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0], dtype)
    chosen = specials[rng.integers(0, 5, shape)]
    return np.asarray(np.where(rng.random(shape) < 0.3, chosen, made), dtype)


def build(case: Case, opset: int = 17) -> tuple[onnx.ModelProto, dict[str, ValueType]]:
    """A model of one node, and the types of its values."""
    made, inputs, weights = case
    graph = helper.make_graph(
        [made],
        "test",
        [
            value(name, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for name, a in inputs.items()
        ],
        [onnx.ValueInfoProto(name="y")],
        [numpy_helper.from_array(a, name) for name, a in weights.items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    proto = onnx.shape_inference.infer_shapes(proto, data_prop=True)
    types = {}
    for v in (*proto.graph.input, *proto.graph.output):
        kind = v.type.tensor_type
        name = TensorProto.DataType.Name(kind.elem_type).lower()
        types[v.name] = ValueType(name, tuple(d.dim_value for d in kind.shape.dim))
    return proto, types


def run(proto: onnx.ModelProto, inputs: Mapping[str, Array], threads: int) -> Array:
    options = session_options(RECIPE.with_threads(threads))
    session = ort.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    made: Array = session.run(None, dict(inputs))[0]
    return made


def replace(proto: onnx.ModelProto, types: Mapping[str, ValueType]) -> Substituted:
    """Replace every node, roundings allowed. The argument must not change."""
    before = proto.SerializeToString()
    nodes = range(len(proto.graph.node))
    result = apply_substitutions(proto, nodes, types, ALL)
    assert proto.SerializeToString() == before
    onnx.checker.check_model(result.model, full_check=True)
    assert len(result.origin) == len(result.model.graph.node)
    return result


def same_bits(a: Array, b: Array) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def softmax(rng: np.random.Generator) -> Case:
    shape = tuple(int(n) for n in rng.integers(1, 20, rng.integers(2, 5)))
    axis = int(rng.integers(0, len(shape) - 1)) - len(shape) * int(rng.integers(0, 2))
    op = str(rng.choice(["Softmax", "LogSoftmax"]))
    dtype = rng.choice([np.float32, np.float64])
    x = with_specials(rng, shape, dtype) if rng.random() < 0.3 else floats(rng, shape, dtype)
    return node(op, ["x"], ["y"], axis=axis), {"x": x}, {}


def nary(rng: np.random.Generator) -> Case:
    op = str(rng.choice(["Sum", "Max", "Min", "Mean"]))
    dtype = np.float32 if op == "Mean" or rng.random() < 0.5 else np.float64
    full = [int(n) for n in rng.integers(1, 9, rng.integers(0, 4))]
    inputs = {}
    for i in range(int(rng.integers(3, 8))):
        shape = [n if rng.random() < 0.7 else 1 for n in full]
        start = int(rng.integers(0, len(full) + 1)) if rng.random() < 0.3 else 0
        inputs[f"x{i}"] = with_specials(rng, tuple(shape[start:]), dtype)
    return node(op, list(inputs), ["y"]), inputs, {}


def einsum(rng: np.random.Generator) -> Case:
    letters = "abcdefgh"[: rng.integers(1, 7)]
    kinds = {c: int(rng.integers(0, 4)) for c in letters}  # shared, left, right, summed
    kinds["k"] = 3
    sizes = {c: int(rng.integers(1, 8)) for c in kinds}

    def shuffled(chosen: tuple[int, ...]) -> str:
        return "".join(str(c) for c in rng.permutation([c for c in kinds if kinds[c] in chosen]))

    left, right, result = shuffled((0, 1, 3)), shuffled((0, 2, 3)), shuffled((0, 1, 2))
    inputs = {
        name: floats(rng, tuple(sizes[c] for c in term))
        for name, term in (("a", left), ("b", right))
    }
    return node("Einsum", ["a", "b"], ["y"], equation=f"{left},{right}->{result}"), inputs, {}


def where(rng: np.random.Generator) -> Case:
    full = [int(n) for n in rng.integers(1, 12, rng.integers(1, 5))]
    full[int(rng.integers(0, len(full)))] += 1
    shapes = []
    for _ in range(3):
        shape = tuple(n if rng.random() < 0.7 else 1 for n in full)
        start = int(rng.integers(0, len(full) + 1)) if rng.random() < 0.3 else 0
        shapes.append(shape[start:])
    shapes[int(rng.integers(0, 3))] = tuple(full)
    condition = np.asarray(rng.random(shapes[0]) < 0.5)
    if rng.random() < 0.5:
        x, z = (with_specials(rng, shape) for shape in shapes[1:])
    else:
        x, z = (np.asarray(rng.integers(-9, 9, shape)) for shape in shapes[1:])
    return node("Where", ["c", "x", "z"], ["y"]), {"c": condition, "x": x, "z": z}, {}


CASES = {"softmax": softmax, "nary": nary, "where": where}


@pytest.mark.parametrize("name", CASES)
def test_exact_substitutions_make_the_same_bits(name: str) -> None:
    rng = np.random.default_rng(0)
    for trial in range(TRIALS):
        case = CASES[name](rng)
        proto, types = build(case)
        result = replace(proto, types)
        assert result.refused == (), case[0]
        assert result.exact
        assert result.changed
        assert set(result.origin) == {0}
        for threads in (1, 2):
            expected = run(proto, case[1], threads)
            assert same_bits(run(result.model, case[1], threads), expected), (trial, case[0])


def test_einsum_differs_by_rounding_at_most() -> None:
    """With one row, one column or packed weights MatMul takes another path than Einsum."""
    rng = np.random.default_rng(0)
    for _ in range(TRIALS):
        case = einsum(rng)
        proto, types = build(case)
        result = replace(proto, types)
        assert (result.refused, result.exact, set(result.origin)) == ((), False, {0})
        got, expected = run(result.model, case[1], 1), run(proto, case[1], 1)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)


def test_a_single_number_is_not_cut() -> None:
    scalar = {name: np.array(1.0, np.float32) for name in "xz"}
    case = (node("Where", ["c", "x", "z"], ["y"]), {"c": np.array(True), **scalar}, {})
    proto, types = build(case)
    result = replace(proto, types)
    assert [one.reason for one in result.refused] == ["a single number cannot be cut"]


def test_filters_that_several_nodes_share_are_turned_once_and_old_files_stay_valid() -> None:
    rng = np.random.default_rng(0)
    filters = {"w": floats(rng, (4, 4, 3, 3))}
    nodes = [
        node("ConvTranspose", ["x", "w"], ["a"], pads=[1] * 4),
        node("ConvTranspose", ["a", "w"], ["y"], pads=[1] * 4),
    ]
    inputs = {"x": floats(rng, (1, 4, 8, 8))}
    proto, types = build((nodes[0], inputs, filters))
    types["a"] = types["y"]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    result = apply_substitutions(proto, {0, 1}, types, ALL)
    assert len(result.replaced) == 2
    assert len(result.model.graph.initializer) == 1
    proto.ir_version = 3
    proto.graph.input.append(helper.make_tensor_value_info("w", TensorProto.FLOAT, [4, 4, 3, 3]))
    old = apply_substitutions(proto, {0, 1}, types, ALL)
    assert {v.name for v in old.model.graph.input} >= {t.name for t in old.model.graph.initializer}


def conv_transpose(rng: np.random.Generator, *, stored: bool) -> Case:
    spatial = int(rng.integers(1, 4))
    group, made, made_in = (int(n) for n in rng.integers(1, 5, 3))
    kernel = [int(n) for n in rng.integers(1, 5, spatial)]
    dilations = [int(n) for n in rng.integers(1, 4, spatial)]
    most = [d * (k - 1) for d, k in zip(dilations, kernel, strict=True)]
    pads = [int(rng.integers(0, m + 1)) for m in most * 2]
    size = [int(rng.integers(1, 6)) + m for m in most]
    inputs = {"x": floats(rng, (2, group * made_in, *size))}
    filters = {"w": floats(rng, (group * made_in, made, *kernel))}
    names = ["x", "w"]
    if rng.random() < 0.5:
        inputs["b"] = floats(rng, (group * made,))
        names.append("b")
    transposed = node(
        "ConvTranspose", names, ["y"], pads=pads, dilations=dilations, group=group,
        kernel_shape=kernel,
    )  # fmt: skip
    return transposed, inputs if stored else inputs | filters, filters if stored else {}


@pytest.mark.parametrize("stored", [True, False], ids=["stored", "given"])
def test_conv_of_transposed_filters_differs_by_rounding_only(stored: bool) -> None:
    rng = np.random.default_rng(1)
    for _ in range(2 * TRIALS):
        case = conv_transpose(rng, stored=stored)
        proto, types = build(case)
        result = replace(proto, types)
        assert result.refused == (), case[0]
        assert not result.exact
        assert result.dropped_weights == (("w",) if stored else ())
        assert "ConvTranspose" not in [n.op_type for n in result.model.graph.node]
        expected, found = run(proto, case[1], 1), run(result.model, case[1], 1)
        assert found.shape == expected.shape
        assert np.abs(found - expected).max() <= TOLERANCE * max(np.abs(expected).max(), 1)


@pytest.mark.parametrize("auto_pad", ["NOTSET", "VALID"])
def test_an_output_shape_means_pads(auto_pad: str) -> None:
    rng = np.random.default_rng(5)
    transposed = node(
        "ConvTranspose", ["x", "w"], ["y"], output_shape=[7, 6], dilations=[1, 2], auto_pad=auto_pad
    )
    case = (transposed, {"x": floats(rng, (2, 3, 7, 4))}, {"w": floats(rng, (3, 4, 3, 2))})
    proto, types = build(case)
    result = replace(proto, types)
    assert result.refused == ()
    expected, found = run(proto, case[1], 1), run(result.model, case[1], 1)
    assert found.shape == expected.shape == (2, 4, 7, 6)
    assert np.abs(found - expected).max() <= TOLERANCE * np.abs(expected).max()


def test_filters_are_turned_as_defined() -> None:
    filters = np.arange(12.0).reshape(2, 3, 2)  # two groups of one channel in and three out
    assert turn_filters(filters, 2).tolist() == [
        [[1, 0]], [[3, 2]], [[5, 4]], [[7, 6]], [[9, 8]], [[11, 10]],
    ]  # fmt: skip
    assert turn_filters(filters, 1).shape == (3, 2, 2)


def big(name: str) -> Case:
    """A case whose tensors are far above the bookkeeping of a run."""
    rng = np.random.default_rng(2)
    x = floats(rng, (8, 16, 32, 32))
    if name == "softmax":
        return node("Softmax", ["x"], ["y"], axis=1), {"x": x}, {}
    if name == "nary":
        return node("Sum", ["x", "z", "w"], ["y"]), {"x": x, "z": x, "w": x}, {}
    if name == "einsum":
        q = floats(rng, (4, 64, 8, 32))
        return node("Einsum", ["x", "z"], ["y"], equation="bihd,bjhd->bhij"), {"x": q, "z": q}, {}
    if name == "where":
        return node("Where", ["c", "x", "z"], ["y"]), {"c": x > 0, "x": x, "z": x}, {}
    w = floats(rng, (16, 16, 3, 3))
    return node("ConvTranspose", ["x", "w"], ["y"], pads=[1] * 4), {"x": x}, {"w": w}


@pytest.mark.parametrize("name", ["softmax", "nary", "einsum", "where", "conv_transpose"])
def test_less_memory_is_taken_behind_producers(name: str) -> None:
    """Inputs are made inside the graph, as in a larger model: they can be freed."""
    pytest.importorskip("memray", reason="the heap is counted by memray")
    made, inputs, weights = big(name)
    producers = [
        node("Not" if a.dtype == bool else "Sin", [f"in_{n}"], [n]) for n, a in inputs.items()
    ]
    proto, types = build((made, inputs, weights))
    for v in proto.graph.input:
        v.name = f"in_{v.name}"
    del proto.graph.node[:]
    proto.graph.node.extend([*producers, made])
    result = substitute(proto, {len(producers): 1}, types, substitutions=ALL, threshold_bytes=1)
    assert result.changed
    assert result.origin == (
        *range(len(producers)),
        *[len(producers)] * (len(result.model.graph.node) - len(producers)),
    )
    recipe = RECIPE.with_threads(1)
    given = {f"in_{n}": a for n, a in inputs.items()}
    before, after = (
        measure_activation(in_memory(m, "."), given, recipe, runs=1).peak_bytes
        for m in (proto, result.model)
    )
    assert after < 0.9 * before


def test_only_what_is_allowed_and_large_enough_is_replaced() -> None:
    rng = np.random.default_rng(3)
    proto, types = build(conv_transpose(rng, stored=True))
    exact = substitute(
        proto, {0: 1000}, types, substitutions=substitutions(exact=True), threshold_bytes=1
    )
    assert (exact.changed, exact.refused, exact.model) == (False, (), proto)
    small = substitute(proto, {0: 1000}, types, substitutions=ALL, threshold_bytes=1001)
    assert not small.changed
    found = substitute(proto, {0: 1000}, types, substitutions=ALL, threshold_bytes=1000)
    assert [(r.node, r.op_type, r.substitution, r.exact) for r in found.replaced] == [
        (0, "ConvTranspose", "conv-of-transposed", False)
    ]


@pytest.mark.parametrize(
    ("made", "inputs", "opset", "reason"),
    [
        (node("Softmax", ["x"], ["y"], axis=1), {"x": (2, 3, 4)}, 11, "opset 11"),
        (node("Softmax", ["x"], ["y"], axis=-1), {"x": (2, 3, 4)}, 17, "the last one"),
        (node("Sum", ["x", "z"], ["y"]), {"x": (2,), "z": (2,)}, 17, "fewer than three"),
        (node("Einsum", ["x"], ["y"], equation="ij->ji"), {"x": (2, 3)}, 17, "two plain"),
        (node("Einsum", ["x", "z"], ["y"], equation="i,j->ij"), {"x": (2,), "z": (3,)}, 17, "nothing"),
        (node("Einsum", ["x", "z"], ["y"], equation="ij,j->j"), {"x": (2, 3), "z": (3,)}, 17, ""),
        (node("LRN", ["x"], ["y"], size=3), {"x": (1, 4, 2, 2)}, 17, "no substitution"),
        (
            node("ConvTranspose", ["x", "w"], ["y"], strides=[2]),
            {"x": (1, 2, 5), "w": (2, 2, 3)}, 17, "stride",
        ),
        (
            node("ConvTranspose", ["x", "w"], ["y"], pads=[3, 0]),
            {"x": (1, 2, 5), "w": (2, 2, 3)}, 17, "negative pads",
        ),
        (
            node("ConvTranspose", ["x", "w"], ["y"], auto_pad="SAME_UPPER"),
            {"x": (1, 2, 5), "w": (2, 2, 3)}, 17, "automatically",
        ),
        (
            node("ConvTranspose", ["x", "w"], ["y"], output_shape=[6]),
            {"x": (1, 2, 5), "w": (2, 2, 3)}, 17, "both sides",
        ),
    ],
)  # fmt: skip
def test_what_is_not_handled_stays_and_says_why(
    made: onnx.NodeProto, inputs: dict[str, tuple[int, ...]], opset: int, reason: str
) -> None:
    given = {name: np.ones(shape, np.float32) for name, shape in inputs.items()}
    proto, types = build((made, given, {}), opset)
    result = replace(proto, types)
    assert not result.changed
    assert result.model == proto
    (refused,) = result.refused
    assert (refused.node, refused.op_type) == (0, made.op_type)
    assert reason in refused.reason


def test_an_unknown_shape_is_not_guessed() -> None:
    proto, _ = build(
        (node("Softmax", ["x"], ["y"], axis=0), {"x": np.ones((2, 3), np.float32)}, {})
    )
    assert "'x' is not known" in replace(proto, {}).refused[0].reason


def test_constant_nodes_have_types() -> None:
    made = node("Where", ["c", "x", "k"], ["y"])
    x = np.linspace(-1, 1, 32, dtype=np.float32)
    proto, types = build((made, {"c": x > 0, "x": x, "k": np.zeros((), np.float32)}, {}))
    del proto.graph.input[2]
    del types["k"]
    proto.graph.node.insert(0, node("Constant", [], ["k"], value_float=0.0))
    assert "'k' is not known" in replace(proto, types).refused[-1].reason
    proto.graph.node[0].CopyFrom(
        node("Constant", [], ["k"], value=numpy_helper.from_array(np.zeros((), np.float32)))
    )
    result = replace(proto, types)
    assert [one.op_type for one in result.replaced] == ["Where"]
    assert same_bits(
        run(result.model, {"c": x > 0, "x": x}, 1), run(proto, {"c": x > 0, "x": x}, 1)
    )


def test_filters_that_others_read_stay() -> None:
    proto, types = build(conv_transpose(np.random.default_rng(4), stored=True))
    proto.graph.node.append(node("Abs", ["w"], ["z"]))
    proto.graph.output.append(onnx.ValueInfoProto(name="z"))
    proto = onnx.shape_inference.infer_shapes(proto)
    result = replace(proto, types)
    assert result.dropped_weights == ()
    assert result.model.graph.initializer[0].name == "w"


def test_an_op_type_has_one_substitution() -> None:
    ops = [op for one in ALL for op in one.op_types]
    assert len(ops) == len(set(ops))
