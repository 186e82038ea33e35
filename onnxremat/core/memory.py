"""The memory simulator: how many bytes a schedule holds at each step, under given rules.

This is the only place where a peak is computed; planners may keep faster incremental copies of
the arithmetic, but what they report comes from `profile`.

Semantics (Kumar et al. 2019, section 2.1, extended to what runtimes do). Time is counted in
steps; lifetimes are half-open. An instance is held from the step that makes it up to and
including the step of its last reader: `[made, last + 1)`. While an op runs its inputs, outputs
and workspace are held, beside everything live across the step. The last instance of a graph
output is held to the end. `MemoryRules` says where a runtime differs; each rule is additive, so
that a search can update a peak incrementally.

A value of 100 bytes that is read at once and at the end, and wide ones between:

>>> from onnxremat.core.graph import Op
>>> sizes = {"early": 100, "wide": 300, "narrow": 50, "last": 20}
>>> tensors = tuple(Tensor(name, (size,), "uint8", size) for name, size in sizes.items())
>>> reads = ((), (0,), (1,), (0, 2))
>>> ops = tuple(Op(f"op{v}", "Op", read, (v,)) for v, read in enumerate(reads))
>>> graph = Graph(tensors, ops, inputs=(), outputs=(3,))
>>> profile(graph, Schedule((0, 1, 2, 3)), MemoryRules())
MemoryProfile(live_bytes=(100, 400, 450, 170), peak_bytes=450, peak_step=2)

Made again before its last reader, it is not held across the peak:

>>> profile(graph, Schedule((0, 1, 2, 0, 3)), MemoryRules())
MemoryProfile(live_bytes=(100, 400, 350, 150, 170), peak_bytes=400, peak_step=1)
>>> profile(graph, Schedule((0, 1, 2, 3)), MemoryRules(alignment_bytes=64)).peak_bytes
512
>>> [buffer.nbytes for buffer in live_at(graph, Schedule((0, 1, 2, 3)), MemoryRules(), 2)]
[300, 100, 50]
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from onnxremat.core.graph import Graph, Tensor, TensorKind
from onnxremat.core.schedule import NEVER, Instance, Schedule, instances


@dataclass(frozen=True)
class MemoryRules:
    """What a runtime counts, and when it lets go.

    `alignment_bytes`: every buffer is rounded up to a multiple of it.
    `inplace`: for an op type, the (input position, output position) pairs of `Op.inputs` and
    `Op.outputs` that may share a buffer, tried in order. Output takes over input when the op is
    the last reader of that instance, reads it once, both have the same number of bytes and
    element type, and neither is a graph output's pinned instance.
    `unread_held`: a value that nobody reads is held to the end of the run (as in ONNX Runtime)
    rather than freed after its step.
    `count_inputs`, `count_weights`: bytes of the caller and of the session are added throughout.
    `count_workspace`: kernel workspace counts while its op runs.
    """

    alignment_bytes: int = 1
    inplace: Mapping[str, tuple[tuple[int, int], ...]] = field(default_factory=dict)
    unread_held: bool = False
    count_inputs: bool = False
    count_weights: bool = False
    count_workspace: bool = True

    def nbytes(self, tensor: Tensor) -> int:
        """Bytes that a buffer for `tensor` takes."""
        return self.buffer_bytes(tensor.nbytes)

    def buffer_bytes(self, nbytes: int) -> int:
        """Bytes that a buffer for so many takes."""
        return -(-nbytes // self.alignment_bytes) * self.alignment_bytes

    def constant_bytes(self, graph: Graph) -> int:
        """Bytes held through the whole run, whatever the schedule."""
        counted = set()
        if self.count_inputs:
            counted.add(TensorKind.INPUT)
        if self.count_weights:
            counted.add(TensorKind.WEIGHT)
        return sum(self.nbytes(t) for t in graph.tensors if t.kind in counted)


PAPER_RULES = MemoryRules(count_workspace=False)
"""The model of the published planners: inputs of a running op are live, no workspace, no reuse."""


@dataclass(frozen=True, slots=True)
class Buffer:
    """Bytes held over the half-open interval of steps `[start, end)`.

    The `end` of an instance whose buffer is taken over in place is the step that takes it over.
    """

    instance: Instance
    nbytes: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """Bytes held during each step, the most of them, and the first step that reaches it."""

    live_bytes: tuple[int, ...]
    peak_bytes: int
    peak_step: int


def buffers(graph: Graph, schedule: Schedule, rules: MemoryRules) -> tuple[Buffer, ...]:
    """The buffer of every instance, in the order of making. O(steps + reads)."""
    made = instances(graph, schedule)
    taken_over = set(_taken_over(graph, schedule, rules, made))
    horizon = len(schedule)
    result = []
    for index, instance in enumerate(made):
        if instance.pinned:
            end = horizon
        elif instance.last_read == NEVER:
            end = horizon if rules.unread_held else instance.step + 1
        else:
            end = instance.last_read + (index not in taken_over)
        nbytes = rules.nbytes(graph.tensors[instance.tensor])
        result.append(Buffer(instance, nbytes, instance.step, end))
    return tuple(result)


def _taken_over(
    graph: Graph, schedule: Schedule, rules: MemoryRules, made: tuple[Instance, ...]
) -> Iterator[int]:
    """Indices into `made` of the instances whose buffer their last reader takes over."""
    latest: dict[int, int] = {}
    position = 0
    for step, v in enumerate(schedule.steps):
        op = graph.ops[v]
        first_output = position
        position += len(op.outputs)
        filled: set[int] = set()
        emptied: set[int] = set()
        for i, o in rules.inplace.get(op.op_type, ()):
            if i >= len(op.inputs) or o >= len(op.outputs) or o in filled:
                continue
            source = latest.get(op.inputs[i])
            if source is None or source in emptied or made[first_output + o].pinned:
                continue
            if inplace_allowed(graph, op.inputs[i], op.outputs[o], op.inputs) and (
                made[source].last_read == step and not made[source].pinned
            ):
                filled.add(o)
                emptied.add(source)
                yield source
        for offset, t in enumerate(op.outputs):
            latest[t] = first_output + offset


def inplace_allowed(graph: Graph, source: int, target: int, inputs: tuple[int, ...]) -> bool:
    """Whether sizes, types and the number of reads let `target` live in `source`'s buffer."""
    a, b = graph.tensors[source], graph.tensors[target]
    return a.nbytes == b.nbytes and a.dtype == b.dtype and inputs.count(source) == 1


def profile(graph: Graph, schedule: Schedule, rules: MemoryRules) -> MemoryProfile:
    """Bytes held at every step of a valid schedule. O(steps + reads).

    The peak of an empty schedule is the bytes held throughout, at step 0.
    """
    change = [0] * (len(schedule) + 1)
    for buffer in buffers(graph, schedule, rules):
        change[buffer.start] += buffer.nbytes
        change[buffer.end] -= buffer.nbytes
    live = []
    held = rules.constant_bytes(graph)
    for step, v in enumerate(schedule.steps):
        held += change[step]
        live.append(held + (graph.ops[v].workspace_bytes if rules.count_workspace else 0))
    peak = max(live, default=held)
    return MemoryProfile(tuple(live), peak, live.index(peak) if live else 0)


def live_at(graph: Graph, schedule: Schedule, rules: MemoryRules, step: int) -> tuple[Buffer, ...]:
    """The buffers held during `step`, largest first."""
    held = [b for b in buffers(graph, schedule, rules) if b.start <= step < b.end]
    return tuple(sorted(held, key=lambda b: (-b.nbytes, b.instance.tensor, b.instance.step)))
