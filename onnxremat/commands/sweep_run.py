"""The process of one run of a sweep: a `rewrite`, answered by the figures of its row."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnxremat.commands.rewrite import rewrite
from onnxremat.commands.sweep_plan import VERSIONS, model_file_sha256, options_of
from onnxremat.commands.sweep_row import (
    SweepRow,
    row_of_crash,
    row_of_error,
    row_of_result,
    run_memory_bytes,
)
from onnxremat.core.errors import OnnxrematError, UsageError
from onnxremat.fleet.fleet_job import answer_job
from onnxremat.ort.child.machine import bound_memory


def answer(asked: Mapping[str, Any]) -> SweepRow:
    """The row of what is asked (`SweepRun.asked`). An error that `rewrite` raises on purpose is a
    row, too; any other is raised."""
    started = time.perf_counter()
    try:
        row = _made(asked)
    except OnnxrematError as error:
        row = row_of_error(error)
    except MemoryError:
        row = row_of_crash("this machine has not enough memory for the model")
    return row | {"seconds": time.perf_counter() - started, "run_bytes": run_memory_bytes()}


def _made(asked: Mapping[str, Any]) -> SweepRow:
    if asked["versions"] != VERSIONS:
        raise UsageError(f"the sweep is of {asked['versions']}, and here is {VERSIONS}")
    model = Path(asked["model"])
    if model_file_sha256(model) != asked["file_sha256"]:
        raise UsageError(f"{model} is another model than the one that the sweep began with")
    file, plan = (
        None if asked[name] is None else Path(asked[name]) for name in ("file", "plan_file")
    )
    options = options_of(asked["options"])
    return row_of_result(rewrite(model, asked["mem"], options, output=file, plan_output=plan))


if __name__ == "__main__":
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    bound_memory()
    answer_job(answer)
