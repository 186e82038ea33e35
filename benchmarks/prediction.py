"""What is emulated of ONNX Runtime against what it does: execution order, and memory.

    python -m benchmarks.prediction [--shared FOLDER] [--packages FOLDER] [--only NAME]
                                    [--markdown FILE] [--graphs 300]

`--shared` has `training/*.onnx`, `--packages` inference files that ship in registry packages, as
NAME.onnx (see `models/README.md`). Order: random graphs and every model, in both modes, must run
as emulated. Memory: under the recipe the heap of a run must be within 0.5% of the prediction in the
median and within 2% or 64 KB always; under stock options (optimizations off, for the model that is
predicted must be the one that runs) resident memory above the loaded session, in the first run and
in later ones, within 5% in the median and 12% or 1 MB always. Resident memory is measured with
glibc's own thresholds, as a user would have it. A line that does not hold ends with FAILED, and
so does the command.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

from onnxremat.errors import OnnxrematError
from onnxremat.prepare import Feed, Options, prepare_feed
from onnxremat.runtimes.functions import expand_functions
from onnxremat.runtimes.library import RUNTIME_VERSION, ort
from onnxremat.runtimes.measure import in_memory, measure_activation, measure_resident
from onnxremat.runtimes.order import default_order, priority_order
from onnxremat.runtimes.predict import Prediction, predict
from onnxremat.runtimes.process import ModelSource, run_job
from onnxremat.runtimes.profiling import RunProfile, named_copy, profile_run, read_profile
from onnxremat.runtimes.provable import provable_types
from onnxremat.runtimes.recipe import (
    RECIPE,
    STOCK,
    ExecutionOrder,
    OptimizationLevel,
    Recipe,
    session_options,
)
from onnxremat.runtimes.wire import Array
from tests.runtimes.build import random_model

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
    feed = prepare_feed(path, Options(dims=dict(DIMS.get(name, {})), inputs=inputs))
    model = feed.loaded.model
    profile = profile_run(model, feed.loaded.base_dir, feed.inputs, feed.recipe)
    expanded = len(profile.expanded)
    if expanded:
        model = expand_functions(model, profile.expanded)
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
    with run_job("profile", [source], [recipe], found.feed.inputs, options={"runs": 1}) as job:
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
    """What was found about one model."""

    name: str
    nodes: int
    orders: tuple[bool, ...]
    recipe: Figure
    pattern: Figure
    first: Figure
    later: Figure

    @property
    def failures(self) -> list[str]:
        checks = {
            "order": all(self.orders),
            "recipe": self.recipe.holds(RECIPE_LIMITS),
            "first run": self.first.holds(STOCK_LIMITS),
            "later runs": self.later.holds(STOCK_LIMITS),
        }
        return [name for name, holds in checks.items() if not holds]

    def cells(self) -> tuple[str, ...]:
        verdict = f"{', '.join(self.failures)} FAILED" if self.failures else "holds"
        figures = (self.recipe, self.pattern, self.first, self.later)
        orders = ["equal" if equal else "differs" for equal in self.orders]
        numbers = [cell for figure in figures for cell in figure.cells()]
        return (self.name, str(self.nodes), *orders, *numbers, verdict)


HEADER = (
    "model", "nodes", "priority order", "default order",
    *(f"{what} {column}" for what in ("recipe heap", "pattern heap", "stock first", "stock later")
      for column in ("MB", "predicted", "error")),
    "verdict",
)  # fmt: skip


def examine(found: Subject) -> Line:
    """Run and measure one model."""
    feed = found.feed
    orders = tuple(
        executed(found, o) == emulate(found.model.graph.node) for o, emulate in ORDERS.items()
    )
    recipe, stock = found.recipe(RECIPE), found.recipe(STOCK)
    pattern = replace(recipe, mem_reuse=True, mem_pattern=True)
    types = provable_types(found.model, feed.loaded.base_dir, recipe, found.profile)

    def predicted(settings: Recipe) -> Prediction:
        return predict(found.model, found.profile, settings, types)

    heap = measure_activation(found.source, feed.inputs, recipe)
    block = measure_activation(found.source, feed.inputs, pattern, runs=2)
    resident = measure_resident(found.source, feed.inputs, stock, malloc_threshold_bytes=None)
    expected = predicted(stock)
    return Line(
        found.name + (f" ({found.expanded} nodes expanded)" if found.expanded else ""),
        len(found.model.graph.node),
        orders,
        Figure(predicted(recipe).heap_bytes, heap.peak_bytes),
        Figure(predicted(pattern).later.heap_bytes, block.run_peaks_bytes[-1]),
        Figure(expected.first.resident_bytes, resident.first_bytes),
        Figure(expected.later.resident_bytes, resident.steady_bytes),
    )


def summary(lines: Sequence[Line]) -> Iterator[tuple[str, bool]]:
    """Medians against their limits."""
    for what, limit, errors in (
        ("recipe", RECIPE_LIMITS[0], [line.recipe.error for line in lines]),
        ("memory pattern without arena", RECIPE_LIMITS[0], [line.pattern.error for line in lines]),
        ("stock, first run", STOCK_LIMITS[0], [line.first.error for line in lines]),
        ("stock, later runs", STOCK_LIMITS[0], [line.later.error for line in lines]),
    ):
        middle, worst = median(map(abs, errors)), max(errors, key=abs)
        holds = middle <= limit
        verdict = "holds" if holds else "FAILED"
        error = f"median error {middle:.2%} (at most {limit:.1%}), worst {worst:+.1%}"
        yield f"{what}: {error}: {verdict}", holds


def files(shared: Path | None, packages: Path | None) -> Iterator[Path]:
    """The models; those with gradient ops of the training build are left out: they do not load."""
    if shared is not None:
        yield from (
            p for p in sorted((shared / "training").glob("*.onnx")) if "ortgrad" not in p.stem
        )
    if packages is not None:
        yield from sorted(packages.glob("*.onnx"))


def commit() -> str:
    done = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    )
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--graphs", type=int, default=300)
    arguments = parser.parse_args()
    text = [
        f"Made at commit {commit()}, ONNX Runtime {RUNTIME_VERSION}, {os.cpu_count()} "
        "cores, by `python -m benchmarks.prediction`.",
        "MB are 10^6 bytes. *recipe heap*: worst of three runs under the recipe. *pattern heap*: "
        "second run, reuse and memory pattern on, arena off. *stock first*, *stock later*: "
        "resident memory above the loaded session, first and fourth run, optimizations off.",
    ]
    failed = False
    lines = []
    with TemporaryDirectory() as name:
        scratch = Path(name)
        for order, equal in random_orders(arguments.graphs, scratch).items():
            text.append(f"{equal} of {arguments.graphs} random graphs run as emulated ({order}).")
            failed |= equal < arguments.graphs
            print(text[-1], flush=True)
        for path in files(arguments.shared, arguments.packages):
            if arguments.only and arguments.only not in path.stem:
                continue
            try:
                lines.append(examine(subject(path, scratch)))
            except OnnxrematError as error:
                text.append(f"{path.stem}: FAILED, {error}")
                failed = True
                print(text[-1], flush=True)
                continue
            print("  ".join(lines[-1].cells()), flush=True)
    if lines:
        rows = [HEADER, ("---",) * len(HEADER), *(line.cells() for line in lines)]
        text.append("\n".join("| " + " | ".join(row) + " |" for row in rows))
        for sentence, holds in summary(lines):
            text.append(sentence + ".")
            failed |= not holds
            print(text[-1], flush=True)
    failed |= any(line.failures for line in lines)
    if arguments.markdown:
        arguments.markdown.write_text("\n\n".join(text) + "\n", encoding="utf-8")
    sys.exit(failed)


if __name__ == "__main__":
    main()
