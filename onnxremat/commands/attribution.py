"""A measured peak that the model of memory does not explain, put down to nodes by counting.

The model of memory follows the buffers of the graph under the runtime's rules. Where a run holds
more (or less) than that, what was counted node by node says which node was running and what each
of those before it had left; a figure by the model stands beside each. What was not seen there
either is a number of its own: unexplained.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from onnxremat.core.memory import MemoryRules, buffers
from onnxremat.core.schedule import Schedule
from onnxremat.ort.child.watching import Listener
from onnxremat.ort.measuring.measure import PeakMeasurement
from onnxremat.ort.measuring.measure_time import HEAP_SHARE
from onnxremat.ort.measuring.node_heap import CountedHeap, count_heap
from onnxremat.subject import Subject
from onnxremat.targets.static_plan import taken_over

TOLERANCE, TOLERANCE_BYTES = 0.02, 65536
"""A model of memory explains a peak if it differs by no more than the larger of these: a share of
the peak, and what the runtime's bookkeeping may take."""

_SMALL_BYTES = 4096
"""Of a node that holds less nothing is told: the runtime keeps books of such sizes."""


@dataclass(frozen=True, slots=True)
class Holder:
    """What a node made and was held at a peak: counted, and by the model of memory."""

    made_by: str
    op_type: str
    values: tuple[str, ...]
    nbytes: int
    modelled_bytes: int

    @property
    def beyond_bytes(self) -> int:
        """What the model of memory does not know of; negative if it holds more."""
        return self.nbytes - self.modelled_bytes


@dataclass(frozen=True, slots=True)
class MeasuredPeak:
    """The node that was running when a run held most, and what was held, largest first.

    `nbytes` is the measured peak, `modelled_bytes` the peak of the model of memory. `held` has what
    earlier nodes left and what this one made, `workspace_bytes` what its kernel took beside that.
    `op` is None if it is not known, and `reason` then says why. `unexplained_bytes` is what was
    measured beyond what is told here; negative if less was measured.
    """

    nbytes: int
    modelled_bytes: int
    op: str | None
    op_type: str
    workspace_bytes: int
    modelled_workspace_bytes: int
    held: tuple[Holder, ...]
    unexplained_bytes: int
    reason: str


def explained(measured_bytes: int, modelled_bytes: int) -> bool:
    """Whether a peak by the model of memory is near enough to the measured one."""
    allowed = max(int(TOLERANCE * measured_bytes), TOLERANCE_BYTES)
    return abs(measured_bytes - modelled_bytes) <= allowed


def attribute(
    subject: Subject,
    schedule: Schedule,
    rules: MemoryRules,
    measured: PeakMeasurement,
    modelled_bytes: int,
    listener: Listener | None = None,
) -> MeasuredPeak:
    """Say where the peak of the released model is, by counting its heap node by node.

    `schedule` is its own order, `modelled_bytes` its peak by the model of memory. Runs the model if
    it was not counted before and the seconds for measuring permit. O(nodes + reads).
    """
    counted = _counted(subject, listener)
    if counted.peak_node is None:
        unexplained = measured.peak_bytes - modelled_bytes
        return MeasuredPeak(
            measured.peak_bytes, modelled_bytes, None, "", 0, 0, (), unexplained, counted.reason
        )
    at_peak = counted.segments[counted.peak_node]
    op, modelled = _modelled(subject, schedule, rules, counted.peak_node)
    held = {**counted.held_bytes}
    held[counted.peak_node] = held.get(counted.peak_node, 0) + at_peak.made_bytes
    holders = [
        _holder(subject, v, held.get(v, 0), modelled.get(v, 0))
        for v in held.keys() | modelled
        if max(held.get(v, 0), modelled.get(v, 0)) > _SMALL_BYTES
    ]
    holders.sort(key=lambda one: (-max(one.nbytes, one.modelled_bytes), one.made_by))
    running = _holder(subject, counted.peak_node, 0, 0)
    workspace = 0 if op is None else subject.imported.graph.ops[op].workspace_bytes
    return MeasuredPeak(
        measured.peak_bytes,
        modelled_bytes,
        running.made_by,
        running.op_type,
        at_peak.workspace_bytes,
        workspace,
        tuple(holders),
        measured.peak_bytes - at_peak.peak_bytes,
        _why_unexplained(measured, at_peak.peak_bytes),
    )


def _counted(subject: Subject, listener: Listener | None) -> CountedHeap:
    """The heap of the released model node by node, from learning it or counted now."""
    run, feed = subject.profile, subject.feed
    if run.heap is not None:
        return run.heap
    return count_heap(
        subject.released.model,
        feed.loaded.base_dir,
        feed.inputs,
        feed.recipe,
        run.order,
        {v: node.outputs for v, node in run.nodes.items()},
        run_seconds=run.run_seconds,
        seconds=HEAP_SHARE * feed.options.measure_limit,
        listener=listener,
    )


def _modelled(
    subject: Subject, schedule: Schedule, rules: MemoryRules, node: int
) -> tuple[int | None, Mapping[int, int]]:
    """The op of a node, and what the model of memory holds while it runs, by the node that
    allocated it: what is written in place is in a buffer of an earlier one."""
    op_nodes = subject.imported.op_nodes
    if node not in op_nodes:
        return None, {}
    graph, op = subject.imported.graph, op_nodes.index(node)
    step = schedule.steps.index(op)
    chain = buffers(graph, schedule, rules)
    source = taken_over(graph, schedule, rules, chain)
    held: dict[int, int] = {}
    for number, buffer in enumerate(chain):
        if buffer.start <= step < buffer.end:
            while number in source:
                number = source[number]
            maker = op_nodes[schedule.steps[chain[number].start]]
            held[maker] = held.get(maker, 0) + buffer.nbytes
    return op, held


def _holder(subject: Subject, node: int, nbytes: int, modelled_bytes: int) -> Holder:
    made = subject.released.model.graph.node[node]
    values = tuple(name for name in made.output if name)
    name = made.name or f"{made.op_type}_{node}"
    return Holder(name, made.op_type, values, nbytes, modelled_bytes)


def _why_unexplained(measured: PeakMeasurement, counted_bytes: int) -> str:
    """What is known of bytes that were measured, but not when nodes were told apart."""
    if explained(measured.peak_bytes, counted_bytes):
        return ""
    later = measured.run_peaks_bytes[1:]
    if later and explained(max(later), counted_bytes):
        return "only the first run takes them"
    return "runs differ: they were not there when nodes were told apart"
