"""Scratch of single nodes, counted on the heap: each node runs alone, on the values it had.

The runtime's statistics miss what kernels keep in C++ containers, and what a subgraph's body holds
while an If, Loop or Scan runs. Here the model runs once with the values that the asked nodes read
as extra outputs; then each node is a model of its own, and malloc is counted while it runs.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from onnxremat.importer.inference import infer_shapes
from onnxremat.importer.values import ValueType
from onnxremat.runtimes.order import node_reads
from onnxremat.runtimes.process import ModelSource, run_job
from onnxremat.runtimes.recipe import Recipe
from onnxremat.runtimes.wire import Array


@dataclass(frozen=True)
class IsolatedNode:
    """A node run alone: `outputs` as in NodeProfile (present outputs only), the median time of a
    run, and scratch beside inputs and outputs, with the bookkeeping of a run (about 0.5 KB)."""

    outputs: tuple[ValueType | None, ...]
    time_ns: int
    workspace_bytes: int


def isolate(
    model: onnx.ModelProto,
    base_dir: Path | str,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    nodes: Sequence[int],
    measured: Mapping[str, ValueType] | None = None,
) -> dict[int, IsolatedNode]:
    """What `nodes` (indices into `model.graph.node`) do when each runs alone on its values.

    Left out are nodes that the runtime refuses alone, and all of them where memray does not
    exist. The values that the nodes read are held at once, so ask about few nodes of a large
    model; a node costs about 0.2 s. `measured` are types of values by name: they are asked where
    neither file nor inference tells. Raises ModelError if the runtime refuses the model.
    """
    if not nodes:
        return {}
    types = {**_type_protos(measured or {}), **value_types(model)}
    alone = [single_node_model(model, v, types) for v in nodes]
    read = {value.name for part in alone for value in part.graph.input}
    models = (with_outputs(model, read), *alone)
    sources = [ModelSource(model=m, base_dir=Path(base_dir)) for m in models]
    with run_job("node_heaps", sources, [recipe] * len(sources), inputs) as job:
        found = job.answer.get("nodes", [])
    return {v: _isolated(answer) for v, answer in zip(nodes, found, strict=False) if answer}


def _isolated(answer: Mapping[str, Any]) -> IsolatedNode:
    outputs = tuple(ValueType(o[0], tuple(o[1])) if o else None for o in answer["outputs"])
    return IsolatedNode(outputs, round(answer["seconds"] * 1e9), answer["scratch_bytes"])


def value_types(model: onnx.ModelProto) -> dict[str, onnx.TypeProto]:
    """The type of every value that is declared or that shape inference can tell."""
    graph = (infer_shapes(model) or model).graph
    return {v.name: v.type for v in (*graph.value_info, *graph.input, *graph.output)}


def _type_protos(types: Mapping[str, ValueType]) -> dict[str, onnx.TypeProto]:
    """Element types as a file states them; names that ONNX does not have are left out."""
    known = onnx.TensorProto.DataType
    return {
        name: onnx.helper.make_tensor_type_proto(known.Value(kind.dtype.upper()), None)
        for name, kind in types.items()
        if kind.dtype.upper() in known.keys()  # noqa: SIM118 (a protobuf enum is no dict)
    }


def single_node_model(
    model: onnx.ModelProto, index: int, types: Mapping[str, onnx.TypeProto]
) -> onnx.ModelProto:
    """Node `index` as a model: values it reads are inputs (without shapes), weights come along."""
    graph = model.graph
    node = graph.node[index]
    read = set(node_reads(node))
    constants = [n for n in graph.node if n.op_type == "Constant" and n.output[0] in read]
    weights = [w for w in graph.initializer if w.name in read]
    known = {n.output[0] for n in constants} | {w.name for w in weights}
    return onnx.ModelProto(
        ir_version=model.ir_version,
        opset_import=model.opset_import,
        functions=model.functions,
        graph=onnx.GraphProto(
            name="node",
            node=[*constants, node],
            initializer=weights,
            input=[_value(name, types) for name in sorted(read - known)],
            output=[_value(name, types) for name in node.output if name],
        ),
    )


def with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """A copy whose graph outputs are the computed ones among `names`, and nothing else."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    made = {name for node in model.graph.node for name in node.output}
    types = {value.name: value for value in (*model.graph.output, *model.graph.value_info)}
    del copy.graph.output[:]
    wanted = sorted(made & set(names)) or [value.name for value in model.graph.output]
    copy.graph.output.extend(types.get(n, onnx.ValueInfoProto(name=n)) for n in wanted)
    return copy


def _value(name: str, types: Mapping[str, onnx.TypeProto]) -> onnx.ValueInfoProto:
    value = onnx.ValueInfoProto(name=name)
    if name in types:
        value.type.CopyFrom(types[name])
        if value.type.HasField("tensor_type"):
            value.type.tensor_type.ClearField("shape")
    return value
