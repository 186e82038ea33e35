"""The loop between planner and runtime, with a planner and a runtime made for the test."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest

from onnxremat.core.attempt import TAKEN
from onnxremat.core.bounds import PeakBound, peak_bound
from onnxremat.core.deadline import Deadline
from onnxremat.core.errors import InfeasibleError, NoPlanFoundError
from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.memory import MemoryRules
from onnxremat.core.problem import Limits, Plan, Planner, PlanStatus, Problem, make_plan
from onnxremat.core.schedule import Schedule, given_order
from onnxremat.fitting.loop import (
    MAX_ROUNDS,
    Found,
    Outcome,
    PlanMissedError,
    Runtime,
    plan_within,
    said,
    smallest_within,
)
from tests.graphs import chain


@dataclass(frozen=True)
class Forecast:
    """A plan and what it is expected to take."""

    plan: Plan
    expected_bytes: int


@dataclass(frozen=True)
class Made:
    """A plan that was measured."""

    measured_bytes: int
    refused: str = ""
    dearer: str = ""
    least_bytes: int | None = None

    @property
    def compared_bytes(self) -> int:
        return self.measured_bytes if self.least_bytes is None else self.least_bytes


def planning(seconds: float, now: Callable[[], float] = time.monotonic) -> Deadline:
    """The seconds of a time limit."""
    return Deadline(Limits(seconds), now=now, waits=True)


PROBLEM = Problem(chain([500, 500, 100]), MemoryRules(), budget_bytes=1200)


def planner(problem: Problem, limits: Limits) -> Plan:
    return make_plan(problem, given_order(problem.graph), "test", peak_bound_bytes=1000)


def within(
    problem: Problem = PROBLEM,
    planner: Planner = planner,
    *,
    error_bytes: int = 0,
    measure: Callable[[Plan], int],
    expect: Callable[[Plan], int] = lambda plan: 0,
    tolerance: float = 0.0,
    deadline: Deadline | None = None,
) -> Found[Made]:
    bound = peak_bound(problem.graph, problem.rules)
    return plan_within(
        problem,
        planner,
        deadline or planning(1),
        runtime_of(bound, error_bytes, expect, tolerance, measure),
        rewriters="reordering",
    )


def runtime_of(
    bound: PeakBound | None,
    error_bytes: int,
    expect: Callable[[Plan], int],
    tolerance: float,
    measure: Callable[[Plan], int],
) -> Runtime[Forecast, Made]:
    return Runtime(
        bound,
        error_bytes,
        tolerance,
        lambda plan: Forecast(plan, expect(plan)),
        lambda forecast: Made(measure(forecast.plan)),
    )


def unproved(measure: Callable[[Plan], int]) -> Runtime[Forecast, Made]:
    """A runtime of which nothing is proved and nothing predicted."""
    return runtime_of(None, 0, lambda plan: 0, 0, measure)


def test_a_plan_that_measures_within_the_limit_is_taken() -> None:
    found = within(error_bytes=50, measure=lambda plan: plan.peak_bytes + 60)
    assert (found.attempts[-1].target_bytes, found.made.measured_bytes) == (1150, 1060)


def test_what_measures_too_much_is_planned_again_for_less() -> None:
    targets = []

    def measure(plan: Plan) -> int:
        return 1300 if len(targets) < 3 else 1200

    def spy(problem: Problem, limits: Limits) -> Plan:
        targets.append(problem.budget_bytes)
        return planner(problem, limits)

    found = within(planner=spy, error_bytes=-5, measure=measure)
    assert targets == [1200, 1100, 1000]
    assert [(one.target_bytes, one.measured_bytes) for one in found.attempts] == [
        (1200, 1300),
        (1100, 1300),
        (1000, 1200),
    ]
    assert found.attempts[0].outcome == "refused: measured 100 B above the limit"
    assert found.made.measured_bytes == 1200


def test_what_is_expected_to_take_too_much_is_not_measured() -> None:
    targets, measured = [], []

    def measure(plan: Plan) -> int:
        measured.append(targets[-1])
        return 1100

    def spy(problem: Problem, limits: Limits) -> Plan:
        targets.append(problem.budget_bytes)
        return planner(problem, limits)

    found = within(
        planner=spy, measure=measure, expect=lambda plan: 1250 if targets[-1] > 1150 else 1200
    )
    assert targets == [1200, 1150]
    assert measured == [1150]
    assert found.attempts[0].measured_bytes is None
    assert found.attempts[0].outcome == "refused: expected 50 B above the limit: not measured"
    assert found.made.measured_bytes == 1100


def test_what_may_be_a_wrong_prediction_is_measured() -> None:
    found = within(measure=lambda plan: 1190, expect=lambda plan: 1250, tolerance=0.05)
    assert (found.attempts[-1].target_bytes, found.made.measured_bytes) == (1200, 1190)


def test_the_last_chance_is_measured_whatever_is_expected() -> None:
    measured = []

    def measure(plan: Plan) -> int:
        measured.append(plan)
        return 1199

    assert within(measure=measure, expect=lambda plan: 5000).made.measured_bytes == 1199
    assert len(measured) == 1


def test_a_runtime_that_always_takes_too_much_is_no_plan() -> None:
    rounds = []

    def measure(plan: Plan) -> int:
        rounds.append(plan)
        return 1230

    with pytest.raises(
        NoPlanFoundError, match=r"smallest peak found is 1\.23 kB.*none below 1\.00 kB"
    ):
        within(measure=measure)
    assert len(rounds) == MAX_ROUNDS


def test_a_plan_that_took_too_much_is_not_measured_again() -> None:
    rounds, measured = [], []

    def measure(plan: Plan) -> int:
        measured.append(plan.schedule)
        return 1230

    def spy(problem: Problem, limits: Limits) -> Plan:
        rounds.append(problem.budget_bytes)
        return planner(problem, limits)

    for _ in range(2):
        runtime = replace(unproved(measure), taken=dict.fromkeys(measured, Outcome(1230, "")))
        with pytest.raises(PlanMissedError) as error:
            plan_within(PROBLEM, spy, planning(1), runtime, rewriters="r")
        assert [one.measured_bytes for one in error.value.attempts] == [1230] * MAX_ROUNDS
    assert measured == [given_order(PROBLEM.graph)]
    assert len(rounds) == 2 * MAX_ROUNDS


class Hands:
    """A clock that only a test moves."""

    seconds = 0.0

    def now(self) -> float:
        return self.seconds


def test_parts_of_a_time_share_what_is_left() -> None:
    hands = Hands()
    deadline = planning(10, hands.now)
    part = deadline.part(0.6)
    with part.passing():
        hands.seconds += 4
    hands.seconds += 100
    assert (part.left_seconds, deadline.left_seconds) == (2, 6)
    assert deadline.part(0.5).limits.seconds == 3
    with deadline.passing():
        hands.seconds += 5
    assert part.left_seconds == 1 and not part.spent
    with part.passing():
        hands.seconds += 1
    assert part.spent and deadline.spent and deadline.left_seconds == 0
    assert "the 10 s of --time-limit, which are over" in said(part)


def test_time_passes_in_a_plan_that_fails() -> None:
    hands = Hands()
    deadline = planning(10, hands.now)
    with pytest.raises(ZeroDivisionError), deadline.passing():
        hands.seconds += 3
        raise ZeroDivisionError
    assert deadline.left_seconds == 7 and not deadline.spent


def slow(hands: Hands, share: float, given: list[float]) -> Planner:
    """A planner that takes a share of its seconds, which are noted."""

    def plan(problem: Problem, limits: Limits) -> Plan:
        given.append(limits.seconds)
        hands.seconds += share * limits.seconds
        return planner(problem, limits)

    return plan


def test_rounds_share_the_seconds_and_the_first_has_most() -> None:
    hands, given = Hands(), list[float]()
    deadline = planning(10, hands.now)
    with pytest.raises(NoPlanFoundError, match="in the 10 s of --time-limit, which are over"):
        within(planner=slow(hands, 1.0, given), deadline=deadline, measure=lambda plan: 1230)
    assert given == pytest.approx([9, 0.5, 0.25, 0.25])


def test_a_planner_that_ends_early_leaves_its_seconds_to_the_next_round() -> None:
    hands, given = Hands(), list[float]()
    deadline = planning(10, hands.now)
    with pytest.raises(NoPlanFoundError, match=r"in 2\.6 of the 10 s of --time-limit"):
        within(planner=slow(hands, 0.1, given), deadline=deadline, measure=lambda plan: 1230)
    assert given[:2] == pytest.approx([9, 0.5 * 9.1]) and given[3] > 7


def test_no_round_begins_when_time_is_over() -> None:
    hands, given = Hands(), list[float]()
    deadline = planning(10, hands.now)
    with pytest.raises(NoPlanFoundError, match="which are over"):
        within(planner=slow(hands, 2.0, given), deadline=deadline, measure=lambda plan: 1230)
    assert given == [9]


def test_measuring_takes_no_time_off() -> None:
    hands, given = Hands(), list[float]()
    deadline = planning(10, hands.now)

    def measure(plan: Plan) -> int:
        hands.seconds += 1000
        return 1230 if len(given) < 3 else 1200

    within(planner=slow(hands, 0.5, given), deadline=deadline, measure=measure)
    assert given == pytest.approx([9, 2.75, 2.0625])


def test_later_rounds_start_from_the_plan_before() -> None:
    starts = []

    def spy(problem: Problem, limits: Limits) -> Plan:
        starts.append(problem.starts)
        return planner(problem, limits)

    with pytest.raises(PlanMissedError) as error:
        within(planner=spy, measure=lambda plan: 1230)
    own = given_order(PROBLEM.graph)
    assert starts == [(), (own,), (own,), (own,)]
    assert error.value.schedule == own
    assert error.value.found in str(error.value)


def test_a_limit_below_the_bound_is_proved_impossible() -> None:
    problem = Problem(PROBLEM.graph, PROBLEM.rules, budget_bytes=900)
    with pytest.raises(InfeasibleError) as error:
        within(problem, measure=lambda plan: 0)
    for part in (
        "900 B is impossible with reordering",
        "1.00 kB (inputs, outputs and workspace of op1 (Op))",
        "smallest peak found",
    ):
        assert part in str(error.value)


def test_without_a_bound_nothing_is_said_to_be_impossible() -> None:
    problem = Problem(PROBLEM.graph, PROBLEM.rules, budget_bytes=900)
    with pytest.raises(NoPlanFoundError) as error:
        plan_within(problem, planner, planning(1), unproved(lambda plan: 901), rewriters="r")
    assert "exists" not in str(error.value)


def test_without_a_bound_a_plan_above_the_limit_may_still_measure_below() -> None:
    """Fused ops, for one, take less than the model of memory says."""
    problem = Problem(PROBLEM.graph, PROBLEM.rules, budget_bytes=900)
    found = plan_within(problem, planner, planning(1), unproved(lambda plan: 800), rewriters="r")
    assert found.made.measured_bytes == 800


def test_without_a_budget_the_smallest_is_measured_once() -> None:
    problem = Problem(PROBLEM.graph, PROBLEM.rules)
    found = within(problem, error_bytes=9, measure=lambda plan: 7)
    assert (found.attempts[-1].target_bytes, found.made.measured_bytes) == (None, 7)
    assert found.plan.status is PlanStatus.OPTIMAL


def kept_or_made_again(nbytes: int) -> Graph:
    """Of op0's `nbytes`, read by op1 and op3, whoever makes them again saves them while op2 runs,
    which needs 2,000 bytes."""
    sizes = (1, nbytes, 1000, 1000, 1)
    kinds = (TensorKind.INPUT, *(TensorKind.ACTIVATION,) * 4)
    named = enumerate(zip(sizes, kinds, strict=True))
    tensors = tuple(Tensor(f"t{i}", (size,), "uint8", size, kind) for i, (size, kind) in named)
    reads = ((0,), (1,), (2,), (1, 3))
    ops = tuple(Op(f"op{i}", "Op", read, (i + 1,), cost=10) for i, read in enumerate(reads))
    return Graph(tensors, ops, (0,), (4,))


def frugal(problem: Problem, limits: Limits) -> Plan:
    """Without a budget op0 runs again; with one every op runs once."""
    steps = (0, 1, 2, 3) if problem.budget_bytes is not None else (0, 1, 2, 0, 3)
    return make_plan(problem, Schedule(steps), "test", peak_bound_bytes=0)


@pytest.mark.parametrize(("nbytes", "alike"), [(30, True), (100, False)])
def test_of_about_the_smallest_peak_the_fastest_is_taken(nbytes: int, alike: bool) -> None:
    problem = Problem(kept_or_made_again(nbytes), MemoryRules())
    found = within(problem, planner=frugal, measure=lambda plan: plan.peak_bytes)
    assert (found.plan.extra_time == 0) is alike
    assert found.made.measured_bytes == (2000 + nbytes if alike else 2000)


def again_below_3000(problem: Problem, limits: Limits) -> Plan:
    """op0 runs again where copies are allowed, unless the budget does without."""
    least = problem.budget_bytes is None or problem.budget_bytes < 3000
    steps = (0, 1, 2, 0, 3) if least and problem.max_copies != 1 else (0, 1, 2, 3)
    return make_plan(problem, Schedule(steps), "test", peak_bound_bytes=0)


@pytest.mark.parametrize("dearer", [True, False])
@pytest.mark.parametrize(("slowdown", "extra"), [(1.0, 0.25), (0.1, 0.0)])
def test_the_smallest_peak_in_a_time_is_a_larger_one(
    slowdown: float, extra: float, dearer: bool
) -> None:
    """op0 runs again unless its second run is refused where it is made, for its time or not."""
    problem = Problem(kept_or_made_again(1500), MemoryRules())
    tried = []

    def make(forecast: Forecast) -> Made:
        tried.append(forecast.plan.extra_time)
        late = forecast.plan.extra_time > slowdown
        why = "too slow" if late else ""
        return Made(9000 if late else forecast.plan.peak_bytes, why, why if dearer else "")

    runtime = replace(unproved(lambda plan: 0), make=make, slowdown=slowdown)
    found = smallest_within(problem, again_below_3000, planning(9), runtime)
    assert found.plan.extra_time == pytest.approx(extra)
    assert not found.made.refused
    assert all(one <= 2 * slowdown for one in tried)


@pytest.mark.parametrize("chance", [0, 3000])
def test_in_a_time_plans_are_compared_without_what_is_chance(chance: int) -> None:
    """The smallest plan is measured at 3000 bytes more than it takes, by chance."""
    problem = Problem(kept_or_made_again(1500), MemoryRules())

    def make(forecast: Forecast) -> Made:
        if not forecast.plan.extra_time:
            return Made(4000, dearer="too slow")
        return Made(3500 + chance, dearer="too slow", least_bytes=3500)

    found = smallest_within(
        problem,
        again_below_3000,
        planning(9),
        replace(unproved(lambda plan: 0), make=make, slowdown=1.0),
    )
    assert found.made.measured_bytes == 3500 + chance


@pytest.mark.parametrize("larger", [3000, 9000])
def test_where_a_form_of_a_plan_is_too_slow_a_larger_plan_may_take_less(larger: int) -> None:
    """What is left of the smallest takes 5000 bytes; one without a second run of op0 `larger`."""
    problem = Problem(kept_or_made_again(1500), MemoryRules())

    def make(forecast: Forecast) -> Made:
        twice = forecast.plan.extra_time > 0
        return Made(5000, dearer="too slow") if twice else Made(larger)

    runtime = replace(unproved(lambda plan: 0), make=make, slowdown=1.0)
    found = smallest_within(problem, again_below_3000, planning(9), runtime)
    assert found.made.measured_bytes == min(5000, larger)
    outcomes = {one.measured_bytes: one.outcome for one in found.attempts}
    assert outcomes[min(5000, larger)] == TAKEN
    assert outcomes[max(5000, larger)] == "refused: another plan takes less"


def smallest(problem: Problem, measured: int, given: list[int | None]) -> Found[Made]:
    def spy(asked: Problem, limits: Limits) -> Plan:
        given.append(asked.budget_bytes)
        return planner(asked, limits)

    runtime = unproved(lambda plan: measured)
    return smallest_within(problem, spy, planning(1), runtime)


def test_the_smallest_peak_may_keep_a_limit() -> None:
    given = list[int | None]()
    assert smallest(PROBLEM, 1200, given).made.measured_bytes == 1200
    assert given == [None]


def test_a_limit_that_the_smallest_peak_misses_is_missed() -> None:
    with pytest.raises(PlanMissedError, match=r"the smallest peak found is 1\.20 kB") as error:
        smallest(PROBLEM, 1201, [])
    assert error.value.peak_bytes == 1201


def test_the_time_that_is_allowed_is_used() -> None:
    """Each op that is made again lowers the peak by 1000 and takes a tenth of a run."""
    problem = Problem(kept_or_made_again(1500), MemoryRules())
    tried, planned = [], list[Plan]()

    def plan(problem: Problem, limits: Limits) -> Plan:
        target = problem.budget_bytes or 0
        again = 0 if problem.max_copies == 1 else min(10, max(0, (20_500 - target) // 1000))
        made = make_plan(problem, Schedule((0, 1, 2, 3)), "test", peak_bound_bytes=0)
        cost = made.time_cost * (10 + again) // 10
        planned.append(replace(made, peak_bytes=20_000 - 1000 * again, time_cost=cost))
        return planned[-1]

    def make(forecast: Forecast) -> Made:
        tried.append(forecast.plan)
        return Made(forecast.plan.peak_bytes)

    runtime = replace(unproved(lambda plan: 0), make=make, slowdown=0.35)
    found = smallest_within(problem, plan, planning(9), runtime)
    assert [one.extra_time for one in tried] == pytest.approx([found.plan.extra_time])
    assert 0.3 <= found.plan.extra_time <= 0.7
    assert found.made.measured_bytes <= 17_000
    told = {one.planned_bytes: one.outcome for one in found.attempts}
    assert set(told) == {one.peak_bytes for one in planned}
    assert told[20_000] == "not made: one of less memory was fast enough"
    assert sum(one == TAKEN for one in told.values()) == 1
