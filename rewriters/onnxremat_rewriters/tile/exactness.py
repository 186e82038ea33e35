"""Which tiles have the same bits, and how far a tile must be widened so that it has.

A `Guard` takes a box of an op's output and gives the smallest box around it (rows first) that the
runtime computes with the same bits as the whole, or raises CannotTile. The whole is always exact.
The rules hold for float32, one number of threads, and kernels of the kind that `blocking`
describes; a result is checked in the runtime where it is used.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from math import prod

from onnxremat_rewriters.tile.blocking import Order, orders_of_conv, orders_of_product
from onnxremat_rewriters.tile.boxes import Box, extent, whole
from onnxremat_rewriters.tile.matrices import reduced_axes, terms_of
from onnxremat_rewriters.tile.view import CannotTile, Rule, Site

Guard = Callable[[Box], Box]

_ALIGNED = 4
"""Sums made by Eigen depend on the address modulo its vectors, of four floats in ONNX Runtime's
builds for x86-64 (1,200 trials)."""

_POOLED_ROW = 2045
"""The widest row, pads included, of which the pooling kernel keeps a sum in its buffer."""


def anything(box: Box) -> Box:
    """The guard of ops all of whose tiles are exact."""
    return box


def conv(site: Site, rule: Rule, threads: int) -> Guard:
    """Conv: the same blocks of K as in the whole."""
    filters = site.shape(1)
    group = site.attributes.get("group", 1)
    inner = prod(filters[1:])
    made = site.made()
    strides = site.integers("strides")
    dilations = site.integers("dilations")
    plain = all(s == 1 for s in strides)

    def orders(box: Box) -> frozenset[Order]:
        step = rule(0, box)
        source = step.reads[0]
        assert source is not None
        direct = None
        if plain and not any(step.attributes["pads"]):
            direct = _direct(filters, extent(source)[2:], all(d == 1 for d in dilations))
        size = extent(box)
        return orders_of_conv(
            made[1] // group,
            inner,
            prod(size[2:]),
            threads,
            direct=direct,
            images=size[0] * group,
        )

    return _widened(made, range(2, len(made)), orders)


def _direct(filters: tuple[int, ...], size: tuple[int, ...], dense: bool) -> bool | None:
    """How the kernel reads the input as a matrix: False as it stands, True turned; None: not."""
    if prod(filters[2:]) == 1:
        return False
    if len(size) == 2 and dense and filters[1] == 1:
        if filters[3] == size[1]:
            return True
        if filters[2] == size[0] and filters[3] == 1:
            return False
    return None


def conv_transpose(site: Site, rule: Rule, threads: int) -> Guard:
    """ConvTranspose: a product with as many columns as the tile reads pixels."""
    filters = site.shape(1)
    group = site.attributes.get("group", 1)
    made = site.made()

    def orders(box: Box) -> frozenset[Order]:
        source = rule(0, box).reads[0]
        assert source is not None
        pixels = prod(extent(source)[2:])
        rows, inner = prod(filters[1:]), filters[0] // group
        return orders_of_product(rows, pixels, inner, threads, left_turned=True)

    return _widened(made, range(2, len(made)), orders)


def product(site: Site, rule: Rule, threads: int) -> Guard:
    """MatMul and Gemm: a stored right matrix is packed and always summed in the same order."""
    right, made = site.shape(1), site.made()
    if site.stored[1] and len(right) == 2:
        return anything
    if site.baked[1]:
        raise CannotTile(f"{site.op}: a tile would store its right side, which is computed now")
    turned = bool(site.attributes.get("transB", 0))
    left_turned = bool(site.attributes.get("transA", 0))
    inner = site.shape(0)[-2 if left_turned else -1]
    one_product = prod(right[:-2]) == 1

    def orders(box: Box) -> frozenset[Order]:
        *leading, rows, columns = extent(box)
        batch = prod(leading)
        if one_product and not left_turned:
            rows, batch = rows * batch, 1
        return orders_of_product(
            rows, columns, inner, threads, turned=turned, left_turned=left_turned, batch=batch
        )

    rank = len(made)
    return _widened(made, (rank - 2, *range(rank - 2), rank - 1), orders)


def einsum(site: Site, rule: Rule, threads: int) -> Guard:
    """Einsum: one product for each element of the letters that all have, of the left operand's own
    letters by the right one's, summed in the same blocks as in the whole."""
    operands, result = terms_of(site)
    if len(operands) == 1:
        return anything
    left, right = operands
    rows, columns = set(left) - set(right), set(right) - set(left)
    inner = prod(
        n for c, n in zip(left, site.shape(0), strict=True) if c in right and c not in result
    )

    def orders(box: Box) -> frozenset[Order]:
        size = dict(zip(result, extent(box), strict=True))
        return orders_of_product(
            prod(size[c] for c in rows), prod(size[c] for c in columns), inner, threads
        )

    first = [a for a, c in enumerate(result) if c in rows]
    return _widened(
        site.made(), (*first, *(a for a in range(len(result)) if a not in first)), orders
    )


