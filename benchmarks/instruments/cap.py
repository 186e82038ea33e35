"""A hard cap: does a model run when ONNX Runtime may take no more than so many bytes?

The CPU's arena of a child process gets a limit (`max_mem`); a request beyond it fails, and the run
with it. That is a proof that needs no measuring instrument. What counts (ONNX Runtime 1.31.1):

- every buffer and every piece of workspace that kernels take from the session's allocator, graph
  outputs included, and what is lost between them (`arena` has the rules);
- weights that kernels pack when the session is loaded: those of MatMul and Gemm through Reserve,
  those of ConvTranspose in a region. Other weights stay where they were read to and do not count,
  except those below 128 bytes;
- not the caller's inputs, not what kernels take from malloc, not the session itself.

Regions are never given back, and chunks merge within a region only, so how the arena is cut into
regions decides what is lost: see `Regions`.

If the packed weights alone are larger than the cap, the runtime stops limiting: the bytes left are
computed without a sign. That is told apart here, as a failure to load.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Any

from benchmarks.instruments import cap_actions
from onnxremat.core.errors import UsageError
from onnxremat.ort.child.malloc import Malloc
from onnxremat.ort.child.process import ModelSource, one_line, run_job
from onnxremat.ort.child.wire import Array
from onnxremat.ort.measuring.measure import Model
from onnxremat.ort.recipe import CPU_PROVIDER, RECIPE, Recipe

CAP_RECIPE = replace(RECIPE, cpu_arena=True)
"""RECIPE with the arena, which is what can be limited."""

NO_CAP_BYTES = 1 << 46
GRAIN_BYTES = 256
"""The arena takes multiples of this."""


class Regions(StrEnum):
    """How a capped arena takes memory from the system."""

    AS_REQUESTED = "as requested"
    """A region for each request that nothing free fits (kSameAsRequested). Free memory of two
    regions cannot serve one request."""
    ONE = "one"
    """The whole cap at once, as one region (`initial_chunk_size_bytes`)."""


class Stage(StrEnum):
    """Where a run under a cap ended."""

    LOADING = "loading"
    RUN = "run"


@dataclass(frozen=True)
class CappedRun:
    """Whether a model was loaded and run within `cap_bytes`.

    If not, `failed_at` and the runtime's `reason` say where it ended. `reserved_bytes` is what it
    took for packed weights through Reserve, `arena_bytes` all that the arena had after the last
    stage that went through (0 if loading failed).
    """

    cap_bytes: int
    fits: bool
    failed_at: Stage | None
    reason: str
    reserved_bytes: int
    arena_bytes: int


def run_capped(
    model: Model,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    cap_bytes: int,
    runs: int = 2,
    regions: Regions = Regions.AS_REQUESTED,
) -> CappedRun:
    """Load a model and run it `runs` times in a child whose arena is limited to `cap_bytes`.

    `recipe` must have `cpu_arena` on (CAP_RECIPE) and be for the CPU. Outputs of a run are released
    before the next. The child's malloc takes large blocks from the system one by one: where regions
    lie decides among free chunks of the same size, and so does not change from run to run.

    Raises UsageError for other recipes or a cap or number of runs that is not positive, ModelError
    if the runtime refuses the model for another reason than the cap.
    """
    if recipe.provider != CPU_PROVIDER or not recipe.cpu_arena:
        raise UsageError("a cap needs the CPU's arena: a recipe for the CPU with cpu_arena on")
    if not isinstance(cap_bytes, int) or not 1 <= cap_bytes <= NO_CAP_BYTES:
        raise UsageError(f"a cap of {cap_bytes} bytes: it must be a whole number from 1 to 2^46")
    if runs < 1:
        raise UsageError(f"{runs} runs: at least one is needed")
    source = model if isinstance(model, ModelSource) else ModelSource(path=Path(model))
    options = {"cap_bytes": cap_bytes, "runs": runs, "one_region": regions is Regions.ONE}
    with run_job(
        cap_actions.capped,
        [source],
        [recipe],
        inputs,
        options=options,
        malloc=Malloc.RETURNING,
    ) as job:
        return _read(job.answer, cap_bytes)


def measure_arena(
    model: Model, inputs: Mapping[str, Array], recipe: Recipe, runs: int = 2
) -> CappedRun:
    """The same without a limit: `arena_bytes` is what a cap must have at least, in regions as
    requested."""
    return run_capped(model, inputs, recipe, NO_CAP_BYTES, runs)


def smallest_cap(
    model: Model,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    runs: int = 2,
    regions: Regions = Regions.AS_REQUESTED,
    tolerance_bytes: int = GRAIN_BYTES,
    expected_bytes: int | None = None,
) -> int:
    """The least cap, within `tolerance_bytes`, under which a model runs, found by bisection.

    Every trial is a child process, log2(bytes / tolerance) of them; two are enough if
    `expected_bytes` is right (default: what the arena takes without a limit). In one region a
    larger cap may fail where a smaller one does not, for chunks are then chosen otherwise: what is
    found runs, and fails at `tolerance_bytes` less. Raises like `run_capped`, UsageError too if
    `tolerance_bytes` is not positive.
    """
    if tolerance_bytes < 1:
        raise UsageError(f"a tolerance of {tolerance_bytes} bytes: it must be positive")

    def fits(cap_bytes: int) -> bool:
        return run_capped(model, inputs, recipe, cap_bytes, runs, regions).fits

    if expected_bytes is None:
        expected_bytes = measure_arena(model, inputs, recipe, runs).arena_bytes
    low, high = 0, max(expected_bytes, 1)
    while not fits(high):
        low, high = high, high + max(high - low, tolerance_bytes)
    if high - tolerance_bytes > low:
        if not fits(high - tolerance_bytes):
            return high
        high -= tolerance_bytes
    while high - low > tolerance_bytes:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _read(answer: Mapping[str, Any], cap_bytes: int) -> CappedRun:
    stages, reserved = answer["stages_bytes"], answer["reserved_bytes"]
    taken = stages[-1] if stages else 0
    failed_at, reason = None, ""
    if answer["refusal"] is not None:
        failed_at = Stage.RUN if stages else Stage.LOADING
        reason = one_line(answer["refusal"])
    if reserved > cap_bytes:
        failed_at = Stage.LOADING
        reason = f"packed weights take {reserved} bytes, more than the cap of {cap_bytes}"
    return CappedRun(cap_bytes, failed_at is None, failed_at, reason, reserved, taken)
