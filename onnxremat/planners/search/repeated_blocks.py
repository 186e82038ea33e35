"""A start for the search on graphs of repeated blocks: one decision for all copies of a value.

Layers of a network, and in training graphs their backward parts, are the same subgraph again and
again. Ops are coloured by what they are and by what is around them (colour refinement, Weisfeiler
and Leman 1968), to a small depth so that the ends of the graph do not make all layers different.

Our own method. A *gap* is the time between two successive reads of a value in an order, its making
counting as a read. Giving the value up over a gap means to run its op again right before the read
that ends it, with those predecessors whose values are gone by then. Gaps of values of one colour
that end at reads by ops of one colour form a *family*: tens of them, however many layers. Families
are given up one by one, that of the most excess freed for its time first (excess: bytes held above
the budget, summed over the steps). The time is found from one member of each colour, so it takes
what one block takes. Then the whole is measured, and members are taken back while the budget is
met. Values that are read across many blocks (residual sums that are all given up) make long chains;
where those pay, `local_search` finds better plans on its own.
"""

import heapq
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from onnxremat.core.deadline import ENDLESS, Deadline
from onnxremat.core.graph import Graph, TensorKind
from onnxremat.core.memory import MemoryRules, inplace_allowed, profile
from onnxremat.core.problem import Problem
from onnxremat.core.schedule import Schedule, without_unread
from onnxremat.planners.search.engine import Score, score
from onnxremat.planners.search.flat import Ints

DEPTH = 3
"""How far around an op its colour looks."""

FEWEST_OPS = 300
FEWEST_COPIES = 3
"""Copies that make an op repeated."""

REPEATED_SHARE = 0.5
"""A graph repeats itself if this share of its ops is repeated."""

NEAR = (32, 4)
"""A value read or made at most so many ops ago is read again rather than made again; tried both."""

LONGEST_CHAIN = 200
"""The most ops that run again before one; beyond, values are held for longer."""

PATIENCE = 2
MEASURED_AGAIN = 12
"""Most times that the whole sequence is measured while families are chosen."""


def colours(graph: Graph, rules: MemoryRules, depth: int = DEPTH) -> list[int]:
    """A colour of each op: equal if the ops are alike, and all around them up to `depth` steps.

    O(depth x reads).
    """
    held = set(graph.outputs)
    colour = _numbered(
        (
            op.op_type, op.cost, op.workspace_bytes, op.recomputable, op.eager,
            tuple((rules.nbytes(graph.tensors[t]), t in held) for t in op.outputs),
            tuple((graph.tensors[t].kind, rules.nbytes(graph.tensors[t])) for t in op.inputs),
            tuple(
                pair
                for pair in rules.inplace.get(op.op_type, ())
                if pair[0] < len(op.inputs) and pair[1] < len(op.outputs)
                and inplace_allowed(graph, op.inputs[pair[0]], op.outputs[pair[1]], op.inputs)
            ),
        )
        for op in graph.ops
    )  # fmt: skip
    place = [0] * len(graph.tensors)
    for op in graph.ops:
        for k, t in enumerate(op.outputs):
            place[t] = k
    for _ in range(depth):
        colour = _numbered(
            (
                colour[v],
                tuple(
                    (colour[graph.producer[t]], place[t]) if graph.producer[t] >= 0 else None
                    for t in op.inputs
                ),
                tuple(tuple(sorted(colour[r] for r in graph.readers[t])) for t in op.outputs),
            )
            for v, op in enumerate(graph.ops)
        )
    return colour


def _numbered(keys: Iterable[object]) -> list[int]:
    number: dict[object, int] = {}
    return [number.setdefault(key, len(number)) for key in keys]


def repeats(graph: Graph, rules: MemoryRules) -> bool:
    """Whether a graph is large and made of repeated blocks, so that `block_plan` is worth it."""
    if len(graph.ops) < FEWEST_OPS:
        return False
    count = Counter(colours(graph, rules))
    repeated = sum(n for n in count.values() if n >= FEWEST_COPIES)
    return repeated >= REPEATED_SHARE * len(graph.ops)


