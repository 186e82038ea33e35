"""The depth-first post-order of the smallest peak: what ONNX Runtime's DEFAULT order can run.

The search of `onnxremat.core.depth_first` is a path of open nodes, each waiting for its producers.
What has run and the open path decide all that can follow, and the bytes held depend on what has run
alone (`exact_order.downsets`). So: branch and bound over such states, each looked at once for a
threshold, which is lowered below each order found until nothing is left: then the last one is the
smallest. A state that failed at a threshold fails at any lower one. Where it does not end, the
choices of the best order are changed at random as long as that makes no larger peak.

On trees this is the problem that Liu (1986) solves by sorting subtrees; on graphs a subtree's cost
depends on what has run before it, and the search is exponential in the number of choices.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from onnxremat.core.bounds import peak_bound
from onnxremat.core.deadline import Deadline
from onnxremat.core.depth_first import DepthFirst, Visit, ranks_of
from onnxremat.core.graph import Graph
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.problem import Limits, Plan, Problem, make_plan
from onnxremat.core.schedule import Schedule
from onnxremat.planners.exact_order.cuts import cut_bound
from onnxremat.planners.exact_order.downsets import DownsetWalk
from onnxremat.planners.exact_order.rising_threshold import STATE_SECONDS
from onnxremat.planners.search.engine import make_ready

CUT_SHARE = 0.1
EXACT_SHARE = 0.5
MOST_STATES = 2000
"""States and changes looked at where iterations are limited, as in `reorder`."""

_LOOKS = 64
_ROOT = -1

Path = tuple[int, ...]
"""Open nodes, the one to work on last; the first is _ROOT, which waits for the leaves."""


@dataclass(frozen=True)
class PostOrder:
    """`order` has the peak `peak_bytes`; if `complete`, no depth-first order has a smaller one."""

    order: tuple[int, ...]
    peak_bytes: int
    complete: bool


def depth_first_plan(problem: Problem, limits: Limits) -> Plan:
    """`reorder` for `Problem.depth_first`; the proof is for such orders."""
    deadline = Deadline(limits)
    graph, rules = problem.graph, problem.rules
    make_ready(deadline)
    most = None if limits.iterations is None else min(limits.iterations, MOST_STATES)
    bound = peak_bound(graph, rules).nbytes
    if not deadline.over():
        cut = cut_bound(graph, rules, deadline=deadline.until(CUT_SHARE), most_ops=most)
        bound = max(bound, cut.nbytes)
    found = best_post_order(
        graph,
        rules,
        max(bound, problem.budget_bytes or 0),
        exact=deadline.until(EXACT_SHARE),
        deadline=deadline,
        most_states=most,
        seed=limits.seed,
    )
    return make_plan(
        problem,
        Schedule(found.order),
        "reorder",
        peak_bound_bytes=found.peak_bytes if found.complete else bound,
        scope="depth-first orders without recomputation",
    )


def best_post_order(
    graph: Graph,
    rules: MemoryRules,
    target_bytes: int,
    *,
    exact: Deadline,
    deadline: Deadline,
    most_states: int | None = None,
    seed: int = 0,
) -> PostOrder:
    """The depth-first order of the smallest peak found; any with a peak of `target_bytes` will do.

    The exact search ends at `exact` or after `most_states` states, the random changes at
    `deadline` or after as many tries. Both ask now and then.
    """
    search = _PostorderSearch(graph, rules, exact, most_states)
    best = _improved(graph, rules, search.depth_first, search.first())
    while best.peak_bytes > target_bytes:
        order = search.below(best.peak_bytes)
        if order is None:
            break
        best = PostOrder(order, _peak(graph, rules, order), False)
    if best.peak_bytes <= target_bytes:
        return best
    if not search.gave_up:
        return PostOrder(best.order, best.peak_bytes, complete=True)
    return _changed(
        graph, rules, search.depth_first, best, target_bytes, deadline, most_states, seed
    )


def _peak(graph: Graph, rules: MemoryRules, order: tuple[int, ...]) -> int:
    return profile(graph, Schedule(order), rules).peak_bytes


def _improved(
    graph: Graph, rules: MemoryRules, search: DepthFirst, others: Iterator[Visit]
) -> PostOrder:
    """The best of some visits that files exist for; there is always one: the file as it is."""
    found = [visit.order for visit in others if search.positions(visit) is not None]
    best = min(found, key=lambda order: _peak(graph, rules, order))
    return PostOrder(best, _peak(graph, rules, best), False)


def _changed(
    graph: Graph,
    rules: MemoryRules,
    search: DepthFirst,
    best: PostOrder,
    target_bytes: int,
    deadline: Deadline,
    most_tries: int | None,
    seed: int,
) -> PostOrder:
    """Random changes of single choices, kept if the peak does not grow."""
    draw = random.Random(seed)
    ranks = ranks_of(best.order)
    visit = search.visit(ranks)
    tries = 0
    while visit.pairs and best.peak_bytes > target_bytes and not deadline.over():
        if most_tries is not None and tries >= most_tries:
            break
        tries += 1
        deadline.evaluated(len(graph.ops))
        changed = list(ranks)
        v, w = draw.choice(visit.pairs)
        if draw.random() < 0.5:
            w = draw.choice(draw.choice(visit.pairs))
        changed[v], changed[w] = changed[w], changed[v]
        other = search.visit(changed)
        if other.order == best.order or search.positions(other) is None:
            continue
        peak = _peak(graph, rules, other.order)
        if peak <= best.peak_bytes:
            best, ranks, visit = PostOrder(other.order, peak, False), changed, other
    return best


class _PostorderSearch:
    """Branch and bound over states; `gave_up` if it ended without an answer."""

    def __init__(
        self,
        graph: Graph,
        rules: MemoryRules,
        deadline: Deadline,
        most_states: int | None,
    ) -> None:
        self.depth_first = DepthFirst.of(graph)
        self.states = 0
        self.gave_up = False
        self._walk = DownsetWalk(graph, rules, join=False)
        self._deadline = deadline
        self._most_states = most_states
        self._failed: set[tuple[int, Path]] = set()

    def first(self) -> Iterator[Visit]:
        """Some visits to begin with: by the given order, and by the size of subtrees."""
        search = self.depth_first
        count = len(search.producers)
        yield search.default()
        yield search.visit(range(count))
        yield search.visit([-bits.bit_count() for bits in search.ancestors])
        yield search.visit([bits.bit_count() for bits in search.ancestors])

    def below(self, peak_bytes: int) -> tuple[int, ...] | None:
        """An order with a smaller peak than that."""
        walk = self._walk
        walk.back_to(0)
        path = self._forced((_ROOT,), peak_bytes)
        if path == ():
            return self._answer()
        stack = [] if path is None else [(len(walk.trail), path, self._open(path))]
        while stack and not self.gave_up:
            length, path, choices = stack[-1]
            walk.back_to(length)
            v = next(choices, None)
            if v is None:
                self._failed.add((walk.done, path))
                stack.pop()
                continue
            onward = self._forced((*path, v), peak_bytes)
            if onward is None or (walk.done, onward) in self._failed:
                continue
            if onward == ():
                answer = self._answer()
                if answer is not None:
                    return answer
                continue
            self.states += 1
            self._deadline.worked(STATE_SECONDS)
            if self.states == self._most_states or (
                self.states % _LOOKS == 0 and self._deadline.over()
            ):
                self.gave_up = True
            stack.append((len(walk.trail), onward, self._open(onward)))
        return None

    def _answer(self) -> tuple[int, ...] | None:
        """The order walked, if a file exists for it; otherwise nothing is proved any more."""
        order = self._walk.order()
        visit = self.depth_first.visit(ranks_of(order))
        if self.depth_first.positions(visit) is None:
            self.gave_up = True
            return None
        return order

    def _forced(self, path: Path, peak_bytes: int) -> Path | None:
        """Go on from an open path until there is a choice: the path then; () at the end of the
        graph; None if a step holds `peak_bytes` or more."""
        walk = self._walk
        while path:
            fresh = self._fresh(path[-1])
            if not fresh:
                if path[-1] == _ROOT:
                    return ()
                if walk.step_bytes(path[-1]) >= peak_bytes:
                    return None
                walk.run(path[-1])
                path = path[:-1]
                continue
            choices = self.depth_first.choices(fresh)
            if len(choices) > 1:
                return path
            path = (*path, choices[0])
        return ()

    def _fresh(self, v: int) -> list[int]:
        search = self.depth_first
        done = self._walk.done
        wanted = search.leaves if v == _ROOT else search.producers[v]
        return [p for p in wanted if not done >> p & 1]

    def _open(self, path: Path) -> Iterator[int]:
        """The choices at the end of a path, those with most to run before them first."""
        search = self.depth_first
        todo = ~self._walk.done
        choices = search.choices(self._fresh(path[-1]))
        return iter(sorted(choices, key=lambda p: (-(search.ancestors[p] & todo).bit_count(), p)))
