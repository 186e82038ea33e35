"""How much of an arena a model will take, without running it: what `cap` measures, predicted.

Requests follow the order of execution: the buffers that a step makes, its workspace piece by piece,
then what is released behind it. They go to the emulated arena (`arena`), run after run. The runtime
takes an output when the kernel asks for it: most do so first, those of OUTPUT_LAST at the end.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import onnx

from onnxremat.core.errors import UsageError
from onnxremat.importer.values import ValueType
from onnxremat.ort.emulation.allocation import AllocationPlan, plan_allocations
from onnxremat.ort.emulation.arena import (
    MIN_CHUNK_BYTES,
    ArenaFullError,
    ArenaRequest,
    ArenaSettings,
    ExtendStrategy,
    simulate,
)
from onnxremat.ort.emulation.pieces import (
    OUTPUT_LAST,
    WorkspacePieces,
    made_types,
    packed_weights,
    pieces_of,
    value_bytes,
)
from onnxremat.ort.measuring.profile import RunProfile, emulated_order
from onnxremat.ort.measuring.provable import ProvableType
from onnxremat.ort.recipe import OptimizationLevel, Recipe

CAPPED_ARENA = ArenaSettings(extend=ExtendStrategy.SAME_AS_REQUESTED, max_dead_bytes=1)
"""`Regions.AS_REQUESTED`: regions as large as the request, every chunk is cut."""


@dataclass(frozen=True)
class ArenaPrediction:
    """Bytes that an arena needs, without what is taken through Reserve.

    `peak_bytes`: of all regions in the end, in regions as requested; `loaded_bytes` of them before
    the first run (filters that ConvTranspose packs). `one_region_bytes`: the least size of a single
    region that serves every request. `in_use_bytes`: the most that was handed out at once, a lower
    bound of both.
    """

    loaded_bytes: int
    peak_bytes: int
    one_region_bytes: int
    in_use_bytes: int


def predict_arena(
    model: onnx.ModelProto,
    profile: RunProfile,
    recipe: Recipe,
    types: Mapping[str, ProvableType],
    settings: ArenaSettings = CAPPED_ARENA,
    runs: int = 2,
) -> ArenaPrediction:
    """What `runs` runs of `model` need of an arena. Arguments are those of `predict.predict`.

    The memory pattern must be off. Raises UsageError for other recipes, ArenaFullError if
    `settings` has a limit that is too small. O(nodes log nodes) for each of about 20 sizes.
    """
    if recipe.mem_pattern or recipe.optimization is not OptimizationLevel.NONE:
        raise UsageError("an arena is predicted with optimizations and the memory pattern off")
    if profile.expanded:
        raise UsageError("the runtime expands nodes: predict the model with the parts in place")
    order = emulated_order(model.graph.node, recipe.execution_order)
    plan = plan_allocations(model.graph, order, types, mem_reuse=recipe.mem_reuse)
    made = made_types(model, profile)
    workspace = [pieces_of(model.graph.node[v], profile.nodes.get(v), made) for v in order]
    loaded = [ArenaRequest(f"weight {i}", n) for i, n in enumerate(packed_weights(model))]
    late = [model.graph.node[v].op_type in OUTPUT_LAST for v in order]
    requests = [*loaded, *list(_requests_of_a_run(plan, made, workspace, late)) * runs]
    before, after = simulate(loaded, settings), simulate(requests, settings)
    one = _one_region_bytes(requests, after.peak_in_use_bytes)
    return ArenaPrediction(
        before.reserved_bytes, after.reserved_bytes, one, after.peak_in_use_bytes
    )


def one_region(nbytes: int) -> ArenaSettings:
    """`Regions.ONE`: all memory is one region of `nbytes`, every chunk is cut."""
    return ArenaSettings(limit_bytes=nbytes, initial_chunk_bytes=nbytes, max_dead_bytes=1)


def _one_region_bytes(requests: Sequence[ArenaRequest], in_use_bytes: int) -> int:
    """The least region that serves all requests, by bisection above the bytes in use."""

    def fits(chunks: int) -> bool:
        try:
            simulate(requests, one_region(chunks * MIN_CHUNK_BYTES))
        except ArenaFullError:
            return False
        return True

    high = max(in_use_bytes // MIN_CHUNK_BYTES, 1)
    low = high - 1
    while not fits(high):
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high * MIN_CHUNK_BYTES


def _requests_of_a_run(
    plan: AllocationPlan,
    types: Mapping[str, ValueType],
    workspace: Sequence[WorkspacePieces],
    late: Sequence[bool],
) -> Iterator[ArenaRequest]:
    """What one run asks for; `late` are steps that take workspace before outputs. Graph outputs are
    given back behind the run."""
    taken: dict[int, list[str]] = {}
    released: dict[int | None, list[str]] = {}
    for buffer in plan.buffers:
        taken.setdefault(buffer.allocated, []).append(buffer.root)
        released.setdefault(buffer.released, []).append(buffer.root)
    for step, pieces in enumerate(workspace):
        outputs = [
            ArenaRequest(f"value {root}", value_bytes(types.get(root)))
            for root in taken.get(step, ())
        ]
        working = [
            ArenaRequest(f"workspace {step} {i}", nbytes)
            for i, nbytes in enumerate(pieces.pieces_bytes)
        ]
        yield from [*working, *outputs] if late[step] else [*outputs, *working]
        yield from (ArenaRequest(piece.key) for piece in working)
        yield from (ArenaRequest(f"value {root}") for root in released.get(step, ()))
    for root in released.get(None, ()):
        yield ArenaRequest(f"value {root}")
