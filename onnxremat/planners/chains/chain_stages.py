"""From the stages of a training graph to the chain model, and from sequences to schedules."""

from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from dataclasses import replace

from onnxremat.core.bounds import peak_bound
from onnxremat.core.deadline import CUT_SHORT, Deadline, StoppedError
from onnxremat.core.graph import Graph
from onnxremat.core.memory import MemoryRules
from onnxremat.core.problem import Limits, Plan, Problem, make_plan
from onnxremat.core.schedule import Schedule, without_unread
from onnxremat.core.training import NotTrainingError, Stages, TrainingSplit, cut, split_training
from onnxremat.planners.chains.chain_model import Chain, ChainStep, Operation, Operations
from onnxremat.planners.search.engine import Score, admissible, best_start, report, score

NOTHING_TRIED = "nothing was tried"

MADE_AT_ONCE = 50_000
"""Schedules of so many steps take half a second: the limits do not break them off."""

MAKING = 4.0
"""Times the seconds of measuring a schedule: for making it, two checks, and measuring it twice."""


def chain_of_stages(stages: Stages, rules: MemoryRules) -> Chain:
    """The parameters of the chain model (Beaumont et al. 2024, section 3.1) of real stages.

    a[i] is the boundary of stage i. abar[i] is what its ops make that any backward op reads, and
    its part of the next boundary. delta[i] is every gradient that crosses from the backward of
    stage i to that of stage i - 1, with the graph outputs made so far by backward ops, and all that
    forward ops make. Overheads are what the ops hold at most, run one by one with each value freed
    behind its last reader, less those: with workspace, without in-place reuse.
    """
    graph = stages.split.graph
    outputs = {t for t in graph.outputs if graph.producer[t] >= 0}
    forward_outputs = {t for t in outputs if stages.split.is_forward[graph.producer[t]]}
    size = [0 if t in forward_outputs else rules.nbytes(x) for t, x in enumerate(graph.tensors)]
    constant = sum(rules.nbytes(graph.tensors[t]) for t in forward_outputs)

    def total(tensors: Iterable[int]) -> int:
        return sum(size[t] for t in tensors)

    activation = [total(tensors) for tensors in stages.boundaries]
    gradient = [constant + total(tensors) for tensors in stages.gradients]
    saved, keeping, saving, backing = [], [], [], []
    backward_reads = {t for ops in stages.backward for v in ops for t in graph.ops[v].inputs}
    for i, ops in enumerate(stages.forward):
        made = {t for v in ops for t in graph.ops[v].outputs}
        following = set(stages.boundaries[i + 1])
        kept = made & (backward_reads | following)
        saved.append(total(kept))
        keeping.append(_peak(stages, rules, ops, size, made & following) - activation[i + 1])
        saving.append(_peak(stages, rules, ops, size, kept) - saved[i])
        most = _backward_peak(stages, rules, i, size, kept) + gradient[i + 1] + saved[i]
        backing.append(most - gradient[i] - gradient[i + 1] - saved[i])
    return Chain(
        tuple(sum(graph.ops[v].cost for v in ops) for ops in stages.forward),
        tuple(sum(graph.ops[v].cost for v in ops) for ops in stages.backward),
        tuple(activation),
        tuple(saved),
        tuple(gradient),
        tuple(keeping),
        tuple(saving),
        tuple(backing),
    )


def _peak(
    stages: Stages, rules: MemoryRules, ops: Sequence[int], size: Sequence[int], kept: set[int]
) -> int:
    """The most that ops hold beside what was there before, freeing what is not `kept`."""
    graph = stages.split.graph
    made = {t for v in ops for t in graph.ops[v].outputs}
    last = {t: p for p, v in enumerate(ops) for t in graph.ops[v].inputs if t in made}
    held = peak = 0
    for p, v in enumerate(ops):
        op = graph.ops[v]
        held += sum(size[t] for t in op.outputs)
        peak = max(peak, held + (op.workspace_bytes if rules.count_workspace else 0))
        gone = {t for t in (*op.inputs, *op.outputs) if t in made and last.get(t, p) == p} - kept
        held -= sum(size[t] for t in gone)
    return peak


def _backward_peak(
    stages: Stages, rules: MemoryRules, i: int, size: Sequence[int], saved: set[int]
) -> int:
    """The most that the backward of stage i holds beside a[i], abar[i] and delta[i + 1].

    Negative if it begins by letting go of more than it makes.
    """
    graph, ops = stages.split.graph, stages.backward[i]
    following, before = set(stages.gradients[i]), set(stages.gradients[i + 1])
    made = {t for v in ops for t in graph.ops[v].outputs}
    mine = made | before | saved
    last = {t: p for p, v in enumerate(ops) for t in graph.ops[v].inputs if t in mine}
    held, peak = 0, 0 if not ops else -(1 << 62)
    for p, v in enumerate(ops):
        op = graph.ops[v]
        held += sum(size[t] for t in op.outputs)
        peak = max(peak, held + (op.workspace_bytes if rules.count_workspace else 0))
        touched = {t for t in (*op.inputs, *op.outputs) if t in mine and last.get(t, p) == p}
        held -= sum(size[t] for t in touched - following)
    return peak


