"""Whether every limit that `--mem min` says can be met is met, at no more planned cost.

    python -m benchmarks.limits [--shared FOLDER] [--packages FOLDER] [--models NAME,NAME]
                                [--limits 80%,60%,50%,40%,min] [--time-limit 3] [--markdown FILE]

Each model is planned for its smallest peak first, then for each limit, with as many seconds, on two
threads; each line is printed as it is known. `min` among the limits is the smallest peak itself,
asked for in bytes. A line holds if

- a limit of at least the smallest peak is met, and its plan costs no more than that of `min`, as
  far as costs of tiles are compared (half a percent of a run);
- the planned peak is the measured one within 2% or 64 KB.

What is below the smallest peak may be missed, and is said to be impossible (exit code 3) or not
found (4). A line that does not hold ends with FAILED, and so does the command. Bits are not
compared here (`benchmarks.rewrite_models`, `benchmarks.tiling`).

`--shared` has `training/*.onnx`, the published training graphs, and `inference.json`, the shapes of
the inference files that ship in registry packages, which `--packages` has as NAME.onnx (see
`models/README.md`). The builders of `models/` run always, at sizes for which a plan takes a few
seconds; deployed models are in `benchmarks.regions`. Planning takes at most the time limit for each
line, measuring as long again for models of these sizes: all of it about half an hour on two cores.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import onnx

from benchmarks.tables import end, made_with, markdown
from models import BUILDERS, EXPORTED, FORWARD, TRAINING
from onnxremat.core.deadline import Deadline
from onnxremat.core.errors import InfeasibleError, ModelError, NoPlanFoundError, OnnxrematError
from onnxremat.core.problem import Limits
from onnxremat.core.units import parse_limit
from onnxremat.fitting.outcomes import Planned
from onnxremat.fitting.strategy import Attempts
from onnxremat.options import Options
from onnxremat.stages import silent
from onnxremat.subject import Subject, prepare, prepare_planner
from onnxremat.targets.target import Target
from onnxremat.tiling.routes import TOLERANCE

THREADS = 2
LIMITS = ("80%", "60%", "50%", "40%", "min")
AGREEMENT, AGREEMENT_BYTES = 0.02, 65_536
"""How far a planned peak may be from the measured one: a share of it, or so many bytes."""

SIZES: Mapping[str, Mapping[str, Any]] = {
    "densenet": {"size": 64},
    "dncnn": {"size": 128},
    "espcn": {"size": 192},
    "ffn": {"width": 256, "batch": 256},
    "inception": {"size": 96, "width": 0.5},
    "mlp": {"width": 512, "batch": 256},
    "mobilenet": {"size": 128},
    "nasnet": {"cells": 1, "size": 64},
    "randwire": {"size": 96},
    "resnet": {"size": 128},
    "transformer": {"depth": 2, "sequence": 512, "heads": 4, "width": 64},
    "unet": {"size": 128, "base": 16, "levels": 3},
    "vae_decoder": {"size": 128, "base": 16},
    "vgg": {"size": 96, "base": 16},
}
"""Options of the builders that are not trained; training graphs have their own defaults."""

DIMS: Mapping[str, Mapping[str, int]] = {
    "gpt_cache": {"batch": 1, "sequence": 128, "past": 128},
    "open_encoder": {"batch": 1, "sequence": 256},
    "sam_encoder": {"batch": 1},
}
"""Sizes of dimensions that builders leave open."""


@dataclass(frozen=True)
class Case:
    """A model; `make` gives its file, None if it is not there."""

    name: str
    make: Callable[[], Path | None]
    dims: Mapping[str, int]


@dataclass(frozen=True)
class Outcome:
    """What one limit led to: a plan, or the exit code and message of why there is none."""

    limit_bytes: int | None
    planned: Planned | None
    code: int
    message: str
    seconds: float

    @property
    def peak_bytes(self) -> int | None:
        """The measured peak."""
        return None if self.planned is None else self.planned.made.measured.peak_bytes


def cases(shared: Path | None, packages: Path | None, scratch: Path) -> Iterator[Case]:
    """All models."""

    def built(name: str) -> Callable[[], Path]:
        def build() -> Path:
            path = scratch / f"{name}.onnx"
            onnx.save(BUILDERS[name](**SIZES.get(name, {})), path)
            return path

        return build

    def stored(path: Path) -> Callable[[], Path | None]:
        return lambda: path if path.is_file() else None

    for name in (*FORWARD, *TRAINING, *EXPORTED):
        yield Case(name, built(name), DIMS.get(name, {}))
    if shared is None:
        return
    for path in sorted((shared / "training").glob("*.onnx")):
        yield Case(path.stem, stored(path), {})
    if packages is None:
        return
    for known in json.loads((shared / "inference.json").read_text(encoding="utf-8")):
        dims = {
            f"{value}:{axis}": size
            for value, shape in known["input_shapes"].items()
            for axis, size in enumerate(shape)
        }
        yield Case(known["name"], stored(packages / f"{known['name']}.onnx"), dims)


def outcome(subject: Subject, target: Target, limit: str, options: Options) -> Outcome:
    """Plan for one limit, as `rewrite` does."""
    began = time.perf_counter()
    budget = parse_limit(limit).resolve(target.original.peak_bytes)
    try:
        deadline = Deadline.of_planning(Limits(options.time_limit, seed=options.seed))
        planned = Attempts.of(subject, target, options, budget, deadline, silent).best()
    except (InfeasibleError, NoPlanFoundError) as error:
        seconds = time.perf_counter() - began
        return Outcome(budget, None, error.exit_code, str(error), seconds)
    return Outcome(budget, planned, 0, "", time.perf_counter() - began)


def wrong(found: Outcome, smallest: Planned) -> list[str]:
    """What does not hold for a limit, given the plan of `min`."""
    least = smallest.made.measured.peak_bytes
    if found.planned is None:
        met = found.limit_bytes is None or found.limit_bytes < least
        return [] if met else [f"exit code {found.code}, but min reaches it"]
    problems = []
    if found.limit_bytes is not None and found.limit_bytes >= least:
        dearer = found.planned.extra_time - smallest.extra_time
        if dearer > TOLERANCE:
            problems.append(f"costs {100 * dearer:.1f}% of a run more than min")
    measured = found.planned.made.measured.peak_bytes
    error = abs(measured - found.planned.made.expected_bytes)
    if error > max(AGREEMENT * measured, AGREEMENT_BYTES):
        problems.append("planned and measured differ")
    return problems


HEADER = (
    "model", "ops", "limit", "MB", "planned MB", "measured MB", "of original", "planned time",
    "in tiles", "seconds", "verdict",
)  # fmt: skip


def row(case: Case, limit: str, found: Outcome, smallest: Planned, original: int) -> list[str]:
    """One line of the table."""
    problems = wrong(found, smallest)
    size = "" if found.limit_bytes is None else f"{found.limit_bytes / 1e6:.3f}"
    cells = [case.name, "", limit, size]
    if found.planned is None:
        kind = "impossible" if found.code == InfeasibleError.exit_code else "not found"
        cells += ["", "", "", "", "", f"{found.seconds:.1f}"]
        return [*cells, ", ".join(problems) + " FAILED" if problems else f"below min: {kind}"]
    planned = found.planned
    measured = planned.made.measured.peak_bytes
    cells[1] = str(len(planned.subject.imported.graph.ops))
    cells += [
        f"{planned.made.expected_bytes / 1e6:.3f}",
        f"{measured / 1e6:.3f}",
        f"{100 * measured / max(1, original):.1f}%",
        f"{100 * planned.extra_time:+.1f}%",
        "" if planned.tiling is None else f"{len(planned.tiling.regions)} regions",
        f"{found.seconds:.1f}",
    ]
    least = smallest.made.measured.peak_bytes
    holds = "holds" if measured >= least or limit == "min" else "holds (below min)"
    return [*cells, ", ".join(problems) + " FAILED" if problems else holds]


def lines(case: Case, path: Path, limits: list[str], options: Options) -> Iterator[list[str]]:
    """The lines of a model, `min` first."""
    subject = prepare(path, options)
    target = options.target.kind.of(subject)
    original = target.original.peak_bytes
    first = outcome(subject, target, "min", options)
    assert first.planned is not None, "the smallest peak is always found"
    smallest = first.planned
    yield row(case, "smallest", first, smallest, original)
    for limit in limits:
        asked = str(first.peak_bytes) if limit == "min" else limit
        yield row(case, limit, outcome(subject, target, asked, options), smallest, original)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--models", help="only these, separated by commas")
    parser.add_argument("--limits", default=",".join(LIMITS))
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--time-limit", type=float, default=3.0)
    arguments = parser.parse_args()
    only = set(arguments.models.split(",")) if arguments.models else None
    limits = arguments.limits.split(",")
    base = Options(session="recipe", threads=THREADS, time_limit=arguments.time_limit, verify=False)
    prepare_planner(silent)
    began, rows, left_out = time.perf_counter(), [], []
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else float("nan")
    print("  ".join(HEADER), flush=True)
    with TemporaryDirectory() as scratch:
        for case in cases(arguments.shared, arguments.packages, Path(scratch)):
            if only is not None and case.name not in only:
                continue
            path = case.make()
            if path is None:
                left_out.append(f"{case.name}: no file")
                continue
            try:
                for line in lines(case, path, limits, replace(base, dims=case.dims)):
                    rows.append(line)
                    print("  ".join(cell or "-" for cell in line), flush=True)
            except ModelError as error:
                left_out.append(f"{case.name}: {error}")
            except OnnxrematError as error:
                rows.append([case.name, *[""] * 9, f"{error} FAILED"])
                print("  ".join(cell or "-" for cell in rows[-1]), flush=True)
    for text in left_out:
        print(f"left out: {text}", flush=True)
    text = (
        f"{made_with()}, {os.cpu_count()} cores, {THREADS} threads, load before it "
        f"started {load:.1f}; {arguments.time_limit:g} s of planning at most for each line; "
        f"{time.perf_counter() - began:.0f} s in all. Peaks are heap peaks of a run under the "
        "recipe, the worst of three runs. Below min: less than the smallest peak that was found "
        "may be met or not.\n\n" + markdown(HEADER, rows) + "\n"
    )
    end(rows, text, arguments.markdown, f" in {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main()
