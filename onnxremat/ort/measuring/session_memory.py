"""What a session takes in all: loading it, and running it, outputs of earlier runs released.

`onnxremat.ort.measuring.measure.measure_resident` tells of runs alone. A rewrite may also change
what the loaded session holds (weights held twice, or once instead of twice), and what its loading
leaves in the allocator for runs to use, so that both belong together here. The allocators are left
at their defaults.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from onnxremat.importer.external import all_external_tensors
from onnxremat.ort.child import actions as worker_actions
from onnxremat.ort.child.process import ModelSource, run_job
from onnxremat.ort.child.wire import Array
from onnxremat.ort.recipe import Recipe


@dataclass(frozen=True)
class SessionMemory:
    """Resident bytes of a session, without pages of mapped files.

    `loaded_bytes`: what opening it added. `run_peaks_bytes`: the most that each run had above
    that. Mapped pages (of external weights above all) the system shares between processes and drops
    where it needs room. Medians, if measured several times.
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
    source: ModelSource,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    *,
    runs: int = 4,
    repeats: int = 1,
) -> SessionMemory:
    """Open and run a model in `repeats` children. Raises ModelError if the runtime refuses it."""
    if source.model is not None and not any(True for _ in all_external_tensors(source.model)):
        source = replace(source, base_dir=None)
    loaded, peaks = [], []
    for _ in range(repeats):
        with run_job(
            worker_actions.session_memory, [source], [recipe], inputs, options={"runs": runs}
        ) as job:
            loaded.append(job.answer["loaded_bytes"])
            peaks.append(job.answer["run_peaks_bytes"])
    return SessionMemory(
        round(statistics.median(loaded)),
        tuple(round(statistics.median(column)) for column in zip(*peaks, strict=True)),
    )
