"""Ops that Eigen computes in vectors, and the elements at both ends of a run by another formula.

Measured on 1.31.1, x86-64: vectors have four floats and begin at addresses that are multiples of
their size. Some of the kernels are run by one thread, from the first element to the last; others
are cut into blocks of one size, by what an element is said to cost. The elements that are computed
one by one then are known for any size and number of threads (25 sizes at 1 to 4 threads for each
op), and a tile has the bits of the whole if it has them at the same places: mostly nowhere.

Processors with two kinds of cores are given smaller blocks by the runtime; there the check of the
result in the runtime is all there is.
"""

from collections.abc import Iterator
from functools import cache
from math import prod

from onnxremat_rewriters.tile.boxes import Box, extent, whole
from onnxremat_rewriters.tile.exactness import Guard, growing
from onnxremat_rewriters.tile.view import CannotTile, Rule, Site

_VECTOR = 4
_BYTES_CYCLES = 11 / 64 * 8
"""Of reading and writing four bytes each."""
_TASK_CYCLES = 40_000
_STARTUP_CYCLES = _THREAD_CYCLES = 100_000
_OVERSHARING = 4

CYCLES: dict[str, float | None] = {
    **dict.fromkeys(("Acos", "Asin", "Atan", "Cos", "Sin"), None),
    **dict.fromkeys(("Log", "Mish", "Softplus"), 15.0),
    "Celu": 1.0,
    "Elu": 30.0,
    "Selu": 4.0,
}
"""What the kernel says that an element costs; None: it is not cut into blocks."""


def guard(site: Site, rule: Rule, threads: int) -> Guard:
    """A tile has its single elements, at the ends of blocks, where the whole has them."""
    made = site.made()
    cycles = CYCLES[site.op]
    full = whole(made)
    wanted = {_place(i, made) for i in _single(prod(made), cycles, threads)}

    def same(box: Box) -> bool:
        size = extent(box)
        got = {
            tuple(lo + p for (lo, _), p in zip(box, _place(i, size), strict=True))
            for i in _single(prod(size), cycles, threads)
        }
        inside = {
            p for p in wanted if all(lo <= q < hi for q, (lo, hi) in zip(p, box, strict=True))
        }
        return got == inside

    def widen(box: Box) -> Box:
        for one in growing(box, made, range(len(made) - 1, -1, -1)):
            if one == full:
                break
            if same(one):
                return one
        if box == full:
            return full
        raise CannotTile(f"{site.op}: the last elements of a part are rounded otherwise")

    return widen


def _place(index: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    found = []
    for size in reversed(shape):
        index, place = divmod(index, size)
        found.append(place)
    return tuple(reversed(found))


@cache
def _single(count: int, cycles: float | None, threads: int) -> tuple[int, ...]:
    """The elements of `count` that are not computed in vectors."""
    return tuple(_single_in(count, count if cycles is None else block(count, cycles, threads)))


def _single_in(count: int, size: int) -> Iterator[int]:
    for start in range(0, count, size):
        stop = min(count, start + size)
        first = min(stop, -(-start // _VECTOR) * _VECTOR)
        last = first + (stop - first) // _VECTOR * _VECTOR
        yield from range(start, first)
        yield from range(last, stop)


def block(count: int, cycles: float, threads: int) -> int:
    """How many elements the runtime gives to a thread at a time (`ThreadPool::ParallelFor`): as
    many as are worth a task, or as make four tasks a thread; more if that keeps threads as busy."""
    cost = _BYTES_CYCLES + cycles
    worth = int((count * cost - _STARTUP_CYCLES) / _THREAD_CYCLES + 0.9)
    if count <= 1 or min(worth, threads) <= 1:
        return count
    size = min(count, max(-(-count // (_OVERSHARING * threads)), int(_TASK_CYCLES / cost)))
    largest = min(count, 2 * size)
    blocks = -(-count // size)
    busy = _busy(blocks, threads)
    before = blocks
    while busy < 1 and before > 1:
        coarser = -(-count // (before - 1))
        if coarser > largest:
            break
        before = -(-count // coarser)
        if _busy(before, threads) + 0.01 >= busy:
            size, busy = coarser, max(busy, _busy(before, threads))
    return size


def _busy(blocks: int, threads: int) -> float:
    return blocks / (-(-blocks // threads) * threads)
