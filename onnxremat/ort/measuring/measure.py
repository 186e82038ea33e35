"""What a run really takes: heap, resident memory, time, and its outputs.

Everything runs in a child process (see `process`). The heap peak is counted by memray, which sees
every allocation of the process; besides tensors and workspace it holds ONNX Runtime's own
bookkeeping of a run: about 500 bytes, and 100 bytes for each node (0.04 to 0.2% of the training
graphs it was tried on).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from statistics import median
from typing import Any

import onnx

from onnxremat.core.errors import UsageError
from onnxremat.ort.child import actions as worker_actions
from onnxremat.ort.child.malloc import Malloc
from onnxremat.ort.child.process import ModelSource, run_job
from onnxremat.ort.child.watching import Listener
from onnxremat.ort.child.wire import Array
from onnxremat.ort.recipe import Recipe

Model = Path | str | ModelSource
"""What can be measured: a file, or a ModelSource made by `in_memory`."""


class PeakMethod(StrEnum):
    """What a peak was taken from."""

    HEAP = "heap"
    """All that was allocated in a run."""
    RESIDENT = "resident"
    """Pages in memory, above the loaded session."""
    ARENA = "arena"
    """Offsets of a static plan: nothing was run."""


@dataclass(frozen=True)
class PeakMeasurement:
    """The most bytes held at once during a run: graph outputs and workspace included, weights,
    the caller's inputs and the loaded session excluded.

    `peak_bytes` is the worst of `run_peaks_bytes`. Where the heap could not be counted, `method`
    is RESIDENT, and `reason` says why; the figure is then in whole pages and less exact.
    """

    peak_bytes: int
    run_peaks_bytes: tuple[int, ...]
    method: PeakMethod = PeakMethod.HEAP
    reason: str = ""

    def least(self, other: "PeakMeasurement") -> "PeakMeasurement":
        """Of two measurements of one model, run for run the smaller figure: what else a process
        allocates meanwhile only adds to it."""
        peaks = tuple(map(min, self.run_peaks_bytes, other.run_peaks_bytes))
        return replace(self, peak_bytes=max(peaks), run_peaks_bytes=peaks)


@dataclass(frozen=True)
class ResidentMeasurement:
    """Most resident memory above the loaded session, outputs of earlier runs released.

    `first_bytes` is the first run's, `steady_bytes` the last one's, `peak_bytes` the worst.
    `method` names how it was read (see `onnxremat.ort.child.meter`).
    """

    first_bytes: int
    steady_bytes: int
    run_peaks_bytes: tuple[int, ...]
    method: str

    @property
    def peak_bytes(self) -> int:
        """The worst run."""
        return max(self.run_peaks_bytes)


@dataclass(frozen=True)
class TimeComparison:
    """Run times of models that took turns in one process.

    `median_seconds` per model. `ratios` per model: the median over rounds of its time divided by
    the first model's in the same round, so that a slow moment of the machine cancels out.
    """

    median_seconds: tuple[float, ...]
    ratios: tuple[float, ...]
    rounds: int


def in_memory(model: onnx.ModelProto, base_dir: Path | str) -> ModelSource:
    """A model that is in no file; `base_dir` is the folder of its external data, if it has any."""
    return ModelSource(model=model, base_dir=Path(base_dir))


def measure_activation(
    model: Model,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    runs: int = 3,
    *,
    seconds: float | None = None,
    listener: Listener | None = None,
) -> PeakMeasurement:
    """The heap peak of a run, the worst of `runs` runs in one process, the first included.

    There are fewer runs if the next would not end within `seconds`, and one at least. `listener`
    hears which run it is. Falls back on resident memory, and says so, where memray does not exist.
    Raises ModelError if the runtime refuses the model, UsageError if `runs` is not positive.
    """
    source = _source(model, runs)
    options = {"runs": runs, "seconds": seconds}
    with run_job(
        worker_actions.heap, [source], [recipe], inputs, options=options, listener=listener
    ) as job:
        answer = job.answer
    if "unavailable" in answer:
        resident = measure_resident(model, inputs, recipe, runs)
        return PeakMeasurement(
            resident.peak_bytes,
            resident.run_peaks_bytes,
            PeakMethod.RESIDENT,
            f"{answer['unavailable']}; resident memory instead ({resident.method})",
        )
    peaks = tuple(answer["run_peaks_bytes"])
    return PeakMeasurement(max(peaks), peaks)


def measure_resident(
    model: Model,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    runs: int = 4,
    malloc: Malloc = Malloc.RETURNING,
) -> ResidentMeasurement:
    """Resident memory above the loaded level during `runs` runs.

    glibc keeps freed blocks for itself, unless `malloc` says otherwise. Raises like
    `measure_activation`.
    """
    source = _source(model, runs)
    with run_job(
        worker_actions.resident,
        [source],
        [recipe],
        inputs,
        options={"runs": runs},
        malloc=malloc,
    ) as job:
        peaks = tuple(job.answer["run_peaks_bytes"])
        return ResidentMeasurement(peaks[0], peaks[-1], peaks, job.answer["method"])


def measure_times(
    models: Sequence[Model],
    inputs: Mapping[str, Array],
    recipes: Sequence[Recipe],
    pairs: int = 5,
    *,
    seconds: float | None = None,
    listener: Listener | None = None,
) -> TimeComparison:
    """Seconds of a run of each model, with its recipe; of the processor where all have one thread,
    else on the wall. Models alternate for `pairs` rounds, short
    ones for up to six times as many; for fewer if the next would not end within `seconds`.
    `listener` hears which round it is.

    One run of each goes before, untimed. Raises like `measure_activation`.
    """
    if len(recipes) != len(models):
        raise UsageError(f"{len(models)} models need as many recipes, not {len(recipes)}")
    sources = [_source(model, pairs) for model in models]
    options = {"pairs": pairs, "seconds": seconds}
    with run_job(
        worker_actions.times, sources, recipes, inputs, options=options, listener=listener
    ) as job:
        rounds: list[list[float]] = job.answer["rounds_seconds"]
    columns = list(zip(*rounds, strict=True))
    first = columns[0]
    return TimeComparison(
        tuple(median(column) for column in columns),
        tuple(median(b / a for a, b in zip(first, column, strict=True)) for column in columns),
        len(rounds),
    )


def run_outputs(model: Model, inputs: Mapping[str, Array], recipe: Recipe) -> dict[str, Array]:
    """All outputs of one run, for comparing bits.

    Element i of a sequence output NAME stands as `NAME[i]`. Types that numpy does not know
    (bfloat16, eight-bit floats) come as unsigned integers with the same bits. Raises ModelError
    if an output is something else (a map, an empty optional) or the runtime refuses.
    """
    arrays: dict[str, Array] = {}
    with run_job(worker_actions.outputs, [_source(model, 1)], [recipe], inputs) as job:
        entries: list[dict[str, Any]] = job.answer["outputs"]
        for entry in entries:
            name = entry["name"]
            for index, array in job.arrays(entry["arrays"]).items():
                arrays[f"{name}[{index}]" if entry["sequence"] else name] = array
    return arrays


def _source(model: Model, runs: int) -> ModelSource:
    if runs < 1:
        raise UsageError(f"{runs} runs: at least one is needed")
    return model if isinstance(model, ModelSource) else ModelSource(path=Path(model))
