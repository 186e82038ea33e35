"""All planners on the published graphs, on real training graphs, and against exhaustive search.

    python -m benchmarks.planners --shared GRAPHS [--models TRAINING] [--only PARTS]
                                  [--markdown FILE] [--csv FILE]

The memory model of the published instances is that of the papers: inputs of a running op live, no
workspace, nothing in place. Extra time is beyond one pass, in percent. Parts:

- *fixed*: first executions in the given order, as the papers have it. Every planner; the extra time
  of its best plan within the budget after 1 to 90 seconds of what it was given, and when
  it was proved to be the least in its scope (`Plan.scope`). `least` is a bound that holds for any
  schedule.
- *free*: any order.
- *real*: training graphs of real models with workspace and in-place, free order, 60 s.
- *moves*: a move of the search with incremental evaluation against evaluating the whole sequence
  anew, both compiled.
- *large*: a 20,000-node training graph at half of its peak, in a process of its own: seconds, peak
  resident memory.
- *agree*: `checkmate` and `moccasin` on random graphs of up to 25 ops, fixed order, two executions
  an op: the same least time, both proved.
- *small*: random graphs of up to 7 ops against the least time of any schedule.

What the project asks of a line stands in its last column; lines that miss it end with FAILED, and
so does the command.
"""

import argparse
import csv
import random
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx

from benchmarks.published import load_published
from benchmarks.tables import commit, row
from models import BUILDERS
from onnxremat.core.bounds import peak_bound
from onnxremat.core.deadline import Deadline
from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.memory import PAPER_RULES, MemoryRules, profile
from onnxremat.core.problem import Limits, Plan, PlanStatus, Problem, Progress
from onnxremat.core.schedule import given_order, with_eager_ops
from onnxremat.options import Options
from onnxremat.ort.emulation.rules import RECIPE_RULES
from onnxremat.planners import PLANNERS, compile_kernels
from onnxremat.subject import prepare
from tests.exhaustive import least_peak, least_time

MARKS = (1.0, 2.0, 3.0, 5.0, 60.0, 90.0)
FIXED = (
    ("rl_n100", 90, {1.0: 0.789}, 15.0),
    ("rl_n100", 80, {1.0: 2.296}, 15.0),
    ("rl_n250", 90, {1.0: 0.904}, None),
    ("rl_n250", 80, {2.0: 4.6}, None),
    ("rl_n1000", 90, {5.0: 0.70}, None),
    ("rl_n1000", 80, {5.0: 2.9, 60.0: 2.7}, None),
    ("ckm_fcn_8_vgg_train", 90, {1.0: 0.029}, 15.0),
    ("ckm_fcn_8_vgg_train", 80, {1.0: 0.136}, 15.0),
    ("ckm_resnet50_train", 90, {3.0: 0.11}, None),
    ("ckm_resnet50_train", 80, {3.0: 0.28}, None),
)
"""Graph, budget in percent of the given order's peak, extra time asked of `local_search` by
seconds, seconds within which `auto` is asked for a proof."""
FREE = (
    ("rl_n100", 90, {60.0: 0.0}),
    ("rl_n100", 80, {60.0: 0.0}),
    ("rl_n250", 90, {60.0: 0.0}),
    ("rl_n250", 80, {60.0: 0.0}),
    ("rl_n1000", 80, {90.0: 1.5}),
)
REAL = (
    ("xf_train_aot", 30),
    ("xf_train_onnxad", 25),
    ("resnetbn_train_aot", 55),
    ("vgg_train_onnxad", 45),
    ("unet_train_aot", 58),
    ("unetbn_train_aot", 50),
)
BASELINES = {
    "greedy": {"rl_n100", "rl_n250", "rl_n1000", "ckm_fcn_8_vgg_train", "ckm_resnet50_train"},
    "moccasin": {"rl_n100", "rl_n250", "ckm_fcn_8_vgg_train"},
    "checkmate": {"ckm_fcn_8_vgg_train"},
    "checkmate_rounding": {"ckm_fcn_8_vgg_train"},
}
"""Beside local_search and auto, on what they end on in their time."""
FEW_SECONDS = 6.0
"""Of `local_search` where less is asked."""
SECONDS = {"auto": 15.0, "moccasin": 40.0, "checkmate": 120.0}
COPIES = {"moccasin": 2, "checkmate": 2, "checkmate_rounding": 2}
"""Executions of an op that the published baselines are given."""
MUST_PROVE = {"rl_n100", "ckm_fcn_8_vgg_train"}
"""`moccasin` alone is asked for the proved optimum of these."""
ROUNDED = 5e-4
AGREE_SECONDS = 90.0
FASTER = 10.0
LARGE_SECONDS, LARGE_BYTES, LARGE_NODES, NODES_PER_BLOCK = 60.0, 2_000_000_000, 20_000, 57


