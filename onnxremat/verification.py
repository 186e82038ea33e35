"""Whether a rewritten model is what was promised: same bits, planned order, less memory.

Both models run in the real runtime, under the same session options and thread count.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from onnxremat.errors import UsageError, VerificationError
from onnxremat.importer import LoadedModel
from onnxremat.prepare import Options, ProgressReport, prepare_feed, silent
from onnxremat.runtimes.measure import (
    HeapMeasurement,
    in_memory,
    measure_activation,
    measure_times,
    run_outputs,
)
from onnxremat.runtimes.profiling import profile_run
from onnxremat.runtimes.recipe import Recipe
from onnxremat.runtimes.record import read_record
from onnxremat.runtimes.wire import Array
from onnxremat.units import format_bytes


@dataclass(frozen=True)
class Verification:
    """What two models did on the same inputs.

    `different_outputs` are the outputs whose bits differ. `deterministic`: the original gave the
    same bits twice (asked only if something differs). `order_as_planned`: the runtime executed the
    rewritten file's nodes in file order. Times are medians of alternating runs; `time_ratio` is the
    median of rewritten / original in the same round.
    """

    different_outputs: tuple[str, ...]
    deterministic: bool
    order_as_planned: bool
    original: HeapMeasurement
    rewritten: HeapMeasurement
    original_seconds: float
    rewritten_seconds: float
    time_ratio: float

    @property
    def identical(self) -> bool:
        """Whether every output is the same, bit for bit."""
        return not self.different_outputs

    @property
    def original_peak_bytes(self) -> int:
        """The original's activation peak."""
        return self.original.peak_bytes


def verify(
    original: LoadedModel,
    rewritten: LoadedModel,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    *,
    progress: ProgressReport = silent,
    measured: tuple[HeapMeasurement, HeapMeasurement] | None = None,
) -> Verification:
    """Run both models: outputs, order, peaks (`measured` if they are known already), times.

    Raises ModelError if the runtime refuses one of them.
    """
    old = in_memory(original.model, original.base_dir)
    new = in_memory(rewritten.model, rewritten.base_dir)
    progress("comparing outputs")
    expected = run_outputs(old, inputs, recipe)
    different = different_names(expected, run_outputs(new, inputs, recipe))
    deterministic = not different or not different_names(expected, run_outputs(old, inputs, recipe))
    progress("comparing the executed order with the plan")
    in_order = executed_in_file_order(rewritten, inputs, recipe)
    progress("measuring memory")
    if measured is None:
        before = measure_activation(old, inputs, recipe)
        after = measure_activation(new, inputs, recipe)
    else:
        before, after = measured
    progress("measuring times")
    times = measure_times([old, new], inputs, [recipe, recipe])
    return Verification(
        different,
        deterministic,
        in_order,
        before,
        after,
        times.median_seconds[0],
        times.median_seconds[1],
        times.ratios[1],
    )


def verify_files(
    original: Path, rewritten: Path, options: Options, *, progress: ProgressReport = silent
) -> Verification:
    """`verify` for two files, under the recipe stored in the rewritten one.

    Raises UsageError if the rewritten file was not made by onnxremat.
    """
    progress("reading the models")
    feed = prepare_feed(original, options)
    other = prepare_feed(rewritten, options)
    record = read_record(other.loaded.model)
    if record is None:
        raise UsageError(f"{rewritten} holds no onnxremat plan: it was not made by onnxremat")
    recipe = record.recipe if options.threads is None else feed.recipe
    return verify(feed.loaded, other.loaded, feed.inputs, recipe, progress=progress)


def require(result: Verification, limit_bytes: int | None) -> None:
    """Raise VerificationError, saying what failed, unless everything promised holds."""
    if result.different_outputs:
        names = ", ".join(result.different_outputs[:3])
        more = len(result.different_outputs) - 3
        named = f"{names} and {more} more" if more > 0 else names
        if not result.deterministic:
            raise VerificationError(
                f"outputs cannot be compared: the original itself gives different bits in two runs "
                f"(seen in {named})"
            )
        raise VerificationError(f"outputs differ from the original's: {named}")
    if not result.order_as_planned:
        raise VerificationError("the runtime executed the nodes in another order than planned")
    if limit_bytes is not None and result.rewritten.peak_bytes > limit_bytes:
        raise VerificationError(
            f"the rewritten model's measured peak, {format_bytes(result.rewritten.peak_bytes)}, is "
            f"above the limit of {format_bytes(limit_bytes)}"
        )


def different_names(expected: Mapping[str, Array], got: Mapping[str, Array]) -> tuple[str, ...]:
    """Names of outputs that are missing on one side or differ in type, shape or any bit."""
    return tuple(
        name
        for name in sorted(expected.keys() | got.keys())
        if name not in expected or name not in got or not _same_bits(expected[name], got[name])
    )


def _same_bits(a: Array, b: Array) -> bool:
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    if a.dtype.hasobject or a.dtype.kind in "US":
        return bool(np.array_equal(a, b))
    return np.ascontiguousarray(a).tobytes() == np.ascontiguousarray(b).tobytes()


def executed_in_file_order(
    loaded: LoadedModel, inputs: Mapping[str, Array], recipe: Recipe
) -> bool:
    """Whether the runtime executes the nodes of a model in the order of the file."""
    nodes = loaded.model.graph.node
    planned = tuple(i for i, node in enumerate(nodes) if node.op_type != "Constant")
    return profile_run(loaded.model, loaded.base_dir, inputs, recipe, runs=1).order == planned
