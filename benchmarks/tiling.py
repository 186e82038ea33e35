"""Plan tiles for networks under limits far below the bound of one op, and measure them.

    python -m benchmarks.tiling [--packages FOLDER] [--only NAME] [--markdown FILE]
                                [--time-limit 60] [--pairs 5]

Each line: a limit as a share of the peak of the original, regions by `choose_regions`, the model
tiled, then planned by an ordinary planner, and measured at two threads. Peaks are heap peaks under
the recipe, the worst of three runs. Times are of a run of both models that take turns, warm, with
the arena on (so that the baseline does not pay for page faults), else under the recipe; their
ratio is the median over rounds. A line holds if the peak is lower by the factor asked for, the
time ratio is within its limit, and all outputs have the bits of the original. One that does not
ends with FAILED, and so does the command.

`--packages` has the inference files that ship in registry packages, as NAME.onnx (see
`models/README.md`). The light models of the onnx package make their weights when they run; here
seeded random weights are stored in their place, as after constant folding.
"""

import argparse
import os
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.tables import end, made_with, markdown
from models import BUILDERS
from onnxremat.core.problem import Limits, Problem
from onnxremat.core.units import format_seconds
from onnxremat.options import Options
from onnxremat.ort.emulation.predict import BOOKKEEPING_NODE_BYTES
from onnxremat.ort.emulation.rules import RECIPE_RULES
from onnxremat.ort.measuring.compare import different_names
from onnxremat.ort.measuring.measure import (
    in_memory,
    measure_activation,
    measure_times,
    run_outputs,
)
from onnxremat.ort.recipe import ExecutionOrder
from onnxremat.planners import PLANNERS, compile_kernels
from onnxremat.subject import Subject, prepare
from onnxremat.targets.target import own_schedule
from onnxremat.tiling import Tiling, TilingPlan, choose_regions, tiled_subject
from onnxremat_rewriters.recompute import apply_schedule
from onnxremat_rewriters.tile import Region

THREADS = 2
MOST_PLANNING_SECONDS = 60.0
MARGIN = 0.005
"""The plan aims at so much less than the limit: blocks of a few KB are not in the model."""


@dataclass(frozen=True)
class Case:
    """A network, by how much its peak must be lower, and the most that its time may grow to."""

    name: str
    path: Callable[[], Path | None]
    times_lower: float
    most_time: float | None = None
    dims: tuple[tuple[str, int], ...] = ()


def cases(packages: Path | None, scratch: Path) -> Iterator[Case]:
    """The lines of the acceptance list."""

    def built(builder: str, **arguments: object) -> Callable[[], Path | None]:
        words = "_".join(f"{key}{value}" for key, value in arguments.items())

        def build() -> Path:
            path = scratch / f"{builder}_{words}.onnx"
            if not path.exists():
                onnx.save(BUILDERS[builder](**arguments), path)
            return path

        return build

    def packaged(name: str) -> Callable[[], Path | None]:
        return lambda: None if packages is None else packages / f"{name}.onnx"

    def stored(name: str) -> Callable[[], Path | None]:
        def store() -> Path | None:
            if packages is None or not (packages / f"{name}.onnx").is_file():
                return None
            path = scratch / f"{name}.onnx"
            if not path.exists():
                onnx.save(with_weights(onnx.load(packages / f"{name}.onnx")), path)
            return path

        return store

    yield Case("espcn 1024", built("espcn", size=1024, scale=2), 15, 1.1)
    yield Case("dncnn 512", built("dncnn", size=512, depth=17), 9, 1.1)
    for up in ("resize", "transpose"):
        unet = built("unet", size=512, base=32, levels=4, up=up)
        yield Case(f"unet 512 {up}", unet, 3.8, 1.2)
        yield Case(f"unet 512 {up}", unet, 6, 1.35)
    yield Case("mobilenet 224", built("mobilenet", size=224), 2.9, 1.1)
    encoder = built("transformer", sequence=2048, heads=8)
    yield Case("transformer 2048, attention", encoder, 10, 1.05)
    yield Case("transformer 2048", encoder, 4, 1.05)
    yield Case("nasnet 512, 1,055 nodes", built("nasnet", cells=5, size=512), 1.5)
    dims = tuple((f"p2o.DynamicDimension.{i}", size) for i, size in enumerate((1, 960, 960)))
    yield Case("ppocrv4_det", packaged("ppocrv4_det"), 1.8, dims=dims)
    yield Case("ddddocr_det_yolox", packaged("ddddocr_det_yolox"), 1.8)
    for name in ("light_vgg19", "light_squeezenet"):
        yield Case(name, stored(name), 2)


def with_weights(model: onnx.ModelProto, seed: int = 0) -> onnx.ModelProto:
    """The model with random weights stored where it makes constant ones in the run."""
    rng = np.random.default_rng(seed)
    graph = model.graph
    shapes = {t.name: numpy_helper.to_array(t) for t in graph.initializer}
    kept = []
    for node in graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = [int(size) for size in shapes[node.input[0]]]
        spread = 1 / np.sqrt(max(1, int(np.prod(shape[1:]))))
        values = np.asarray(rng.standard_normal(shape) * spread, np.float32)
        graph.initializer.append(numpy_helper.from_array(values, node.output[0]))
    del graph.node[:]
    graph.node.extend(kept)
    return model


