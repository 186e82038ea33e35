"""How a session is opened: the settings of ONNX Runtime that decide order and memory.

A `Recipe` is data, so that it can be stored in a model's metadata; `session_options` turns it
into the runtime's own object.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeVar

from onnxremat.core.errors import UsageError
from onnxremat.core.text import printable
from onnxremat.core.units import LARGEST_SIZE
from onnxremat.ort.library import ort

CPU_PROVIDER = "CPUExecutionProvider"
MOST_THREADS = max(256, os.cpu_count() or 1)
"""A session starts all its threads at once: a thousand take a small machine a minute."""

_ERROR_SEVERITY = 3
_SHOWN = 60
_T = TypeVar("_T")


class ExecutionOrder(StrEnum):
    """How the runtime turns the graph into a sequence (see
    `onnxremat.importer.execution_order`)."""

    DEFAULT = "default"
    PRIORITY = "priority"


class OptimizationLevel(StrEnum):
    """Which of the runtime's graph optimizations run when a session is opened."""

    NONE = "none"
    BASIC = "basic"
    EXTENDED = "extended"
    ALL = "all"


@dataclass(frozen=True)
class Recipe:
    """Session settings; the defaults are those of the runtime.

    `provider`: the execution provider's name in ONNX Runtime. `threads`: kernels' threads, None
    for the runtime's own choice (one per physical core). `mem_reuse`: dead buffers are used again
    for tensors of the same size. `mem_pattern`: from the second run on, all buffers in one block.
    `cpu_arena`: memory is taken from an arena that is never given back. `free_dimensions`: sizes
    of symbolic input dimensions by name; with them the runtime can prove that sizes are equal,
    which is what in-place execution needs. `blocks`: whether convolutions and what stands between
    them may be laid out in blocks of channels; without, they run as on processors that have none.
    """

    provider: str = CPU_PROVIDER
    threads: int | None = None
    execution_order: ExecutionOrder = ExecutionOrder.DEFAULT
    optimization: OptimizationLevel = OptimizationLevel.ALL
    mem_reuse: bool = True
    mem_pattern: bool = True
    cpu_arena: bool = True
    free_dimensions: Mapping[str, int] = field(default_factory=dict)
    blocks: bool = True

    def with_threads(self, threads: int | None) -> "Recipe":
        """The same settings at another number of threads."""
        return replace(self, threads=threads)

    def with_dimensions(self, free_dimensions: Mapping[str, int]) -> "Recipe":
        """The same settings with sizes for symbolic dimensions."""
        return replace(self, free_dimensions=dict(free_dimensions))

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON; `from_dict` reverses it."""
        return {
            "provider": self.provider,
            "threads": self.threads,
            "execution_order": self.execution_order.value,
            "optimization": self.optimization.value,
            "mem_reuse": self.mem_reuse,
            "mem_pattern": self.mem_pattern,
            "cpu_arena": self.cpu_arena,
            "free_dimensions": dict(self.free_dimensions),
            **({} if self.blocks else {"blocks": False}),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Recipe":
        """The recipe that `to_dict` wrote. Raises UsageError, saying what is wrong with it."""
        try:
            return cls(
                provider=typed(data["provider"], str),
                threads=None if data["threads"] is None else typed_size(data["threads"], 1),
                execution_order=ExecutionOrder(data["execution_order"]),
                optimization=OptimizationLevel(data["optimization"]),
                mem_reuse=typed(data["mem_reuse"], bool),
                mem_pattern=typed(data["mem_pattern"], bool),
                cpu_arena=typed(data["cpu_arena"], bool),
                free_dimensions={
                    typed(name, str): typed_size(size, 0)
                    for name, size in typed(data["free_dimensions"], dict).items()
                },
                blocks=typed(data.get("blocks", True), bool),
            )
        except KeyError as error:
            raise UsageError(f"the recipe has no {error.args[0]!r}") from error
        except (AttributeError, TypeError, ValueError) as error:
            raise UsageError(f"the recipe is not valid: {error}") from error


STOCK = Recipe()
"""ONNX Runtime as it comes."""

RECIPE = Recipe(
    execution_order=ExecutionOrder.PRIORITY,
    optimization=OptimizationLevel.NONE,
    mem_reuse=False,
    mem_pattern=False,
    cpu_arena=False,
)
"""Nodes run in the file's order, nothing is merged or renumbered, and a buffer is freed as soon as
its last reader is done (measured on 1.31.1; see `onnxremat.ort.emulation.rules`)."""

_ORDERS = {
    ExecutionOrder.DEFAULT: "DEFAULT",
    ExecutionOrder.PRIORITY: "PRIORITY_BASED",
}
_LEVELS = {
    OptimizationLevel.NONE: "ORT_DISABLE_ALL",
    OptimizationLevel.BASIC: "ORT_ENABLE_BASIC",
    OptimizationLevel.EXTENDED: "ORT_ENABLE_EXTENDED",
    OptimizationLevel.ALL: "ORT_ENABLE_ALL",
}


def session_options(recipe: Recipe) -> Any:
    """The runtime's options for a recipe. Only errors are logged.

    Raises UsageError if a size is negative, or the number of threads not from 1 to MOST_THREADS.
    """
    _require_threads(recipe)
    options = ort.SessionOptions()
    options.log_severity_level = _ERROR_SEVERITY
    options.execution_order = getattr(ort.ExecutionOrder, _ORDERS[recipe.execution_order])
    level = getattr(ort.GraphOptimizationLevel, _LEVELS[recipe.optimization])
    options.graph_optimization_level = level
    options.enable_mem_reuse = recipe.mem_reuse
    options.enable_mem_pattern = recipe.mem_pattern
    options.enable_cpu_mem_arena = recipe.cpu_arena
    if recipe.threads is not None:
        options.intra_op_num_threads = recipe.threads
    for name, size in recipe.free_dimensions.items():
        if size < 0:
            raise UsageError(f"dimension {name!r} is {size}: a size of at least 0 is needed")
        options.add_free_dimension_override_by_name(name, size)
    return options


def require_usable(recipe: Recipe) -> None:
    """Raise UsageError if this machine has not the threads, or this build not the provider."""
    _require_threads(recipe)
    providers(recipe)


def _require_threads(recipe: Recipe) -> None:
    if recipe.threads is not None and recipe.threads < 1:
        raise UsageError(f"{recipe.threads} threads: at least one is needed")
    if recipe.threads is not None and recipe.threads > MOST_THREADS:
        raise UsageError(f"{recipe.threads} threads: at most {MOST_THREADS} can be used here")


def providers(recipe: Recipe) -> list[str]:
    """The provider list for a session; the CPU takes what another provider cannot run.

    Raises UsageError if this build of ONNX Runtime does not have the provider.
    """
    if recipe.provider == CPU_PROVIDER:
        return [CPU_PROVIDER]
    available: list[str] = ort.get_available_providers()
    if recipe.provider not in available:
        raise UsageError(
            f"this ONNX Runtime has no {recipe.provider!r}; it has {', '.join(available)}"
        )
    return [recipe.provider, CPU_PROVIDER]


def typed(value: object, kind: type[_T]) -> _T:
    """The value, if it is of that kind (truth values are no integers); else TypeError."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{printable(repr(value), _SHOWN)} is not of type {kind.__name__}")
    return value


def typed_size(value: object, least: int) -> int:
    """A whole number from `least` on that has 63 bits; else TypeError or ValueError."""
    size = typed(value, int)
    if not least <= size <= LARGEST_SIZE:
        raise ValueError(f"{size if abs(size) <= LARGEST_SIZE else 'a huge number'} is no size")
    return size
