"""`TileSearch`: which parts of a model run in tiles so that its peak keeps a budget.

    Subject -> the descent: smaller and smaller peaks -> the first within the budget -> cheaper ones

The *descent* looks for the smallest peak, step by step from the model's own, and is the same
whatever is asked for: a budget is met if the descent gets there. So every budget of at least the
smallest peak that is found is met too, and none below it. Then each question looks for plans that
cost less.

Both are counted in work, so that the same search ends at the same place. Were it ended by the clock
alone, a limit could be missed, or met at a higher cost, only since the machine was busier than when
the smallest peak was found. So its seconds stand for a number of planned nodes, and this is what
ends it. The clock is there for slow machines, has patience with them, and is one that
counts the seconds of this thread on a processor, not those in which others had it.
"""

import time
from dataclasses import replace

from onnxremat.core.bounds import PeakBound, op_bytes
from onnxremat.core.deadline import ENDLESS, Deadline
from onnxremat.core.graph import TensorKind
from onnxremat.core.problem import Limits
from onnxremat.core.units import format_bytes
from onnxremat.core.work import PATIENCE
from onnxremat.ort.blocked_layout import block_channels
from onnxremat.subject import Subject
from onnxremat.tiling.routes import (
    CARRYING,
    CHEAP,
    IN_STRIPS,
    NEAR_CUTS,
    PLAIN,
    Choice,
    Kind,
    Routes,
    Tiling,
)
from onnxremat.tiling.sequence import Sequence
from onnxremat.tiling.tiling_plan import TilingPlan
from onnxremat_rewriters.tile import TileView, never_cut, view

UNITS_A_SECOND = 20_000
"""Work that a second stands for: nodes planned or laid out in a tile. About as much as a quiet
processor does."""
MOST_EXPLAINED = 8
"""So many ops are asked at most why they cannot be cut."""
FIRST_STEP, LONGEST_STEP = 0.1, 0.25
"""How much lower than the smallest peak so far the next is looked for: at first, doubling as long
as it is found, and at most."""
KINDS = {PLAIN: 0.01, CARRYING: 0.04, IN_STRIPS: 0.04}
"""The tiles that are looked at, one kind after the other, and to which share the smallest peak of
each is looked for."""
ALIKE = 0.02
"""Of plans within this share of the smallest peak, the fastest is the one."""
CHEAPER_SHARE = 0.3
"""Of the work that the descent may do, what each question has to look for plans that cost less."""


def choose_regions(
    subject: Subject,
    budget_bytes: int | None,
    tiling: Tiling,
    limits: Limits,
) -> TilingPlan:
    """What a new `TileSearch` answers to one question, on the clock of this thread."""
    deadline = Deadline(limits, now=time.thread_time)
    return TileSearch(subject, tiling, deadline).plan(budget_bytes, limits.seconds)


_NO_PART = "no part of the model was found that holds less when it is cut"


