"""What the user may choose: for each command what it takes, and no more.

Checked here, against what the chosen target permits too.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import final

from onnxremat.core.errors import UsageError
from onnxremat.ort.child.run_limit import RUN_SECONDS
from onnxremat.ort.measuring.measure_time import MEASURE_SECONDS
from onnxremat.ort.outside import Weights
from onnxremat.ort.recipe import ExecutionOrder, OptimizationLevel
from onnxremat.planners.search.engine import usable_processors
from onnxremat.target_table import TargetInfo, chosen_target

NO_OPS: tuple[str, ...] = ()
UNSAID: str | None = None
UNLIMITED: float | None = None
COST_SOURCES = ("model", "measured")
ORDERS = tuple(mode.value for mode in ExecutionOrder)
ORDER_PLANNERS = ("auto", "reorder", "given_order")
"""Planners that keep to orders that the runtime's default order can give."""
OPTIMIZATIONS = tuple(level.value for level in OptimizationLevel)


@dataclass(frozen=True)
class ModelFields:
    """How a model is read and run: what every command takes, with the command line's defaults.

    `dims`: sizes of symbolic dimensions. `inputs`: an .npz file to measure with, random values of
    `seed` otherwise. `threads`: of the runtime, None for its own choice.

    `measure_limit`: the seconds that measuring the model may take beyond the runs that have to be
    made: half for counting workspace node by node, a quarter for profiled runs, a quarter for the
    peaks of the original and the released model. What they do not suffice for is estimated, and
    the result says so. A model in tiles, or with substitutes, is measured with as many again.

    `run_limit`: the seconds after which a process that runs the model is held to run for ever
    (see `ort.child.run_limit`; where runs are known to take long, later ones have more).
    `run_memory`: the bytes that such a process may ask for, None for what the machine has.

    What only some commands leave to the user is fixed here; they have fields of that name.
    """

    order = ExecutionOrder.PRIORITY.value
    optimize = OptimizationLevel.NONE.value
    allow_ops = NO_OPS
    costs = "model"
    weights = Weights.EMBEDDED
    mem_of = UNSAID
    max_slowdown = UNLIMITED
    verify = True

    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Path | None = None
    threads: int | None = None
    seed: int = 0
    measure_limit: float = MEASURE_SECONDS
    run_limit: float = RUN_SECONDS
    run_memory: int | None = None

    @property
    def optimizes_first(self) -> bool:
        """Whether a plan is for what a default session makes of the model, where that can be had:
        as far as any processor allows."""
        return False

    @property
    def fuses_when_loaded(self) -> bool:
        """Whether the file is opened by sessions that fuse its nodes."""
        return False

    @property
    def exact_threads(self) -> int:
        """The number of threads that tiles are exact for: the one asked for, or this machine's."""
        return self.threads or usable_processors()

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise UsageError(f"--seed: {self.seed} is negative")
        _require_seconds("--run-limit", self.run_limit)
        memory = self.run_memory
        if memory is not None and (type(memory) is not int or memory <= 0):
            raise UsageError(f"--run-memory: {memory!r} is not a number of bytes above 0")
        _require_one_of("--costs", self.costs, COST_SOURCES)
        _require_one_of("--optimize", self.optimize, OPTIMIZATIONS)
        _require_one_of("--order", self.order, ORDERS)


@final
@dataclass(frozen=True)
class ModelOptions(ModelFields):
    """What `audit` and `verify` take: how the model is read and run, and nothing else."""


@final
@dataclass(frozen=True)
class FrontierOptions(ModelFields):
    """What `frontier` takes: how the model is read and run, what planners may do, and the seconds
    (`time_limit`) that each has for each limit. The rest is as in `Options`."""

    optimize: str = OptimizationLevel.NONE.value
    allow_ops: tuple[str, ...] = NO_OPS
    costs: str = "model"
    recompute: bool = True
    time_limit: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_seconds("--time-limit", self.time_limit)


