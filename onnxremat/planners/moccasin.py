"""MOCCASIN: retention intervals and constraint programming, exact for few executions of an op.

Source: Bartan et al. 2023, "MOCCASIN: Efficient Tensor Rematerialization for Neural Networks",
equations 1 to 13. With an input order (section 2.3) the domain is staged: between the first
executions of two ops, earlier ops may run again, in ascending order, each at most once. Without
one (section 2.1) the executions are at distinct places of a sequence.

Deviations. Each output of an op has a retention of its own. Workspace, buffers taken over in place
and unread values that are held follow the memory rules. Precedence is stated by literals instead of
reservoirs (`reservoir` brings those back). Redundant: for each first execution a knapsack of what
is held across it. Start times are numbered without holes (`retention.intervals`). Phase 1 is
skipped when a start meets the budget. Without an input order half of the limits goes to the staged
domain of the given one, whose plan is the hint; first executions that nobody reads are left out of
it. Outputs are held to the end, and nothing runs behind the last first execution of the staged
domain; ops that the runtime starts at once (`Op.eager`) run once. O(copies^2 x reads) variables;
the search is exponential.
"""

import threading
from collections.abc import Collection
from dataclasses import dataclass, replace

from ortools.sat.python import cp_model

from onnxremat.core.bounds import peak_bound
from onnxremat.core.deadline import CUT_SHORT, Deadline, StoppedError
from onnxremat.core.memory import profile
from onnxremat.core.problem import Limits, Plan, Problem, Progress, make_plan
from onnxremat.core.schedule import Schedule, given_order, without_unread
from onnxremat.planners.retention.intervals import Retention, Shape
from onnxremat.planners.retention.staged import BETWEEN, staged
from onnxremat.planners.search.engine import Score, best_of, best_start

COPIES = 2
"""Executions of an op where the problem does not limit them; the paper's choice for C."""

WORKERS = 2

DETERMINISTIC_SECONDS = 1e-3
"""CP-SAT's deterministic time that one iteration stands for."""

POLLING_SECONDS = 0.05

PHASE_1_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class RetentionSolved:
    """What CP-SAT found and proved.

    `steps` (None: nothing found) may contain first executions that nobody reads. No sequence in
    scope takes less time than `time_bound` within the budget, nor has a smaller peak than
    `peak_bound_bytes`. `proved`: `steps` take the least time within the budget, or, if the peak
    was asked for, have the smallest; or there are none (`infeasible`). Unproved `steps` may be
    above the budget: those of the smallest peak found. Without `stated` the limits were reached
    before CP-SAT had the model.
    """

    steps: tuple[int, ...] | None
    time_cost: int | None
    time_bound: int
    peak_bound_bytes: int
    proved: bool
    infeasible: bool = False
    stated: bool = True


def moccasin(problem: Problem, limits: Limits) -> Plan:
    """The plan of the least time within the budget; without one, of the smallest peak.

    What is proved holds for the problem in `Plan.scope`. That no plan exists is claimed only for
    problems that limit the executions of an op.
    """
    deadline = Deadline(limits)
    graph, budget = problem.graph, problem.budget_bytes
    bound = peak_bound(graph, problem.rules).nbytes
    best = best_start(problem)
    done = best.peak_bytes <= (bound if budget is None else budget) and (
        budget is None or best.time_cost == graph.total_cost()
    )
    if done or not graph.ops or (budget is not None and bound > budget):
        return make_plan(problem, best.schedule, "moccasin", peak_bound_bytes=bound)
    hint = None if problem.fixed_order else staged(best.schedule)
    if hint is not None:
        ordered, half = replace(problem, fixed_order=True), _part(deadline, limits.iterations, 0.5)
        best = _best_with(problem, best, _ask(ordered, half, hint))
        limits = replace(limits, iterations=half.iterations)
    rest = _part(deadline, limits.iterations, 1.0)
    solved = _ask(problem, rest, best.schedule)
    exact = is_exact(problem)
    proved = exact and solved.proved and not solved.infeasible
    refuted = exact and solved.infeasible and problem.max_copies is not None
    best = _best_with(problem, best, solved)
    # A model that is more generous than the simulator proves nothing about another plan.
    proved = proved and (
        best.peak_bytes <= solved.peak_bound_bytes
        if budget is None
        else best.peak_bytes <= budget and best.time_cost <= solved.time_bound
    )
    if exact and problem.max_copies is not None and not problem.fixed_order:
        bound = min(max(bound, solved.peak_bound_bytes), best.peak_bytes)
    scope = _scope(problem) if proved or refuted else ""
    return make_plan(
        problem,
        best.schedule,
        "moccasin",
        peak_bound_bytes=bound,
        proved=proved,
        refuted=refuted,
        scope=scope if solved.stated else f"{CUT_SHORT} before the model was stated",
    )


