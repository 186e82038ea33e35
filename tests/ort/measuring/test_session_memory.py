"""What a session takes in all: in one heap that never shrinks."""

import sys
from pathlib import Path

import pytest

from onnxremat.ort.child import meter
from onnxremat.ort.child.malloc import Malloc
from onnxremat.ort.measuring.inputs import make_inputs
from onnxremat.ort.measuring.measure import in_memory
from onnxremat.ort.measuring.session_memory import measure_heap, measure_session
from onnxremat.ort.recipe import STOCK
from tests.ort.measuring.test_measure import MEGABYTES, ladder

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells of a heap"),
]


def test_one_heap_grows_by_the_most_that_is_held_and_never_shrinks() -> None:
    """So many values, and all of them together again, beside what the first session of a process
    takes once; in later runs blocks at multiples of 64 bytes do not fit where others of their size
    lay."""

    def grown(rungs: int, runs: int) -> int:
        held = ladder(rungs)
        found = measure_heap(in_memory(held, Path()), make_inputs(held), STOCK, runs=runs)
        assert found is not None
        return found

    eight = grown(8, 1)
    assert abs(eight - grown(2, 1) - 2 * 6 * MEGABYTES) < MEGABYTES // 4
    assert grown(8, 4) >= eight


def test_a_heap_that_is_not_known_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert meter.heap_end() is None


def test_all_that_is_measured_says_how_long_opening_took() -> None:
    model = ladder(2)
    found = measure_session(in_memory(model, Path()), make_inputs(model), STOCK, returning=True)
    assert found.returning is not None
    assert 0 < found.load_seconds <= found.returning.load_seconds


def test_each_malloc_says_something_else() -> None:
    assert len({frozenset(one.value.items()) for one in Malloc}) == len(Malloc)
