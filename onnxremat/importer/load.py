"""Reading a model: what is on disk, checked, in topological order, weights left where they are.

External data is never read here: files over 2 GB work, and a rewriter that keeps the tensors'
`external_data` entries keeps the weights. onnx.checker is not asked: it refuses files that
runtimes run (fused ops in the standard domain), and the runtime has the last word anyway. What is
checked is what the importer relies on: names, order, numbers of inputs and outputs.
"""

import hashlib
import os
import stat
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import onnx
from google.protobuf.message import DecodeError, EncodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto
from onnx.defs import OpSchema

from onnxremat.core.errors import ModelError, UsageError
from onnxremat.importer.external import check_external_files, data_files
from onnxremat.importer.functions import with_functions_expanded
from onnxremat.importer.nodes import DEFAULT_DOMAINS, available_names, local_names, schema_domain
from onnxremat.importer.sorting import describe, sorted_nodes
from onnxremat.importer.wellformed import check_references, check_well_formed

LARGEST_FILE_BYTES = 2**31 - 1
"""What protobuf reads; larger models have their weights in other files."""

GivenModel = ModelProto | str | os.PathLike[str]
"""A model as callers have it: in memory, or the name of its file."""

_SHOWN = 100


@dataclass(frozen=True)
class LoadedModel:
    """A checked model whose nodes are in topological order. Treat `model` as read-only.

    `path` is None for a model that never was a file. Locations of external data are relative to
    `base_dir`. `sha256` is that of the model file (external data not included). `resorted`: the
    nodes were not in topological order in the file. `inlined`: the file had model-local functions,
    which were expanded as runtimes do. Node indices everywhere refer to `model`, not to the file.
    `data_files` hold data of the file's tensors, those of functions that nothing calls included.
    `given` is what a caller gave instead of a file.
    """

    model: ModelProto
    path: Path | None
    base_dir: Path
    sha256: str
    resorted: bool = False
    inlined: bool = False
    data_files: tuple[str, ...] = ()
    given: ModelProto | None = None

    @property
    def label(self) -> str:
        """What messages call the model."""
        return "the model" if self.path is None else str(self.path)

    @property
    def opset(self) -> int:
        """The version of the standard operator set, 0 if the model does not import it."""
        return next((o.version for o in self.model.opset_import if o.domain in DEFAULT_DOMAINS), 0)


def load(path: str | os.PathLike[str]) -> LoadedModel:
    """Read and check an ONNX file.

    Raises UsageError if there is no readable file at `path`, ModelError (one line) if it is not a
    usable model: not ONNX, truncated, names made twice, a cycle, reads of values nobody makes.
    """
    path = Path(path)
    content = read_content(path)
    model = parsed(content, path)
    digest = hashlib.sha256(content).hexdigest()
    del content
    try:
        return _checked(model, path, path.parent, digest)
    except ModelError as error:
        raise ModelError(f"{path}: {error}") from None


def read_content(path: Path) -> bytes:
    """The bytes of a model file. Raises UsageError if there is no readable regular file (a pipe or
    a device may never end), ModelError if it is empty or larger than any model."""
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise UsageError(f"is a directory, not a model file: {path}")
        if not stat.S_ISREG(status.st_mode):
            raise UsageError(f"is no regular file: {path}")
        if status.st_size > LARGEST_FILE_BYTES:
            raise ModelError(
                f"{path}: the file has {status.st_size / 1e9:.1f} GB, and a model takes 2 GB: "
                "larger ones have their weights in other files"
            )
        content = path.read_bytes()
    except FileNotFoundError:
        raise UsageError(f"no such file: {path}") from None
    except (OSError, ValueError) as error:  # ValueError: a null character
        reason = getattr(error, "strerror", None) or error
        raise UsageError(f"cannot read {path}: {reason}") from None
    if not content:
        raise ModelError(f"{path}: the file is empty")
    return content


def parsed(content: bytes, path: Path) -> ModelProto:
    """The model in the bytes of a file. Raises ModelError if there is none."""
    model = ModelProto()
    try:
        model.ParseFromString(content)
    except (DecodeError, UnicodeDecodeError):
        raise ModelError(f"{path}: not an ONNX model, or truncated") from None
    return model


def from_proto(model: ModelProto, base_dir: str | os.PathLike[str] = ".") -> LoadedModel:
    """Check a model that is in memory; `model` itself is never changed, only copied if needed.

    `base_dir` is where the locations of external data start. Raises ModelError as `load` does.
    """
    return replace(_checked(model, None, Path(base_dir), _digest(model)), given=model)


def load_given(model: GivenModel, base_dir: str | os.PathLike[str] | None = None) -> LoadedModel:
    """`load` for the name of a file, `from_proto` for a model in memory.

    `base_dir` is the folder of the files that hold weights of a model in memory; where it has such
    weights, it has to be named. Raises UsageError if it is not, or is named for a file, which has
    them where it lies; for the rest as `load` does.
    """
    if not isinstance(model, ModelProto):
        if base_dir is not None:
            raise UsageError("base_dir is for a model in memory: a file has its weights beside it")
        return load(model)
    if base_dir is None:
        outside = data_files(model)
        if outside:
            raise UsageError(
                f"the model has weights in other files ({outside[0]!r}): name their folder as "
                "base_dir, or load them with onnx.load"
            )
        return from_proto(model)
    if not Path(base_dir).is_dir():
        raise UsageError(f"base_dir: there is no folder {base_dir}")
    return from_proto(model, base_dir)


