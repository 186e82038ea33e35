"""Where weights live in a wrapped model, so that the session holds each of them once.

A runtime keeps the description of a branch beside the branch it made from it: a weight stored in
the branch is held twice (105 MB of MatMul weights: 323 MB loaded instead of 192). So weights stay
in the outer graph, where the branch captures them; kernels still pack them ahead of time, once.

But the layout optimisation of convolutions (NCHWc) looks for weights in its own graph only. For
those the branch has a Reshape of the captured weight to the shape it has: constant folding makes
a weight of the branch from it when the session is opened and drops the outer one. (94 MB of
convolution weights: 103.7 MB loaded instead of 103.5, all fusions kept.) Should a runtime not
fold it, it is a view, which costs nothing.

Small tensors (sizes, axes, scales, biases) are copied into the branch: fusions look for them there,
and twice nothing is nothing. The outer ones stay as they are, so that nothing is lost.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat.importer.nodes import reads
from onnxremat.importer.values import tensor_type
from onnxremat_rewriters.stock.forms import Forms

SMALL_BYTES = 4096
"""Up to this size a tensor is copied into the branch."""

_TEXT_BYTES = 16

_NEEDS_LOCAL = frozenset({"Conv", "ConvTranspose", "FusedConv", "BatchNormalization"})
"""Ops whose fusions look for weights in their own graph only."""


@dataclass(frozen=True)
class LocalWeights:
    """What a branch gets in front of its nodes, and what is read instead of what."""

    nodes: tuple[onnx.NodeProto, ...]
    names: Mapping[str, str]


def localized(
    stored: Iterable[onnx.TensorProto], nodes: Collection[onnx.NodeProto], forms: Forms
) -> LocalWeights:
    """Local forms of the `stored` tensors that `nodes`, those of a branch, read.

    The data of a tensor that is not small is not looked at. O(tensors + reads).
    """
    read = {name for node in nodes for name in reads(node)}
    convolved = {
        name for node in nodes if node.op_type in _NEEDS_LOCAL for name in node.input if name
    }
    added: list[onnx.NodeProto] = []
    names: dict[str, str] = {}
    for tensor in stored:
        if tensor.name not in read:
            continue
        if _is_small(tensor):
            names[tensor.name] = forms.fresh(f"small__{tensor.name}")
            added.append(forms.node("Constant", [], names[tensor.name], value=tensor))
        elif tensor.name in convolved:
            sizes = forms.fresh(f"sizes__{tensor.name}")
            name = forms.fresh(f"weight__{tensor.name}")
            shape = numpy_helper.from_array(np.array(tensor.dims, np.int64))
            added.append(forms.node("Constant", [], sizes, value=shape))
            added.append(forms.node("Reshape", [tensor.name, sizes], name))
            names[tensor.name] = name
    return LocalWeights(tuple(added), names)


def big_constants(nodes: Collection[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Constant nodes that hold a weight: they belong in the outer graph."""
    for node in nodes:
        if node.op_type == "Constant" and any(
            a.name == "value" and not _is_small(a.t) for a in node.attribute
        ):
            yield node


def _is_small(tensor: onnx.TensorProto) -> bool:
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        return False
    kind = tensor_type(tensor)
    if not kind.has_size:  # text
        return prod(kind.shape) * _TEXT_BYTES <= SMALL_BYTES
    return kind.nbytes <= SMALL_BYTES
