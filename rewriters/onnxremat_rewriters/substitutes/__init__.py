"""`substitute`: nodes whose kernels take much workspace, replaced by others that take less.

    Substitution (one module each) -> SUBSTITUTIONS (a row each) -> substitute

A substitution is exact if the result has the same bits; those that round differently are used only
where the user allows it. None is worth it everywhere: the nodes are chosen by what they hold.
Adding one is a module and a row in the table.
"""

from collections.abc import Mapping, Sequence

import onnx

from onnxremat.importer.values import ValueType
from onnxremat_rewriters.substitutes.apply import (
    Refused,
    Replaced,
    Substituted,
    apply_substitutions,
)
from onnxremat_rewriters.substitutes.conv_transpose import CONV_OF_TRANSPOSED
from onnxremat_rewriters.substitutes.einsum import EINSUM_MATMUL
from onnxremat_rewriters.substitutes.nary import NARY_CHAIN
from onnxremat_rewriters.substitutes.site import KernelSite, NotSubstitutable, Substitution
from onnxremat_rewriters.substitutes.sliced import SLICED_WHERE
from onnxremat_rewriters.substitutes.softmax import INNER_SOFTMAX

SUBSTITUTIONS: Mapping[str, Substitution] = {
    one.name: one
    for one in (
        INNER_SOFTMAX,
        NARY_CHAIN,
        EINSUM_MATMUL,
        SLICED_WHERE,
        CONV_OF_TRANSPOSED,
    )
}
"""All of them by name. An op type stands in one only."""


def substitutions(*, exact: bool) -> tuple[Substitution, ...]:
    """Those that keep the bits, or those that round differently."""
    return tuple(one for one in SUBSTITUTIONS.values() if one.exact == exact)


__all__ = [
    "SUBSTITUTIONS",
    "KernelSite",
    "NotSubstitutable",
    "Refused",
    "Replaced",
    "Substituted",
    "Substitution",
    "apply_substitutions",
    "substitute",
    "substitutions",
]


def substitute(
    model: onnx.ModelProto,
    working_set_bytes: Mapping[int, int],
    types: Mapping[str, ValueType],
    *,
    substitutions: Sequence[Substitution],
    threshold_bytes: int,
) -> Substituted:
    """Replace the nodes that hold at least `threshold_bytes` while they run, where it can be done.

    `working_set_bytes`: inputs, outputs and workspace of nodes, by index of top-level node.
    `types`: of values by name, those of graph inputs included. Nodes with an op type that none of
    `substitutions` is for are not mentioned in `refused`. O(nodes + reads).
    """
    known = {op for one in substitutions for op in one.op_types}
    nodes = {
        index
        for index, nbytes in working_set_bytes.items()
        if nbytes >= threshold_bytes and model.graph.node[index].op_type in known
    }
    return apply_substitutions(model, nodes, types, substitutions)
