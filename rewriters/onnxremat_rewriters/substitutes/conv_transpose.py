"""ConvTranspose with stride 1: the Conv with the filters flipped and transposed.

The kernel of ConvTranspose keeps a column buffer of (kernel area x output channels x pixels)
elements; Conv takes 64 KB a thread. Filters that are stored in the model are turned here, others
(the input gradient of a Conv in a training graph) by nodes. Sums are made in another order, so the
result is rounded differently, with 1x1 filters too: 504 of 600 random cases had the same bits.
"""

from math import prod

import numpy as np
from numpy.typing import NDArray
from onnx import numpy_helper

from onnxremat_rewriters.substitutes.site import KernelSite, NotSubstitutable, Substitution

_LEAST = -(2**63) + 1
"""As the end of a backward slice: past the first element."""


def _replace(site: KernelSite) -> None:
    site.need_opset(11)
    node = site.node
    dims = site.type_of(node.input[1]).shape
    kernel = dims[2:]
    group = site.attribute("group", 1)
    assert isinstance(group, int)
    pads, dilations = _check(site, kernel)
    spatial = len(kernel)
    begin = [d * (k - 1) - p for d, k, p in zip(dilations, kernel, pads[:spatial], strict=True)]
    end = [d * (k - 1) - p for d, k, p in zip(dilations, kernel, pads[spatial:], strict=True)]
    if min(*begin, *end) < 0:
        raise NotSubstitutable("it cuts off more than the filter adds: Conv has no negative pads")
    weights = _turned(site, dims, group)
    site.add(
        "Conv",
        [node.input[0], weights, *node.input[2:]],
        node.output[0],
        kernel_shape=list(kernel),
        dilations=list(dilations),
        pads=[*begin, *end],
        strides=[1] * spatial,
        group=group,
    )


def _check(site: KernelSite, kernel: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Pads and dilations. Raises NotSubstitutable for attributes that Conv cannot express."""
    if any(stride != 1 for stride in site.integers("strides")):
        raise NotSubstitutable("its stride is not 1")
    if any(site.integers("output_padding")):
        raise NotSubstitutable("it has output padding")
    auto_pad = site.attribute("auto_pad", b"NOTSET")
    if auto_pad not in (b"NOTSET", b"VALID"):
        raise NotSubstitutable("it pads automatically")
    if len(kernel) < 1 or 0 in kernel:
        raise NotSubstitutable("the filter has no extent")
    pads = site.integers("pads") if auto_pad == b"NOTSET" else ()
    dilations = site.integers("dilations") or (1,) * len(kernel)
    if site.integers("output_shape"):
        pads = _pads_for_output(site, kernel, dilations)
    return pads or (0,) * (2 * len(kernel)), dilations


def _pads_for_output(
    site: KernelSite, kernel: tuple[int, ...], dilations: tuple[int, ...]
) -> tuple[int, ...]:
    """The pads that an output shape means. Raises NotSubstitutable if they are not the same on both
    sides: versions of the operator differ in which side gets more."""
    size = site.type_of(site.node.input[0]).shape[2:]
    wanted = site.integers("output_shape")[-len(kernel) :]
    cut = [s + d * (k - 1) - w for s, d, k, w in zip(size, dilations, kernel, wanted, strict=True)]
    if any(total < 0 or total % 2 for total in cut):
        raise NotSubstitutable("its output shape does not mean the same pads on both sides")
    return tuple(total // 2 for total in cut) * 2


def _turned(site: KernelSite, dims: tuple[int, ...], group: int) -> str:
    """The name of the filters as Conv reads them."""
    name = site.node.input[1]
    if name in site.stored:
        turned = turn_filters(numpy_helper.to_array(site.stored[name]), group)
        return site.constant("filters", turned)
    made, made_in, kernel = dims[1], dims[0] // group, list(dims[2:])
    spatial = len(kernel)
    if group > 1:
        shape = site.integers_constant("groups", [group, made_in, made, *kernel])
        name = site.add("Reshape", [name, shape])
        name = site.add("Transpose", [name], perm=[0, 2, 1, *range(3, 3 + spatial)])
        shape = site.integers_constant("shape", [group * made, made_in, *kernel])
        name = site.add("Reshape", [name, shape])
    else:
        name = site.add("Transpose", [name], perm=[1, 0, *range(2, 2 + spatial)])
    if prod(kernel) == 1:
        return name
    backward = [
        site.integers_constant("from", [-1] * spatial),
        site.integers_constant("to", [_LEAST] * spatial),
        site.integers_constant("axes", list(range(2, 2 + spatial))),
        site.integers_constant("steps", [-1] * spatial),
    ]
    return site.add("Slice", [name, *backward])


def turn_filters(filters: NDArray[np.generic], group: int) -> NDArray[np.generic]:
    """Filters of a ConvTranspose, [in, out / group, ...], as those of a Conv,
    [out, in / group, ...]: flipped along every spatial axis."""
    total_in, made, *kernel = filters.shape
    split = filters.reshape(group, total_in // group, made, *kernel).swapaxes(1, 2)
    turned = split.reshape(group * made, total_in // group, *kernel)
    return np.ascontiguousarray(np.flip(turned, tuple(range(2, turned.ndim))))


CONV_OF_TRANSPOSED = Substitution(
    "conv-of-transposed", frozenset({"ConvTranspose"}), False, _replace, sized=True
)
