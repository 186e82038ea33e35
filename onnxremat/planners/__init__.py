"""Planners: plain functions `(Problem, Limits) -> Plan` in one plain table.

Adding one is a module with a public function, and one line in PLANNERS. Importing this package
imports no compiler: numba is loaded when a planner that needs it runs, and compiles once per
machine (`compiled_kernels_cached` says whether that has been done).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from onnxremat.plan import Planner
from onnxremat.planners.auto import auto
from onnxremat.planners.given_order import given_order
from onnxremat.planners.local_search import local_search
from onnxremat.planners.reorder import reorder


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


__all__ = ["PLANNERS", "PlannerInfo", "compiled_kernels_cached"]