@dataclass(frozen=True)
class Line:
    """What came out of a case."""

    case: Case
    plan: TilingPlan
    nodes: tuple[int, int]
    peaks: tuple[int, int]
    seconds: tuple[float, float]
    time_ratio: float
    different: tuple[str, ...]
    planning_seconds: float

    def wrong(self) -> list[str]:
        """What does not hold."""
        wrong = []
        if self.peaks[0] < self.case.times_lower * self.peaks[1]:
            wrong.append("above the limit")
        if self.case.most_time is not None and self.time_ratio > self.case.most_time:
            wrong.append("too slow")
        if self.different:
            wrong.append("bits differ")
        if self.planning_seconds > MOST_PLANNING_SECONDS:
            wrong.append("planned too long")
        return wrong


def planned(subject: Subject, limit_bytes: int, seconds: float) -> onnx.ModelProto:
    """The model of a subject, ordered and recomputed by an ordinary planner if the order that it
    has does not keep the limit."""
    imported = subject.imported
    problem = Problem(
        imported.graph,
        RECIPE_RULES,
        budget_bytes=limit_bytes,
        starts=(own_schedule(imported, ExecutionOrder.PRIORITY),),
    )
    plan = PLANNERS["auto"].function(problem, Limits(seconds=seconds, seed=0))
    return apply_schedule(imported, plan.schedule).model


def run(case: Case, subject: Subject, options: Options, pairs: int) -> Line:
    """Plan, tile, plan again, measure."""
    feed = subject.feed
    before = measure_activation(feed.source(), feed.inputs, feed.recipe).peak_bytes
    limit = int(before / case.times_lower)
    start = time.perf_counter()
    plan = choose_regions(
        subject,
        int(limit * (1 - MARGIN)),
        Tiling(RECIPE_RULES, BOOKKEEPING_NODE_BYTES, THREADS, False),
        Limits(options.time_limit),
    )
    seconds = time.perf_counter() - start
    model = planned(tiled_subject(subject, plan), limit, 10.0)
    source = in_memory(model, feed.loaded.base_dir)
    after = measure_activation(source, feed.inputs, feed.recipe).peak_bytes
    expected = run_outputs(feed.source(), feed.inputs, feed.recipe)
    different = different_names(expected, run_outputs(source, feed.inputs, feed.recipe))
    warm = replace(feed.recipe, cpu_arena=True)
    times = measure_times([feed.source(), source], feed.inputs, [warm, warm], pairs=pairs)
    nodes = (len(feed.loaded.model.graph.node), len(model.graph.node))
    first, second = times.median_seconds
    return Line(
        case, plan, nodes, (before, after), (first, second), times.ratios[1], different, seconds
    )


HEADER = (
    "model", "lower by", "time at most", "original MB", "planned MB", "tiled MB", "lower",
    "planned time", "before", "after", "time", "bits", "regions", "made again", "nodes before",
    "nodes after", "planning", "verdict",
)  # fmt: skip


def region_text(region: Region) -> str:
    """The numbers of tiles, and `c` if they carry what neighbours share."""
    return "x".join(str(tiles) for _, tiles in region.grid) + ("c" if region.carry else "")


def row(line: Line) -> tuple[str, ...]:
    """A line of the table."""
    case, plan = line.case, line.plan
    wrong = line.wrong()
    return (
        case.name,
        f"{case.times_lower:g}",
        "" if case.most_time is None else f"{case.most_time:g}",
        f"{line.peaks[0] / 1e6:.2f}",
        f"{plan.peak_bytes / 1e6:.2f}",
        f"{line.peaks[1] / 1e6:.2f}",
        f"{line.peaks[0] / line.peaks[1]:.2f}",
        f"{100 * plan.extra_time:+.1f}%",
        format_seconds(line.seconds[0]),
        format_seconds(line.seconds[1]),
        f"{line.time_ratio:.3f}",
        "differ" if line.different else "identical",
        "; ".join(map(region_text, plan.regions)) or "none",
        str(len(plan.recomputed)),
        str(line.nodes[0]),
        str(line.nodes[1]),
        f"{line.planning_seconds:.1f} s",
        ", ".join(wrong) + " FAILED" if wrong else "holds",
    )


def processor() -> str:
    """The name of the processor."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "unknown"
    names = [text.split(":", 1)[1].strip() for text in lines if text.startswith("model name")]
    return names[0] if names else "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--time-limit", type=float, default=60.0)
    parser.add_argument("--pairs", type=int, default=5)
    arguments = parser.parse_args()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    compile_kernels()
    rows = []
    subjects: dict[Path, Subject] = {}
    with TemporaryDirectory() as scratch:
        for case in cases(arguments.packages, Path(scratch)):
            if arguments.only and arguments.only not in case.name:
                continue
            path = case.path()
            if path is None or not path.is_file():
                print(f"{case.name}: no file, left out", flush=True)
                continue
            options = Options(
                session="recipe",
                threads=THREADS,
                dims=dict(case.dims),
                time_limit=arguments.time_limit,
            )
            if path not in subjects:
                subjects = {path: prepare(path, options)}
            line = run(case, subjects[path], options, arguments.pairs)
            for reason in line.plan.reasons:
                print(f"{case.name}: {reason}", flush=True)
            rows.append(row(line))
            print("  ".join(rows[-1]), flush=True)
    text = (
        f"{made_with()}, {processor()}, {os.cpu_count()} cores, {THREADS} threads; "
        f"load before it started {load:.1f}: with other work on the machine, times say little. "
        "Peaks are heap peaks of a run under the recipe, the worst of three; times of warm runs "
        f"that took turns with the arena on, {arguments.pairs} rounds. *Regions*: tiles on each "
        "axis, outer loop first; c: tiles keep what the next needs too. The light models with "
        "stored weights.\n\n" + markdown(HEADER, rows) + "\n"
    )
    end(rows, text, arguments.markdown)


if __name__ == "__main__":
    main()
