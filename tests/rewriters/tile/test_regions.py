"""Whole regions: networks cut into tiles give the same bits."""

import pytest

from onnxremat_rewriters.tile import Region, tile
from tests.rewriters.tile.nets import THREADS, espcn, tiled_exactly, types_of, unet


@pytest.mark.parametrize("grid", [((2, 3),), ((3, 5),), ((2, 4), (3, 2)), ((2, 96),)])
def test_super_resolution_in_strips_and_in_two_dimensions(
    grid: tuple[tuple[int, int], ...],
) -> None:
    model = espcn()
    made = tiled_exactly(model, Region(("x",), (model.graph.output[0].name,), grid))
    tiles = {origin.tile for origin in made.origin if origin.node is not None}
    count = 1
    for _, k in grid:
        count *= k
    assert tiles == set(range(count))


@pytest.mark.parametrize("tiles", [2, 3, 4])
def test_unet_recomputes_its_skip_in_every_strip(tiles: int) -> None:
    model, (pooled, _, decoded, _, out) = unet()
    encoder = Region(("x",), (pooled,), ((2, tiles),), step=4)
    decoder = Region(("x", decoded), (out,), ((2, tiles),), step=8)
    made = tiled_exactly(model, encoder, decoder)
    assert all(o.region is not None for o in made.origin if o.node is not None and o.node < 4)
    assert {o.region for o in made.origin if o.node == 0} == {0, 1}


def test_weights_are_shared() -> None:
    model = espcn()
    made = tiled_exactly(model, Region(("x",), (model.graph.output[0].name,), ((2, 8),)))
    before = {t.name: t.SerializeToString() for t in model.graph.initializer}
    after = {t.name: t.SerializeToString() for t in made.model.graph.initializer}
    assert before.items() <= after.items()
    assert all(len(after[name]) < 200 for name in after.keys() - before.keys())


def test_an_inner_value_that_is_read_outside_is_made_whole_too() -> None:
    model = espcn()
    inner = model.graph.node[1].output[0]
    model.graph.output.append(next(v for v in model.graph.value_info if v.name == inner))
    made = tiled_exactly(model, Region(("x",), (model.graph.output[0].name,), ((2, 4),)))
    wholes = [o.node for o in made.origin if o.node is not None and o.region is None]
    assert wholes == [0, 1]


def test_a_refused_region_stays_whole_and_names_node_and_reason() -> None:
    model = espcn()
    model.graph.node[1].op_type = "Softplus"
    region = Region(("x",), (model.graph.output[0].name,), ((2, 4),))
    made = tile(model, [region], types_of(model), threads=THREADS)
    assert [r.region for r in made.refused] == [0]
    assert "tanh1: Softplus" in made.refused[0].reason
    assert [n.op_type for n in made.model.graph.node] == [n.op_type for n in model.graph.node]
