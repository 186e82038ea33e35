"""`rewrite` for other targets than the recipe: default session options, static plans, optimized
models."""

import json
from pathlib import Path

import jsonschema
import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import onnxremat
from onnxremat.cli.report import as_json, rewrite_text
from onnxremat.commands.rewrite import rewrite
from onnxremat.core.errors import InfeasibleError, ModelError, UsageError
from onnxremat.core.problem import Plan, Problem, make_plan
from onnxremat.core.schedule import given_order, with_eager_ops
from onnxremat.core.units import format_bytes
from onnxremat.importer.nodes import LAYOUT_DOMAIN, values_of_nodes
from onnxremat.options import ModelOptions, Options
from onnxremat.ort import session as session_module
from onnxremat.ort.measuring.compare import Rounding, rounding
from onnxremat.ort.measuring.measure import PeakMeasurement, in_memory
from onnxremat.ort.optimize import optimize_offline
from onnxremat.ort.recipe import STOCK, OptimizationLevel
from onnxremat.ort.record import OptimizedFor, PlanRecord, attach_record, read_record
from onnxremat.ort.session_kernels import (
    Kernels,
    fused_with_reader,
    other_kernels,
    session_kernels,
)
from onnxremat.subject import Subject, prepare
from onnxremat.targets import recipe_target
from onnxremat.targets.recipe_target import RecipeTarget
from onnxremat.targets.stock_target import StockTarget
from onnxremat.targets.stock_trial import StockResult
from onnxremat.targets.target import Wanted
from onnxremat.verification import verify_files
from onnxremat_rewriters.recompute import set_mark
from onnxremat_rewriters.release import release
from onnxremat_rewriters.stock import is_stock, read_stock
from tests.rewriters.tile.nets import Net

pytestmark = pytest.mark.slow

SCHEMA = Path(onnxremat.__file__).parent / "targets" / "plan.schema.json"


@pytest.fixture(scope="module")
def own_order(large_unet_train: Path) -> tuple[StockTarget, Subject, Plan]:
    subject = prepare(large_unet_train, Options(session="stock", embed_weights=True, threads=1))
    target = StockTarget.of(subject)
    graph = subject.imported.graph
    problem = Problem(graph, target.rules)
    plan = make_plan(problem, with_eager_ops(graph, given_order(graph)), "own", peak_bound_bytes=0)
    return target, subject, plan


