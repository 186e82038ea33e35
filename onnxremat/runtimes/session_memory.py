"""What a session takes in all: loading it, and running it, outputs of earlier runs released.

`onnxremat.runtimes.measure.measure_resident` tells of runs alone. A rewrite may also change what
the loaded session holds (weights held twice, or once instead of twice), and what its loading
leaves in the allocator for runs to use, so that both belong together here. The allocators are
left at their defaults.

The child's side is `worker`, run as a file: importing this package would import onnx there.
"""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from onnxremat.errors import ModelError
from onnxremat.importer.external import all_external_tensors
from onnxremat.runtimes.child import run_child
from onnxremat.runtimes.process import one_line
from onnxremat.runtimes.recipe import Recipe
from onnxremat.runtimes.wire import Array, write_arrays
from onnxremat.temporary import temporary_folder

_REQUEST, _RESULT, _MODEL = "request.json", "result.json", "model.onnx"
_WORKER = Path(__file__).with_name("session_worker.py")


@dataclass(frozen=True)
class SessionMemory:
    """Resident bytes of a session.

    `loaded_bytes`: what opening it added. `run_peaks_bytes`: the most that each run had above
    that. Medians, if measured several times.
    """

    loaded_bytes: int
    run_peaks_bytes: tuple[int, ...]

    @property
    def first_bytes(self) -> int:
        """The first run, above the loaded level."""
        return self.run_peaks_bytes[0]

    @property
    def steady_bytes(self) -> int:
        """The last run, above the loaded level."""
        return self.run_peaks_bytes[-1]

    @property
    def total_bytes(self) -> int:
        """The last run, loading included: what the process really needs for the model."""
        return self.loaded_bytes + self.steady_bytes


def measure_session(
    model: onnx.ModelProto,
    base_dir: Path | str,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    *,
    runs: int = 4,
    repeats: int = 1,
) -> SessionMemory:
    """Open and run `model` in `repeats` children. Raises ModelError if the runtime refuses it."""
    with temporary_folder() as folder:
        _write(model, folder / _MODEL)
        external = any(True for _ in all_external_tensors(model))
        request = {
            "data_folder": str(Path(base_dir).resolve()) if external else None,
            "recipe": recipe.to_dict(),
            "inputs": write_arrays(folder, "input", dict(inputs)),
            "runs": runs,
        }
        (folder / _REQUEST).write_text(json.dumps(request), encoding="utf-8")
        found = [_in_child(folder) for _ in range(repeats)]
    peaks = zip(*(one.run_peaks_bytes for one in found), strict=True)
    return SessionMemory(
        round(statistics.median(one.loaded_bytes for one in found)),
        tuple(round(statistics.median(column)) for column in peaks),
    )


def _write(model: onnx.ModelProto, path: Path) -> None:
    try:
        path.write_bytes(model.SerializeToString())
    except ValueError as error:
        raise ModelError(
            "the model is larger than 2 GB: save it with its weights as external data"
        ) from error


def _in_child(folder: Path) -> SessionMemory:
    done = run_child(str(_WORKER), folder)
    result = folder / _RESULT
    if done.returncode != 0 or not result.is_file():
        lines = done.log.strip().splitlines()
        reason = one_line(lines[-1]) if lines else f"ended with code {done.returncode}"
        raise ModelError(f"ONNX Runtime failed on the model: {reason}")
    answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    result.unlink()
    if "error" in answer:
        raise ModelError(f"ONNX Runtime refuses the model: {one_line(answer['error'])}")
    return SessionMemory(answer["loaded_bytes"], tuple(answer["run_peaks_bytes"]))
