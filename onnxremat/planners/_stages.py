"""From the stages of a training graph to the chain model, and from sequences to schedules."""

import time
from collections.abc import Iterable, Sequence

from onnxremat.memory import MemoryRules
from onnxremat.plan import Limits, Problem, Progress
from onnxremat.planners._chain import Chain, Kind, Operation
from onnxremat.planners._engine import Score, admissible, score
from onnxremat.schedule import Schedule, given_order, without_unread
from onnxremat.training import Stages


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
    backward_reads = {t for reads in stages.split.reads.values() for t in reads}
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
    runs again. Ops that must not run again, or no more, run the times they may, and their values
    stay. Repetitions that nobody reads are left out.
    """
    graph = stages.split.graph
    runs = [0] * len(graph.ops)
    steps: list[int] = []
    for kind, i in sequence:
        for v in stages.backward[i] if kind is Kind.BACKWARD else stages.forward[i]:
            limit = most if graph.ops[v].recomputable else 1
            if limit is None or runs[v] < limit:
                runs[v] += 1
                steps.append(v)
    return without_unread(graph, Schedule(tuple(steps)))


class Chooser:
    """Keeps the best schedule of a problem among those it is shown, within limits.

    Starts with the given order and the starts of the problem. An iteration is a schedule shown.
    """

    def __init__(self, problem: Problem, limits: Limits, started: float) -> None:
        self.problem, self.limits, self.started = problem, limits, started
        self.shown = 0
        self.best = score(problem, given_order(problem.graph))
        for start in problem.starts:
            if admissible(problem, start):
                self._keep(score(problem, start))

    def over(self) -> bool:
        """Whether the limits are used up."""
        limits = self.limits
        return (
            (limits.iterations is not None and self.shown >= limits.iterations)
            or time.monotonic() - self.started >= limits.seconds
            or (limits.stop is not None and limits.stop())
        )

    def show(self, schedule: Schedule) -> Score | None:
        """Measure a schedule and keep it if it is the best; None if it is none of the problem."""
        self.shown += 1
        if not admissible(self.problem, schedule):
            return None
        found = score(self.problem, schedule)
        self._keep(found)
        return found

    def _keep(self, found: Score) -> None:
        if not found.better_than(self.best, self.problem.budget_bytes):
            return
        self.best = found
        if self.limits.on_progress is not None:
            seconds = time.monotonic() - self.started
            self.limits.on_progress(Progress(seconds, found.peak_bytes, found.time_cost))

    def meets(self, found: Score | None) -> bool:
        """Whether a budget is asked for and met."""
        budget = self.problem.budget_bytes
        return found is not None and budget is not None and found.peak_bytes <= budget