def _digest(model: ModelProto) -> str:
    """The SHA-256 of a model in memory, in a form that does not change from one run to the next."""
    try:
        content = model.SerializeToString(deterministic=True)
    except (EncodeError, ValueError):
        content = None
    if content is None or len(content) > LARGEST_FILE_BYTES:
        raise ModelError(
            "the model has more than 2 GB in memory, which no file of a model takes: write it with "
            "onnx.save(..., save_as_external_data=True), and give the name of that file"
        )
    return hashlib.sha256(content).hexdigest()


def given_inputs(graph: GraphProto) -> tuple[onnx.ValueInfoProto, ...]:
    """The inputs the caller feeds: those that are not initializers (files of IR 3 list both)."""
    stored = {tensor.name for tensor in graph.initializer}
    stored.update(tensor.values.name for tensor in graph.sparse_initializer)
    return tuple(value for value in graph.input if value.name not in stored)


def _checked(model: ModelProto, path: Path | None, base_dir: Path, digest: str) -> LoadedModel:
    _check_header(model)
    check_well_formed(model)
    files = data_files(model)
    inlined = len(model.functions) > 0
    if inlined:
        model = with_functions_expanded(model)
    check_references(model.graph)
    _check_names(model.graph)
    _check_nodes(model)
    check_external_files(model, base_dir)
    order = sorted_nodes(model.graph.node, available_names(model.graph))
    resorted = order != tuple(range(len(order)))
    if resorted:
        model = _with_node_order(model, order)
    _check_outputs(model.graph)
    return LoadedModel(model, path, base_dir, digest, resorted, inlined, files)


def _check_header(model: ModelProto) -> None:
    if not model.HasField("graph"):
        raise ModelError("not an ONNX model: it has no graph")
    if not model.graph.node and not model.graph.output:
        raise ModelError("not an ONNX model: its graph has neither nodes nor outputs")
    if not model.opset_import:
        raise ModelError("not a complete ONNX model: it names no operator set")


def _check_names(graph: GraphProto) -> None:
    inputs = [value.name for value in graph.input]
    stored = [tensor.name for tensor in graph.initializer]
    stored += [tensor.values.name for tensor in graph.sparse_initializer]
    for what, names in (("graph input", inputs), ("initializer", stored)):
        seen = set()
        for name in names:
            if not name:
                raise ModelError(f"{what} without a name")
            if name in seen:
                raise ModelError(f"two {what}s are named {name!r}")
            seen.add(name)


def _check_outputs(graph: GraphProto) -> None:
    made = local_names(graph)
    for value in graph.output:
        if value.name not in made:
            raise ModelError(f"graph output {value.name!r} is made by nothing")


def _check_nodes(model: ModelProto) -> None:
    """Numbers of inputs and outputs of standard ops, and their attributes; ops that this onnx does
    not know are left alone."""
    versions = {opset.domain: opset.version for opset in model.opset_import}
    schemas: dict[tuple[str, str], OpSchema | None] = {}
    for index, node in enumerate(model.graph.node):
        if not node.op_type:
            raise ModelError(f"node {index} has no op type")
        if not node.output:
            raise ModelError(f"{describe(node, index)} makes no value")
        key = (node.domain, node.op_type)
        if key not in schemas:
            schemas[key] = _schema(node, versions)
        schema = schemas[key]
        if schema is not None:
            _check_arity(node, index, schema)
            _check_attributes(node, index, schema)


def _schema(node: NodeProto, versions: dict[str, int]) -> OpSchema | None:
    domain = schema_domain(node.domain)
    version = versions.get(domain, versions.get(node.domain, 0))
    if not version or not onnx.defs.has(node.op_type, version, domain):
        return None
    return onnx.defs.get_schema(node.op_type, version, domain)


def _check_arity(node: NodeProto, index: int, schema: OpSchema) -> None:
    for what, count, low, high in (
        ("inputs", len(node.input), schema.min_input, schema.max_input),
        ("outputs", len(node.output), schema.min_output, schema.max_output),
    ):
        if not low <= count <= high:
            raise ModelError(
                f"{describe(node, index)} has {count} {what}; it takes {low} to {high}"
            )


def _check_attributes(node: NodeProto, index: int, schema: OpSchema) -> None:
    """Each attribute of the op is of its type, and those it needs are there."""
    known = schema.attributes
    for attribute in node.attribute:
        if attribute.name not in known:
            continue
        wanted = AttributeProto.AttributeType.Name(cast(int, known[attribute.name].type))
        found = AttributeProto.AttributeType.Name(attribute.type)
        if found != wanted:
            raise ModelError(
                f"attribute {attribute.name!r} of {describe(node, index)} is of type {found}, not "
                f"{wanted}"
            )
    given = {attribute.name for attribute in node.attribute}
    for name, definition in known.items():
        if definition.required and name not in given:
            raise ModelError(f"{describe(node, index)} lacks its attribute {name!r}")


def _with_node_order(model: ModelProto, order: tuple[int, ...]) -> ModelProto:
    copy = ModelProto()
    copy.CopyFrom(model)
    del copy.graph.node[:]
    copy.graph.node.extend(model.graph.node[index] for index in order)
    return copy
