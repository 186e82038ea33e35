"""How much memory ONNX Runtime will take on the CPU for given session options, without running.

    RunProfile + Recipe -> order -> AllocationPlan -> requests to the allocator -> Prediction

What is needed of a run is its profile: sizes and workspace of every node. A prediction holds for
models that the runtime does not change any more (`OptimizationLevel.NONE`); for others, predict the
optimized model that it saves.

*Heap* is what `measure_activation` counts: with the arena, regions that a run adds. *Resident* is
what `measure_resident` shows: pages written. Regions of the arena stay, so it only grows from run
to run; with the memory pattern the second run adds the block (see `pattern`), which seldom fits
between what the first run left.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import onnx

from onnxremat.core.errors import UsageError
from onnxremat.ort.emulation.allocation import (
    AllocatedBuffer,
    AllocationKind,
    AllocationPlan,
    plan_allocations,
)
from onnxremat.ort.emulation.arena import CPU_ARENA, TABLE_SHARE, Arena, ArenaRequest, RegionUse
from onnxremat.ort.emulation.pattern import MemoryPattern, lay_out
from onnxremat.ort.emulation.pieces import (
    OUTPUT_LAST,
    WorkspacePieces,
    made_types,
    packed_weights,
    pieces_of,
    value_bytes,
)
from onnxremat.ort.measuring.profile import RunProfile, emulated_order, inner_nodes
from onnxremat.ort.measuring.provable import ProvableType
from onnxremat.ort.recipe import CPU_PROVIDER, OptimizationLevel, Recipe

BOOKKEEPING_BYTES = 500
BOOKKEEPING_NODE_BYTES = 100
"""What a run keeps beside tensors and workspace: once, and for each node (1.31.1)."""

FIRST_TOUCH_BYTES = 64 * 1024
"""Resident beside what is allocated, for each kind of node: the code of its kernel and tables that
nothing touched before the first run. Fitted; Linux brings a file's pages in 16 at a time."""

_RUNS = 4


@dataclass(frozen=True, slots=True)
class HeldValue:
    """A buffer held at the peak: the values in it, its bytes, and the step that allocated it."""

    values: tuple[str, ...]
    nbytes: int
    allocated: int


@dataclass(frozen=True)
class RunPrediction:
    """One run: the most heap and resident bytes above the loaded session, the step of the order
    at which buffers and workspace are largest, their bytes, and what is held there, largest first.
    `regions` are those that runs have added to the arena by the end of this one."""

    heap_bytes: int
    resident_bytes: int
    live_bytes: int
    peak_step: int
    held: tuple[HeldValue, ...]
    regions: tuple[RegionUse, ...] = field(default=(), repr=False)


@dataclass(frozen=True)
class Prediction:
    """The first run, and later ones once nothing changes any more.

    `reserved_bytes`: of all regions of the arena in the end, 0 without one. `block_bytes`: of the
    memory pattern, 0 without one. `order`: the nodes as they execute.
    """

    first: RunPrediction
    later: RunPrediction
    reserved_bytes: int
    block_bytes: int
    order: tuple[int, ...]

    @property
    def heap_bytes(self) -> int:
        """The most heap of any run."""
        return max(self.first.heap_bytes, self.later.heap_bytes)

    @property
    def resident_bytes(self) -> int:
        """The most resident memory of any run."""
        return max(self.first.resident_bytes, self.later.resident_bytes)


def predict(
    model: onnx.ModelProto,
    profile: RunProfile,
    recipe: Recipe,
    types: Mapping[str, ProvableType],
    *,
    order: Sequence[int] | None = None,
    early_outputs: Sequence[str] = (),
    warm_bytes: int = 0,
) -> Prediction:
    """What runs of `model` with `recipe` take. `profile` is of the same model, at the thread count
    of the recipe; `types` are what the runtime proves of it (`provable.provable_types`; only
    `free_dimensions` of a recipe changes them); `order` replaces the order that the recipe gives;
    `early_outputs` are graph outputs whose buffers exist before the first node runs; `warm_bytes`
    are written and given back at the start of every run (see the stock rewriter).

    Raises UsageError for another provider than the CPU's, a recipe that lets the runtime optimize,
    or a model with nodes that the runtime expands.
    """
    if recipe.provider != CPU_PROVIDER:
        raise UsageError(f"only {CPU_PROVIDER} is emulated, not {recipe.provider}")
    if recipe.optimization is not OptimizationLevel.NONE:
        raise UsageError("a prediction needs the optimized model and no optimization in the recipe")
    if profile.expanded:
        kinds = sorted({model.graph.node[v].op_type for v in profile.expanded})
        raise UsageError(
            f"ONNX Runtime expands {', '.join(kinds)}: a prediction needs the model with the parts "
            "in their place (settle.settled), and its profile"
        )
    nodes = model.graph.node
    if order is None:
        order = emulated_order(nodes, recipe.execution_order)
    plan = plan_allocations(model.graph, order, types, mem_reuse=recipe.mem_reuse)
    plan = _with_early(plan, early_outputs)
    run = _EmulatedRun.of(model, profile, order, plan)
    return _predict(run, recipe, warm_bytes)


