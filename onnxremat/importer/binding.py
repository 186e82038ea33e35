"""Sizes for the dimensions that a file leaves open.

A dimension with a name is bound by it (`batch=4`), wherever it stands; one without is addressed
as `INPUT:AXIS` (`images:0=4`). Input names may themselves hold colons (`x:0`), so the axis is what
follows the last one. Names that only inner values or outputs use may be bound too: that is how a
user states a size that depends on the data. A `*` stands for any text: `past.*:2=0` binds that
axis of fifty inputs, but for those that are bound by name.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from onnx import GraphProto, ValueInfoProto

from onnxremat.core.errors import ModelError, UsageError
from onnxremat.core.units import LARGEST_SIZE
from onnxremat.importer.load import LoadedModel, given_inputs
from onnxremat.importer.values import declared_shape, non_tensor_kind

_AXIS_DIGITS = 9

_SHOWN = 4
"""Dimensions that a message names; it says how many more there are."""


@dataclass(frozen=True)
class Binding:
    """Complete shapes of the inputs the caller feeds, and the sizes of named dimensions."""

    input_shapes: Mapping[str, tuple[int, ...]]
    symbols: Mapping[str, int]


def bind_dimensions(loaded: LoadedModel, dims: Mapping[str, int]) -> Binding:
    """Give every input of the model a complete shape.

    A size may be 0, for an empty cache: whether the model can do with it, its runtime knows. Raises
    UsageError for a name that the model does not have (listing those it has), for a negative size,
    and for dimensions left open (saying how to bind them); ModelError for an input that is no
    tensor.
    """
    graph = loaded.model.graph
    inputs = {value.name: value for value in given_inputs(graph)}
    for name, value in inputs.items():
        kind = non_tensor_kind(value.type)
        if kind is not None:
            raise ModelError(f"graph input {name!r} is a {kind}: only tensors are supported")
    names = set(dimension_names(graph))
    symbols, axes = _sort_out(_expanded(dims, names, inputs), names, inputs)
    for (name, axis), size in axes.items():
        _bind_axis(inputs[name], axis, size, symbols)
    shapes = {name: _shape(value, symbols, axes) for name, value in inputs.items()}
    missing: dict[str, list[str]] = {}
    for name, shape in shapes.items():
        for axis, dim in enumerate(shape):
            if isinstance(dim, str):
                option = dim if dim != "?" else f"{name}:{axis}"
                missing.setdefault(option, []).append(f"dimension {axis} of input {name!r}")
    if missing:
        given = [f"--dim {one}=SIZE ({_places(at)})" for one, at in missing.items()]
        raise UsageError(f"the model leaves sizes open: give {_some(given)}{_hint(given)}")
    complete = {n: tuple(d for d in s if isinstance(d, int)) for n, s in shapes.items()}
    return Binding(complete, symbols)


def own_dims(graph: GraphProto, dims: Mapping[str, int]) -> dict[str, int]:
    """Of sizes that are given for several models those of dimensions that this one has."""
    inputs = {value.name: value for value in given_inputs(graph)}
    named = set(dimension_names(graph))
    candidates = named | _addresses(inputs).keys()

    def is_own(key: str) -> bool:
        name, colon, axis = key.rpartition(":")
        if key in candidates or (colon and name in inputs and axis.isdecimal()):
            return True
        return "*" in key and any(map(_form(key).fullmatch, candidates))

    return {key: size for key, size in dims.items() if is_own(key)}


def dimension_names(graph: GraphProto) -> Iterator[str]:
    """The names of dimensions that occur in the declarations of the file, inputs first."""
    for values in (graph.input, graph.output, graph.value_info):
        for value in values:
            for dim in value.type.tensor_type.shape.dim:
                if dim.dim_param:
                    yield dim.dim_param


def _places(places: list[str]) -> str:
    if len(places) <= 2:
        return " and ".join(places)
    return f"{places[0]} and {len(places) - 1} more"


def _some(texts: list[str]) -> str:
    """A list for a message: it stays one line where a model has fifty such inputs."""
    more = len(texts) - _SHOWN
    return ", ".join(texts[:_SHOWN]) + (f" and {more} more" if more > 0 else "")


def _hint(texts: list[str]) -> str:
    return "; a * in a name stands for any text" if len(texts) > _SHOWN else ""


def _expanded(
    dims: Mapping[str, int], names: Iterable[str], inputs: Mapping[str, ValueInfoProto]
) -> dict[str, int]:
    """`dims` with each pattern replaced by the dimensions that it matches and that no other entry
    names."""
    patterns = {key: size for key, size in dims.items() if "*" in key and key not in names}
    if not patterns:
        return dict(dims)
    exact = {key: size for key, size in dims.items() if key not in patterns}
    candidates = _addresses(inputs) | {name: name for name in names}
    found: dict[str, int] = {}
    for pattern, size in patterns.items():
        form = _form(pattern)
        matched = {key: name for key, name in candidates.items() if form.fullmatch(key)}
        if not matched:
            raise UsageError(f"the model has no dimension {pattern!r}; it has {_existing(inputs)}")
        for key, name in matched.items():
            if key in exact or name in exact:
                continue
            if found.setdefault(key, size) != size:
                raise UsageError(f"--dim: {key} is given as {found[key]} and as {size}")
    return exact | found


def _form(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL)


def _addresses(inputs: Mapping[str, ValueInfoProto]) -> dict[str, str]:
    """The open dimensions of the inputs as `INPUT:AXIS`, each with the name that binds it."""
    return {
        f"{name}:{axis}": dim if dim != "?" else f"{name}:{axis}"
        for name, value in inputs.items()
        for axis, dim in enumerate(declared_shape(value.type, {}) or ())
        if isinstance(dim, str)
    }


def _sort_out(
    dims: Mapping[str, int], names: set[str], inputs: Mapping[str, ValueInfoProto]
) -> tuple[dict[str, int], dict[tuple[str, int], int]]:
    """Split `dims` into sizes of named dimensions and sizes of (input, axis)."""
    symbols: dict[str, int] = {}
    axes: dict[tuple[str, int], int] = {}
    for key, size in dims.items():
        if size < 0:
            raise UsageError(f"--dim {key}={size}: a size must be at least 0")
        if size > LARGEST_SIZE:
            raise UsageError(f"--dim {key}: sizes have 63 bits, at most {LARGEST_SIZE}")
        name, colon, axis = key.rpartition(":")
        if key in names:
            symbols[key] = size
        elif colon and name in inputs and axis.isdecimal() and len(axis) <= _AXIS_DIGITS:
            axes[name, int(axis)] = size
        else:
            raise UsageError(f"the model has no dimension {key!r}; it has {_existing(inputs)}")
    return symbols, axes


def _existing(inputs: Mapping[str, ValueInfoProto]) -> str:
    found = list(dict.fromkeys(_addresses(inputs).values()))
    return _some(found) if found else "none that is open: all input sizes are fixed"


def _bind_axis(value: ValueInfoProto, axis: int, size: int, symbols: dict[str, int]) -> None:
    """Check a size given by `INPUT:AXIS`; if the dimension has a name, the name gets it."""
    shape = declared_shape(value.type, symbols)
    if shape is None:
        return
    if axis >= len(shape):
        raise UsageError(f"input {value.name!r} has {len(shape)} dimensions, and no axis {axis}")
    dim = shape[axis]
    if isinstance(dim, int) and dim != size:
        raise UsageError(f"dimension {axis} of input {value.name!r} is {dim}, not {size}")
    if isinstance(dim, str) and dim != "?":
        symbols[dim] = size


def _shape(
    value: ValueInfoProto, symbols: Mapping[str, int], axes: Mapping[tuple[str, int], int]
) -> tuple[int | str, ...]:
    declared = declared_shape(value.type, symbols)
    if declared is None:
        given = sorted(axis for name, axis in axes if name == value.name)
        if not given or given != list(range(len(given))):
            raise UsageError(
                f"input {value.name!r} declares no shape: give every dimension, "
                f"--dim {value.name}:0=SIZE and so on"
            )
        return tuple(axes[value.name, axis] for axis in given)
    return tuple(
        axes.get((value.name, axis), dim) if dim == "?" else dim
        for axis, dim in enumerate(declared)
    )