def is_exact(problem: Problem) -> bool:
    """Whether what the model proves is true under the rules of memory: where values that nobody
    reads are held to the end, it does not let such an op run again."""
    single = all(len(op.outputs) <= 1 for op in problem.graph.ops)
    return not problem.rules.unread_held or (single and not problem.fixed_order)


def _ask(problem: Problem, limits: Limits, hint: Schedule) -> RetentionSolved:
    search = lowest_peak if problem.budget_bytes is None else solve
    return search(problem, limits, hint=hint, idle_firsts=problem.fixed_order)


def _best_with(problem: Problem, best: Score, solved: RetentionSolved) -> Score:
    """The better of a plan and what was found, without what nobody reads."""
    if solved.steps is None:
        return best
    found = Schedule(solved.steps)
    schedule = without_unread(problem.graph, found, idle_firsts=problem.fixed_order)
    return best_of(problem, (best.schedule, schedule))


def _part(deadline: Deadline, iterations: int | None, share: float) -> Limits:
    """A share of the seconds that are left and of the iterations."""
    iterations = None if iterations is None else int(iterations * share)
    return replace(deadline.limits, seconds=share * deadline.left_seconds, iterations=iterations)


def solve(
    problem: Problem,
    limits: Limits,
    *,
    max_copies: int | None = None,
    hint: Schedule | None = None,
    free: Collection[int] | None = None,
    idle_firsts: bool = True,
    reservoir: bool = False,
) -> RetentionSolved:
    """The least time within the budget (both phases), by default in exactly the paper's scope.

    `hint` is a sequence to start from; in the staged domain it is brought into its order. Ops
    outside `free` run as often as in the hint, in the staged domain at the same places (without a
    hint: once). `idle_firsts` allows first executions that nobody reads. `reservoir` states
    precedence as equation 10 does; only for rules without in-place, and with `idle_firsts`.

    Raises ValueError if the problem has no budget, or the options exclude each other.
    """
    budget = problem.budget_bytes
    if budget is None:
        raise ValueError("without a budget the time is that of one pass: ask for lowest_peak")
    shape = _shape(problem, max_copies, free, idle_firsts=idle_firsts, reservoir=reservoir)
    search = _IntervalSearch(problem, shape, limits)
    hint = staged(hint) if shape.staged and hint is not None else hint
    floor = peak_bound(problem.graph, problem.rules).nbytes
    if hint is None or profile(problem.graph, hint, problem.rules).peak_bytes > budget:
        first = search.lowest_peak(budget, hint or given_order(problem.graph), PHASE_1_SHARE)
        floor = max(floor, first.peak_bound_bytes)
        if first.peak_bound_bytes > budget:
            return replace(first, steps=None, time_cost=None, proved=True, infeasible=True)
        if first.steps is not None:
            hint = Schedule(first.steps)
    solved = search.least_time(budget, hint, floor)
    if solved.steps is not None or solved.infeasible or hint is None:
        return solved
    return replace(solved, steps=hint.steps, time_cost=hint.cost(problem.graph))


def lowest_peak(
    problem: Problem,
    limits: Limits,
    *,
    max_copies: int | None = None,
    hint: Schedule | None = None,
    idle_firsts: bool = True,
) -> RetentionSolved:
    """The smallest peak (phase 1 with a budget of 0); then, as hint, as `solve`."""
    shape = _shape(problem, max_copies, None, idle_firsts=idle_firsts, reservoir=False)
    hint = staged(hint) if shape.staged and hint is not None else hint
    bound = peak_bound(problem.graph, problem.rules).nbytes
    return _IntervalSearch(problem, shape, limits).lowest_peak(bound, hint, 1.0)


def _shape(
    problem: Problem,
    max_copies: int | None,
    free: Collection[int] | None,
    *,
    idle_firsts: bool,
    reservoir: bool,
) -> Shape:
    rules = problem.rules
    if reservoir and (rules.inplace or rules.unread_held or not idle_firsts):
        raise ValueError("reservoirs cannot tell which retention is read")
    return Shape(
        copies=max_copies or problem.max_copies or COPIES,
        staged=problem.fixed_order,
        idle_firsts=idle_firsts,
        reservoir=reservoir,
        free=None if free is None else frozenset(free),
    )


def _scope(problem: Problem) -> str:
    copies = f"at most {problem.max_copies or COPIES} executions an op"
    if not problem.fixed_order:
        return copies
    return f"first executions in the given order, {BETWEEN}, {copies}"


