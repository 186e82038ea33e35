"""Values that tiles make again, and what is held instead of them."""

from typing import Any

import pytest

from onnxremat.core.memory import MemoryProfile, profile
from onnxremat.ort.emulation.rules import RECIPE_RULES
from onnxremat.tiling import sequence as sequence_module
from onnxremat.tiling.made_again import (
    WORTHWHILE,
    blocking,
    droppable,
    dropping,
    held_instead,
    saved_bytes,
)
from onnxremat.tiling.sequence import NEAR_OPS, Sequence
from onnxremat_rewriters.tile import view
from tests.tiling.test_choose import subject


def sequence_of(name: str) -> Sequence:
    of = subject(name)
    return Sequence(of.imported, view(of.released.model, of.types), RECIPE_RULES)


def names(sequence: Sequence, tensors: tuple[int, ...] | list[int]) -> list[str]:
    return [sequence.imported.graph.tensors[t].name for t in tensors]


def test_values_with_a_gap_can_be_dropped_the_largest_first() -> None:
    sequence = sequence_of("unet")
    found = droppable(sequence, ())
    assert names(sequence, [t for t, _ in found])[0].startswith("enc1")
    dropped = dropping(sequence, found[:1], ())
    assert max(dropped.cut_bytes) <= max(sequence.cut_bytes)
    assert len(dropped.lacking) == 1
    assert sequence.lacking == frozenset()
    assert dropped.kept == {}


def test_something_small_is_held_instead_of_what_has_much_before_it() -> None:
    sequence = sequence_of("nested")
    graph, drop = sequence.imported.graph, droppable(sequence, ())[0]
    t, _ = drop
    assert sequence.nbytes[t] == 64 * 64 * 16 * 4
    held = held_instead(sequence.without([drop]), t, ())
    assert [sequence.nbytes[u] for u in held or ()] == [16 * 16 * 2 * 4]
    made = dropping(sequence, [drop], ())
    assert made.kept == dict.fromkeys(held or (), graph.readers[t][-1])
    for u in made.kept:
        assert made.last_read[u] == graph.readers[t][-1] > sequence.last_read[u]


def test_a_model_is_profiled_once_whatever_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    profiled = []

    def counted(*arguments: Any) -> MemoryProfile:
        profiled.append(arguments)
        return profile(*arguments)

    monkeypatch.setattr(sequence_module, "profile", counted)
    sequence = sequence_of("nested")
    assert droppable(sequence, ())
    assert blocking(sequence, (), range(sequence.count + 1), 1, ()) is not None
    assert len(profiled) == 1


def test_what_is_not_cut_is_not_made_again() -> None:
    sequence = sequence_of("nested")
    graph, drop = sequence.imported.graph, droppable(sequence, ())[0]
    without, (t, _) = sequence.without([drop]), drop
    (held,) = held_instead(without, t, ()) or ()
    assert held_instead(without, t, {graph.producer[held]}) == (held,)
    assert held_instead(without, t, {graph.producer[t]}) is None


def test_a_value_is_not_held_instead_of_one_when_it_is_dropped_itself() -> None:
    sequence = sequence_of("unet")
    found = droppable(sequence, ())
    for count in range(len(found) + 1):
        made = dropping(sequence, found[:count], ())
        assert not set(made.kept) & set(made.dropped)


@pytest.mark.parametrize("name", ["unet", "nested", "mobilenet"])
def test_held_bytes_are_those_of_what_lives(name: str) -> None:
    sequence = sequence_of(name)
    found = droppable(sequence, ())
    for count in range(len(found) + 1):
        made = dropping(sequence, found[:count], ())
        graph = made.imported.graph
        for drop in found[:count]:
            held = held_instead(sequence.without([drop]), drop[0], ()) or ()
            assert sum(made.nbytes[u] for u in held) <= WORTHWHILE * made.nbytes[drop[0]]
        for c in range(made.count + 1):
            lives = sum(
                made.nbytes[t]
                for t, last in enumerate(made.last_read)
                if 0 <= graph.producer[t] < c <= last
            )
            assert made.cut_bytes[c] == lives
        for v, nbytes in enumerate(made.step_bytes):
            assert nbytes >= max(made.cut_bytes[v], made.cut_bytes[v + 1])


def test_what_blocks_a_cut_is_what_saves_most_there() -> None:
    """And once that is dropped, the next one, until nothing is left that can be."""
    sequence = sequence_of("unet")
    by_size = droppable(sequence, ())
    cut = max(last for _, last in by_size) + 1
    drops: list[tuple[int, int]] = []
    while True:
        made = dropping(sequence, drops, ())
        drop = blocking(made, drops, [cut], 0, ())
        if drop is None:
            break
        saved = saved_bytes(made, drops, drop, ())
        assert saved is not None and saved > 0
        drops.append(drop)
        after = dropping(sequence, drops, ())
        assert after.cut_bytes[cut] <= made.cut_bytes[cut] - saved
    assert {t for t, _ in drops} >= {t for t, last in by_size if last < cut}


def test_a_value_that_is_read_at_three_places_is_dropped_at_its_first_gap_or_its_second() -> None:
    sequence = sequence_of("unet")
    t, _ = droppable(sequence, ())[0]
    lives = sequence.gaps(t)
    assert lives == sorted(lives) and all(far - last >= NEAR_OPS for last, far in lives)
    both = sequence.without([(t, lives[0][0]), (t, lives[-1][1])])
    assert both.last_read[t] == lives[0][0]