def block_plan(problem: Problem, order: Schedule, deadline: Deadline = ENDLESS) -> Schedule | None:
    """A schedule of the problem with the first executions of `order`, which repeats nothing.

    Meets the budget, or has the smallest peak found. None without a budget, or if nothing was found
    by the deadline. Two orders and two values of NEAR are tried; each takes
    O(families x (steps + sampled chains)) for a family chosen and O(steps + reads) for a measure.
    """
    if problem.budget_bytes is None or problem.max_copies == 1 or not order.steps:
        return None
    best: Score | None = None
    colour = colours(problem.graph, problem.rules)
    orders = (order,) if problem.fixed_order else (tightened(problem, order), order)
    made: dict[Schedule, _Order] = {}
    for near, one in product(NEAR, orders):
        if deadline.over():
            break
        if one not in made:
            made[one] = _Order(problem, one, colour)
        found = _BlockChoice(problem, made[one], near).best(deadline)
        if best is None or found.better_than(best, problem.budget_bytes):
            best = found
    return None if best is None else best.schedule


def tightened(problem: Problem, order: Schedule) -> Schedule:
    """An order without repetitions in which single ops moved to where values are short.

    An op moves up behind what makes its last input, or down to its first reader, if the values it
    reads and makes are then held for fewer byte-steps: the comparison with zero that the gradient
    of Relu reads is a quarter of its input. O(reads log ops).
    """
    steps = order.steps
    for up in (True, False):
        place = {v: p for p, v in enumerate(steps)}
        for v in steps if up else reversed(steps):
            _move(problem, place, v, up=up)
        steps = tuple(sorted(steps, key=place.__getitem__))  # stable: ties stay in order
    return Schedule(steps)


def _move(problem: Problem, place: dict[int, int], v: int, *, up: bool) -> None:
    """Move an op up to its last input or down to its first reader if that saves byte-steps."""
    graph, nbytes = problem.graph, problem.rules.nbytes
    op, here = graph.ops[v], place[v]
    inputs = [t for t in dict.fromkeys(op.inputs) if graph.producer[t] >= 0]
    ends = (
        [place[graph.producer[t]] for t in inputs]
        if up
        else [place[r] for t in op.outputs for r in graph.readers[t]]
    )
    if not ends or op.eager:
        return
    there = max(ends) if up else min(ends)
    change = sum(nbytes(graph.tensors[t]) for t in op.outputs) * (here - there)
    for t in inputs:
        others = max((place[r] for r in graph.readers[t] if r != v), default=-1)
        change += nbytes(graph.tensors[t]) * (max(there, others) - max(here, others))
    if change < 0:
        place[v] = there


Bools = npt.NDArray[np.bool_]
Gap = tuple[int, int]
"""A tensor, and which of its reads (by place in the order) ends the gap."""


@dataclass(frozen=True, slots=True)
class _Family:
    """Gaps of one kind, the longest first: their bounds as places, and the bytes of each."""

    gaps: tuple[Gap, ...]
    begin: Ints
    end: Ints
    nbytes: int