def all_of(site: Site, rule: Rule, threads: int) -> Guard:
    """A reduction has one kernel for each pattern of kept and reduced axes, those of one element
    left out; so a group of kept axes must not shrink to one element. With kept axes before
    or between the reduced ones, fewer elements of them than threads take another kernel yet."""
    shape, made = site.shape(0), site.made()
    axes = reduced_axes(site, len(shape))
    runs = [
        (is_reduced, [a for a, _ in run])
        for is_reduced, run in groupby(
            ((a, a in axes) for a in range(len(shape)) if shape[a] > 1), key=lambda one: one[1]
        )
    ]
    if runs and runs[-1][0] and prod(shape[a] for a in runs[-1][1]) % _ALIGNED:
        raise CannotTile(f"{site.op}: rows begin at odd addresses, and are reduced accordingly")
    keep = bool(site.attributes.get("keepdims", 1))
    place = {a: a if keep else a - sum(r < a for r in axes) for a in range(len(shape))}
    least = {}
    for i, (is_reduced, run) in enumerate(runs):
        if not is_reduced:
            spread = len(runs) == 3 and i == (1 if runs[0][0] else 0)
            shared = spread and prod(shape[a] for a in run) >= threads
            least[tuple(place[a] for a in run)] = max(2, threads) if shared else 2

    def widen(box: Box) -> Box:
        for run, count in least.items():
            for wider in growing(box, made, run):
                box = wider
                if prod(box[a][1] - box[a][0] for a in run) >= count:
                    break
        return box

    return widen


def average(site: Site, rule: Rule, threads: int) -> Guard:
    """AveragePool: a window that is the whole image has its own kernel, and so have rows that fit
    into a buffer."""
    made, kernel = site.made(), site.integers("kernel_shape")
    plain = all(s == 1 for s in site.integers("strides"))
    stride = (site.integers("strides") or (1,))[-1]
    dense = all(d == 1 for d in site.integers("dilations"))

    def orders(box: Box) -> frozenset[Order]:
        step = rule(0, box)
        source, pads = step.reads[0], step.attributes["pads"]
        assert source is not None
        size = extent(source)[2:]
        if plain and size == kernel and not any(pads):
            return frozenset({("image", 0)})
        width = size[-1] + pads[len(size) - 1] + pads[-1]
        by_rows = len(size) > 1 and dense and stride <= 2 and width <= _POOLED_ROW
        return frozenset({("rows" if by_rows else "windows", 0)})

    return _widened(made, range(len(made) - 1, 1, -1), orders)


def whole_lines(site: Site, rule: Rule, threads: int) -> Guard:
    """Of zeros of either sign one or the other is kept, in vectors and at the end of a line: lines
    of the last axis are whole."""
    shape = site.made()
    last = max((a for a, size in enumerate(shape) if size > 1), default=0)

    def widen(box: Box) -> Box:
        return (*box[:last], (0, shape[last]), *box[last + 1 :]) if shape else box

    return widen


def power(site: Site, rule: Rule, threads: int) -> Guard:
    """Pow: with one element on the last axis, an exponent for all is taken as one of many."""
    made = site.made()
    last = max((a for a, size in enumerate(made) if size > 1), default=None)

    def widen(box: Box) -> Box:
        if last is None or box[last][1] - box[last][0] > 1:
            return box
        lo, hi = box[last]
        lo, hi = (lo, hi + 1) if hi < made[last] else (lo - 1, hi)
        return (*box[:last], (lo, hi), *box[last + 1 :])

    return widen


def statistics(site: Site, rule: Rule, threads: int) -> Guard:
    """InstanceNormalization: an image is summed from where it lies in memory."""
    if prod(site.shape(0)[2:]) % _ALIGNED:
        raise CannotTile(f"{site.op}: images begin at odd addresses, and are summed accordingly")
    return anything


def _widened(
    shape: tuple[int, ...], axes: Sequence[int], orders: Callable[[Box], frozenset[Order]]
) -> Guard:
    """The guard that widens along `axes`, in their order, until the orders are those of the
    whole."""
    full = whole(shape)
    wanted = orders(full)

    def widen(box: Box) -> Box:
        for wider in growing(box, shape, axes):
            if wider == full or (len(wanted) == 1 and orders(wider) == wanted):
                return wider
        return full

    return widen


def growing(box: Box, shape: tuple[int, ...], axes: Sequence[int]) -> Iterator[Box]:
    """The box, then larger and larger ones, one element at a time, first on the first axis."""
    yield box
    for axis in axes:
        while box[axis] != (0, shape[axis]):
            lo, hi = box[axis]
            lo, hi = (lo, hi + 1) if hi < shape[axis] else (lo - 1, hi)
            box = (*box[:axis], (lo, hi), *box[axis + 1 :])
            yield box
