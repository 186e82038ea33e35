"""A static plan for any runtime: the order of executions and a place in one arena for each buffer.

For runtimes without an allocator, such as compilers for edge accelerators: they read the JSON that
`StaticPlan.as_json` writes (`plan.schema.json` describes it), reserve one arena, and run the steps
with every tensor at its fixed offset. Nothing here is measured; the plan is checked instead.

Ops and tensors have the names of the model; a copy has the name of its original, and a node without
a name is told by what it writes. Views (Reshape and the like) are not steps: they are
the buffer that they look at.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

from onnxremat.core.errors import NoPlanFoundError
from onnxremat.core.graph import Graph, Op, TensorKind
from onnxremat.core.memory import Buffer, MemoryRules, buffers, inplace_allowed, profile
from onnxremat.core.schedule import NEVER, Schedule, check
from onnxremat.core.units import format_bytes
from onnxremat.offsets import Block, Placement, check_placement, place

VERSION = 1
"""Of the format; raised by any change that a reader could stumble over."""

GENERIC_RULES = MemoryRules()
"""Nothing in place, a value that nobody reads is freed after its step, workspace counts."""


@dataclass(frozen=True, slots=True)
class StaticStep:
    """One execution of an op; `execution` counts from 0, more being recomputations.

    `reads` has for each input its index in `StaticPlan.buffers`, or its name if it lies outside
    the arena; `writes` and `workspace` are indices of buffers.
    """

    op: str
    op_type: str
    execution: int
    reads: tuple[int | str, ...]
    writes: tuple[int, ...]
    workspace: int | None


@dataclass(frozen=True, slots=True)
class PlacedBuffer:
    """A tensor instance, or the workspace of an execution (`name` is then the op's).

    It lies at `[offset, offset + nbytes)` of the arena over the steps `[start, end)`. `takes_over`
    is the buffer whose bytes it takes over in place: that one ends at the step where this one
    starts, and is still read there.
    """

    kind: str
    name: str
    execution: int
    offset: int
    nbytes: int
    start: int
    end: int
    takes_over: int | None


@dataclass(frozen=True, slots=True)
class Outside:
    """A tensor that is not in the arena: the caller's or the session's."""

    name: str
    nbytes: int


@dataclass(frozen=True, slots=True)
class Output:
    """An output of the model; `buffer` is None if an input or a weight is given back."""

    name: str
    buffer: int | None


@dataclass(frozen=True)
class StaticPlan:
    """Everything a runtime needs; the fields are those of the JSON.

    `bound_bytes` is proved: no offsets for these buffers need a smaller arena. `live_peak_bytes`
    is that of `memory.profile` for the schedule, without inputs, weights and padding.
    """

    version: int
    alignment_bytes: int
    arena_bytes: int
    bound_bytes: int
    live_peak_bytes: int
    method: str
    steps: tuple[StaticStep, ...]
    buffers: tuple[PlacedBuffer, ...]
    inputs: tuple[Outside, ...]
    weights: tuple[Outside, ...]
    outputs: tuple[Output, ...]

    def as_json(self) -> str:
        """The plan as JSON that satisfies `plan.schema.json`."""
        return json.dumps(asdict(self), indent=1) + "\n"


def emit_plan(
    graph: Graph,
    schedule: Schedule,
    rules: MemoryRules,
    *,
    alignment_bytes: int = 64,
    capacity_bytes: int | None = None,
    seconds: float = 10.0,
    iterations: int | None = None,
    seed: int = 0,
) -> StaticPlan:
    """The plan that executes `schedule` within one arena.

    `rules` say when a buffer ends, what is taken over in place, and whether workspace counts; its
    `count_inputs` and `count_weights` do not matter, as neither lies in the arena. The other
    options are those of `offsets.place`. Buffers that are taken over share one block.

    Raises ScheduleError if the schedule does not compute the graph, and NoPlanFoundError if the
    arena is larger than `capacity_bytes`; the message says whether that is proved for this
    schedule (another one may fit) or may be a matter of time. O(steps + reads), and the placing.
    """
    check(graph, schedule)
    held = buffers(graph, schedule, rules)
    taken = taken_over(graph, schedule, rules, held)
    blocks, block_of = _merged(held, taken)
    workspace = _workspace_steps(graph, schedule, rules)
    blocks += _workspace_blocks(graph, schedule, workspace)
    placement = place(
        blocks,
        alignment_bytes=alignment_bytes,
        seconds=seconds,
        capacity_bytes=capacity_bytes,
        iterations=iterations,
        seed=seed,
    )
    check_placement(blocks, placement)
    _check_capacity(placement, capacity_bytes)
    offsets = [placement.offsets[block_of[i]] for i in range(len(held))]
    offsets += placement.offsets[len(blocks) - len(workspace) :]
    return StaticPlan(
        version=VERSION,
        alignment_bytes=alignment_bytes,
        arena_bytes=placement.arena_bytes,
        bound_bytes=placement.bound_bytes,
        live_peak_bytes=profile(graph, schedule, rules).peak_bytes - rules.constant_bytes(graph),
        method=placement.method,
        steps=tuple(_steps(graph, schedule, len(held), workspace)),
        buffers=tuple(_placed(graph, schedule, held, taken, workspace, offsets)),
        inputs=_outside(graph, TensorKind.INPUT),
        weights=_outside(graph, TensorKind.WEIGHT),
        outputs=_outputs(graph, held),
    )


def static_blocks(graph: Graph, schedule: Schedule, rules: MemoryRules) -> list[Block]:
    """What `emit_plan` places: one block for each chain of buffers that take each other over, then
    one for each workspace. O(steps + reads)."""
    held = buffers(graph, schedule, rules)
    blocks, _ = _merged(held, taken_over(graph, schedule, rules, held))
    return blocks + _workspace_blocks(graph, schedule, _workspace_steps(graph, schedule, rules))


def taken_over(
    graph: Graph, schedule: Schedule, rules: MemoryRules, held: Sequence[Buffer]
) -> dict[int, int]:
    """For each buffer that takes one over in place, which one.

    That a buffer is taken over is told by its end, the step of its last reader instead of the one
    after; by whom, by the pairs of `MemoryRules.inplace`, in their order.
    """
    taken: dict[int, int] = {}
    latest: dict[int, int] = {}
    first_output = 0
    for step, v in enumerate(schedule.steps):
        op = graph.ops[v]
        ending = {
            t: latest[t]
            for t in op.inputs
            if t in latest
            and held[latest[t]].end == step
            and held[latest[t]].instance.last_read == step != NEVER
        }
        for i, o in rules.inplace.get(op.op_type, ()):
            if _may_take_over(graph, op, i, o, ending) and (
                first_output + o not in taken and not held[first_output + o].instance.pinned
            ):
                taken[first_output + o] = ending.pop(op.inputs[i])
        if ending:
            raise AssertionError(f"step {step}: a buffer ends, but no output takes it over")
        for o, t in enumerate(op.outputs):
            latest[t] = first_output + o
        first_output += len(op.outputs)
    return taken


def _may_take_over(graph: Graph, op: Op, i: int, o: int, ending: dict[int, int]) -> bool:
    return (
        i < len(op.inputs)
        and o < len(op.outputs)
        and op.inputs[i] in ending
        and inplace_allowed(graph, op.inputs[i], op.outputs[o], op.inputs)
    )


def _merged(held: Sequence[Buffer], taken: dict[int, int]) -> tuple[list[Block], list[int]]:
    """One block for each chain of buffers that take each other over, and the block of each."""
    block_of: list[int] = []
    blocks: list[Block] = []
    for i, buffer in enumerate(held):
        if i not in taken:
            block_of.append(len(blocks))
            blocks.append(Block(buffer.nbytes, buffer.start, buffer.end))
            continue
        k = block_of[taken[i]]
        block_of.append(k)
        blocks[k] = Block(blocks[k].nbytes, blocks[k].start, buffer.end)
    return blocks, block_of


def _workspace_steps(graph: Graph, schedule: Schedule, rules: MemoryRules) -> list[int]:
    """The steps whose kernel needs workspace in the arena."""
    if not rules.count_workspace:
        return []
    return [step for step, v in enumerate(schedule.steps) if graph.ops[v].workspace_bytes]


def _workspace_blocks(graph: Graph, schedule: Schedule, steps: Sequence[int]) -> list[Block]:
    return [
        Block(graph.ops[schedule.steps[step]].workspace_bytes, step, step + 1) for step in steps
    ]


def _check_capacity(placement: Placement, capacity_bytes: int | None) -> None:
    if capacity_bytes is None or placement.arena_bytes <= capacity_bytes:
        return
    if placement.bound_bytes > capacity_bytes:
        raise NoPlanFoundError(
            f"this schedule needs an arena of at least {format_bytes(placement.bound_bytes)} "
            f"({placement.bound_bytes} bytes, proved), but the capacity is {capacity_bytes} bytes; "
            "plan for a smaller peak"
        )
    raise NoPlanFoundError(
        f"the smallest arena found has {placement.arena_bytes} bytes, above the capacity of "
        f"{capacity_bytes}; {placement.bound_bytes} may be possible: allow more time or plan for "
        "a smaller peak"
    )


def _executions(schedule: Schedule) -> list[int]:
    """Which execution of its op each step is, from 0."""
    runs: dict[int, int] = {}
    result = []
    for v in schedule.steps:
        result.append(runs.get(v, 0))
        runs[v] = result[-1] + 1
    return result


def _steps(
    graph: Graph, schedule: Schedule, tensors: int, workspace: Sequence[int]
) -> Iterator[StaticStep]:
    """The steps; buffers of tensors come before those of workspace."""
    buffer_of = {step: tensors + k for k, step in enumerate(workspace)}
    latest: dict[int, int] = {}
    made = 0
    for step, (v, execution) in enumerate(zip(schedule.steps, _executions(schedule), strict=True)):
        op = graph.ops[v]
        reads = tuple(latest[t] if t in latest else graph.tensors[t].name for t in op.inputs)
        writes = tuple(range(made, made + len(op.outputs)))
        made += len(op.outputs)
        latest.update(zip(op.outputs, writes, strict=True))
        yield StaticStep(op.name, op.op_type, execution, reads, writes, buffer_of.get(step))


def _placed(
    graph: Graph,
    schedule: Schedule,
    held: Sequence[Buffer],
    taken: dict[int, int],
    workspace: Sequence[int],
    offsets: Sequence[int],
) -> Iterator[PlacedBuffer]:
    execution = _executions(schedule)
    for i, buffer in enumerate(held):
        tensor = graph.tensors[buffer.instance.tensor]
        yield PlacedBuffer(
            "tensor",
            tensor.name,
            execution[buffer.start],
            offsets[i],
            tensor.nbytes,
            buffer.start,
            buffer.end,
            taken.get(i),
        )
    for offset, step in zip(offsets[len(held) :], workspace, strict=True):
        op = graph.ops[schedule.steps[step]]
        yield PlacedBuffer(
            "workspace", op.name, execution[step], offset, op.workspace_bytes, step, step + 1, None
        )


def _outside(graph: Graph, kind: TensorKind) -> tuple[Outside, ...]:
    return tuple(Outside(t.name, t.nbytes) for t in graph.tensors if t.kind is kind)


def _outputs(graph: Graph, held: Sequence[Buffer]) -> tuple[Output, ...]:
    pinned = {b.instance.tensor: i for i, b in enumerate(held) if b.instance.pinned}
    return tuple(Output(graph.tensors[t].name, pinned.get(t)) for t in graph.outputs)