def schedule_of(stages: Stages, sequence: Sequence[Operation], most: int | None) -> Schedule:
    """The real ops of a sequence, run at most `most` times each (None: no limit).

    What a sequence stores needs no telling: a value lives until the last reader before its op
    runs again.
    """
    return _schedule(stages, _runs(stages, sequence), most)


def _runs(stages: Stages, sequence: Iterable[Operation]) -> Iterator[tuple[int, ...]]:
    """The real ops of each operation."""
    for kind, i in sequence:
        yield stages.backward[i] if kind is ChainStep.BACKWARD else stages.forward[i]


def with_early_masks(stages: Stages, rules: MemoryRules) -> Stages:
    """The stages with the making of some masks moved from their backward to a forward step.

    A mask is what a backward step makes of forward values alone, such as the places of the maxima
    of a pooling. One for which more is held in passing than is left of it had better be made in
    the forward step that makes its last input, before the saved values of later stages pile up.
    What leads to a graph output within its own stage is no mask: where the loss is a stage of its
    own, the first gradients are made of forward values alone, too. The last stage stays, as its two
    steps follow one another.
    """
    forward, backward = list(stages.forward), list(stages.backward)
    for i, ops in _early_masks(stages, rules).items():
        forward[i] = (*forward[i], *ops)
        backward = [tuple(v for v in step if v not in ops) for step in backward]
    return replace(stages, forward=tuple(forward), backward=tuple(backward))


def _early_masks(stages: Stages, rules: MemoryRules) -> dict[int, tuple[int, ...]]:
    """By stage, the mask ops that had better run in its forward step, in the graph's order."""
    graph = stages.split.graph
    made_in = {v: i for i, ops in enumerate(stages.forward) for v in ops}
    size = [rules.nbytes(tensor) for tensor in graph.tensors]
    level = {v: i for i, ops in enumerate(stages.backward[:-1]) for v in ops}
    masks = []
    for v in stages.split.backward:
        made_in[v] = max((made_in[u] for u in graph.predecessors(v)), default=0)
        if v in level and made_in[v] <= level[v]:
            masks.append(v)
        else:
            made_in[v] = len(stages.forward)
    early: dict[int, tuple[int, ...]] = {}
    for ops in _connected(graph, masks):
        own = set(ops)
        made = {t for v in ops for t in graph.ops[v].outputs}
        left = {t for t in made if not own.issuperset(graph.readers[t])}
        gradients = not made.isdisjoint(graph.outputs)
        if not gradients and _peak(stages, rules, ops, size, left) > sum(size[t] for t in left):
            last = max(made_in[v] for v in ops)
            early[last] = tuple(sorted((*early.get(last, ()), *ops)))
    return early


def _connected(graph: Graph, ops: Sequence[int]) -> list[list[int]]:
    """The ops in parts that read nothing of one another, each ascending."""
    root = {v: v for v in ops}

    def find(v: int) -> int:
        while root[v] != v:
            root[v] = root[root[v]]
            v = root[v]
        return v

    for v in ops:
        for u in graph.predecessors(v):
            if u in root:
                root[find(u)] = find(v)
    parts: dict[int, list[int]] = {}
    for v in ops:
        parts.setdefault(find(v), []).append(v)
    return list(parts.values())


def canonical_schedule(stages: Stages, cached: Set[int], most: int | None) -> Schedule:
    """All stages forward; then, from the last, each again but for the `cached` ops (the last one
    not at all), and its backward (the canonical strategy of Kusumoto et al. 2019, section 3)."""
    runs: list[Sequence[int]] = list(stages.forward)
    for i in reversed(range(len(stages.forward))):
        if i < len(stages.forward) - 1:
            runs.append([v for v in stages.forward[i] if v not in cached])
        runs.append(stages.backward[i])
    return _schedule(stages, runs, most)


def _schedule(stages: Stages, runs: Iterable[Sequence[int]], most: int | None) -> Schedule:
    """Ops that must not run again, or no more, run the times they may, and their values stay.
    Repetitions that nobody reads are left out."""
    graph = stages.split.graph
    times = [0] * len(graph.ops)
    steps: list[int] = []
    for ops in runs:
        for v in ops:
            limit = most if graph.ops[v].recomputable else 1
            if limit is None or times[v] < limit:
                times[v] += 1
                steps.append(v)
    return without_unread(graph, Schedule(tuple(steps)))


