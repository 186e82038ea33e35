"""What is emulated of ONNX Runtime against what it does: execution order, and memory.

    python -m benchmarks.prediction [--shared FOLDER] [--packages FOLDER] [--only NAMES]
                                    [--markdown FILE] [--graphs 300]

`--shared` has `training/*.onnx`, `--packages` inference files that ship in registry packages, as
NAME.onnx (see `models/README.md`).

Order: random graphs and every model, in both modes, must run as emulated; so must every model
under default options, as far as its optimized file tells. Recipe: the heap of a run must be within
0.5% of the prediction in the median, and within 2% or 64 KB always. Default options, nothing set at
all: resident memory above the loaded session, in the first run and in later ones, within 5% in the
median and 12% or 1 MB always; of the original, of the file of the stock rewriter (hide, chain and
wrap, in the order of the file), and of a few files that were planned and rewritten for the recipe.
Resident memory is measured with glibc's own thresholds, as a user would have it, and once more
with thresholds that make malloc give freed blocks back: loading leaves slack to the allocator that
differs from process to process, by megabytes where weights are large.

With address space randomisation a session is one of several: the runtime's optimizations follow
addresses where they have a choice (two graphs of basic_pitch_nmp, 4 MB apart), and what loading
leaves to the allocator does, too. So it is off where memory is measured; the runtime optimizes four
times with it on, and the graph that fits best is the one that counts. A line that does not hold
ends with FAILED, and so does the command.
"""

import argparse
import ctypes
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

from benchmarks import tables
from benchmarks.instruments.predict_stock import less_slack, stock_sessions
from benchmarks.tables import commit
from onnxremat.core.errors import OnnxrematError
from onnxremat.core.memory import profile
from onnxremat.core.problem import Limits, Problem
from onnxremat.core.schedule import given_order, with_eager_ops
from onnxremat.importer.execution_order import default_order, priority_order
from onnxremat.importer.nodes import is_constant
from onnxremat.options import Options
from onnxremat.ort.child import actions as worker_actions
from onnxremat.ort.child.malloc import Malloc
from onnxremat.ort.child.process import ModelSource, run_job
from onnxremat.ort.child.wire import Array
from onnxremat.ort.emulation.predict import Prediction, predict
from onnxremat.ort.emulation.rules import RECIPE_RULES
from onnxremat.ort.library import RUNTIME_VERSION, ort
from onnxremat.ort.measuring.measure import in_memory, measure_activation, measure_resident
from onnxremat.ort.measuring.profile import (
    RunProfile,
    inner_nodes,
    named_copy,
    profile_run,
    read_profile,
)
from onnxremat.ort.measuring.provable import provable_types
from onnxremat.ort.recipe import (
    RECIPE,
    STOCK,
    ExecutionOrder,
    OptimizationLevel,
    Recipe,
    session_options,
)
from onnxremat.ort.settle import settled
from onnxremat.planners import PLANNERS
from onnxremat.subject import Feed, prepare, prepare_feed
from onnxremat_rewriters.recompute import apply_schedule
from onnxremat_rewriters.release import release
from onnxremat_rewriters.stock import stock
from tests.ort.build import random_model

PLANS = {"unet_train_aot": 65, "xf_train_aot": 60}
PLANNING_SECONDS = 5.0
"""What is planned and rewritten for the recipe: percent of the peak of the model's own order."""

TRIES = 4
LARGE_BYTES = 200_000_000
"""How often the optimizations are tried to see all of their results, where some nodes are in the
blocked layout (others were always the same); once above this size."""

NO_RANDOMIZATION = 0x0040000
"""ADDR_NO_RANDOMIZE of personality(2); children inherit it."""

ORDERS = {ExecutionOrder.PRIORITY: priority_order, ExecutionOrder.DEFAULT: default_order}
RECIPE_LIMITS = (0.005, 0.02, 64 * 1024)
STOCK_LIMITS = (0.05, 0.12, 1_000_000)
"""Most relative error in the median; in the worst case, or this many bytes."""

