"""Types of what ONNX Runtime's training ops make, and plans of graphs that contain them."""

from collections.abc import Sequence

import numpy as np
import pytest
from onnx import NodeProto, TensorProto, ValueInfoProto

from onnxremat.core.errors import ModelError
from onnxremat.core.memory import profile
from onnxremat.core.problem import Limits, Problem
from onnxremat.core.schedule import check, given_order
from onnxremat.core.training import cut, split_training
from onnxremat.importer import (
    ValueType,
    ValueTypes,
    bind_dimensions,
    from_proto,
    import_model,
    infer_types,
)
from onnxremat.ort.emulation.rules import RECIPE_RULES
from onnxremat.planners import PLANNERS, compile_kernels
from tests.importer.build import imported, model, node, types_of, value
from tests.importer.ortgrad import DOMAIN, convolutions

pytestmark = pytest.mark.slow

F, D, I64, BOOL = TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.INT64, TensorProto.BOOL
Shapes = Sequence[Sequence[int]]


def inferred(
    nodes: Sequence[NodeProto],
    inputs: Sequence[ValueInfoProto],
    *,
    outputs: Sequence[str] = ("y",),
    weights: dict | None = None,
    stated: Sequence[ValueInfoProto] = (),
    opset: int = 17,
) -> ValueTypes:
    proto = model(nodes, inputs, outputs, weights, opset=opset, domains=[DOMAIN], stated=stated)
    return types_of(proto)[1]


def made(op_type: str, shapes: Shapes, count: int = 1, **attributes: object) -> list:
    """Shapes of the `count` outputs of one op of float inputs; None for what is unknown."""
    names = [f"i{i}" for i in range(len(shapes))]
    outputs = [f"y{i}" for i in range(count)]
    inputs = [value(name, shape) for name, shape in zip(names, shapes, strict=True)]
    one = node(op_type, names, outputs, domain=DOMAIN, **attributes)
    types = inferred([one], inputs, outputs=outputs)
    assert all(types[name].dtype == "float" for name in outputs if name in types)
    return [types[name].shape if name in types else None for name in outputs]


@pytest.mark.parametrize(
    ("op_type", "shapes", "expected"),
    [
        ("ReluGrad", [(2, 3), (2, 3)], [(2, 3)]),
        ("GeluGrad", [(2, 3), (2, 3)], [(2, 3)]),
        ("SoftmaxGrad_13", [(2, 3), (2, 3)], [(2, 3)]),
        ("Scale", [(2, 3), ()], [(2, 3)]),
        ("Gelu", [(2, 3)], [(2, 3)]),
        (
            "ConvGrad",
            [(2, 8, 5, 5), (2, 4, 6, 6), (8, 4, 2, 2)],
            [(2, 4, 6, 6), (8, 4, 2, 2), (8,)],
        ),
        ("DivGrad", [(2, 3), (2, 3), (3,)], [(2, 3), (3,)]),
        ("LayerNormalizationGrad", [(2, 3), (2, 3), (3,), (2, 1), (2, 1)], [(2, 3), (3,), (3,)]),
        ("SimplifiedLayerNormalizationGrad", [(2, 3), (2, 3), (3,), (2, 1)], [(2, 3), (3,)]),
        (
            "BatchNormalizationGrad",
            [(2, 3, 4), (2, 3, 4), (3,), (3,), (3,)],
            [(2, 3, 4), (3,), (3,)],
        ),
        ("InPlaceAccumulator", [(2, 3), (2, 3)], [(2, 3)]),
    ],
)
def test_gradients_are_shaped_like_what_they_are_of(
    op_type: str, shapes: Shapes, expected: list[tuple[int, ...]]
) -> None:
    assert made(op_type, shapes, len(expected)) == expected


def test_an_accumulator_makes_a_flag_and_on_request_its_buffer() -> None:
    inputs = [value("buffer", (2, 3)), value("g", (2, 3)), value("reset", (1,), BOOL)]
    read = ["buffer", "g", "reset"]
    one = node("InPlaceAccumulatorV2", read, ["flag", "sum"], domain=DOMAIN)
    types = inferred([one], inputs, outputs=["flag", "sum"])
    assert types["flag"] == ValueType("bool", (1,))
    assert types["sum"] == ValueType("float", (2, 3))


