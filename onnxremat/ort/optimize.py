"""The model that ONNX Runtime's own optimizations make, as a file would have it.

A plan or a prediction holds for the nodes that run. With optimizations on, those are not the nodes
of the file: some are fused, folded, merged, or replaced by others for another layout. So the
runtime is asked to optimize first and to write down what it made; that model runs with
optimizations off as the original does with them on.

What comes out is tied to what made it: the provider, the sizes that were put in for symbols, and
at `OptimizationLevel.ALL` the processor, if it has convolutions in the blocked layout NCHWc (the
block is as wide as the processor's vectors; domain com.microsoft.nchwc, which no other runtime
has). The nodes stand in the order in which the runtime executes them by default.
"""

import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import onnx
from onnx import GraphProto, ModelProto, TensorProto

from onnxremat.core.errors import ModelError, UsageError
from onnxremat.importer.calls import all_graphs
from onnxremat.importer.external import (
    all_external_tensors,
    external_location,
    external_tensors,
)
from onnxremat.importer.nodes import LAYOUT_DOMAIN
from onnxremat.ort.child import actions as worker_actions
from onnxremat.ort.child.process import ModelSource, run_job
from onnxremat.ort.library import RUNTIME_VERSION
from onnxremat.ort.recipe import OptimizationLevel, Recipe

_PROTOBUF_LIMIT_BYTES = 2**31 - 1
_FIRST_IR_WITHOUT_WEIGHTS_AS_INPUTS = 4


@dataclass(frozen=True)
class Optimized:
    """A model after the runtime's optimizations, to be run with `OptimizationLevel.NONE`.

    `level`, `provider`, `free_dimensions` and `runtime_version` are what it was made with; inputs
    have the sizes of `free_dimensions`. `layout_nodes` counts the nodes of the blocked layout.
    """

    model: ModelProto
    level: OptimizationLevel
    provider: str
    free_dimensions: Mapping[str, int]
    layout_nodes: int
    runtime_version: str = RUNTIME_VERSION

    @property
    def needs_this_processor(self) -> bool:
        """Whether it has nodes that run only on processors with vectors of the same width."""
        return self.layout_nodes > 0


def optimize_offline(
    model: ModelProto,
    base_dir: Path | str,
    level: OptimizationLevel,
    recipe: Recipe,
) -> Optimized:
    """What the runtime makes of `model` at `level`; the work is done in a child process.

    `base_dir` is the folder of external data. Of `recipe` provider, threads and free dimensions
    count. Names of inputs and outputs stay; other names, and inner shapes, need not. A weight that
    is still what an external file of the original holds stays there; all others are in the model
    that is returned. Before IR version 4 weights are inputs too, without being any to the runtime:
    they are dropped from the inputs, and the version becomes 4.

    Raises UsageError for level NONE; ModelError if the runtime refuses the model, or if what is
    to be stored in the model exceeds 2 GB. O(bytes of the weights).
    """
    if level is OptimizationLevel.NONE:
        raise UsageError("an offline optimization needs a level above 'none'")
    made = written_by_runtime(model, base_dir, optimizing(recipe, level))
    tidy(made, model)
    layout = sum(node.domain == LAYOUT_DOMAIN for node in _all_nodes(made.graph))
    return Optimized(made, level, recipe.provider, dict(recipe.free_dimensions), layout)


def optimizing(recipe: Recipe, level: OptimizationLevel) -> Recipe:
    """The settings that a model is optimized with for `recipe`: its provider, threads, blocks and
    free dimensions count."""
    return Recipe(
        provider=recipe.provider,
        threads=recipe.threads,
        optimization=level,
        free_dimensions=recipe.free_dimensions,
        blocks=recipe.blocks,
    )


def written_by_runtime(model: ModelProto, base_dir: Path | str, settings: Recipe) -> ModelProto:
    """The graph that a session with these settings executes, as the runtime writes it down.

    A weight that is still what an external file of `model` holds stays there; all others are in
    the model that is returned. Raises ModelError as `optimize_offline`.
    """
    base = Path(base_dir)
    source = ModelSource(model=model, base_dir=base)
    with run_job(worker_actions.optimize, [source], [settings], {}) as job:
        made = onnx.load(job.folder / job.answer["optimized"], load_external_data=False)
        _restore_weights(made, job.folder, model, base)
    return made


def _restore_weights(made: ModelProto, folder: Path, original: ModelProto, base: Path) -> None:
    """Put every weight of the runtime's file where it belongs."""
    external = [t for graph in all_graphs(made.graph) for t in external_tensors(graph)]
    before = {tensor.name: tensor for tensor in all_external_tensors(original)}
    inside = []
    for tensor in external:
        data = _stored_bytes(tensor, folder)
        twin = before.get(tensor.name)
        if twin is not None and _same(twin, tensor) and _stored_bytes(twin, base) == data:
            tensor.CopyFrom(twin)
        else:
            inside.append((tensor, data))
    nbytes = sum(len(data) for _, data in inside) + made.ByteSize()
    if nbytes > _PROTOBUF_LIMIT_BYTES:
        raise ModelError(
            f"the optimized model has {nbytes / 1e9:.2f} GB that no external file of the original "
            "holds, and a model takes 2 GB: optimize it at a lower level, or not at all"
        )
    for tensor, data in inside:
        del tensor.external_data[:]
        tensor.ClearField("data_location")
        tensor.raw_data = bytes(data)


def _same(a: TensorProto, b: TensorProto) -> bool:
    return a.data_type == b.data_type and list(a.dims) == list(b.dims)


def _stored_bytes(tensor: TensorProto, folder: Path) -> memoryview:
    """The bytes of an external tensor, mapped, not read."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = folder / external_location(tensor)
    start = int(entries.get("offset", 0))
    try:
        with path.open("rb") as file:
            mapped = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except (OSError, ValueError) as error:
        raise ModelError(f"the data of {tensor.name!r} cannot be read: {error}") from error
    length = int(entries["length"]) if "length" in entries else len(mapped) - start
    return mapped[start : start + length]


def tidy(made: ModelProto, original: ModelProto) -> None:
    """Leave out what the runtime adds without need: operator sets that nothing uses, and what an
    old IR version asks for."""
    used = {node.domain for node in _all_nodes(made.graph)} | {"", "ai.onnx"}
    used.update(opset.domain for opset in original.opset_import)
    used.update(opset.domain for function in made.functions for opset in function.opset_import)
    kept = [opset for opset in made.opset_import if opset.domain in used]
    del made.opset_import[:]
    made.opset_import.extend(kept)
    if made.ir_version < _FIRST_IR_WITHOUT_WEIGHTS_AS_INPUTS:
        made.ir_version = _FIRST_IR_WITHOUT_WEIGHTS_AS_INPUTS
        weights = {tensor.name for tensor in made.graph.initializer}
        weights.update(tensor.name for tensor in original.graph.initializer)
        inputs = [value for value in made.graph.input if value.name not in weights]
        del made.graph.input[:]
        made.graph.input.extend(inputs)


def _all_nodes(graph: GraphProto) -> Iterator[onnx.NodeProto]:
    for one in all_graphs(graph):
        yield from one.node
