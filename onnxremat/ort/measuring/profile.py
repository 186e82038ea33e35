"""One run of a model as ONNX Runtime executed it: order, sizes, kernel times, workspace.

The runtime writes two files: a profile (JSON, an event for each kernel with the types and shapes
of what it made) and memory statistics (CSV, workspace for each node). Nodes are told apart by names
given to a copy of the model: originals may have none, or the same twice, or the same as a node
inside a subgraph.
"""

import csv
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import onnx

from onnxremat.core.errors import ModelError, UsageError
from onnxremat.importer.execution_order import default_order, priority_order
from onnxremat.importer.inference import infer_shapes
from onnxremat.importer.nodes import is_constant
from onnxremat.importer.values import ValueType, runtime_dtype
from onnxremat.ort.child import actions as worker_actions
from onnxremat.ort.child.process import ModelSource, run_job
from onnxremat.ort.child.watching import Listener
from onnxremat.ort.child.wire import Array
from onnxremat.ort.measuring.measure_time import HEAP_SHARE, MEASURE_SECONDS, PROFILE_SHARE
from onnxremat.ort.measuring.node_heap import CountedHeap, count_heap
from onnxremat.ort.measuring.workspace import STATISTICS_EXACT, VARIADIC, known_workspace_bytes
from onnxremat.ort.recipe import ExecutionOrder, OptimizationLevel, Recipe

_TOP, _INNER = "onnxremat_top_", "onnxremat_inner_"
_KERNEL = "_kernel_time"
NOT_COUNTED = "the runtime executes other nodes than the model has"
_FEW_INPUTS = 3


@dataclass(frozen=True)
class NodeProfile:
    """What one node did. `outputs` follow the node's outputs: None for one that is absent or no
    tensor. `time_ns` is the median over the runs; `workspace_bytes` is workspace beside inputs and
    outputs, for a node with subgraphs what their bodies hold at most."""

    outputs: tuple[ValueType | None, ...]
    time_ns: int
    workspace_bytes: int


@dataclass(frozen=True)
class RunProfile:
    """A run of a model. Indices are those of `model.graph.node`; subgraph bodies stand nowhere.

    `order` has the nodes as they executed, `nodes` tells about each. Constant nodes do not
    execute. `expanded` are nodes that the runtime replaced by the nodes of their function: they
    are neither in `nodes` nor in `order`, for their parts do not run together (see
    `ort.settle`). `foreign` are the op types of nodes that the runtime added (function bodies;
    casts around what a kernel lacks), as they ran. `heap` is what was counted node by node, None if
    no node asked for it. `unmeasured` are nodes whose workspace is an estimate: what the runtime's
    statistics say, which miss what kernels keep elsewhere. `heap.reason` says why. `run_seconds` is
    how long the fastest run took. A model that is settled has neither expanded nor foreign nodes.
    """

    order: tuple[int, ...]
    nodes: Mapping[int, NodeProfile]
    expanded: tuple[int, ...] = ()
    foreign: tuple[str, ...] = ()
    unmeasured: tuple[int, ...] = ()
    heap: CountedHeap | None = None
    run_seconds: float = 0.0

    @property
    def estimated_reason(self) -> str:
        """Why the workspace of `unmeasured` nodes is an estimate; empty if there are none."""
        if not self.unmeasured:
            return ""
        return NOT_COUNTED if self.heap is None else self.heap.reason

    def is_of(self, model: onnx.ModelProto, mode: ExecutionOrder) -> bool:
        """Whether the nodes of `model`, and no others, were executed as its file says, in a mode
        of the runtime. O((n + m) log n)."""
        expected = tuple(emulated_order(model.graph.node, mode))
        return not self.expanded and not self.foreign and self.order == expected


def emulated_order(nodes: Sequence[onnx.NodeProto], mode: ExecutionOrder) -> list[int]:
    """The nodes as the runtime executes them in a mode."""
    return (priority_order if mode is ExecutionOrder.PRIORITY else default_order)(nodes)


def profile_run(
    model: onnx.ModelProto,
    base_dir: Path | str,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    runs: int = 3,
    *,
    seconds: float = MEASURE_SECONDS,
    listener: Listener | None = None,
) -> RunProfile:
    """Run `model` in a child and tell what every top-level node did.

    `base_dir` is the folder of its external data. The first run is not timed if there are more.
    Memory pattern is off, whatever the recipe says, as the statistics need. Repeating runs and
    counting the heap have `seconds`; what they do not suffice for is estimated. `listener` hears
    what is being done, from another thread.

    Nodes that the runtime expands are only listed, and then no heap is counted: put their parts in
    the file and ask again. Raises ModelError if the runtime refuses the model; UsageError if the
    recipe lets it optimize, because nodes that were merged cannot be told apart.
    """
    seen = _profiled(model, base_dir, inputs, recipe, runs, PROFILE_SHARE * seconds, listener)
    asked = tuple(v for v in seen.order if _needs_heap(model.graph.node[v]))
    if not asked or seen.expanded:
        return replace(seen, unmeasured=asked)
    counted = count_heap(
        model,
        base_dir,
        inputs,
        recipe,
        seen.order,
        {v: node.outputs for v, node in seen.nodes.items()},
        run_seconds=seen.run_seconds,
        seconds=HEAP_SHARE * seconds,
        listener=listener,
    )
    nodes = dict(seen.nodes)
    for v in asked:
        if v in counted.segments:
            workspace = counted.segments[v].workspace_bytes
            nodes[v] = replace(nodes[v], workspace_bytes=workspace)
    unmeasured = tuple(v for v in asked if v not in counted.segments)
    return replace(seen, nodes=nodes, unmeasured=unmeasured, heap=counted)


