"""`undominated`: of points with two figures, both better when smaller, those worth having."""

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


def undominated(points: Iterable[T], figures: Callable[[T], tuple[float, float]]) -> tuple[T, ...]:
    """Those beside which no other one is at most as large in both figures, the smallest first
    figure first; of equal ones the first. O(n log n).

    >>> undominated([(3, 1), (1, 3), (2, 3), (3, 1)], lambda point: point)
    ((1, 3), (3, 1))
    """
    best: list[T] = []
    for point in sorted(points, key=figures):
        if not best or figures(point)[1] < figures(best[-1])[1]:
            best.append(point)
    return tuple(best)
