"""Planners keep their limits: time, stop, memory; and the compiled code needs no write access."""

import dataclasses
import os
import random
import resource
import shutil
import subprocess
import sys
from itertools import count
from pathlib import Path

import pytest

import onnxremat
from onnxremat.core.graph import Graph, Op, Tensor
from onnxremat.core.memory import PAPER_RULES, MemoryRules, profile
from onnxremat.core.problem import Limits, PlanStatus, Problem
from onnxremat.core.schedule import given_order
from onnxremat.core.work import PATIENCE, WorkClock
from onnxremat.planners import PLANNERS, compile_kernels

pytestmark = pytest.mark.slow

SEARCHES = ["auto", "local_search", "reorder"]


def training_like(layers: int, seed: int = 0) -> Graph:
    """A forward chain, and a backward chain whose op i reads what forward op i made."""
    source = random.Random(seed)
    sizes = [source.randint(50, 100) for _ in range(layers)]
    tensors = [Tensor(f"f{i}", (), "uint8", n) for i, n in enumerate(sizes)]
    tensors += [Tensor(f"b{i}", (), "uint8", sizes[-1 - i] // 4) for i in range(layers)]
    ops = [Op(f"f{i}", "F", (i - 1,) if i else (), (i,), 10) for i in range(layers)]
    ops += [
        Op(f"b{i}", "B", (layers + i - 1, layers - 1 - i), (layers + i,), 20) for i in range(layers)
    ]
    return Graph(tuple(tensors), tuple(ops), (), (2 * layers - 1,))


def problem_at(graph: Graph, percent: int | None, rules: MemoryRules = PAPER_RULES) -> Problem:
    peak = profile(graph, given_order(graph), rules).peak_bytes
    return Problem(graph, rules, None if percent is None else peak * percent // 100)


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> None:
    compile_kernels()


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("percent", [None, 40])
def test_the_limit_on_seconds_is_kept(name: str, percent: int | None) -> None:
    """In counted work, which takes as long everywhere; no real time passes to end it."""
    problem = problem_at(training_like(300), percent)
    clock = WorkClock(lambda: 0.0)
    PLANNERS[name].function(problem, Limits(seconds=1.0, work=clock))
    assert 0.0 < clock() <= 1.1


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.parametrize("percent", [None, 40])
def test_the_same_work_gives_the_same_plan_however_long_it_takes(
    name: str, percent: int | None
) -> None:
    problem = problem_at(training_like(60), percent)
    slow = count(0.0, 1e-5)
    clocks = (lambda: 0.0, lambda: next(slow))
    made = [
        PLANNERS[name].function(problem, Limits(seconds=0.5, work=WorkClock(clock)))
        for clock in clocks
    ]
    assert made[0] == made[1]


def test_real_time_ends_counted_work_where_it_takes_many_times_as_long() -> None:
    """Each look at the clock finds ten seconds gone."""
    problem = problem_at(training_like(300), None)
    slow = count(0.0, 10.0)
    clock = WorkClock(lambda: next(slow))
    PLANNERS["local_search"].function(problem, Limits(seconds=60.0, work=clock))
    assert next(slow) < 60.0 * 2 * PATIENCE


def test_planners_that_count_their_work_say_so() -> None:
    assert {name for name, info in PLANNERS.items() if info.counts_work} == {
        *SEARCHES,
        "given_order",
    }


@pytest.mark.parametrize("name", SEARCHES)
def test_stop_ends_the_search(name: str) -> None:
    clock = WorkClock(lambda: 0.0)
    limits = Limits(seconds=60.0, stop=lambda: True, work=clock)
    PLANNERS[name].function(problem_at(training_like(100), None), limits)
    assert clock() < 0.1


def test_no_iterations_and_no_ops_are_allowed() -> None:
    for name in SEARCHES:
        plan = PLANNERS[name].function(problem_at(training_like(5), 50), Limits(iterations=0))
        assert plan.status is PlanStatus.UNKNOWN
        empty = Problem(Graph((), (), (), ()), PAPER_RULES, 0)
        assert PLANNERS[name].function(empty, Limits()).status is PlanStatus.OPTIMAL


@pytest.mark.parametrize("percent", [70, 30, 12])
def test_a_training_chain_meets_low_budgets(percent: int) -> None:
    """Recomputation in segments needs about 2 sqrt(n) of n; 12% of 100 layers is near that."""
    problem = problem_at(training_like(100), percent)
    plan = PLANNERS["auto"].function(problem, Limits(seconds=60.0, iterations=400_000))
    assert plan.meets(problem.budget_bytes)
    assert plan.time_cost <= 1.7 * plan.one_pass


def test_different_seeds_may_differ_and_equal_ones_do_not() -> None:
    problem = problem_at(training_like(60), 40)
    limits = Limits(seconds=60.0, iterations=20_000, seed=1)
    for name in SEARCHES:
        first, again = (PLANNERS[name].function(problem, limits) for _ in range(2))
        assert first.schedule == again.schedule
    other = PLANNERS["auto"].function(problem, dataclasses.replace(limits, seed=2))
    assert other.meets(problem.budget_bytes)


def test_a_start_is_not_made_worse() -> None:
    problem = problem_at(training_like(60), 40)
    good = PLANNERS["auto"].function(problem, Limits(seconds=60.0, iterations=100_000))
    again = PLANNERS["local_search"].function(
        dataclasses.replace(problem, starts=(good.schedule,)), Limits(iterations=1)
    )
    assert again.time_cost <= good.time_cost
    assert again.meets(problem.budget_bytes)


def test_twenty_thousand_ops_fit_in_memory() -> None:
    problem = problem_at(training_like(10_000), 60)
    given = profile(problem.graph, given_order(problem.graph), PAPER_RULES).peak_bytes
    plan = PLANNERS["auto"].function(problem, Limits(seconds=4.0))
    assert plan.peak_bytes <= given
    if sys.platform == "linux":
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < 2_000_000


@pytest.mark.skipif(os.name != "posix", reason="folder permissions are POSIX ones")
def test_kernels_are_cached_when_the_package_is_read_only(tmp_path: Path) -> None:
    """Numba falls back to the user's cache folder, or to NUMBA_CACHE_DIR."""
    package = Path(onnxremat.__file__).parent
    shutil.copytree(package, tmp_path / "onnxremat", ignore=shutil.ignore_patterns("__pycache__"))
    for folder in (tmp_path / "onnxremat").rglob("*"):
        folder.chmod(0o555 if folder.is_dir() else 0o444)
    code = (
        "import onnxremat.planners as p; from onnxremat.planners.search import state;"
        "print(p.__file__, p.compiled_kernels_cached(), state.touch._cache.cache_path)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    where, cached, cache_path = done.stdout.split()
    assert where.startswith(str(tmp_path))
    assert cached == "False"
    assert cache_path.startswith(str(tmp_path / "cache"))
