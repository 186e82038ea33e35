"""The emulated orders equal what ONNX Runtime executes."""

import json
import os
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from onnxremat.importer.execution_order import default_order, priority_order
from onnxremat.importer.nodes import reads
from onnxremat.ort.recipe import ExecutionOrder, OptimizationLevel, Recipe, session_options
from tests.ort.build import model, node, random_model, value


def executed(graph: onnx.ModelProto, order: ExecutionOrder, folder: Path) -> list[int]:
    """Indices of top-level nodes as ONNX Runtime ran them."""
    recipe = Recipe(execution_order=order, optimization=OptimizationLevel.NONE, threads=1)
    options = session_options(recipe)
    options.enable_profiling = True
    options.profile_file_prefix = os.fspath(folder / "profile")
    session = ort.InferenceSession(
        graph.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {"x": np.ones(2, np.float32), "c": np.array(True)}
    session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})
    events = json.loads(Path(session.end_profiling()).read_text(encoding="utf-8"))
    index = {f"{n.name}_kernel_time": v for v, n in enumerate(graph.graph.node)}
    ran = sorted((e["ts"], index[e["name"]]) for e in events if e["name"] in index)
    return [v for _, v in ran]


@pytest.mark.parametrize("seed", range(60))
def test_orders_equal_the_runtime_on_random_graphs(seed: int, tmp_path: Path) -> None:
    graph = random_model(seed, 4 + seed % 37)
    nodes = list(graph.graph.node)
    assert priority_order(nodes) == executed(graph, ExecutionOrder.PRIORITY, tmp_path)
    assert default_order(nodes) == executed(graph, ExecutionOrder.DEFAULT, tmp_path)


def test_priority_order_is_file_order_but_for_shape_and_size() -> None:
    nodes = [
        node("Relu", ["x"], ["a"]),
        node("Abs", ["a"], ["b"]),
        node("Neg", ["b"], ["c"]),
        node("Size", ["a"], ["s"]),
    ]
    assert priority_order(nodes) == [0, 3, 1, 2]


def test_a_late_copy_listed_before_its_use_runs_first_by_default() -> None:
    nodes = [
        node("Exp", ["x"], ["a"]),
        node("Neg", ["a"], ["b"]),
        node("Exp", ["x"], ["a2"]),
        node("Add", ["b", "a2"], ["y"]),
    ]
    assert priority_order(nodes) == [0, 1, 2, 3]
    assert default_order(nodes) == [2, 0, 1, 3]


def test_constants_do_not_execute_and_subgraphs_read_outer_values() -> None:
    inner = onnx.helper.make_graph(
        [node("Add", ["a", "own"], ["r"])], "g", [], [value("r", onnx.TensorProto.FLOAT, [2])]
    )
    inner.node.insert(0, node("Exp", ["x"], ["own"]))
    chooser = node("If", ["c"], ["y"], then_branch=inner, else_branch=inner)
    assert reads(chooser) == ("c", "x", "a")
    nodes = [node("Constant", [], ["k"], value_float=1.0), chooser, node("Relu", ["x"], ["a"])]
    assert priority_order(nodes) == [2, 1]
    assert default_order(nodes) == [2, 1]


def test_a_graph_without_nodes() -> None:
    graph = model([], [value("x")], []).graph
    assert priority_order(graph.node) == [] == default_order(graph.node)
