"""`check`: whether this machine and this runtime are of the kind that a file was made for.

A file that holds optimizations of the runtime's own is tied to what they were made with
(`ort.record.OptimizedFor`). Nothing is assumed of a processor: how wide its blocks are, and what
its kernels pack, is asked of the runtime here. The original is not needed.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from onnxremat.core.errors import ModelError, UsageError, VerificationError
from onnxremat.importer import load
from onnxremat.options import ModelOptions
from onnxremat.ort.blocked_layout import layout_width
from onnxremat.ort.library import RUNTIME_VERSION
from onnxremat.ort.measuring.measure import run_outputs
from onnxremat.ort.outside import packed_here, packings
from onnxremat.ort.record import OptimizedFor, PlanRecord, file_record
from onnxremat.stages import ProgressReport, silent
from onnxremat.subject import feed_for
from onnxremat.verification import planned_dims


@dataclass(frozen=True)
class Check:
    """What a file was made for, and what is here.

    `record` is the file's. `layout_width`: how many channels a block has here, None if this
    runtime lays out none. `data_bytes`: of the files of weights beside it. `refused`: what ONNX
    Runtime says of the file, "" if it opens and runs it. `packed_alike`: whether kernels pack
    weights here as in the file; None if it has none packed, or does not run here.
    """

    record: PlanRecord
    layout_width: int | None
    data_bytes: int
    refused: str = ""
    packed_alike: bool | None = None
    runtime_version: str = RUNTIME_VERSION

    @property
    def optimized(self) -> OptimizedFor | None:
        """What ties the file to a kind of processor, if anything does."""
        return self.record.optimized

    @property
    def other_blocks(self) -> bool:
        """Whether the file has blocks that this processor's kernels would read wrongly."""
        made = None if self.optimized is None else self.optimized.layout_width
        return made is not None and made != self.layout_width

    @property
    def problem(self) -> str:
        """Why the file is not for this machine, or "". Weights that are packed otherwise are no
        problem: the runtime packs its own."""
        if self.other_blocks:
            here = "has none" if self.layout_width is None else f"has {self.layout_width}"
            assert self.optimized is not None
            return (
                f"it is for processors with blocks of {self.optimized.layout_width} channels, and "
                f"this one {here}"
            )
        return self.refused


def check(path: str | os.PathLike[str], *, progress: ProgressReport = silent) -> Check:
    """Look at the record of a file, open it, and run it once on random values.

    Raises UsageError for a file without a record, ModelError for one that is damaged or has no
    weights beside it. O(a run, and, where weights are packed, packing them).
    """
    file = Path(path)
    progress("reading the model")
    loaded = load(file)
    record = file_record(loaded.model, file)
    if record is None:
        raise UsageError(f"{file} holds no onnxremat plan: it was not made by onnxremat")
    nbytes = sum((loaded.base_dir / name).stat().st_size for name in loaded.data_files)
    found = Check(record, layout_width(), nbytes)
    if found.other_blocks:
        return found
    options = ModelOptions(dims=planned_dims(loaded, record), threads=record.threads)
    progress("running the model")
    try:
        feed = feed_for(loaded, options)
        run_outputs(feed.source(), feed.inputs, record.recipe)
    except ModelError as error:
        return replace(found, refused=str(error))
    if record.optimized is None or not record.optimized.packed:
        return found
    progress("packing the weights as this processor does")
    here = packed_here(loaded.model, loaded.base_dir, record.recipe)
    return replace(found, packed_alike=here <= packings(loaded.model))


def require_fit(path: str | os.PathLike[str], found: Check) -> None:
    """Raise VerificationError if a file is not for this machine."""
    if found.problem:
        raise VerificationError(f"{path} is not for this machine: {found.problem}")