def carried_profile(
    run: RunProfile, model: onnx.ModelProto, origin: Sequence[int | None], mode: ExecutionOrder
) -> RunProfile:
    """The profile of a model that nobody has run yet, in a mode of the runtime: node i does what
    node `origin[i]` of `run` does, less outputs that were dropped. Of one that stands for none, and
    of the heap as a whole, nothing is known."""
    made = model.graph.node
    nodes = {
        i: replace(run.nodes[v], outputs=run.nodes[v].outputs[: len(made[i].output)])
        for i, v in enumerate(origin)
        if v is not None and v in run.nodes
    }
    return RunProfile(
        tuple(emulated_order(made, mode)),
        nodes,
        unmeasured=tuple(i for i, v in enumerate(origin) if v in run.unmeasured),
        run_seconds=run.run_seconds,
    )


def seen_run(
    model: onnx.ModelProto, base_dir: Path | str, inputs: Mapping[str, Array], recipe: Recipe
) -> RunProfile:
    """`profile_run` from one run, without counting any heap: enough for the order, and quick.
    Raises as `profile_run`."""
    return _profiled(model, base_dir, inputs, recipe, 1, None, None)


def _profiled(
    model: onnx.ModelProto,
    base_dir: Path | str,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    runs: int,
    seconds: float | None,
    listener: Listener | None,
) -> RunProfile:
    """What the runtime's own profile and statistics tell."""
    if recipe.optimization is not OptimizationLevel.NONE:
        raise UsageError("profiling needs a recipe without optimizations (save the optimized file)")
    if runs < 1:
        raise UsageError(f"{runs} runs: at least one is needed")
    recipe = replace(recipe, mem_pattern=False)
    source = ModelSource(model=named_copy(model), base_dir=Path(base_dir))
    options = {"runs": runs, "seconds": seconds}
    try:
        with run_job(
            worker_actions.profile, [source], [recipe], inputs, options=options, listener=listener
        ) as job:
            stats = (job.folder / job.answer["stats"]).read_text(encoding="utf-8")
            seen = read_profile(model, profile_events(job.folder / job.answer["profile"]), stats)
    except ModelError as error:
        raise ModelError(_with_own_names(model, str(error))) from error
    return replace(seen, run_seconds=min(job.answer["run_seconds"]))


def profile_events(profile: Path) -> Iterator[Mapping[str, Any]]:
    """The events of a profile one after the other: there are up to a million of them where bodies
    of loops ran, and the runtime writes a line for each."""
    with profile.open(encoding="utf-8") as lines:
        for line in lines:
            event = line.strip().rstrip(",")
            if event not in ("", "[", "]"):
                yield json.loads(event)


def _with_own_names(model: onnx.ModelProto, message: str) -> str:
    """A message about `named_copy(model)`, with the names that the model's own nodes have."""

    def own(found: re.Match[str]) -> str:
        index = int(found.group(1))
        return model.graph.node[index].name or f"node {index}"

    return re.sub(rf"(?:{_TOP}|{_INNER})(\d+)(?:_\d+)?", own, message)


def _needs_heap(node: onnx.NodeProto) -> bool:
    """Whether the workspace of a node has to be counted on the heap."""
    again = node.op_type in VARIADIC and len(node.input) > _FEW_INPUTS
    return (
        again
        or node.op_type not in STATISTICS_EXACT
        or any(
            a.type in (onnx.AttributeProto.GRAPH, onnx.AttributeProto.GRAPHS)
            for a in node.attribute
        )
    )


