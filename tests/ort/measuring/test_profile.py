"""What a profiled run tells: order, sizes, times, workspace; subgraphs and functions."""

import json
import tracemalloc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnxremat.core.errors import ModelError, UsageError
from onnxremat.importer.execution_order import priority_order
from onnxremat.ort.measuring.inputs import make_inputs
from onnxremat.ort.measuring.measure import in_memory, measure_activation
from onnxremat.ort.measuring.node_heap import count_heap
from onnxremat.ort.measuring.profile import (
    RunProfile,
    inner_nodes,
    named_copy,
    profile_events,
    profile_run,
    read_profile,
    seen_run,
)
from onnxremat.ort.measuring.workspace import STATISTICS_EXACT, ValueType, known_workspace_bytes
from onnxremat.ort.recipe import RECIPE, STOCK
from onnxremat.ort.settle import settled
from tests.ort.build import (
    BOOL,
    FLOAT,
    INT64,
    SHAPE,
    SLACK_BYTES,
    TENSOR_BYTES,
    model,
    node,
    value,
)

pytestmark = pytest.mark.slow

RECIPE_1 = RECIPE.with_threads(1)
BIG = ValueType("float", SHAPE)


def profiled(graph: onnx.ModelProto, inputs: Mapping[str, Any] | None = None) -> RunProfile:
    return profile_run(graph, Path.cwd(), inputs or make_inputs(graph), RECIPE_1, runs=2)


def test_order_types_and_times_of_nodes_without_names() -> None:
    graph = model(
        [
            node("Relu", ["x"], ["a"]),
            node("Constant", [], ["k"], value_float=2.0),
            node("Split", ["a"], ["p", "q"], axis=1),
            node("Mul", ["p", "k"], ["r"]),
            node("Concat", ["r", "q"], ["y"], axis=3),
            node("Size", ["a"], ["n"]),
        ],
        [value("x")],
        ["y", "n"],
    )
    found = profiled(graph)
    assert found.order == (0, 5, 2, 3, 4) == tuple(priority_order(graph.graph.node))
    assert found.nodes.keys() == {0, 2, 3, 4, 5}
    assert found.nodes[0].outputs == (BIG,)
    assert found.nodes[2].outputs == (ValueType("float", (1, 2, 64, 256)),) * 2
    assert found.nodes[5].outputs == (ValueType("int64", ()),)
    assert found.nodes[4].time_ns > 0
    assert (found.expanded, found.foreign, found.unmeasured) == ((), (), ())


def test_equal_names_inside_and_outside_subgraphs_are_told_apart() -> None:
    def branch(name: str, op: str) -> onnx.GraphProto:
        inner = [node("Exp", ["x"], [f"{name}t"]), node(op, [f"{name}t"], [name])]
        for index, made in enumerate(inner):
            made.name = f"n{index}"
        return helper.make_graph(inner, name, [], [value(name)])

    graph = model(
        [
            node(
                "If", ["c"], ["a"], then_branch=branch("t", "Neg"), else_branch=branch("e", "Abs")
            ),
            node("Neg", ["a"], ["y"]),
        ],
        [value("x"), value("c", BOOL, [])],
        ["y"],
    )
    for index, made in enumerate(graph.graph.node):
        made.name = f"n{index}"
    inputs = make_inputs(graph) | {"c": np.array(True)}
    found = profiled(graph, inputs)
    assert found.order == (0, 1)
    assert found.foreign == ()
    assert len(list(inner_nodes(graph.graph.node[0]))) == 4
    pytest.importorskip("memray", reason="what a subgraph holds is counted by memray")
    extra = found.nodes[0].workspace_bytes
    assert abs(extra - TENSOR_BYTES) < SLACK_BYTES, "Exp of x, beside the output of the If"