class _IntervalSearch:
    """The two phases under one set of limits."""

    def __init__(self, problem: Problem, shape: Shape, limits: Limits) -> None:
        self.problem, self.shape = problem, shape
        self.deadline = Deadline(replace(limits, iterations=None))
        self.deterministic: float | None = None
        if limits.iterations is not None:
            self.deterministic = limits.iterations * DETERMINISTIC_SECONDS

    def lowest_peak(self, floor_bytes: int, hint: Schedule | None, share: float) -> RetentionSolved:
        """Phase 1: a peak of at most `floor_bytes`, or the smallest."""
        bound, once = self._known()
        try:
            model = Retention(
                self.problem,
                self.shape,
                floor_bytes,
                hint=hint,
                lowest_peak=True,
                deadline=self.deadline,
            )
        except StoppedError:
            return RetentionSolved(None, None, once, bound, proved=False, stated=False)
        solver, status, least = self._run(model, share)
        # The objective is never below the floor, whatever the peak is.
        if least > model.floor:
            bound = max(bound, model.bytes_of(least))
        return self._solved(model, solver, status, once, bound)

    def least_time(
        self, budget_bytes: int, hint: Schedule | None, floor_bytes: int
    ) -> RetentionSolved:
        """Phase 2: the least time within the budget."""
        _, once = self._known()
        try:
            model = Retention(
                self.problem, self.shape, budget_bytes, hint=hint, deadline=self.deadline
            )
        except StoppedError:
            return RetentionSolved(None, None, once, floor_bytes, proved=False, stated=False)
        solver, status, least = self._run(model, 1.0)
        bound = once + max(least, 0) * model.time_unit
        return self._solved(model, solver, status, bound, floor_bytes)

    def _known(self) -> tuple[int, int]:
        """Bounds on the peak and on the time that hold for any schedule."""
        graph = self.problem.graph
        return peak_bound(graph, self.problem.rules).nbytes, graph.total_cost()

    def _solved(
        self,
        model: Retention,
        solver: cp_model.CpSolver,
        status: cp_model.CpSolverStatus,
        time_bound: int,
        peak_bound_bytes: int,
    ) -> RetentionSolved:
        if status == cp_model.INFEASIBLE:
            nbytes = max(peak_bound_bytes, (self.problem.budget_bytes or 0) + 1)
            return RetentionSolved(None, None, time_bound, nbytes, proved=True, infeasible=True)
        if status == cp_model.MODEL_INVALID:
            raise ValueError(model.model.validate())
        if status == cp_model.UNKNOWN:
            return RetentionSolved(None, None, time_bound, peak_bound_bytes, proved=False)
        steps = tuple(model.steps(solver))
        cost = Schedule(steps).cost(self.problem.graph)
        proved = status == cp_model.OPTIMAL
        return RetentionSolved(steps, cost, time_bound, peak_bound_bytes, proved)

    def _run(
        self, model: Retention, share: float
    ) -> tuple[cp_model.CpSolver, cp_model.CpSolverStatus, int]:
        """Solve within a share of what is left of the limits; also the bound on the objective."""
        solver = cp_model.CpSolver()
        solver.parameters.max_time_in_seconds = share * self.deadline.left_seconds
        solver.parameters.random_seed = self.deadline.limits.seed % (1 << 31)
        solver.parameters.num_workers = WORKERS
        # It would leave Ctrl-C without a handler, so that the next one kills the process.
        solver.parameters.catch_sigint_signal = False
        if self.deterministic is not None:
            solver.parameters.num_workers = 1
            solver.parameters.max_deterministic_time = self.deterministic * share
        if self.deadline.stopped():
            return solver, cp_model.UNKNOWN, 0
        over = threading.Event()
        watch = threading.Thread(target=self._watch, args=(solver, over), daemon=True)
        watch.start()
        try:
            status = solver.solve(model.model, _Report(model, self.deadline))
        finally:
            over.set()
            watch.join()
        if self.deterministic is not None:
            self.deterministic -= solver.deterministic_time
        solved = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        return solver, status, round(solver.best_objective_bound) if solved else 0

    def _watch(self, solver: cp_model.CpSolver, over: threading.Event) -> None:
        """Stop the solver once the caller says so; runs in a thread of its own."""
        while not over.wait(POLLING_SECONDS):
            if self.deadline.stopped():
                solver.stop_search()
                return


class _Report(cp_model.CpSolverSolutionCallback):
    """Tells the caller about each solution."""

    def __init__(self, model: Retention, deadline: Deadline) -> None:
        super().__init__()
        self.found, self.deadline = model, deadline

    def on_solution_callback(self) -> None:
        """Called by CP-SAT."""
        on_progress = self.deadline.limits.on_progress
        if on_progress is None:
            return
        problem = self.found.problem
        schedule = Schedule(tuple(self.found.steps(self)))
        peak = profile(problem.graph, schedule, problem.rules).peak_bytes
        cost = schedule.cost(problem.graph)
        on_progress(Progress(self.deadline.passed_seconds, peak, cost))
