"""Planners: plain functions `(Problem, Limits) -> Plan` in one plain table.

Adding one is a module with a public function, and one line in PLANNERS. Importing this package
imports no compiler: numba is loaded when a planner that needs it runs, and compiles once per
machine (`compiled_kernels_cached` says whether that has been done).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from onnxremat.graph import Graph, Op, Tensor
from onnxremat.memory import MemoryRules
from onnxremat.plan import Limits, Planner, Problem
from onnxremat.planners._engine import Clock, Cooling, Engine, score
from onnxremat.planners.auto import auto
from onnxremat.planners.given_order import given_order
from onnxremat.planners.local_search import local_search
from onnxremat.planners.reorder import reorder
from onnxremat.schedule import Schedule


@dataclass(frozen=True, slots=True)
class PlannerInfo:
    """A planner with where it comes from and what it does, in a line each."""

    name: str
    function: Planner
    source: str
    summary: str


PLANNERS: Mapping[str, PlannerInfo] = MappingProxyType(
    {
        info.name: info
        for info in (
            PlannerInfo("auto", auto, "-", "bounds, then reorder, then local_search"),
            PlannerInfo("given_order", given_order, "-", "the order of the file, nothing repeated"),
            PlannerInfo(
                "reorder",
                reorder,
                "greedy and depth-first orders; annealing over orders",
                "a new order, nothing repeated",
            ),
            PlannerInfo(
                "local_search",
                local_search,
                "our own",
                "new order and recomputation together, by annealing under the real memory rules",
            ),
        )
    }
)


def compiled_kernels_cached() -> bool:
    """Whether the compiled search is ready on disk. If not, its first run compiles it."""
    from onnxremat.planners import _anneal, _jit

    return _jit.is_cached(_anneal.anneal)


def compile_kernels() -> None:
    """Compile the search now and keep it on disk, so that no planner's time limit pays for it."""
    tensors = (Tensor("x", (1,), "uint8", 1), Tensor("y", (1,), "uint8", 1))
    ops = (Op("x", "Op", (), (0,)), Op("y", "Op", (0,), (1,)))
    problem = Problem(Graph(tensors, ops, (), (1,)), MemoryRules(), budget_bytes=1)
    Engine(problem, score(problem, Schedule((0, 1))), Clock(Limits(iterations=1)), Cooling()).cycle(1.0)


__all__ = ["PLANNERS", "PlannerInfo", "compile_kernels", "compiled_kernels_cached"]
