"""Tree and path decompositions: widths, what TWRemat and PWRemat reach, and what is promised.

    python -m benchmarks.decompositions [--shared FOLDER] [--random 200] [--seconds 60]
                                        [--parts promises,widths,depth,size,runtime]
                                        [--only NAME] [--markdown FILE] [--plot FILE]

*Promises*: lemmas 1 and 3, theorem 5, theorem 8 and theorem 22, with the constants of the proofs,
on every step of random graphs and on every builder's training graph (see
`tests/planners/guarantees.py`). *Widths* of the builders' training graphs and of the published
graphs in `--shared`. *Depth*: FFN, ResNet and transformer training graphs; peaks without
recomputation, of TWRemat(k) (the smallest of schedules of at most 4 times the ops), of PWRemat, and
of the `twremat` planner with the peak of TWRemat as the budget: the same memory in less time.
*Size*: a graph of 17,000 ops, decomposed
and planned. *Runtime*: rewritten models in ONNX Runtime. Peaks of the first four parts are those of
the simulator, without alignment and in-place ops; gradients of all weights are held outputs. Lines
that do not hold end with FAILED, and so does the command.
"""

import argparse
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import onnx

from benchmarks.published import load_published
from benchmarks.tables import commit
from models import BUILDERS, TRAINING
from onnxremat.commands.rewrite import rewrite
from onnxremat.core.deadline import Deadline
from onnxremat.core.graph import Graph, Op, Tensor
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.problem import Limits, Problem
from onnxremat.core.schedule import given_order
from onnxremat.options import Options
from onnxremat.planners import compile_kernels
from onnxremat.planners.decompositions.path_decomposition import (
    add_spine,
    check_path,
    from_layout,
    layouts,
)
from onnxremat.planners.decompositions.tree_decomposition import (
    check_tree,
    dependency_edges,
    separators,
    tree_decomposition,
)
from onnxremat.planners.pwremat import spined_paths
from onnxremat.planners.pwremat import sweep as path_sweep
from onnxremat.planners.search.engine import Score
from onnxremat.planners.twremat import sweep as tree_sweep
from onnxremat.planners.twremat import twremat
from tests.models.sizes import tiny
from tests.planners.guarantees import (
    check_path_schedule,
    check_tree_schedule,
    decomposed,
    imported_graph,
    random_graph,
)

RULES = MemoryRules()
FFN = {"width": 16, "batch": 2048}
RESNET = {"base": 8, "size": 128, "batch": 32, "classes": 10}
BLOCKS = {50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3), 200: (3, 24, 36, 3)}
TRANSFORMER = {"depth": 6, "width": 64, "heads": 4, "sequence": 256, "batch": 4}
SAVING = {"ffn 400": 10.0, "transformer 6": 3.5}
"""How many times less than the given order is asked for."""
LONGEST = 4.0
"""The most ops that are allowed for that, in times of one pass."""
SUBLINEAR = 0.7
"""The largest exponent of the peak's growth with depth that counts as sublinear."""
DECOMPOSED_SECONDS, PLANNED_SECONDS = 1.0, 60.0

MOST_OPS_CHECKED, LONGEST_CHECKED = 600, 3_000
"""Builders' graphs of more ops, and full schedules of more steps, are not checked step by step."""

Line = tuple[str, bool]


def promises_part(count: int) -> Iterator[Line]:
    for seed in range(count):
        graph = random_graph(seed)
        for own in (False, True):
            width, _, parts = decomposed(graph, own=own)
            for k, early in ((1, True), (1, False), (5, True)):
                check_tree_schedule(graph, parts, width, k, early)
    yield f"Lemmas 1, 3 and theorem 5 hold on every step of {count} random graphs.", True
    steps = longest = looked_at = 0
    for seed in range(count):
        graph = random_graph(seed, most_ops=30)
        for _, _, spined in spined_paths(graph, 0):
            check_path([*dependency_edges(graph), *spined.edges()], spined.path)
            made = check_path_schedule(graph, spined, 20_000)
            if made is not None:
                looked_at += 1
                steps += made
                longest = max(longest, made)
    yield (
        f"Theorem 22 holds on every step of {looked_at} of {8 * count} full schedules of PWRemat "
        f"({steps} steps, {longest} the longest; the others are longer than 20000).",
        looked_at >= 7 * count,
    )
    for name in TRAINING:
        graph = imported_graph(name, **tiny(name))
        width, _, parts = decomposed(graph)
        for early in (True, False):
            check_tree_schedule(graph, parts, width, 1, early)
    yield f"Theorem 5 holds on every step of the training graphs of {len(TRAINING)} builders.", True
    for name in TRAINING:
        graph = imported_graph(name, **tiny(name))
        if len(graph.ops) > MOST_OPS_CHECKED:
            yield f"{name} ({len(graph.ops)} ops): its full schedules are too long to check.", True
            continue
        made = [check_path_schedule(graph, s, LONGEST_CHECKED) for *_, s in spined_paths(graph, 0)]
        steps = [count for count in made if count is not None]
        yield (
            f"{name} ({len(graph.ops)} ops): theorem 22 holds on every step of {len(steps)} of "
            f"{len(made)} full schedules ({sum(steps)} steps; the others are longer than "
            f"{LONGEST_CHECKED}).",
            True,
        )


