"""Where, piece by piece: slices of the inputs, one node for each, and a Concat.

The kernel keeps two buffers of the output's size. It does no arithmetic, so the bits are the same.
At its peak the Concat holds the pieces and the output: two tensors instead of three, and the inputs
are free by then if nobody else reads them.
"""

from itertools import pairwise
from typing import Any

from onnxremat_rewriters.substitutes.site import KernelSite, NotSubstitutable, Substitution

PIECES = 8


def _replace(site: KernelSite) -> None:
    shapes = [site.type_of(name).shape for name in site.node.input]
    result = site.type_of(site.node.output[0]).shape
    if not result:
        raise NotSubstitutable("a single number cannot be cut")
    axis = next((a for a, size in enumerate(result) if size >= PIECES), None)
    if axis is None:
        axis = max(range(len(result)), key=lambda a: result[a], default=0)
    from_the_end = axis - len(result)
    cut = [-from_the_end <= len(s) and s[from_the_end] > 1 for s in shapes]
    _slice(site, result, axis, cut)


def _slice(site: KernelSite, shape: tuple[int, ...], axis: int, cut: list[bool]) -> None:
    """Nodes for each piece of `axis`; `cut` says which inputs have that axis."""
    site.need_opset(10)
    size = shape[axis]
    if size < 2:
        raise NotSubstitutable("no axis can be cut")
    pieces = min(PIECES, size)
    bounds = [size * i // pieces for i in range(pieces + 1)]
    names = [site.integers_constant("at", [bound]) for bound in bounds]
    attributes: dict[str, Any] = {a.name: site.attribute(a.name) for a in site.node.attribute}
    behind = axis - len(shape)
    parts = []
    axes = {
        name: site.integers_constant("axis", [len(site.type_of(name).shape) + behind])
        for name, is_cut in zip(site.node.input, cut, strict=True)
        if is_cut
    }
    for start, end in pairwise(names):
        read = [
            site.add("Slice", [name, start, end, axes[name]]) if name in axes else name
            for name in site.node.input
        ]
        parts.append(site.add(site.node.op_type, read, **attributes))
    site.add("Concat", parts, site.node.output[0], axis=axis)


SLICED_WHERE = Substitution("where-sliced", frozenset({"Where"}), True, _replace, sized=True)