class Chooser:
    """Keeps the best schedule of a problem among those it is shown, within limits.

    Starts with the given order and the starts of the problem. An iteration is a schedule shown.
    The deadline is asked before what would then not be tried: where it was over, it is `cut_short`.
    """

    def __init__(self, problem: Problem, deadline: Deadline) -> None:
        self.problem, self.deadline = problem, deadline
        begin = deadline.passed_seconds
        self.best = best_start(problem)
        measured = len(problem.graph.ops) + sum(map(len, problem.starts))
        self._seconds_a_step = (deadline.passed_seconds - begin) / max(measured, 1)
        report(deadline, self.best)

    def show(self, schedule: Schedule) -> Score | None:
        """Measure a schedule and keep it if it is the best; None if it is none of the problem, or
        if it is so long that it is given up at a stop."""
        self.deadline.count(1)
        if self._gave_up(schedule) or not admissible(self.problem, schedule):
            return None
        if self._gave_up(schedule):
            return None
        found = score(self.problem, schedule)
        if found.better_than(self.best, self.problem.budget_bytes):
            self.best = found
            report(self.deadline, found)
        return found

    def _gave_up(self, schedule: Schedule) -> bool:
        """Whether it is time to stop, and the schedule takes long."""
        return len(schedule) > MADE_AT_ONCE and self.deadline.out_of_time()

    def show_sequence(self, stages: Stages, sequence: Sequence[Operation]) -> Score | None:
        """Show the schedule of a sequence, unless it is so long that no time is left for it."""
        steps = sum(map(len, _runs(stages, sequence)))
        seconds = MAKING * steps * self._seconds_a_step
        if steps > MADE_AT_ONCE and seconds > self.deadline.left_seconds:
            self.deadline.cut_short = True
            return None
        return self.show(schedule_of(stages, sequence, self.problem.max_copies))

    def meets(self, found: Score | None) -> bool:
        """Whether a budget is asked for and met."""
        budget = self.problem.budget_bytes
        return found is not None and budget is not None and found.peak_bytes <= budget


Search = Callable[[TrainingSplit, Chooser], str]
"""Shows schedules of a training graph to a chooser; returns in words what was searched."""


def plan_training(problem: Problem, limits: Limits, planner: str, search: Search) -> Plan:
    """The best schedule that `search` shows. A graph that is no training graph keeps its order (or
    gets the best of `problem.starts`), and so does one of which nothing may be recomputed;
    `Plan.scope` says why."""
    deadline = Deadline(limits)
    bound = peak_bound(problem.graph, problem.rules).nbytes
    chooser = Chooser(problem, deadline)
    if problem.max_copies == 1:
        scope = "the given order: nothing may be recomputed"
    else:
        try:
            scope = search(split_training(problem.graph), chooser)
        except StoppedError:
            scope = NOTHING_TRIED
        except NotTrainingError as error:
            scope = f"the given order, as this is no training graph: {error}"
    if deadline.cut_short:
        scope = f"{scope}; {CUT_SHORT}"
    best = chooser.best.schedule
    return make_plan(problem, best, planner, peak_bound_bytes=bound, scope=scope)


def halving(count: int) -> list[int]:
    """0 to count - 1: the ends, then the middle of each gap left, the widest first."""
    order = [count - 1, 0] if count > 1 else list(range(count))
    gaps = [(0, count - 1)]
    while gaps:
        wider = []
        for low, high in gaps:
            middle = (low + high) // 2
            if low < middle < high:
                order.append(middle)
                wider += [(low, middle), (middle, high)]
        gaps = wider
    return order


def chains(split: TrainingSplit, chooser: Chooser, most: int) -> list[Stages]:
    """The forward as a chain cut at articulation points, and as one cut anywhere if that has more
    stages; then both with early masks, if there are any. Raises StoppedError once the limits are
    reached: where much crosses, a cut of 6,000 ops takes a second."""
    order = split.forward if chooser.problem.fixed_order else None
    late: list[Stages] = []
    for bundles in (False, True):
        chooser.deadline.ask()
        stages = cut(split, order, most=most, bundles=bundles)
        if not late or len(stages.forward) > len(late[0].forward):
            late.append(stages)
    found = list(late)
    for stages in late:
        chooser.deadline.ask()
        early = with_early_masks(stages, chooser.problem.rules)
        if early not in late:
            found.append(early)
    return found


def show_all(
    split: TrainingSplit,
    chooser: Chooser,
    most: int,
    sequences: Callable[[int], Iterable[Operations]],
) -> str:
    """Show a chooser the sequences for the number of stages of each chain; what it was, in
    words."""
    found = chains(split, chooser, most)
    for stages in found:
        for sequence in sequences(len(stages.forward)):
            if chooser.deadline.over():
                break
            chooser.deadline.evaluated(len(chooser.problem.graph.ops))
            chooser.show_sequence(stages, sequence)
    return described(found)


def described(stages: Sequence[Stages]) -> str:
    """Chains in words: how many stages (once for chains alike in that), and what could not be made
    a chain."""
    counts = " and ".join(dict.fromkeys(str(len(one.forward)) for one in stages))
    return "; ".join((f"chains of {counts} stages", *stages[0].notes[:2]))
