"""Which value gets which buffer, and when the buffer is released: the plan ONNX Runtime makes.

The runtime plans once, when a session is opened, from the order of execution and from the shapes
that it can prove then (`provable`). Every output of a node is, by the first rule that applies,

- OUTPUT, if it is an output of the graph: a buffer of its own, which the caller keeps;
- REUSE of an input by aliasing (`rules.VIEW_OPS`): always, whoever else reads the input;
- REUSE of an input in place (`rules.INPLACE`): if this is the last read of the buffer that the
  input stands in, and both have the same provable size;
- REUSE of a dead buffer, unless `mem_reuse` is off: of the same provable size, the most recently
  freed first; never for a value that nobody reads, for scalars, text, or what is no tensor;
- ALLOCATE: a buffer of its own.

Values that share a buffer are a *group*, named by the one the buffer was allocated for. A buffer
is released at the last reader of the whole group, so an early value and a late one hold it across
the gap between them. A group that nobody reads is never released: releases are derived from
readers. The buffer of an unread value counts as dead all the same, so that a later value may use
it, and then it is released.

Same provable size: elements of the same number of bytes, the same rank, and every dimension equal
by value or by the name of the same symbol.

Source: `PlannerImpl` of ONNX Runtime (core/framework/allocation_planner.cc): FindReusableInput,
FindReusableTensor, ComputeReuseCount, ComputeSingleStreamReusePlan, GenerateDeallocationPlan. That
an unread value takes no dead buffer was found by experiment on 1.31.1.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import onnx

from onnxremat.importer.nodes import is_constant, op_key, reads
from onnxremat.ort.emulation.rules import INPLACE, VIEW_OPS
from onnxremat.ort.measuring.provable import ProvableType, same_size


class AllocationKind(StrEnum):
    """Where the buffer of a value comes from."""

    GIVEN = "given"
    """A graph input or a weight: no buffer of the run."""
    OUTPUT = "output"
    """A graph output: allocated by the node that makes it, kept by the caller."""
    ALLOCATE = "allocate"
    """A buffer of its own, released when its group has no reader any more."""
    REUSE = "reuse"
    """The buffer of another value."""


@dataclass(frozen=True, slots=True)
class ValuePlan:
    """The buffer of a value: `root` is the name of the value it was allocated for."""

    kind: AllocationKind
    root: str


@dataclass(frozen=True, slots=True)
class AllocatedBuffer:
    """A buffer of the run, and the values that are in it, as they are made.

    It is taken at step `allocated` and given back at the end of step `released`; None means that it
    is held to the end of the run. Steps index the order of execution.
    """

    root: str
    kind: AllocationKind
    members: tuple[str, ...]
    allocated: int
    released: int | None


@dataclass(frozen=True)
class AllocationPlan:
    """Buffers in the order of allocation, and the plan of every value by name."""

    buffers: tuple[AllocatedBuffer, ...]
    values: Mapping[str, ValuePlan]


def plan_allocations(
    graph: onnx.GraphProto,
    order: Sequence[int],
    types: Mapping[str, ProvableType],
    *,
    mem_reuse: bool = True,
) -> AllocationPlan:
    """The plan for the top level of `graph`, executed in `order` (indices of its nodes).

    `types` are what the runtime can prove of values (`provable.provable_types`). O(reads + dead
    buffers looked at).
    """
    planner = _Planner(graph, order, types, mem_reuse)
    for step, v in enumerate(order):
        planner.execute(step, graph.node[v])
    return planner.finish()


@dataclass(slots=True)
class _Group:
    """A buffer under construction. `uses` counts makers and readers that are still to come."""

    root: str
    kind: AllocationKind
    uses: int
    members: list[str]
    allocated: int = 0
    last_read: int | None = None


class _Planner:
    def __init__(
        self,
        graph: onnx.GraphProto,
        order: Sequence[int],
        types: Mapping[str, ProvableType],
        mem_reuse: bool,
    ) -> None:
        self._types = types
        self._mem_reuse = mem_reuse
        self._outputs = {value.name for value in graph.output}
        self._uses: dict[str, int] = dict.fromkeys(self._outputs, 1)
        for v in order:
            for name in (*reads(graph.node[v]), *filter(None, graph.node[v].output)):
                self._uses[name] = self._uses.get(name, 0) + 1
        self._groups: dict[str, _Group] = {}
        self._values: dict[str, ValuePlan] = {}
        self._made: list[_Group] = []
        self._dead: deque[_Group] = deque()
        for name in _given_names(graph):
            self._uses[name] = self._uses.get(name, 0) + 1
            group = _Group(name, AllocationKind.GIVEN, self._uses[name], [])
            self._groups[name] = group
            self._values[name] = ValuePlan(AllocationKind.GIVEN, name)

    def execute(self, step: int, node: onnx.NodeProto) -> None:
        """Plan the outputs of a node, then count off what it read and made."""
        for position, name in enumerate(node.output):
            if name:
                self._plan_output(step, node, position, name)
        for name in reads(node):
            group = self._groups.get(name)
            if group is not None:
                group.last_read = step
                self._count_off(group)
        for name in filter(None, node.output):
            self._count_off(self._groups[name])

    def finish(self) -> AllocationPlan:
        buffers = tuple(
            AllocatedBuffer(
                group.root,
                group.kind,
                tuple(group.members),
                group.allocated,
                group.last_read if group.kind is AllocationKind.ALLOCATE else None,
            )
            for group in self._made
        )
        return AllocationPlan(buffers, self._values)

    def _plan_output(self, step: int, node: onnx.NodeProto, position: int, name: str) -> None:
        shared = None
        kind = AllocationKind.OUTPUT
        if name not in self._outputs:
            kind = AllocationKind.ALLOCATE
            shared = self._input_to_reuse(node, position, name) or self._dead_to_reuse(name)
        if shared is not None:
            shared.uses += self._uses[name]
            shared.members.append(name)
            self._groups[name] = shared
            self._values[name] = ValuePlan(AllocationKind.REUSE, shared.root)
            return
        group = _Group(name, kind, self._uses[name], [name], step)
        self._groups[name] = group
        self._made.append(group)
        self._values[name] = ValuePlan(kind, name)

    def _input_to_reuse(self, node: onnx.NodeProto, position: int, name: str) -> _Group | None:
        op = op_key(node)
        if op in VIEW_OPS and position == 0 and node.input and node.input[0]:
            return self._groups.get(node.input[0])
        for source, target in INPLACE.get(op, ()):
            if target != position or source >= len(node.input) or not node.input[source]:
                continue
            read = node.input[source]
            group = self._groups.get(read)
            if group is not None and group.uses == 1 and self._same_size(read, name):
                return group
        return None

    def _dead_to_reuse(self, name: str) -> _Group | None:
        kind = self._types.get(name)
        unread = self._uses[name] == 1
        if not self._mem_reuse or unread or kind is None or not kind.shape:
            return None
        for group in self._dead:
            if self._same_size(group.root, name):
                self._dead.remove(group)
                return group
        return None

    def _same_size(self, a: str, b: str) -> bool:
        first, second = self._types.get(a), self._types.get(b)
        return first is not None and second is not None and same_size(first, second)

    def _count_off(self, group: _Group) -> None:
        group.uses -= 1
        if group.uses == 0:
            self._dead.appendleft(group)


def _given_names(graph: onnx.GraphProto) -> set[str]:
    """Graph inputs and weights; Constant nodes are weights."""
    names = {value.name for value in graph.input}
    names.update(tensor.name for tensor in graph.initializer)
    names.update(tensor.values.name for tensor in graph.sparse_initializer)
    names.update(name for node in graph.node if is_constant(node) for name in node.output)
    return names
