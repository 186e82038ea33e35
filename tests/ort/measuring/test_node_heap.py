"""What nodes hold, counted: marks between them, records put together, and one run of all of it."""

import threading
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxremat.ort.child.actions import JobRequest
from onnxremat.ort.child.heap_trace import HeapTrace, Segment, read_trace
from onnxremat.ort.child.process import Job
from onnxremat.ort.child.watching import watching
from onnxremat.ort.measuring import node_heap
from onnxremat.ort.measuring import profile as profiling
from onnxremat.ort.measuring.inputs import make_inputs
from onnxremat.ort.measuring.marks import marked_copy
from onnxremat.ort.measuring.measure import (
    in_memory,
    measure_activation,
    measure_times,
    run_outputs,
)
from onnxremat.ort.measuring.profile import profile_run, seen_run
from onnxremat.ort.recipe import RECIPE
from tests.detector import detector
from tests.ort.build import FLOAT, TENSOR_BYTES, model, node, random_model, value

pytestmark = pytest.mark.slow

RECIPE_1 = RECIPE.with_threads(1)
MARK, MAIN = 100, 1
MALLOC, FREE = 6, 5
CUBIC = {"mode": "cubic"}
SIZES = {"twice": np.float32([1, 1, 2, 2]), "half": np.float32([1, 1, 0.5, 0.5])}


@dataclass(frozen=True)
class Record:
    """One record of a tracer."""

    address: int
    size: int
    allocator: int = MALLOC
    tid: int = MAIN


def story(text: str) -> Iterator[Record]:
    """`+3:40` allocates 40 bytes at address 3, `-3` releases them, `|` is a mark."""
    for word in text.split():
        if word == "|":
            yield Record(0, MARK)
        elif word[0] == "-":
            yield Record(int(word[1:]), 0, FREE)
        else:
            address, size = word[1:].split(":")
            yield Record(int(address), int(size))


def test_segments_have_what_was_there_before_the_peak_and_what_is_left() -> None:
    trace = read_trace(story("+1:10 +2:7 -2 | +3:20 +4:50 -4 -1 | +5:5 -3 | -5"), MARK, MAIN)
    assert trace.complete
    assert trace.segments == (
        Segment(0, 17, 10),
        Segment(10, 80, 20),
        Segment(20, 25, 5),
        Segment(5, 5, 0),
    )
    assert [s.workspace_bytes for s in trace.segments] == [7, 50, 0, 0]
    assert (trace.peak_segment, trace.held_bytes) == (1, {0: 10})
    assert HeapTrace.from_dict(trace.to_dict()) == trace


def test_what_is_no_mark_and_what_was_there_before_the_run_changes_nothing() -> None:
    other = [Record(1, MARK, tid=2), Record(9, 0, FREE), Record(1, 0, FREE), Record(0, MARK)]
    trace = read_trace(other, MARK, MAIN)
    assert trace.segments == (Segment(0, MARK, 0), Segment(0, 0, 0))
    first_of_equals = read_trace(story("+1:5 | -1 | +2:5 |"), MARK, MAIN)
    assert first_of_equals.peak_segment == 0
    assert not read_trace([], MARK, MAIN).segments[0].peak_bytes
    assert read_trace(story("+1:0 +2:3 -2 | | -1 |"), MARK, MAIN).segments[0] == Segment(0, 3, 0)


def test_reading_ends_when_it_is_told_to() -> None:
    many = [Record(number, 8) for number in range(1 << 17)]
    asked: list[int] = []

    def stop(number: int) -> bool:
        asked.append(number)
        return len(asked) == 2

    trace = read_trace([*story("+0:3 |"), *many], MARK, MAIN, stop)
    assert not trace.complete
    assert trace.segments == (Segment(0, 3, 3),)
    assert asked == [1 << 16, 1 << 17]


