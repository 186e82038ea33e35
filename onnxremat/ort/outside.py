"""A model with its weights in a file beside it, as a default session uses them.

A default session copies every weight that it reads from a model file, copies what its optimizations
make of them, and packs them again for its kernels: ResNet-50 holds 281 MB for 102 MB of weights.
Nothing of that is left to do where the runtime has optimized the model before, and its weights lie
aligned in an external file: that is mapped, shared between processes, and dropped where memory is
short.

EXTERNAL files are optimized as far as any processor allows; convolutions are laid out in blocks
when they are loaded, into memory. PACKED ones have that layout, and what kernels pack, in the file.
The runtime packs a weight when it loads it, and takes what the file has if that is the same, so
that a file of another processor costs memory and nothing else. Not so for blocks: kernels read them
as wide as this processor has them, whatever the file was written for, and only warn. So a PACKED
file with blocks asks the runtime how wide they are (`_guard`) and fails where they are others.
"""

import shutil
import weakref
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import prod
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import onnx
from onnx import GraphProto, ModelProto, helper, numpy_helper

from onnxremat.core.errors import ModelError
from onnxremat.importer.calls import all_graphs
from onnxremat.importer.external import all_external_tensors
from onnxremat.importer.nodes import LAYOUT_DOMAIN, subgraphs
from onnxremat.ort.blocked_layout import layout_width
from onnxremat.ort.child import actions as worker_actions
from onnxremat.ort.child.process import ModelSource, run_job
from onnxremat.ort.folded import computed_otherwise, folded_otherwise
from onnxremat.ort.optimize import optimizing, tidy
from onnxremat.ort.recipe import OptimizationLevel, Recipe
from onnxremat.ort.record import OptimizedFor
from onnxremat.system.temporary import process_folder
from onnxremat_rewriters.naming import NameSource, node_names, value_names
from onnxremat_rewriters.stock.optimized import sort_as

SUFFIX = ".data"
"""Of the file of weights: what it has more than the name of the model."""

_PACKED_KEY = "prepacked_"
"""Of the entries of an external tensor, what those have that tell where it lies packed."""

DATA_FILE = f"model.onnx{SUFFIX}"
"""Its name until the model has one."""

GUARD = "onnxremat_guard: this file is for processors with blocks of {} channels"
NOT_PORTABLE = "files for this kind of processor (--no-portable) may take less"
"""Said where a file that runs on any processor cannot be what was asked for."""


class Weights(StrEnum):
    """Where the weights of a file lie."""

    EMBEDDED = "embedded"
    """In the file, or where the original has them; the runtime optimizes when it loads."""
    EXTERNAL = "external"
    """In one file beside it, optimized as far as any processor allows."""
    PACKED = "packed"
    """In one file beside it, in the layout and packing of this processor's kernels."""


class _NoGuardError(Exception):
    """A graph has blocks, no weights in them, and is no branch."""


class DataFile:
    """A file of weights in a folder of its own, removed with this object."""

    def __init__(self) -> None:
        self.folder = Path(mkdtemp(dir=process_folder(), prefix="weights-"))
        self.path = self.folder / DATA_FILE
        self._end = weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)

    @property
    def empty(self) -> bool:
        """Whether there are no weights in it."""
        return not self.path.is_file()


@dataclass(frozen=True)
class ModelPair:
    """A model, the file with its weights, and what they were optimized for: without blocks it is
    for any processor."""

    model: ModelProto
    data: DataFile = field(compare=False)
    optimized_for: OptimizedFor

    @property
    def base_dir(self) -> Path:
        """The folder of the model's external data."""
        return self.data.folder

    def source(self) -> ModelSource:
        """The model, to be executed."""
        return ModelSource(model=self.model, base_dir=self.base_dir)

    def guarded(self, model: ModelProto) -> "ModelPair":
        """The pair of a model made of this one's, which then fails where blocks are of another
        width than these. `model` is changed, if it has blocks.

        Raises _NoGuardError if nothing is there that a check could be tied to: no weight in blocks
        (pools alone are, where weights are inputs), and no branch.
        """
        blocked, width = _blocked_graph(model), self.optimized_for.layout_width
        if blocked is not None and width is not None:
            _guard(model, blocked, width)
        return replace(self, model=model)