DIMS: Mapping[str, Mapping[str, int]] = {
    "basic_pitch_nmp": {"unk__749": 4},
    "dfn3_df_dec": {"S": 500},
    "dfn3_enc": {"S": 500},
    "ppocrv4_det": {f"p2o.DynamicDimension.{i}": size for i, size in enumerate((1, 960, 960))},
    "slanet_plus": {f"DynamicDimension.{i}": size for i, size in enumerate((1, 488, 488))},
    "tashkeel_rawi_v3_int8": {"batch": 8, "seq": 256},
}
SHAPES: Mapping[str, Mapping[str, tuple[int, ...]]] = {
    "ppocrv4_rec": {"x": (6, 3, 48, 320)},
    "silero_vad": {"input": (1, 576), "state": (2, 1, 128), "sr": ()},
}
"""Inputs of models whose dimensions have no names."""


@dataclass(frozen=True)
class Subject:
    """A model as it is predicted and run."""

    name: str
    model: onnx.ModelProto
    feed: Feed
    profile: RunProfile
    expanded: int

    @property
    def source(self) -> ModelSource:
        return in_memory(self.model, self.feed.loaded.base_dir)

    def recipe(self, recipe: Recipe) -> Recipe:
        return replace(
            recipe.with_dimensions(self.feed.recipe.free_dimensions),
            optimization=OptimizationLevel.NONE,
        )


@dataclass(frozen=True)
class Figure:
    """A prediction beside what was measured, in bytes."""

    predicted: int
    measured: int

    @property
    def error(self) -> float:
        return self.predicted / self.measured - 1

    def holds(self, limits: tuple[float, float, int]) -> bool:
        _, worst, nbytes = limits
        return abs(self.error) <= worst or abs(self.predicted - self.measured) <= nbytes

    def cells(self) -> tuple[str, str, str]:
        return (f"{self.measured / 1e6:.2f}", f"{self.predicted / 1e6:.2f}", f"{self.error:+.1%}")


def subject(path: Path, scratch: Path) -> Subject:
    """Read, bind and profile a model; nodes that the runtime expands are expanded first."""
    name = path.stem
    inputs = None
    if name in SHAPES:
        inputs = scratch / f"{name}.npz"
        made: dict[str, Any] = {k: _array(k, shape) for k, shape in SHAPES[name].items()}
        np.savez(inputs, **made)
    feed = prepare_feed(
        path, Options(session="recipe", dims=dict(DIMS.get(name, {})), inputs=inputs)
    )
    model = feed.loaded.model
    profile = profile_run(model, feed.loaded.base_dir, feed.inputs, feed.recipe)
    expanded = len(profile.expanded)
    if not profile.is_of(model, feed.recipe.execution_order):
        model = settled(model, feed.loaded.base_dir, feed.recipe)
        profile = profile_run(model, feed.loaded.base_dir, feed.inputs, feed.recipe)
    return Subject(name, model, feed, profile, expanded)


def _array(name: str, shape: tuple[int, ...]) -> Array:
    if name == "sr":
        return np.array(16000, np.int64)
    return (np.random.default_rng(0).standard_normal(shape) * 0.1).astype(np.float32)


def executed(found: Subject, order: ExecutionOrder) -> list[int]:
    """Nodes of a model as the runtime ran them."""
    source = ModelSource(model=named_copy(found.model), base_dir=found.feed.loaded.base_dir)
    recipe = replace(found.recipe(RECIPE), execution_order=order)
    with run_job(
        worker_actions.profile, [source], [recipe], found.feed.inputs, options={"runs": 1}
    ) as job:
        events = json.loads((job.folder / job.answer["profile"]).read_text(encoding="utf-8"))
        stats = (job.folder / job.answer["stats"]).read_text(encoding="utf-8")
    return list(read_profile(found.model, events, stats).order)


def random_orders(count: int, folder: Path) -> dict[ExecutionOrder, int]:
    """How many random graphs of up to 60 nodes run as emulated, by mode."""
    equal = dict.fromkeys(ORDERS, 0)
    for seed in range(count):
        model = random_model(10_000 + seed, 4 + seed % 57)
        for order, emulated in ORDERS.items():
            ran = _executed_here(model, order, folder)
            equal[order] += ran == emulated(model.graph.node)
    return equal