def _with_early(plan: AllocationPlan, outputs: Sequence[str]) -> AllocationPlan:
    """The plan with the buffers of some outputs allocated first of all."""
    if not outputs:
        return plan
    own = {buffer.root: buffer for buffer in plan.buffers}
    early = [replace(own[name], allocated=0) for name in outputs if name in own]
    rest = [buffer for buffer in plan.buffers if buffer.root not in outputs]
    return replace(plan, buffers=(*early, *rest))


@dataclass(frozen=True)
class _EmulatedRun:
    """Everything that one run asks for, step by step."""

    order: tuple[int, ...]
    buffers: tuple[AllocatedBuffer, ...]
    nbytes: Mapping[str, int]
    taken: tuple[tuple[AllocatedBuffer, ...], ...]
    released: tuple[tuple[AllocatedBuffer, ...], ...]
    workspace: tuple[WorkspacePieces, ...]
    late: tuple[bool, ...]
    loaded: tuple[int, ...]
    kinds: int

    @classmethod
    def of(
        cls,
        model: onnx.ModelProto,
        profile: RunProfile,
        order: Sequence[int],
        plan: AllocationPlan,
    ) -> "_EmulatedRun":
        types = made_types(model, profile)
        sizes = {b.root: value_bytes(types.get(b.root)) for b in plan.buffers}
        taken: list[list[AllocatedBuffer]] = [[] for _ in order]
        released: list[list[AllocatedBuffer]] = [[] for _ in order]
        for buffer in plan.buffers:
            taken[buffer.allocated].append(buffer)
            if buffer.released is not None:
                released[buffer.released].append(buffer)
        return cls(
            tuple(order),
            plan.buffers,
            sizes,
            tuple(map(tuple, taken)),
            tuple(map(tuple, released)),
            tuple(pieces_of(model.graph.node[v], profile.nodes.get(v), types) for v in order),
            tuple(model.graph.node[v].op_type in OUTPUT_LAST for v in order),
            tuple(packed_weights(model)),
            len(set(_kinds([model.graph.node[v] for v in order]))),
        )

    def pattern(self) -> MemoryPattern:
        """The memory pattern that the first run makes."""
        return lay_out(self._pattern_requests())

    def _pattern_requests(self) -> Iterable[ArenaRequest]:
        for taken, released in zip(self.taken, self.released, strict=True):
            for buffer in taken:
                if buffer.kind is AllocationKind.ALLOCATE:
                    yield ArenaRequest(buffer.root, self.nbytes[buffer.root])
            for buffer in released:
                yield ArenaRequest(buffer.root)

    def bookkeeping_bytes(self) -> int:
        return BOOKKEEPING_BYTES + BOOKKEEPING_NODE_BYTES * len(self.order)

    def live(self) -> list[int]:
        """Bytes of buffers and workspace during each step."""
        held = 0
        live = []
        for step, workspace in enumerate(self.workspace):
            held += sum(self.nbytes[b.root] for b in self.taken[step])
            live.append(held + workspace.nbytes)
            held -= sum(self.nbytes[b.root] for b in self.released[step])
        return live

    def held_at(self, step: int) -> tuple[HeldValue, ...]:
        held = [
            HeldValue(b.members, self.nbytes[b.root], b.allocated)
            for b in self.buffers
            if b.allocated <= step and (b.released is None or step <= b.released)
        ]
        return tuple(sorted(held, key=lambda h: (-h.nbytes, h.allocated)))


def _kinds(nodes: Iterable[onnx.NodeProto]) -> Iterable[tuple[str, str]]:
    for node in nodes:
        for one in (node, *inner_nodes(node)):
            yield one.domain, one.op_type


