"""The small values of a model: those that are stored, and what its nodes make of them."""

from collections.abc import Mapping, Sequence

import onnx

from onnxremat.importer.small_values import Array, small_value
from onnxremat.importer.values import ValueType


def fold(
    nodes: Sequence[onnx.NodeProto], stored: Mapping[str, Array], types: Mapping[str, ValueType]
) -> dict[str, Array]:
    """`stored`, and what the nodes make from it and from known shapes. O(nodes)."""
    known = dict(stored)
    for node in nodes:
        made = small_value(node, known, types)
        if made is not None:
            known[node.output[0]] = made
    return known
