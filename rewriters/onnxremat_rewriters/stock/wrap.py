"""Wrap: everything inside a branch that captures a sequence.

From the second run on a session lays out all buffers of a graph in one block, beside the arena
that the first run left: steady memory is then up to twice the first run's. It does so only where
all values that come into the graph are tensors. A branch of an `If` gets what it captures, so one
that also captures a sequence is left alone. The sequence is empty, and the condition is that its
length is 0: the other branch, which makes empty tensors, never runs.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from onnxremat.core.errors import ModelError
from onnxremat_rewriters.naming import rename_reads
from onnxremat_rewriters.stock.checked_sizes import Sizes, sizes_checked
from onnxremat_rewriters.stock.forms import Forms
from onnxremat_rewriters.stock.weights import big_constants, localized


def wrapped(
    model: onnx.ModelProto,
    nodes: Sequence[onnx.NodeProto],
    sequence: onnx.NodeProto,
    forms: Forms,
    types: Mapping[str, onnx.TypeProto],
    *,
    local_weights: Collection[str],
    stated: bool,
    sizes: Sizes,
) -> onnx.GraphProto:
    """The graph of `model` with `nodes` (copies; changed here) in a branch.

    Outputs that are inputs or initializers stay outside. `types` has those of the other outputs
    at least. `local_weights` are stored constants that the branch gets in a form of its own.
    `stated`: whether the branch states what the model states of inner values. `sizes`: the shapes
    of inputs at others of which running is an error.
    Raises ModelError if an output is of a type that no branch can make.
    """
    made = {name for node in nodes for name in node.output if name}
    outputs = [value.name for value in model.graph.output if value.name in made]
    if not outputs:
        raise ModelError("no output of the model is made by a node")
    inner = {name: forms.fresh(f"inner__{name}") for name in outputs}
    outer = [n for n in big_constants(nodes) if n.output[0] not in inner]
    moved = {id(node) for node in outer}
    inside = [node for node in nodes if id(node) not in moved]
    local = localized(_stored(model.graph, outer, local_weights), inside, forms)
    for node in inside:
        rename_reads(node, {**inner, **local.names})
        for i, name in enumerate(node.output):
            node.output[i] = inner.get(name, name)
    inside[:0] = local.nodes
    if not any(sequence.output[0] in node.input for node in inside):
        # A reader is what makes the branch capture the sequence.
        reader = forms.node("SequenceLength", [sequence.output[0]], forms.fresh("captured"))
        inside.append(reader)
    declared = [_declared(inner[name], name, types) for name in outputs]
    written = {name for node in inside for name in node.output} - {*inner.values()}
    known = [v for v in model.graph.value_info if stated and v.name in written]
    planned = helper.make_graph(inside, "planned", [], declared, value_info=known)
    never = _other_branch(outputs, types, forms)
    length, zero, empty = forms.fresh("outer_length"), forms.fresh("zero"), forms.fresh("is_empty")
    branch = forms.node(
        "If", [empty], forms.fresh("branch"), then_branch=planned, else_branch=never
    )
    del branch.output[:]
    branch.output.extend(outputs)
    condition = [sequence, forms.node("SequenceLength", [sequence.output[0]], length)]
    if sizes:
        condition += sizes_checked(sizes, _ranked(model.graph), forms)
        both = [length, condition[-1].output[0]]
        length = forms.fresh("checked_length")
        condition.append(forms.node("Add", both, length))
    nothing = numpy_helper.from_array(np.array(0, np.int64))
    condition += [
        forms.node("Constant", [], zero, value=nothing),
        forms.node("Equal", [length, zero], empty),
    ]
    graph = onnx.GraphProto()
    graph.CopyFrom(model.graph)
    del graph.node[:], graph.value_info[:]
    graph.node.extend([*outer, *condition, branch])
    return graph


def _ranked(graph: onnx.GraphProto) -> frozenset[str]:
    """Inputs that declare how many dimensions they have."""
    return frozenset(v.name for v in graph.input if v.type.tensor_type.HasField("shape"))


def _stored(
    graph: onnx.GraphProto, constants: Sequence[onnx.NodeProto], names: Collection[str]
) -> Iterator[onnx.TensorProto]:
    """Initializers in `names`, and the tensors of Constant nodes without their data."""
    yield from (tensor for tensor in graph.initializer if tensor.name in names)
    for node in constants:
        value = next(a.t for a in node.attribute if a.name == "value")
        if node.output[0] in names:
            yield TensorProto(name=node.output[0], dims=value.dims, data_type=value.data_type)


def _declared(name: str, output: str, types: Mapping[str, onnx.TypeProto]) -> onnx.ValueInfoProto:
    """A branch's output of the type of the graph's `output`, of no shape."""
    kind = types.get(output)
    if kind is None or not (kind.tensor_type.elem_type or kind.HasField("sequence_type")):
        raise ModelError(
            f"the type of output {output!r} is neither declared nor can it be inferred"
        )
    value = onnx.ValueInfoProto(name=name)
    value.type.CopyFrom(kind)
    if kind.HasField("tensor_type"):
        value.type.tensor_type.ClearField("shape")
    return value


def _other_branch(
    outputs: Sequence[str], types: Mapping[str, onnx.TypeProto], forms: Forms
) -> onnx.GraphProto:
    """Empty values of the outputs' types."""
    nodes, declared = [], []
    for output in outputs:
        name = forms.fresh(f"never__{output}")
        kind = types[output]
        if kind.HasField("tensor_type"):
            # No data field at all is right for every element type, text and four bits included.
            empty = TensorProto(dims=[0], data_type=kind.tensor_type.elem_type)
            nodes.append(forms.node("Constant", [], name, value=empty))
        elif kind.sequence_type.elem_type.HasField("tensor_type"):
            element = kind.sequence_type.elem_type.tensor_type.elem_type
            nodes.append(forms.node("SequenceEmpty", [], name, dtype=element))
        else:
            raise ModelError(f"output {output!r} is neither a tensor nor a sequence of tensors")
        declared.append(_declared(name, output, types))
    return helper.make_graph(nodes, "never", [], declared)
