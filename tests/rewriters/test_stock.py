"""`stock`: the same bits and the order of the plan under default options, in less memory."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.core.errors import ModelError
from onnxremat.importer.execution_order import default_order
from onnxremat.importer.nodes import captured
from onnxremat.ort.child.process import ModelSource
from onnxremat.ort.library import RUNTIME_ERRORS
from onnxremat.ort.measuring.compare import different_names
from onnxremat.ort.measuring.executed_steps import check_order
from onnxremat.ort.measuring.measure import in_memory, run_outputs
from onnxremat.ort.measuring.session_memory import HeapNeed, SessionMemory, measure_session
from onnxremat.ort.outside import Weights
from onnxremat.ort.recipe import STOCK
from onnxremat.targets import stock_original
from onnxremat.targets.stock_original import StockOriginal
from onnxremat.targets.stock_trial import ABOVE, Asked, StockTrial
from onnxremat.targets.stock_variants import IN_TILES, Variant
from onnxremat_rewriters.recompute import MARK
from onnxremat_rewriters.stock import STOCK_KEY, Edges, StockModel, is_stock, planned_graph, stock
from onnxremat_rewriters.stock.facts import inferred_types
from tests.ort.build import random_model

pytestmark = pytest.mark.slow

Array = np.ndarray[Any, Any]
PARTS = [dict(zip(("hide", "chain", "wrap"), p, strict=True)) for p in itertools.product((True, False), repeat=3)]  # fmt: skip
FLOAT, INT64, BOOL, STRING = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL, TensorProto.STRING  # fmt: skip


def node(op: str, inputs: list[str], outputs: str, **attributes: Any) -> onnx.NodeProto:
    made = outputs.split()
    return helper.make_node(op, inputs, made, made[0], **attributes)


def value(name: str, shape: Any = (4, 6), kind: int = FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def model_of(
    nodes: list[onnx.NodeProto],
    outputs: list[onnx.ValueInfoProto],
    weights: Mapping[str, Any] | None = None,
    inputs: list[onnx.ValueInfoProto] | None = None,
    opset: int = 17,
    ir_version: int = 8,
) -> onnx.ModelProto:
    stored = [numpy_helper.from_array(np.asarray(a), n) for n, a in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs or [value("x")], outputs, stored)
    opsets = [helper.make_opsetid("", opset)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)


def training_like(opset: int = 17, ir_version: int = 8) -> onnx.ModelProto:
    """Long edges, a scalar loss, Shape and Size, a Transpose with two readers, constant shapes, a
    recomputed node; the order is no depth-first one."""
    copy = node("Exp", ["x"], "a__recompute1")
    copy.attribute.append(helper.make_attribute(MARK, 1))
    nodes = [
        node("Exp", ["x"], "a"),
        node("Neg", ["x"], "b"),
        node("Transpose", ["a"], "at", perm=[1, 0]),
        node("MatMul", ["b", "at"], "m"),
        node("ReduceMean", ["m"], "loss", keepdims=0),
        node("Sigmoid", ["b"], "s"),
        node("Size", ["s"], "count"),
        node("Shape", ["m"], "sizes"),
        node("Reshape", ["at", "flat"], "r"),
        node("Tanh", ["r"], "t"),
        copy,
        node("Reshape", ["t", "back"], "tb"),
        node("Mul", ["a__recompute1", "tb"], "p"),
        node("Add", ["p", "loss"], "q"),
        node("Expand", ["loss", "two"], "e"),
        node("MatMul", ["m", "q"], "y"),
    ]
    weights = {"flat": [24], "back": [4, 6], "two": [2, 2]}
    inputs = [value("x")]
    if ir_version < 4:
        inputs += [value(name, [len(v)], INT64) for name, v in weights.items()]
    return model_of(
        nodes,
        [value("loss", []), value("y", (4, 6)), value("e", (2, 2)), value("count", [], INT64), value("sizes", [2], INT64)],
        {name: np.array(v, np.int64) for name, v in weights.items()},
        inputs,
        opset,
        ir_version,
    )  # fmt: skip


def feed(model: onnx.ModelProto, seed: int = 0) -> dict[str, Array]:
    rng = np.random.default_rng(seed)
    stored = {t.name for t in model.graph.initializer}
    made = {}
    for given in model.graph.input:
        shape = [d.dim_value or 3 for d in given.type.tensor_type.shape.dim]
        kind = given.type.tensor_type.elem_type
        if given.name not in stored:
            made[given.name] = (
                rng.standard_normal(shape).astype("f") if kind == FLOAT else np.ones(shape, helper.tensor_dtype_to_np_dtype(kind))
            )  # fmt: skip
    return made


def run(
    model: onnx.ModelProto, inputs: Mapping[str, Array], *, optimized: bool = True
) -> list[Any]:
    """Twice with one session, as the second run is laid out differently; the second's outputs."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options)
    first = session.run(None, inputs)
    second = session.run(None, inputs)
    assert bits(first) == bits(second)
    return list(second)


