"""The retention-interval model of MOCCASIN for CP-SAT (see `moccasin` for the source).

An op has runs 0 .. copies - 1, each with a start and, from the second on, a literal that says
whether it happens. An output of a run is retained over the closed interval from that start to an
end of its own. Time is counted in *slots*. In the staged domain slot (k, v) is the place of op v
in stage k, the stage that ends with the first execution of op k; in the free one a slot is just a
place in the sequence.

Stages are numbered so that a start is an affine function of its stage (n k + v for n ops, where
the paper has k (k + 1) / 2 + v): domains without holes are what makes presolve and search fast.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from ortools.sat.python import cp_model

from onnxremat.core.deadline import ENDLESS, Deadline
from onnxremat.core.graph import TensorKind
from onnxremat.core.memory import inplace_allowed, profile
from onnxremat.core.problem import Problem
from onnxremat.core.schedule import NEVER, Schedule, given_order, instances

Place = cp_model.LinearExprT
Literal = cp_model.LiteralT


@dataclass(frozen=True, slots=True)
class Shape:
    """What is modelled: at most `copies` executions of an op, in the staged domain or the free one.

    `idle_firsts` allows a first execution that nobody reads, as the paper does. `reservoir` states
    precedence by reservoirs instead of literals. Ops outside `free` keep the runs of the hint.
    """

    copies: int
    staged: bool
    idle_firsts: bool
    reservoir: bool = False
    free: frozenset[int] | None = None


class Retention:
    """The model of a problem within `budget_bytes`: time is minimised (equation 1), or, with
    `lowest_peak`, the larger of the peak and the budget (equation 12).

    O(copies^2 x reads) literals, O(copies x tensors) intervals. The redundant knapsacks of the
    staged domain add a literal for each pair of a tensor and a stage that it is held across.
    Raises StoppedError if that is not done by the deadline.
    """

    def __init__(
        self,
        problem: Problem,
        shape: Shape,
        budget_bytes: int,
        *,
        hint: Schedule | None = None,
        lowest_peak: bool = False,
        deadline: Deadline = ENDLESS,
    ) -> None:
        self.problem, self.shape, self.hint, self.deadline = problem, shape, hint, deadline
        self.graph, self.rules = problem.graph, problem.rules
        self.model = cp_model.CpModel()
        graph, count = self.graph, len(self.graph.ops)
        self.size = [self.rules.nbytes(t) for t in graph.tensors]
        self.held = set(graph.outputs)
        self.made = [t for op in graph.ops for t in op.outputs]
        self.runs = [self._runs(v) for v in range(count)]
        self.horizon = count * count - 1 if shape.staged else sum(self.runs) - 1
        self.last_stage = self._last_stages()
        self.kept = self._slots_of(hint) if hint is not None else {}
        self.start: list[list[Place]] = []
        self.placing: dict[tuple[int, int], cp_model.IntVar] = {}
        self.active: list[list[Literal]] = []
        self.end: dict[tuple[int, int], cp_model.IntVar] = {}
        self.read: dict[tuple[int, int, int, int], Literal] = {}
        self.taken: dict[tuple[int, int], list[Literal]] = {}
        self.unit = self._unit()
        self._make_runs()
        self._make_ends()
        self._state_precedence()
        self._state_takeovers()
        self._state_use()
        self.capacity = self._capacity(budget_bytes, lowest_peak=lowest_peak)
        self.floor = self._scaled(budget_bytes)
        self._state_capacity()
        if shape.staged:
            self._state_knapsacks()
        if hint is not None:
            self._give_hint(hint)
        self.time_unit = gcd(*(op.cost for op in graph.ops)) or 1
        if lowest_peak:
            self.model.minimize(self.capacity)
        else:
            self.model.minimize(self._extra_time())

    def bytes_of(self, scaled: int) -> int:
        """Bytes that a value of the capacity stands for."""
        return scaled * self.unit + self.rules.constant_bytes(self.graph)

    def steps(self, value: "cp_model.CpSolver | cp_model.CpSolverSolutionCallback") -> list[int]:
        """The sequence of a solution."""
        placed = [
            (value.value(self.start[v][i]), v)
            for v, row in enumerate(self.active)
            for i, active in enumerate(row)
            if value.boolean_value(active)
        ]
        return [v for _, v in sorted(placed)]

    def slot(self, stage: int, v: int) -> int:
        """The number of op v's slot in a stage (v <= stage)."""
        return stage * len(self.graph.ops) + v

    def _extra_time(self) -> cp_model.LinearExprT:
        """The time of all but first executions, in units of `time_unit`."""
        return cp_model.LinearExpr.sum(
            [
                (self.graph.ops[v].cost // self.time_unit) * active
                for v, row in enumerate(self.active)
                for active in row[1:]
            ]
        )

    # Variables.

    def _runs(self, v: int) -> int:
        op = self.graph.ops[v]
        wanted = any(self.graph.readers[t] or t in self.held for t in op.outputs)
        if not wanted or not op.recomputable or op.eager:
            return 1
        return self.shape.copies

    def _last_stages(self) -> list[int]:
        """The last stage in which a run of each op can be of use to somebody."""
        graph = self.graph
        last = list(range(len(graph.ops)))
        for v in reversed(range(len(graph.ops))):
            for t in graph.ops[v].outputs:
                users = [last[w] if self.runs[w] > 1 else w for w in graph.readers[t]]
                end = [len(graph.ops) - 1] if t in self.held else []
                last[v] = max([last[v], *users, *end])
        return last

    def _make_runs(self) -> None:
        for v in self.deadline.asking(range(len(self.graph.ops))):
            starts: list[Place] = []
            actives: list[Literal] = []
            fixed = self.shape.free is not None and v not in self.shape.free
            for i in range(self.runs[v]):
                place = self._kept(v, i) if fixed else self._place(v, i)
                if place is None:
                    break
                starts.append(place)
                certain = i == 0 or fixed
                actives.append(True if certain else self.model.new_bool_var(f"active {v} {i}"))
                if i > 1:
                    self.model.add_implication(actives[i], actives[i - 1])
            self.runs[v] = len(starts)
            self.start.append(starts)
            self.active.append(actives)
        if not self.shape.staged:
            self._state_one_at_a_time()

    def _kept(self, v: int, i: int) -> Place | None:
        """The start of a run that may not change; None: there is no such run."""
        if not self.shape.staged and i == 0:
            return self._place(v, i)
        kept = self.kept.get(v, [self.slot(v, v)])
        if i >= len(kept):
            return None
        return kept[i] if self.shape.staged else self._place(v, i)

    def _place(self, v: int, i: int) -> Place | None:
        """The start of a run; None if there is no place for it."""
        if not self.shape.staged:
            place = self.model.new_int_var(0, self.horizon, f"start {v} {i}")
            self.placing[v, i] = place
            return place
        if i == 0:
            return self.slot(v, v)
        if v + i > self.last_stage[v]:
            return None
        stage = self.model.new_int_var(v + i, self.last_stage[v], f"stage {v} {i}")
        self.placing[v, i] = stage
        return self.slot(0, v) + len(self.graph.ops) * stage

    def _state_one_at_a_time(self) -> None:
        """Equation 6, and no slot left empty before the last execution."""
        model = self.model
        everyone = [(v, i) for v, row in enumerate(self.start) for i in range(len(row))]
        model.add_no_overlap(
            model.new_optional_fixed_size_interval_var(
                self.start[v][i], 1, self.active[v][i], f"step {v} {i}"
            )
            for v, i in everyone
        )
        executions = cp_model.LinearExpr.sum([self.active[v][i] for v, i in everyone])
        for v, i in self.deadline.asking(everyone):
            model.add(self.start[v][i] < executions).only_enforce_if(self.active[v][i])
        if self.problem.fixed_order:
            for v in self.deadline.asking(range(len(self.graph.ops) - 1)):
                model.add(self.start[v][0] < self.start[v + 1][0])

    def _make_ends(self) -> None:
        model = self.model
        for t in self.deadline.asking(self.made):
            v = self.graph.producer[t]
            for i in range(self.runs[v]):
                first = self.slot(v + i, v) if self.shape.staged else 0
                end = model.new_int_var(first, self.horizon, f"end {t} {i}")
                self.end[t, i] = end
                model.add(self.start[v][i] <= end)
                if i:
                    enforced = model.add(self.end[t, i - 1] <= self.start[v][i])
                    enforced.only_enforce_if(self.active[v][i])
                if t in self.held:
                    last = model.add(end == self.horizon)
                    last.only_enforce_if(self._is_last(v, i))

    def _is_last(self, v: int, i: int) -> list[Literal]:
        """Literals that together say that run i is the last one of op v."""
        following = [_negated(self.active[v][i + 1])] if i + 1 < self.runs[v] else []
        return [self.active[v][i], *following]

    # Constraints.

    def _reads(self) -> Iterator[tuple[int, int]]:
        for w, op in enumerate(self.graph.ops):
            for t in dict.fromkeys(op.inputs):
                if self.graph.tensors[t].kind is TensorKind.ACTIVATION:
                    yield t, w

    def _state_precedence(self) -> None:
        """Equation 5: each run of a reader starts within one retention of what it reads."""
        for t, w in self.deadline.asking(self._reads()):
            if self.shape.reservoir:
                self._state_reservoir(t, w)
                continue
            u = self.graph.producer[t]
            for i in range(self.runs[w]):
                literals = [self._reading(t, u, j, w, i) for j in range(self.runs[u])]
                self.model.add(cp_model.LinearExpr.sum(literals) == self.active[w][i])

    def _reading(self, t: int, u: int, j: int, w: int, i: int) -> Literal:
        model = self.model
        if self.runs[u] == 1 and i == 0:
            literal: Literal = True
        else:
            literal = model.new_bool_var(f"read {t} {j} by {w} {i}")
        self.read[t, j, w, i] = literal
        begin = self.start[w][i]
        enforced = [model.add(self.end[t, j] >= begin), model.add(self.start[u][j] < begin)]
        for constraint in enforced:
            constraint.only_enforce_if(literal)
        if j:
            model.add_implication(literal, self.active[u][j])
        return literal

    def _state_reservoir(self, t: int, w: int) -> None:
        """Equation 10; the retention ends behind its last slot."""
        u = self.graph.producer[t]
        times: list[cp_model.LinearExprT] = []
        changes: list[int] = []
        actives: list[Literal] = []
        for j in range(self.runs[u]):
            times += [self.start[u][j], self.end[t, j] + 1]
            changes += [1, -1]
            actives += [self.active[u][j]] * 2
        for i in range(self.runs[w]):
            times += [self.start[w][i], self.start[w][i] + 1]
            changes += [-1, 1]
            actives += [self.active[w][i]] * 2
        self.model.add_reservoir_constraint_with_active(
            times, changes, actives, 0, self.shape.copies
        )

    def _state_takeovers(self) -> None:
        """A buffer may go over to an output when its last reader starts, as the rules allow."""
        for v, op in self.deadline.asking(enumerate(self.graph.ops)):
            pairs = takeover_pairs(self.problem, v)
            for i in range(self.runs[v]):
                sources: dict[int, list[Literal]] = {}
                targets: dict[int, list[Literal]] = {}
                for source, o in pairs:
                    choices = self._takeover(source, op.outputs[o], v, i)
                    sources.setdefault(source, []).extend(choices)
                    targets.setdefault(o, []).extend(choices)
                for literals in (*sources.values(), *targets.values()):
                    self.model.add_at_most_one(literals)

    def _takeover(self, source: int, target: int, v: int, i: int) -> list[Literal]:
        model, u = self.model, self.graph.producer[source]
        choices: list[Literal] = []
        for j in range(self.runs[u]):
            chosen = model.new_bool_var(f"take {source} {j} for {target} by {v} {i}")
            model.add_implication(chosen, self.read[source, j, v, i])
            model.add(self.end[source, j] == self.start[v][i]).only_enforce_if(chosen)
            if source in self.held:
                self._forbid(chosen, self._is_last(u, j))
            if target in self.held:
                self._forbid(chosen, self._is_last(v, i))
            self.taken.setdefault((source, j), []).append(chosen)
            choices.append(chosen)
        return choices

    def _forbid(self, literal: Literal, others: Sequence[Literal]) -> None:
        self.model.add_bool_or([_negated(literal), *(_negated(x) for x in others)])

    def _readers_of(self, t: int, j: int) -> list[Literal]:
        return [self.read[t, j, w, i] for w in self.graph.readers[t] for i in range(self.runs[w])]

    def _state_use(self) -> None:
        """Runs that nobody reads are not repeated; unread values are held if the rules say so."""
        for v, op in self.deadline.asking(enumerate(self.graph.ops)):
            for j in range(self.runs[v]) if not self.shape.idle_firsts else ():
                if self.runs[v] == 1:
                    continue
                used = [x for t in op.outputs for x in self._readers_of(t, j)]
                repeated = self.active[v][max(j, 1)]
                if any(t in self.held for t in op.outputs):
                    if j + 1 < self.runs[v]:
                        self.model.add_bool_or([*used, _negated(self.active[v][j + 1])])
                else:
                    self.model.add_bool_or([*used, _negated(repeated)])
        if not self.rules.unread_held or self.shape.reservoir:
            return
        for t, j in self.deadline.asking(self.end):
            condition: list[Literal] = [self.active[self.graph.producer[t]][j]]
            condition += [_negated(x) for x in self._readers_of(t, j)]
            if t in self.held:
                continue
            self.model.add(self.end[t, j] == self.horizon).only_enforce_if(condition)

    def _capacity(self, budget_bytes: int, *, lowest_peak: bool) -> Place:
        budget = self._scaled(budget_bytes)
        if lowest_peak:
            return self.model.new_int_var(max(budget, 0), max(budget, self._most()), "peak")
        if budget < 0:
            self.model.add_bool_or([])
        return max(budget, 0)

    def _state_capacity(self) -> None:
        """Equations 4 and 13: intervals [start, end], a buffer taken over ends a slot earlier."""
        model = self.model
        intervals, demands = [], []
        for (t, i), end in self.deadline.asking(self.end.items()):
            v = self.graph.producer[t]
            if not self.size[t]:
                continue
            stop: cp_model.LinearExprT = end + 1
            if (t, i) in self.taken:
                stop = model.new_int_var(0, self.horizon + 1, f"stop {t} {i}")
                model.add(stop == end + 1 - cp_model.LinearExpr.sum(self.taken[t, i]))
            length = model.new_int_var(1, self.horizon + 1, "")
            intervals.append(
                model.new_optional_interval_var(
                    self.start[v][i], length, stop, self.active[v][i], f"retain {t} {i}"
                )
            )
            demands.append(self.size[t] // self.unit)
        for v, op in enumerate(self.graph.ops):
            if not self.rules.count_workspace or not op.workspace_bytes:
                continue
            for begin, active in zip(self.start[v], self.active[v], strict=True):
                intervals.append(
                    model.new_optional_fixed_size_interval_var(begin, 1, active, f"workspace {v}")
                )
                demands.append(op.workspace_bytes // self.unit)
        model.add_cumulative(intervals, demands, self.capacity)

    def _state_knapsacks(self) -> None:
        """Redundant: what is held during each first execution, less what is gone, fits."""
        given = given_order(self.graph)
        across = [[] for _ in self.graph.ops]  # type: list[list[int]]
        for made in self.deadline.asking(instances(self.graph, given)):
            last = len(self.graph.ops) if made.pinned else made.last_read
            for k in range(made.step + 1, last):
                across[k].append(made.tensor)
        for k, op in self.deadline.asking(enumerate(self.graph.ops)):
            read = {t for t in op.inputs if self.graph.tensors[t].kind is TensorKind.ACTIVATION}
            own = [*read, *op.outputs]
            need = sum(self.size[t] for t in own) // self.unit
            if self.rules.count_workspace:
                need += op.workspace_bytes // self.unit
            saved = {o: op.outputs[o] for _, o in takeover_pairs(self.problem, k)}
            need -= sum(self.size[t] for t in saved.values()) // self.unit
            other = [t for t in across[k] if t not in read]
            total = need + sum(self.size[t] for t in other) // self.unit
            if total <= self.floor:
                continue
            gone = [
                (self.size[t] // self.unit) * self._gone(t, k)
                for t in self.deadline.asking(other)
                if self.runs[self.graph.producer[t]] > 1
            ]
            self.model.add(total - cp_model.LinearExpr.sum(gone) <= self.capacity)

    def _gone(self, t: int, k: int) -> cp_model.IntVar:
        """A literal that may only be true if t is not held while op k runs first, but later."""
        model, v, now = self.model, self.graph.producer[t], self.slot(k, k)
        gone = model.new_bool_var(f"gone {t} {k}")
        model.add_implication(gone, self.active[v][1])
        if self.runs[v] == 2:
            model.add(self.end[t, 0] < now).only_enforce_if(gone)
            model.add(self.start[v][1] > now).only_enforce_if(gone)
            if not self.shape.reservoir:
                for w in self.graph.readers[t]:
                    model.add_implication(gone, self.read[t, int(w > k), w, 0])
        return gone

    # Scaling and hints.

    def _unit(self) -> int:
        sizes = [self.size[t] for t in self.made]
        if self.rules.count_workspace:
            sizes += [op.workspace_bytes for op in self.graph.ops]
        return gcd(*sizes) or 1

    def _scaled(self, nbytes: int) -> int:
        return (nbytes - self.rules.constant_bytes(self.graph)) // self.unit

    def _most(self) -> int:
        """A peak that suffices, in units: that of the given order, or of the hint."""
        known = [given_order(self.graph), *([self.hint] if self.hint else [])]
        return max(self._scaled(profile(self.graph, s, self.rules).peak_bytes) for s in known)

    def _slots_of(self, schedule: Schedule) -> dict[int, list[int]]:
        """The slots of the executions of each op."""
        placed: dict[int, list[int]] = {}
        stage = 0
        for step, v in enumerate(schedule.steps):
            placed.setdefault(v, []).append(self.slot(stage, v) if self.shape.staged else step)
            if v == stage:
                stage += len(placed[v]) == 1
        return placed

    def _give_hint(self, hint: Schedule) -> None:
        """Starts, literals and ends of the hint, as far as the model has them."""
        model, count = self.model, len(self.graph.ops)
        run_of: list[int] = []
        seen = [0] * count
        for v in hint.steps:
            run_of.append(seen[v])
            seen[v] += 1
        at = [self.kept[v][i] for v, i in zip(hint.steps, run_of, strict=True)]
        for v, row in self.deadline.asking(enumerate(self.active)):
            for i, active in enumerate(row):
                happens = i < seen[v]
                if happens and (v, i) in self.placing:
                    place = self.kept[v][i]
                    model.add_hint(
                        self.placing[v, i], place // count if self.shape.staged else place
                    )
                if isinstance(active, cp_model.IntVar):
                    model.add_hint(active, happens)
        for made in instances(self.graph, hint):
            end = self.end.get((made.tensor, run_of[made.step]))
            if end is not None:
                last = made.step if made.last_read == NEVER else made.last_read
                model.add_hint(end, self.horizon if made.pinned else at[last])


def _negated(literal: Literal) -> Literal:
    return not literal if isinstance(literal, bool) else ~literal


def takeover_pairs(problem: Problem, v: int) -> list[tuple[int, int]]:
    """Activations read by op v with the positions of the outputs that may take them over."""
    graph, op = problem.graph, problem.graph.ops[v]
    pairs: Mapping[str, tuple[tuple[int, int], ...]] = problem.rules.inplace
    return [
        (op.inputs[i], o)
        for i, o in pairs.get(op.op_type, ())
        if i < len(op.inputs)
        and o < len(op.outputs)
        and graph.tensors[op.inputs[i]].kind is TensorKind.ACTIVATION
        and inplace_allowed(graph, op.inputs[i], op.outputs[o], op.inputs)
    ]
