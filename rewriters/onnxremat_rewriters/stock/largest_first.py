"""Large weights of convolutions are laid out first, the largest of all at the beginning.

Who opens a portable file lays the weights of its convolutions out in blocks, one after the other in
the order in which they run. For each there are two buffers of its size for a moment; a network
whose weights grow from layer to layer finds no hole large enough among those that they leave, and a
C library that is left at its defaults keeps them (ResNet-50, 94 MB of weights: 165 MB loaded). From
the largest down all fit into the holes of the first (120 MB).

The runtime lays a weight out once, where a convolution reads it first. So the branch begins with a
convolution of each large weight, over a picture of which there are none: it computes nothing. They
stand behind each other, and the model's own behind them all, by empty vectors (see `forms`).
"""

from collections.abc import Iterator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxremat.importer.external import external_tensors
from onnxremat.importer.nodes import reads
from onnxremat.importer.values import tensor_type
from onnxremat_rewriters.naming import NameSource, node_names, value_names
from onnxremat_rewriters.stock.forms import PREFIX, THROUGH, Forms
from onnxremat_rewriters.stock.opset import standard_opset

LARGE_BYTES = 1 << 20
"""From this size on a weight is laid out early: holes of smaller ones are no matter."""
_CONVOLUTIONS = frozenset({"Conv", "FusedConv"})
_FUSED = frozenset({"activation", "activation_params"})
_PARTS = ("none_shape", "none", "laid_out")


def largest_first(model: onnx.ModelProto, branch: onnx.GraphProto) -> bool:
    """Let the runtime lay out the external weights of a `branch` of the model from the largest
    down, in place; whether it was done. Not where nothing is large, or where the shape of what the
    first convolutions read is not stated: others would no longer know theirs. O(nodes + reads)."""
    large = {
        tensor.name: tensor
        for tensor in external_tensors(branch)
        if tensor_type(tensor).nbytes >= LARGE_BYTES
    }
    readers: dict[str, onnx.NodeProto] = {}
    for node in branch.node:
        if node.op_type in _CONVOLUTIONS and node.input[1] in large:
            readers.setdefault(node.input[1], node)
    stated = {value.name: value for value in (*model.graph.input, *branch.value_info)}
    first = list(_without_convolution_before(branch))
    known = {name for name, value in stated.items() if value.type.tensor_type.HasField("shape")}
    known |= _hidden(branch)
    if not readers or any(node.input[0] not in known for node in first):
        return False
    values, labels = NameSource(value_names(model.graph)), NameSource(node_names(model.graph))
    forms = Forms(standard_opset(model), values, labels)
    sequence = next(
        name for node in model.graph.node for name in node.output
        if node.op_type == "SequenceEmpty" and name.startswith(PREFIX)
    )  # fmt: skip
    empty, added = forms.token(sequence), list[onnx.NodeProto]()
    for name in sorted(readers, key=lambda name: -tensor_type(large[name]).nbytes):
        added += _over_nothing(readers[name], large[name], empty, forms)
        empty = added[-1].output[0]
    nodes = [*forms.prelude, *added]
    behind = {id(node) for node in first}
    for node in branch.node:
        if id(node) in behind:
            nodes += forms.through(node.input[0], empty, "behind")
            if node.input[0] in stated:
                kind = stated[node.input[0]].type
                branch.value_info.append(onnx.ValueInfoProto(name=nodes[-1].output[0], type=kind))
            node.input[0] = nodes[-1].output[0]
        nodes.append(node)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in nodes]
    del branch.node[:]
    branch.node.extend(nodes)
    return True


def _over_nothing(
    node: onnx.NodeProto, weight: TensorProto, empty: str, forms: Forms
) -> Iterator[onnx.NodeProto]:
    """A convolution like `node`, behind an `empty` vector, of no pictures that are as large as its
    kernel; the last node makes an empty vector behind it."""
    texts = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    spread = texts.get("dilations", [1] * (len(weight.dims) - 2))
    sizes = [(k - 1) * d + 1 for k, d in zip(weight.dims[2:], spread, strict=True)]
    shape = np.array([0, weight.dims[1] * texts.get("group", 1), *sizes], np.int64)
    stored, picture, made = (forms.fresh(f"{name}__{weight.name}") for name in _PARTS)
    yield forms.node("Constant", [], stored, value=numpy_helper.from_array(shape))
    hidden = forms.hidden_vector(stored, empty)
    yield hidden
    zero = numpy_helper.from_array(np.zeros(1, helper.tensor_dtype_to_np_dtype(weight.data_type)))
    yield forms.node("ConstantOfShape", [hidden.output[0]], picture, value=zero)
    convolution = forms.node("Conv", [picture, weight.name], made)
    convolution.attribute.extend(a for a in node.attribute if a.name not in _FUSED)
    yield convolution
    yield from forms.empty_after(made, f"after__{weight.name}")


def _without_convolution_before(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The convolutions that read nothing that another one made."""
    behind = set[str]()
    for node in graph.node:
        convolves = node.op_type in _CONVOLUTIONS
        follows = not behind.isdisjoint(reads(node))
        if convolves and not follows:
            yield node
        if convolves or follows:
            behind.update(node.output)


def _hidden(graph: onnx.GraphProto) -> set[str]:
    """The values whose shapes the runtime does not know anyway: read through an empty vector, and
    what is made of such."""
    hidden = set[str]()
    for node in graph.node:
        through = node.op_type in THROUGH and node.output[0].startswith(PREFIX)
        if through or (node.input and node.input[0] in hidden):
            hidden.update(node.output)
    return hidden
