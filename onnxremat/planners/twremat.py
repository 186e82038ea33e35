"""TWRemat: recomputation along a tree decomposition, with proved bounds on memory and time.

Source: Kumar et al. 2019, "Efficient Rematerialization for Deep Networks", sections 3 and 4.3. For
n ops of unit size, of which each reads at most r others, a decomposition of width k takes memory of
O((k + r) log n), and no op runs more than O(k n^log(k + 2)) times.
`decompositions.tree_decomposition` cuts the graph, `decompositions.recursion` makes the schedules.

The recursion limit k of TWRemat(k) trades memory for time. The planner tries limits from 1 to
nearly all bags, with and without computing outputs early, and takes the best.
`local_search` spends the rest of the seconds on that plan: the paper's weakness is time, and the
recursion knows neither sizes nor in-place ops.

Deviations are listed in `decompositions.recursion`. Schedules of more than LONGEST passes are given
up, and those that the limits leave no time for are not made; the plan's scope says which.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass

from onnxremat.core.deadline import CUT_SHORT, ENDLESS, Deadline, StoppedError
from onnxremat.core.problem import Limits, Plan, Problem
from onnxremat.core.schedule import without_unread
from onnxremat.planners.decompositions.polishing import swept_and_polished
from onnxremat.planners.decompositions.recursion import tree_schedule
from onnxremat.planners.decompositions.tree_decomposition import (
    Separators,
    dependency_edges,
    separators,
    tree_decomposition,
)
from onnxremat.planners.search.engine import Score, report, score

LONGEST = 40
"""Schedules of more steps than this many times the ops are given up."""

SWEEP_SHARE = 0.5
"""The share of the seconds for trying recursion limits; the rest is for polishing."""


def twremat(problem: Problem, limits: Limits) -> Plan:
    """The best plan of TWRemat(k) over several k, polished by `local_search`.

    With a budget: the least time that meets it. Without one: the smallest peak. Limited iterations
    are moves of the polishing; with none, it is left out.
    """
    return swept_and_polished(problem, limits, "twremat", "TWRemat", _swept)


@dataclass(frozen=True, slots=True)
class TriedDecomposition:
    """TWRemat(k) of a problem; `found` is None if the schedule was given up as too long, or, if
    `late`, because the limits left no time for it."""

    k: int
    early: bool
    steps: int
    found: Score | None
    late: bool = False


def recursion_limits(parts: Separators) -> list[int]:
    """The k that are tried: 1, and powers of two with one and a half times them, without those that
    cut the same pieces as a smaller k. Coarse steps come before fine ones. O(pieces)."""
    sizes = sorted({piece.bags for piece in parts.pieces if piece.children})
    limits, power = [1], 4
    while sizes and power <= sizes[-1]:
        limits += [power, power + power // 2]
        power *= 2
    kept: dict[int, int] = {}
    for k in limits:
        kept.setdefault(bisect_left(sizes, k), k)
    rising = list(kept.values())
    return rising[::4] + rising[2::4] + rising[1::2]


def sweep(
    problem: Problem, deadline: Deadline, *, share: float = 1.0
) -> Iterator[TriedDecomposition]:
    """TWRemat(k) for several k, with and without early outputs; unread repetitions removed.

    Once that share of the seconds is used, or at a stop, the rest is `late`; nothing is tried if
    the graph was not decomposed by then. `steps` are those before the removal.
    """
    graph = problem.graph
    deadline = deadline.until(share).uncounted()
    try:
        parts = graph_separators(problem, deadline.limits.seed, deadline)
    except StoppedError:
        return
    most = LONGEST * len(graph.ops)
    for early in (True, False):
        too_long = 0
        for k in recursion_limits(parts):
            if k <= too_long:
                continue
            made = None
            if not deadline.over():
                made = tree_schedule(
                    graph,
                    parts,
                    k,
                    early=early,
                    max_copies=problem.max_copies,
                    most_steps=most,
                    deadline=deadline,
                )
            if made is not None:
                deadline.evaluated(len(graph.ops))
                yield TriedDecomposition(
                    k, early, len(made), score(problem, without_unread(graph, made))
                )
            elif deadline.over():
                yield TriedDecomposition(k, early, 0, None, late=True)
            else:
                too_long = k
                yield TriedDecomposition(k, early, most, None)


def graph_separators(problem: Problem, seed: int, deadline: Deadline = ENDLESS) -> Separators:
    """The separators of a minimum fill-in decomposition of the problem's graph.

    See `tree_decomposition` for the limits.
    """
    count, edges = len(problem.graph.ops), dependency_edges(problem.graph)
    tree = tree_decomposition(count, edges, seed=seed, deadline=deadline)
    return separators(count, tree, deadline)


def _swept(problem: Problem, deadline: Deadline, best: Score) -> tuple[Score, str]:
    """The best of a start and the sweep, and what was left out, in words."""
    too_long: dict[bool, int] = {}
    late: dict[bool, list[int]] = {}
    tries = 0
    for tried in sweep(problem, deadline, share=SWEEP_SHARE):
        tries += 1
        if tried.late:
            late.setdefault(tried.early, []).append(tried.k)
        elif tried.found is None:
            too_long[tried.early] = max(tried.k, too_long.get(tried.early, 0))
        elif tried.found.better_than(best, problem.budget_bytes):
            best = tried.found
            report(deadline, best)
    if not tries:
        return best, f"{CUT_SHORT} before the graph was decomposed"
    scope = [
        f"TWRemat({k}) and below {_outputs(early)}: more than {LONGEST} times the ops"
        for early, k in too_long.items()
    ]
    scope += [
        f"TWRemat({', '.join(map(str, sorted(limits)))}) {_outputs(early)}: {CUT_SHORT}"
        for early, limits in late.items()
    ]
    return best, "left out: " + "; ".join(scope) if scope else ""


def _outputs(early: bool) -> str:
    return f"{'with' if early else 'without'} early outputs"