def with_weights_outside(
    model: ModelProto,
    base_dir: Path | str,
    recipe: Recipe,
    weights: Weights,
    *,
    packs: bool = True,
) -> ModelPair | None:
    """`model` as a default session executes it, with its weights as `weights` says; None for one
    without weights of at least 1 KB. `recipe` has threads and free dimensions. Where no check of
    the width of blocks can be put in, the layout is left to the session that loads the file; with
    `packs` false, the packing, too.

    Raises ModelError if the runtime refuses it. O(bytes of the weights).
    """
    made = optimized_outside(model, base_dir, recipe, weights, packs=packs)
    if made.data.empty:
        return None
    try:
        return made.guarded(made.model)
    except _NoGuardError:
        packed = packs and weights is Weights.PACKED
        return _outside(model, base_dir, recipe, OptimizationLevel.EXTENDED, packed=packed)


def optimized_outside(
    model: ModelProto,
    base_dir: Path | str,
    recipe: Recipe,
    weights: Weights,
    *,
    packs: bool = True,
    blocks: bool = True,
) -> ModelPair:
    """`with_weights_outside`, without the check of the width of blocks: `ModelPair.guarded` puts it
    in, once the model is what it is to be. Without weights that are large enough its file is empty;
    without `blocks` nothing is laid out in them. Raises ModelError, too, where EXTERNAL ones would
    have results in them that other processors compute otherwise (`folded`).
    """
    packed = weights is Weights.PACKED
    if not packed:
        _require_alike(computed_otherwise(model))
    level = OptimizationLevel.ALL if packed and blocks else OptimizationLevel.EXTENDED
    made = _outside(model, base_dir, recipe, level, packed=packed and packs)
    if not packed:
        _require_alike(folded_otherwise(model, made.model))
    return made


def _require_alike(node: str) -> None:
    """Raise ModelError if there is a node that other processors compute otherwise."""
    if node:
        raise ModelError(
            f"{node} is computed when a file is opened, and other processors round it otherwise"
        )


def _outside(
    model: ModelProto,
    base_dir: Path | str,
    recipe: Recipe,
    level: OptimizationLevel,
    *,
    packed: bool,
) -> ModelPair:
    """`optimized_outside`, optimized up to a level."""
    settings = optimizing(recipe, level)
    source, data = ModelSource(model=model, base_dir=Path(base_dir)), DataFile()
    options = {"packed": packed}
    with run_job(worker_actions.optimize, [source], [settings], {}, options=options) as job:
        made = onnx.load(job.folder / job.answer["optimized"], load_external_data=False)
        stored = job.folder / job.answer["weights"]
        if stored.is_file():
            shutil.move(stored, data.path)
    name_data(made, DATA_FILE)
    tidy(made, model)
    sort_as(made.graph, model.graph)
    del made.metadata_props[:]
    made.metadata_props.extend(model.metadata_props)
    width = None if _blocked_graph(made) is None else layout_width()
    return ModelPair(made, data, OptimizedFor(level.value, recipe.provider, width, packed))


def packings(model: ModelProto) -> frozenset[str]:
    """What kernels have packed of the external weights of `model`, each with the runtime's hash of
    its bytes."""
    return frozenset(
        entry.value.partition("|")[0]
        for tensor in all_external_tensors(model)
        for entry in tensor.external_data
        if entry.key.startswith(_PACKED_KEY)
    )


def packed_here(model: ModelProto, base_dir: Path | str, recipe: Recipe) -> frozenset[str]:
    """The same of this processor's kernels for the same weights.

    Raises ModelError if the runtime refuses the model. O(bytes of the weights).
    """
    plain = ModelProto()
    plain.CopyFrom(model)
    for tensor in all_external_tensors(plain):
        kept = [entry for entry in tensor.external_data if not entry.key.startswith(_PACKED_KEY)]
        del tensor.external_data[:]
        tensor.external_data.extend(kept)
    made = with_weights_outside(plain, base_dir, recipe, Weights.PACKED)
    return frozenset() if made is None else packings(made.model)


def data_beside(file: Path) -> Path:
    """The file of weights of a model in a file."""
    return file.with_name(file.name + SUFFIX)


def name_data(model: ModelProto, location: str) -> None:
    """Let all external tensors of `model` lie in one file."""
    for tensor in all_external_tensors(model):
        for entry in tensor.external_data:
            if entry.key == "location":
                entry.value = location


