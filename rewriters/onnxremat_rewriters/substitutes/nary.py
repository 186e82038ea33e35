"""Sum, Max, Min and Mean of three or more inputs: a chain of binary nodes.

The kernel folds its inputs from the left with two buffers of the output's size that take turns;
the chain folds them in the same order, and an input is free as soon as it is folded. The bits are
the same (NaN, infinities and signed zeros too). Mean is the chain of Sum, then a product with the
rounded reciprocal of the count, as in the kernel (a division rounds differently).
"""

from typing import Any

import numpy as np

from onnxremat_rewriters.substitutes.site import KernelSite, NotSubstitutable, Substitution

_BINARY = {"Sum": "Add", "Mean": "Add", "Max": "Max", "Min": "Min"}
_DTYPES: dict[str, np.dtype[Any]] = {"float": np.dtype(np.float32), "double": np.dtype(np.float64)}


def _replace(site: KernelSite) -> None:
    site.need_opset(8)  # before, there is no broadcasting and no buffer
    op, inputs = site.node.op_type, list(site.node.input)
    if len(inputs) < 3:
        raise NotSubstitutable("fewer than three inputs: the kernel takes no workspace")
    kind = site.type_of(inputs[0])
    if kind.dtype not in _DTYPES:
        raise NotSubstitutable(f"elements of type {kind.dtype} were not tried")
    folded = inputs[0]
    for position, name in enumerate(inputs[1:], 1):
        last = position == len(inputs) - 1 and op != "Mean"
        folded = site.add(_BINARY[op], [folded, name], site.node.output[0] if last else None)
    if op == "Mean":
        dtype = _DTYPES[kind.dtype]
        share = np.ones(1, dtype) / np.array(len(inputs), dtype)
        constant = site.constant("share", share.reshape(()))
        site.add("Mul", [folded, constant], site.node.output[0])


NARY_CHAIN = Substitution("nary-chain", frozenset(_BINARY), True, _replace, sized=False)