@final
@dataclass(frozen=True)
class Options(ModelFields):
    """What `rewrite` takes.

    `runtime` and `session` choose the target, a row of `target_table.TARGETS` (without a session
    the first one of the runtime): "ort-cpu" with a file that is opened with ONNX Runtime's defaults
    ("stock") or with the options stored in it ("recipe"), or "generic" for a runtime without an
    allocator. `order`: who keeps the order, the session option of that name in the file
    ("priority"), or the positions of the nodes alone ("default"); then nothing is recomputed.
    `optimize`: the level of the runtime's own optimizations that are done before the plan.
    `planner`: a name in PLANNERS. `recompute`: whether nodes may run again. `tiling`: whether ops
    may be cut (where the target allows it, and not with `order` "default"). `allow_rounding`:
    whether ops may be cut, or replaced by others that need less workspace, where that rounds
    differently. `allow_ops`: custom op types that may be recomputed. `costs`: where op times come
    from, "model" or "measured". `verify`: run both models and compare.

    `portable` and `embed_weights`: whether a file of default options is for any processor or for
    the kind of this one, and whether its weights lie in it or in a file beside it (`weights`; those
    of other targets stay where they are). `mem_of`: what is limited, where a target leaves a
    choice: "runs" or "process". `max_slowdown`: the share of the original's time that the file may
    take longer (0.1: 10%), and to open no longer at all; None: what tiles and recomputation are
    planned to take, and 10% for all the rest, however long it takes to open.

    `time_limit`: the seconds that planners and the choice of tiles have, all together; running,
    predicting and measuring come on top. Whole ops come first, tiles next, and whole ops have what
    is left (`fitting.strategy.Shares`). A tenth of what whole ops have is kept for planning again
    what takes more in the runtime than it was planned to. For the smallest peak some are left
    unused: a limit that is met with it must be met in as many.

    `iterations`: of each search for a plan. Then no clock ends planning, and the same arguments
    give the same plan; the seconds of `time_limit` count as work in the choice of tiles.
    """

    runtime: str = "ort-cpu"
    session: str | None = None
    order: str = ExecutionOrder.PRIORITY.value
    optimize: str = "none"
    portable: bool = True
    embed_weights: bool = False
    mem_of: str | None = None
    max_slowdown: float | None = None
    planner: str = "auto"
    recompute: bool = True
    tiling: bool = True
    allow_rounding: bool = False
    allow_ops: tuple[str, ...] = NO_OPS
    costs: str = "model"
    time_limit: float = 10.0
    iterations: int | None = None
    verify: bool = True

    @property
    def tiles(self) -> bool:
        """Whether ops may be cut."""
        return self.tiling and self.target.tiles and self.order == ExecutionOrder.PRIORITY

    @property
    def weights(self) -> Weights:  # type: ignore[override]
        """Where those of the file lie."""
        if self.embed_weights or not self.fuses_when_loaded:
            return Weights.EMBEDDED
        return Weights.EXTERNAL if self.portable else Weights.PACKED

    @property
    def optimizes_first(self) -> bool:
        """Where weights lie outside, the runtime has optimized the file before."""
        return self.weights != Weights.EMBEDDED

    @property
    def fuses_when_loaded(self) -> bool:
        """Default sessions do."""
        return self.target.optimizes

    @property
    def figure(self) -> str:
        """What the limit is of, in words."""
        return self.target.figure_of(self.mem_of)

    @property
    def target(self) -> TargetInfo:
        """Where the file will run."""
        return chosen_target(self.session, self.runtime)

    def __post_init__(self) -> None:
        super().__post_init__()
        _require_seconds("--time-limit", self.time_limit)
        if self.iterations is not None and self.iterations < 0:
            raise UsageError(f"--iterations: {self.iterations} is negative")
        if self.embed_weights and not self.portable:
            raise UsageError("--embed-weights: what lies in the file is for any processor")
        target = self.target
        if self.max_slowdown is not None and not 0 <= self.max_slowdown < math.inf:
            raise UsageError(f"--max-slowdown: {self.max_slowdown} is no share of a time")
        if self.order == ExecutionOrder.DEFAULT:
            if self.recompute:
                raise UsageError(
                    "--order default: ONNX Runtime's default order cannot run what recomputation "
                    "plans: say --no-recompute, too"
                )
            if self.planner not in ORDER_PLANNERS:
                raise UsageError(
                    f"--order default: not with --planner {self.planner}, only with "
                    + ", ".join(ORDER_PLANNERS)
                )
        target.check(vars(self))
        if self.mem_of is not None:
            _require_one_of("--mem-of", self.mem_of, tuple(target.figures))


def _require_seconds(option: str, seconds: float) -> None:
    if not 0 <= seconds < math.inf:
        raise UsageError(f"{option}: {seconds} is no number of seconds")


def _require_one_of(option: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise UsageError(f"{option}: {value!r} is none of {', '.join(known)}")
