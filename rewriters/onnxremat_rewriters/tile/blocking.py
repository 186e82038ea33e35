"""In which order ONNX Runtime's float kernels sum: what decides whether a tile has the same bits.

Measured on 1.31.1, x86-64, without graph optimizations. The matrix kernel (MLAS) adds the inner
dimension K up in blocks; the blocks are longer where a thread has few columns. A product of one row
or of one column uses another kernel. Two runs of an element have the same bits if its `Order` is
the same in both; `orders_*` give the set over all elements of an op.
"""

from functools import cache

Order = tuple[str, int]
"""Kernel and length of its blocks of K."""

_BLOCK = 128
_ALIGN = 16
_WORK_PER_THREAD = 65536


def orders_of_product(
    rows: int,
    columns: int,
    inner: int,
    threads: int,
    *,
    turned: bool = False,
    left_turned: bool = False,
    batch: int = 1,
) -> frozenset[Order]:
    """Of a matrix product, rows x inner by inner x columns, `batch` of them; `turned`: the right
    matrix is stored transposed, `left_turned`: the left one (then one row is like many).
    """
    size = (rows, columns)
    active = min(threads, rows * columns * inner // _WORK_PER_THREAD + 1)
    active = -(-active // batch)
    if columns > rows:
        blocks = -(-columns // _ALIGN)
        pieces = _pieces(min(active, blocks), blocks)
        widths = {
            min(columns - start * _ALIGN, length * _ALIGN)
            for start, length in ((sum(pieces[:i]), pieces[i]) for i in range(len(pieces)))
        }
        return frozenset(_order((rows, n), size, inner, turned, left_turned) for n in widths)
    heights = set(_pieces(min(active, rows), rows))
    return frozenset(_order((m, columns), size, inner, turned, left_turned) for m in heights)


@cache
def orders_of_conv(
    filters: int,
    inner: int,
    pixels: int,
    threads: int,
    *,
    direct: bool | None,
    images: int,
) -> frozenset[Order]:
    """Of a convolution with `filters` outputs in each of `images` = batch x groups products.

    `direct`: the input is the right matrix as it stands (False) or transposed (True); None if
    columns are gathered first.
    """
    if direct is not None:
        return orders_of_product(
            filters, pixels, inner, 1 if images > 1 else threads, turned=direct
        )
    if filters > pixels:
        return orders_of_product(filters, pixels, inner, threads)
    active = min(threads, filters * pixels * inner // _WORK_PER_THREAD + 1)
    width = -(-pixels // active)
    if active > 1:
        width = -(-width // _ALIGN) * _ALIGN
    if images > 1:
        width = pixels
    widths = {width, pixels % width or width} if pixels >= width else {pixels}
    size = (filters, pixels)
    return frozenset(_order((filters, n), size, inner, False, False) for n in widths)


def _pieces(count: int, total: int) -> list[int]:
    length, more = divmod(total, count)
    return [length + 1] * more + [length] * (count - more)


def _order(
    piece: tuple[int, int], size: tuple[int, int], inner: int, turned: bool, left_turned: bool
) -> Order:
    """The order of a piece, rows x columns, of a product of that size. Kernels that take vectors in
    groups, and the last few by themselves, give the same bits in the whole product only."""
    rows, width = piece
    if rows == 1 and not left_turned:
        return ("row, turned", size[1]) if turned else ("row", 0)
    if size[1] == 1:
        return ("column", size[0])
    n = k = _BLOCK
    if width < inner:
        while n > _ALIGN and n // 2 >= width:
            k *= 2
            n //= 2
    return ("blocks", min(k, inner))
