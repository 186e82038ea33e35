"""The dynamic program against all ways to cut a small chain."""

import random
from itertools import combinations
from math import inf

import pytest

from onnxremat.tiling.cut_program import Route, Stuck, cheapest_route


def cheapest_by_trial(
    whole: list[bool], cuts: list[int], costs: dict[tuple[int, int], int]
) -> float:
    """The least cost over all sets of disjoint segments that hold every op that needs one."""
    best = inf
    ends = [(i, j) for i, j in combinations(cuts, 2) if (i, j) in costs]
    for size in range(len(ends) + 1):
        for chosen in combinations(ends, size):
            if any(a[1] > b[0] and b[1] > a[0] for a, b in combinations(chosen, 2)):
                continue
            inside = {v for i, j in chosen for v in range(i, j)}
            if all(w or v in inside for v, w in enumerate(whole)):
                best = min(best, sum(costs[one] for one in chosen))
    return best


@pytest.mark.parametrize("seed", range(60))
def test_route_is_as_cheap_as_the_best_of_all(seed: int) -> None:
    rng = random.Random(seed)
    count = rng.randint(1, 6)
    whole = [rng.random() < 0.5 for _ in range(count)]
    cuts = sorted({0, count, *rng.sample(range(count + 1), rng.randint(0, count))})
    costs = {ends: rng.randint(0, 9) for ends in combinations(cuts, 2) if rng.random() < 0.6}
    expected = cheapest_by_trial(whole, cuts, costs)
    route = cheapest_route(whole, cuts, cuts, lambda i, j, below: costs.get((i, j)))
    assert (inf if isinstance(route, Stuck) else route.cost) == expected
    if isinstance(route, Stuck):
        for c in range(route.reached, count + 1):
            before = {ends: cost for ends, cost in costs.items() if ends[1] <= c}
            assert (cheapest_by_trial(whole[:c], cuts, before) < inf) == (c == route.reached)
    else:
        assert route.cost == sum(costs[ends] for ends in route.segments)
        inside = {v for i, j in route.segments for v in range(i, j)}
        assert all(w or v in inside for v, w in enumerate(whole))
        for below, there_is in ((route.cost + 1, True), (route.cost, False)):
            found = cheapest_route(whole, cuts, cuts, lambda i, j, _: costs.get((i, j)), below)
            assert route.cost == 0 or isinstance(found, Route) == there_is


def test_ops_that_fit_cost_nothing_and_ask_for_nothing() -> None:
    def none(i: int, j: int, below: float) -> int | None:
        raise AssertionError((i, j))

    route = cheapest_route([True] * 5, range(6), range(6), none)
    assert isinstance(route, Route)
    assert (route.segments, route.cost) == ((), 0)