@pytest.mark.parametrize(("beside", "times"), [((64, 0), 2), ((64, 64, 64, 64), 4), ((9999,), 1)])
def test_a_limit_is_not_missed_for_what_else_the_process_allocates(
    beside: tuple[int, ...],
    times: int,
    large_unet_train: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = prepare(large_unet_train, Options(session="recipe", threads=1))
    target = RecipeTarget.of(subject)
    problem = Problem(subject.imported.graph, target.rules)
    plan = make_plan(problem, given_order(subject.imported.graph), "own", peak_bound_bytes=0)
    forecast = target.forecast(subject, plan)
    limit = target.make(subject, forecast).measured.peak_bytes
    counted = iter(beside)

    def noisy(*_: object, **__: object) -> PeakMeasurement:
        peaks = (limit + next(counted), limit - 8)
        return PeakMeasurement(max(peaks), peaks)

    monkeypatch.setattr(recipe_target, "measure_activation", noisy)
    made = target.make(subject, forecast, Wanted(limit_bytes=limit))
    assert made.measured.peak_bytes == limit + min(beside)
    assert len(beside) - len(list(counted)) == times


def test_a_stock_file_keeps_its_limit_with_nothing_set(
    large_unet_train: Path, tmp_path: Path
) -> None:
    output = tmp_path / "stock.onnx"
    options = Options(session="stock", embed_weights=True, threads=1, time_limit=4)
    result = rewrite(large_unet_train, "60%", options, output=output)
    assert isinstance(result.details, StockResult)
    assert result.details.chosen is not None
    assert result.limit_bytes is not None
    assert result.rewritten.peak_bytes <= result.limit_bytes
    assert result.details.memory.steady_bytes < 0.6 * result.details.original.steady_bytes
    written = onnx.load(output)
    onnx.checker.check_model(written)
    assert is_stock(written)
    made = read_stock(written)
    assert made is not None
    assert made.steps == result.details.chosen.file.made.steps  # type: ignore[union-attr]
    record = read_record(written)
    assert record is not None
    assert record.figure == result.figure
    onnxruntime.InferenceSession(output, providers=["CPUExecutionProvider"])
    text = rewrite_text(result)
    assert "resident peak" in text
    assert result.verification is not None
    figures = result.verification.figures
    assert [one.opened.split()[0] for one in figures] == ["original", "original", "file"]
    assert figures[0].runs_bytes == result.original.peak_bytes
    assert figures[2].runs_bytes == result.rewritten.peak_bytes
    assert figures[2].activations_bytes < figures[0].activations_bytes
    assert figures[1].process_bytes < figures[0].process_bytes, "options alone take less"
    assert f"{format_bytes(figures[1].process_bytes)} original without" in text
    alone = figures[1].runs_bytes <= result.limit_bytes
    assert ("that keeps the limit" in text) == alone
    assert as_json(result)["stock"]["original"]["loaded_bytes"] > 0
    again = verify_files(large_unet_train, output, ModelOptions(threads=1))
    assert again.identical
    assert again.order_as_planned
    assert again.rewritten.peak_bytes < 1.1 * result.rewritten.peak_bytes
    with pytest.raises(ModelError, match=r"already rewritten for default.*--with FILE"):
        rewrite(output, "min", options)


def test_a_stock_plan_is_predicted_before_it_is_measured(
    own_order: tuple[StockTarget, Subject, Plan],
) -> None:
    target, subject, plan = own_order
    subject.imported.model.graph.value_info.append(
        onnx.helper.make_tensor_value_info("loss_is_no_such_value", 1, [1])
    )
    forecast = target.forecast(subject, plan)
    assert forecast.rewritten is not None and not forecast.rewritten.model.graph.value_info
    expected = forecast.expected_bytes
    made = target.make(subject, forecast)
    assert isinstance(made.details, StockResult)
    hidden = [
        max(c.memory.run_peaks_bytes)
        for c in made.details.candidates
        if c.memory is not None and c.variant in ("plan", "warm plan")
    ]
    assert abs(expected - min(hidden)) < max(0.12 * expected, 1_000_000)


def test_of_what_pools_read_only_channels_are_stated(unet: Path) -> None:
    """Where more is known, buffers are shared by size and held in between."""
    subject = prepare(unet, Options(session="stock", threads=1))
    target, graph = StockTarget.of(subject), subject.imported.graph
    plan = make_plan(Problem(graph, target.rules), given_order(graph), "own", peak_bound_bytes=0)
    forecast = target.forecast(subject, plan)
    assert forecast.rewritten is not None
    made = forecast.rewritten.model.graph
    read = {n.input[0] for n in made.node if n.op_type in ("MaxPool", "Resize", "Upsample")}
    stated = {v.name: v.type.tensor_type.shape.dim for v in made.value_info}
    assert stated and set(stated) <= read | target.fused(subject)
    for name in stated.keys() - target.fused(subject):
        known = [axis for axis, dim in enumerate(stated[name]) if dim.HasField("dim_value")]
        assert (known, len(stated[name])) == ([1], 4)


def test_a_static_plan_is_written_beside_the_model(unet_train: Path, tmp_path: Path) -> None:
    output, plan_output = tmp_path / "m.onnx", tmp_path / "m.json"
    options = Options(runtime="generic", threads=1, time_limit=3)
    result = rewrite(unet_train, "80%", options, output=output, plan_output=plan_output)
    plan = json.loads(plan_output.read_text())
    jsonschema.validate(plan, json.loads(SCHEMA.read_text()))
    assert plan["arena_bytes"] == result.rewritten.peak_bytes
    assert result.limit_bytes is not None
    assert plan["arena_bytes"] <= result.limit_bytes < result.original.peak_bytes
    assert all(step["workspace"] is None for step in plan["steps"])
    assert result.verification is not None
    assert result.verification.identical
    assert "static plan" in rewrite_text(result)
    assert "static" not in as_json(result)


def test_a_static_plan_may_go_with_the_recipe(unet_train: Path, tmp_path: Path) -> None:
    plan_output = tmp_path / "m.json"
    result = rewrite(
        unet_train,
        "90%",
        Options(session="recipe", threads=1, time_limit=2),
        plan_output=plan_output,
    )
    plan = json.loads(plan_output.read_text())
    assert plan["live_peak_bytes"] <= result.plan.peak_bytes
    assert any(step["workspace"] is not None for step in plan["steps"])
    assert {path.name for path in tmp_path.iterdir()} == {"m.json"}


def convolutions(path: Path) -> Path:
    """Two convolutions that ONNX Runtime fuses with what follows, and lays out in blocks."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((16, 3, 3, 3)).astype("f"), "w0"),
        numpy_helper.from_array(rng.standard_normal((16, 16, 3, 3)).astype("f"), "w1"),
    ]
    nodes = [
        helper.make_node("Conv", ["x", "w0"], ["c0"], "conv0", pads=[1] * 4),
        helper.make_node("Relu", ["c0"], ["r0"], "relu0"),
        helper.make_node("Conv", ["r0", "w1"], ["c1"], "conv1", pads=[1] * 4),
        helper.make_node("Relu", ["c1"], ["r1"], "relu1"),
        helper.make_node("Add", ["r1", "r0"], ["y"], "add"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 32, 32])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 16, 32, 32])
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


@pytest.mark.parametrize("level", ["basic", "extended", "all"])
def test_an_optimized_model_is_planned_and_tied_to_what_made_it(level: str, tmp_path: Path) -> None:
    path = convolutions(tmp_path / "m.onnx")
    output = tmp_path / "o.onnx"
    result = rewrite(
        path,
        "100%",
        Options(session="recipe", optimize=level, threads=1, time_limit=1),
        output=output,
    )
    fused = any("Fused" in n.op_type or n.domain for n in result.model.graph.node)
    assert fused == (level != "basic")
    assert result.verification is not None
    assert result.verification.identical
    record = read_record(result.model)
    assert record is not None
    assert record.optimized is not None
    assert record.optimized.level == level
    blocked = any(node.domain == LAYOUT_DOMAIN for node in result.model.graph.node)
    assert (record.optimized.layout_width is not None) == blocked
    x = np.ones((1, 3, 32, 32), "f")
    onnxremat.open_session(output).run(None, {"x": x})
    assert verify_files(path, output, ModelOptions(threads=1)).identical


def test_an_optimized_file_is_refused_where_it_does_not_belong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = convolutions(tmp_path / "m.onnx")
    record = PlanRecord.of(
        prepare(path, Options(session="recipe", threads=1)).feed.recipe,
        input_shapes={"x": (1, 3, 32, 32)},
        figure="activation peak",
        limit_bytes=None,
        planned_peak_bytes=1,
        measured_peak_bytes=1,
        planner="test",
        recomputed=0,
        original_sha256="",
        optimized=OptimizedFor("all", "CPUExecutionProvider", 16),
    )
    onnx.save(attach_record(onnx.load(path), record), path)
    monkeypatch.setattr(session_module, "layout_width", lambda: 8)
    with pytest.raises(UsageError, match="blocks of 16 channels"):
        onnxremat.open_session(path)
    with pytest.raises(UsageError, match="optimized for CPUExecutionProvider"):
        onnxremat.open_session(path, providers=["CUDAExecutionProvider"])
    monkeypatch.setattr(session_module, "layout_width", lambda: 16)
    assert onnxremat.open_session(path).plan == record


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"session": "other"}, "--session: 'other' is none of stock, recipe"),
        ({"runtime": "tpu"}, "--runtime: 'tpu' is none of ort-cpu, generic"),
        ({"optimize": "much"}, "--optimize: 'much' is none of none, basic, extended, all"),
        ({"session": "stock", "runtime": "generic"}, "not with --runtime generic"),
        ({"session": "stock", "optimize": "all"}, "--optimize goes with --session recipe"),
        ({"runtime": "generic", "optimize": "basic"}, "not with --runtime generic"),
    ],
)
def test_options_that_contradict_each_other(settings: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Options(**settings)  # type: ignore[arg-type]


def transposed(path: Path) -> Path:
    """A ConvTranspose whose scratch is most of what the model takes."""
    rng = np.random.default_rng(0)
    weights = [
        numpy_helper.from_array(rng.standard_normal((16, 16, 3, 3)).astype("f"), "w"),
        numpy_helper.from_array(rng.standard_normal((3, 16, 1, 1)).astype("f"), "last"),
    ]
    nodes = [
        helper.make_node("ConvTranspose", ["x", "w"], ["t"], "turned", pads=[1] * 4),
        helper.make_node("Conv", ["t", "last"], ["y"], "narrow"),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 64, 64])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3, 64, 64])
    graph = helper.make_graph(nodes, "g", [x], [y], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, path)
    return path


def test_scratch_is_saved_where_other_rounding_is_allowed(tmp_path: Path) -> None:
    path, output = transposed(tmp_path / "m.onnx"), tmp_path / "r.onnx"
    with pytest.raises(InfeasibleError, match="--allow-rounding permits more"):
        rewrite(path, "40%", Options(session="recipe", threads=1, time_limit=1, tiling=False))
    options = Options(session="recipe", threads=1, time_limit=1, allow_rounding=True, tiling=False)
    result = rewrite(path, "40%", options, output=output)
    assert [(one.name, one.exact) for one in result.replaced] == [("turned", False)]
    check = result.verification
    assert check is not None
    assert check.identical
    assert check.rounding is not None
    assert 0 < check.rounding.worst < 1e-5
    assert check.rounding.name == "y"
    assert "rounds differently" in rewrite_text(result)
    again = verify_files(path, output, ModelOptions(threads=1))
    assert not again.bits_compared
    assert again.rounding == check.rounding


def test_how_far_outputs_are_apart() -> None:
    one = {"a": np.array([1.0, -4.0], "f"), "b": np.array([0, 1]), "c": np.array([np.inf, 2.0])}
    two = {"a": np.array([1.0, -4.5], "f"), "b": np.array([0, 1]), "c": np.array([np.inf, 2.0])}
    assert rounding(one, two) == Rounding(0.125, "a", 0.0)
    two["c"] = np.array([1.0, 2.0])
    assert rounding(one, two).worst == np.inf
    two["c"] = np.array([1.0])
    assert rounding(one, two).name == "c"


def test_an_order_that_the_positions_of_the_nodes_keep(tmp_path: Path) -> None:
    """One wide branch and many narrow ones: the file runs the narrow ones first by default."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1 << 16])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    nodes, parts = [], []
    for i, kind in enumerate(("Exp", "Neg", "Abs", "Sqrt")):
        nodes.append(helper.make_node(kind, ["x"], [f"wide{i}"], name=f"wide{i}"))
        parts.append(f"sum{i}")
    for i in range(4):
        nodes.append(
            helper.make_node("ReduceSum", [f"wide{i}"], [f"sum{i}"], name=f"sum{i}", keepdims=1)
        )
    nodes.append(helper.make_node("Sum", parts, ["y"], name="y"))
    graph = helper.make_graph(nodes, "parts", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path, output = tmp_path / "parts.onnx", tmp_path / "out.onnx"
    onnx.save(model, path)
    options = Options(session="recipe", order="default", recompute=False, threads=1, time_limit=2)
    result = rewrite(path, "min", options, output=output)
    assert result.plan.scope == "depth-first orders without recomputation" or (
        result.plan.planner == "auto/given_order"
    )
    assert result.verification is not None
    assert result.verification.order_as_planned
    assert result.verification.identical
    record = read_record(onnx.load(output))
    assert record is not None
    assert record.recipe.execution_order.value == "default"
    assert verify_files(path, output, ModelOptions(threads=1)).order_as_planned
    assert result.rewritten.peak_bytes < 1.2 * (1 << 18)


def test_the_default_order_keeps_nothing_that_recomputes() -> None:
    with pytest.raises(UsageError, match="--no-recompute"):
        Options(session="recipe", order="default")
    with pytest.raises(UsageError, match="--session recipe"):
        Options(order="default", recompute=False, session="stock")
    with pytest.raises(UsageError, match="--planner local_search"):
        Options(session="recipe", order="default", recompute=False, planner="local_search")
    with pytest.raises(UsageError, match="--order"):
        Options(session="recipe", order="random")


def test_what_had_other_readers_is_not_fused_once_they_are_dropped(tmp_path: Path) -> None:
    """A product that is scaled is one kernel where only the scale reads it, and rounds otherwise."""
    rng = np.random.default_rng(3)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["product"], "product"),
        helper.make_node("Mul", ["product", "gradient"], ["unread"], "unread"),
        helper.make_node("Mul", ["product", "scale"], ["scaled"], "scaled"),
        helper.make_node("Softmax", ["scaled"], ["y"], "softmax"),
    ]
    weights = {"w": rng.standard_normal((300, 64), "f"), "scale": np.float32(0.3)}
    stored = [numpy_helper.from_array(np.asarray(a), name) for name, a in weights.items()]
    shapes = {"x": (64, 300), "gradient": (64, 64), "y": (64, 64)}
    x, gradient, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()
    )
    graph = helper.make_graph(nodes, "g", [x, gradient], [y], stored)
    opset = helper.make_opsetid("", 17)
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    for asked in ({"embed_weights": True}, {"portable": False}):
        subject = prepare(path, Options(session="stock", threads=1, **asked))  # type: ignore[arg-type]
        kinds = [node.op_type for node in subject.released.model.graph.node]
        assert kinds == ["MatMul", "Size", "Mul", "Softmax"]
        sources = (subject.feed.source(), subject.released_source())
        before, after = (session_kernels(s, STOCK, OptimizationLevel.ALL) for s in sources)
        assert "product" in before
        assert not other_kernels(before, after)
    plain = prepare(path, Options(session="recipe", threads=1))
    assert [node.op_type for node in plain.released.model.graph.node] == [
        "MatMul",
        "Mul",
        "Softmax",
    ]


