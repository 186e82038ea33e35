"""Planners: plain functions `(Problem, Limits) -> Plan` in one plain table.

Adding one is a module with a public function, and one line in PLANNERS. Importing this package
imports no planner: each is loaded when it is asked for, with the solvers it needs. Numba is loaded
when a planner that needs it runs, and compiles once per machine (`compiled_kernels_cached` says
whether that has been done).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from onnxremat.core.graph import Graph
    from onnxremat.core.problem import Planner


@dataclass(frozen=True, slots=True)
class PlannerInfo:
    """A planner with the module of this package that it is in, where it comes from and what it
    does, in a line each."""

    name: str
    module: str
    source: str
    summary: str

    @property
    def function(self) -> "Planner":
        """The planner itself, whose name is that of the function; its module is loaded now."""
        return cast("Planner", getattr(import_module(f"{__name__}.{self.module}"), self.name))


PLANNERS: Mapping[str, PlannerInfo] = MappingProxyType(
    {
        info.name: info
        for info in (
            PlannerInfo(
                "auto",
                "auto",
                "-",
                "bounds, reorder, planners of training graphs, local_search, proofs",
            ),
            PlannerInfo(
                "given_order", "given_order", "-", "the order of the file, nothing repeated"
            ),
            PlannerInfo(
                "reorder",
                "reorder",
                "Ahn 2020 (downsets), Liu 1987 (hill-valley segments), extended",
                "the order of the smallest peak, nothing repeated: exact search, beam, annealing",
            ),
            PlannerInfo(
                "local_search",
                "local_search",
                "our own",
                "new order and recomputation together, by annealing under the real memory rules",
            ),
            PlannerInfo(
                "greedy",
                "greedy",
                "Kumar 2019, section 4 (XLA)",
                "one walk over the order; what saves most for its time is recomputed",
            ),
            PlannerInfo(
                "chain",
                "chain",
                "Beaumont 2024",
                "training graphs as chains: C_MP and C_FL, searched for the real peak",
            ),
            PlannerInfo(
                "lower_sets",
                "lower_sets",
                "Kusumoto 2019",
                "training graphs: canonical strategies over lower sets, approximate and exact",
            ),
            PlannerInfo(
                "chen", "chen", "Chen 2016", "training graphs: equal segments, the best number"
            ),
            PlannerInfo(
                "chen_sqrt", "chen", "Chen 2016", "training graphs: sqrt(n) equal segments"
            ),
            PlannerInfo(
                "revolve",
                "revolve",
                "Griewank 2000",
                "training graphs: binomial checkpointing, the best number of snapshots",
            ),
            PlannerInfo(
                "twremat",
                "twremat",
                "Kumar 2019, algorithm 1",
                "divide and conquer over a tree decomposition, with proved bounds; then polished",
            ),
            PlannerInfo(
                "pwremat",
                "pwremat",
                "Kumar 2019, supplement, algorithm 3",
                "interleaved schedules over a path decomposition with a spine; then polished",
            ),
            PlannerInfo(
                "moccasin",
                "moccasin",
                "Bartan 2023",
                "retention intervals in CP-SAT: proves the least time or peak for few copies",
            ),
            PlannerInfo(
                "checkmate",
                "checkmate",
                "Jain 2020",
                "mixed-integer program over stages (HiGHS), in the given order",
            ),
            PlannerInfo(
                "checkmate_rounding",
                "checkmate",
                "Jain 2020, section 5",
                "its linear relaxation, rounded; may miss the budget, and says so",
            ),
        )
    }
)


def compiled_kernels_cached() -> bool:
    """Whether all compiled code of the planners is ready, on disk or in this process. If not, its
    first run compiles it."""
    from onnxremat.system.compilation import is_ready

    return all(map(is_ready, _entries()))


def load_kernels() -> None:
    """Load the search from disk into this process (half a second), so that no planner's time limit
    pays for it; compile it if it is not there."""
    from onnxremat.planners.search.engine import load_kernels as load

    load()


def _entries() -> "tuple[Callable[..., object], ...]":
    """The compiled functions that planners call. What these call is compiled with them."""
    from onnxremat.planners.chains import chain_kernels as _chain_kernels
    from onnxremat.planners.chains import lower_set_kernels as _lower_set_kernels
    from onnxremat.planners.exact_order import beam as _beam
    from onnxremat.planners.search import anneal as _anneal

    lower_sets = _lower_set_kernels
    return (
        *(_anneal.anneal, _beam.extend, _chain_kernels.fill_tiles),
        *(lower_sets.least_cache, lower_sets.most_cache, lower_sets.price_to_go),
        lower_sets.fronts,
    )


def kernels_kept_where() -> str:
    """Where the compiled search is kept, in words, if that is no place of numba's own; else ""."""
    from onnxremat.planners.search import anneal as _anneal
    from onnxremat.system.compilation import kept_where

    return kept_where(_anneal.anneal)


def compile_kernels() -> None:
    """Compile them now and keep them on disk, so that no planner's time limit pays for it."""
    from onnxremat.core.memory import MemoryRules
    from onnxremat.core.problem import Limits, Problem

    graph = _smallest_training_graph()
    search = Problem(graph, MemoryRules(), fixed_order=True)
    PLANNERS["local_search"].function(search, Limits(iterations=1))
    for name in ("chain", "lower_sets"):
        PLANNERS[name].function(Problem(graph, MemoryRules()), Limits())


def _smallest_training_graph() -> "Graph":
    """Three layers, a loss, and the gradients of the layers and of their weights."""
    from onnxremat.core.graph import Graph, Op, Tensor

    reads = ((), (0,), (1,), (2,), (2,), (4, 2, 1), (5, 1, 0), (4, 1), (5, 0))
    """What op v reads to make tensor v; 3 is the loss."""
    tensors = tuple(
        Tensor(f"t{v}", () if v == 3 else (10,), "float", 4 if v == 3 else 40)
        for v in range(len(reads))
    )
    ops = tuple(Op(f"op{v}", "Op", read, (v,)) for v, read in enumerate(reads))
    return Graph(tensors, ops, (), (3, 6, 7, 8))


__all__ = [
    "PLANNERS",
    "PlannerInfo",
    "compile_kernels",
    "compiled_kernels_cached",
    "kernels_kept_where",
    "load_kernels",
]
