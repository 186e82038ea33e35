"""What a session with default options runs and allocates, step by step.

file -> what the runtime's optimizations make of it -> what a session runs of that, profiled
     (`ort.stock_session`) -> the plan of its buffers (`ort.emulation`) -> Timeline
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import onnx

from onnxremat.commands.timeline import Timeline, TimelineStep, TimelineValue
from onnxremat.importer import LoadedModel, given_inputs
from onnxremat.importer.nodes import op_key, reads
from onnxremat.importer.purity import is_recomputable
from onnxremat.importer.values import ValueType
from onnxremat.ort.child.watching import Listener
from onnxremat.ort.child.wire import Array
from onnxremat.ort.emulation.allocation import AllocationKind, AllocationPlan, plan_allocations
from onnxremat.ort.emulation.pieces import made_types, value_bytes
from onnxremat.ort.emulation.rules import VIEW_OPS
from onnxremat.ort.measuring.profile import RunProfile
from onnxremat.ort.optimize import optimize_offline
from onnxremat.ort.recipe import STOCK
from onnxremat.ort.stock_session import stock_session

DEFAULT_SESSION = "default options"


def default_timeline(
    loaded: LoadedModel,
    inputs: Mapping[str, Array],
    *,
    threads: int | None,
    seconds: float,
    listener: Listener | None = None,
) -> Timeline:
    """The timeline of a model in a session in which nothing is set but `threads`.

    What is held are the buffers that the runtime plans; what its arena keeps beside them, and where
    the memory pattern puts them, is not in it. The model is optimized, opened and run in children;
    profiling it takes `seconds` at most beyond the runs that have to be made. Raises ModelError if
    the runtime refuses it or the optimized model exceeds 2 GB. O(nodes + reads).
    """
    settings = STOCK.with_threads(threads)
    base = loaded.base_dir
    made = optimize_offline(loaded.model, base, settings.optimization, settings)
    ran = stock_session(made, base, inputs, settings, seconds=seconds, listener=listener)
    plan = plan_allocations(ran.model.graph, ran.order, ran.types)
    known = {name for node in loaded.model.graph.node for name in node.output}
    timeline = planned_timeline(ran.model, ran.profile, ran.order, plan, inputs, ran.early_outputs)
    return _with_names(timeline, known)


def _with_names(timeline: Timeline, known: set[str]) -> Timeline:
    """With the names of nodes for values that the runtime made, whose own tell nothing."""

    def named(value: TimelineValue) -> TimelineValue:
        maker = timeline.steps[value.maker]
        if value.name in known:
            return value
        more = f": {value.name}" if len(maker.makes) > 1 else ""
        return replace(value, name=f"{maker.name}{more}")

    return replace(timeline, values=tuple(map(named, timeline.values)))


def planned_timeline(
    model: onnx.ModelProto,
    profile: RunProfile,
    order: Sequence[int],
    plan: AllocationPlan,
    inputs: Mapping[str, Array],
    early: Sequence[str] = (),
) -> Timeline:
    """The timeline of a plan of buffers; `early` are outputs that have theirs before all else.

    A buffer that several values have one after the other is a value of its own for each of them.
    """
    nodes = model.graph.node
    types = made_types(model, profile)
    segments = _Segments.of(model, order, plan, types, early)
    steps = []
    for step, v in enumerate(order):
        known = profile.nodes.get(v)
        steps.append(
            TimelineStep(
                nodes[v].name or f"{nodes[v].op_type}_{v}",
                op_key(nodes[v]),
                0 if known is None else known.workspace_bytes,
                0 if known is None else known.time_ns,
                segments.read_at(step, nodes[v]),
                segments.made_at.get(step, ()),
            )
        )
    weights = sum(
        value_bytes(types.get(tensor.name)) for tensor in model.graph.initializer
    )  # those of Constant nodes are initializers in the runtime's file
    given = sum(inputs[one.name].nbytes for one in given_inputs(model.graph) if one.name in inputs)
    return Timeline(DEFAULT_SESSION, tuple(steps), segments.finish(), weights, given, True)


@dataclass(frozen=True)
class _Segments:
    """The values in buffers, each from the step that makes it to the one that takes its buffer
    over. `places` has, for each buffer, when its values begin, and their indices; `last_read` is
    filled while steps are gone through."""

    values: list[TimelineValue]
    made_at: dict[int, tuple[int, ...]]
    places: dict[str, tuple[list[int], list[int]]]
    plan: AllocationPlan
    last_read: dict[int, int]

    @classmethod
    def of(
        cls,
        model: onnx.ModelProto,
        order: Sequence[int],
        plan: AllocationPlan,
        types: Mapping[str, ValueType],
        early: Sequence[str],
    ) -> "_Segments":
        nodes = model.graph.node
        maker = {name: (step, v) for step, v in enumerate(order) for name in nodes[v].output}
        found = cls([], {}, {}, plan, {})
        for buffer in plan.buffers:
            end = len(order) if buffer.released is None else buffer.released + 1
            shown = [
                name
                for name in buffer.members
                if name == buffer.root or op_key(nodes[maker[name][1]]) not in VIEW_OPS
            ]
            begins = [maker[name][0] for name in shown]
            ends = [*begins[1:], end]
            places: tuple[list[int], list[int]] = ([], [])
            for name, begin, stop in zip(shown, begins, ends, strict=True):
                step, v = maker[name]
                kind = types.get(name)
                places[0].append(begin)
                places[1].append(len(found.values))
                found.made_at[step] = (*found.made_at.get(step, ()), len(found.values))
                found.values.append(
                    TimelineValue(
                        name,
                        "" if kind is None else kind.dtype,
                        () if kind is None else kind.shape,
                        value_bytes(types.get(buffer.root)),
                        0 if name in early else begin,
                        stop,
                        step,
                        None,
                        buffer.kind is AllocationKind.OUTPUT,
                        is_recomputable(nodes[v]),
                    )
                )
            found.places[buffer.root] = places
        return found

    def read_at(self, step: int, node: onnx.NodeProto) -> tuple[int, ...]:
        """The values that a node reads: of each buffer the one that is in it by then."""
        found: dict[int, None] = {}
        for name in reads(node):
            planned = self.plan.values.get(name)
            if planned is None or planned.root not in self.places:
                continue
            begins, indices = self.places[planned.root]
            number = indices[bisect_left(begins, step) - 1]
            found[number] = None
            self.last_read[number] = step
        return tuple(found)

    def finish(self) -> tuple[TimelineValue, ...]:
        return tuple(
            replace(value, last_read=None if value.kept else self.last_read.get(i))
            for i, value in enumerate(self.values)
        )