def bits(values: list[Any]) -> list[Any]:
    return [
        bits(v) if isinstance(v, list) else (v.dtype, v.shape, v.tolist() if v.dtype.hasobject else v.tobytes())
        for v in values
    ]  # fmt: skip


def assert_same(model: onnx.ModelProto, made: StockModel) -> None:
    """Checked, same interface, same bits with and without optimisations."""
    onnx.checker.check_model(made.model, full_check=True)
    assert list(made.model.graph.input) == list(model.graph.input)
    assert list(made.model.graph.output) == list(model.graph.output)
    assert list(made.model.graph.initializer) == list(model.graph.initializer)
    kept = [entry for entry in made.model.metadata_props if entry.key != STOCK_KEY]
    assert kept == list(model.metadata_props)
    inputs = feed(model)
    expected = bits(run(model, inputs, optimized=False))
    assert bits(run(made.model, inputs)) == expected
    assert bits(run(made.model, inputs, optimized=False)) == expected


def emulated(made: StockModel) -> list[str]:
    """The steps in the runtime's default order."""
    nodes = planned_graph(made.model).node
    steps = set(made.steps)
    order = (name for v in default_order(nodes) for name in nodes[v].output)
    return [name for name in order if name in steps]


@pytest.mark.parametrize("opset", range(9, 22))
def test_every_opset_gives_the_same_bits_in_the_order_of_the_plan(opset: int) -> None:
    model = training_like(opset)
    before = model.SerializeToString()
    for edges in (Edges.ALL, Edges.NEEDED):
        made = stock(model, edges=edges)
        assert_same(model, made)
        assert emulated(made) == list(made.steps)
    assert model.SerializeToString() == before
    assert made.notes == ((f"operator set raised from {opset} to 11",) if opset < 11 else ())


@pytest.mark.parametrize("parts", PARTS, ids=str)
def test_every_combination_of_parts_gives_the_same_bits(parts: dict[str, bool]) -> None:
    model = training_like()
    made = stock(model, **parts, warm_bytes=100_000)
    assert_same(model, made)
    if parts["chain"]:
        assert emulated(made) == list(made.steps)
        assert made.edges > 0
    assert json.loads(made.model.metadata_props[-1].value)["wrap"] == parts["wrap"]


def test_the_plan_is_no_order_that_the_runtime_would_choose_itself() -> None:
    made = stock(training_like(), chain=False)
    assert emulated(made) != list(made.steps)


@pytest.mark.parametrize("edges", [Edges.ALL, Edges.NEEDED])
def test_the_runtime_executes_the_plan(edges: Edges) -> None:
    model = training_like()
    made = stock(model, edges=edges)
    plain = check_order(made, ".", feed(model), optimized=False)
    assert plain.executed == tuple(range(len(made.steps)))
    default = check_order(made, ".", feed(model))
    assert default.as_planned
    assert len(default.executed) + len(default.vanished) == len(made.steps)


def test_edges_needed_are_some_of_all() -> None:
    model = training_like()
    assert 0 < stock(model, edges=Edges.NEEDED).edges <= stock(model).edges
    assert stock(model, chain=False).edges == 0


@pytest.mark.parametrize("cover_all", [False, True])
def test_an_edge_hides_a_shape_where_it_may_be_known(cover_all: bool) -> None:
    """Behind the token none is, unless the runtime finds out more; the order is kept either way."""
    model = wide()
    made = stock(model, stated=True, cover_all=cover_all)
    nodes = planned_graph(made.model).node
    covers = [n for n in nodes if n.output[0].startswith("stock__seen")]
    assert made.edges > 0
    assert len(covers) == (made.edges if cover_all else 0)
    assert check_order(made, Path(), feed(model), threads=1).as_planned