@dataclass(frozen=True)
class Run:
    """A plan with how it got there: (seconds, extra percent) of every better one in the budget."""

    plan: Plan
    seconds: float
    trace: tuple[tuple[float, float], ...]

    def at(self, seconds: float) -> float | None:
        """The extra time of the best plan by then, None if none met the budget."""
        return min((extra for when, extra in self.trace if when <= seconds), default=None)


def run(name: str, problem: Problem, seconds: float) -> Run:
    """One planner with a trace of its progress; seed 0."""
    once = problem.graph.total_cost()
    trace: list[tuple[float, float]] = []
    started = time.perf_counter()

    def note(better: Progress) -> None:
        if problem.budget_bytes is not None and better.peak_bytes <= problem.budget_bytes:
            now = time.perf_counter() - started
            trace.append((now, 100 * (better.time_cost / once - 1)))

    plan = PLANNERS[name].function(problem, Limits(seconds=seconds, on_progress=note))
    took = time.perf_counter() - started
    if plan.meets(problem.budget_bytes):
        trace.append((took, 100 * plan.extra_time))
    return Run(plan, took, tuple(trace))


def shown(extra: float | None) -> str:
    return "-" if extra is None else f"{extra:.3f}"


def published_rows(
    shared: Path,
    instances: Sequence[tuple[str, int, dict[float, float], float | None]],
    planners: Callable[[str], Sequence[str]],
    *,
    fixed_order: bool,
) -> Iterator[tuple[list[str], bool]]:
    for name, percent, asked, proof in instances:
        graph = load_published(shared / f"{name}.json")
        own = profile(graph, given_order(graph), PAPER_RULES).peak_bytes
        for planner in planners(name):
            problem = Problem(
                graph,
                PAPER_RULES,
                own * percent // 100,
                fixed_order=fixed_order,
                max_copies=COPIES.get(planner),
            )
            seconds = SECONDS.get(planner, 60.0)
            if planner == "local_search":
                seconds = max(FEW_SECONDS, *asked)
            if planner == "auto" and not fixed_order:
                seconds = max(asked)
            made = run(planner, problem, seconds)
            status = made.plan.status
            holds, wanted = True, []
            if planner == "local_search":
                for seconds, extra in asked.items():
                    reached = made.at(seconds)
                    holds &= reached is not None and reached <= extra + ROUNDED
                    wanted.append(f"{extra:g}% in {seconds:g} s")
            if planner == "auto" and proof is not None:
                holds &= status is PlanStatus.OPTIMAL and made.seconds <= proof
                wanted.append(f"proof in {proof:g} s")
            if planner == "auto" and not fixed_order:
                for seconds, extra in asked.items():
                    reached = made.at(seconds)
                    holds &= reached is not None and reached <= extra + ROUNDED
                    wanted.append(f"{extra:g}% in {seconds:g} s")
            if planner == "moccasin" and name in MUST_PROVE:
                holds &= status is PlanStatus.OPTIMAL
                wanted.append("proof")
            yield (
                [
                    name,
                    f"{percent}%",
                    planner,
                    *(shown(made.at(mark)) for mark in MARKS),
                    f"{made.seconds:.1f}",
                    status.value,
                    f"{100 * made.plan.extra_time_bound:.3f}",
                    ", ".join(wanted) + ("" if holds else " FAILED"),
                ],
                holds,
            )