def kusumoto(path: Path) -> Graph:
    """A published graph without an order: its nodes in one that respects its edges."""
    data = json.loads(path.read_text(encoding="utf-8"))
    nodes = {node["id"]: node for node in data["nodes"]}
    reads: dict[int, set[int]] = {v: set() for v in nodes}
    for source, target in data["edges"]:
        reads[target].add(source)
    place: dict[int, int] = {}
    while len(place) < len(nodes):
        ready = [v for v in sorted(nodes) if v not in place and reads[v] <= place.keys()]
        for v in ready:
            place[v] = len(place)
    order = sorted(place, key=lambda v: place[v])
    tensors = tuple(Tensor(str(v), (), "uint8", nodes[v]["size"]) for v in order)
    ops = tuple(
        Op(str(v), "Op", tuple(sorted(place[u] for u in reads[v])), (place[v],)) for v in order
    )
    read = set().union(*reads.values())
    return Graph(tensors, ops, (), tuple(place[v] for v in order if v not in read))


def deep_graphs(only: str = "") -> Iterator[tuple[str, Graph]]:
    """The graphs whose names contain `only`."""
    options: dict[str, dict[str, object]] = {}
    for depth in (25, 50, 100, 200, 400):
        options[f"ffn {depth}"] = {"depth": depth, **FFN}
    for depth, blocks in BLOCKS.items():
        options[f"resnet {depth}"] = {"blocks": blocks, **RESNET}
    options["transformer 6"] = {**TRANSFORMER}
    for name, chosen in options.items():
        if only in name:
            yield name, imported_graph(f"{name.split()[0]}_train", **chosen)


