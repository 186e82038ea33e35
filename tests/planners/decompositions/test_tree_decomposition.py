"""Tree decompositions and separators by their certificates, and what the certificates refuse."""

import pytest

from onnxremat.planners.decompositions.tree_decomposition import (
    DecompositionError,
    TreeDecomposition,
    check_tree,
    dependency_edges,
    eliminate,
    has_goatd,
    merge_subsets,
    separators,
    tree_decomposition,
)
from tests.graphs import chain
from tests.models.sizes import tiny
from tests.planners.guarantees import LIGHT, decomposed, imported_graph, random_graph

WAYS = [
    pytest.param(True, id="own"),
    pytest.param(
        False,
        id="goatd",
        marks=pytest.mark.skipif(not has_goatd(), reason="goatd is not installed"),
    ),
]


@pytest.mark.parametrize("own", WAYS)
def test_random_graphs(own: bool) -> None:
    for seed in range(100):
        decomposed(random_graph(seed), own=own)


@pytest.mark.parametrize("own", WAYS)
@pytest.mark.parametrize("name", LIGHT)
def test_builders(name: str, own: bool) -> None:
    width, _, _ = decomposed(imported_graph(name, **tiny(name)), own=own)
    assert width <= 20


@pytest.mark.parametrize("own", WAYS)
@pytest.mark.parametrize(("count", "depth"), [(0, 0), (1, 1), (2, 1), (100, 6)])
def test_a_chain_has_width_one(count: int, depth: int, own: bool) -> None:
    edges = [(v, v + 1) for v in range(count - 1)]
    found = tree_decomposition(count, edges, own=own)
    check_tree(count, edges, found)
    assert found.width == min(count, 2) - 1
    assert len(found.bags) == (count - 1 if count > 1 else count)
    assert separators(count, found).depth == depth


@pytest.mark.parametrize("own", WAYS)
def test_a_forest_is_one_tree_but_several_pieces(own: bool) -> None:
    edges = [(0, 1), (1, 2), (3, 4), (5, 6), (6, 7), (5, 7)]
    found = tree_decomposition(8, edges, own=own)
    check_tree(8, edges, found)
    assert found.width == 2
    assert len(separators(8, found).roots) == 3


def test_the_given_width_of_a_grid() -> None:
    """Elimination of a 4 x 4 grid is not worse than rows: 4, which is the treewidth."""
    edges = [(4 * r + c, 4 * r + c + 1) for r in range(4) for c in range(3)]
    edges += [(4 * r + c, 4 * r + c + 4) for r in range(3) for c in range(4)]
    found = tree_decomposition(16, edges, own=True)
    check_tree(16, edges, found)
    assert found.width == 4


def test_no_bag_lies_within_a_neighbour() -> None:
    bags, links = eliminate(60, dependency_edges(chain([1] * 60)))
    merged, joined = merge_subsets([*bags, set(bags[0]), set()], [*links, (0, 60), (60, 61)])
    assert len(merged) == 59
    assert not any(merged[a] <= merged[b] or merged[b] <= merged[a] for a, b in joined)


@pytest.mark.parametrize(
    ("bags", "parent", "reason"),
    [
        (((0, 1), (1, 2)), (-1, -1), "one root"),
        (((0, 1), (1, 2), (2, 3)), (-1, 2, 1), "lead to the root"),
        (((0, 1), (1, 2)), (-1, 0), "in no bag"),
        (((0, 1), (1, 2), (2, 3), (0, 3)), (-1, 0, 1, 2), "not connected"),
        (((0, 1), (2, 3)), (-1, 0), "both ends"),
        (((0, 1), (1, 2), (2, 4)), (-1, 0, 1), "names vertex 4"),
        (((0, 1), (1, 2), (2, 3)), (-1, 0), "as many parents"),
    ],
)
def test_what_is_no_decomposition_is_refused(
    bags: tuple[tuple[int, ...], ...], parent: tuple[int, ...], reason: str
) -> None:
    edges = [(0, 1), (1, 2), (2, 3)]
    with pytest.raises(DecompositionError, match=reason):
        check_tree(4, edges, TreeDecomposition(bags, parent))