def _predict(run: _EmulatedRun, recipe: Recipe, warm_bytes: int) -> Prediction:
    pattern = run.pattern() if recipe.mem_pattern else None
    memory = _ArenaMemory(run.loaded) if recipe.cpu_arena else _PlainMemory()
    runs = []
    for number in range(_RUNS):
        peaks = _simulate(run, memory, pattern if number else None, warm_bytes)
        runs.append((*peaks, memory.regions()))
    live = run.live()
    peak = max(live, default=0)
    step = live.index(peak) if live else 0
    held = run.held_at(step)
    touched = FIRST_TOUCH_BYTES * run.kinds
    first, later = (
        RunPrediction(heap + run.bookkeeping_bytes(), resident + touched, peak, step, held, regions)
        for heap, resident, regions in (runs[0], runs[-1])
    )
    return Prediction(
        first, later, memory.reserved_bytes, pattern.block_bytes if pattern else 0, run.order
    )


class _PlainMemory:
    """malloc for every buffer, given back at once."""

    reserved_bytes = 0

    def __init__(self) -> None:
        self._sizes: dict[int, int] = {}
        self._in_use = 0
        self._count = 0

    def start(self) -> None:
        return

    def allocate(self, nbytes: int, touch: bool = True) -> int:
        self._count += 1
        self._sizes[self._count] = nbytes
        self._in_use += nbytes
        return self._count

    def free(self, handle: int) -> None:
        self._in_use -= self._sizes.pop(handle)

    def touch(self, handle: int, offset: int, nbytes: int) -> None:
        return

    def heap_bytes(self) -> int:
        return self._in_use

    def resident_bytes(self) -> int:
        return self._in_use

    def regions(self) -> tuple[RegionUse, ...]:
        return ()


class _ArenaMemory:
    """The CPU's arena: regions stay from run to run. `loaded` are taken before the first run."""

    def __init__(self, loaded: Sequence[int]) -> None:
        self._arena = Arena(CPU_ARENA)
        for nbytes in loaded:
            self._arena.allocate(nbytes)
        self._loaded = self._resident()
        self._loaded_regions = len(self._arena.regions_bytes)
        self._before = 0

    @property
    def reserved_bytes(self) -> int:
        return self._arena.reserved_bytes

    def start(self) -> None:
        self._before = self._arena.reserved_bytes

    def allocate(self, nbytes: int, touch: bool = True) -> int:
        return self._arena.allocate(nbytes, touch=touch)

    def free(self, handle: int) -> None:
        self._arena.free(handle)

    def touch(self, handle: int, offset: int, nbytes: int) -> None:
        self._arena.touch(handle, offset, nbytes)

    def heap_bytes(self) -> int:
        added = self._arena.reserved_bytes - self._before
        return added + added // TABLE_SHARE

    def resident_bytes(self) -> int:
        return self._resident() - self._loaded

    def regions(self) -> tuple[RegionUse, ...]:
        found = zip(self._arena.regions_bytes, self._arena.pages(), strict=True)
        return tuple(RegionUse(*each) for each in found)[self._loaded_regions :]

    def _resident(self) -> int:
        return self._arena.touched_bytes + self._arena.reserved_bytes // TABLE_SHARE


def _simulate(
    run: _EmulatedRun,
    memory: _PlainMemory | _ArenaMemory,
    pattern: MemoryPattern | None,
    warm_bytes: int,
) -> tuple[int, int]:
    """The most heap and resident bytes of a run; outputs are given back behind it."""
    memory.start()
    places = pattern.places if pattern is not None else {}
    block = None
    if pattern is not None and pattern.block_bytes:
        block = memory.allocate(pattern.block_bytes, touch=False)
    held: dict[str, int] = {}
    warm = memory.allocate(warm_bytes)
    heap, resident = memory.heap_bytes(), memory.resident_bytes()
    memory.free(warm)
    for step, workspace in enumerate(run.workspace):
        pieces = [memory.allocate(nbytes) for nbytes in workspace.pieces_bytes if run.late[step]]
        for buffer in run.taken[step]:
            place = places.get(buffer.root) if buffer.kind is AllocationKind.ALLOCATE else None
            if place is not None and block is not None:
                memory.touch(block, place.offset, run.nbytes[buffer.root])
            else:
                held[buffer.root] = memory.allocate(run.nbytes[buffer.root])
        if not run.late[step]:
            pieces = [memory.allocate(nbytes) for nbytes in workspace.pieces_bytes]
        heap = max(heap, memory.heap_bytes() + workspace.other_bytes)
        resident = max(resident, memory.resident_bytes() + workspace.other_bytes)
        for handle in pieces:
            memory.free(handle)
        for buffer in run.released[step]:
            if buffer.root in held:
                memory.free(held.pop(buffer.root))
    for handle in held.values():
        memory.free(handle)
    if block is not None:
        memory.free(block)
    return heap, resident
