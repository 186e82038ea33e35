"""The dataflow graph every planner works on: tensors, ops, and who reads what.

Terms. A *tensor* is a value with a known number of bytes. An *op* is one node that really
computes: view ops (Reshape, Squeeze, ...) own no bytes and are resolved away by the importer, and
ops on weights alone are weights. Integers index `Graph.tensors` and `Graph.ops`; names are for
people. Nothing here knows protobuf, and every value is frozen and checked when it is made.

>>> x = Tensor("x", (10,), "float", 40, TensorKind.INPUT)
>>> a, b = Tensor("a", (10,), "float", 40), Tensor("b", (10,), "float", 40)
>>> ops = (Op("first", "Exp", (0,), (1,)), Op("second", "Add", (0, 1), (2,), cost=3))
>>> graph = Graph((x, a, b), ops, inputs=(0,), outputs=(2,))
>>> graph.producer, graph.readers
((-1, 0, 1), ((0, 1), (1,), ()))
>>> graph.predecessors(1), graph.total_cost()
((0,), 4)
>>> Graph((x, a, b), ops[::-1], inputs=(0,), outputs=(2,))
Traceback (most recent call last):
ValueError: op 'second' reads 'a' before it is made
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class TensorKind(StrEnum):
    """Who owns the bytes of a tensor."""

    INPUT = "input"
    """Given by the caller of the model; never freed by the runtime."""
    WEIGHT = "weight"
    """Held by the session for its whole life: initializers, constants, ops on those alone."""
    ACTIVATION = "activation"
    """Made by an op during a run; what planning is about."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value: `shape` in elements, `dtype` an ONNX name such as `float`, `nbytes` in bytes."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    kind: TensorKind = TensorKind.ACTIVATION


@dataclass(frozen=True, slots=True)
class Op:
    """A node that computes.

    `inputs` and `outputs` are tensor indices in the node's order; a tensor read twice stands
    twice, absent optional inputs are left out. `cost` is the time of one execution in any one
    unit (nanoseconds from the importer). `workspace_bytes` are held by the kernel while it runs.
    `recomputable` is False for ops that must run exactly once (random, stateful, unknown).
    `eager` marks ops that the runtime starts as soon as their inputs exist, whatever the order
    says (Shape and Size in ONNX Runtime).
    """

    name: str
    op_type: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    cost: int = 1
    workspace_bytes: int = 0
    recomputable: bool = True
    eager: bool = False


@dataclass(frozen=True)
class Graph:
    """Tensors and ops, the ops in a topological order (the file's order when it has one).

    `inputs` are the tensors the caller gives, `outputs` those the caller gets back: an output is
    held from its last execution to the end of the run. `producer[t]` is the op that makes tensor
    t, or -1; `readers[t]` are the ops that read it, ascending and without repetition.

    Raises ValueError, naming the offender, if an index is out of range, a size is negative, a
    tensor has two producers, an activation has none, or an op reads a tensor made later.
    """

    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    producer: tuple[int, ...] = field(init=False, repr=False, compare=False)
    readers: tuple[tuple[int, ...], ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        count = len(self.tensors)
        for tensor in self.tensors:
            if tensor.nbytes < 0:
                raise ValueError(f"tensor {tensor.name!r} has a negative size")
        producer = [-1] * count
        readers: list[list[int]] = [[] for _ in range(count)]
        for index, op in enumerate(self.ops):
            _check_indices(op.name, (*op.inputs, *op.outputs), count)
            if op.cost < 0 or op.workspace_bytes < 0:
                raise ValueError(f"op {op.name!r} has a negative cost or workspace")
            for t in op.inputs:
                if self.tensors[t].kind is TensorKind.ACTIVATION and producer[t] < 0:
                    raise ValueError(
                        f"op {op.name!r} reads {self.tensors[t].name!r} before it is made"
                    )
                if not readers[t] or readers[t][-1] != index:
                    readers[t].append(index)
            for t in op.outputs:
                if producer[t] >= 0:
                    raise ValueError(f"tensor {self.tensors[t].name!r} has two producers")
                if self.tensors[t].kind is not TensorKind.ACTIVATION:
                    raise ValueError(
                        f"tensor {self.tensors[t].name!r} is made by an op but is an "
                        f"{self.tensors[t].kind.value}"
                    )
                producer[t] = index
        for t, tensor in enumerate(self.tensors):
            if tensor.kind is TensorKind.ACTIVATION and producer[t] < 0:
                raise ValueError(f"no op makes {tensor.name!r}")
        _check_indices("graph", (*self.inputs, *self.outputs), count)
        object.__setattr__(self, "producer", tuple(producer))
        object.__setattr__(self, "readers", tuple(tuple(r) for r in readers))

    def predecessors(self, op: int) -> tuple[int, ...]:
        """Ops whose outputs `op` reads, ascending, without repetition. O(inputs log inputs)."""
        made = {self.producer[t] for t in self.ops[op].inputs}
        made.discard(-1)
        return tuple(sorted(made))

    def total_cost(self) -> int:
        """The time of executing every op once: no schedule can be faster."""
        return sum(op.cost for op in self.ops)


def _check_indices(owner: str, indices: Sequence[int], count: int) -> None:
    for index in indices:
        if not 0 <= index < count:
            raise ValueError(f"{owner!r} names tensor {index}, but there are {count}")
