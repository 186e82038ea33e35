"""`OneHeap`: what a model needs of a heap that all lies in one piece, grows at its end and never
shrinks, as WebAssembly's.

The allocations that opening and running a model make here are put, in their order, into a model of
the allocator there: dlmalloc 2.8.6, which emscripten brings. Of its rules those count that decide
where blocks lie: the smallest free piece that is large enough, a small block from the rest of the
last one that was split, neighbours put together, and an aligned block cut out of one that is larger
by the alignment, so that a block freed at a multiple of 64 bytes does not hold another one of its
size. Sizes are those of this process, whose pointers are longer.

Only the standard library is needed here: the child process reads the records.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from onnxremat.ort.child.heap_trace import RELEASES

ALIGNED = frozenset((9, 10, 11))
"""memray's numbers of what allocates at multiples of something."""
ALIGNMENT_BYTES = 64
"""What ONNX Runtime asks for its tensors."""
_GROWTH_BYTES = 1 << 16
_UNIT_BYTES, _HEADER_BYTES, _LEAST_BYTES, _SMALL_BYTES = 8, 4, 16, 256
_LOOK_EVERY = 1 << 14


class OneHeap:
    """A heap in one piece. Addresses are bytes from its start; `end_bytes` is its size,
    `held_bytes` what is allocated and `most_held_bytes` the most of that so far. `opened_bytes` is
    its size when a model was open (`grown`).

    Each call takes O(log free pieces) steps, and moves that many entries of a list.
    """

    def __init__(self) -> None:
        self.end_bytes = self.held_bytes = self.most_held_bytes = self.opened_bytes = 0
        self._used: dict[int, int] = {}
        self._free: dict[int, int] = {}
        self._free_ends: dict[int, int] = {}
        self._by_size: list[tuple[int, int]] = []
        self._top = 0
        """From here on nothing was ever allocated, or all is free again."""
        self._rest: int | None = None
        """What was left of the last split: it is free, and not in `_by_size`."""

    def allocate(self, nbytes: int) -> int:
        """A block's address. Cut out of a free piece, or of the heap's end, which grows for it."""
        address = self._found(_block_bytes(nbytes))
        self._hold(self._used[address])
        return address

    def allocate_aligned(self, nbytes: int, alignment: int = ALIGNMENT_BYTES) -> int:
        """The address of a block whose content begins at a multiple of `alignment`."""
        wanted = _block_bytes(nbytes)
        start = self._found(wanted + alignment + _LEAST_BYTES)
        end = start + self._used.pop(start)
        address = -(-(start + _UNIT_BYTES) // alignment) * alignment - _UNIT_BYTES
        if start < address < start + _LEAST_BYTES:
            address += alignment
        if address > start:
            self._give_back(start, address)
        if end - address > wanted + _LEAST_BYTES:
            self._give_back(address + wanted, end)
            end = address + wanted
        self._used[address] = end - address
        self._hold(end - address)
        return address

    def release(self, address: int) -> None:
        """Give a block back."""
        nbytes = self._used.pop(address)
        self.held_bytes -= nbytes
        self._give_back(address, address + nbytes)

    def _hold(self, nbytes: int) -> None:
        self.held_bytes += nbytes
        self.most_held_bytes = max(self.most_held_bytes, self.held_bytes)

    def _found(self, wanted: int) -> int:
        """A block of `wanted` bytes, or a little more where what is left is no piece."""
        small = wanted < _SMALL_BYTES
        rest_bytes = 0 if self._rest is None else self._free[self._rest]
        number = bisect_left(self._by_size, (wanted, -1))
        if number < len(self._by_size):
            nbytes, start = self._by_size[number]
            left = nbytes - wanted
            better = left < _LEAST_BYTES if small else left < rest_bytes - wanted
            if better or wanted > rest_bytes:
                self._take(start)
                return self._split(start, nbytes, wanted, as_rest=small)
        if wanted <= rest_bytes:
            assert self._rest is not None
            start = self._rest
            self._take(start)
            return self._split(start, rest_bytes, wanted, as_rest=True)
        missing = self._top + wanted + _LEAST_BYTES - self.end_bytes
        if missing > 0:
            self.end_bytes += -(-missing // _GROWTH_BYTES) * _GROWTH_BYTES
        start = self._top
        self._top += wanted
        self._used[start] = wanted
        return start

    def _split(self, start: int, nbytes: int, wanted: int, *, as_rest: bool) -> int:
        """The front of a piece becomes a block."""
        if nbytes - wanted < _LEAST_BYTES:
            wanted = nbytes
        else:
            self._put(start + wanted, nbytes - wanted, as_rest=as_rest)
        self._used[start] = wanted
        return start

    def _give_back(self, start: int, end: int) -> None:
        """What lies between becomes free, together with free neighbours."""
        as_rest = False
        if end in self._free:
            as_rest = self._rest == end
            end += self._take(end)
        if start in self._free_ends:
            before = self._free_ends[start]
            as_rest = as_rest or self._rest == before
            self._take(before)
            start = before
        if end == self._top:
            self._top = start
        else:
            self._put(start, end - start, as_rest=as_rest)

    def _take(self, start: int) -> int:
        """A piece is no longer free; its bytes."""
        nbytes = self._free.pop(start)
        del self._free_ends[start + nbytes]
        if self._rest == start:
            self._rest = None
        else:
            del self._by_size[bisect_left(self._by_size, (nbytes, start))]
        return nbytes

    def _put(self, start: int, nbytes: int, *, as_rest: bool) -> None:
        """A piece becomes free, `as_rest` in place of the last one."""
        if as_rest:
            if self._rest is not None:
                insort(self._by_size, (self._free[self._rest], self._rest))
            self._rest = start
        else:
            insort(self._by_size, (nbytes, start))
        self._free[start] = nbytes
        self._free_ends[start + nbytes] = start


def _block_bytes(nbytes: int) -> int:
    """What a block takes with its header."""
    units = -(-(nbytes + _HEADER_BYTES) // _UNIT_BYTES)
    return max(_LEAST_BYTES, units * _UNIT_BYTES)


def grown(
    opening: Iterable[Any],
    running: Iterable[Any],
    *,
    model_bytes: int,
    inputs_bytes: Sequence[int],
    late: Callable[[], bool] = lambda: False,
) -> OneHeap | None:
    """The heap after a model was opened and run once, or None if it got `late`.

    `opening` and `running` are the records of both, each with `address`, `size` and `allocator`;
    releases of what was allocated before are not counted. The content of the model's file is held
    until it is open, and its inputs from then on: whoever opens it there copies both into the heap.
    """
    heap = OneHeap()
    content = heap.allocate(model_bytes)
    addresses: dict[int, int] = {}
    if not _replayed(heap, opening, addresses, late):
        return None
    heap.release(content)
    heap.opened_bytes = heap.end_bytes
    for nbytes in inputs_bytes:
        heap.allocate(nbytes)
    return heap if _replayed(heap, running, addresses, late) else None


def _replayed(
    heap: OneHeap, records: Iterable[Any], addresses: dict[int, int], late: Callable[[], bool]
) -> bool:
    """Put all records into the heap, unless it gets late. `addresses`: by those of this process,
    where blocks lie there."""
    rest: Iterator[Any] = iter(records)
    while some := list(islice(rest, _LOOK_EVERY)):
        if late():
            return False
        for record in some:
            before = addresses.pop(record.address, None)
            if before is not None:
                heap.release(before)
            if record.allocator not in RELEASES:
                allocate = heap.allocate_aligned if record.allocator in ALIGNED else heap.allocate
                addresses[record.address] = allocate(record.size)
    return True
