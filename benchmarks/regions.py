"""Models that people run out of memory with, in tiles: peaks, times, bits.

    python -m benchmarks.regions [--models NAME,NAME] [--session recipe] [--threads 2]
                                 [--time-limit 10] [--markdown FILE]

Each model of `models/` at full size is rewritten by `onnxremat.rewrite` under a limit, as a user
would, planned in the default time, and verified: peaks are measured activation peaks (or what the
session limits), times of runs of original and file that take turns in the same session. Where a
line allows rounding, the table says how far the outputs are from the original's, else all bits are
the same. A line that misses its limit, its time, its nodes or its bits ends with FAILED, and so
does the command. "planning" is from the imported model to the planned one, the runs in which sizes
and times are learned included.
"""

import argparse
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx

from benchmarks.tables import end, made_with, markdown
from models import BUILDERS
from onnxremat.commands.rewrite import RewriteResult, rewrite
from onnxremat.core.errors import OnnxrematError
from onnxremat.options import Options

MEGABYTE = 1e6


@dataclass(frozen=True)
class Line:
    """A model, the most MB that it may take (`of_output`: as a multiple of its output), and how
    much longer than the original; `nodes`: how many times as many there may be."""

    name: str
    builder: str
    slowdown: float
    megabytes: float | None = None
    of_output: float | None = None
    rounding: bool = False
    nodes: float | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def limit_megabytes(self, model: onnx.ModelProto) -> float:
        """The most that it may take."""
        if self.megabytes is not None:
            return self.megabytes
        assert self.of_output is not None
        dims = model.graph.output[0].type.tensor_type.shape.dim
        nbytes = 4.0
        for dim in dims:
            nbytes *= dim.dim_value
        return self.of_output * nbytes / MEGABYTE


VAE = {"size": 512, "base": 36, "groups": 4}
LINES = (
    Line("Demucs, 20 s", "demucs", 1.25, 45),
    Line("VAE decoder", "vae_decoder", 1.35, 90, rounding=True, options=VAE),
    Line("VAE decoder, exact", "vae_decoder", 1.2, 200, options=VAE),
    Line("matting, 1,024 pixels", "matting", 1.35, 80),
    Line("DeepLab, 1,024 pixels", "deeplab", 1.25, 35),
    Line("U²-Net, 1,024 pixels", "u2net", 1.3, 25),
    Line("3-D U-Net", "unet3d", 1.3, 40, rounding=True, nodes=4),
    Line("wav2vec 2.0, 10 s", "wav2vec2", 1.15, 20),
    Line("super-resolution, 100 MB", "srvgg", 1.1, of_output=1.15),
)
HEADER = (
    "model", "nodes", "from MB", "to MB", "at most", "time", "at most", "bits", "regions",
    "nodes after", "planning", "minutes", "verdict",
)  # fmt: skip


def cells(line: Line, limit: float, result: RewriteResult, nodes: int, seconds: float) -> list[str]:
    """A line of the table."""
    check = result.verification
    assert check is not None
    ratio = 1.0 if check.time_ratio is None else check.time_ratio
    after = len(result.model.graph.node)
    wrong = []
    if result.rewritten.peak_bytes > limit * MEGABYTE:
        wrong.append("memory")
    if ratio > line.slowdown:
        wrong.append("time")
    apart = check.rounding is not None and check.rounding.worst > 0
    rounded = apart or not (check.identical and check.bits_compared)
    if rounded and not line.rounding:
        wrong.append("bits")
    if line.nodes is not None and after > line.nodes * nodes:
        wrong.append("nodes")
    bits = "identical"
    if rounded:
        bits = "other" if check.rounding is None else f"{check.rounding.worst:.1e}"
    regions = 0 if result.tiling is None else len(result.tiling.regions)
    return [
        line.name, str(nodes), f"{result.original.peak_bytes / MEGABYTE:.1f}",
        f"{result.rewritten.peak_bytes / MEGABYTE:.1f}", f"{limit:.1f}", f"{ratio:.3f}",
        f"{line.slowdown:.2f}", bits, str(regions), str(after), f"{result.planning_seconds:.0f} s",
        f"{seconds / 60:.1f}", ", ".join(wrong) + " FAILED" if wrong else "holds",
    ]  # fmt: skip


def run(line: Line, scratch: Path, session: str, threads: int, time_limit: float) -> list[str]:
    """Build, rewrite, verify."""
    model = BUILDERS[line.builder](**line.options)
    path, nodes = scratch / f"{line.builder}.onnx", len(model.graph.node)
    onnx.save(model, path)
    limit = line.limit_megabytes(model)
    options = Options(
        session=session, threads=threads, time_limit=time_limit, allow_rounding=line.rounding
    )
    began = time.perf_counter()
    try:
        result = rewrite(path, f"{limit:.3f}MB", options, output=scratch / "out.onnx")
    except OnnxrematError as error:
        blank = [""] * (len(HEADER) - 4)
        minutes = f"{(time.perf_counter() - began) / 60:.1f}"
        return [line.name, str(nodes), *blank, minutes, f"{error} FAILED"]
    return cells(line, limit, result, nodes, time.perf_counter() - began)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", help="only these, by what their names begin with")
    parser.add_argument("--session", default="recipe")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--time-limit", type=float, default=Options().time_limit)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    only = tuple(arguments.models.split(",")) if arguments.models else ("",)
    load_before, table = os.getloadavg()[0], list[list[str]]()
    print("  ".join(HEADER), flush=True)
    with TemporaryDirectory() as scratch:
        for line in LINES:
            if line.name.lower().startswith(tuple(one.lower() for one in only)):
                found = run(
                    line, Path(scratch), arguments.session, arguments.threads, arguments.time_limit
                )
                table.append(found)
                print("  ".join(cell or "-" for cell in found), flush=True)
    text = (
        f"{made_with()}, {os.cpu_count()} cores, {arguments.threads} threads, session "
        f"{arguments.session}, {arguments.time_limit:g} s for planning, load before it started "
        f"{load_before:.1f}.\n\n" + markdown(HEADER, table) + "\n"
    )
    end(table, text, arguments.markdown)


if __name__ == "__main__":
    main()
