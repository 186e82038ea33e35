"""The row that a sweep has for each run: which columns there are, and what stands in them."""

import hashlib
import json
import math
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from onnxremat.commands.rewrite import RewriteResult
from onnxremat.commands.sweep_plan import VERSIONS, SweepRun, plain_options
from onnxremat.core.errors import (
    InfeasibleError,
    ModelError,
    NoPlanFoundError,
    OnnxrematError,
    UsageError,
    VerificationError,
)
from onnxremat.core.text import printable
from onnxremat.fleet.run_table import Cell
from onnxremat.ort.measuring.figures import SessionFigures
from onnxremat.ort.outside import data_beside
from onnxremat.targets.stock_target import how
from onnxremat.targets.stock_trial import StockResult

SweepRow = dict[str, Cell]

MADE, CRASHED, NOT_USABLE = "made", "crashed", "not usable"
PASSING = (CRASHED, NOT_USABLE)
"""What may be otherwise the next time, with the same model and options: a full disk may be why."""
_STATUS: Mapping[type[OnnxrematError], str] = {
    InfeasibleError: "impossible",
    NoPlanFoundError: "not found",
    ModelError: "no model",
    VerificationError: "differs",
    UsageError: NOT_USABLE,
}

_FIGURES = {
    f"{of}_{one.name}": str if one.type is str else float if "seconds" in one.name else int
    for of in ("original", "option", "file")
    for one in fields(SessionFigures)
    if one.name not in ("opened", "option")
}
"""Of a default session: of the original, of the original with the session option that takes least
(`option`), and of the file."""

COLUMNS: Mapping[str, type] = {
    **dict.fromkeys(("model", "mem", "target", "status", "reason"), str),
    "exit_code": int,
    "figure": str,
    **dict.fromkeys(
        (
            "limit_bytes",
            "original_peak_bytes",
            "released_peak_bytes",
            "rewritten_peak_bytes",
            "expected_peak_bytes",
            "lower_bound_bytes",
        ),
        int,
    ),
    **dict.fromkeys(
        ("time_ratio", "original_seconds", "rewritten_seconds", "planned_ratio"), float
    ),
    "bits": str,
    **dict.fromkeys(("nodes", "recomputed", "replaced", "tiled_regions", "tiles"), int),
    **dict.fromkeys(("planner", "plan_status", "plan_sha256", "variant", "option"), str),
    **_FIGURES,
    "estimated_nodes": int,
    **dict.fromkeys(("file", "file_sha256"), str),
    **dict.fromkeys(("file_bytes", "data_bytes"), int),
    **dict.fromkeys(("planning_seconds", "seconds"), float),
    **dict.fromkeys(("run_bytes", "threads", "seed", "iterations"), int),
    **dict.fromkeys(("options", "model_sha256", "onnxremat", "onnxruntime"), str),
}
"""The columns of the table, in their order; `docs/fleets.md` says what they mean."""


def checked_row(row: Mapping[str, Any]) -> SweepRow:
    """A row that was read. Raises ValueError if no run has such a one."""
    for name, value in row.items():
        kind = COLUMNS.get(name)
        number = kind is float and isinstance(value, int)
        if kind is not None and value is not None and not (number or isinstance(value, kind)):
            raise ValueError(f"{name} is {value!r}")
    if not isinstance(row.get("status"), str) or row.get("seconds") is None:
        raise ValueError("it has no status")
    return dict(row)


def row_of_run(run: SweepRun) -> SweepRow:
    """What is known of a run before it is done."""
    options = run.options
    return {
        "model": printable(str(run.model)),
        "mem": run.limit.text,
        "target": options.target.name,
        "figure": options.figure,
        "threads": options.threads,
        "seed": options.seed,
        "iterations": options.iterations,
        "options": json.dumps(plain_options(options), sort_keys=True),
        "model_sha256": run.content.sha256,
        **VERSIONS,
    }


