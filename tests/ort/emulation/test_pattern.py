"""The emulated memory pattern: its rules and invariants. (Its size in the runtime: test_predict.)"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onnxremat.ort.emulation.arena import MIN_CHUNK_BYTES, ArenaRequest, round_up
from onnxremat.ort.emulation.pattern import Place, lay_out

KB = 1024


def test_a_buffer_goes_into_the_smallest_gap() -> None:
    pattern = lay_out(
        [
            ArenaRequest("a", 4 * KB), ArenaRequest("b", KB), ArenaRequest("c", 2 * KB), ArenaRequest("d", KB),
            ArenaRequest("a"), ArenaRequest("c"), ArenaRequest("e", 2 * KB),
        ]
    )  # fmt: skip
    assert pattern.places["e"] == pattern.places["c"] == Place(5 * KB, 2 * KB)
    assert pattern.block_bytes == 8 * KB


def test_what_is_free_at_the_end_of_the_block_is_a_gap() -> None:
    """Seen on 1.31.1: 2 KB at the end fit better than 3 KB in the middle."""
    pattern = lay_out(
        [
            ArenaRequest("a", KB), ArenaRequest("b", 3 * KB), ArenaRequest("c", KB), ArenaRequest("d", 2 * KB),
            ArenaRequest("b"), ArenaRequest("d"), ArenaRequest("e", 2 * KB),
        ]
    )  # fmt: skip
    assert pattern.places["e"].offset == 5 * KB
    assert pattern.block_bytes == 7 * KB


def test_a_buffer_that_fits_nowhere_goes_behind_the_last() -> None:
    pattern = lay_out(
        [ArenaRequest("a", KB), ArenaRequest("b", KB), ArenaRequest("a"), ArenaRequest("c", 2 * KB)]
    )
    assert pattern.places["c"].offset == 2 * KB
    assert pattern.block_bytes == 4 * KB


def test_sizes_are_rounded_and_empty_buffers_take_nothing() -> None:
    assert lay_out([ArenaRequest("a", 1)]).block_bytes == MIN_CHUNK_BYTES
    assert lay_out([ArenaRequest("a", 0)]).block_bytes == 0
    assert lay_out([]).block_bytes == 0
    with pytest.raises(ValueError, match="'a' is allocated twice"):
        lay_out([ArenaRequest("a", 1), ArenaRequest("a", 1)])


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 6)), min_size=1, max_size=40))
def test_buffers_held_together_never_overlap(sizes: list[tuple[int, int]]) -> None:
    """Each buffer has a size and the number of allocations it outlives."""
    requests: list[ArenaRequest] = []
    until = {i: i + life for i, (_, life) in enumerate(sizes)}
    held_bytes = most_bytes = 0
    for i, (nbytes, _) in enumerate(sizes):
        gone = [k for k, end in until.items() if end == i and k < i]
        requests.extend(ArenaRequest(k) for k in gone)
        held_bytes -= sum(round_up(sizes[k][0], MIN_CHUNK_BYTES) for k in gone)
        requests.append(ArenaRequest(i, nbytes))
        held_bytes += round_up(nbytes, MIN_CHUNK_BYTES)
        most_bytes = max(most_bytes, held_bytes)
    pattern = lay_out(requests)
    assert pattern.block_bytes >= most_bytes
    for i, end in until.items():
        for k in range(i + 1, min(end, len(sizes))):
            a, b = pattern.places[i], pattern.places[k]
            assert a.end <= b.offset or b.end <= a.offset
