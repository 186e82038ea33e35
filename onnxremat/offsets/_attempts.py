"""The search in attempts: rules, random priorities, more nodes each round, smaller arenas."""

import time
from itertools import count

import numpy as np

from onnxremat.offsets import _layout as at
from onnxremat.offsets._best import Best
from onnxremat.offsets._greedy import Repair, weights
from onnxremat.offsets._problem import PlacementProblem
from onnxremat.offsets._search import restart, search

SEARCHED_BLOCKS = 4000
"""With more blocks one dive of the search takes too long, and only orders are repaired."""

PORTFOLIO = (
    (at.BY_CHOICES, "length"),
    (at.BY_LEVEL, "size"),
    (at.BY_SLACK, "area"),
    (at.BY_CHOICES, "area"),
    (at.BY_LEVEL, "length"),
    (at.BY_SLACK, "size"),
    (at.BY_CHOICES, "size"),
    (at.BY_LEVEL, "area"),
    (at.BY_SLACK, "length"),
)
"""Which section to branch on, and which block of it to try first: no pair is best everywhere."""

NOISE = (0.1, 0.1, 0.3)
"""How much of a priority is random, by round in turn; nothing in the first round."""

GROWTH = 1.5
"""How many times as many nodes an attempt has as one in the round before."""

REPAIRS = 30
"""Orders that are repaired before each round."""

SLICE_WORK = 2_000_000
"""Steps of inner loops between two looks at the clock: some milliseconds."""


def attempt(problem: PlacementProblem, best: Best, iterations: int | None, seed: int) -> None:
    """Offer better placements and bounds until `best` says stop or the iterations are used up.

    An iteration is one attempt of the search, or one batch of repairs when there are too many
    blocks for it. A round is every pair of the portfolio, with a limit on nodes that grows by
    round (a restart is cheap, a wrong first choice is not). Each pair first aims at the bound,
    then at an arena between the bound and the best, nearer to the best after a failure.
    """
    repair = Repair(problem, seed)
    attempts = _Attempts(problem, seed) if len(problem.size) <= SEARCHED_BLOCKS else None
    if attempts is not None:
        best.forgive(attempts.compile())
    for done in count():
        if best.is_enough or best.is_late or (iterations is not None and done >= iterations):
            return
        if attempts is None or done % attempts.round_length == 0:
            repair.run(best, REPAIRS)
        if attempts is not None and not (best.is_enough or best.is_late):
            attempts.run(best, done)


class _Attempts:
    """The arrays of the search, and where it stands between the bound and the best arena."""

    round_length = 2 * len(PORTFOLIO)

    def __init__(self, problem: PlacementProblem, seed: int) -> None:
        self._weights = {name: w / w.max(initial=1) for name, w in weights(problem).items()}
        self._state = at.new_state(problem.first, problem.stop, problem.size, problem.sections)
        self._nodes = 2 * len(problem.size) + 2000
        self._random = np.random.default_rng(seed)
        self._fraction = 0.5

    def compile(self) -> float:
        """Compile the kernels, or load them from the cache; the seconds it took."""
        started = time.monotonic()
        restart(self._state)
        search(self._state, 0, at.BY_LEVEL, 0, 0)
        return time.monotonic() - started

    def run(self, best: Best, number: int) -> None:
        """Attempt `number`: search with the next pair, and tell `best` what came out."""
        turn = number // self.round_length
        rule, weight = PORTFOLIO[number % self.round_length // 2]
        noise = NOISE[turn % len(NOISE)] if turn else 0.0
        nodes = int(self._nodes * GROWTH**turn)
        at_bound = number % 2 == 0
        arena = best.aim(0 if at_bound else self._fraction)
        state = self._state
        priority = self._weights[weight] + noise * self._random.random(state.block.shape[1])
        state.block[at.RANK, np.argsort(priority, kind="stable")] = np.arange(len(priority))
        restart(state)
        status = at.RUNNING
        while status == at.RUNNING and not best.is_late:
            status = search(state, arena, rule, nodes, SLICE_WORK)
        if status == at.FOUND:
            best.offer(state.block[at.LOW], "search")
        elif status == at.REFUTED:
            best.refute(arena)
        if not at_bound:
            self._fraction = self._fraction / 2 if status == at.FOUND else (self._fraction + 1) / 2
