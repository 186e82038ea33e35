"""What a session takes in all: loading it, and running it, outputs of earlier runs released.

`onnxremat.ort.measuring.measure.measure_resident` tells of runs alone. A rewrite may also change
what the loaded session holds (weights held twice, or once instead of twice), and what its loading
leaves in the allocator for runs to use, so that both belong together here. The allocators are left
at their defaults; where asked for, a process more is measured in which what is freed is given back
to the system, as MALLOC_MMAP_THRESHOLD_ does.
"""

import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace

from onnxremat.importer.external import all_external_tensors
from onnxremat.ort.child import actions as worker_actions
from onnxremat.ort.child.malloc import Malloc
from onnxremat.ort.child.process import ModelSource, run_job
from onnxremat.ort.child.wire import Array
from onnxremat.ort.recipe import Recipe


@dataclass(frozen=True)
class SessionMemory:
    """Resident bytes of a session, without pages of mapped files.

    `loaded_bytes`: what opening it added. `run_peaks_bytes`: the most that each run had above that.
    Mapped pages (of external weights above all) the system shares between processes and drops where
    it needs room. Medians, if measured several times. `load_seconds`: of the processor, to open it,
    the least of all that were measured. `returning`: the same where malloc gives back what is
    freed.
    """

    loaded_bytes: int
    run_peaks_bytes: tuple[int, ...]
    load_seconds: float = 0.0
    returning: "SessionMemory | None" = None

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

    @property
    def grown_bytes(self) -> int:
        """The most that any run has, loading included."""
        return self.loaded_bytes + max(self.run_peaks_bytes)

    @property
    def least_bytes(self) -> int:
        """`grown_bytes`, or what that is where malloc gives back what is freed, if that is less:
        by this, sessions of one model are compared. What loading frees and malloc keeps is chance:
        5 MB more or less of a U-Net of 256, by the order in which its file is read."""
        given_back = self.grown_bytes if self.returning is None else self.returning.grown_bytes
        return min(self.grown_bytes, given_back)


def _opened_by_path(source: ModelSource) -> ModelSource:
    """The same, opened by the name of its file where no data of another folder is needed: so it has
    no copy in memory for Python."""
    if source.model is None or any(True for _ in all_external_tensors(source.model)):
        return source
    return replace(source, base_dir=None)


def measure_heap(
    source: ModelSource, inputs: Mapping[str, Array], recipe: Recipe, *, runs: int = 1
) -> int | None:
    """Bytes by which one heap that never shrinks grows when a model is opened and run: where there
    is no arena, and no memory beside that heap, as in WebAssembly, whose kernels know no blocks of
    channels either. External weights, which are mapped here, are not in it. With more than one of
    the `runs` it is about holes that blocks at multiples of 64 bytes do not fit in any more, which
    glibc has far more of (a transformer: 320 MB in one run, 587 in four). None where it is not
    known. Raises ModelError if the runtime refuses the model."""
    plain = replace(recipe, cpu_arena=False, mem_pattern=False, blocks=False)
    source, options = _opened_by_path(source), {"runs": runs}
    with run_job(
        worker_actions.heap_growth, [source], [plain], inputs, options=options,
        malloc=Malloc.ONE_HEAP,
    ) as job:  # fmt: skip
        grown: int | None = job.answer["heap_bytes"]
    return grown


def measure_session(
    source: ModelSource,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    *,
    runs: int = 4,
    repeats: int = 1,
    returning: bool = False,
) -> SessionMemory:
    """Open and run a model in `repeats` children, and with `returning` in one more, whose malloc
    gives back what is freed. Raises ModelError if the runtime refuses it."""
    source = _opened_by_path(source)

    def measured(malloc: Malloc) -> SessionMemory:
        options = {"runs": runs}
        with run_job(
            worker_actions.session_memory, [source], [recipe], inputs, options=options,
            malloc=malloc,
        ) as job:  # fmt: skip
            answer = job.answer
        peaks = tuple(answer["run_peaks_bytes"])
        return SessionMemory(answer["loaded_bytes"], peaks, answer["load_seconds"])

    found = [measured(Malloc.USUAL) for _ in range(repeats)]
    peaks = zip(*(one.run_peaks_bytes for one in found), strict=True)
    given_back = measured(Malloc.RETURNING) if returning else None
    return SessionMemory(
        round(statistics.median(one.loaded_bytes for one in found)),
        tuple(round(statistics.median(column)) for column in peaks),
        min(one.load_seconds for one in (*found, given_back) if one is not None),
        given_back,
    )