def _executed_here(model: onnx.ModelProto, order: ExecutionOrder, folder: Path) -> list[int]:
    recipe = Recipe(execution_order=order, optimization=OptimizationLevel.NONE, threads=1)
    options = session_options(recipe)
    options.enable_profiling = True
    options.profile_file_prefix = os.fspath(folder / "profile")
    session = ort.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    feeds = {"x": np.ones(2, np.float32), "c": np.array(True)}
    session.run(None, {i.name: feeds[i.name] for i in session.get_inputs()})
    path = Path(session.end_profiling())
    events = json.loads(path.read_text(encoding="utf-8"))
    path.unlink()
    index = {f"{n.name}_kernel_time": v for v, n in enumerate(model.graph.node)}
    return [v for _, v in sorted((e["ts"], index[e["name"]]) for e in events if e["name"] in index)]


@dataclass(frozen=True)
class Line:
    """What was found about one model under the recipe."""

    name: str
    nodes: int
    orders: tuple[bool, ...]
    recipe: Figure
    pattern: Figure

    @property
    def failures(self) -> list[str]:
        checks = {"order": all(self.orders), "recipe": self.recipe.holds(RECIPE_LIMITS)}
        return [name for name, holds in checks.items() if not holds]

    def cells(self) -> tuple[str, ...]:
        orders = ["equal" if equal else "differs" for equal in self.orders]
        numbers = [cell for figure in (self.recipe, self.pattern) for cell in figure.cells()]
        return (self.name, str(self.nodes), *orders, *numbers, verdict(self.failures))


@dataclass(frozen=True)
class StockLine:
    """What was found about one file under default options. `slack` is what loading left to the
    allocator, first run and later ones, in bytes. `steady`: later runs where malloc gives freed
    blocks back at once, so that there is no slack (MALLOC_MMAP_THRESHOLD_)."""

    name: str
    file: str
    nodes: int
    order: bool
    first: Figure
    later: Figure
    slack: tuple[int, int]
    steady: Figure

    @property
    def failures(self) -> list[str]:
        checks = {
            "order": self.order,
            "first run": self.first.holds(STOCK_LIMITS),
            "later runs": self.later.holds(STOCK_LIMITS),
            "without slack": self.steady.holds(STOCK_LIMITS),
        }
        return [name for name, holds in checks.items() if not holds]

    def cells(self) -> tuple[str, ...]:
        order = "equal" if self.order else "differs"
        numbers = [*self.first.cells(), *self.later.cells()]
        slack = [f"{nbytes / 1e6:.2f}" for nbytes in self.slack]
        return (
            self.name, self.file, str(self.nodes), order, *numbers, *slack, *self.steady.cells(),
            verdict(self.failures),
        )  # fmt: skip


def verdict(failures: Sequence[str]) -> str:
    return f"{', '.join(failures)} FAILED" if failures else "holds"


HEADER = (
    "model", "nodes", "priority order", "default order",
    *(f"{what} {column}" for what in ("recipe heap", "pattern heap")
      for column in ("MB", "predicted", "error")),
    "verdict",
)  # fmt: skip
STOCK_HEADER = (
    "model", "file", "nodes run", "order",
    *(f"{what} {column}" for what in ("first run", "later runs")
      for column in ("MB", "predicted", "error")),
    "slack first", "slack later",
    *(f"without slack {column}" for column in ("MB", "predicted", "error")), "verdict",
)  # fmt: skip


def examine(found: Subject) -> Line:
    """Run and measure one model under the recipe."""
    feed = found.feed
    orders = tuple(
        executed(found, o) == emulate(found.model.graph.node) for o, emulate in ORDERS.items()
    )
    recipe = found.recipe(RECIPE)
    pattern = replace(recipe, mem_reuse=True, mem_pattern=True)
    types = provable_types(found.model, feed.loaded.base_dir, recipe, found.profile)

    def predicted(settings: Recipe) -> Prediction:
        return predict(found.model, found.profile, settings, types)

    heap = measure_activation(found.source, feed.inputs, recipe)
    block = measure_activation(found.source, feed.inputs, pattern, runs=2)
    return Line(
        found.name + (f" ({found.expanded} nodes expanded)" if found.expanded else ""),
        len(found.model.graph.node),
        orders,
        Figure(predicted(recipe).heap_bytes, heap.peak_bytes),
        Figure(predicted(pattern).later.heap_bytes, block.run_peaks_bytes[-1]),
    )


def stock_files(name: str, path: Path, feed: Feed) -> Iterator[tuple[str, onnx.ModelProto]]:
    """What is looked at under default options: the original and files of ours."""
    model = feed.loaded.model
    yield "original", model
    if name in PLANS:
        made = planned(path, PLANS[name])
        yield f"planned for the recipe at {PLANS[name]}%", made
        yield f"stock of the plan at {PLANS[name]}%", stock(made).model
    yield "stock", stock(model).model