def test_inputs_that_are_weights_are_not_hidden() -> None:
    """Where they are read as something else, too, or weigh what is known, they are."""
    nodes = [
        node("MatMul", ["x", "w"], "a"), node("MatMul", ["a", "v"], "b"), node("Exp", ["b"], "c"),
        node("MatMul", ["c", "u"], "d"), node("Exp", ["u"], "e"), node("Add", ["d", "e"], "y"),
    ]  # fmt: skip
    inputs = [value(name, (4, 4)) for name in "xwvu"]
    model = model_of(nodes, [value("y", (4, 4))], inputs=inputs)
    made = stock(model)
    assert_same(model, made)
    written = planned_graph(made.model).node
    assert {n.input[0] for n in written if "hidden__" in n.output[0]} == {"x", "u"}
    flat = stock(model, wrap=False)
    known = inferred_types(flat.model, flat.model.graph.node)
    assert {"a", "b", "c", "d", "e"} <= set(flat.steps) & set(known)
    assert not any(known[name].tensor_type.HasField("shape") for name in flat.steps if name != "y")


@pytest.mark.parametrize("seed", range(25))
def test_random_models_with_branches(seed: int) -> None:
    model = random_model(seed, 15)
    inputs = {"x": np.linspace(0.1, 0.9, 2, dtype="f"), "c": np.array(seed % 2 == 0)}
    expected = bits(run(model, inputs, optimized=False))
    for parts in ({}, {"hide": False}, {"edges": Edges.NEEDED}, {"hide": False, "chain": False}):
        made = stock(model, **parts)  # type: ignore[arg-type]
        assert bits(run(made.model, inputs)) == expected
        if parts.get("chain", True):
            assert emulated(made) == list(made.steps)


def test_captured_values_of_loops_and_branches_are_carried() -> None:
    body = helper.make_graph(
        [
            helper.make_node("Add", ["state", "a"], ["sum"]),
            helper.make_node("Mul", ["sum", "w"], ["next"]),
            helper.make_node("Identity", ["go"], ["on"]),
        ],
        "body",
        [value("i", [], INT64), value("go", [], BOOL), value("state", None)],
        [value("on", [], BOOL), value("next", None)],
    )
    nodes = [
        node("Exp", ["x"], "a"),
        node("Neg", ["x"], "b"),
        node("Loop", ["trips", "", "b"], "y", body=body),
        node("Sub", ["y", "a"], "z"),
    ]
    weights = {"trips": np.array(3, np.int64), "w": np.full((4, 6), 0.5, "f")}
    model = model_of(nodes, [value("z"), value("a")], weights)
    for parts in PARTS:
        assert_same(model, stock(model, **parts))
    (loop,) = (n for n in planned_graph(stock(model).model).node if n.op_type == "Loop")
    assert len(captured(loop)) == 2


def test_outputs_of_every_kind() -> None:
    """Read by nodes, being inputs or initializers, of any element type, sequences."""
    nodes = [
        node("Exp", ["x"], "a"),
        node("Neg", ["a"], "b"),
        node("Greater", ["a", "b"], "larger"),
        node("ArgMax", ["b"], "where", axis=1),
        node("Identity", ["texts"], "said"),
        node("SequenceConstruct", ["a", "b"], "both"),
    ]
    both = helper.make_tensor_sequence_value_info("both", FLOAT, None)
    outputs = [
        value("a"), value("b"), value("larger", (4, 6), BOOL), value("where", (4, 1), INT64),
        value("said", [2], STRING), value("x"), value("w", [2]), both,
    ]  # fmt: skip
    inputs = [value("x"), value("texts", [2], STRING)]
    model = model_of(nodes, outputs, {"w": np.ones(2, "f")}, inputs)
    given = {"x": feed(model)["x"], "texts": np.array(["one", "two"], object)}
    expected = bits(run(model, given, optimized=False))
    for parts in PARTS:
        made = stock(model, **parts)
        onnx.checker.check_model(made.model, full_check=True)
        assert bits(run(made.model, given)) == expected


def test_symbolic_dimensions_stay() -> None:
    nodes = [node("Exp", ["x"], "a"), node("Neg", ["x"], "b"), node("Add", ["a", "b"], "y")]
    model = model_of(nodes, [value("y", ("n", 6))], inputs=[value("x", ("n", 6))])
    made = stock(model)
    assert_same(model, made)
    for rows in (1, 5):
        x = np.ones((rows, 6), "f")
        assert bits(run(made.model, {"x": x})) == bits(run(model, {"x": x}))