@pytest.mark.parametrize("seed", range(6))
def test_marks_change_neither_order_nor_values_nor_the_model(seed: int) -> None:
    graph = random_model(seed, 14)
    before = graph.SerializeToString()
    inputs = make_inputs(graph)
    seen = profile_run(graph, Path.cwd(), inputs, RECIPE_1, runs=1)
    outputs = {v: made.outputs for v, made in seen.nodes.items()}
    marked = marked_copy(graph, seen.order, outputs)
    assert marked is not None
    assert graph.SerializeToString() == before
    expected = run_outputs(in_memory(graph, "."), inputs, RECIPE_1)
    got = run_outputs(in_memory(marked.model, "."), inputs, RECIPE_1)
    assert expected.keys() == got.keys()
    assert all(np.array_equal(expected[name], got[name]) for name in expected)
    own = {made.output[0]: v for v, made in enumerate(graph.graph.node)}
    ran = seen_run(marked.model, Path.cwd(), inputs, RECIPE_1).order
    ran_names = [marked.model.graph.node[v].output[0] for v in ran]
    assert [own[name] for name in ran_names if name in own] == list(seen.order)
    marks = [
        name for name in ran_names if name.startswith("onnxremat_mark_") and "size" not in name
    ]
    for v, mark in zip(marked.nodes, marks, strict=True):
        assert ran_names.index(graph.graph.node[v].output[0]) < ran_names.index(mark)


def test_the_size_of_a_mark_is_that_of_no_value() -> None:
    graph = model([node("Neg", ["x"], ["y"])], [value("x", FLOAT, [2064])], ["y"])
    seen = profile_run(graph, Path.cwd(), make_inputs(graph), RECIPE_1, runs=1)
    made = {v: one.outputs for v, one in seen.nodes.items()}
    marked = marked_copy(graph, seen.order, made)
    assert marked is not None
    assert marked.mark_bytes != 4 * 2064 == marked_copy(graph, (0,), {}).mark_bytes  # type: ignore[union-attr]
    graph.opset_import[0].version = 6
    assert marked_copy(graph, seen.order, made) is None


def counted(graph: onnx.ModelProto, inputs: Any, **options: Any) -> profiling.RunProfile:
    pytest.importorskip("memray", reason="the heap is counted by memray")
    return profile_run(graph, Path.cwd(), inputs, RECIPE_1, runs=1, **options)


def test_the_heap_of_a_detector_is_told_node_by_node() -> None:
    """Sizes that depend on values, a Loop, and kernels that keep books in containers."""
    graph = detector()
    inputs = make_inputs(graph)
    found = counted(graph, inputs)
    assert found.unmeasured == ()
    assert found.heap is not None
    assert found.heap.peak_node is not None
    names = [one.name for one in graph.graph.node]
    peak = found.heap.segments[found.heap.peak_node]
    measured = measure_activation(in_memory(graph, "."), inputs, RECIPE_1, runs=2).peak_bytes
    assert abs(peak.peak_bytes - measured) < 20_000
    assert names[found.heap.peak_node] == "rows/Sigmoid"
    rows = found.nodes[names.index("rows")].outputs[0]
    assert rows is not None
    assert abs(found.heap.held_bytes[names.index("rows")] - rows.nbytes) < 1000
    assert abs(peak.made_bytes - rows.nbytes) < 1000, "not in place: its size is not known before"
    assert found.nodes[names.index("sums")].workspace_bytes >= 4 * rows.shape[0], "a column"
    picked = names.index("picked")
    scratch = found.heap.segments[picked].workspace_bytes
    assert found.nodes[picked].workspace_bytes == scratch > 10_000, "boxes and scores, sorted"


def test_nodes_that_the_runtime_puts_casts_around_are_counted_apart() -> None:
    half = [1, 8, 128, 128]
    graph = model(
        [node("Relu", ["x"], ["a"]), node("LRN", ["a"], ["b"], size=3), node("Neg", ["b"], ["y"])],
        [value("x", TensorProto.FLOAT16, half)],
        [value("y", TensorProto.FLOAT16, half)],
    )
    found = counted(graph, make_inputs(graph))
    assert "Cast" in found.foreign
    outputs = {v: one.outputs for v, one in found.nodes.items()}
    heap = node_heap.count_heap(
        graph, ".", make_inputs(graph), RECIPE_1, found.order, outputs, run_seconds=0, seconds=60
    )
    assert heap.reason == ""
    scratch = heap.segments[1].workspace_bytes
    assert scratch > 4 * 8 * 128 * 128, "of the LRN"
    assert heap.segments[2].workspace_bytes < scratch / 2


def resizes() -> onnx.ModelProto:
    """Five cubic Resizes, three of them alike."""
    scales = ("twice", "half") * 2 + ("twice",)
    names = ["x", "a", "b", "c", "d", "y"]
    nodes = [
        node("Resize", [name, "", scale], [after], **CUBIC)
        for name, scale, after in zip(names, scales, names[1:], strict=False)
    ]
    return model(nodes, [value("x", FLOAT, [1, 2, 32, 64])], ["y"], SIZES)