def test_a_loop_holds_what_its_heap_says() -> None:
    pytest.importorskip("memray", reason="what a subgraph holds is counted by memray")
    body = helper.make_graph(
        [
            node("Exp", ["state"], ["t"]),
            node("Neg", ["t"], ["next"]),
            node("Identity", ["on"], ["still_on"]),
            node("Abs", ["next"], ["scan"]),
        ],
        "body",
        [value("i", INT64, []), value("on", BOOL, []), value("state")],
        [value("still_on", BOOL, []), value("next"), value("scan")],
    )
    graph = model(
        [
            node("Exp", ["x"], ["start"]),
            node("Loop", ["count", "", "start"], ["last", "all"], body=body),
            node("ReduceMax", ["all"], ["m"], keepdims=0),
        ],
        [value("x")],
        ["m"],
        {"count": np.array(3, np.int64)},
    )
    inputs = {"x": np.full(SHAPE, -1, np.float32)}
    found = profiled(graph, inputs)
    assert found.nodes[1].outputs == (BIG, ValueType("float", (3, *SHAPE)))
    # While the Loop runs: start, its outputs (last and all: 4 tensors), and its workspace.
    predicted = TENSOR_BYTES * 5 + found.nodes[1].workspace_bytes
    measured = measure_activation(in_memory(graph, "."), inputs, RECIPE_1, runs=1).peak_bytes
    assert abs(predicted - measured) < SLACK_BYTES


def test_absent_and_non_tensor_outputs_are_none() -> None:
    graph = model(
        [
            node("LSTM", ["x", "w", "r"], ["", "h", ""], hidden_size=8),
            node("SequenceConstruct", ["h", "h"], ["s"]),
            node("SequenceAt", ["s", "zero"], ["y"]),
        ],
        [
            value("x", FLOAT, [5, 2, 8]),
            value("w", FLOAT, [1, 32, 8]),
            value("r", FLOAT, [1, 32, 8]),
        ],
        ["y"],
        {"zero": np.array(0, np.int64)},
    )
    found = profiled(graph)
    state = ValueType("float", (1, 2, 8))
    assert found.nodes[0].outputs == (None, state, None)
    assert found.nodes[1].outputs == (None,)
    assert found.nodes[2].outputs == (state,)


def test_nodes_that_the_runtime_expands_are_listed() -> None:
    graph = model(
        [
            node("HardSwish", ["x"], ["a"]),
            node("Mish", ["a"], ["b"]),
            node("Unique", ["b"], ["c"]),
            node("Neg", ["c"], ["y"]),
        ],
        [value("x")],
        ["y"],
        opset=18,
    )
    found = profiled(graph)
    assert found.expanded == (0, 1)
    assert found.order == (2, 3)
    assert set(found.foreign) >= {"HardSigmoid", "Softplus", "Tanh", "Mul"}
    assert found.nodes.keys() == {2, 3}
    assert (found.heap, found.unmeasured) == (None, (2,)), "counted when the parts are in the file"
    expanded = settled(graph, Path.cwd(), RECIPE_1)
    again = profiled(expanded)
    assert again.expanded == again.foreign == again.unmeasured == ()
    assert again.order == tuple(range(len(expanded.graph.node)))
    assert {"a", "b", "c", "y"} <= {o for n in expanded.graph.node for o in n.output}


def test_casts_around_missing_kernels_are_foreign_and_types_are_those_of_the_run() -> None:
    graph = model(
        [node("MatMul", ["x", "x"], ["a"]), node("Exp", ["a"], ["y"])],
        [value("x", TensorProto.FLOAT16, [8, 8])],
        ["y"],
    )
    found = profiled(graph)
    assert found.order == (0, 1)
    assert found.foreign == ("Cast", "Cast")
    assert found.nodes[0].outputs == (ValueType("float", (8, 8)),)


