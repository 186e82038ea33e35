"""Data of tensors in other files: where tensors can stand in a model, and which files are fit.

A tensor stands as an initializer (dense, or as the two parts of a sparse one), in an attribute of a
node, in a body of one, in a model-local function, or in the graphs of a training step. Runtimes
read some of these and not others; whoever takes a model elsewhere has to take all of them along.

A location is a path relative to the folder of the model. One that leads out of it, by its parts or
through a link, is refused, whether anything reads the tensor or not: no reader follows it (ONNX
Runtime refuses it, too), and nothing may be copied to where it points.
"""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, SparseTensorProto, TensorProto

from onnxremat.core.errors import ModelError

_SHOWN = 80


def external_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    """Initializers of a graph (not of the bodies in it) whose data is in another file."""
    for tensor in graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            yield tensor


def all_external_tensors(model: ModelProto) -> Iterator[TensorProto]:
    """Every tensor of a model whose data is in another file, wherever it stands. O(model)."""
    graphs = [model.graph]
    for step in model.training_info:
        graphs += [step.initialization, step.algorithm]
    for graph in graphs:
        yield from _in_graph(graph)
    for function in model.functions:
        yield from _in_nodes(function.node)


def external_location(tensor: TensorProto) -> str:
    """The file, relative to the model's folder, that holds an external tensor."""
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def data_files(model: ModelProto) -> tuple[str, ...]:
    """The files that hold data of a model, relative to its folder, each one once."""
    return tuple(sorted({external_location(tensor) for tensor in all_external_tensors(model)}))


def with_data(tensor: TensorProto, base_dir: Path, nbytes: int) -> TensorProto:
    """A copy of an external tensor of `nbytes` that holds its data itself.

    Raises OSError or ValueError if that cannot be read. (onnx's own function of the kind takes
    folders only whose names are UTF-8.)
    """
    entries = {entry.key: entry.value for entry in tensor.external_data}
    length = int(entries.get("length", nbytes))
    if length != nbytes:
        raise ValueError(f"it has {length} bytes in its file, and takes {nbytes}")
    with open(base_dir / external_location(tensor), "rb") as file:
        file.seek(int(entries.get("offset", 0)))
        data = file.read(nbytes)
    if len(data) != nbytes:
        raise ValueError(f"its file has only {len(data)} of its {nbytes} bytes")
    return TensorProto(
        name=tensor.name, dims=tensor.dims, data_type=tensor.data_type, raw_data=data
    )


def check_external_files(model: ModelProto, base_dir: Path) -> None:
    """Raise ModelError if data of the model is not in a file in `base_dir` or below."""
    checked = set()
    for tensor in all_external_tensors(model):
        location = external_location(tensor)
        if location not in checked:
            checked.add(location)
            _check_file(tensor.name, location, base_dir)


def is_inside(path: Path, folder: Path) -> bool:
    """Whether a path, links followed, is in a folder or below; nothing need be there yet."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def _check_file(name: str, location: str, base_dir: Path) -> None:
    shown = repr(location if len(location) <= _SHOWN else location[: _SHOWN - 3] + "...")
    try:
        relative = not Path(location).is_absolute() and not Path(location).drive
        inside = relative and is_inside(base_dir / location, base_dir)
        there = inside and (base_dir / location).is_file()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ModelError(f"the data of {name!r} cannot be at {shown}: {reason}") from None
    if not inside:
        raise ModelError(
            f"the data of {name!r} is at {shown}, outside the folder of the model: it has to be "
            "there or below, links followed"
        )
    if not there:
        raise ModelError(f"the data of {name!r} is missing: no file {shown} in {base_dir}")


def _in_graph(graph: GraphProto) -> Iterator[TensorProto]:
    yield from external_tensors(graph)
    yield from _in_sparse(graph.sparse_initializer)
    yield from _in_nodes(graph.node)


def _in_sparse(tensors: Iterable[SparseTensorProto]) -> Iterator[TensorProto]:
    for sparse in tensors:
        for part in (sparse.values, sparse.indices):
            if part.data_location == TensorProto.EXTERNAL:
                yield part


def _in_nodes(nodes: Iterable[NodeProto]) -> Iterator[TensorProto]:
    for node in nodes:
        for attribute in node.attribute:
            yield from _in_attribute(attribute)


def _in_attribute(attribute: AttributeProto) -> Iterator[TensorProto]:
    single = [attribute.t] if attribute.HasField("t") else []
    for tensor in (*single, *attribute.tensors):
        if tensor.data_location == TensorProto.EXTERNAL:
            yield tensor
    sparse = [attribute.sparse_tensor] if attribute.HasField("sparse_tensor") else []
    yield from _in_sparse((*sparse, *attribute.sparse_tensors))
    body = [attribute.g] if attribute.HasField("g") else []
    for graph in (*body, *attribute.graphs):
        yield from _in_graph(graph)