def fixed_part(shared: Path) -> Iterator[tuple[list[str], bool]]:
    def planners(name: str) -> list[str]:
        return ["local_search", "auto", *(p for p, names in BASELINES.items() if name in names)]

    yield from published_rows(shared, FIXED, planners, fixed_order=True)


def free_part(shared: Path) -> Iterator[tuple[list[str], bool]]:
    instances = [(name, percent, asked, None) for name, percent, asked in FREE]
    yield from published_rows(shared, instances, lambda name: ["auto", "greedy"], fixed_order=False)


def real_part(models: Path) -> Iterator[tuple[list[str], bool]]:
    for name, percent in REAL:
        imported = prepare(models / f"{name}.onnx", Options(session="recipe")).imported
        graph = imported.graph
        own = with_eager_ops(graph, given_order(graph))
        peak = profile(graph, own, RECIPE_RULES).peak_bytes
        problem = Problem(graph, RECIPE_RULES, peak * percent // 100, starts=(own,))
        made = run("auto", problem, 60.0)
        holds = made.plan.meets(problem.budget_bytes)
        floor = 100 * peak_bound(graph, RECIPE_RULES).nbytes / peak
        yield (
            [
                name,
                str(len(graph.ops)),
                f"{peak / 1e6:.2f}",
                f"{percent}%",
                f"{floor:.1f}%",
                f"{100 * made.plan.peak_bytes / peak:.2f}%",
                *(shown(made.at(mark)) for mark in (10.0, 30.0, 60.0)),
                f"{100 * made.plan.extra_time_bound:.3f}",
                "meets it" if holds else "FAILED",
            ],
            holds,
        )


def moves_part(shared: Path) -> Iterator[tuple[list[str], bool]]:
    """Moves of the annealing at rl_n1000's budget of 80%, and reloading the whole sequence."""
    import numba

    from onnxremat.planners.search.edit import load
    from onnxremat.planners.search.engine import Cooling, Engine, load_kernels, score

    @numba.njit(nogil=True)  # type: ignore[untyped-decorator]
    def reload(flat: object, state: object, steps: object, count: int) -> None:
        for _ in range(count):
            load(flat, state, steps)

    graph = load_published(shared / "rl_n1000.json")
    own = profile(graph, given_order(graph), PAPER_RULES).peak_bytes
    problem = Problem(graph, PAPER_RULES, own * 80 // 100, fixed_order=True)
    begin = PLANNERS["local_search"].function(problem, Limits(seconds=3)).schedule
    moves = 500_000
    load_kernels()
    deadline = Deadline(Limits(seconds=60, iterations=moves))
    engine = Engine(problem, score(problem, begin), deadline, Cooling())
    started = time.perf_counter()
    engine.cycle(1.0, own * 80 // 100)
    incremental = (time.perf_counter() - started) / deadline.iterations
    steps = np.array(begin.steps, dtype=np.int64)
    reload(engine.flat, engine.state, steps, 1)
    count = 2000
    started = time.perf_counter()
    reload(engine.flat, engine.state, steps, count)
    whole = (time.perf_counter() - started) / count
    ratio = whole / incremental
    holds = ratio >= FASTER
    yield (
        [
            "rl_n1000",
            str(len(begin)),
            f"{1e6 * incremental:.2f}",
            f"{1e6 * whole:.2f}",
            f"{ratio:.1f}",
            f"{FASTER:g}" + ("" if holds else " FAILED"),
        ],
        holds,
    )


LARGE = "--large-only"


def plan_large() -> None:
    """In a process of its own: prints ops, share of the peak, extra time, seconds, bytes."""
    from onnxremat.importer import bind_dimensions, import_model, infer_types, load
    from onnxremat_rewriters.release import release

    with TemporaryDirectory() as scratch:
        path = Path(scratch) / "ffn_train.onnx"
        depth = LARGE_NODES // NODES_PER_BLOCK
        onnx.save(BUILDERS["ffn_train"](depth=depth, width=32), path)
        loaded = load(path)
        loaded = replace(loaded, model=release(loaded.model).model)
        binding = bind_dimensions(loaded, {})
        graph = import_model(loaded, infer_types(loaded, binding)).graph
    peak = profile(graph, given_order(graph), RECIPE_RULES).peak_bytes
    started = time.perf_counter()
    made = run("auto", Problem(graph, RECIPE_RULES, peak // 2), LARGE_SECONDS - 8)
    seconds = time.perf_counter() - started
    held = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    share = made.plan.peak_bytes / peak
    print(len(graph.ops), share, made.plan.extra_time, seconds, held)


def large_part() -> Iterator[tuple[list[str], bool]]:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.planners", LARGE],
        capture_output=True,
        text=True,
        check=True,
    )
    ops, share, extra, seconds, held = done.stdout.split()
    holds = float(share) <= 0.5 and float(seconds) <= LARGE_SECONDS and int(held) <= LARGE_BYTES
    yield (
        [
            "ffn_train",
            ops,
            f"{100 * float(share):.1f}%",
            f"{100 * float(extra):.2f}%",
            f"{float(seconds):.1f}",
            f"{int(held) / 1e6:.0f}",
            "50%, 60 s, 2000 MB" + ("" if holds else " FAILED"),
        ],
        holds,
    )


def layered_graph(rng: random.Random, count: int) -> Graph:
    """Ops that read two near ones and now and then a far one."""
    tensors = [Tensor("x", (), "uint8", 1, TensorKind.INPUT)]
    ops = []
    for v in range(count):
        reads = {rng.randrange(max(0, v - 5), v) + 1 for _ in range(2)} if v else {0}
        if v > 3 and rng.random() < 0.4:
            reads.add(rng.randrange(v) + 1)
        tensors.append(Tensor(f"t{v}", (), "uint8", rng.randint(1, 20)))
        cost = rng.randint(1, 20)
        ops.append(Op(f"op{v}", "Op", tuple(sorted(reads)), (v + 1,), cost=cost))
    return Graph(tuple(tensors), tuple(ops), (0,), (count,))


def agree_part() -> Iterator[tuple[list[str], bool]]:
    from onnxremat.planners.checkmate import solve as by_stages
    from onnxremat.planners.moccasin import solve as by_intervals

    rng = random.Random(1)
    for count in (10, 13, 16, 19, 22, 25):
        graph = layered_graph(rng, count)
        own = profile(graph, given_order(graph), PAPER_RULES).peak_bytes
        budget = max(peak_bound(graph, PAPER_RULES).nbytes, own * 90 // 100)
        problem = Problem(graph, PAPER_RULES, budget, fixed_order=True, max_copies=2)
        cells, found = [str(count), str(graph.total_cost())], []
        for solve in (by_stages, by_intervals):
            started = time.perf_counter()
            solved = solve(problem, Limits(seconds=AGREE_SECONDS), max_copies=2)
            cells.append(f"{solved.time_cost} in {time.perf_counter() - started:.1f} s")
            found.append((solved.time_cost, solved.infeasible) if solved.proved else object())
        holds = found[0] == found[1]
        yield [*cells, "both proved, equal" + ("" if holds else " FAILED")], holds


def small_graph(rng: random.Random) -> Graph:
    """Up to seven ops with random times, several outputs and scratch."""
    tensors = [Tensor("x", (), "uint8", 4, TensorKind.INPUT)]
    ops = []
    for v in range(rng.randint(3, 7)):
        reads = tuple({rng.randrange(len(tensors)) for _ in range(rng.randint(1, 3))})
        makes = []
        for _ in range(rng.choice((1, 1, 1, 2)) if len(tensors) < 8 else 1):
            makes.append(len(tensors))
            tensors.append(Tensor(f"t{len(tensors)}", (), "uint8", rng.randint(1, 9)))
        cost, scratch = rng.randint(1, 20), rng.choice((0, 0, 4))
        ops.append(Op(f"op{v}", "Op", reads, tuple(makes), cost=cost, workspace_bytes=scratch))
    made = [t for op in ops for t in op.outputs]
    outputs = tuple(rng.sample(made, min(len(made), rng.randint(1, 2))))
    return Graph(tuple(tensors), tuple(ops), (0,), outputs)


def small_part(count: int) -> Iterator[tuple[list[str], bool]]:
    """Every planner on random graphs: never below the optimum, never wrong when it is sure."""
    rng = random.Random(0)
    rules = MemoryRules(count_workspace=True)
    tally = {name: [0, 0, 0, 0] for name in PLANNERS}
    for _ in range(count):
        graph = small_graph(rng)
        own = profile(graph, given_order(graph), rules).peak_bytes
        smallest = least_peak(graph, rules)
        budget = smallest + (own - smallest) * rng.choice((-10, 0, 0, 30, 60)) // 100
        best = least_time(graph, rules, budget)
        for name, counts in tally.items():
            plan = PLANNERS[name].function(
                Problem(graph, rules, budget), Limits(seconds=5, iterations=2000)
            )
            counts[0] += best is not None
            counts[1] += best is not None and plan.meets(budget) and plan.time_cost == best
            claims = plan.status is PlanStatus.OPTIMAL and plan.time_cost != best
            claims |= plan.status is PlanStatus.INFEASIBLE and best is not None
            too_high = plan.peak_bound_bytes > smallest
            too_high |= best is not None and plan.time_bound > best
            counts[2] += claims
            counts[3] += too_high
    for name, (possible, found, wrong, high) in tally.items():
        holds = not wrong and not high
        yield (
            [
                name,
                str(count),
                str(possible),
                str(found),
                str(wrong),
                str(high) + ("" if holds else " FAILED"),
            ],
            holds,
        )


TIMES = tuple(f"{mark:g} s" for mark in MARKS)
PUBLISHED_HEADER = ("graph", "budget", "planner", *TIMES, "seconds", "status", "least", "asked")
HEADERS = {
    "fixed": PUBLISHED_HEADER,
    "free": PUBLISHED_HEADER,
    "real": ("model", "ops", "peak MB", "budget", "bound", "reached", "10 s", "30 s", "60 s",
             "least", "asked"),
    "moves": ("graph", "executions", "move us", "whole us", "ratio", "asked"),
    "large": ("model", "ops", "reached", "extra time", "seconds", "resident MB", "asked"),
    "agree": ("ops", "one pass", "checkmate", "moccasin", "asked"),
    "small": ("planner", "graphs", "possible", "optimum found", "wrong claims", "bounds too high"),
}  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shared", type=Path, help="folder with the published graphs")
    parser.add_argument("--models", type=Path, help="folder with the training models")
    parser.add_argument("--only", default=",".join(HEADERS), help="parts, with commas between")
    parser.add_argument("--random", type=int, default=150)
    parser.add_argument("--markdown", type=Path, help="write the tables there as well")
    parser.add_argument("--csv", type=Path, help="write all rows there as well")
    parser.add_argument(LARGE, action="store_true", dest="large_only", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    compile_kernels()
    if arguments.large_only:
        plan_large()
        return 0
    shared, models = arguments.shared, arguments.models
    parts: dict[str, Iterator[tuple[list[str], bool]] | None] = {
        "fixed": fixed_part(shared) if shared else None,
        "free": free_part(shared) if shared else None,
        "real": real_part(models) if models else None,
        "moves": moves_part(shared) if shared else None,
        "large": large_part(),
        "agree": agree_part(),
        "small": small_part(arguments.random),
    }
    lines = [f"Made at commit {commit()}, two cores, by `python -m benchmarks.planners`."]
    rows: list[list[str]] = []
    fine = True

    def put(cells: Sequence[str]) -> None:
        lines.append(row(cells))
        print(lines[-1], flush=True)

    for part in arguments.only.split(","):
        found = parts[part]
        if found is None:
            print(f"{part}: left out, its files were not named")
            continue
        lines.append("")
        put(HEADERS[part])
        put(("---",) * len(HEADERS[part]))
        rows.append([part, *HEADERS[part]])
        for cells, holds in found:
            put(cells)
            rows.append([part, *cells])
            fine &= holds
    if arguments.markdown is not None:
        arguments.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if arguments.csv is not None:
        with arguments.csv.open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows(rows)
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
