"""Variations of a sequence, and what two of them have in common."""

from itertools import combinations

import pytest

from onnxremat.core.deadline import Deadline
from onnxremat.core.problem import Limits
from onnxremat.tiling.grids import Grid
from onnxremat.tiling.made_again import droppable, dropping
from onnxremat.tiling.segments import Option, Segments
from onnxremat.tiling.sequence import Sequence
from onnxremat.tiling.variations import AS_IT_IS, Difference, Variation, nearest
from tests.tiling.test_made_again import sequence_of

pytestmark = pytest.mark.slow


def of_variation(sequence: Sequence, variation: Variation) -> Sequence:
    return dropping(sequence, variation.drops, ()).opening(variation.opened)


def segments(sequence: Sequence, parent: Segments | None = None) -> Segments:
    return Segments(
        sequence,
        threads=2,
        allow_rounding=False,
        most_nodes=4000,
        deadline=Deadline(Limits()),
        parent=parent,
    )


def variations(sequence: Sequence) -> list[Variation]:
    """One that drops, one that opens, one that does both."""
    drops = tuple(droppable(sequence, ())[:2])
    graph = sequence.imported.graph
    opened = [
        t
        for t, nbytes in enumerate(sequence.nbytes)
        if nbytes and graph.producer[t] >= 0 and graph.readers[t]
        and t not in sequence.held_outputs
    ]  # fmt: skip
    middle = frozenset(opened[len(opened) // 3 : len(opened) // 3 + 2])
    return [
        Variation(drops),
        Variation((), middle),
        Variation(drops[:1], middle),
        Variation(drops, middle),
    ]


@pytest.mark.parametrize("name", ["unet", "nested", "mobilenet"])
def test_where_two_variations_do_not_differ_tiles_are_the_same(name: str) -> None:
    """What is taken over from a simpler variation is what would be found without it."""
    sequence = sequence_of(name)
    common = differing = 0
    for variation in variations(sequence):
        of = of_variation(sequence, variation)
        difference = Difference(of, sequence)
        alone, other = segments(of), segments(sequence)
        shared = segments(of, parent=other)
        for i, j in combinations(range(0, sequence.count + 1, 2), 2):
            for grid in (Grid(((2, 4),)), Grid(((2, 4),), carry=True)):
                expected, found = alone.option(i, j, grid), shared.option(i, j, grid)
                assert found == expected, (variation, i, j, grid)
                if difference.touches(i, j):
                    differing += 1
                    continue
                common += 1
                assert of.leaving(i, j) == sequence.leaving(i, j)
                if expected is not None and j - i < 12:
                    assert exactly(shared, i, j, expected) == exactly(alone, i, j, expected)
    assert common and differing


def exactly(found: Segments, i: int, j: int, option: Option) -> Option | None:
    return found.exactly(i, j, option, {})


def test_the_nearest_variation_is_the_one_that_the_least_is_added_to() -> None:
    a, b, c = (3, 1), (4, 2), (5, 2)
    known = [AS_IT_IS, Variation((a,)), Variation((a, b)), Variation((), frozenset({7}))]
    assert nearest(Variation((a, b, c)), known) == Variation((a, b))
    assert nearest(Variation((b,)), known) == AS_IT_IS
    assert nearest(Variation((b,), frozenset({7, 8})), known) == Variation((), frozenset({7}))
    assert nearest(AS_IT_IS, known) is None


def test_what_is_opened_is_made_and_read_in_tiles_alone() -> None:
    sequence = sequence_of("espcn")
    graph = sequence.imported.graph
    (t,) = graph.ops[2].outputs
    opened = sequence.opening([t])
    assert opened.lacking == {2, *graph.readers[t]}
    assert opened.cut_bytes == sequence.cut_bytes
    assert opened.without([]).opened == {t}
    name = graph.tensors[t].name
    assert opened.is_held(name, 3)


def test_strips_die_one_by_one_in_the_segment_that_reads_them() -> None:
    """Two segments with a large value between them hold less than it and what is made of it."""
    sequence = sequence_of("espcn")
    graph = sequence.imported.graph
    (t,) = graph.ops[3].outputs
    grid, cut, end = Grid(((2, 8),)), 4, 6
    peaks = {}
    for opened in ((), (t,)):
        of, strips = segments(sequence.opening(opened)), {}
        for i, j in ((0, cut), (cut, end)):
            estimate = of.option(i, j, grid)
            assert estimate is not None
            exact = of.exactly(i, j, estimate, strips)
            assert exact is not None and exact.region is not None
            assert exact.peak_bytes == pytest.approx(estimate.peak_bytes, rel=0.12)
            assert exact.region.opened == tuple(graph.tensors[u].name for u in opened if j == cut)
            peaks[opened, i] = exact.peak_bytes
        assert list(strips) == [graph.tensors[u].name for u in opened]
    made = sequence.nbytes[graph.ops[end - 1].outputs[0]]
    assert peaks[(t,), 0] < peaks[(), 0] - sequence.nbytes[t] // 2, "nothing is joined"
    assert peaks[(t,), cut] < peaks[(), cut] - min(made, sequence.nbytes[t]) // 2
