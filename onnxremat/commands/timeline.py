"""Memory over the execution of a model, step by step, in the order in which a session runs it.

A `Timeline` is what the page of `audit --html` and the profile in the terminal are drawn from. It
knows neither ONNX nor a runtime: `graph_timeline` makes one of a Graph under the rules of memory,
`onnxremat.commands.default_session` one of what a session with default options allocates.

The bytes held during a step are those of the values that are held then, and the workspace of its
kernel. What the session holds all the time (weights) and what the caller owns (inputs) stand apart.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from itertools import accumulate

from onnxremat.core.graph import Graph, TensorKind
from onnxremat.core.memory import MemoryRules, buffers
from onnxremat.core.schedule import NEVER, Schedule

LAYERS = 12
"""So many layers of a stack have a name; what is left is in one more."""
_NO_SCOPE = "(top level)"


class Stacking(StrEnum):
    """By what values are put together into layers."""

    TENSOR = "tensor"
    """Each of the largest tensors by itself: those held at the peak first."""
    SCOPE = "scope"
    """The beginning of the name of the node that made them, up to a slash or a dot."""
    OP_TYPE = "op type"
    """The op type of the node that made them."""


@dataclass(frozen=True, slots=True)
class TimelineStep:
    """The execution of one node. `time_ns`: of one execution, measured or by the cost model
    (`Timeline.times_measured`). `reads` and `makes` index `Timeline.values`; weights and the
    caller's inputs are not among them."""

    name: str
    op_type: str
    workspace_bytes: int
    time_ns: int
    reads: tuple[int, ...]
    makes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TimelineValue:
    """A value in memory over the half-open interval of steps `[start, end)`.

    `maker` is the step that makes it: `start`, unless its buffer was taken before that. Where its
    buffer is taken over by a later value, `end` is the step that does so. `last_read` is the step
    that reads it last, None if none does or it is an output of the model, which is `kept` to the
    end. `repeatable`: whether its node may run again.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    start: int
    end: int
    maker: int
    last_read: int | None
    kept: bool
    repeatable: bool


@dataclass(frozen=True)
class Stack:
    """Values in layers: `layer_of[i]` is the layer of value i, an index into `labels`. The last
    layer has what is in no other, if `others`."""

    labels: tuple[str, ...]
    layer_of: tuple[int, ...]
    others: bool


@dataclass(frozen=True)
class Timeline:
    """Memory over one run of a session.

    `session` says in words which one. `weight_bytes` are held by the session, `input_bytes` by the
    caller, all the time; neither is in `live_bytes`. `times_measured`: whether the times of steps
    were measured in the runtime.
    """

    session: str
    steps: tuple[TimelineStep, ...]
    values: tuple[TimelineValue, ...]
    weight_bytes: int
    input_bytes: int
    times_measured: bool

    @cached_property
    def value_bytes(self) -> tuple[int, ...]:
        """Bytes of values held during each step, without workspace. O(steps + values)."""
        return tuple(self._held(lambda _: True))

    @cached_property
    def live_bytes(self) -> tuple[int, ...]:
        """Bytes held during each step: values and the workspace of its kernel."""
        return tuple(
            held + step.workspace_bytes
            for held, step in zip(self.value_bytes, self.steps, strict=True)
        )

    @property
    def peak_bytes(self) -> int:
        """The most of `live_bytes`; 0 if nothing runs."""
        return max(self.live_bytes, default=0)

    @property
    def peak_step(self) -> int:
        """The first step that reaches the peak; 0 if nothing runs."""
        return self.live_bytes.index(self.peak_bytes) if self.steps else 0

    @property
    def time_ns(self) -> int:
        """The time of all steps together."""
        return sum(step.time_ns for step in self.steps)

    def held_at(self, step: int) -> tuple[int, ...]:
        """Indices of the values held during a step, largest first."""
        held = [i for i, value in enumerate(self.values) if value.start <= step < value.end]
        return tuple(sorted(held, key=lambda i: (-self.values[i].nbytes, self.values[i].start)))

    def missing(self, value: int, step: int) -> int:
        """How many of the values that making `value` again would read are not held at `step`: they
        would have to be made again, too."""
        read = (self.values[i] for i in self.steps[self.values[value].maker].reads)
        return sum(not one.start <= step < one.end for one in read)

    def stacked(self, by: Stacking = Stacking.TENSOR, layers: int = LAYERS) -> Stack:
        """The values in at most `layers` layers that have a name, largest first, and one of what is
        left. How large a layer is: by the bytes that it has at the peak, then at any step."""
        label = self._labels(by, layers)
        at_peak, most = dict[str, int](), dict[str, int]()
        peak = self.peak_step
        for name, value in zip(label, self.values, strict=True):
            held = value.nbytes if value.start <= peak < value.end else 0
            at_peak[name] = at_peak.get(name, 0) + held
            most[name] = max(most.get(name, 0), value.nbytes)
        ranked = sorted(most, key=lambda name: (-at_peak[name], -most[name]))
        shown = {name: i for i, name in enumerate(ranked[:layers])}
        others = len(ranked) > layers
        labels = (*shown, f"{len(ranked) - layers} others") if others else tuple(shown)
        return Stack(labels, tuple(shown.get(name, layers) for name in label), others)

    def layers(self, stack: Stack) -> tuple[tuple[int, ...], ...]:
        """The bytes of each layer of a stack during each step; they add up to `value_bytes`.
        O(layers * steps + values)."""

        def layer(number: int) -> tuple[int, ...]:
            return tuple(self._held(lambda i: stack.layer_of[i] == number))

        return tuple(layer(number) for number in range(len(stack.labels)))

    def _held(self, counted: Callable[[int], bool]) -> Sequence[int]:
        change = [0] * (len(self.steps) + 1)
        for i, value in enumerate(self.values):
            if counted(i):
                change[value.start] += value.nbytes
                change[value.end] -= value.nbytes
        return list(accumulate(change))[:-1]

    def _labels(self, by: Stacking, layers: int) -> list[str]:
        if by is Stacking.TENSOR:
            return [value.name for value in self.values]
        makers = [self.steps[value.maker] for value in self.values]
        if by is Stacking.OP_TYPE:
            return [step.op_type for step in makers]
        scope = scopes([step.name for step in self.steps], layers)
        return [scope[step.name] for step in makers]


def scopes(names: Sequence[str], most: int = LAYERS) -> dict[str, str]:
    """The scope of each name: so many of its parts, the last one never among them, as make at most
    `most` scopes; one part at least.

    >>> scopes(["enc/a/Conv", "enc/b/Conv", "dec/Add"], 3)
    {'enc/a/Conv': 'enc/a', 'enc/b/Conv': 'enc/b', 'dec/Add': 'dec'}
    >>> scopes(["enc/a/Conv", "enc/b/Conv", "dec/Add", "Relu"], 3)
    {'enc/a/Conv': 'enc', 'enc/b/Conv': 'enc', 'dec/Add': 'dec', 'Relu': '(top level)'}
    """
    separator = "/" if any("/" in name.strip("/") for name in names) else "."
    parts = {name: name.strip(separator).split(separator)[:-1] for name in names}
    found = dict.fromkeys(names, _NO_SCOPE)
    for depth in range(1, max(map(len, parts.values()), default=0) + 1):
        deeper = {name: separator.join(part[:depth]) or _NO_SCOPE for name, part in parts.items()}
        if depth > 1 and len(set(deeper.values())) > most:
            break
        found = deeper
    return found


def graph_timeline(
    graph: Graph,
    schedule: Schedule,
    rules: MemoryRules,
    session: str,
    measured_ns: Mapping[int, int] | None = None,
) -> Timeline:
    """The timeline of a schedule under the rules of memory: `live_bytes` and the peak are those of
    `memory.profile`, unless the rules count what the caller or the session owns.

    `measured_ns` has the time of ops by index; without, times are the costs of the graph.
    O(steps + reads).
    """
    held = buffers(graph, schedule, rules)
    newest: dict[int, int] = {}
    reads: list[tuple[int, ...]] = []
    makes: list[tuple[int, ...]] = []
    number = 0
    for v in schedule:
        op = graph.ops[v]
        reads.append(tuple(dict.fromkeys(newest[t] for t in op.inputs if t in newest)))
        made = range(number, number + len(op.outputs))
        makes.append(tuple(made))
        newest.update(zip(op.outputs, made, strict=True))
        number += len(op.outputs)
    steps = tuple(
        TimelineStep(
            graph.ops[v].name,
            graph.ops[v].op_type,
            graph.ops[v].workspace_bytes if rules.count_workspace else 0,
            graph.ops[v].cost if measured_ns is None else measured_ns.get(v, 0),
            reads[i],
            makes[i],
        )
        for i, v in enumerate(schedule)
    )
    values = tuple(
        TimelineValue(
            graph.tensors[one.instance.tensor].name,
            graph.tensors[one.instance.tensor].dtype,
            graph.tensors[one.instance.tensor].shape,
            one.nbytes,
            one.start,
            one.end,
            one.start,
            None if one.instance.pinned or one.instance.last_read == NEVER
            else one.instance.last_read,
            one.instance.pinned,
            graph.ops[schedule.steps[one.start]].recomputable,
        )
        for one in held
    )  # fmt: skip
    weights, inputs = (
        sum(t.nbytes for t in graph.tensors if t.kind is kind)
        for kind in (TensorKind.WEIGHT, TensorKind.INPUT)
    )
    return Timeline(session, steps, values, weights, inputs, measured_ns is not None)
