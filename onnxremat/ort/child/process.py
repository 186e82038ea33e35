"""Running models in a child process, seen from the parent.

ONNX Runtime may refuse a model, run out of memory or crash; in a child each of these becomes one
ModelError with one line, and the child's allocators start clean. A job is a temporary directory:
`request.json` and arrays go in, `result.json` and files come out (see `worker`; `child` says how
the process is started and ended).
"""

import json
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx

from onnxremat.core.errors import ModelError
from onnxremat.core.units import format_bytes
from onnxremat.ort.child.actions import JobRequest
from onnxremat.ort.child.children import run_child
from onnxremat.ort.child.malloc import Malloc
from onnxremat.ort.child.run_limit import current_limit
from onnxremat.ort.child.watching import Listener, watching
from onnxremat.ort.child.wire import Array, read_arrays, write_arrays
from onnxremat.ort.recipe import Recipe
from onnxremat.system.temporary import temporary_folder

REQUEST, RESULT = "request.json", "result.json"

WORKER = "onnxremat.ort.child.worker"

_LONGEST_MESSAGE = 400
_NO_MEMORY = re.compile(
    "bad_alloc|MemoryError|(?:Failed to|cannot) allocate memory|not enough memory|out of memory"
    "|allocation (?:still )?failed|pthread_create failed|Resource temporarily unavailable"
    "|failed to map segment|can't start new thread",
    re.IGNORECASE,
)
_SOURCE_PLACE = re.compile(
    r"/onnxruntime_src/\S+:\d+ "  # file and line
    r"(?:[^:]|::)*?\)(?:::<lambda\(.*?\)>)? (?:const )?(?:\[[^\]]*\] )?"  # C++ function
)


@dataclass(frozen=True)
class ModelSource:
    """A model to execute: a file, or a model in memory with the folder of its external data.

    Exactly one of `path` and `model` is given. External data is never copied; a model in memory
    without `base_dir` has none.
    """

    path: Path | None = None
    model: onnx.ModelProto | None = None
    base_dir: Path | None = None

    @property
    def label(self) -> str:
        """What messages call the model."""
        if self.path is not None:
            return str(self.path)
        return "the model"


@dataclass(frozen=True)
class Job:
    """A finished child: what it answered, and the directory with the files that it wrote."""

    answer: dict[str, Any]
    folder: Path

    def arrays(self, written: list[dict[str, str]]) -> dict[str, Array]:
        """Arrays that the child wrote."""
        return read_arrays(self.folder, written)


@contextmanager
def run_job(
    action: Callable[[JobRequest], Mapping[str, Any]],
    sources: Sequence[ModelSource],
    recipes: Sequence[Recipe],
    inputs: Mapping[str, Array],
    *,
    options: Mapping[str, Any] | None = None,
    malloc: Malloc = Malloc.USUAL,
    listener: Listener | None = None,
) -> Iterator[Job]:
    """Execute models in a child; the job's files exist inside the `with` block.

    `action` is a function at the top level of a module, named to the child, which imports it (see
    `worker`); `options` are what it takes. The child may take `seconds` of the options beside
    the limit of runs (`run_limit`). `listener` hears what the child is doing. Raises ModelError
    with one line if the runtime refuses, crashes or does not end.
    """
    with temporary_folder() as folder:
        request: dict[str, Any] = {
            "action": f"{action.__module__}:{action.__name__}",
            "models": [_write_model(folder, i, source) for i, source in enumerate(sources)],
            "recipes": [recipe.to_dict() for recipe in recipes],
            "inputs": write_arrays(folder, "input", dict(inputs)),
            "options": dict(options or {}),
        }
        (folder / REQUEST).write_text(json.dumps(request), encoding="utf-8")
        budget = request["options"].get("seconds") or 0.0
        with watching(folder, listener):
            answer = execute(folder, sources, malloc, budget)
        yield Job(answer, folder)


def _write_model(folder: Path, index: int, source: ModelSource) -> dict[str, str | None]:
    if source.path is not None:
        if not source.path.is_file():
            raise ModelError(f"there is no file {str(source.path)!r}")
        return {"path": str(source.path.resolve()), "data_folder": None}
    if source.model is None:
        raise ValueError("a ModelSource needs a path or a model")
    path = folder / f"model{index}.onnx"
    try:
        path.write_bytes(source.model.SerializeToString())
    except ValueError as error:
        raise ModelError(
            "the model is larger than 2 GB: save it with its weights as external data"
        ) from error
    base = None if source.base_dir is None else str(source.base_dir.resolve())
    return {"path": str(path), "data_folder": base}


def execute(
    folder: Path,
    sources: Sequence[ModelSource],
    malloc: Malloc,
    budget_seconds: float = 0.0,
) -> dict[str, Any]:
    """Run the child on a job directory; its answer. Raises ModelError as `run_job`."""
    child = run_child(WORKER, folder, malloc, budget_seconds)
    result = folder / RESULT
    if child.returncode != 0 or not result.is_file():
        label = ", ".join(source.label for source in sources)
        _require_granted(child.log, label)
        granted = current_limit().memory_bytes
        maybe = "" if granted is None else f" (--run-memory grants it {format_bytes(granted)})"
        death = _death(child.returncode, child.log)
        raise ModelError(f"ONNX Runtime failed on {label}: {death}{maybe}")
    answer: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    if "error" in answer:
        label = sources[answer.get("model", 0)].label
        _require_granted(answer["error"], label)
        raise ModelError(f"ONNX Runtime refuses {label}: {one_line(answer['error'])}")
    return answer


def _require_granted(said: str, label: str) -> None:
    """Raise ModelError if what a child said is that it got no more memory, and the user's limit is
    why that may be."""
    granted = current_limit().memory_bytes
    if granted is not None and _NO_MEMORY.search(said):
        raise ModelError(
            f"a process that runs {label} asked for more than --run-memory, "
            f"{format_bytes(granted)}: grant more, or leave it out for all that the machine has"
        )


def _death(returncode: int, log: str) -> str:
    """Why a child ended without an answer."""
    lines = [line for line in log.splitlines() if line.strip()]
    last = one_line(lines[-1]) if lines else "it left no message"
    if returncode == 0:
        return last
    if returncode < 0:
        name = signal.Signals(-returncode).name
        hint = " (out of memory?)" if name == "SIGKILL" else ""
        return f"the process was ended by {name}{hint}; {last}"
    return f"the process ended with code {returncode}; {last}"


def one_line(message: str) -> str:
    """A message of ONNX Runtime without its codes, source paths and line breaks."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", message)
    text = re.sub(r"\[ONNXRuntimeError\] : \d+ : [A-Z_]+ : ", "", text)
    text = re.sub(r"^\S+ \S+ \[\w:onnxruntime:[^\]]*\] ", "", text)
    text = _SOURCE_PLACE.sub("", text)
    text = " ".join(text.split())
    if len(text) > _LONGEST_MESSAGE:
        text = text[: _LONGEST_MESSAGE - 3] + "..."
    return text or "no reason given"
