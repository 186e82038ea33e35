"""The memory-optimal order: how fast it is proved, how far the search gets, what the runtime says.

    python -m benchmarks.orders [--models FOLDER] [--packages FOLDER] [--shared FOLDER]
                                [--random 2000] [--markdown FILE]

Four parts. *Random graphs* of up to 9 ops (aliases do not exist in a Graph; in-place ops, several
outputs, workspace and held outputs do): the exact order against all topological orders. *Proofs*:
`reorder` with `max_copies=1` on builders, the light models of the onnx package and the files of
`--packages` with the sizes of `--models`/inference.json, 5 s each, which must end with a proof.
Beside it the best order that node positions alone keep in ONNX Runtime's default order
(`depth_first`), for which a proof is not asked. *Published graphs* of `--shared`: the best order in
a given time, in shares of the input order's peak; the bound is stated. *Runtime*: a randomly wired
network rewritten with reordering alone; the measured peak must be the predicted one within 0.5%, in
two wirings of three at least 25% below the original's, and the time at most 10% longer. Lines that
do not hold end with FAILED, and so does the command.
"""

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from benchmarks.published import load_published
from benchmarks.tables import commit
from models import BUILDERS
from onnxremat.commands.rewrite import rewrite
from onnxremat.core.bounds import peak_bound
from onnxremat.core.deadline import ENDLESS
from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.memory import PAPER_RULES, MemoryRules, profile
from onnxremat.core.problem import Limits, PlanStatus, Problem
from onnxremat.core.schedule import Schedule, given_order, with_eager_ops
from onnxremat.options import Options
from onnxremat.ort.emulation.rules import RECIPE_RULES
from onnxremat.planners import compile_kernels
from onnxremat.planners.exact_order.rising_threshold import exact_order
from onnxremat.planners.reorder import reorder
from onnxremat.subject import prepare

PROOF_SECONDS = 5.0
PROVED = ("inception", "densenet", "nasnet", "randwire", "unet", "transformer", "mobilenet")
PUBLISHED = (("rl_n100", 2.0, 0.80), ("rl_n250", 2.0, 0.72), ("rl_n1000", 20.0, 0.90))
"""Graph, seconds, share of the input order's peak that must be reached."""
WIRED = {"first": 32, "channels": 64, "classes": 10}
REQUIRED_SAVING = 0.25
SAVING_WIRINGS = (2, 3)
"""What an order can save differs from graph to graph; these must save REQUIRED_SAVING."""
SAME = 0.005
NOISE = 0.1
"""Of medians of runs taken in turns."""


def random_graph(rng: random.Random) -> tuple[Graph, MemoryRules]:
    """Up to nine ops with everything that a Graph can have."""
    tensors = [Tensor("x", (), "uint8", 4, TensorKind.INPUT)]
    ops = []
    for v in range(rng.randint(1, 9)):
        reads = tuple(rng.randrange(len(tensors)) for _ in range(rng.randint(1, 3)))
        makes = []
        for _ in range(rng.choice((1, 1, 1, 2))):
            makes.append(len(tensors))
            tensors.append(Tensor(f"t{len(tensors)}", (), "uint8", rng.randint(0, 9)))
        kind = rng.choice(("Plain", "InPlace"))
        scratch = rng.choice((0, 0, 0, 4))
        ops.append(Op(f"op{v}", kind, reads, tuple(makes), workspace_bytes=scratch))
    made = [t for op in ops for t in op.outputs]
    outputs = tuple(rng.sample(made, min(len(made), rng.randint(1, 3))))
    rules = MemoryRules(
        alignment_bytes=rng.choice((1, 4)),
        inplace=rng.choice(({}, {"InPlace": ((0, 0),)}, {"InPlace": ((0, 1), (1, 0))})),
        unread_held=rng.random() < 0.5,
    )
    return Graph(tuple(tensors), tuple(ops), (0,), outputs), rules


def smallest_peak(graph: Graph, rules: MemoryRules) -> int:
    """Over all topological orders."""
    best: list[int] = []
    steps: list[int] = []

    def extend() -> None:
        if len(steps) == len(graph.ops):
            peak = profile(graph, Schedule(tuple(steps)), rules).peak_bytes
            best[:] = [min([peak, *best])]
        for v in range(len(graph.ops)):
            if v not in steps and all(u in steps for u in graph.predecessors(v)):
                steps.append(v)
                extend()
                steps.pop()

    extend()
    return best[0]


def random_part(count: int) -> Iterator[tuple[str, bool]]:
    rng = random.Random(0)
    right = 0
    for _ in range(count):
        graph, rules = random_graph(rng)
        found = exact_order(graph, rules, peak_bound(graph, rules).nbytes, deadline=ENDLESS)
        assert found.order is not None
        reached = profile(graph, Schedule(found.order), rules).peak_bytes
        right += reached == smallest_peak(graph, rules)
    yield f"{right} of {count} random graphs: the smallest peak of all orders.", right == count