def test_a_file_of_ir_3_keeps_its_initializers_as_inputs() -> None:
    model = training_like(opset=9, ir_version=3)
    assert len(model.graph.input) == 4
    for parts in PARTS:
        assert_same(model, stock(model, **parts))


def test_an_initializer_that_a_caller_may_override_is_still_overridden() -> None:
    nodes = [node("Mul", ["x", "w"], "a"), node("Neg", ["a"], "y")]
    model = model_of(nodes, [value("y")], {"w": np.full((4, 6), 2, "f")}, [value("x"), value("w")])
    inputs = {**feed(model), "w": np.full((4, 6), 3, "f")}
    for parts in PARTS:
        made = stock(model, **parts)
        assert bits(run(made.model, inputs)) == bits(run(model, inputs))
        assert_same(model, made)


def test_recomputed_constant_nodes_are_folded_once() -> None:
    first, copy = (node("Transpose", ["w"], name, perm=[1, 0]) for name in ("t", "t__recompute1"))
    copy.attribute.append(helper.make_attribute(MARK, 1))
    nodes = [first, node("MatMul", ["x", "t"], "a"), copy, node("MatMul", ["a", "t__recompute1"], "y")]  # fmt: skip
    model = model_of(nodes, [value("y", (4, 6))], {"w": np.ones((6, 6), "f")})
    made = stock(model)
    assert_same(model, made)
    assert [n.op_type for n in planned_graph(made.model).node].count("Transpose") == 1


def test_what_was_rewritten_is_refused() -> None:
    made = stock(training_like())
    assert is_stock(made.model)
    with pytest.raises(ModelError, match="already"):
        stock(made.model)
    with pytest.raises(ModelError, match="already"):
        StockOriginal(made.model, Path(), {})


@pytest.mark.parametrize("opset", [9, 10])
def test_an_output_that_nobody_reads_may_have_another_form(opset: int) -> None:
    """The mask of a Dropout: other operator sets give it another type."""
    nodes = [node("Dropout", ["x"], "d mask"), node("Exp", ["d"], "y")]
    model = model_of(nodes, [value("y")], opset=opset)
    assert_same(model, stock(model))


@pytest.mark.parametrize(("opset", "op", "message"), [(9, "Clip", "Clip has another form"), (8, "Relu", "9 or later")])  # fmt: skip
def test_operator_sets_that_cannot_be_raised_are_refused(opset: int, op: str, message: str) -> None:
    model = model_of([node(op, ["x"], "y")], [value("y")], opset=opset)
    with pytest.raises(ModelError, match=message):
        stock(model)


def test_a_model_without_work_is_refused() -> None:
    with pytest.raises(ModelError, match="no output"):
        stock(model_of([], [value("x")]))


def with_weights() -> onnx.ModelProto:
    rng = np.random.default_rng(0)
    weights = {
        "k": (rng.standard_normal((256, 256, 3, 3)) * 0.02).astype("f"),
        "kb": np.zeros(256, "f"),
        "w": (rng.standard_normal((2048, 2048)) * 0.02).astype("f"),
        "flat": np.array([1, -1], np.int64),
        "cut": np.array([0, 2048], np.int64),
    }
    constant = node("Constant", [], "v", value=numpy_helper.from_array(weights["w"].T.copy()))
    nodes = [
        constant,
        node("Conv", ["x", "k", "kb"], "c", kernel_shape=[3, 3]),
        node("Relu", ["c"], "r"),
        node("Reshape", ["r", "flat"], "f"),
        node("MatMul", ["f", "w"], "m"),
        node("MatMul", ["m", "v"], "y"),
    ]
    return model_of(nodes, [value("y", (1, 2048))], weights, [value("x", (1, 256, 4, 6))])


@pytest.mark.parametrize("parts", [{}, {"hide": False, "chain": False}], ids=["plan", "wrap"])
def test_weights_are_held_once(parts: dict[str, bool]) -> None:
    """None is in the branch, and loading takes no more than loading the original."""
    model = with_weights()
    made = stock(model, **parts)
    inputs = feed(model)
    stored = (t.ByteSize() for t in planned_graph(made.model).initializer)
    constants = (n.ByteSize() for n in planned_graph(made.model).node if n.op_type == "Constant")
    assert sum((*stored, *constants)) < 10_000
    weights = 4 * (256 * 256 * 9 + 2 * 2048 * 2048)
    original, rewritten = (
        measure_session(
            in_memory(one, "."), inputs, STOCK.with_threads(1), runs=1, returning=True
        ).returning
        for one in (model, made.model)
    )
    assert original is not None
    assert rewritten is not None
    assert rewritten.loaded_bytes < original.loaded_bytes + 0.15 * weights
    if parts:
        assert bits(run(made.model, inputs)) == bits(run(model, inputs))
    else:
        assert bits(run(made.model, inputs)) == bits(run(model, inputs, optimized=False))


