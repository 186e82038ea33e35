"""What a session takes in all: loading it, and running it, outputs of earlier runs released.

`onnxremat.ort.measuring.measure.measure_resident` tells of runs alone. A rewrite may also change
what the loaded session holds (weights held twice, or once instead of twice), and what its loading
leaves in the allocator for runs to use, so that both belong together here. The allocators are left
at their defaults; where asked for, a process more is measured in which what is freed is given back
to the system, as MALLOC_MMAP_THRESHOLD_ does.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from onnxremat.importer.external import all_external_tensors
from onnxremat.ort.child import actions as worker_actions
from onnxremat.ort.child.malloc import Malloc
from onnxremat.ort.child.process import ModelSource, run_job
from onnxremat.ort.child.wire import Array
from onnxremat.ort.recipe import Recipe

HEAP_SECONDS = 60.0
"""How long it may take to put what was allocated into one heap: 3 s for a million allocations on a
quiet machine."""

OPENINGS = 7
"""Of each model, where it is told which of two opens sooner."""

SESSION_RUNS = 4
"""Of each session that is measured: later runs may take more than the first."""


@dataclass(frozen=True)
class SessionMemory:
    """Resident bytes of a session, without pages of mapped files.

    `loaded_bytes`: what opening it added. `run_peaks_bytes`: the most that each run had above that.
    Mapped pages (of external weights above all) the system shares between processes and drops where
    it needs room. `load_seconds`: what opening it took. Medians, if measured several times.
    `returning`: the same where malloc gives back what is freed. `before_bytes`: what the process
    held before, Python and the runtime above all; `opening_bytes`: the most that opening it added
    meanwhile.
    """

    loaded_bytes: int
    run_peaks_bytes: tuple[int, ...]
    load_seconds: float = 0.0
    returning: "SessionMemory | None" = None
    before_bytes: int = 0
    opening_bytes: int = 0

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
    def above_loaded_bytes(self) -> tuple[int, ...]:
        """The most that each run had above the loaded level, by the malloc with which that is more:
        one that keeps what loading freed gives it to runs, which then seem to take nothing."""
        if self.returning is None:
            return self.run_peaks_bytes
        both = zip(self.run_peaks_bytes, self.returning.run_peaks_bytes, strict=True)
        return tuple(map(max, both))

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


@dataclass(frozen=True)
class HeapNeed:
    """What opening a model and a run of it need of one heap, in bytes: all of it as blocks lie
    there, and the most that is held at once, which no order of blocks can do without.
    `opened_bytes`: all of it when the model is open."""

    end_bytes: int
    held_bytes: int
    opened_bytes: int = 0

    def with_block(self, nbytes: int) -> "HeapNeed":
        """The same where a block so large, which the first run begins with, finds no hole: whether
        it does is chance, for weights are packed in the order of a hash table."""
        return replace(self, end_bytes=max(self.end_bytes, self.opened_bytes + nbytes))


def measure_one_heap(
    source: ModelSource,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    *,
    seconds: float = HEAP_SECONDS,
) -> HeapNeed | None:
    """What a model needs where there is no arena, and no memory beside one heap that never shrinks,
    as in WebAssembly, whose kernels know no blocks of channels either (`ort.child.one_heap`): what
    is allocated here is put into such a heap. Model file and external weights are in it.

    Of twenty files it is within 13% of what `onnxruntime-web` asks for (`docs/onnxruntime.md`).
    None where it cannot be told (memray is not there), or not within `seconds`. Raises ModelError
    if the runtime refuses the model.
    """
    plain = replace(recipe.with_threads(1), cpu_arena=False, mem_pattern=False, blocks=False)
    options = {"seconds": seconds}
    with run_job(
        worker_actions.one_heap, [_opened_by_path(source)], [plain], inputs, options=options
    ) as job:
        return None if job.answer["end_bytes"] is None else HeapNeed(**job.answer)


def measure_opening(
    sources: Sequence[ModelSource],
    inputs: Mapping[str, Array],
    recipe: Recipe,
    *,
    openings: int = OPENINGS,
) -> tuple[float, ...]:
    """How many seconds it takes to open each of some models, the first session of its process:
    the medians of so many new processes of each, in turns. Raises ModelError if the runtime refuses
    one."""
    opened = [_opened_by_path(source) for source in sources]
    found: list[list[float]] = [[] for _ in opened]
    for _ in range(openings):
        for source, seconds in zip(opened, found, strict=True):
            with run_job(worker_actions.opening, [source], [recipe], inputs) as job:
                seconds.append(job.answer["load_seconds"])
    return tuple(map(statistics.median, found))


def measure_session(
    source: ModelSource,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    *,
    runs: int = SESSION_RUNS,
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
        return SessionMemory(
            answer["loaded_bytes"],
            peaks,
            answer["load_seconds"],
            before_bytes=answer["before_bytes"],
            opening_bytes=answer["opening_bytes"],
        )

    found = [measured(Malloc.USUAL) for _ in range(repeats)]
    peaks = zip(*(one.run_peaks_bytes for one in found), strict=True)
    given_back = measured(Malloc.RETURNING) if returning else None
    return SessionMemory(
        round(statistics.median(one.loaded_bytes for one in found)),
        tuple(round(statistics.median(column)) for column in peaks),
        statistics.median(one.load_seconds for one in found),
        given_back,
        round(statistics.median(one.before_bytes for one in found)),
        round(statistics.median(one.opening_bytes for one in found)),
    )