class TileSearch:
    """The search for tiles of one subject; later questions go on from what earlier ones found.

    The seconds of `deadline` decide how much the descent looks at in all, as work that is counted;
    its clock is that of what is not counted, its `stop()` ends any question.
    """

    def __init__(
        self,
        subject: Subject,
        tiling: Tiling,
        deadline: Deadline,
    ) -> None:
        looked_at = _looked_at(subject)
        self._sequence = Sequence(subject.imported, looked_at, tiling.rules)
        self._tiling = tiling
        self._stop = deadline.limits.stop
        self._deadline = Deadline(ENDLESS.limits, now=deadline.now)
        nodes = len(subject.released.model.graph.node)
        self._routes = Routes(self._sequence, tiling, self._deadline, nodes)
        self._own_peak = max(self._sequence.step_bytes, default=0)
        self._found: list[Choice] = []
        self._missed = dict.fromkeys(KINDS, 0)
        self._step = dict.fromkeys(KINDS, FIRST_STEP)
        self._units = int(UNITS_A_SECOND * deadline.limits.seconds)
        self._cheaper_units = int(CHEAPER_SHARE * self._units)
        self._late = False

    def extend(self, seconds: float) -> None:
        """Let the descent look at more, as if it had been made for so many seconds more."""
        self._units += int(UNITS_A_SECOND * seconds)

    def narrow(self, nodes: int) -> None:
        """From now on, plans add so many nodes at most; those that were found and add more are
        forgotten."""
        self._routes.room = min(self._routes.room, nodes)
        self._found = [one for one in self._found if one.nodes <= nodes]

    def plan(self, budget_bytes: int | None, seconds: float) -> TilingPlan:
        """The regions with which the peak is predicted to keep `budget_bytes` at little cost; None:
        those with the smallest peak found, or within 2% of it, that add no more than another run's
        time.

        If no regions that are found reach the budget, the plan has the smallest peak found, and
        `reasons` say so. The tiled model has at most `most_nodes` nodes. `PATIENCE` times as many
        `seconds` (of this thread on a processor), and `stop()` turning true, cut the search short:
        where they do not, the same questions have the same answers.
        """
        if budget_bytes is not None and self._own_peak <= budget_bytes:
            return self._as_plan(None, ("whole ops keep the limit: nothing has to be cut",))
        deadline = self._deadline
        deadline.restart(Limits(PATIENCE * seconds, self._units, stop=self._stop))
        self._descend(budget_bytes)
        self._late = deadline.over()
        self._units = max(0, self._units - deadline.iterations)
        deadline.restart(Limits(deadline.left_seconds, self._cheaper_units, stop=self._stop))
        found = self._fastest(budget_bytes)
        if found is None:
            return self._as_plan(None, self._reasons(self._own_peak - 1))
        if not found.options:
            smallest = f"the smallest peak found in tiles is {format_bytes(self._peak)}"
            said = f"{smallest}, which is within {ALIKE:.0%} of that of whole ops"
            return self._as_plan(None, (said,))
        if budget_bytes is None or found.peak_bytes <= budget_bytes:
            return self._as_plan(found, ())
        missed = (
            f"no tiling within {format_bytes(budget_bytes)} was found, the smallest is "
            f"{format_bytes(found.peak_bytes)}"
        )
        return self._as_plan(found, (missed,))

    @property
    def _peak(self) -> int:
        """The smallest that is known."""
        return min((one.peak_bytes for one in self._found), default=self._own_peak)

    def _descend(self, until_bytes: int | None) -> None:
        """Lower the peak, to `until_bytes` or as far as it goes: first in plain tiles, which are
        soon looked through."""
        for kind in KINDS:
            while not self._deadline.over():
                if until_bytes is not None and self._peak <= until_bytes:
                    return
                target = self._next_target(kind)
                if target is None:
                    break
                found = self._routes.cheapest(target, kind, first=True)
                if found is not None:
                    self._found.append(found)
                    self._step[kind] = min(LONGEST_STEP, 2 * self._step[kind])
                elif not self._deadline.over():
                    self._missed[kind] = target

    def _next_target(self, kind: Kind) -> int | None:
        """The next peak to look for; None if the smallest is known well enough."""
        high, low = self._peak, self._missed[kind]
        if high - low <= max(1, KINDS[kind] * high):
            return None
        return (high + low) // 2 if low else int(high * (1 - self._step[kind]))

    def _fastest(self, budget_bytes: int | None) -> Choice | None:
        """The cheapest plan within the budget, or of about the smallest peak; the smallest if the
        budget was not met.

        A plain one is found sooner, and bounds the search for others.
        """
        if not self._found:
            return None
        limit = int((1 + ALIKE) * self._peak) if budget_bytes is None else budget_bytes
        if limit < self._peak:
            limit = int((1 + ALIKE) * self._peak)
        for kind in (PLAIN, IN_STRIPS, CARRYING):
            best = self._best(limit)
            if best.extra_ns <= CHEAP * self._routes.one_pass_ns or self._deadline.over():
                return best
            found = self._routes.cheapest(limit, kind, best.extra_ns)
            if found is not None:
                self._found.append(found)
        return self._best(limit)

    def _best(self, limit: int) -> Choice:
        within = (one for one in self._found if one.peak_bytes <= limit)
        return min(within, key=lambda one: (one.extra_ns, one.peak_bytes))

    def _as_plan(self, found: Choice | None, reasons: tuple[str, ...]) -> TilingPlan:
        plan = TilingPlan(
            (),
            self._own_peak,
            self._own_peak,
            0,
            self._routes.one_pass_ns,
            0,
            self._tiling.threads,
            self._tiling.allow_rounding,
            reasons=reasons,
            late=self._late,
        )
        if found is None:
            return plan
        tensors = self._sequence.imported.graph.tensors
        return replace(
            plan,
            regions=tuple(one.region for one in found.options if one.region is not None),
            peak_bytes=found.peak_bytes,
            extra_ns=found.extra_ns,
            nodes_added=found.nodes,
            recomputed=tuple(tensors[t].name for t in found.sequence.dropped),
        )

    def _reasons(self, budget_bytes: int) -> tuple[str]:
        """Why the ops above a budget stay as they are, in one line: what ended the first walk that
        failed at one of them, or the op that holds most and what ends tiles nearest to it."""
        if self._late:
            return ("the time for planning was over before tiles that help were found",)
        segments = self._routes.segments()
        held = self._sequence.step_bytes
        hot = [v for v, nbytes in enumerate(held) if nbytes > budget_bytes]
        for v in hot[:MOST_EXPLAINED]:
            segments.families(v + 1)
        failed = next((segments.failures[v] for v in hot if v in segments.failures), None)
        if failed is not None:
            if any(segments.families(v + 1) for v in range(len(held))):
                return (f"{_NO_PART}: {failed}",)
            return (f"no part of the model can be cut: {failed}",)
        most = max(range(len(held)), key=lambda v: held[v])
        op = self._sequence.imported.graph.ops[most]
        line = f"{_NO_PART}: {op.name} ({op.op_type}) has {format_bytes(held[most])} around it"
        for v in range(max(0, most - NEAR_CUTS), min(len(held), most + NEAR_CUTS)):
            segments.families(v + 1)
        if segments.failures:
            nearest = min(segments.failures, key=lambda v: abs(v - most))
            line += f"; what is nearest to it and ends tiles: {segments.failures[nearest]}"
        return (line,)


def _looked_at(subject: Subject) -> TileView:
    model = subject.released.model
    return view(model, subject.fixed_types, block_channels(model))


def uncut_bound(subject: Subject, tiling: Tiling) -> PeakBound:
    """What no tiles go below: the largest working set of an op of which no part can be made by
    itself, or the outputs, which are put together."""
    graph, rules = subject.imported.graph, tiling.rules
    looked_at = _looked_at(subject)
    outputs = sum(
        rules.nbytes(graph.tensors[t])
        for t in set(graph.outputs)
        if graph.tensors[t].kind is TensorKind.ACTIVATION
    )
    best = PeakBound(rules.constant_bytes(graph) + outputs, None, "graph outputs, held together")
    held = op_bytes(graph, rules)
    for v, node in enumerate(subject.imported.op_nodes):
        nbytes = held[v]
        if nbytes <= best.nbytes:
            continue
        why = never_cut(looked_at, node, tiling.threads, tiling.allow_rounding)
        if why is not None:
            best = PeakBound(nbytes, v, f"held around an op that is made whole: {why}")
    return best