def planned(path: Path, percent: int) -> onnx.ModelProto:
    """The model, rewritten for a peak of so many percent of its own order's."""
    imported = prepare(path, Options(session="recipe")).imported
    graph = imported.graph
    start = with_eager_ops(graph, given_order(graph))
    peak = profile(graph, start, RECIPE_RULES).peak_bytes
    problem = Problem(graph, RECIPE_RULES, budget_bytes=peak * percent // 100, starts=(start,))
    plan = PLANNERS["auto"].function(problem, Limits(seconds=PLANNING_SECONDS))
    made = apply_schedule(imported, with_eager_ops(graph, plan.schedule))
    return release(made.model).model


def examine_stock(
    name: str, file: str, model: onnx.ModelProto, feed: Feed, scratch: Path
) -> StockLine:
    """Run and measure one file under default options."""
    base = feed.loaded.base_dir
    randomize(True)
    sessions = stock_sessions(model, base, feed.inputs, tries=1)
    if sessions[0].optimized.layout_nodes and not large(model):
        sessions = stock_sessions(model, base, feed.inputs, tries=TRIES)
    randomize(False)
    resident = measure_resident(in_memory(model, base), feed.inputs, STOCK, malloc=Malloc.USUAL)
    steady = measure_resident(in_memory(model, base), feed.inputs, STOCK)
    found = []
    for session in sessions:
        emulated = session.predict()
        found.append((emulated, less_slack(emulated, model, base, feed.inputs, STOCK)))
    emulated, expected = min(
        found, key=lambda pair: abs(pair[1].first.resident_bytes - resident.first_bytes)
    )
    slack = [
        before.resident_bytes - after.resident_bytes
        for before, after in (
            (emulated.first, expected.first),
            (emulated.later, expected.later),
        )
    ]
    return StockLine(
        name,
        file + (f" (one of {len(sessions)} graphs)" if len(sessions) > 1 else ""),
        len(sessions[0].order),
        runs_in_file_order(model, feed, scratch),
        Figure(expected.first.resident_bytes, resident.first_bytes),
        Figure(expected.later.resident_bytes, resident.steady_bytes),
        (slack[0], slack[1]),
        Figure(
            min(
                (session.later.resident_bytes for session, _ in found),
                key=lambda nbytes: abs(nbytes - steady.steady_bytes),
            ),
            steady.steady_bytes,
        ),
    )


def randomize(on: bool) -> None:
    """Whether processes that are started from now on have their addresses randomised."""
    ctypes.CDLL(None).personality(0 if on else NO_RANDOMIZATION)


def large(model: onnx.ModelProto) -> bool:
    return model.ByteSize() > LARGE_BYTES


def runs_in_file_order(model: onnx.ModelProto, feed: Feed, scratch: Path) -> bool:
    """Whether a session with default options runs the nodes as the file that it writes has them."""
    named, written = scratch / "named.onnx", scratch / "written.onnx"
    named.write_bytes(named_copy(model).SerializeToString())
    options = session_options(STOCK)
    options.optimized_model_filepath = os.fspath(written)
    options.enable_profiling = True
    options.profile_file_prefix = os.fspath(scratch / "profile")
    folder = os.fspath(feed.loaded.base_dir.resolve())
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
    session = ort.InferenceSession(named.read_bytes(), options, providers=["CPUExecutionProvider"])
    session.run(None, {i.name: feed.inputs[i.name] for i in session.get_inputs()})
    path = Path(session.end_profiling())
    events = json.loads(path.read_text(encoding="utf-8"))
    ran = list(
        dict.fromkeys(
            e["name"].removesuffix("_kernel_time")
            for e in sorted(events, key=lambda e: e["ts"])
            if e.get("cat") == "Node" and e["name"].endswith("_kernel_time")
        )
    )
    top = onnx.load(written, load_external_data=False).graph.node
    for file in (path, named, written):
        file.unlink()
    bodies = {inner.name for node in top for inner in inner_nodes(node)}
    outer = [node.name for node in top if not is_constant(node)]
    if [name for name in ran if name not in bodies] != outer:
        return False
    inner = [
        n.name
        for node in top
        for n in inner_nodes(node) if not is_constant(n) and n.name in set(ran)
    ]  # fmt: skip
    return [name for name in ran if name in bodies] == inner


def summary(lines: Sequence[Line], stock: Sequence[StockLine]) -> Iterator[tuple[str, bool]]:
    """Medians against their limits."""
    originals = [line for line in stock if line.file == "original"]
    ours = [line for line in stock if line.file != "original"]
    for what, limit, errors in (
        ("recipe", RECIPE_LIMITS[0], [line.recipe.error for line in lines]),
        ("memory pattern without arena", RECIPE_LIMITS[0], [line.pattern.error for line in lines]),
        ("originals, first run", STOCK_LIMITS[0], [line.first.error for line in originals]),
        ("originals, later runs", STOCK_LIMITS[0], [line.later.error for line in originals]),
        ("without slack, later runs", STOCK_LIMITS[0], [line.steady.error for line in stock]),
        ("files of ours, first run", STOCK_LIMITS[0], [line.first.error for line in ours]),
        ("files of ours, later runs", STOCK_LIMITS[0], [line.later.error for line in ours]),
    ):
        if not errors:
            continue
        middle, worst = median(map(abs, errors)), max(errors, key=abs)
        holds = middle <= limit
        error = f"median error {middle:.2%} (at most {limit:.1%}), worst {worst:+.1%}"
        yield f"{what}: {error}: {'holds' if holds else 'FAILED'}", holds


def files(shared: Path | None, packages: Path | None) -> Iterator[Path]:
    """The models; those with gradient ops of the training build are left out: they do not load."""
    if shared is not None:
        yield from (
            p for p in sorted((shared / "training").glob("*.onnx")) if "ortgrad" not in p.stem
        )
    if packages is not None:
        yield from sorted(packages.glob("*.onnx"), key=lambda p: (p.stat().st_size > 10**8, p))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--graphs", type=int, default=300)
    arguments = parser.parse_args()
    randomize(False)
    text = [
        f"Made at commit {commit()}, ONNX Runtime {RUNTIME_VERSION}, {os.cpu_count()} "
        "cores, by `python -m benchmarks.prediction`; address space randomisation off.",
        "MB are 10^6 bytes. *recipe heap*: worst of three runs under the recipe. *pattern heap*: "
        "second run, reuse and memory pattern on, arena off. Under default options: resident "
        "memory above the loaded session, first and fourth run; *slack* is what loading left "
        "to the allocator, which is not in the figures.",
    ]
    failed = False
    lines: list[Line] = []
    stock_lines: list[StockLine] = []
    with TemporaryDirectory() as name:
        scratch = Path(name)
        for order, equal in random_orders(arguments.graphs, scratch).items():
            text.append(f"{equal} of {arguments.graphs} random graphs run as emulated ({order}).")
            failed |= equal < arguments.graphs
            print(text[-1], flush=True)
        for path in files(arguments.shared, arguments.packages):
            if arguments.only and not any(n in path.stem for n in arguments.only.split(",")):
                continue
            try:
                found = subject(path, scratch)
                lines.append(examine(found))
                print("  ".join(lines[-1].cells()), flush=True)
                for file, model in stock_files(path.stem, path, found.feed):
                    stock_lines.append(examine_stock(path.stem, file, model, found.feed, scratch))
                    print("  ".join(stock_lines[-1].cells()), flush=True)
            except OnnxrematError as error:
                text.append(f"{path.stem}: FAILED, {error}")
                failed = True
                print(text[-1], flush=True)
            if arguments.markdown:
                found_so_far = markdown(text, lines, stock_lines)
                arguments.markdown.write_text(found_so_far, encoding="utf-8")
    for sentence, holds in summary(lines, stock_lines):
        failed |= not holds
        print(sentence, flush=True)
    failed |= any(line.failures for line in (*lines, *stock_lines))
    sys.exit(failed)


def markdown(text: Sequence[str], lines: Sequence[Line], stock: Sequence[StockLine]) -> str:
    """What was found so far."""
    parts = list(text)
    for header, rows in ((HEADER, lines), (STOCK_HEADER, stock)):
        parts.append(tables.markdown(header, (row.cells() for row in rows)))
    parts.extend(f"{sentence}." for sentence, _ in summary(lines, stock))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    main()
