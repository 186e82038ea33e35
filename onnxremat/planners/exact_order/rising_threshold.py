"""The smallest peak of any order, proved: a search over downsets under a rising threshold.

For a threshold T the question is whether an order exists whose steps all hold at most T bytes. If
none does, the least step that was refused is the next threshold worth asking for; the first T with
an answer is the smallest peak. Each downset is looked at once per T. What keeps them few, with the
lemma of `exact_order.downsets`:

1. *Cuts.* An op that every other op comes before or behind is passed by every order, so what is in
   front of it and what is behind it are separate searches; the peak is the larger one.

2. *Free ops.* If a ready op v does not grow live(S) and its step holds at most T, then running it
   now loses nothing. Proof: take an order that continues from S within T, and move v to its front.
   For every downset S' that it passes before v, live(S' + v) <= live(S') and a step from S' + v
   grows no more than from S'; so no step gets larger.

3. *Hills* (Liu 1987, hill-valley segments, here beyond trees). A walk u1, C1, u2, C2, ... from S,
   where u(k+1) reads from uk, each op in Ck descends from uk and is free when it runs, may be run
   at once if all its steps hold at most T and it is the first of its kind to end with no more live
   than S. Proof: let V be its ops. As in 2, and because live is submodular, it is enough that
   live(S + V) <= live(P) for every downset P between S and S + V. If P is not S it holds a prefix
   u1 .. uk of the climbing ops, for they form a chain, and of the others only such of C1 .. Ck,
   for the rest descend from u(k+1). What it lacks of those is free by the lemma, so that live(P) is
   not below live(S + u1 + C1 .. + Ck), and that is above live(S) or is live(S + V) itself.

4. *Known failures.* A downset from which no order within T exists is remembered.

5. *Twin branches.* An automorphism s of the graph that keeps all sizes, in-place pairs and held
outputs maps orders to orders of equal steps (lemma of `exact_order.twins`), and a cut to itself:
the op that makes it is comparable to all others, and nothing is comparable to its own image but
itself. So no order within T continues from s(S) if none does from S: failures are remembered by the
downset with twin branches sorted, and of choices that lead to the same one all but the first fail
at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from onnxremat.core.deadline import Deadline
from onnxremat.core.graph import Graph
from onnxremat.core.memory import MemoryRules
from onnxremat.planners.exact_order.downsets import DownsetWalk
from onnxremat.planners.exact_order.twins import Twins, canonical, twins

_LOOKS = 256
_FEW_STATES = 64
STATE_SECONDS = 1e-4
"""Of work, counted for a state."""


@dataclass(frozen=True)
class ExactOrder:
    """What is proved: no order has a peak below `peak_bytes`.

    `order` has that peak, or less where the search began above the smallest. None if there is none
    below what was asked for, or if the search was cut short; `complete` tells which.
    """

    order: tuple[int, ...] | None
    peak_bytes: int
    complete: bool
    states: int


def exact_order(
    graph: Graph,
    rules: MemoryRules,
    from_bytes: int,
    *,
    below_bytes: int | None = None,
    deadline: Deadline,
    most_states: int | None = None,
) -> ExactOrder:
    """The order with the smallest peak, each op once; any with a peak of `from_bytes` will do.

    Orders of `below_bytes` or more are not looked for (such a one is known). The deadline is asked
    every few hundred states; `most_states` gives up after so many. Exponential in the width of the
    graph at worst.
    """
    if below_bytes is not None and from_bytes >= below_bytes:
        return ExactOrder(None, below_bytes, True, 0)
    search = _ThresholdSearch(graph, rules, deadline, most_states)
    threshold = from_bytes
    for goal in search.walk.cuts():
        while not search.reach(goal, threshold):
            if search.gave_up:
                return ExactOrder(None, threshold, False, search.states)
            threshold = search.refused_bytes
            if below_bytes is not None and threshold >= below_bytes:
                return ExactOrder(None, below_bytes, True, search.states)
    return ExactOrder(search.walk.order(), threshold, True, search.states)


class _ThresholdSearch:
    """Depth first from where the walk stands; `refused_bytes` is the least step that was too large.

    `gave_up` is set if the search ended without an answer.
    """

    def __init__(
        self,
        graph: Graph,
        rules: MemoryRules,
        deadline: Deadline,
        most_states: int | None,
    ) -> None:
        self.walk = DownsetWalk(graph, rules)
        self.states = 0
        self.refused_bytes = 0
        self.gave_up = False
        self._deadline = deadline
        self._most_states = most_states
        self._below = self.walk.descendants()
        self._graph, self._rules = graph, rules
        self._twins: tuple[Twins, ...] | None = None

    def reach(self, goal: int, threshold: int) -> bool:
        """Walk on to the downset `goal` with steps of at most `threshold` bytes, if that can be
        done; otherwise the walk is as it was."""
        walk = self.walk
        begin = len(walk.trail)
        self.refused_bytes = 0
        failed: set[int] = set()
        self._settle(threshold, goal)
        if walk.done == goal:
            return True
        stack = [(len(walk.trail), walk.done, self._choices(threshold, goal))]
        while stack:
            length, state, choices = stack[-1]
            walk.back_to(length)
            v = next(choices, None)
            if v is None:
                failed.add(self._key(state))
                stack.pop()
                continue
            walk.run(v)
            self._settle(threshold, goal)
            if walk.done == goal:
                return True
            if self._key(walk.done) in failed:
                continue
            self.states += 1
            if self.states >= _FEW_STATES and self._twins is None:
                self._twins = twins(self._graph, self._rules, walk.units)
                failed = {self._key(state) for state in failed}
            if self._exhausted():
                self.gave_up = True
                break
            stack.append((len(walk.trail), walk.done, self._choices(threshold, goal)))
        walk.back_to(begin)
        return False

    def _key(self, done: int) -> int:
        """What stands for a downset in the list of failures: itself until it is known which
        branches are twins, which is found out when there are more than a few states."""
        return done if self._twins is None else canonical(done, self._twins)

    def _exhausted(self) -> bool:
        if self._most_states is not None and self.states >= self._most_states:
            return True
        self._deadline.worked(STATE_SECONDS)
        return self.states % _LOOKS == 0 and self._deadline.over()

    def _choices(self, threshold: int, goal: int) -> Iterator[int]:
        """Ready ops within the threshold, those that grow least first."""
        walk = self.walk
        fitting = [v for v in walk.ready if goal >> v & 1 and self._fits(v, threshold)]
        return iter(sorted(fitting, key=lambda v: (walk.growth(v), v)))

    def _fits(self, v: int, threshold: int) -> bool:
        nbytes = self.walk.step_bytes(v)
        if nbytes <= threshold:
            return True
        if not self.refused_bytes or nbytes < self.refused_bytes:
            self.refused_bytes = nbytes
        return False

    def _settle(self, threshold: int, goal: int) -> None:
        """Run free ops and hills until none is left."""
        while self._run_free(threshold, goal) or self._run_hill(threshold, goal):
            continue

    def _run_free(self, threshold: int, goal: int, among: int = -1) -> bool:
        """Run free ops, only those in the bits `among`, until there are none; whether any ran."""
        walk = self.walk
        ran = False
        again = True
        while again:
            again = False
            for v in sorted(walk.ready):
                inside = goal >> v & 1 and among >> v & 1
                if inside and walk.growth(v) <= 0 and self._fits(v, threshold):
                    walk.run(v)
                    ran = again = True
        return ran

    def _run_hill(self, threshold: int, goal: int) -> bool:
        """Run one hill, if there is one; whether it ran."""
        walk = self.walk
        length, foot = len(walk.trail), walk.live_bytes
        for first in sorted(walk.ready):
            if not goal >> first & 1:
                continue
            v: int | None = first
            while v is not None and self._fits(v, threshold):
                walk.run(v)
                self._run_free(threshold, goal, self._below[v])
                if walk.live_bytes <= foot:
                    return True
                v = self._only_next(v, goal)
            walk.back_to(length)
        return False

    def _only_next(self, v: int, goal: int) -> int | None:
        """The one ready op that reads from v, if there is just one."""
        ready = [w for w in self.walk.successors[v] if w in self.walk.ready and goal >> w & 1]
        return ready[0] if len(ready) == 1 else None
