"""What every node of a model holds while it runs, counted on the heap of one run of all of it.

The runtime's statistics miss what kernels keep in C++ containers, and what a subgraph's body holds
while an If, Loop or Scan runs. A run of a copy with marks (see `marks`) whose allocations are
recorded tells both, of all nodes at once, on the values that they really have.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import onnx

from onnxremat.core.errors import ModelError
from onnxremat.importer.execution_order import EAGER_OPS
from onnxremat.importer.nodes import reads
from onnxremat.importer.values import ValueType
from onnxremat.ort.child import actions as worker_actions
from onnxremat.ort.child.heap_trace import HeapTrace, Segment
from onnxremat.ort.child.process import ModelSource, run_job
from onnxremat.ort.child.watching import Listener
from onnxremat.ort.child.wire import Array
from onnxremat.ort.measuring.marks import MarkedModel, marked_copy
from onnxremat.ort.recipe import ExecutionOrder, Recipe

_RECORDED = 2.0
"""A run takes at most about so many times as long while its allocations are recorded."""


@dataclass(frozen=True)
class CountedHeap:
    """What was held while nodes ran; indices are those of `model.graph.node`.

    `segments` has the nodes that were counted; a Shape or Size is part of the node before it.
    `peak_node` is the one that was running when most was held, None if it is not known; at its
    start `held_bytes` were held by node that made them. `reason` says why nodes are missing, empty
    if none are.
    """

    segments: Mapping[int, Segment] = field(default_factory=dict)
    peak_node: int | None = None
    held_bytes: Mapping[int, int] = field(default_factory=dict)
    reason: str = ""


def count_heap(
    model: onnx.ModelProto,
    base_dir: Path | str,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    order: Sequence[int],
    outputs: Mapping[int, Sequence[ValueType | None]],
    *,
    run_seconds: float,
    seconds: float,
    listener: Listener | None = None,
) -> CountedHeap:
    """Run `model` twice, the second time recorded, and tell what its nodes held.

    `order` and `outputs` (types of what nodes make) are those of a profile with the same `inputs`;
    a run is known to take `run_seconds`. Nothing is run if that would not end within `seconds`, and
    records are read no longer than that. Buffers are those of the recipe without reuse.
    """
    marked = marked_copy(model, order, outputs)
    if marked is None:
        return CountedHeap(reason="the model's opset is too old for marks between its nodes")
    if run_seconds * (1 + _RECORDED) > seconds:
        return CountedHeap(reason="the time for measuring does not suffice")
    recipe = replace(
        recipe,
        execution_order=ExecutionOrder.PRIORITY,
        mem_pattern=False,
        mem_reuse=False,
        cpu_arena=False,
    )
    source = ModelSource(model=marked.model, base_dir=Path(base_dir))
    options = {"mark_bytes": marked.mark_bytes, "seconds": seconds}
    try:
        with run_job(
            worker_actions.node_heaps,
            [source],
            [recipe],
            inputs,
            options=options,
            listener=listener,
        ) as job:
            answer = job.answer
    except ModelError as error:
        return CountedHeap(reason=f"with marks between its nodes, {error}")
    if "unavailable" in answer:
        return CountedHeap(reason=answer["unavailable"])
    return _counted(marked, HeapTrace.from_dict(answer), _released_at_once(model, outputs))


def _released_at_once(
    model: onnx.ModelProto, outputs: Mapping[int, Sequence[ValueType | None]]
) -> dict[int, int]:
    """Bytes of what each node makes for Shape and Size nodes alone, by node. They read it at once:
    it is released before the mark of the node, and is an output all the same."""
    waiting = {value.name for value in model.graph.output}
    read = set[str]()
    for node in model.graph.node:
        (read if node.op_type in EAGER_OPS else waiting).update(reads(node))
    released = dict[int, int]()
    for v, kinds in outputs.items():
        for name, kind in zip(model.graph.node[v].output, kinds, strict=False):
            if kind is not None and kind.has_size and name in read and name not in waiting:
                released[v] = released.get(v, 0) + kind.nbytes
    return released


def _counted(marked: MarkedModel, trace: HeapTrace, released: Mapping[int, int]) -> CountedHeap:
    """The trace in terms of nodes; `released` are bytes that a node makes and that are gone at its
    mark. After the last mark comes a segment of no node."""
    found = len(trace.segments)
    if trace.complete and found != len(marked.nodes) + 1:
        return CountedHeap(
            reason=f"{found - 1} marks were seen instead of {len(marked.nodes)} in a run"
        )
    segments = {
        v: replace(one, made_bytes=one.made_bytes + released.get(v, 0))
        for v, one in zip(marked.nodes, trace.segments, strict=False)
    }
    if not trace.complete:
        return CountedHeap(segments, reason="the time for measuring was over")
    worst = min(trace.peak_segment, len(marked.nodes) - 1)
    held = {marked.nodes[s]: n for s, n in trace.held_bytes.items()}
    return CountedHeap(segments, marked.nodes[worst], held)
