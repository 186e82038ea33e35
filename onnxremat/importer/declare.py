"""A file that holds for certain sizes only says so: they take the place of open dimensions."""

from collections.abc import Iterable, Mapping

from onnx import ModelProto, TensorShapeProto, ValueInfoProto

from onnxremat.importer.binding import Binding
from onnxremat.importer.load import given_inputs
from onnxremat.importer.values import ValueType


def declare_sizes(
    model: ModelProto, binding: Binding, types: Mapping[str, ValueType]
) -> ModelProto:
    """A copy of `model` whose inputs declare the sizes of `binding`, so that every runtime refuses
    others; what it states of outputs and inner values agrees with them.

    Of those, dimensions that are bound by name get their size if `types` has the value with it;
    with another one the statement was wrong, and the dimension is left open. What depends on the
    data has no bound name and stays open. Nothing else is changed; bodies of subgraphs neither.
    """
    copy = ModelProto()
    copy.CopyFrom(model)
    for value in given_inputs(copy.graph):
        sizes = binding.input_shapes.get(value.name)
        if sizes is not None:
            _set(value, sizes)
    for value in (*copy.graph.output, *copy.graph.value_info):
        _state(value, binding.symbols, types.get(value.name))
    return copy


def declared_as(model: ModelProto, other: ModelProto) -> ModelProto:
    """A copy of `model` whose inputs and outputs declare what those of the same name of `other`
    do."""
    copy = ModelProto()
    copy.CopyFrom(model)
    kinds = {value.name: value.type for value in (*other.graph.input, *other.graph.output)}
    for value in (*copy.graph.input, *copy.graph.output):
        if value.name in kinds:
            value.type.CopyFrom(kinds[value.name])
    return copy


def open_inputs(model: ModelProto) -> dict[str, tuple[int | None, ...]]:
    """The declared shapes of the inputs that leave sizes open, those as None. An input that does
    not declare a shape is left out."""
    shapes = {}
    for value in given_inputs(model.graph):
        dims = value.type.tensor_type.shape.dim
        sizes = tuple(d.dim_value if _is_fixed(d) else None for d in dims)
        if None in sizes:
            shapes[value.name] = sizes
    return shapes


def sizes_left_open(
    model: ModelProto, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Those of `shapes` of inputs of which `model` does not declare all sizes, or not how many."""
    declared = {value.name: value.type.tensor_type for value in given_inputs(model.graph)}
    fixed = {
        name
        for name, kind in declared.items()
        if kind.HasField("shape") and all(map(_is_fixed, kind.shape.dim))
    }
    return {name: shape for name, shape in shapes.items() if name not in fixed}


def _is_fixed(dim: TensorShapeProto.Dimension) -> bool:
    return dim.HasField("dim_value") and dim.dim_value >= 0


def _set(value: ValueInfoProto, sizes: Iterable[int]) -> None:
    shape = value.type.tensor_type.shape
    for axis, size in enumerate(sizes):
        dim = shape.dim[axis] if axis < len(shape.dim) else shape.dim.add()
        dim.dim_value = size


def _state(value: ValueInfoProto, symbols: Mapping[str, int], kind: ValueType | None) -> None:
    dims = value.type.tensor_type.shape.dim
    if kind is None or len(kind.shape) != len(dims):
        return
    for dim, size in zip(dims, kind.shape, strict=True):
        stated = symbols.get(dim.dim_param) if dim.dim_param else None
        if stated == size:
            dim.dim_value = size
        elif stated is not None:
            dim.ClearField("value")