def widths_part(shared: Path | None) -> Iterator[Line]:
    yield (
        "| graph | ops | edges | width | own elimination | bags | levels | seconds | "
        "separators s | narrowest path | with spine |",
        True,
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|", True

    exceptions: list[str] = []

    def every() -> Iterator[tuple[str, Graph]]:
        for name in TRAINING:
            yield name, imported_graph(name)
        yield from deep_graphs()
        for path in sorted(shared.glob("*.json")) if shared is not None else ():
            yield path.stem, (kusumoto if path.stem.startswith("kus_") else load_published)(path)

    for name, graph in every():
        count, edges = len(graph.ops), dependency_edges(graph)
        started = time.perf_counter()
        tree = tree_decomposition(count, edges)
        took = time.perf_counter() - started
        check_tree(count, edges, tree)
        own = tree_decomposition(count, edges, own=True)
        check_tree(count, edges, own)
        started = time.perf_counter()
        parts = separators(count, tree)
        cut = time.perf_counter() - started
        widths = []
        for kind, layout in layouts(graph, tree):
            path = from_layout(edges, layout)
            check_path(edges, path)
            spined = add_spine(count, edges, path)
            check_path([*edges, *spined.edges()], spined.path)
            widths.append(path.width)
            if spined.path.width + 1 > 2 * path.width + 3:
                exceptions.append(f"{name}, {kind}: {path.width} to {spined.path.width}")
        spine = spined_paths(graph, 0)[0][2].path.width
        yield (
            f"| {name} | {count} | {len(edges)} | {tree.width} | {own.width} | {len(tree.bags)} | "
            f"{parts.depth} | {took:.2f} | {cut:.2f} | {min(widths)} | {spine} |",
            True,
        )
    yield "", True
    yield (
        "Algorithm 2 adds spines within 2 width + 3 vertices a bag (theorem 8), except for: "
        f"{'; '.join(exceptions) or 'none'}.",
        True,
    )


def smallest_peak(found: Iterator[Score | None]) -> Score | None:
    best: Score | None = None
    for one in found:
        if one is not None and (best is None or one.better_than(best, None)):
            best = one
    return best


def depth_part(seconds: float, only: str, points: dict[str, dict[str, int]]) -> Iterator[Line]:
    yield (
        "| graph | ops | given order MB | TWRemat MB | times less | ops run | PWRemat MB | "
        "times less | ops run | polished MB | times less | ops run | time | verdict |",
        True,
    )
    yield "|---|---|---|---|---|---|---|---|---|---|---|---|---|---|", True
    for name, graph in deep_graphs(only):
        count = len(graph.ops)
        given = profile(graph, given_order(graph), RULES).peak_bytes
        problem = Problem(graph, RULES)

        def deadline() -> Deadline:
            return Deadline(Limits(seconds=seconds))

        short = (one.found for one in tree_sweep(problem, deadline()) if one.found is not None)
        tree = smallest_peak(one for one in short if len(one.schedule) <= LONGEST * count)
        path = smallest_peak(one.found for one in path_sweep(problem, deadline()))
        assert tree is not None
        asked = SAVING.get(name, 1.0)
        budget = min(tree.peak_bytes, int(given / asked))
        plan = twremat(Problem(graph, RULES, budget), Limits(seconds=seconds))
        ran = len(plan.schedule) / count
        holds = plan.meets(budget) and given >= asked * plan.peak_bytes and ran <= LONGEST
        points.setdefault("given order", {})[name] = given
        points.setdefault("TWRemat", {})[name] = tree.peak_bytes
        if path is not None:
            points.setdefault("PWRemat", {})[name] = path.peak_bytes
        yield (
            f"| {name} | {count} | {given / 1e6:.2f} | {_score(tree, given, count)} | "
            f"{_score(path, given, count)} | {plan.peak_bytes / 1e6:.2f} | "
            f"{given / plan.peak_bytes:.2f} | {ran:.2f} | {1 + plan.extra_time:.2f} | "
            f"{'holds' if holds else 'FAILED'} |",
            holds,
        )
    yield "", True
    for family, low, high in (("ffn", 25, 400), ("resnet", 50, 200)):
        for label, peaks in points.items():
            if f"{family} {low}" not in peaks or f"{family} {high}" not in peaks:
                continue
            growth = peaks[f"{family} {high}"] / peaks[f"{family} {low}"]
            exponent = math.log(growth) / math.log(high / low)
            holds = label != "TWRemat" or exponent <= SUBLINEAR
            yield (
                f"{family}: from {low} to {high} layers the peak of {label} grows {growth:.2f} "
                f"times, as depth^{exponent:.2f}{'' if holds else ' FAILED'}.",
                holds,
            )


def _score(found: Score | None, given: int, count: int) -> str:
    if found is None:
        return "too long | - | -"
    ran = len(found.schedule) / count
    return f"{found.peak_bytes / 1e6:.2f} | {given / found.peak_bytes:.2f} | {ran:.2f}"


def size_part() -> Iterator[Line]:
    graph = imported_graph("ffn_train", depth=321, **FFN)
    count, edges = len(graph.ops), dependency_edges(graph)
    tries = []
    for _ in range(3):
        started = time.perf_counter()
        tree_decomposition(count, edges)
        tries.append(time.perf_counter() - started)
    decomposed_seconds = min(tries)
    given = profile(graph, given_order(graph), RULES).peak_bytes
    started = time.perf_counter()
    plan = twremat(Problem(graph, RULES, given // 10), Limits(seconds=0.8 * PLANNED_SECONDS))
    planned = time.perf_counter() - started
    holds = decomposed_seconds <= DECOMPOSED_SECONDS and planned <= PLANNED_SECONDS
    holds &= plan.meets(given // 10)
    yield (
        f"{count} ops: decomposed in {decomposed_seconds:.2f} s (best of 3), "
        f"planned in {planned:.1f} s, {given / plan.peak_bytes:.2f} times less than the given "
        f"order, {len(plan.schedule) / count:.2f} times the ops: {'holds' if holds else 'FAILED'}",
        holds,
    )


def runtime_part(planner: str) -> Iterator[Line]:
    yield "| model | limit | original MB | planned MB | measured MB | recomputed | verdict |", True
    yield "|---|---|---|---|---|---|---|", True
    for name, options, limit in (
        ("ffn_train", {"depth": 25, "width": 16, "batch": 512}, "20%"),
        ("resnet_train", {"blocks": BLOCKS[50], "base": 4, "size": 64, "batch": 8}, "60%"),
        ("transformer_train", {"depth": 6, "width": 32, "sequence": 64, "batch": 4}, "40%"),
    ):
        with TemporaryDirectory() as folder:
            path = Path(folder) / f"{name}.onnx"
            onnx.save(BUILDERS[name](**options), path)
            result = rewrite(
                path, limit, Options(session="recipe", planner=planner, time_limit=20, tiling=False)
            )
        assert result.limit_bytes is not None
        verification = result.verification
        assert verification is not None
        holds = verification.identical and result.rewritten.peak_bytes <= result.limit_bytes
        yield (
            f"| {name} | {limit} = {result.limit_bytes / 1e6:.3f} MB | "
            f"{result.original.peak_bytes / 1e6:.3f} | {result.plan.peak_bytes / 1e6:.3f} | "
            f"{result.rewritten.peak_bytes / 1e6:.3f} | {result.recomputed} | "
            f"{'identical bits' if holds else 'FAILED'} |",
            holds,
        )


COLOURS = {"given order": "#888888", "TWRemat": "#0072b2", "PWRemat": "#d55e00"}


def plot(points: dict[str, dict[str, int]]) -> str:
    """Peak over depth for both families, axes logarithmic, as an SVG."""
    lines = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="760" height="340" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="760" height="340" fill="white"/>',
    ]
    for panel, family in enumerate(("ffn", "resnet")):
        shown = {
            label: {int(n.split()[1]): p for n, p in peaks.items() if n.startswith(f"{family} ")}
            for label, peaks in points.items()
        }
        lines += _panel(60 + 380 * panel, family, {k: v for k, v in shown.items() if v})
    return "\n".join([*lines, "</svg>"]) + "\n"


def _panel(x0: int, family: str, shown: dict[str, dict[int, int]]) -> Iterator[str]:
    depths = sorted({depth for peaks in shown.values() for depth in peaks})
    sizes = [peak for peaks in shown.values() for peak in peaks.values()]
    if len(depths) < 2:
        return
    low, high = math.log(min(sizes)), math.log(max(sizes))

    def at(depth: int, peak: int) -> tuple[float, float]:
        across = math.log(depth / depths[0]) / math.log(depths[-1] / depths[0])
        up = (math.log(peak) - low) / max(high - low, 1e-9)
        return x0 + 270 * across, 280 - 220 * up

    yield f'<text x="{x0 + 90}" y="30" font-size="14">{family}: peak over layers</text>'
    yield f'<path d="M{x0} 50V285H{x0 + 280}" fill="none" stroke="black"/>'
    for depth in depths:
        yield f'<text x="{at(depth, sizes[0])[0]:.0f}" y="302" text-anchor="middle">{depth}</text>'
    for size in (min(sizes), max(sizes)):
        y = at(depths[0], size)[1]
        yield f'<text x="{x0 - 4}" y="{y:.0f}" text-anchor="end">{size / 1e6:.3g} MB</text>'
    for row, (label, peaks) in enumerate(shown.items()):
        corners = " ".join("{:.1f},{:.1f}".format(*at(d, p)) for d, p in sorted(peaks.items()))
        colour = COLOURS[label]
        yield f'<polyline points="{corners}" fill="none" stroke="{colour}" stroke-width="2"/>'
        yield f'<text x="{x0 + 20 + 95 * row}" y="325" fill="{colour}">{label}</text>'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shared", type=Path, help="folder with the published graphs (*.json)")
    parser.add_argument("--random", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=60.0, help="for each plan of a deep graph")
    parser.add_argument("--only", default="", help="of the depth part: names that contain this")
    parser.add_argument("--planner", default="twremat", help="of the runtime part")
    parser.add_argument("--parts", default="promises,widths,depth,size,runtime")
    parser.add_argument("--markdown", type=Path, help="write the tables there as well")
    parser.add_argument("--plot", type=Path, help="write the peaks over depth there, as SVG")
    arguments = parser.parse_args()
    compile_kernels()
    points: dict[str, dict[str, int]] = {}
    parts: dict[str, Callable[[], Iterator[Line]]] = {
        "promises": partial(promises_part, arguments.random),
        "widths": partial(widths_part, arguments.shared),
        "depth": partial(depth_part, arguments.seconds, arguments.only, points),
        "size": size_part,
        "runtime": partial(runtime_part, arguments.planner),
    }
    command = "python -m benchmarks.decompositions"
    lines = [f"Made at commit {commit()}, two cores, by `{command}`, {arguments.seconds:g} s each."]
    fine = True
    for name in arguments.parts.split(","):
        lines.append("")
        for line, holds in parts[name]():
            print(line, flush=True)
            lines.append(line)
            fine &= holds
    if arguments.markdown is not None:
        arguments.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    if arguments.plot is not None:
        arguments.plot.write_text(plot(points), encoding="utf-8")
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