@pytest.mark.parametrize(
    ("element", "nbytes"),
    [
        ("FLOAT8E4M3FN", 15),
        ("FLOAT8E4M3FNUZ", 15),
        ("FLOAT8E5M2", 15),
        ("FLOAT8E5M2FNUZ", 15),
        ("FLOAT8E8M0", 15),
        ("BFLOAT16", 30),
        ("INT4", 8),
        ("UINT4", 8),
        ("INT2", 4),
        ("UINT2", 4),
    ],
)
def test_types_have_the_names_that_onnx_gives_them(element: str, nbytes: int) -> None:
    """The profile calls some of them otherwise (`Float8E4M3FN`, `Int4x2`)."""
    graph = model(
        [
            node("Cast", ["x"], ["q"], to=TensorProto.DataType.Value(element)),
            node("Cast", ["q"], ["y"], to=FLOAT),
        ],
        [value("x", FLOAT, [3, 5])],
        ["y"],
        opset=25,
    )
    graph.ir_version = 13
    (made,) = seen_run(graph, Path.cwd(), make_inputs(graph), RECIPE_1).nodes[0].outputs
    assert made == ValueType(element.lower(), (3, 5))
    assert made.nbytes == nbytes


WORKSPACES: list[tuple[onnx.NodeProto, dict[str, Any], int, int]] = [
    (node("Softmax", ["x"], ["y"], axis=1), {}, 17, 2 * TENSOR_BYTES),
    (node("LRN", ["x"], ["y"], size=3), {}, 17, 5 * TENSOR_BYTES // 2),
    (node("NonZero", ["x"], ["y"]), {}, 17, 8 * 4 * TENSOR_BYTES // 4),
    (node("MeanVarianceNormalization", ["x"], ["y"]), {}, 17, 3 * TENSOR_BYTES),
    (
        node("ScatterElements", ["x", "i", "x"], ["y"]),
        {"i": np.zeros(SHAPE, np.int64)},
        17,
        2 * TENSOR_BYTES,
    ),
    (
        node("ScatterND", ["x", "i", "u"], ["y"]),
        {"i": np.zeros((4096, 4), np.int64), "u": np.ones(4096, np.float32)},
        17,
        8 * 4096,
    ),
    (node("GatherND", ["x", "i"], ["y"]), {"i": np.zeros((4096, 4), np.int64)}, 17, 8 * 4096),
    (
        node("ConvTranspose", ["x", "w"], ["y"], pads=[1, 1, 1, 1]),
        {"w": np.ones((4, 4, 3, 3), np.float32)},
        17,
        9 * TENSOR_BYTES,
    ),
    (node("Dropout", ["x"], ["y"]), {}, 13, TENSOR_BYTES // 4),
]


@pytest.mark.parametrize(
    ("op", "weights", "opset", "nbytes"), WORKSPACES, ids=[w[0].op_type for w in WORKSPACES]
)
def test_workspace_is_what_the_heap_says(
    op: onnx.NodeProto, weights: dict[str, Any], opset: int, nbytes: int
) -> None:
    pytest.importorskip("memray", reason="the heap is counted by memray")
    graph = model([op], [value("x")], ["y"], weights, opset)
    inputs = {"x": np.ones(SHAPE, np.float32)}
    found = profiled(graph, inputs)
    assert abs(found.nodes[0].workspace_bytes - nbytes) < 2000
    outputs = {0: found.nodes[0].outputs}
    heap = count_heap(graph, Path.cwd(), inputs, RECIPE_1, [0], outputs, run_seconds=0, seconds=60)
    assert abs(heap.segments[0].workspace_bytes - nbytes) < 4000


def test_ops_that_the_statistics_do_not_tell_are_counted_on_the_heap() -> None:
    pytest.importorskip("memray", reason="the heap is counted by memray")
    assert "Unique" not in STATISTICS_EXACT
    graph = model([node("Unique", ["x"], ["y"])], [value("x")], ["y"])
    found = profiled(graph)
    assert found.unmeasured == ()
    assert found.nodes[0].workspace_bytes > 10 * TENSOR_BYTES


@pytest.mark.parametrize("op_type", ["Sum", "Max", "Min", "Mean"])
def test_folding_many_inputs_holds_one_buffer_beside_the_output(op_type: str) -> None:
    pytest.importorskip("memray", reason="the heap is counted by memray")
    names = [f"a{i}" for i in range(6)]
    nodes = [node("Abs", ["x"], [name]) for name in names]
    graph = model([*nodes, node(op_type, names, ["y"])], [value("x")], ["y"])
    found = profiled(graph).nodes[len(names)].workspace_bytes
    assert abs(found - TENSOR_BYTES) < 4000


def test_known_workspace_ignores_what_it_does_not_know() -> None:
    assert known_workspace_bytes("Relu", [BIG]) == 0
    assert known_workspace_bytes("ScatterElements", []) == 0


def test_a_refusal_names_the_model_s_own_node() -> None:
    graph = model(
        [node("Neg", ["x"], ["a"]), node("Gather", ["a", "i"], ["y"])],
        [value("x", FLOAT, [2]), value("i", INT64, [1])],
        ["y"],
    )
    inputs = make_inputs(graph) | {"i": np.array([9], np.int64)}
    with pytest.raises(ModelError, match=r"Name:'node 1'"):
        profiled(graph, inputs)
    graph.graph.node[1].name = "the gather"
    with pytest.raises(ModelError, match=r"Name:'the gather'"):
        profiled(graph, inputs)


def test_profiling_leaves_the_model_alone_and_needs_its_nodes() -> None:
    graph = model([node("Neg", ["x"], ["y"])], [value("x", FLOAT, [2])], ["y"])
    before = graph.SerializeToString()
    named = named_copy(graph)
    assert graph.SerializeToString() == before
    assert named.graph.node[0].name
    with pytest.raises(UsageError, match="without optimizations"):
        profile_run(graph, Path.cwd(), make_inputs(graph), STOCK)
    with pytest.raises(UsageError, match="0 runs"):
        profile_run(graph, Path.cwd(), make_inputs(graph), RECIPE, runs=0)


def test_events_of_bodies_are_not_kept(tmp_path: Path) -> None:
    """A profile of 200,000 events, all but two of them of a body, as the runtime writes them."""
    graph = model([node("Identity", ["x"], ["y"])], [value("x", FLOAT, [1])], ["y"])
    shape = [{"float": [1]}]
    args = {"input_type_shape": shape, "output_type_shape": shape, "op_name": "Identity"}

    def line(name: str, ts: int) -> str:
        event = {"cat": "Node", "name": f"{name}_kernel_time", "ts": ts, "dur": 5, "args": args}
        return json.dumps(event)

    inner = [line("onnxremat_inner_0_0", ts) for ts in range(200_000)]
    own = [line("onnxremat_top_0", ts) for ts in (7, 9)]
    (tmp_path / "profile.json").write_text("[\n" + ",\n".join([*inner, *own]) + "\n]\n")
    del inner
    tracemalloc.start()
    events = profile_events(tmp_path / "profile.json")
    seen = read_profile(graph, events, "#name,total_temp_allocations\n")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert seen.order == (0,)
    assert seen.nodes[0].time_ns == 5000
    assert peak < 1 << 20


@pytest.mark.parametrize("unread", [0, 1])
def test_an_output_that_is_released_at_once_is_no_workspace(unread: int) -> None:
    """TopK is counted on the heap; of its outputs one is read by Size alone, as `release` has it."""
    pytest.importorskip("memray", reason="the heap is counted by memray")
    made = ["values", "indices"]
    graph = model(
        [
            node("TopK", ["x", "k"], made, axis=0),
            node("Size", [made[unread]], ["count"]),
            node("Identity", [made[1 - unread]], ["y"]),
        ],
        [value("x")],
        ["y", "count"],
        {"k": np.array([SHAPE[0]], np.int64)},
    )
    found = profiled(graph, {"x": np.zeros(SHAPE, np.float32)})
    assert found.heap is not None
    assert not found.heap.reason
    assert found.nodes[0].workspace_bytes < SLACK_BYTES