def test_all_nodes_are_counted_in_the_same_two_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs: list[str] = []
    run_job = node_heap.run_job

    def record(action: Any, *arguments: Any, **options: Any) -> Any:
        jobs.append(action.__name__)
        return run_job(action, *arguments, **options)

    monkeypatch.setattr(node_heap, "run_job", record)
    graph = resizes()
    found = counted(graph, make_inputs(graph))
    assert jobs == ["node_heaps"]
    assert found.nodes[4].workspace_bytes == pytest.approx(found.nodes[2].workspace_bytes, rel=0.05)
    assert found.nodes[0].workspace_bytes > 4 * 2 * 32 * 64


def test_without_time_scratch_is_an_estimate_and_says_so() -> None:
    graph = resizes()
    found = counted(graph, make_inputs(graph), seconds=0.0)
    assert found.unmeasured == (0, 1, 2, 3, 4)
    assert "time for measuring" in found.estimated_reason
    assert found.nodes[0].workspace_bytes == 0, "what the runtime's own statistics say"
    enough = counted(graph, make_inputs(graph))
    assert (enough.unmeasured, enough.estimated_reason) == ((), "")


def test_a_trace_that_was_cut_short_tells_of_the_nodes_it_reached() -> None:
    pytest.importorskip("memray", reason="the heap is counted by memray")
    graph = resizes()
    seen = profile_run(graph, Path.cwd(), make_inputs(graph), RECIPE_1, runs=1)
    made = {v: one.outputs for v, one in seen.nodes.items()}
    marked = marked_copy(graph, seen.order, made)
    assert marked is not None
    trace = HeapTrace((Segment(0, 9, 9), Segment(9, 20, 1)), {0: 9}, complete=False)
    cut = node_heap._counted(marked, trace, {0: 2})
    assert cut.segments == {0: Segment(0, 9, 11), 1: Segment(9, 20, 1)}
    assert cut.peak_node is None
    assert "over" in cut.reason
    wrong = node_heap._counted(marked, replace(trace, complete=True), {})
    assert wrong.segments == {}
    assert "1 marks were seen instead of 5" in wrong.reason


def test_without_memray_scratch_is_an_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = {"unavailable": "memray cannot be imported: not on this system"}
    job = Job(answer, Path.cwd())
    monkeypatch.setattr(node_heap, "run_job", lambda *_, **__: nullcontext(job))
    graph = resizes()
    found = profile_run(graph, Path.cwd(), make_inputs(graph), RECIPE_1, runs=1)
    assert found.unmeasured == (0, 1, 2, 3, 4)
    assert "not on this system" in found.estimated_reason


def test_a_listener_hears_what_the_child_does(tmp_path: Path) -> None:
    heard: list[str] = []
    told = threading.Event()

    def listen(text: str) -> None:
        heard.append(text)
        told.set()

    request = JobRequest(tmp_path, [], [], {}, {})
    request.tell("run 1 of 3")
    with watching(tmp_path, listen):
        assert told.wait(30)
        told.clear()
        request.tell("run 2 of 3")
        assert told.wait(30)
    request.tell("run 3 of 3")
    assert heard == ["run 1 of 3", "run 2 of 3"]
    with watching(tmp_path, None):
        assert threading.active_count() == 1


def test_runs_are_repeated_only_while_there_is_time() -> None:
    graph = resizes()
    inputs = make_inputs(graph)
    few = measure_activation(in_memory(graph, "."), inputs, RECIPE_1, runs=40, seconds=0.0)
    assert len(few.run_peaks_bytes) == 1
    times = measure_times([in_memory(graph, ".")], inputs, [RECIPE_1], pairs=40, seconds=0.0)
    assert times.rounds == 1


def test_scratch_of_one_tensor_is_found_whatever_is_held_beside_it() -> None:
    graph = model(
        [
            node("Exp", ["x"], ["kept"]),
            node("Unique", ["x"], ["u"]),
            node("ReduceMax", ["u"], ["m"], keepdims=0),
            node("Add", ["kept", "m"], ["y"]),
        ],
        [value("x")],
        ["y"],
    )
    found = counted(graph, {"x": np.zeros((1, 4, 64, 256), np.float32)})
    assert found.heap is not None
    assert abs(found.heap.segments[1].begin_bytes - TENSOR_BYTES) < 4000
    assert found.nodes[1].workspace_bytes > TENSOR_BYTES