def _blocked_graph(model: ModelProto) -> GraphProto | None:
    """The graph that has blocks."""
    return next((g for g in all_graphs(model.graph) if any(_layout_nodes(g))), None)


def _layout_nodes(graph: GraphProto) -> Iterator[onnx.NodeProto]:
    return (node for node in graph.node if node.domain == LAYOUT_DOMAIN)


def _guard(model: ModelProto, graph: GraphProto, width: int) -> None:
    """Let the model fail where blocks are not `width` channels wide.

    A picture of `width` channels and two columns is put in blocks; how its elements lie then says
    how wide they are. Where they lie otherwise, the shape of a weight, or the condition of the
    branch that has the blocks, is looked up behind the end of a table: that is an error of the
    runtime's, when it loads the model or when it runs it.
    """
    values, nodes = NameSource(value_names(model.graph)), NameSource(node_names(model.graph))
    weight = _smallest_weight(model, graph)
    node, index, dims = weight or (_branching(model), 0, [])
    picture = np.arange(2 * width, dtype=np.float32).reshape(1, width, 1, 2)
    constants: dict[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {
        "picture": picture,
        "flat": np.asarray([-1], np.int64),
        "expected": picture.reshape(width, 2).T.ravel().astype(np.int64),
        "one": np.asarray(1, np.int64),
        "shapes": np.asarray([dims], np.int64),
    }
    name = {key: values.fresh(f"onnxremat_guard_{key}") for key in constants}
    made = "blocks flat_blocks order same count all row shape weight conditions condition"
    for key in made.split():
        name[key] = values.fresh(f"onnxremat_guard_{key}")
    name["given"] = node.input[index]

    def step(op: str, inputs: str, made: str, **attributes: int) -> onnx.NodeProto:
        label = nodes.fresh(GUARD.format(width))
        read = [name[key] for key in inputs.split()]
        return helper.make_node(op, read, [name[made]], label, **attributes)  # type: ignore[arg-type]

    blocks = step("ReorderInput", "picture", "blocks")
    blocks.domain = LAYOUT_DOMAIN
    before = [
        blocks,
        step("Reshape", "blocks flat", "flat_blocks"),
        step("Cast", "flat_blocks", "order", to=onnx.TensorProto.INT64),
        step("Equal", "order expected", "same"),
        step("Cast", "same", "count", to=onnx.TensorProto.INT64),
        step("ReduceMin", "count", "all", keepdims=0),
        step("Sub", "one all", "row"),
    ]
    if weight is None:
        del constants["shapes"]
        before.append(step("Reshape", "given flat", "conditions"))
        before.append(step("Gather", "conditions row", "condition", axis=0))
    else:
        before.append(step("Gather", "shapes row", "shape", axis=0))
        before.append(step("Reshape", "given shape", "weight"))
    node.input[index] = before[-1].output[0]
    there = model.graph if weight is None else graph
    there.initializer.extend(numpy_helper.from_array(a, name[k]) for k, a in constants.items())
    kept, first = list(there.node), len(there.node) - 1 if weight is None else 0
    del there.node[:]
    there.node.extend([*kept[:first], *before, *kept[first:]])


def _branching(model: ModelProto) -> onnx.NodeProto:
    """The last node of a model, if it is an If with the blocks in its branches, as in files of
    `onnxremat_rewriters.stock`. Raises _NoGuardError if it is not."""
    last: onnx.NodeProto = model.graph.node[-1]
    if last.op_type != "If" or not any(any(_layout_nodes(body)) for body in subgraphs(last)):
        raise _NoGuardError
    return last


def _smallest_weight(
    model: ModelProto, graph: GraphProto
) -> tuple[onnx.NodeProto, int, list[int]] | None:
    """A convolution of a graph in blocks, the place of its smallest weight, and its shape; None if
    none has weights there."""
    dims = {t.name: list(t.dims) for one in all_graphs(model.graph) for t in one.initializer}
    read = [
        (prod(dims[name]), number, index)
        for number, node in enumerate(graph.node)
        if node.domain == LAYOUT_DOMAIN
        for index, name in enumerate(node.input)
        if name in dims
    ]
    if not read:
        return None
    _, number, index = min(read)
    node = graph.node[number]
    return node, index, dims[node.input[index]]
