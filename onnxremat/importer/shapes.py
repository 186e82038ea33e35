"""Types of all values of a model, from the cheapest source that knows them; never guessed.

The sources, in the order asked; each later one only if something is still unknown:

1. measured types, given by the caller: what a run really had wins over every other source;
2. onnx shape inference with data propagation, from the bound inputs;
3. a rule that it lacks: Dropout's mask has the shape of its input;
4. rules for ops of ONNX Runtime's training, and onnx's inference behind them (see opaque.py);
5. what the file states (value_info, outputs), for values that inference does not reach. It comes
   after inference because files keep statements that became wrong when their inputs were changed;
6. onnxruntime's symbolic shape inference, which knows its fused ops and computes with shapes.

After each of 3 to 6 inference runs again, from what they added, and after 5 and 6 also 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from onnx import ModelProto, ValueInfoProto

from onnxremat.importer.binding import Binding
from onnxremat.importer.constants import find_constants
from onnxremat.importer.inference import infer_shapes
from onnxremat.importer.load import LoadedModel
from onnxremat.importer.nodes import op_key
from onnxremat.importer.opaque import opaque_types
from onnxremat.importer.skeleton import inference_copy, seed
from onnxremat.importer.symbolic import symbolic_types
from onnxremat.importer.values import (
    ValueType,
    ValueTypes,
    concrete_type,
    declared_shape,
    dtype_name,
    non_tensor_kind,
)

_FIRST_OPSET_WITH_BOOL_MASK = 10
_Stated = dict[str, ValueInfoProto]


def infer_types(
    loaded: LoadedModel, binding: Binding, measured: Mapping[str, ValueType] | None = None
) -> ValueTypes:
    """Types of the values of the top-level graph, as far as anything knows them.

    `measured` are types that a profiled run gave. What stays unknown is described in `partial`
    and `non_tensor` of the result; `import_model` says so where it matters. Raises ModelError only
    if small external tensors cannot be read. Seconds: about 1 for 20,000 nodes, unless the last
    source is needed (about 1 ms for every node).
    """
    constants = find_constants(loaded)
    fixed = {**_input_types(loaded, binding), **constants.types}
    known = dict(measured or {})
    wanted = {n for node in loaded.model.graph.node for n in node.output if n} - fixed.keys()
    if wanted <= known.keys():
        return ValueTypes({**known, **fixed})
    copy = inference_copy(loaded, binding, constants)
    stated = _infer(copy, known)
    for source in (_dropout_masks, _opaque, _from_file, _opaque, _symbolic, _opaque):
        _learn(known, stated)
        if wanted <= known.keys():
            break
        found = source(_Question(loaded, binding, copy, {**known, **fixed}))
        new = {name: found[name] for name in wanted - known.keys() if name in found}
        if new:
            known |= new
            stated = _infer(copy, known)
    _learn(known, stated)
    return _described(loaded, binding, {**known, **fixed}, stated, wanted - known.keys())


@dataclass(frozen=True)
class _Question:
    """What a source of types may look at: the model, its copy for inference, what is known."""

    loaded: LoadedModel
    binding: Binding
    copy: ModelProto
    known: Mapping[str, ValueType]


def _input_types(loaded: LoadedModel, binding: Binding) -> dict[str, ValueType]:
    types = {}
    for value in loaded.model.graph.input:
        if value.name in binding.input_shapes:
            dtype = dtype_name(value.type.tensor_type.elem_type)
            types[value.name] = ValueType(dtype, binding.input_shapes[value.name])
    return types


def _infer(copy: ModelProto, known: Mapping[str, ValueType]) -> _Stated:
    """What onnx's inference makes of the copy when `known` is stated in it."""
    seed(copy, known)
    result = infer_shapes(copy, data_prop=True)
    if result is None:
        return {}  # Later sources may still know.
    graph = result.graph
    return {value.name: value for value in (*graph.value_info, *graph.output)}


def _learn(known: dict[str, ValueType], stated: _Stated) -> None:
    """Add the complete types among `stated` to `known`; what is known already stays."""
    for name, value in stated.items():
        if name not in known:
            kind = concrete_type(value.type, {})
            if kind is not None:
                known[name] = kind


def _dropout_masks(question: _Question) -> dict[str, ValueType]:
    """Dropout's mask has the shape of its input; onnx infers that for recent opsets only."""
    masks = {}
    for node in question.loaded.model.graph.node:
        if op_key(node) == "Dropout" and len(node.output) > 1 and node.input[0] in question.known:
            data = question.known[node.input[0]]
            boolean = question.loaded.opset >= _FIRST_OPSET_WITH_BOOL_MASK
            masks[node.output[1]] = ValueType("bool" if boolean else data.dtype, data.shape)
    return masks


def _opaque(question: _Question) -> dict[str, ValueType]:
    """Complete types of what ops without onnx rules make, and of what is made from that."""
    return opaque_types(question.copy, question.known)


def _from_file(question: _Question) -> dict[str, ValueType]:
    """Complete types that the file states, with bound dimensions put in."""
    graph = question.loaded.model.graph
    types = {
        value.name: concrete_type(value.type, question.binding.symbols)
        for value in (*graph.output, *graph.value_info)
    }
    return {name: kind for name, kind in types.items() if kind is not None}


def _symbolic(question: _Question) -> dict[str, ValueType]:
    """Complete types that onnxruntime's symbolic inference finds."""
    return symbolic_types(question.copy, question.known)


def _described(
    loaded: LoadedModel,
    binding: Binding,
    known: Mapping[str, ValueType],
    stated: _Stated,
    unknown: set[str],
) -> ValueTypes:
    """`known`, with what inference and the file say about the values that are not among them."""
    graph = loaded.model.graph
    in_file = {value.name: value for value in (*graph.output, *graph.value_info)}
    partial: dict[str, tuple[int | str, ...]] = {}
    non_tensor: dict[str, str] = {}
    for name in unknown & (stated.keys() | in_file.keys()):
        protos = [source[name].type for source in (stated, in_file) if name in source]
        kinds = [kind for kind in map(non_tensor_kind, protos) if kind is not None]
        if kinds:
            non_tensor[name] = kinds[0]
            continue
        declared = [declared_shape(proto, binding.symbols) for proto in protos]
        shapes = [shape for shape in declared if shape is not None]
        if shapes:
            partial[name] = _merged(shapes[0], shapes[-1])
    return ValueTypes(known, partial, non_tensor)


def _merged(
    inferred: tuple[int | str, ...], in_file: tuple[int | str, ...]
) -> tuple[int | str, ...]:
    """Inferred numbers, and the file's names for the other dimensions."""
    if len(inferred) != len(in_file):
        return inferred
    return tuple(a if isinstance(a, int) else b for a, b in zip(inferred, in_file, strict=True))