def _fused(a: np.ndarray, b: np.ndarray, flags: dict[str, int]) -> np.ndarray:
    """What FusedMatMul computes, by numpy."""
    operands = []
    for which, array in (("A", a), ("B", b)):
        if flags[f"transBatch{which}"]:
            array = np.moveaxis(array, 0, -2)
        operands.append(np.swapaxes(array, -1, -2) if flags[f"trans{which}"] else array)
    return operands[0] @ operands[1]


@pytest.mark.parametrize("bits", range(16))
def test_products_of_transposed_matrices(bits: int) -> None:
    names = ("transA", "transB", "transBatchA", "transBatchB")
    flags = {name: bits >> i & 1 for i, name in enumerate(names)}
    a, b = [2, 3, 4, 5], [2, 3, 5, 6]
    for which, shape in (("A", a), ("B", b)):
        if flags[f"trans{which}"]:
            shape[-2:] = shape[:-3:-1]
        if flags[f"transBatch{which}"]:
            shape.insert(0, shape.pop(-2))
    expected = _fused(np.zeros(a), np.zeros(b), flags).shape
    assert made("FusedMatMul", [a, b], **flags) == [expected]


@pytest.mark.parametrize(
    ("a", "b", "expected"),
    [
        ((4,), (4, 5), (5,)),
        ((3, 4), (4,), (3,)),
        ((4,), (4,), ()),
        ((7, 1, 3, 4), (6, 4, 5), (7, 6, 3, 5)),
    ],
)
def test_products_with_vectors_and_broadcasting(
    a: tuple[int, ...], b: tuple[int, ...], expected: tuple[int, ...]
) -> None:
    assert made("FusedMatMul", [a, b]) == [expected]


@pytest.mark.parametrize(("a", "b"), [((3, 4), (5, 6)), ((2, 3, 4), (3, 4, 5)), ((), (4, 5))])
def test_products_that_do_not_fit_have_no_type(a: tuple[int, ...], b: tuple[int, ...]) -> None:
    assert made("FusedMatMul", [a, b]) == [None]


def test_statistics_of_layer_normalization_before_it_was_standard() -> None:
    inputs = [value("x", (2, 3, 4)), value("s", (3, 4))]
    one = node("LayerNormalization", ["x", "s"], ["y", "mean", "inv"], axis=-2)
    types = inferred([one], inputs, outputs=["y", "mean", "inv"], opset=14)
    assert [types[n].shape for n in ("y", "mean", "inv")] == [(2, 3, 4), (2, 1, 1), (2, 1, 1)]


def _pool_gradient(between: Sequence[NodeProto], indices: str) -> ValueTypes:
    nodes = [
        node("MaxPool", ["x"], ["p", "i"], kernel_shape=[2], strides=[2]),
        *between,
        node("MaxPoolGrad", ["p", indices], ["y"], kernel_shape=[2], strides=[2]),
    ]
    return inferred(nodes, [value("x", (1, 2, 7)), value("other", (1, 2, 3), I64)])


def test_the_gradient_of_a_pool_is_like_its_input() -> None:
    assert _pool_gradient([], "i")["y"].shape == (1, 2, 7)
    assert _pool_gradient([node("Identity", ["i"], ["j"])], "j")["y"].shape == (1, 2, 7)


def test_the_gradient_of_a_pool_is_unknown_if_the_pool_is() -> None:
    assert "y" not in _pool_gradient([], "other")


def _gathered(shape_nodes: Sequence[NodeProto], shape: str) -> ValueTypes:
    gradient = node("GatherGrad", [shape, "rows", "dy"], ["y"], domain=DOMAIN)
    inputs = [
        value("table", (9, 4)),
        value("rows", (5,), I64),
        value("dy", (5, 4)),
        value("fed", (2,), I64),
    ]
    weights = {"nine": np.array([9]), "one": np.array([1]), "sizes": np.array([9, 4])}
    return inferred([*shape_nodes, gradient], inputs, weights=weights)


@pytest.mark.parametrize(
    "shape_nodes",
    [
        [node("Shape", ["table"], ["s"])],
        [node("Identity", ["sizes"], ["s"])],
        [
            node("Shape", ["dy"], ["all"]),
            node("Gather", ["all", "one"], ["four"]),
            node("Concat", ["nine", "four"], ["s"], axis=0),
        ],
        [
            node("Shape", ["table"], ["last"], start=-1),
            node("Concat", ["nine", "last"], ["s"], axis=0),
        ],
    ],
)
def test_the_gradient_of_gather_has_the_shape_it_is_told(shape_nodes: Sequence[NodeProto]) -> None:
    assert _gathered(shape_nodes, "s")["y"] == ValueType("float", (9, 4))