def test_weights_in_another_file_stay_there(tmp_path: Path) -> None:
    model = with_weights()
    onnx.save(model, tmp_path / "m.onnx", save_as_external_data=True, location="w")
    stored = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    made = stock(stored, hide=False, chain=False)
    assert list(made.model.graph.initializer) == list(stored.graph.initializer)
    inputs = feed(model)
    old = run_outputs(in_memory(stored, tmp_path), inputs, STOCK)
    assert not different_names(old, run_outputs(in_memory(made.model, tmp_path), inputs, STOCK))
    assert measure_session(in_memory(made.model, tmp_path), inputs, STOCK, runs=1).loaded_bytes > 0


def wide() -> onnx.ModelProto:
    """Exp outputs of 4 MB that the default order makes all at once, and a plan that does not."""
    nodes, last = [], "x"
    for i in range(8):
        nodes += [node("Exp", ["x"], f"e{i}"), node("Mul", [f"e{i}", last], f"m{i}"), node("Tanh", [f"m{i}"], f"t{i}")]  # fmt: skip
        last = f"t{i}"
    shape = (1024, 1024)
    return model_of(nodes, [value(last, shape)], inputs=[value("x", shape)])


def once(model: onnx.ModelProto) -> StockOriginal:
    """Each memory figure of one process."""
    return StockOriginal(model, Path(), feed(model), threads=1, repeats=1)


def test_the_best_variant_takes_less_memory_with_the_same_bits() -> None:
    model = wide()
    inputs = feed(model)
    variants = (Variant.PLAN, Variant.WRAP)
    trial = StockTrial(once(model), variants=variants)
    result = trial.rewrite(model, Asked(2.0))
    assert result.chosen is not None
    assert result.chosen.reason == ""
    assert result.memory.steady_bytes < 0.9 * result.original.steady_bytes
    assert result.chosen.same_as_unoptimized
    assert is_stock(result.model)
    old = run_outputs(in_memory(model, "."), inputs, STOCK)
    assert not different_names(old, run_outputs(in_memory(result.model, "."), inputs, STOCK))


def test_the_original_comes_back_if_nothing_is_better() -> None:
    model = model_of([node("Exp", ["x"], "y")], [value("y")])
    only = (Variant.PLAN,)
    trial = StockTrial(once(model), variants=only)
    result = trial.rewrite(model)
    assert result.chosen is None
    assert result.model == model
    assert result.memory == result.original
    assert result.candidates[0].reason


