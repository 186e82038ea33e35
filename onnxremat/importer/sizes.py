"""The errors for a value whose bytes nothing knows, or no machine has."""

from collections.abc import Mapping, Sequence

from onnxremat.core.errors import ModelError
from onnxremat.core.text import printable
from onnxremat.importer.binding import dimension_names
from onnxremat.importer.load import LoadedModel
from onnxremat.importer.nodes import op_key
from onnxremat.importer.purity import NON_TENSOR_OPS
from onnxremat.importer.sorting import describe
from onnxremat.importer.values import ValueType, ValueTypes

MOST_BYTES = 2**56
"""Of all values of a model together: sums over many executions of them stay within 63 bits."""

_SHOWN = 200


def check_sizes(names: Sequence[str], loaded: LoadedModel, types: Mapping[str, ValueType]) -> None:
    """Raise ModelError unless the bytes of all these values are known, and can be counted.

    The message names the first one, what made it, the dimension that is unknown, and what the
    user can do: bind the dimension if the file names it, or use the sizes of a profiled run.
    """
    unknown = [name for name in names if name not in types or not types[name].has_size]
    if not unknown:
        _check_total(names, loaded, types)
        return
    name = unknown[0]
    maker = _maker(name, loaded)
    non_tensor = _non_tensor_kind(name, loaded, types)
    if non_tensor:
        raise ModelError(f"not supported: value {name!r}{maker} is a {non_tensor}, not a tensor")
    if name in types:
        raise ModelError(
            f"not supported: value {name!r}{maker} holds elements of type {types[name].dtype!r}, "
            "whose bytes do not follow from a shape"
        )
    others = f" ({len(unknown) - 1} more like it)" if len(unknown) > 1 else ""
    raise ModelError(
        f"the size of value {name!r}{maker} is unknown: {_open_dimension(name, loaded, types)}"
        "; sizes measured in a profiled run give it, or its type stated in the file (value_info)"
        f"{others}"
    )


def _check_total(names: Sequence[str], loaded: LoadedModel, types: Mapping[str, ValueType]) -> None:
    """Planners count bytes in 64 bits; a model that exceeds those runs nowhere."""
    total = 0
    for name in names:
        total += types[name].nbytes
        if total > MOST_BYTES:
            shown = printable(str(list(types[name].shape)), _SHOWN)
            raise ModelError(
                f"value {name!r}{_maker(name, loaded)} of shape {shown} takes more memory than "
                "there is"
            )


def _maker(name: str, loaded: LoadedModel) -> str:
    for index, node in enumerate(loaded.model.graph.node):
        if name in node.output:
            return f", made by {describe(node, index)},"
    return ""


def _non_tensor_kind(name: str, loaded: LoadedModel, types: Mapping[str, ValueType]) -> str | None:
    if isinstance(types, ValueTypes) and name in types.non_tensor:
        return types.non_tensor[name]
    makers = (node for node in loaded.model.graph.node if name in node.output)
    if name not in types and any(op_key(node) in NON_TENSOR_OPS for node in makers):
        return "sequence or optional"
    return None


def _open_dimension(name: str, loaded: LoadedModel, types: Mapping[str, ValueType]) -> str:
    shape = types.partial.get(name) if isinstance(types, ValueTypes) else None
    if shape is None:
        return "no source knows its shape"
    axis = next((a for a, dim in enumerate(shape) if isinstance(dim, str)), None)
    if axis is None:
        return "its element type is not known"
    text = "[" + ", ".join("?" if str(dim).startswith("unk__") else str(dim) for dim in shape) + "]"
    dim = shape[axis]
    if dim in set(dimension_names(loaded.model.graph)):
        return f"dimension {axis} of {text} is open (bind it with --dim {dim}=SIZE)"
    return f"dimension {axis} of {text} depends on the data or on an op without shape rules"
