"""Where weights live in a wrapped model, so that the session holds each of them once.

A runtime keeps the description of a branch beside the branch it made from it: a weight stored in
the branch is held twice (105 MB of MatMul weights: 323 MB loaded instead of 192). So weights stay
in the outer graph, where the branch captures them; kernels still pack them ahead of time, once.

But the layout optimisation of convolutions (NCHWc) looks for weights in its own graph only. For
those the branch has a Reshape of the captured weight to the shape it has: constant folding makes
a weight of the branch from it when the session is opened and drops the outer one. (94 MB of
convolution weights: 103.7 MB loaded instead of 103.5, all fusions kept.) Should a runtime not
fold it, it is a view, which costs nothing.

Where a file of weights is made of such a branch, the weight lies in it, too, and so it would in no
memory but the file's: but where there are no files (WebAssembly), a branch with such a weight is
refused before anybody looks for it. So it comes from a local function (`in_function`) that the
runtime inlines into the branch when it opens the file: what a function holds is not looked at.

Small tensors (sizes, axes, scales, biases) are copied into the branch: fusions look for them there,
and twice nothing is nothing. The outer ones stay as they are, so that nothing is lost.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import prod

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat.importer.nodes import reads
from onnxremat.importer.values import tensor_type
from onnxremat_rewriters.naming import NameSource, node_names
from onnxremat_rewriters.stock.forms import Forms
from onnxremat_rewriters.stock.opset import standard_opset

SMALL_BYTES = 4096
"""Up to this size a tensor is copied into the branch."""

_TEXT_BYTES = 16
DOMAIN, FUNCTION = "onnxremat", "weights"
"""Of the local function that holds the weights of a branch."""
_FIRST_IR_WITH_FUNCTIONS = 8

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


def in_function(model: onnx.ModelProto, branch: onnx.GraphProto) -> None:
    """Let weights of a `branch` of the model that lie in a file come from a local function of the
    model's, in place. Where the runtime wrote the model of an old one, the branch still has weights
    for inputs; a branch has none. The model is of IR version 4 at least. O(tensors)."""
    outside = [t for t in branch.initializer if t.data_location == onnx.TensorProto.EXTERNAL]
    if not outside:
        return
    model.ir_version = max(model.ir_version, _FIRST_IR_WITH_FUNCTIONS)
    kept = [t for t in branch.initializer if t.data_location != onnx.TensorProto.EXTERNAL]
    nodes = [helper.make_node("Constant", [], [t.name], t.name, value=t) for t in outside]
    made = [tensor.name for tensor in outside]
    opset = helper.make_opsetid("", standard_opset(model))
    taken = NameSource({function.name for function in model.functions})
    name = taken.fresh(FUNCTION)
    model.functions.append(helper.make_function(DOMAIN, name, [], made, nodes, [opset]))
    if DOMAIN not in {one.domain for one in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    label = NameSource(node_names(model.graph)).fresh(FUNCTION)
    before = [helper.make_node(name, [], made, label, domain=DOMAIN), *branch.node]
    before = [onnx.NodeProto.FromString(node.SerializeToString()) for node in before]
    del branch.input[:], branch.initializer[:], branch.node[:]
    branch.initializer.extend(kept)
    branch.node.extend(before)


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