def named_copy(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy in which the name of every node says which top-level node it is or belongs to."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    for index, node in enumerate(copy.graph.node):
        node.name = f"{_TOP}{index}"
        for number, inner in enumerate(inner_nodes(node)):
            inner.name = f"{_INNER}{index}_{number}"
    return copy


def inner_nodes(node: onnx.NodeProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a node's subgraphs, at every depth, in the order of the file."""
    for attribute in node.attribute:
        for graph in (attribute.g, *attribute.graphs):
            for inner in graph.node:
                yield inner
                yield from inner_nodes(inner)


def read_profile(
    model: onnx.ModelProto, events: Iterable[Mapping[str, Any]], stats: str
) -> RunProfile:
    """What a profile and memory statistics of `named_copy(model)` say about `model`.

    Nodes that the runtime expanded are listed, but not told about. Events of bodies are not kept.
    """
    by_node: dict[int, list[Mapping[str, Any]]] = {}
    foreign: dict[str, Mapping[str, Any]] = {}
    for event in events:
        if event.get("cat") != "Node" or not event["name"].endswith(_KERNEL):
            continue
        name = event["name"].removesuffix(_KERNEL)
        index = _top_index(name)
        if index is not None:
            by_node.setdefault(index, []).append(event)
        elif not name.startswith(_INNER):
            foreign[name] = min(foreign.get(name, event), event, key=_start)
    for found in by_node.values():
        found.sort(key=_start)
    order = sorted(by_node, key=lambda v: _start(by_node[v][0]))
    workspace = _workspace_bytes(stats)
    nontensors = _Nontensors(model)
    nodes = {
        v: _node_profile(model.graph.node[v], by_node[v], workspace.get(v, 0), nontensors)
        for v in order
    }
    silent = tuple(
        v for v, node in enumerate(model.graph.node) if v not in nodes and not is_constant(node)
    )
    added = sorted(foreign.items(), key=lambda item: _start(item[1]))
    types = tuple(event["args"].get("op_name", name) for name, event in added)
    return RunProfile(tuple(order), nodes, silent, types)


def _start(event: Mapping[str, Any]) -> int:
    return int(event["ts"])


def executed_inner_nodes(events: Sequence[Mapping[str, Any]], index: int) -> list[int]:
    """Nodes in the bodies of top-level node `index` of a named copy, as they ran, repetitions
    included. Numbers are those of `inner_nodes`."""
    pattern = re.compile(rf"{_INNER}{index}_(\d+){_KERNEL}")
    found = ((event["ts"], pattern.fullmatch(event["name"])) for event in events)
    ran = sorted((ts, int(match[1])) for ts, match in found if match)
    return [number for _, number in ran]


def _top_index(name: str) -> int | None:
    """The top-level node of a name; None for others, also for copies that the runtime makes of a
    node (`.../duplicated` for a DequantizeLinear with several readers)."""
    found = re.fullmatch(rf"{_TOP}(\d+)", name)
    return int(found[1]) if found else None


def _workspace_bytes(stats: str) -> dict[int, int]:
    """Workspace of each top-level node, by index. The runtime adds `_NUMBER` to every name."""
    rows = csv.DictReader(stats.splitlines())
    workspace = {}
    for row in rows:
        name = row["#name"].rpartition("_")[0]
        index = _top_index(name)
        if index is not None:
            workspace[index] = int(row["total_temp_allocations"] or 0)
    return workspace


def _node_profile(
    node: onnx.NodeProto,
    events: Sequence[Mapping[str, Any]],
    workspace_bytes: int,
    nontensors: "_Nontensors",
) -> NodeProfile:
    args = events[0]["args"]
    timed = events[1:] or events
    time_ns = round(median(event["dur"] for event in timed) * 1000)
    hidden = known_workspace_bytes(node.op_type, _types(args.get("input_type_shape", ())))
    outputs = _placed(node, _types(args.get("output_type_shape", ())), nontensors)
    return NodeProfile(outputs, time_ns, workspace_bytes + hidden)


def _types(entries: Sequence[Mapping[str, Sequence[int]]]) -> list[ValueType]:
    return [ValueType(runtime_dtype(t), tuple(shape)) for e in entries for t, shape in e.items()]


def _placed(
    node: onnx.NodeProto, types: Sequence[ValueType], nontensors: "_Nontensors"
) -> tuple[ValueType | None, ...]:
    """Types put beside the outputs they belong to: the runtime leaves out the others."""
    present = [position for position, name in enumerate(node.output) if name]
    if len(present) != len(types):
        present = [p for p in present if node.output[p] not in nontensors]
    if len(present) != len(types):
        raise ModelError(
            f"{node.op_type} node {node.name!r} has {len(present)} outputs that are tensors, "
            f"but ONNX Runtime tells of {len(types)}"
        )
    placed: list[ValueType | None] = [None] * len(node.output)
    for position, value in zip(present, types, strict=True):
        placed[position] = value
    return tuple(placed)


class _Nontensors:
    """Names of values that are no tensors (sequences, optionals), found when first asked."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._names: set[str] | None = None

    def __contains__(self, name: object) -> bool:
        if self._names is None:
            graph = (infer_shapes(self._model) or self._model).graph
            values = (*graph.value_info, *graph.output)
            self._names = {v.name for v in values if v.type.WhichOneof("value") != "tensor_type"}
        return name in self._names
