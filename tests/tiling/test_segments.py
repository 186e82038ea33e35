"""Estimates from one tile against all tiles as the rewriter plans them."""

from dataclasses import replace

import pytest

from onnxremat.core.deadline import Deadline
from onnxremat.core.problem import Limits
from onnxremat.tiling.grids import Grid, carrying, pairs, single_axes, strips
from onnxremat.tiling.made_again import droppable, dropping
from onnxremat.tiling.segments import Segments
from tests.tiling.test_made_again import sequence_of


def segments(name: str, dropped: int = 0) -> Segments:
    sequence = sequence_of(name)
    sequence = dropping(sequence, droppable(sequence, ())[:dropped], ())
    return Segments(
        sequence, threads=2, allow_rounding=False, most_nodes=4000, deadline=Deadline(Limits())
    )


@pytest.mark.parametrize(
    ("name", "dropped", "i", "grid"),
    [
        ("espcn", 0, 0, Grid(((2, 4),))),
        ("espcn", 0, 0, Grid(((2, 3), (3, 3)))),
        ("espcn", 0, 2, Grid(((2, 7),))),
        ("mobilenet", 0, 0, Grid(((2, 4),))),
        ("unet", 2, 14, Grid(((2, 4),))),
        ("espcn", 0, 0, Grid(((2, 8),), carry=True)),
        ("espcn", 0, 0, Grid(((3, 2), (2, 8)), carry=True)),
        ("mobilenet", 0, 0, Grid(((2, 8),), carry=True)),
    ],
)
def test_one_tile_tells_what_all_tiles_take(name: str, dropped: int, i: int, grid: Grid) -> None:
    found = segments(name, dropped)
    j = {"espcn": 7, "mobilenet": 17, "unet": found.sequence.count}[name]
    estimate = found.option(i, j, grid)
    assert estimate is not None
    exact = found.exactly(i, j, estimate, {})
    assert exact is not None
    assert exact.region is not None
    assert exact.peak_bytes == pytest.approx(estimate.peak_bytes, rel=0.05)
    assert exact.nodes == pytest.approx(estimate.nodes, rel=0.1)
    one_pass = found.sequence.imported.graph.total_cost()
    assert abs(exact.extra_ns - estimate.extra_ns) <= max(0.05 * one_pass, 0.1 * exact.extra_ns)
    assert found.option(i, j, grid) == exact


def test_an_option_that_costs_too_much_is_not_followed() -> None:
    found = segments("espcn")
    assert found.option(0, 7, Grid(((2, 48),)), below_ns=1) is None
    assert found.option(0, 7, Grid(((2, 48),))) is not None


def test_what_the_runtime_has_together_is_not_taken_apart() -> None:
    """espcn: three convolutions, each with its bias and activation, one after the other."""
    found = segments("espcn")
    graph = found.sequence.imported.graph
    within = (10**9, float("inf"), False)
    assert found.within(0, 4, *within) is not None
    (t,) = graph.ops[3].outputs
    (reader,) = graph.readers[t]
    name = graph.tensors[t].name
    assert found.sequence.around({name}) == set(range(4, reader + 1))
    kept = replace(found, apart=found.sequence.around({name}))
    assert kept.within(0, 3, *within) is not None
    assert kept.within(0, 4, *within) is None, "ends behind what makes it"
    assert kept.within(0, 5, *within) is None, "has it in it"
    whole = graph.tensors[graph.ops[reader].outputs[0]].name
    assert found.sequence.into({whole}) == set(range(4, reader + 1))
    joined = replace(found, inner=found.sequence.into({whole}))
    assert joined.within(0, 4, *within) is None, "ends between both"
    assert joined.within(0, reader + 1, *within) is not None, "has both"


def test_families_grow() -> None:
    shape = (1, 8, 300, 40)
    axes = single_axes(shape)
    assert axes == (1, 2, 3)
    for family in [strips(shape, axis) for axis in axes] + [
        *pairs(shape, axes),
        *carrying(shape, axes),
    ]:
        counts = [grid.tiles for grid in family]
        assert counts == sorted(set(counts))
        assert all(tiles <= shape[axis] for grid in family for axis, tiles in grid.axes)
    assert single_axes((1, 2000)) == ()


def test_statistics_of_groups_are_made_row_by_row() -> None:
    """Cut by channels, all that comes before a convolution is made again for each part of them."""
    found = segments("groups")
    grids = [family[0].axes for family in found.families(found.sequence.count)]
    assert ((3, 2),) in grids
    costs = {
        axis: option.extra_ns
        for axis in (2, 3)
        if (option := found.option(0, found.sequence.count, Grid(((axis, 2),)))) is not None
    }
    assert costs[3] <= costs[2]