def row_of_error(error: OnnxrematError) -> SweepRow:
    """Why a run has no file."""
    kind = next((word for one, word in _STATUS.items() if isinstance(error, one)), CRASHED)
    return {"status": kind, "reason": str(error), "exit_code": error.exit_code}


def row_of_crash(reason: str) -> SweepRow:
    """Of a run whose process ended without an answer."""
    return {"status": CRASHED, "reason": printable(reason, 2000), "exit_code": 1}


def row_of_result(result: RewriteResult) -> SweepRow:
    """Everything that was planned and measured."""
    plan, tiling, checked = result.plan, result.tiling, result.verification
    row: SweepRow = {
        "status": MADE,
        "reason": result.weights_inside,
        "exit_code": 0,
        "limit_bytes": result.limit_bytes,
        "original_peak_bytes": result.original.peak_bytes,
        "released_peak_bytes": result.released.peak_bytes,
        "rewritten_peak_bytes": result.rewritten.peak_bytes,
        "expected_peak_bytes": result.expected_bytes,
        "lower_bound_bytes": None if result.floor.refuted else result.floor.nbytes,
        "planned_ratio": 1 + result.extra_time,
        "bits": "not compared",
        "nodes": result.nodes_before,
        "recomputed": result.recomputed,
        "replaced": len(result.replaced),
        "tiled_regions": 0 if tiling is None else len(tiling.regions),
        "tiles": 0 if tiling is None else sum(_tiles(one.grid) for one in tiling.regions),
        "planner": plan.planner,
        "plan_status": plan.status.value,
        "plan_sha256": plan_digest(result),
        "estimated_nodes": len(result.estimated),
        "planning_seconds": result.planning_seconds,
        **_file(result),
    }
    if isinstance(result.details, StockResult):
        chosen = result.details.chosen
        row["variant"] = how(result)
        row["time_ratio"] = None if chosen is None else chosen.time_ratio
    if checked is not None:
        row["time_ratio"] = checked.time_ratio
        row["original_seconds"] = checked.original_seconds
        row["rewritten_seconds"] = checked.rewritten_seconds
        row["bits"] = "identical" if checked.bits_compared else "rounded"
        for of, one in zip(("original", "option", "file"), checked.figures, strict=False):
            row |= {f"{of}_{name}": value for name, value in asdict(one).items()}
            if of == "option":
                row["option"] = one.option
    return {name: value for name, value in row.items() if name in COLUMNS}


def run_memory_bytes() -> int | None:
    """The most resident memory that this process and the largest of its children had, None where
    the system does not tell."""
    if sys.platform == "win32":
        return None
    import resource

    scale = 1 if sys.platform == "darwin" else 1024
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return scale * sum(one.ru_maxrss for one in usage)


def plan_digest(result: RewriteResult) -> str:
    """A SHA-256 of the plan alone: what is executed in which order, in which tiles, with which
    substitutes. No figure that was measured is in it."""
    tiling = result.tiling
    plan: dict[str, Any] = {
        "steps": list(result.plan.schedule.steps),
        "regions": [] if tiling is None else [asdict(one) for one in tiling.regions],
        "again": [] if tiling is None else list(tiling.recomputed),
        "replaced": [asdict(one) for one in result.replaced],
    }
    return hashlib.sha256(json.dumps(plan, sort_keys=True).encode()).hexdigest()


def _tiles(grid: tuple[tuple[int, int], ...]) -> int:
    return math.prod(tiles for _, tiles in grid)


def _file(result: RewriteResult) -> SweepRow:
    """Of the file that was written, and of the one with its weights."""
    if result.output is None:
        return {}
    data = data_beside(result.output)
    return {
        "file": printable(str(result.output)),
        "file_sha256": hashlib.sha256(result.output.read_bytes()).hexdigest(),
        "file_bytes": os.path.getsize(result.output),
        "data_bytes": os.path.getsize(data) if result.data is not None else 0,
    }
