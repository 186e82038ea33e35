"""Recomputation of a training graph by canonical strategies over lower sets.

Source: Kusumoto, Inoue, Watanabe, Akiba, Koyama 2019, "A graph theoretic framework of recomputation
algorithms for memory-efficient backpropagation": exact and approximate dynamic programs, time- and
memory-centric (see `chains.strategies`). Equation 2 is the objective of the search only. As in the
paper, liveness analysis comes afterwards, and here it is the simulator on the real graph that
chooses: strategies for several budgets by equation 2 become schedules, and the best one is taken.

Which values a backward op reads is taken from the graph. Deviations: a backward op runs as soon as
its segment's turn allows, which is when the last of its gradients arrives; the last segment is not
recomputed; masks that take much to make are made early and cached, too, where that is better
(`chains.chain_stages.with_early_masks`); ops that read weights or inputs only and stand beside the
main path (transposed weights) go with their first reader, as each alone would double the number of
lower sets.
"""

from collections.abc import Iterator
from contextlib import suppress

from onnxremat.core.deadline import StoppedError
from onnxremat.core.problem import Limits, Plan, Problem
from onnxremat.core.training import TrainingSplit, forward_order, stages_of
from onnxremat.planners.chains.chain_stages import (
    NOTHING_TRIED,
    Chooser,
    canonical_schedule,
    plan_training,
    with_early_masks,
)
from onnxremat.planners.chains.strategies import (
    Family,
    ForwardGraph,
    all_lower_sets,
    equation_2,
    members,
    reachability_family,
)

EXACT_SETS = 3000
"""Graphs with more lower sets are searched by the approximate program only."""

BUDGETS = 17
"""How many budgets by equation 2 are tried, from the smallest possible to that of keeping all."""


def lower_sets(problem: Problem, limits: Limits) -> Plan:
    """The best canonical strategy: approximate first, then exact if there are few lower sets.

    See the module. An iteration is one schedule measured.
    """
    return plan_training(problem, limits, "lower_sets", _search)


def _search(split: TrainingSplit, chooser: Chooser) -> str:
    groups = _groups(split, chooser)
    graph = _forward_graph(split, groups, chooser)
    told = NOTHING_TRIED
    # Stopped, the chooser has the best so far, and says in the scope that there may be more.
    with suppress(StoppedError):
        approximate = Family(graph, reachability_family(graph), chooser.deadline)
        told = f"approximate over {len(approximate.sets) - 1} lower sets"
        _try_all(split, groups, approximate, chooser)
        every = all_lower_sets(graph, EXACT_SETS, chooser.deadline)
        if every is None:
            return f"{told}; there are more than {EXACT_SETS}"
        told = f"{told}, exact over all {len(every)}"
        _try_all(split, groups, Family(graph, every, chooser.deadline), chooser)
    return told


def _groups(split: TrainingSplit, chooser: Chooser) -> list[list[int]]:
    """The forward ops in order, each with the ops beside the main path that it reads first."""
    graph = split.graph
    order = split.forward if chooser.problem.fixed_order else forward_order(split)
    place = {v: p for p, v in enumerate(order)}
    beside: set[int] = set()
    for v in order:
        made = graph.predecessors(v)
        readers = sorted(
            (u for t in graph.ops[v].outputs for u in split.forward_readers(t)),
            key=place.__getitem__,
        )
        first = graph.predecessors(readers[0]) if readers else ()
        if beside.issuperset(made) and any(u != v and u not in beside for u in first):
            beside.add(v)
    groups: list[list[int]] = []
    waiting: list[int] = []
    for v in order:
        waiting.append(v)
        if v not in beside:
            groups.append(waiting)
            waiting = []
    return groups


def _forward_graph(split: TrainingSplit, groups: list[list[int]], chooser: Chooser) -> ForwardGraph:
    """Sizes are what the ops of a group make, but for graph outputs, which are held anyway."""
    graph, rules = split.graph, chooser.problem.rules
    of = {v: i for i, ops in enumerate(groups) for v in ops}
    held = set(graph.outputs)
    sizes = tuple(
        sum(
            rules.nbytes(graph.tensors[t])
            for v in ops
            for t in graph.ops[v].outputs
            if t not in held
        )
        for ops in groups
    )
    times = tuple(sum(graph.ops[v].cost for v in ops) for ops in groups)
    made = tuple(
        tuple(sorted({of[u] for v in ops for u in graph.predecessors(v)} - {i}))
        for i, ops in enumerate(groups)
    )
    return ForwardGraph(sizes, times, made)


def _try_all(
    split: TrainingSplit, groups: list[list[int]], family: Family, chooser: Chooser
) -> None:
    for sequence in _strategies(family, chooser):
        lower, cached = 0, 0
        segments = []
        for following in sequence:
            nodes = members(following & ~lower)
            segments.append(tuple(v for i in nodes for v in groups[i]))
            cached |= family.graph.boundary(following)
            lower = following
        stages = stages_of(split, tuple(segments), ((),) * (len(segments) + 1))
        kept = {v for i in members(cached) for v in groups[i]}
        chooser.show(canonical_schedule(stages, kept, chooser.problem.max_copies))
        early = with_early_masks(stages, chooser.problem.rules)
        if early != stages:
            kept |= {v for ops in early.forward for v in ops if not split.is_forward[v]}
            chooser.show(canonical_schedule(early, kept, chooser.problem.max_copies))


def _strategies(family: Family, chooser: Chooser) -> Iterator[list[int]]:
    """Time- and memory-centric strategies for several budgets, without repetition.

    Raises StoppedError once the limits are reached.
    """
    seen: set[tuple[int, ...]] = set()
    smallest, _ = family.smallest_budget(deadline=chooser.deadline)
    largest = max(equation_2(family.graph, [family.graph.everything]), smallest)
    for k in range(BUDGETS):
        budget = smallest + (largest - smallest) * k**2 // (BUDGETS - 1) ** 2
        for slowest in (True, False):
            sequence = family.strategy(budget, slowest=slowest, deadline=chooser.deadline)
            if sequence is not None and tuple(sequence) not in seen:
                seen.add(tuple(sequence))
                yield sequence