class _Order:
    """An order without repetitions, who reads what where, and its families of gaps."""

    def __init__(self, problem: Problem, order: Schedule, colour: Sequence[int]) -> None:
        self.graph = graph = problem.graph
        self.steps = order.steps
        self.place = [0] * len(graph.ops)
        for p, v in enumerate(order.steps):
            self.place[v] = p
        self.reads = [sorted(self.place[r] for r in readers) for readers in graph.readers]
        self.inputs = [
            tuple(
                t
                for t in dict.fromkeys(op.inputs)
                if graph.tensors[t].kind is TensorKind.ACTIVATION
            )
            for op in graph.ops
        ]
        self.once = [not op.recomputable or op.eager for op in graph.ops]
        self.colour = colour
        self.families = self._families(problem.rules)
        self.weight = self._weights()
        self.looked_at = [self._looked_at(family) for family in self.families]

    def made(self, t: int) -> int:
        """The place of the op that makes an activation."""
        return self.place[self.graph.producer[t]]

    def _families(self, rules: MemoryRules) -> list[_Family]:
        members: dict[tuple[int, int, int, int], list[tuple[int, int, Gap]]] = defaultdict(list)
        for v in self.steps:
            op = self.graph.ops[v]
            for k, t in enumerate(op.outputs):
                nbytes = rules.nbytes(self.graph.tensors[t])
                if self.once[v] or not nbytes:
                    continue
                before = self.place[v]
                for j, p in enumerate(self.reads[t]):
                    if p > before + 1:
                        kind = (nbytes, self.colour[v], k, self.colour[self.steps[p]])
                        members[kind].append((before, p, (t, j)))
                    before = p
        families = []
        for kind, found in members.items():
            found.sort(key=lambda one: (one[0] - one[1], one[2]))
            begin, end, gaps = zip(*found, strict=True)
            families.append(_Family(gaps, np.array(begin), np.array(end), kind[0]))
        return families

    def _weights(self) -> dict[int, int]:
        """The place of one op of each colour, the middle one, with how many it stands for."""
        where = defaultdict(list)
        for p, v in enumerate(self.steps):
            where[self.colour[v]].append(p)
        return {found[len(found) // 2]: len(found) for found in where.values()}

    def _looked_at(self, family: _Family) -> list[int]:
        """The places with a weight where gaps of a family end."""
        return [int(p) for p in family.end if int(p) in self.weight]


class _Maker:
    """Makes sequences of an order in which values are given up over some gaps."""

    def __init__(self, order: _Order, near: int, most_runs: int | None) -> None:
        self.order, self.near, self.most_runs = order, near, most_runs

    def chains(self, given_up: set[Gap], places: Iterable[int]) -> dict[int, list[int]]:
        """What runs again right before the ops at some ascending places, in that order."""
        order = self.order
        made_again: dict[int, int] = {}
        runs: Counter[int] = Counter()
        result = {}
        for p in places:
            chain: list[int] = []
            for t in order.inputs[order.steps[p]]:
                self._make(t, p, given_up, made_again, runs, chain)
            if chain:
                result[p] = chain
        return result

    def _make(
        self,
        tensor: int,
        p: int,
        given_up: set[Gap],
        made_again: dict[int, int],
        runs: Counter[int],
        chain: list[int],
    ) -> None:
        """Append to `chain` what makes a tensor at a place, if it is not held there."""
        order = self.order
        stack = [(tensor, False)]
        while stack:
            t, ready = stack.pop()
            v = order.graph.producer[t]
            if ready:
                if made_again.get(t, -1) < p or v not in chain:
                    chain.append(v)
                    runs[v] += 1
                    for other in order.graph.ops[v].outputs:
                        made_again[other] = p
                continue
            if order.once[v] or len(chain) + len(stack) > LONGEST_CHAIN:
                continue
            if self.most_runs is not None and runs[v] + 1 >= self.most_runs:
                continue
            if p - made_again.get(t, -self.near - 1) <= self.near or self._held(t, p, given_up):
                continue
            stack.append((t, True))
            stack += [(u, False) for u in order.inputs[v]]

    def _held(self, t: int, p: int, given_up: set[Gap]) -> bool:
        """Whether a value is held at a place, or was just before."""
        reads = self.order.reads[t]
        j = bisect_left(reads, p)
        before = reads[j - 1] if j else self.order.made(t)
        return p - before <= self.near or (j < len(reads) and (t, j) not in given_up)

    def cost(self, given_up: set[Gap], families: Iterable[int]) -> int:
        """The time of what runs again for some families, by the chains of some ops of each colour.

        `given_up` are the gaps of those families.
        """
        order = self.order
        places = {p for f in families for p in order.looked_at[f]}
        return sum(
            order.weight[p] * sum(order.graph.ops[v].cost for v in chain)
            for p, chain in self.chains(given_up, sorted(places)).items()
        )

    def sequence(self, given_up: set[Gap]) -> tuple[Schedule, Ints]:
        """The whole sequence, and where in it each place of the order begins."""
        order = self.order
        chains = self.chains(given_up, sorted({order.reads[t][j] for t, j in given_up}))
        steps: list[int] = []
        starts = np.zeros(len(order.steps), dtype=np.int64)
        for p, v in enumerate(order.steps):
            starts[p] = len(steps)
            steps += chains.get(p, ())
            steps.append(v)
        return Schedule(tuple(steps)), starts


class _BlockChoice:
    """The choice of families for a budget: how many gaps of each are given up."""

    def __init__(self, problem: Problem, order: _Order, near: int) -> None:
        self.problem = problem
        self.budget = problem.budget_bytes or 0
        self.order = order
        self.maker = _Maker(self.order, near, problem.max_copies)
        self.taken: dict[int, int] = {}
        self.given_up: set[Gap] = set()
        self.price: dict[int, int] = {}
        self.spent = 0

    def best(self, deadline: Deadline) -> Score:
        """The best schedule found. It gets two chances to become faster once the budget is met."""
        best, live = self._measured()
        idle = 0
        for _ in range(MEASURED_AGAIN):
            if best.peak_bytes <= self.budget and idle == PATIENCE:
                break
            over = (live > self.budget).any()
            if deadline.over() or (over and not self._choose(live, deadline)):
                break
            if not over and not self._take_back(live):
                break
            found, live = self._measured()
            better = found.better_than(best, self.budget)
            best, idle = (found, 0) if better else (best, idle + 1)
        return best

    def _measured(self) -> tuple[Score, Ints]:
        """The schedule now, and the most bytes held at each place of the order, with what runs
        again there."""
        given_up = {
            gap for f, count in self.taken.items() for gap in self.order.families[f].gaps[:count]
        }
        schedule, starts = self.maker.sequence(given_up)
        graph, rules = self.problem.graph, self.problem.rules
        held = profile(graph, schedule, rules)
        live = np.maximum.reduceat(np.array(held.live_bytes, dtype=np.int64), starts)
        short = without_unread(graph, schedule, idle_firsts=self.problem.fixed_order)
        if len(short) == len(schedule):
            return Score(schedule, held.peak_bytes, schedule.cost(graph)), live
        return score(self.problem, short), live

    def _choose(self, live: Ints, deadline: Deadline) -> bool:
        """Give up families until nothing seems to be above the budget; False if none helps."""
        excess = np.maximum(live - self.budget, 0)
        changed = False
        while excess.any() and not deadline.over():
            f = self._pick(excess > 0)
            if f is None:
                break
            family, first = self.order.families[f], self.taken.get(f, 0)
            count = self._enough(family, first, excess)
            excess = np.maximum(excess - self._freed(family, first, count), 0)
            self.taken[f] = count
            self.given_up.update(family.gaps)
            self.spent = self._cost()
            changed = True
        return changed

    def _pick(self, over: Bools) -> int | None:
        """The family that frees the most where it is needed for its time; None if none does.

        Prices known from before order the queue; only what comes first is priced anew.
        """
        before = np.concatenate(([0], np.cumsum(over)))
        queue = []
        for f, family in enumerate(self.order.families):
            first = self.taken.get(f, 0)
            steps = before[family.end[first:]] - before[family.begin[first:] + 1]
            freed = family.nbytes * int(steps.sum())
            if not freed:
                continue
            if f not in self.price:
                self.price[f] = self._price(f)
            queue.append((-freed / self.price[f], f, freed))
        heapq.heapify(queue)
        while queue:
            _, f, freed = heapq.heappop(queue)
            self.price[f] = self._price(f)
            if not queue or -freed / self.price[f] <= queue[0][0]:
                return f
            heapq.heappush(queue, (-freed / self.price[f], f, freed))
        return None

    def _enough(self, family: _Family, first: int, excess: Ints) -> int:
        """The fewest members that leave no more excess than all do, beyond the first ones."""

        def left(count: int) -> int:
            return int(np.maximum(excess - self._freed(family, first, count), 0).sum())

        low, high = first + 1, len(family.gaps)
        least = left(high)
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if left(middle) <= least else (middle + 1, high)
        return high

    def _cost(self, *more: int) -> int:
        return self.maker.cost(self.given_up, (*self.taken, *more))

    def _price(self, f: int) -> int:
        """What giving up all of a family adds to the time."""
        if f in self.taken:
            return self.price[f]
        gaps = self.order.families[f].gaps
        self.given_up.update(gaps)
        cost = self._cost(f)
        self.given_up.difference_update(gaps)
        return max(cost - self.spent, 1)

    def _freed(self, family: _Family, first: int, last: int | None = None) -> Ints:
        """The bytes that some members of a family free at each place."""
        change = np.zeros(len(self.order.steps) + 1, dtype=np.int64)
        np.add.at(change, family.begin[first:last] + 1, family.nbytes)
        np.add.at(change, family.end[first:last], -family.nbytes)
        return np.cumsum(change)[:-1]

    def _take_back(self, live: Ints) -> bool:
        """Take members back that seem not to be needed, what costs most first."""
        changed = False
        saving = {}
        for f in self.taken:
            gaps = self.order.families[f].gaps
            self.given_up.difference_update(gaps)
            saving[f] = self.spent - self._cost()
            self.given_up.update(gaps)
        for f in sorted(self.taken, key=lambda f: -saving[f]):
            family, count = self.order.families[f], self.taken[f]
            low, high = 0, count
            while low < high:
                middle = (low + high) // 2
                if (live + self._freed(family, middle, count)).max() <= self.budget:
                    high = middle
                else:
                    low = middle + 1
            if high == count:
                continue
            live = live + self._freed(family, high, count)
            changed = True
            self.taken[f] = high
            if not high:
                del self.taken[f]
                self.given_up.difference_update(family.gaps)
                self.spent = self._cost()
        return changed
