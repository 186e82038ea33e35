"""Placements by greedy rules over several orders, and by repairing an order."""

import numpy as np

from onnxremat.offsets._best import Best
from onnxremat.offsets._fit import BEST_FIT, FIRST_FIT, fit_in_order, fit_lowest
from onnxremat.offsets._problem import Ints, PlacementProblem

RULES = {"first fit": FIRST_FIT, "best fit": BEST_FIT}


def weights(problem: PlacementProblem) -> dict[str, Ints]:
    """What makes a block hard to place, in three ways. Length is counted in sections."""
    length = problem.stop - problem.first
    return {"size": problem.size, "area": problem.size * length, "length": length}


def orders(problem: PlacementProblem) -> dict[str, Ints]:
    """Sequences of all blocks: the hard ones first, in time, and backwards in time."""
    by_weight = {
        name: np.lexsort((-problem.size, -weight)) for name, weight in weights(problem).items()
    }
    return by_weight | {
        "start": np.lexsort((-problem.size, problem.first)),
        "end": np.lexsort((-problem.size, -problem.stop)),
    }


def greedy(problem: PlacementProblem, best: Best) -> None:
    """Offer a placement by every rule, until one is proved the smallest. O(n^2) each."""
    offset = np.zeros(len(problem.size), dtype=np.int64)
    scratch = np.zeros_like(offset)
    blocks = (problem.first, problem.stop, problem.size)
    for rule, code in RULES.items():
        for name, order in orders(problem).items():
            fit_in_order(*blocks, order, code, offset, scratch)
            best.offer(offset, f"{rule} by {name}")
            if best.is_smallest or best.is_late:
                return
    for name, weight in weights(problem).items():
        fit_lowest(*blocks, weight.astype(np.float64), offset, scratch)
        best.offer(offset, f"lowest first by {name}")
        if best.is_smallest or best.is_late:
            return


class Repair:
    """First fit over an order in which the blocks that end too high keep moving forward.

    The idea of squeaky wheel optimization (Joslin & Clements 1999, JAIR 10): the blocks above the
    bound are to blame, so each moves to a random earlier position. The order moves on whether
    the arena fell or not.
    """

    def __init__(self, problem: PlacementProblem, seed: int) -> None:
        """Start from the order by size."""
        self._problem = problem
        self._order = orders(problem)["size"]
        self._random = np.random.default_rng(seed)

    def run(self, best: Best, times: int) -> None:
        """Offer the placements of the next `times` orders. O(n^2) each."""
        problem = self._problem
        count = len(problem.size)
        offset = np.zeros(count, dtype=np.int64)
        scratch = np.zeros_like(offset)
        blocks = (problem.first, problem.stop, problem.size)
        for _ in range(times):
            fit_in_order(*blocks, self._order, FIRST_FIT, offset, scratch)
            best.offer(offset, "repaired first fit")
            if best.is_enough or best.is_late:
                return
            place = np.empty(count)
            place[self._order] = np.arange(count)
            to_blame = offset + problem.size > best.bound
            place[to_blame] *= self._random.random(np.count_nonzero(to_blame))
            self._order = np.argsort(place, kind="stable")
