"""Which kernels sessions run, and that a difference is found that equal outputs hide."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.ort.blocked_layout import layout_width
from onnxremat.ort.measuring.compare import different_names
from onnxremat.ort.measuring.measure import in_memory
from onnxremat.ort.outside import Weights
from onnxremat.ort.recipe import STOCK, OptimizationLevel
from onnxremat.ort.session_kernels import (
    Kernel,
    averaged_in_blocks,
    fused_later,
    kernels_of,
    other_kernels,
    pooled_in_blocks,
    session_kernels,
)
from onnxremat.targets.stock_original import StockOriginal
from onnxremat.targets.stock_trial import StockTrial
from onnxremat.targets.stock_variants import PlannedModel, Variant
from onnxremat_rewriters.stock import Edges, planned_graph, stock

ONE = STOCK.with_threads(1)
BLOCKED = "com.microsoft.nchwc"


def node(op: str, inputs: str, made: str, name: str = "", domain: str = "", **attributes: object):  # type: ignore[no-untyped-def]
    return helper.make_node(
        op, inputs.split(), made.split(), name or made, domain=domain, **attributes
    )


def model_of(nodes: Sequence[onnx.NodeProto]) -> onnx.ModelProto:
    return helper.make_model(helper.make_graph(list(nodes), "g", [], []))


def test_tiles_and_repetitions_are_of_the_value_that_they_are_named_after() -> None:
    found = kernels_of(
        model_of([
            node("Conv", "x w", "a__region0_tile1"),
            node("Conv", "x w", "token", "a__recompute1__region2_tile0_1_nchwc", BLOCKED),
            node("Shape", "a", "stock__after0"),
            node("Concat", "p q", "b"),
        ])
    )  # fmt: skip
    assert found == {
        "a": {Kernel("", "Conv", "", 2), Kernel(BLOCKED, "Conv", "", 2)},
        "b": {Kernel("", "Concat", "", 0)},
    }


def test_other_kernels_are_named_and_moves_are_none() -> None:
    original = kernels_of(
        model_of([
            node("Conv", "x w", "t", "a_nchwc", BLOCKED, activation="Relu"),
            node("MaxPool", "t", "u", "p_nchwc", BLOCKED),
            node("ReorderOutput", "u", "p", domain=BLOCKED),
        ])
    )  # fmt: skip
    plain_pool = kernels_of(model_of([node("MaxPool", "a", "p__region0_tile1")]))
    assert other_kernels(original, plain_pool) == (
        f"p is made by MaxPool(1) instead of {BLOCKED}.MaxPool(1), {BLOCKED}.ReorderOutput(1)"
    )
    unfused = kernels_of(model_of([node("Conv", "x w", "t", "a_nchwc", BLOCKED)]))
    assert other_kernels(original, unfused).startswith("a is made by")
    moved = kernels_of(
        model_of([node("Slice", "x s e", "p__region0_tile0"), node("Concat", "", "q")])
    )
    assert other_kernels(original, moved) == ""
    assert other_kernels(original, original) == ""
    own = kernels_of(model_of([node("Exp", "x", "mine")]))
    assert other_kernels(original, own) == "mine is made by Exp(1)"
    assert other_kernels(original, own, more=True) == ""


def test_what_is_added_up_on_the_way_and_averaged_in_blocks() -> None:
    planned = kernels_of(
        model_of([
            node("Conv", "x w b", "a"), node("Conv", "x w b", "c"), node("Add", "a c", "s"),
            node("GlobalAveragePool", "s", "g"), node("Slice", "s t", "p"),
        ])
    )  # fmt: skip
    executed = kernels_of(
        model_of([
            node("Conv", "x w b", "t", "a_nchwc", BLOCKED),
            node("Conv", "x w b t", "s", "c_nchwc", BLOCKED),
            node("GlobalAveragePool", "s", "u", "g_nchwc", BLOCKED),
            node("MaxPool", "s", "v", "m_nchwc", BLOCKED), node("Slice", "s t e", "p"),
        ])
    )  # fmt: skip
    assert fused_later(planned, executed) == {"c"}
    assert fused_later(planned, planned) == frozenset()
    assert averaged_in_blocks(executed) == {"g"}
    assert averaged_in_blocks(planned) == frozenset()
    assert pooled_in_blocks(executed) == {"g", "m"}
    assert pooled_in_blocks(planned) == frozenset()


def classes(path: Path | None = None) -> onnx.ModelProto:
    """Convolutions with a residual addition, and class numbers of what comes out."""
    rng, weights = np.random.default_rng(0), []

    def conv(x: str, made: str, before: int, behind: int) -> onnx.NodeProto:
        w = rng.standard_normal((behind, before, 3, 3), dtype=np.float32) / (3 * before**0.5)
        weights.append(numpy_helper.from_array(w, f"{made}_w"))
        return helper.make_node("Conv", [x, f"{made}_w"], [made], made, pads=[1] * 4)

    nodes = [
        conv("x", "a", 3, 32), node("Relu", "a", "b"), conv("b", "c", 32, 32),
        node("LeakyRelu", "c", "d", alpha=0.1), conv("d", "e", 32, 32), node("Add", "e b", "f"),
        node("Relu", "f", "g"), conv("g", "l", 32, 4), node("ArgMax", "l", "y", axis=1, keepdims=0),
    ]  # fmt: skip
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 40, 40])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, [1, 40, 40])
    graph = helper.make_graph(nodes, "classes", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    if path is not None:
        onnx.save(model, path)
    return model


@pytest.mark.slow
@pytest.mark.skipif(layout_width() is None, reason="this processor has no blocked layout")
def test_what_hides_shapes_is_not_taken_behind_an_argmax() -> None:
    """Without blocks other bits come out, which ArgMax mostly hides: outputs are compared for
    nothing there."""
    model = classes()
    feed = {"x": np.zeros((1, 3, 40, 40), np.float32)}
    original = StockOriginal(model, Path(), feed, threads=1, weights=Weights.PACKED, repeats=1)
    trial = StockTrial(original, variants=(Variant.PLAN,))
    result = trial.rewrite(model)
    plan = next(one for one in result.candidates if one.variant is Variant.PLAN)
    assert plan.memory is not None and result.chosen is None
    source = in_memory(model, Path())
    known = session_kernels(source, ONE, OptimizationLevel.ALL)
    plain = session_kernels(source, ONE, OptimizationLevel.BASIC)
    assert other_kernels(known, known) == ""
    assert "is made by Conv(2)" in other_kernels(known, plain)


@pytest.mark.slow
@pytest.mark.skipif(layout_width() is None, reason="this processor has no blocked layout")
def test_pools_lie_in_blocks_behind_an_edge_in_files_for_any_processor() -> None:
    """As in the original: that is decided when the file is opened, by what is known of shapes."""
    nodes = [
        node("Relu", "x", "a"), node("Exp", "x", "e"), node("MaxPool", "a", "p", kernel_shape=[2, 2]),
        node("ReduceSum", "e", "s", keepdims=0), node("Mul", "p s", "m"), node("Conv", "m w", "c"),
        node("MaxPool", "c", "q", kernel_shape=[2, 2]), node("Tanh", "q", "y"),
    ]  # fmt: skip
    shapes = {"x": [1, 32, 16, 16], "w": [32, 32, 1, 1]}
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 32, 14, 14])
    graph = helper.make_graph(nodes, "pools", inputs, [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rng = np.random.default_rng(0)
    feed = {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}
    original = StockOriginal(model, Path(), feed, threads=1, weights=Weights.EXTERNAL, repeats=1)
    assert pooled_in_blocks(original.kernels) == {"p", "q"}
    for name in ("a", "c"):  # channels suffice
        dims = [None, 32, None, None]
        model.graph.value_info.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, dims))
    planned = PlannedModel(original, model, Weights.EXTERNAL, None, {})
    written = planned.written(Variant.PLAN)
    assert original.runs_otherwise(written.source, more=False) == ""
    assert not different_names(original.outputs(original.source), original.outputs(written.source))
    del model.graph.value_info[1:]
    made = stock(model, edges=Edges.ALL, stated=True)
    read = next(n for n in planned_graph(made.model).node if list(n.output) == ["p"]).input[0]
    assert read != "a"
    assert original.runs_otherwise(in_memory(made.model, Path()), more=False).startswith("q is")