@pytest.mark.parametrize(
    ("own", "made", "reason"),
    [
        ((17, 34), (18, 18), ""),
        ((17, 34), (35, 18), "the first run takes more memory"),
        ((17, 17), (18, 16), "the first run takes more memory"),
        ((17, 34), (17, 35), "later runs take more memory"),
    ],
)
def test_the_first_run_may_take_what_later_ones_of_the_original_do(
    own: tuple[int, int], made: tuple[int, int], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pattern of the first run makes later ones take twice as much, by default."""

    def measured(original: StockOriginal, source: ModelSource) -> SessionMemory:
        peaks = own if source is original.source else made
        return SessionMemory(1 << 20, tuple(megabytes << 20 for megabytes in peaks))

    monkeypatch.setattr(StockOriginal, "measured", measured)
    model = wide()
    trial = StockTrial(once(model), variants=(Variant.WRAP,))
    (candidate,) = trial.rewrite(model, Asked(10.0)).candidates
    assert candidate.reason == reason


def test_a_heap_that_loading_leaves_by_chance_chooses_no_variant(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Variants are compared by what they take where malloc gives back what is freed, if that is
    less."""
    taken = iter([(60, 60), (40, 9), (30, 12)])

    def measured(original: StockOriginal, source: ModelSource) -> SessionMemory:
        kept, given_back = next(taken)
        returning = SessionMemory(0, (given_back << 20,) * 2)
        return SessionMemory(0, (kept << 20,) * 2, returning=returning)

    monkeypatch.setattr(StockOriginal, "measured", measured)
    trial = StockTrial(once(wide()), variants=(Variant.WRAP, Variant.PLAN))
    assert trial.before.least_bytes == 60 << 20
    result = trial.rewrite(wide(), Asked(10.0))
    assert [one.variant for one in result.candidates] == [Variant.WRAP, Variant.PLAN]
    assert result.chosen is not None and result.chosen.variant is Variant.WRAP


@pytest.mark.parametrize(
    ("seconds", "again", "allowed", "said"),
    [
        ((1.0, 2.0), None, 1.05, "2.00 s where the original takes 1.00 s"),
        ((1.0, 1.2), (1.0, 1.2), 1.05, "1.20 s where the original takes 1.00 s"),
        ((2.0, 2.08), (2.0, 2.08), 1.05, ""),
        ((2.0, 2.08), (2.0, 2.12), 1.05, "2.12 s where the original takes 2.00 s"),
        ((1.0, 1.4), (1.2, 1.2), 1.0, ""),
        ((0.01, 0.05), (0.01, 0.04), 1.05, ""),
        ((0.01, 0.05), (0.01, 0.05), 1.05, "50.0 ms where the original takes 10.0 ms"),
        ((0.01, 0.02), None, 1.05, ""),
        ((0.05, 0.04), (0.05, 0.06), 1.0, "60.0 ms where the original takes 50.0 ms"),
        ((0.06, 0.1), None, 1.05, "100.0 ms where the original takes 60.0 ms"),
        ((1.0, 1.2), None, None, ""),
    ],
)
def test_opening_takes_no_longer_where_time_is_limited(
    seconds: tuple[float, float],
    again: tuple[float, float] | None,
    allowed: float | None,
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured(original: StockOriginal, source: ModelSource) -> SessionMemory:
        number = int(source is not original.source)
        return SessionMemory(0, ((2 - number) << 20,) * 2, seconds[number])

    def opening(original: StockOriginal, source: ModelSource) -> tuple[float, float]:
        assert again is not None, "one opening of each is enough"
        return again

    monkeypatch.setattr(StockOriginal, "measured", measured)
    monkeypatch.setattr(StockOriginal, "opening", opening)
    trial = StockTrial(once(wide()), variants=(Variant.WRAP,))
    (candidate,) = trial.rewrite(wide(), Asked(10.0, load_ratio=allowed)).candidates
    assert said in candidate.reason
    assert ("where the original takes" in candidate.reason) is bool(said)
    assert candidate.too_slow is bool(said)


@pytest.mark.parametrize(
    ("weights", "heaps", "refused"),
    [
        (Weights.EXTERNAL, (59, 60), True),
        (Weights.EXTERNAL, (60, 60), False),
        (Weights.EXTERNAL, (None, 60), False),
        (Weights.EXTERNAL, (50, None), False),
        (Weights.EMBEDDED, (50, 60), False),
    ],
)
def test_what_runs_anywhere_takes_no_more_in_one_heap(
    weights: Weights,
    heaps: tuple[int | None, int | None],
    refused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measured(original: StockOriginal, source: ModelSource) -> SessionMemory:
        return SessionMemory(0, ((9 if source is original.source else 8) << 20,) * 2)

    def need(original: StockOriginal, source: ModelSource) -> HeapNeed | None:
        """Of the original what it holds counts, of a file where its heap ends."""
        megabytes = heaps[source is not original.source]
        if megabytes is None:
            return None
        held, nbytes = source is original.source, megabytes * 10**6
        return HeapNeed(2 * nbytes, nbytes) if held else HeapNeed(nbytes, nbytes // 2)

    monkeypatch.setattr(StockOriginal, "measured", measured)
    monkeypatch.setattr(StockOriginal, "of_one_heap", need)
    original = replace(once(wide()), weights=weights)
    trial = StockTrial(original, variants=(Variant.WRAP,))
    candidate = trial.rewrite(wide(), Asked(10.0)).candidates[0]
    text = "60.00 MB of one heap, as WebAssembly has, where the original holds 59.00 MB (--no-p"
    assert (text in candidate.reason) is refused


@pytest.mark.parametrize(("loaded", "pays"), [((100, 80), True), ((100, 95), False)])
def test_weights_are_laid_out_by_size_where_that_leaves_less(
    loaded: tuple[int, int], pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured once for a model, whatever its plan is; what is left by chance counts for nothing."""
    measured: list[ModelSource] = []

    def session(source: ModelSource, *_: Any, **__: Any) -> SessionMemory:
        measured.append(source)
        return SessionMemory(loaded[len(measured) - 1], (0,))

    monkeypatch.setattr(stock_original, "measure_session", session)
    original = once(wide())
    first, second = original.source, replace(original.source)
    assert original.opens_in_less(first, second) is pays
    assert original.opens_in_less(second, first) is pays
    assert [id(one) for one in measured] == [id(first), id(second)]


def test_what_is_above_the_limit_is_looked_at_no_further() -> None:
    model = wide()
    variants = (Variant.PLAN, Variant.WRAP)
    trial = StockTrial(once(model), variants=variants)
    result = trial.rewrite(model, Asked(2.0, lambda memory: False))
    assert result.chosen is None
    assert [one.reason for one in result.candidates] == [ABOVE, ABOVE]
    assert all(one.times is None for one in result.candidates)


def test_what_takes_too_long_says_how_much() -> None:
    model = wide()
    trial = StockTrial(once(model), variants=(Variant.PLAN,))
    result = trial.rewrite(model, Asked(0.01))
    assert result.chosen is None and result.closest is not None
    assert "where -99% is allowed" in result.closest.reason


def test_tiles_need_the_order_of_their_plan() -> None:
    model = wide()
    trial = StockTrial(once(model))
    result = trial.rewrite(model, Asked(10.0), tiled=True)
    assert {one.variant for one in result.candidates} == set(IN_TILES)
    assert Variant.WRAP not in IN_TILES


@pytest.mark.parametrize("hide", [True, False])
def test_a_branch_states_inner_shapes_unless_they_are_hidden(hide: bool) -> None:
    model = model_of([node("Exp", ["x"], "a"), node("Neg", ["a"], "y")], [value("y")])
    model.graph.value_info.append(value("a"))
    stated = planned_graph(stock(model, hide=hide).model).value_info
    assert [v.name for v in stated] == ([] if hide else ["a"])


SHAPES: dict[str, Any] = {
    "open": ({"x": ("n", 3)}, {"x": (4, 3)}, [{"x": (5, 3)}, {"x": (0, 3)}]),
    "unranked": ({"x": None}, {"x": (4, 3)}, [{"x": (4, 3, 1)}, {"x": (12,)}, {"x": ()}, {"x": (3, 4)}]),
    "a scalar": ({"x": None}, {"x": ()}, [{"x": (1,)}, {"x": (1, 1)}]),
    "ranks apart": ({"x": None, "z": None}, {"x": (2,), "z": (2, 2)}, [{"x": (2, 2), "z": (2,)}, {"x": (2,), "z": (4,)}]),
    "empty": ({"x": (2, "past")}, {"x": (2, 0)}, [{"x": (2, 1)}]),
}  # fmt: skip


@pytest.mark.parametrize("opset", [9, 12, 13, 18, 23])
@pytest.mark.parametrize("case", SHAPES)
def test_a_file_for_one_size_fails_at_others(case: str, opset: int) -> None:
    declared, planned, others = SHAPES[case]
    inputs = [value(name, shape) for name, shape in declared.items()]
    nodes = [node("Tanh", [name], f"y_{name}") for name in declared]
    outputs = [value(f"y_{name}", shape) for name, shape in declared.items()]
    made = stock(model_of(nodes, outputs, inputs=inputs, opset=opset), sizes=planned).model
    if None not in declared.values():
        onnx.checker.check_model(made, full_check=True)
    assert list(made.graph.input) == inputs
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    for _ in range(2):
        feed = {name: np.ones(shape, "f") for name, shape in planned.items()}
        for name, got in zip(declared, session.run(None, feed), strict=True):
            assert np.array_equal(got, np.tanh(feed[name]))
        for other in others:
            with pytest.raises(RUNTIME_ERRORS, match="onnxremat: this file is for x of"):
                session.run(None, {name: np.ones(shape, "f") for name, shape in other.items()})


def test_only_a_model_in_a_branch_can_fail_at_other_sizes() -> None:
    with pytest.raises(ValueError, match="branch"):
        stock(training_like(), wrap=False, sizes={"x": (4, 6)})
