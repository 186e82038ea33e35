"""PWRemat: recomputation along a path decomposition with a spine, in interleaved schedules.

Source: Kumar et al. 2019, supplement, section A: spines by algorithm 2 (`_path_decomposition`),
schedules by algorithm 3 (`_spine_recursion`). For bags of at most p vertices in a path of b bags
the full schedule has O(2^p (p!)^2 log^(p - 2) b) steps per bag, which is why the paper calls it
less practical. Here what nobody reads is left out before it is made, and then bags of 15 to 20
vertices are within reach; what is given up, and what the limits left no time for, is said in the
plan's scope.

Several path decompositions are tried, by the size of their largest bags, each with the spine of
algorithm 2 and with the given order as the spine. `local_search` spends the rest of the seconds on
the best schedule. The algorithm knows no limit of memory: a budget chooses among the schedules.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from onnxremat.core.deadline import CUT_SHORT, ENDLESS, Deadline, StoppedError
from onnxremat.core.graph import Graph
from onnxremat.core.problem import Limits, Plan, Problem
from onnxremat.core.schedule import Schedule, without_unread
from onnxremat.planners.decompositions.path_decomposition import (
    Spined,
    add_spine,
    from_layout,
    given_spine,
    layouts,
)
from onnxremat.planners.decompositions.polishing import swept_and_polished
from onnxremat.planners.decompositions.recursion import wanted_ops
from onnxremat.planners.decompositions.spine_recursion import Spine
from onnxremat.planners.decompositions.tree_decomposition import (
    dependency_edges,
    tree_decomposition,
)
from onnxremat.planners.search.engine import Score, report, score
from onnxremat.planners.twremat import LONGEST

WIDEST = 40
"""Path decompositions with larger bags are left out."""

ITEMS_PER_OP = 2000
"""Schedules that expand more tuples than this many times the ops are given up."""

SWEEP_SHARE = 0.5
"""The share of the seconds for trying path decompositions; the rest is for polishing."""


def pwremat(problem: Problem, limits: Limits) -> Plan:
    """The best plan of PWRemat over several path decompositions, polished by `local_search`.

    With a budget: the least time that meets it. Without one: the smallest peak. Limited iterations
    are moves of the polishing; with none, it is left out.
    """
    return swept_and_polished(problem, limits, "pwremat", "PWRemat", _swept)


@dataclass(frozen=True, slots=True)
class TriedSpine:
    """PWRemat on one path decomposition: its layout, whose spine, and its largest bag; `found` is
    None if the schedule was given up as too wide or too long, or, if `late`, because the limits
    left no time for it."""

    layout: str
    own_spine: bool
    largest_bag: int
    found: Score | None
    late: bool = False


def spined_paths(
    graph: Graph, seed: int, deadline: Deadline = ENDLESS
) -> list[tuple[str, bool, Spined]]:
    """Path decompositions with spines, those with the smallest largest bag first: the name of the
    layout, and whether the spine is that of algorithm 2.

    See `tree_decomposition` for the limits.
    """
    count, edges = len(graph.ops), dependency_edges(graph)
    tree = tree_decomposition(count, edges, seed=seed, deadline=deadline)
    made = []
    for name, layout in deadline.asking(layouts(graph, tree)):
        made.append((name, False, given_spine(count, edges, layout)))
        made.append((name, True, add_spine(count, edges, from_layout(edges, layout))))
    return sorted(made, key=lambda one: one[2].path.width)


def sweep(problem: Problem, deadline: Deadline, *, share: float = 1.0) -> Iterator[TriedSpine]:
    """PWRemat on several path decompositions, narrowest first; unread repetitions removed.

    Once that share of the seconds is used, or at a stop, the rest is `late`; nothing is tried if
    the graph was not decomposed by then.
    """
    graph = problem.graph
    deadline = deadline.until(share).uncounted()
    try:
        paths = spined_paths(graph, deadline.limits.seed, deadline)
    except StoppedError:
        return
    for name, own_spine, spined in paths:
        bag = spined.path.width + 1
        made = None
        if bag <= WIDEST and not deadline.over():
            made = path_schedule(graph, spined, deadline=deadline)
        if made is not None:
            deadline.evaluated(len(graph.ops))
            found = score(problem, _with_few_copies(problem, made))
            yield TriedSpine(name, own_spine, bag, found)
        else:
            yield TriedSpine(name, own_spine, bag, None, late=bag <= WIDEST and deadline.over())


def path_schedule(graph: Graph, spined: Spined, *, deadline: Deadline = ENDLESS) -> Schedule | None:
    """The schedule of PWRemat without what nobody reads; None if it is given up (see LONGEST and
    ITEMS_PER_OP) or at the deadline."""
    count = len(graph.ops)
    return Spine(graph, spined).pruned(
        wanted_ops(graph),
        most_steps=LONGEST * count,
        most_items=ITEMS_PER_OP * count,
        deadline=deadline,
    )


def _with_few_copies(problem: Problem, made: Schedule) -> Schedule:
    """The schedule without repetitions that are not permitted: readers then read the last one."""
    runs: Counter[int] = Counter()
    steps = []
    for v in made.steps:
        op = problem.graph.ops[v]
        once = not op.recomputable or op.eager
        most = 1 if once else problem.max_copies
        if most is None or runs[v] < most:
            runs[v] += 1
            steps.append(v)
    return without_unread(problem.graph, Schedule(tuple(steps)))


def _swept(problem: Problem, deadline: Deadline, best: Score) -> tuple[Score, str]:
    """The best of a start and the sweep, and what was left out, in words."""
    left_out: list[str] = []
    late: list[str] = []
    tries = 0
    for tried in sweep(problem, deadline, share=SWEEP_SHARE):
        tries += 1
        if tried.found is None:
            spine = "its own spine" if tried.own_spine else "the given spine"
            told = f"{tried.layout} with {spine}, bags of {tried.largest_bag}"
            (late if tried.late else left_out).append(told)
        elif tried.found.better_than(best, problem.budget_bytes):
            best = tried.found
            report(deadline, best)
    if not tries:
        return best, f"{CUT_SHORT} before the graph was decomposed"
    parts = []
    if left_out:
        parts.append("left out as too wide or too long: " + "; ".join(left_out))
    if late:
        parts.append(f"{CUT_SHORT}: " + "; ".join(late))
    return best, "; ".join(parts)