def graphs(models: Path | None, packages: Path | None) -> Iterator[tuple[str, Graph]]:
    with TemporaryDirectory() as name:
        for builder in PROVED:
            path = Path(name) / f"{builder}.onnx"
            onnx.save(BUILDERS[builder](), path)
            yield f"builder {builder}", prepare(path, Options(session="recipe")).imported.graph
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    for path in sorted(light.glob("*.onnx")):
        yield path.stem, prepare(path, Options(session="recipe")).imported.graph
    if models is None or packages is None:
        return
    for entry in json.loads((models / "inference.json").read_text(encoding="utf-8")):
        path = packages / f"{entry['name']}.onnx"
        if entry["name"] == "silero_vad" or entry["name"].startswith("light_"):
            continue  # five nodes, all in branches; and those from the onnx package
        dims = {
            f"{value}:{axis}": size
            for value, shape in entry["input_shapes"].items()
            for axis, size in enumerate(shape)
        }
        yield entry["name"], prepare(path, Options(session="recipe", dims=dims)).imported.graph


def proof_part(models: Path | None, packages: Path | None) -> Iterator[tuple[str, bool]]:
    yield (
        "| model | ops | own order MB | smallest MB | saved | seconds | verdict | "
        "smallest by positions MB | proved |",
        True,
    )
    yield "|---|---|---|---|---|---|---|---|---|", True
    for name, graph in graphs(models, packages):
        own = profile(graph, with_eager_ops(graph, given_order(graph)), RECIPE_RULES).peak_bytes
        started = time.perf_counter()
        problem = Problem(graph, RECIPE_RULES, max_copies=1)
        plan = reorder(problem, Limits(seconds=PROOF_SECONDS))
        took = time.perf_counter() - started
        proved = plan.status is PlanStatus.OPTIMAL and took <= PROOF_SECONDS
        verdict = "proved" if proved else f"{plan.status.value} FAILED"
        positions = reorder(replace(problem, depth_first=True), Limits(seconds=PROOF_SECONDS))
        best = positions.status is PlanStatus.OPTIMAL or positions.peak_bytes == plan.peak_bytes
        yield (
            f"| {name} | {len(graph.ops)} | {own / 1e6:.3f} | {plan.peak_bytes / 1e6:.3f} | "
            f"{1 - plan.peak_bytes / own:.1%} | {took:.2f} | {verdict} | "
            f"{positions.peak_bytes / 1e6:.3f} | {'yes' if best and proved else 'no'} |",
            proved,
        )


def published_part(shared: Path) -> Iterator[tuple[str, bool]]:
    yield "| graph | seconds | share of the input order's peak | asked | bound | verdict |", True
    yield "|---|---|---|---|---|---|", True
    for name, seconds, asked in PUBLISHED:
        graph = load_published(shared / f"{name}.json")
        own = profile(graph, given_order(graph), PAPER_RULES).peak_bytes
        plan = reorder(Problem(graph, PAPER_RULES, max_copies=1), Limits(seconds=seconds))
        share = plan.peak_bytes / own
        bound = plan.peak_bound_bytes / own
        holds = share <= asked or bound > asked
        verdict = "holds" if share <= asked else "FAILED"
        if plan.status is PlanStatus.OPTIMAL:
            verdict += ", proved smallest"
        elif bound > asked:
            verdict = "what is asked is proved impossible"
        yield (
            f"| {name} | {seconds:g} | {share:.4f} | {asked:.2f} | {bound:.4f} | {verdict} |",
            holds,
        )


def runtime_part() -> Iterator[tuple[str, bool]]:
    yield "| wiring | original MB | planned MB | measured MB | saved | time | verdict |", True
    yield "|---|---|---|---|---|---|---|", True
    with TemporaryDirectory() as name:
        for wiring in (1, 2, 3):
            path = Path(name) / "randwire.onnx"
            onnx.save(BUILDERS["randwire"](wiring=wiring, **WIRED), path)
            result = rewrite(
                path, "min", Options(session="recipe", recompute=False, time_limit=10, tiling=False)
            )
            saved = 1 - result.rewritten.peak_bytes / result.original.peak_bytes
            error = abs(result.rewritten.peak_bytes / result.plan.peak_bytes - 1)
            check = result.verification
            assert check is not None
            enough = saved >= REQUIRED_SAVING or wiring not in SAVING_WIRINGS
            unchanged = (check.time_ratio or math.inf) <= 1 + NOISE
            holds = enough and error <= SAME and check.identical and unchanged
            yield (
                f"| {wiring} | {result.original.peak_bytes / 1e6:.3f} | "
                f"{result.plan.peak_bytes / 1e6:.3f} | {result.rewritten.peak_bytes / 1e6:.3f} | "
                f"{saved:.1%} | {100 * ((check.time_ratio or 1) - 1):+.1f}% | "
                f"{'holds' if holds else 'FAILED'} |",
                holds,
            )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", type=Path, help="folder with inference.json")
    parser.add_argument("--packages", type=Path, help="folder with the inference files")
    parser.add_argument("--shared", type=Path, help="folder with the published graphs")
    parser.add_argument("--random", type=int, default=2000)
    parser.add_argument("--markdown", type=Path, help="write the tables there as well")
    arguments = parser.parse_args()
    compile_kernels()
    lines = [f"Made at commit {commit()}, two cores, by `python -m benchmarks.orders`."]
    fine = True
    parts = [
        random_part(arguments.random),
        proof_part(arguments.models, arguments.packages),
        published_part(arguments.shared) if arguments.shared else iter(()),
        runtime_part(),
    ]
    for part in parts:
        lines.append("")
        for line, holds in part:
            print(line, flush=True)
            lines.append(line)
            fine &= holds
    if arguments.markdown is not None:
        arguments.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
