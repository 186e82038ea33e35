"""A hard cap: rewritten models run where the originals cannot, because memory is refused.

    python -m benchmarks.hard_cap --shared FOLDER [--only NAME] [--markdown FILE] [--threads N]

`--shared` has `training/*.onnx`. Each graph is rewritten to its limit. Then the runtime's arena is
limited (see `instruments.cap`), with the same session options for both models: the recipe's,
with the arena. The contract: at a cap of packed weights + predicted arena peak of the rewritten
model + 5%, the rewritten model loads and runs twice, and the original does not. It is tried with
regions as large as the requests, and with the whole cap as one region. Beside it stands the
smallest cap of either model, found by bisection. The contract must hold with one region: a line
where it does not ends with FAILED, and so does the command. With regions as requested, which the
runtime never gives back, it is told whether it holds.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from benchmarks.instruments.cap import CappedRun, Regions, measure_arena, run_capped, smallest_cap
from benchmarks.instruments.cap_prediction import ArenaPrediction, predict_arena
from benchmarks.tables import commit, markdown
from onnxremat.commands.rewrite import rewrite
from onnxremat.core.errors import OnnxrematError
from onnxremat.options import Options
from onnxremat.ort.library import RUNTIME_VERSION
from onnxremat.ort.measuring.measure import in_memory
from onnxremat.ort.measuring.profile import profile_run
from onnxremat.ort.measuring.provable import provable_types
from onnxremat.subject import Feed, prepare_feed

LIMITS = {
    "unet_train_aot": "65%",
    "unetbn_train_aot": "65%",
    "resnetbn_train_aot": "75%",
    "xf_train_aot": "55%",
    "xf_train_onnxad": "45%",
    "vgg_train_onnxad": "65%",
}
ALLOWANCE = 0.05
TOLERANCE_BYTES = 16384
PLANNING_SECONDS = 10.0

HEADER = (
    "model", "limit", "regions", "initializers MB", "packed weights MB", "predicted arena peak MB",
    "cap MB", "original", "rewritten", "smallest cap, original MB", "smallest cap, rewritten MB",
    "prediction error", "verdict",
)  # fmt: skip


@dataclass(frozen=True)
class Line:
    """What was found about one model and one kind of regions; all in bytes."""

    name: str
    limit: str
    regions: Regions
    initializers: int
    packed: int
    predicted: int
    cap: int
    original: CappedRun
    rewritten: CappedRun
    smallest_original: int
    smallest_rewritten: int

    @property
    def error(self) -> float:
        """Of the predicted least cap."""
        return (self.packed + self.predicted) / self.smallest_rewritten - 1

    @property
    def failures(self) -> list[str]:
        wrong = []
        if self.original.fits:
            wrong.append("the original runs")
        if not self.rewritten.fits:
            wrong.append("the rewritten model does not run")
        return wrong

    @property
    def verdict(self) -> str:
        if not self.failures:
            return "holds"
        required = self.regions is Regions.ONE
        return ", ".join(self.failures) + (" FAILED" if required else "")

    def cells(self) -> tuple[str, ...]:
        return (
            self.name,
            self.limit,
            self.regions.value,
            *map(megabytes, (self.initializers, self.packed, self.predicted, self.cap)),
            outcome(self.original),
            outcome(self.rewritten),
            *map(megabytes, (self.smallest_original, self.smallest_rewritten)),
            f"{self.error:+.2%}",
            self.verdict,
        )


def examine(path: Path, limit: str, threads: int | None) -> Iterator[Line]:
    """Rewrite one model and try both under the cap."""
    options = Options(
        session="recipe", time_limit=PLANNING_SECONDS, threads=threads, tiling=False, verify=False
    )
    feed = prepare_feed(path, options)
    model = rewrite(path, limit, options).model
    recipe = replace(feed.recipe, cpu_arena=True)
    before, after = feed.source(), in_memory(model, feed.loaded.base_dir)
    packed = measure_arena(after, feed.inputs, recipe, runs=1).reserved_bytes
    needed = (predicted(feed.loaded.model, feed), predicted(model, feed))
    for regions in Regions:
        peak = region_bytes(needed[1], regions)
        cap = round((packed + peak) * (1 + ALLOWANCE))
        runs = [run_capped(m, feed.inputs, recipe, cap, regions=regions) for m in (before, after)]
        smallest = [
            smallest_cap(
                source,
                feed.inputs,
                recipe,
                regions=regions,
                tolerance_bytes=TOLERANCE_BYTES,
                expected_bytes=packed + region_bytes(of_model, regions) + TOLERANCE_BYTES // 2,
            )
            for source, of_model in zip((before, after), needed, strict=True)
        ]
        initializers = initializer_bytes(model)
        yield Line(path.stem, limit, regions, initializers, packed, peak, cap, *runs, *smallest)


def predicted(model: onnx.ModelProto, feed: Feed) -> ArenaPrediction:
    """What two runs of the model are predicted to need."""
    recipe = replace(feed.recipe, cpu_arena=True)
    profile = profile_run(model, feed.loaded.base_dir, feed.inputs, feed.recipe)
    types = provable_types(model, feed.loaded.base_dir, feed.recipe, profile)
    return predict_arena(model, profile, recipe, types)


def region_bytes(prediction: ArenaPrediction, regions: Regions) -> int:
    return prediction.one_region_bytes if regions is Regions.ONE else prediction.peak_bytes


def initializer_bytes(model: onnx.ModelProto) -> int:
    return sum(onnx.numpy_helper.to_array(tensor).nbytes for tensor in model.graph.initializer)


def outcome(run: CappedRun) -> str:
    return "runs" if run.fits else f"fails at {run.failed_at}"


def megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shared", type=Path, required=True)
    parser.add_argument("--only")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    for name, limit in LIMITS.items():
        if arguments.only and arguments.only not in name:
            continue
        path = arguments.shared / "training" / f"{name}.onnx"
        try:
            for line in examine(path, limit, arguments.threads):
                rows.append(line.cells())
                print("  ".join(rows[-1]), flush=True)
                print(f"    the original: {line.original.reason}", flush=True)
        except OnnxrematError as error:
            rows.append((name, limit, *[""] * (len(HEADER) - 3), f"{error} FAILED"))
            print("  ".join(rows[-1]), flush=True)
    table = markdown(HEADER, rows)
    text = (
        f"Made at commit {commit()}, ONNX Runtime {RUNTIME_VERSION}, {os.cpu_count()} cores, by "
        "`python -m benchmarks.hard_cap`.\n\n"
        "MB are 10^6 bytes. The cap is packed weights + predicted arena peak + 5%. Only weights "
        "that kernels pack count toward a cap on this version of the runtime (here they are inputs "
        "of the graphs, or too small to see); *initializers* are all those of the file. *regions*: "
        "as large as the requests, never given back; or the whole cap as one. The contract is that "
        "with one region the original fails and the rewritten model runs. *prediction error*: "
        "packed weights + predicted arena peak against the smallest cap of the rewritten model.\n\n"
        + table
        + "\n"
    )
    if arguments.markdown:
        arguments.markdown.write_text(text, encoding="utf-8")
    sys.exit(any("FAILED" in row[-1] for row in rows))


if __name__ == "__main__":
    main()
