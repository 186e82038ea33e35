"""Checkmate: the mixed-integer linear program over stages, and the rounding of its relaxation.

Source: Jain et al. 2020, "Checkmate: Breaking the Memory Wall with Optimal Tensor
Rematerialization", sections 4.2 to 4.6 (the program with frontier-advancing stages) and 5.2
(two-phase rounding). Stage t ends with the first execution of op t. R[t, v]: op v runs in stage t;
S[t, x]: tensor x is held from stage t - 1 into stage t; FREE[t, x, v]: x is freed behind op v in
stage t; U[t, v]: what is held while op v runs.

Deviations. One S for each tensor, one R for each op. Graph outputs are held behind the last stage.
Workspace is added to U. Redundant: what is held into a stage is read there or held on, and what is
held is not made again. Buffers taken over in place are not modelled: where the rules allow them
the program asks for too much, and proves nothing. Proofs are HiGHS's, up to its tolerances.
n^2 + (n x reads) binary variables.

OR-Tools cannot interrupt HiGHS: `Limits.stop` is asked before it starts, `seconds` limit it. What
HiGHS does before it looks at its clock takes about as long as to state the program, which therefore
may take half of the seconds.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta

from ortools.math_opt.python import mathopt  # type: ignore[import-untyped]

from onnxremat.core.bounds import peak_bound
from onnxremat.core.deadline import CUT_SHORT, Deadline, StoppedError
from onnxremat.core.graph import TensorKind
from onnxremat.core.problem import Limits, Plan, Problem, make_plan
from onnxremat.core.schedule import Schedule, given_order, without_unread
from onnxremat.planners.retention.intervals import takeover_pairs
from onnxremat.planners.retention.staged import BETWEEN
from onnxremat.planners.search.engine import admissible, best_of, best_start

TOLERANCE = 1e-6
"""How far, relatively, a bound of HiGHS may be above the true one."""

MOST_TIME = 1e6
"""The time of one pass is scaled down to this: larger coefficients cost HiGHS its accuracy."""

STATING_SHARE = 0.5
"""The share of the seconds for stating the program."""

UNSTATED = f"{CUT_SHORT} before the program was stated"

ALLOWANCE = 0.1
"""The share of the budget that the relaxation leaves to rounding (the paper's epsilon)."""


@dataclass(frozen=True, slots=True)
class StagedSolved:
    """What HiGHS found: a sequence (None: nothing), its time, a lower bound on the time of every
    sequence of the stages within the budget, and whether the least time, or that there is no such
    sequence, is proved. Without `stated` the limits were reached before HiGHS had the program."""

    steps: tuple[int, ...] | None
    time_cost: int | None
    time_bound: int
    proved: bool
    infeasible: bool = False
    stated: bool = True


def checkmate(problem: Problem, limits: Limits) -> Plan:
    """The plan of the least time within the budget whose recomputations are staged.

    Without `fixed_order` the given order is still that of the stages, and nothing is proved.
    Without a budget, or where a start meets it in the time of one pass: the best start.
    """
    graph, budget = problem.graph, problem.budget_bytes
    bound = peak_bound(graph, problem.rules).nbytes
    best = best_start(problem)
    one_pass = best.time_cost == graph.total_cost()
    if budget is None or bound > budget or (best.peak_bytes <= budget and one_pass):
        return make_plan(problem, best.schedule, "checkmate", peak_bound_bytes=bound)
    solved = solve(problem, limits, max_copies=problem.max_copies)
    proved = solved.proved and not solved.infeasible and problem.fixed_order
    refuted = solved.infeasible and problem.fixed_order
    if solved.steps is not None:
        schedule = _without_idle(problem, solved.steps)
        best = best_of(problem, (best.schedule, schedule))
        proved = proved and best.peak_bytes <= budget and best.time_cost <= (solved.time_cost or 0)
    scope = _scope(problem) if proved or refuted else ""
    return make_plan(
        problem,
        best.schedule,
        "checkmate",
        peak_bound_bytes=bound,
        proved=proved,
        refuted=refuted,
        scope=scope if solved.stated else UNSTATED,
    )


def checkmate_rounding(problem: Problem, limits: Limits) -> Plan:
    """The relaxation of the program, solved with a reserve and rounded in two phases.

    S is rounded at one half; then the least R is added that makes it a sequence. A plan above the
    budget has the status UNKNOWN. Deviations: what must not be recomputed is held to the end;
    executions that nobody reads are left out; with `max_copies`, a plan that exceeds it is not
    taken.
    """
    graph, budget = problem.graph, problem.budget_bytes
    bound = peak_bound(graph, problem.rules).nbytes
    schedule, scope = given_order(graph), ""
    if budget is not None and bound <= budget and graph.ops:
        reserved = int(budget * (1 - ALLOWANCE))
        try:
            program = _Program(problem, reserved, problem.max_copies, limits, whole=False)
        except StoppedError:
            scope = UNSTATED
        else:
            schedule = _relaxed(problem, program) or schedule
    return make_plan(problem, schedule, "checkmate_rounding", peak_bound_bytes=bound, scope=scope)


def _relaxed(problem: Problem, program: "_Program") -> Schedule | None:
    """The rounded solution of a relaxation; None if there is none in time, or none of the
    problem."""
    result = program.solve()
    if not result.has_primal_feasible_solution():
        return None
    held = {k: x > 0.5 for k, x in program.values(result, program.held).items()}
    rounded = _without_idle(problem, _rounded(problem, held))
    return rounded if admissible(problem, rounded) else None


def solve(
    problem: Problem,
    limits: Limits,
    *,
    max_copies: int | None = None,
) -> StagedSolved:
    """The program itself, with at most `max_copies` executions of an op (None: no limit).

    First executions that nobody reads are among the sequences, as in the paper. Raises ValueError
    if the problem has no budget.
    """
    if problem.budget_bytes is None:
        raise ValueError("Checkmate minimises the time within a budget, and there is none")
    once = problem.graph.total_cost()
    if not problem.graph.ops:
        return StagedSolved(None, None, once, proved=False)
    try:
        program = _Program(problem, problem.budget_bytes, max_copies, limits, whole=True)
    except StoppedError:
        return StagedSolved(None, None, once, proved=False, stated=False)
    result = program.solve()
    exact = not _shares_buffers(problem)
    reason = result.termination.reason
    if reason is mathopt.TerminationReason.INFEASIBLE:
        return StagedSolved(None, None, once, proved=exact, infeasible=exact)
    bound = once
    dual = result.termination.objective_bounds.dual_bound
    if exact and math.isfinite(dual):
        extra = math.ceil(dual * program.time_unit * (1 - TOLERANCE) - TOLERANCE)
        bound += max(extra, 0)
    if not result.has_primal_feasible_solution():
        return StagedSolved(None, None, bound, proved=False)
    steps = program.steps(result)
    cost = Schedule(steps).cost(problem.graph)
    optimal = reason is mathopt.TerminationReason.OPTIMAL
    return StagedSolved(steps, cost, min(bound, cost), proved=exact and optimal)


def _without_idle(problem: Problem, steps: tuple[int, ...]) -> Schedule:
    return without_unread(problem.graph, Schedule(steps), idle_firsts=problem.fixed_order)


def _shares_buffers(problem: Problem) -> bool:
    return any(takeover_pairs(problem, v) for v in range(len(problem.graph.ops)))


def _scope(problem: Problem) -> str:
    copies = problem.max_copies
    limit = "" if copies is None else f", at most {copies} executions an op"
    return f"first executions in the given order, {BETWEEN}{limit}"


class _Program:
    """The variables and constraints; `whole` asks for binary ones, else for the relaxation.

    Memory is counted in budgets, time in `time_unit`s beside that of one pass. The limits hold
    from here on; StoppedError is raised if they leave no time to state it all.
    """

    def __init__(
        self,
        problem: Problem,
        budget_bytes: int,
        max_copies: int | None,
        limits: Limits,
        *,
        whole: bool,
    ) -> None:
        self.deadline = Deadline(limits)
        self.stating = self.deadline.until(STATING_SHARE)
        self.stating.ask()
        self.problem, self.graph, self.whole = problem, problem.graph, whole
        self.model = mathopt.Model()
        rules, graph = problem.rules, problem.graph
        self.capacity = budget_bytes - rules.constant_bytes(graph)
        self.size = [rules.nbytes(t) / max(self.capacity, 1) for t in graph.tensors]
        self.stages = len(graph.ops)
        self.made = [t for op in graph.ops for t in op.outputs]
        self.final = set(graph.outputs)
        if rules.unread_held:
            self.final |= {t for t in self.made if not graph.readers[t]}
        self.run: dict[tuple[int, int], mathopt.Variable] = {}
        self.held: dict[tuple[int, int], mathopt.Variable] = {}
        self._make_variables()
        self._state_dependencies()
        for stage in self.stating.asking(range(self.stages)):
            self._state_memory(stage)
        for v in self.stating.asking(range(self.stages)):
            self._state_copies(v, max_copies)
        self.time_unit = max(1.0, graph.total_cost() / MOST_TIME)
        self.model.minimize(
            mathopt.fast_sum(
                graph.ops[v].cost / self.time_unit * x
                for (stage, v), x in self.run.items()
                if v < stage
            )
        )

    def solve(self) -> mathopt.SolveResult:
        """Solve within what is left of the limits; an iteration is a node of the search tree."""
        limits = self.deadline.limits
        parameters = mathopt.SolveParameters(
            time_limit=timedelta(seconds=self.deadline.left_seconds),
            node_limit=limits.iterations if self.whole else None,
            relative_gap_tolerance=0.0,
            absolute_gap_tolerance=0.0,
            random_seed=limits.seed % (1 << 31),
        )
        return mathopt.solve(self.model, mathopt.SolverType.HIGHS, params=parameters)

    def values(
        self, result: mathopt.SolveResult, variables: Mapping[tuple[int, int], mathopt.Variable]
    ) -> dict[tuple[int, int], float]:
        """Their values in a solution."""
        found = result.variable_values(list(variables.values()))
        return dict(zip(variables, found, strict=True))

    def steps(self, result: mathopt.SolveResult) -> tuple[int, ...]:
        """The sequence of a solution."""
        runs = self.values(result, self.run)
        return tuple(v for (_, v), x in sorted(runs.items()) if x > 0.5)

    def _binary(self, name: str) -> mathopt.Variable:
        return self.model.add_variable(lb=0.0, ub=1.0, is_integer=self.whole, name=name)

    def _make_variables(self) -> None:
        for stage in self.stating.asking(range(self.stages)):
            for v in range(stage + 1):
                op = self.graph.ops[v]
                if v == stage or (op.recomputable and not op.eager):
                    self.run[stage, v] = self._binary(f"R {stage} {v}")
        for stage in self.stating.asking(range(1, self.stages + 1)):
            for t in self.made:
                if self.graph.producer[t] < stage and (stage < self.stages or t in self.final):
                    self.held[stage, t] = self._binary(f"S {stage} {t}")

    def _state_dependencies(self) -> None:
        """Equations 1b to 1e; behind the last stage the outputs are held."""
        add = self.model.add_linear_constraint
        for (stage, v), x in self.stating.asking(self.run.items()):
            if v == stage:
                add(x == 1.0)
            for t in dict.fromkeys(self.graph.ops[v].inputs):
                if self.graph.tensors[t].kind is TensorKind.ACTIVATION:
                    add(x <= self._sum(self._run(stage, t), self._held(stage, t)))
        for (stage, t), x in self.stating.asking(self.held.items()):
            add(x <= self._sum(self._run(stage - 1, t), self._held(stage - 1, t)))
            if stage == self.stages:
                add(x == 1.0)
                continue
            read = [self.run[stage, w] for w in self.graph.readers[t] if (stage, w) in self.run]
            add(x <= self._sum(*read, self._held(stage + 1, t)))
            again = self._run(stage, t)
            if again is not None:
                add(x + again <= 1.0)

    def _state_copies(self, v: int, max_copies: int | None) -> None:
        runs = [self.run[s, v] for s in range(v + 1, self.stages) if (s, v) in self.run]
        if max_copies is not None and len(runs) >= max_copies:
            self.model.add_linear_constraint(mathopt.fast_sum(runs) <= max_copies - 1)

    def _state_memory(self, stage: int) -> None:
        """Equations 2 to 7: what is held while each op of a stage runs, and what is freed."""
        used: mathopt.LinearTypes = self._sum(
            *(self.size[t] * x for (s, t), x in self.held.items() if s == stage)
        )
        rules = self.problem.rules
        for v in range(stage + 1):
            run = self.run.get((stage, v))
            if run is None:
                continue
            op = self.graph.ops[v]
            now = self.model.add_variable(lb=0.0, ub=1.0, name=f"U {stage} {v}")
            made = sum(self.size[t] for t in op.outputs)
            self.model.add_linear_constraint(now == used + made * run)
            if rules.count_workspace and op.workspace_bytes:
                share = op.workspace_bytes / max(self.capacity, 1)
                self.model.add_linear_constraint(now + share * run <= 1.0)
            freed = [
                self.size[t] * self._freed(stage, t, v)
                for t in dict.fromkeys((*op.inputs, *op.outputs))
                if self.graph.tensors[t].kind is TensorKind.ACTIVATION and self.size[t]
            ]
            used = now - self._sum(*freed)

    def _freed(self, stage: int, t: int, v: int) -> mathopt.Variable:
        """FREE: op v runs, t is not held into the next stage, no later op of this one reads it."""
        free = self._binary(f"FREE {stage} {t} {v}")
        later = [
            self.run[stage, w] for w in self.graph.readers[t] if w > v and (stage, w) in self.run
        ]
        hazards = [*later, self._held(stage + 1, t)]
        count = 1 + sum(x is not None for x in hazards)
        total = self._sum(1.0 - self.run[stage, v], *hazards)
        self.model.add_linear_constraint(1.0 - free <= total)
        self.model.add_linear_constraint(count * (1.0 - free) >= total)
        return free

    def _run(self, stage: int, t: int) -> mathopt.Variable | None:
        return self.run.get((stage, self.graph.producer[t]))

    def _held(self, stage: int, t: int) -> mathopt.Variable | None:
        return self.held.get((stage, t))

    def _sum(self, *terms: mathopt.LinearTypes | None) -> mathopt.LinearTypes:
        return mathopt.fast_sum(x for x in terms if x is not None)


def _rounded(problem: Problem, held: dict[tuple[int, int], bool]) -> tuple[int, ...]:
    """The second phase of the rounding: the fewest runs that what is held needs, by stages."""
    graph = problem.graph
    stages = len(graph.ops)
    keep = {t for op in graph.ops if not op.recomputable or op.eager for t in op.outputs}

    def is_held(stage: int, t: int) -> bool:
        if t in keep:
            return graph.producer[t] < stage
        return held.get((stage, t), False)

    runs = {(stage, stage) for stage in range(stages)}
    for stage in reversed(range(stages)):
        for t in (t for op in graph.ops[: stage + 1] for t in op.outputs):
            if is_held(stage + 1, t) and not is_held(stage, t):
                runs.add((stage, graph.producer[t]))
        for v in reversed(range(stage + 1)):
            if (stage, v) not in runs:
                continue
            for t in graph.ops[v].inputs:
                if graph.tensors[t].kind is TensorKind.ACTIVATION and not is_held(stage, t):
                    runs.add((stage, graph.producer[t]))
    return tuple(v for _, v in sorted(runs))
