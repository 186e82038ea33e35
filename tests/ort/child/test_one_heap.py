"""A heap in one piece: where blocks lie, and what a run needs of it."""

from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxremat.ort.child.one_heap import ALIGNMENT_BYTES, OneHeap, grown

MALLOC, FREE, ALIGNED, MAPPED, UNMAPPED = 6, 5, 10, 14, 15
KILOBYTE = 1024
PAGE_BYTES = 64 * KILOBYTE


@dataclass(frozen=True)
class Record:
    """One record of a tracer."""

    address: int
    size: int
    allocator: int = MALLOC


def blocks(heap: OneHeap, sizes: list[int]) -> list[int]:
    return [heap.allocate(nbytes) for nbytes in sizes]


def test_the_smallest_piece_that_is_large_enough_is_taken() -> None:
    heap = OneHeap()
    kept = blocks(heap, [n * KILOBYTE for n in (40, 1, 20, 1, 30, 1)])
    for place in (0, 2, 4):
        heap.release(kept[place])
    assert heap.allocate(20 * KILOBYTE) == kept[2]
    assert heap.allocate(25 * KILOBYTE) == kept[4]
    assert heap.allocate(25 * KILOBYTE) == kept[0]


def test_neighbours_are_put_together_and_the_heap_never_shrinks() -> None:
    heap = OneHeap()
    kept = blocks(heap, [10 * KILOBYTE] * 4)
    end = heap.end_bytes
    for address in (kept[0], kept[2], kept[1]):
        heap.release(address)
    assert heap.allocate(30 * KILOBYTE) == kept[0]
    heap.release(kept[0])
    heap.release(kept[3])
    assert heap.held_bytes == 0
    assert heap.end_bytes == end
    assert heap.allocate(39 * KILOBYTE) == kept[0]
    assert heap.end_bytes == end


def test_a_small_block_comes_from_the_rest_of_the_last_that_was_split() -> None:
    heap = OneHeap()
    kept = blocks(heap, [2 * KILOBYTE, 100, KILOBYTE, 100])
    heap.release(kept[0])
    heap.release(kept[2])
    first = heap.allocate(100)
    assert first == kept[2]
    assert heap.allocate(200) == first + 104


def test_a_freed_block_at_a_multiple_does_not_hold_another_of_its_size() -> None:
    """What is asked for is larger by the alignment, and small blocks lie in what was too much:
    values of one size that come and go between others leave holes."""
    heap = OneHeap()
    size = 100 * KILOBYTE
    first = heap.allocate_aligned(size)
    heap.allocate_aligned(size)
    for _ in range(4):
        heap.allocate(10)
    end = heap.end_bytes
    heap.release(first)
    again = heap.allocate_aligned(size)
    assert again > first
    assert heap.end_bytes > end
    heap.release(again)
    assert heap.allocate_aligned(size - 2 * ALIGNMENT_BYTES) == first


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5000), st.booleans()), max_size=80))
def test_blocks_never_lie_upon_each_other(calls: list[tuple[int, int, bool]]) -> None:
    heap = OneHeap()
    live: dict[int, int] = {}
    most = 0
    for kind, number, aligned in calls:
        before = heap.end_bytes
        if kind == 0 and live:
            address = sorted(live)[number % len(live)]
            heap.release(address)
            del live[address]
        else:
            address = (heap.allocate_aligned if aligned else heap.allocate)(number)
            assert not aligned or (address + 8) % ALIGNMENT_BYTES == 0
            live[address] = number + 4
        assert heap.end_bytes >= before
        assert heap.end_bytes % PAGE_BYTES == 0
        spans = sorted(live.items())
        for (start, nbytes), (following, _) in pairwise(spans):
            assert start + nbytes <= following
        assert all(start + nbytes <= heap.end_bytes for start, nbytes in spans)
        assert sum(live.values()) <= heap.held_bytes <= heap.end_bytes
        most = max(most, heap.held_bytes)
    assert heap.most_held_bytes == most
    for address in live:
        heap.release(address)
    assert heap.held_bytes == 0
    if heap.end_bytes:
        assert heap.allocate(heap.end_bytes - 100) == 0


def test_the_file_is_held_until_it_is_open_and_inputs_from_then_on() -> None:
    opening = [
        Record(1, 0, FREE),
        Record(2, 300 * KILOBYTE, MAPPED),
        Record(3, 200 * KILOBYTE, ALIGNED),
        Record(2, 300 * KILOBYTE, UNMAPPED),
    ]
    running = [Record(3, 0, FREE), Record(4, 100 * KILOBYTE), Record(4, 0, FREE)]
    found = grown(opening, running, model_bytes=400 * KILOBYTE, inputs_bytes=[KILOBYTE] * 2)
    assert found is not None
    assert abs(found.most_held_bytes - 900 * KILOBYTE) < KILOBYTE
    assert found.held_bytes == pytest.approx(2 * KILOBYTE, abs=32)
    assert found.most_held_bytes <= found.end_bytes <= 900 * KILOBYTE + 2 * PAGE_BYTES
    assert found.opened_bytes == found.end_bytes


def test_what_gets_late_is_not_told() -> None:
    records = [Record(1, 10)]
    asked = iter([False, True])
    assert grown(records, records, model_bytes=0, inputs_bytes=[], late=lambda: True) is None
    late = grown(records, records, model_bytes=0, inputs_bytes=[], late=lambda: next(asked))
    assert late is None


def test_an_address_that_is_given_again_was_released() -> None:
    """A tracer may miss a release, of another thread or of what moved."""
    records = [Record(1, KILOBYTE), Record(1, KILOBYTE)]
    found = grown(records, [], model_bytes=0, inputs_bytes=[])
    assert found is not None
    assert found.held_bytes < 2 * KILOBYTE
