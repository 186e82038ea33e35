"""What kernels take beside inputs and outputs, piece by piece, as an allocator sees it.

A profile has the sum of a node's workspace. Where it matters in which pieces it is taken (an arena
cuts them from different chunks), they follow from the operator and the shapes: seen on ONNX Runtime
1.31.1 by counting malloc around single nodes. One piece is assumed for operators not named here.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import onnx

from onnxremat.importer.nodes import is_constant
from onnxremat.importer.values import ValueType
from onnxremat.ort.measuring.profile import NodeProfile, RunProfile
from onnxremat.ort.measuring.workspace import known_workspace_bytes

OUTPUT_LAST = frozenset({"Einsum", "Max", "Mean", "Min", "Sum", "Where"})
"""Op types whose kernels take workspace before their output. The bytes are the same, but not where
they lie: with one region it made 9% for one training graph."""

_HALVED = ("LRN", "LogSoftmax", "Softmax", "Where")
_GATES = {"DynamicQuantizeLSTM": 4, "GRU": 3, "LSTM": 4}
_RECURRENT_RANK = 4
_STRING_BYTES = 32
_FLOAT_BYTES = 4


@dataclass(frozen=True)
class WorkspacePieces:
    """What a kernel takes while it runs: pieces from the session's allocator, and bytes that it
    takes from malloc whatever the session is told."""

    pieces_bytes: tuple[int, ...]
    other_bytes: int

    @property
    def nbytes(self) -> int:
        """All of it."""
        return sum(self.pieces_bytes) + self.other_bytes


def pieces_of(
    node: onnx.NodeProto, profile: NodeProfile | None, types: Mapping[str, ValueType]
) -> WorkspacePieces:
    """The workspace of a node; none if there is no profile of it. `types` are of values by name."""
    total = profile.workspace_bytes if profile is not None else 0
    read = [types.get(name) for name in node.input if name]
    known = [kind for kind in read if kind is not None]
    other = known_workspace_bytes(node.op_type, known) if len(known) == len(read) else 0
    other = min(other, total)
    made = types.get(node.output[0]) if node.output else None
    return WorkspacePieces(tuple(_pieces(node.op_type, total - other, known, made)), other)


def _pieces(
    op_type: str, total: int, read: Sequence[ValueType], made: ValueType | None
) -> Iterator[int]:
    """Pieces that add up to `total`.

    Where, inner Softmax and LRN: two of the same size. Einsum: both operands, reordered, and two
    more. Recurrent kernels: see `_recurrent`.
    """
    large: list[int] = []
    if op_type == "Einsum":
        large = [value_bytes(kind) for kind in read]
    elif op_type in _GATES and read and made is not None and len(made.shape) == _RECURRENT_RANK:
        large = _recurrent(op_type, read[0], made)
    for piece in large:
        taken = min(piece, total)
        yield taken
        total -= taken
    if large or op_type in _HALVED:
        yield total // 2
        total -= total // 2
    yield total


def _recurrent(op_type: str, read: ValueType, made: ValueType) -> list[int]:
    """The gates of all steps for each direction; input and output reversed, if there are two; the
    input in eight bits for each direction, if it is quantized."""
    directions = made.shape[1]
    one_way = made.elements // max(directions, 1) * _FLOAT_BYTES
    pieces = [one_way * _GATES[op_type]] * directions
    if directions == 2:
        pieces += [read.elements * _FLOAT_BYTES, one_way]
    if op_type == "DynamicQuantizeLSTM":
        pieces += [read.elements] * directions
    return pieces


def packed_weights(model: onnx.ModelProto) -> Iterator[int]:
    """Bytes that ConvTranspose keeps in the arena from the loading of a session on: constant
    filters, transposed. (Other kernels pack weights outside of it.)"""
    given = {value.name for value in model.graph.input}
    weights = {w.name: w.dims for w in model.graph.initializer if w.name not in given}
    for node in model.graph.node:
        if is_constant(node) and node.attribute[0].name == "value":
            weights[node.output[0]] = node.attribute[0].t.dims
    for node in model.graph.node:
        if node.op_type == "ConvTranspose" and node.input[1] in weights:
            dims = weights[node.input[1]]
            if len(dims) == 4 and dims[0] > 1 and dims[1] > 1:
                yield _FLOAT_BYTES * prod(dims)


def made_types(model: onnx.ModelProto, profile: RunProfile) -> dict[str, ValueType]:
    """The types of weights, and of values that the profile tells of, by name."""
    types = {
        weight.name: ValueType(_dtype(weight.data_type), tuple(weight.dims))
        for weight in model.graph.initializer
    }
    for v, node in profile.nodes.items():
        for name, made in zip(model.graph.node[v].output, node.outputs, strict=True):
            if name and made is not None:
                types[name] = made
    return types


def _dtype(elem_type: int) -> str:
    return str(onnx.TensorProto.DataType.Name(elem_type)).lower()


def value_bytes(kind: ValueType | None) -> int:
    """Bytes of a buffer; what is no tensor has none."""
    if kind is None:
        return 0
    sized = ValueType(kind.dtype, kind.shape)
    return sized.nbytes if sized.has_size else _STRING_BYTES * sized.elements