def test_the_gradients_of_slices_have_the_shape_they_are_told() -> None:
    ints = [value(name, (1,), I64) for name in ("from", "to")]
    read = ["dy", "sizes", "from", "to"]
    one = node("SliceGrad", read, ["y"], domain=DOMAIN)
    types = inferred([one], [value("dy", (2, 4)), *ints], weights={"sizes": np.array([9, 4])})
    assert types["y"].shape == (9, 4)


def test_a_shape_that_is_fed_is_an_error_that_names_the_value_until_its_type_is_given() -> None:
    gradient = node("GatherGrad", ["fed", "rows", "dy"], ["g"], domain=DOMAIN)
    inputs = [value("fed", (2,), I64), value("rows", (5,), I64), value("dy", (5, 4))]
    proto = model([gradient, node("Relu", ["g"], ["y"])], inputs, domains=[DOMAIN])
    loaded = from_proto(proto)
    binding = bind_dimensions(loaded, {})
    with pytest.raises(ModelError, match=r"'g', made by node 0 \(GatherGrad\).*stated in the file"):
        import_model(loaded, infer_types(loaded, binding))
    types = infer_types(loaded, binding, {"g": ValueType("float", (9, 4))})
    assert types["y"].shape == (9, 4)
    assert import_model(loaded, types).graph.ops


def test_an_op_without_a_rule_is_typed_by_the_file_and_rules_go_on_behind_it() -> None:
    nodes = [
        node("Mystery", ["x"], ["m"], domain=DOMAIN),
        node("ReluGrad", ["m", "x"], ["r"], domain=DOMAIN),
        node("Transpose", ["r"], ["t"]),
        node("GeluGrad", ["t", "t"], ["y"], domain=DOMAIN),
    ]
    inputs = [value("x", (2, 3))]
    assert "y" not in inferred(nodes, inputs)
    assert inferred(nodes, inputs, stated=[value("m", (2, 3))])["y"].shape == (3, 2)


def test_rules_win_over_outdated_statements_of_the_file() -> None:
    one = node("ReluGrad", ["x", "x"], ["y"], domain=DOMAIN)
    assert inferred([one], [value("x", (2, 3))], stated=[value("y", (9, 9))])["y"].shape == (2, 3)


def test_element_types_that_differ_are_not_guessed() -> None:
    one = node("SoftmaxCrossEntropyLossGrad", ["dy", "p", "l"], ["y"], domain=DOMAIN)
    inputs = [value("dy", ()), value("p", (2, 3), D), value("l", (2,), I64)]
    assert "y" not in inferred([one], inputs)


def test_a_whole_training_graph_has_types_without_any_statement() -> None:
    _, types = types_of(convolutions(layers=3))
    for i in range(3):
        assert types[f"w{i}_grad"] == types[f"w{i}"]
        assert types[f"b{i}_grad"] == types[f"b{i}"]
        assert types[f"z{i}_grad"] == types[f"z{i}"]
    assert types["w_grad"] == types["w"]


def test_a_training_graph_is_split_at_its_loss() -> None:
    graph = imported(convolutions(layers=3)).graph
    split = split_training(graph)
    assert graph.tensors[split.loss].name == "loss"
    assert {graph.ops[v].op_type for v in split.forward} <= {
        "Conv",
        "Relu",
        "MaxPool",
        "Gemm",
        "SoftmaxCrossEntropyLoss",
    }
    assert len(cut(split).forward) == len(split.forward)


def test_accumulators_never_run_twice() -> None:
    for op in imported(convolutions(layers=2)).graph.ops:
        assert op.recomputable == (op.op_type != "InPlaceAccumulatorV2"), op.op_type


@pytest.mark.parametrize(
    "planner",
    ["chain", "lower_sets", "chen", "revolve", "greedy", "local_search", "twremat", "auto"],
)
def test_planners_plan_training_graphs(planner: str) -> None:
    graph = imported(convolutions()).graph
    own = given_order(graph)
    peak = profile(graph, own, RECIPE_RULES).peak_bytes
    problem = Problem(graph, RECIPE_RULES, starts=(own,))
    compile_kernels()
    plan = PLANNERS[planner].function(problem, Limits(seconds=2, seed=0))
    check(graph, plan.schedule)
    assert profile(graph, plan.schedule, RECIPE_RULES).peak_bytes == plan.peak_bytes
    assert plan.peak_bytes < 0.8 * peak
