"""Softmax and LogSoftmax over an inner axis: the axis is put last, and back behind it.

The kernel does the same inside, with two buffers of the output's size beside input and output:
four tensors at its peak. Of the three nodes none needs more than two. The bits are the same.
"""

from onnxremat_rewriters.substitutes.site import KernelSite, NotSubstitutable, Substitution


def _replace(site: KernelSite) -> None:
    site.need_opset(13)  # before, the axis says where a matrix is cut
    kind = site.type_of(site.node.input[0])
    if kind.dtype not in ("float", "double"):
        raise NotSubstitutable(f"elements of type {kind.dtype} were not tried")
    rank = len(kind.shape)
    axis = site.attribute("axis", -1)
    assert isinstance(axis, int)
    axis += rank if axis < 0 else 0
    if axis >= rank - 1:
        raise NotSubstitutable("the axis is the last one: nothing is transposed inside")
    swapped = list(range(rank))
    swapped[axis], swapped[-1] = rank - 1, axis
    last = site.add("Transpose", [site.node.input[0]], perm=swapped)
    made = site.add(site.node.op_type, [last], axis=rank - 1)
    site.add("Transpose", [made], site.node.output[0], perm=swapped)


INNER_SOFTMAX = Substitution(
    "softmax-transposed", frozenset({"Softmax", "LogSoftmax"}), True, _replace, sized=False
)
