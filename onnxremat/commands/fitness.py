"""`check`: whether this machine and this runtime are of the kind that a file was made for.

A file that holds optimizations of the runtime's own is tied to what they were made with
(`ort.record.OptimizedFor`). Nothing is assumed of a processor: how wide its blocks are, and what
its kernels pack, is asked of the runtime here. The original is not needed.
"""

import os
from dataclasses import dataclass, replace
from pathlib import Path

from onnxremat.core.errors import ModelError, VerificationError
from onnxremat.importer import LoadedModel, load
from onnxremat.importer.external import all_external_tensors, external_location
from onnxremat.options import ModelOptions
from onnxremat.ort.blocked_layout import layout_width
from onnxremat.ort.library import RUNTIME_VERSION
from onnxremat.ort.measuring.measure import run_outputs
from onnxremat.ort.outside import packed_here, packings
from onnxremat.ort.record import OptimizedFor, PlanRecord, made_record
from onnxremat.stages import ProgressReport, silent
from onnxremat.subject import feed_for
from onnxremat.verification import planned_dims


@dataclass(frozen=True)
class Check:
    """What a file was made for, and what is here.

    `record` is the file's. `layout_width`: how many channels a block has here, None if this
    runtime lays out none. `data_bytes`: of the files of weights beside it. `problem`: why the file
    is not for this machine: it has blocks of another width, or ONNX Runtime refuses it; "" if it
    opens and runs. `packed_alike`: whether kernels pack weights here as in the file, which is no
    problem where they do not, for the runtime packs its own then; None if it has none packed, or
    does not run here.
    """

    record: PlanRecord
    layout_width: int | None
    data_bytes: int
    problem: str = ""
    packed_alike: bool | None = None
    runtime_version: str = RUNTIME_VERSION

    @property
    def optimized(self) -> OptimizedFor | None:
        """What ties the file to a kind of processor, if anything does."""
        return self.record.optimized


def check(path: str | os.PathLike[str], *, progress: ProgressReport = silent) -> Check:
    """Look at the record of a file, open it, and run it once on random values.

    Raises UsageError for a file without a record, ModelError for one that is damaged or has no
    weights beside it. O(a run, and, where weights are packed, packing them).
    """
    file = Path(path)
    progress("reading the model")
    loaded = load(file)
    record = made_record(loaded.model, file)
    found = Check(record, layout_width(), _data_bytes(loaded))
    made = None if found.optimized is None else found.optimized.layout_width
    if made is not None and made != found.layout_width:
        here = "has none" if found.layout_width is None else f"has {found.layout_width}"
        other = f"it is for processors with blocks of {made} channels, and this one {here}"
        return replace(found, problem=other)
    options = ModelOptions(dims=planned_dims(loaded, record), threads=record.threads)
    progress("running the model")
    try:
        feed = feed_for(loaded, options)
        run_outputs(feed.source(), feed.inputs, record.recipe)
    except ModelError as error:
        return replace(found, problem=str(error))
    if record.optimized is None or not record.optimized.packed:
        return found
    progress("packing the weights as this processor does")
    packed = packed_here(loaded.model, loaded.base_dir, record.recipe)
    return replace(found, packed_alike=packed <= packings(loaded.model))


def require_fit(path: str | os.PathLike[str], found: Check) -> None:
    """Raise VerificationError if a file is not for this machine."""
    if found.problem:
        raise VerificationError(f"{path} is not for this machine: {found.problem}")


def _data_bytes(loaded: LoadedModel) -> int:
    """Bytes of the files of weights beside a model. Raises ModelError if one is too short."""
    sizes = {name: (loaded.base_dir / name).stat().st_size for name in loaded.data_files}
    for tensor in all_external_tensors(loaded.model):
        entries = {entry.key: entry.value for entry in tensor.external_data}
        name = external_location(tensor)
        end = int(entries.get("offset", 0)) + int(entries.get("length", 0))
        if end > sizes[name]:
            raise ModelError(
                f"{loaded.base_dir / name} is damaged: it has {sizes[name]} bytes, and a weight "
                f"that ends at {end}"
            )
    return sum(sizes.values())