@pytest.mark.slow
def test_what_is_made_again_for_one_reader_is_not_fused_with_it(tmp_path: Path) -> None:
    """A convolution that two nodes read is not fused with its Relu; repeated, it would be."""
    net = Net()
    x = net.input("x", 1, 16, 64, 64)
    first = net.add("Conv", x, net.weight(64, 16, 3, 3), pads=[1] * 4)
    y = net.add("Relu", first)
    for _ in range(3):
        y = net.add("Relu", net.add("Conv", y, net.weight(64, 64, 3, 3), pads=[1] * 4))
    model = net.model(net.add("Mul", net.add("Conv", y, net.weight(64, 64, 1, 1)), first))
    again = onnx.ModelProto()
    again.CopyFrom(model)
    copy = onnx.NodeProto()
    copy.CopyFrom(next(n for n in model.graph.node if n.output[0] == first))
    copy.output[0] = copy.name = f"{first}__recompute1"
    set_mark(copy, 1)
    last = again.graph.node.pop()
    last.input[1] = copy.output[0]
    again.graph.node.extend([copy, last])
    session = STOCK.with_threads(1)
    values = values_of_nodes(again.graph)

    def kernels(one: onnx.ModelProto) -> Kernels:
        return session_kernels(in_memory(one, "."), session, OptimizationLevel.ALL, values)

    before, after = kernels(model), kernels(again)
    assert other_kernels(before, after)
    optimized = optimize_offline(again, ".", OptimizationLevel.ALL, session).model
    assert first in fused_with_reader(before, again, optimized)
    apart = release(again, fused_with_reader(before, again, optimized)).model
    assert not other_kernels(before, kernels(apart))
