"""Planners: plain functions `(Problem, Limits) -> Plan` in one plain table.

Adding one is a module with a public function, and one row in PLANNERS. Importing this package
imports no planner: each is loaded when it is asked for, with the solvers it needs. Numba is loaded
when a planner that needs it runs, and compiles once per machine (`compiled_kernels_cached` says
whether that has been done).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable

    from onnxremat.core.graph import Graph
    from onnxremat.core.problem import Planner


@dataclass(frozen=True, slots=True)
class PlannerInfo:
    """A planner: the `module` of this package that it is in and, in a line each, the paper that it
    comes from (`source`), what it does (`summary`), what is known of its plans (`guarantee`), what
    it takes (`complexity`) and when to `use` it. `docs/planners.md` is made from that."""

    name: str
    module: str
    source: str
    summary: str
    guarantee: str
    complexity: str
    use: str
    counts_work: bool = False
    """Whether it says what work it does, for `Limits.work`."""

    @property
    def function(self) -> "Planner":
        """The planner itself, whose name is that of the function; its module is loaded now."""
        return cast("Planner", getattr(import_module(f"{__name__}.{self.module}"), self.name))


PLANNERS: Mapping[str, PlannerInfo] = {
    info.name: info
    for info in (
        PlannerInfo(
            "auto",
            "auto",
            source="-",
            summary="bounds, reorder, planners of training graphs, local_search, proofs",
            guarantee=(
                "the best of its parts; optimal or impossible where a bound or moccasin proves it"
            ),
            complexity="that of its parts, which share the limits",
            use="always, unless algorithms are to be compared",
            counts_work=True,
        ),
        PlannerInfo(
            "given_order",
            "given_order",
            source="-",
            summary="the order of the file, nothing repeated",
            guarantee="none",
            complexity="O(steps + reads)",
            use="to see what a model takes as it is",
            counts_work=True,
        ),
        PlannerInfo(
            "reorder",
            "reorder",
            source="Ahn 2020 (downsets), Liu 1987 (hill-valley segments), extended",
            summary=(
                "the order of the smallest peak, nothing repeated: exact search, beam, annealing"
            ),
            guarantee=(
                "the smallest peak without recomputation, where the search over downsets or a "
                "bound by minimum cuts ends in time"
            ),
            complexity=(
                "exponential in the worst case: the number of downsets; beam and annealing end "
                "with the limits"
            ),
            use="memory that costs no time; with --no-recompute",
            counts_work=True,
        ),
        PlannerInfo(
            "local_search",
            "local_search",
            source="our own",
            summary=(
                "new order and recomputation together, by annealing under the real memory rules"
            ),
            guarantee="none; optimal where a proved bound is reached",
            complexity="3 to 10 microseconds a move with 1,000 ops; ends with the limits",
            use="any graph: what auto spends most of its time in",
            counts_work=True,
        ),
        PlannerInfo(
            "greedy",
            "greedy",
            source="Kumar 2019, section 4 (XLA)",
            summary="one walk over the order; what saves most for its time is recomputed",
            guarantee="none",
            complexity="O(n) for each recomputation and limit, n the length of the sequence",
            use="to compare with what compilers do",
        ),
        PlannerInfo(
            "chain",
            "chain",
            source="Beaumont 2024",
            summary="training graphs as chains: C_MP and C_FL, searched for the real peak",
            guarantee=(
                "the fastest schedule of the chain model that is persistent (C_MP), up to 30 "
                "stages also of those with a floating value (C_FL); sizes are rounded up to "
                "slots, and the model is coarser than the graph"
            ),
            complexity=(
                "O(stages^3 x slots), for short chains O(stages^4 x slots), and O(steps + reads) "
                "a schedule"
            ),
            use="training graphs of layers in a row",
        ),
        PlannerInfo(
            "lower_sets",
            "lower_sets",
            source="Kusumoto 2019",
            summary="training graphs: canonical strategies over lower sets, approximate and exact",
            guarantee=(
                "the best canonical strategy by equation 2 of the paper, where there are at most "
                "3,000 lower sets"
            ),
            complexity="O(sets^2) for the smallest peak, O(sets^2 x time units) for the least time",
            use="training graphs with few branches",
        ),
        PlannerInfo(
            "chen",
            "chen",
            source="Chen 2016",
            summary="training graphs: equal segments, the best number",
            guarantee="no worse than chen_sqrt where all numbers of segments are tried in time",
            complexity="O(steps + reads) for each number of segments",
            use="to compare",
        ),
        PlannerInfo(
            "chen_sqrt",
            "chen",
            source="Chen 2016",
            summary="training graphs: sqrt(n) equal segments",
            guarantee="O(sqrt(n)) memory for one forward pass more, for n stages of equal size",
            complexity="O(steps + reads)",
            use="to compare with what frameworks do",
        ),
        PlannerInfo(
            "revolve",
            "revolve",
            source="Griewank 2000",
            summary="training graphs: binomial checkpointing, the best number of snapshots",
            guarantee="the least time for so many snapshots, for stages of equal time and size",
            complexity="O(steps + reads) for each number of snapshots",
            use="chains of equal stages, such as steps in time",
        ),
        PlannerInfo(
            "twremat",
            "twremat",
            source="Kumar 2019, algorithm 1",
            summary=(
                "divide and conquer over a tree decomposition, with proved bounds; then polished"
            ),
            guarantee=(
                "O((k + r) log n) memory, and no op more than O(k n^log(k + 2)) times, for width "
                "k and n ops of unit size of which each reads at most r others"
            ),
            complexity=(
                "that of the schedules: one for each recursion limit, those of more than 40 "
                "passes given up"
            ),
            use="limits far below what other planners reach, where the graph has a small treewidth",
        ),
        PlannerInfo(
            "pwremat",
            "pwremat",
            source="Kumar 2019, supplement, algorithm 3",
            summary="interleaved schedules over a path decomposition with a spine; then polished",
            guarantee="theorem 22 of the supplement, for schedules that are not given up",
            complexity=(
                "O(2^p (p!)^2 log^(p - 2) b) steps for each of b bags of at most p ops, before "
                "unread ones are left out"
            ),
            use="to compare with twremat on narrow graphs",
        ),
        PlannerInfo(
            "moccasin",
            "moccasin",
            source="Bartan 2023",
            summary="retention intervals in CP-SAT: proves the least time or peak for few copies",
            guarantee=(
                "the least time within the budget, or the smallest peak, for few executions of an"
                " op in the domain that the scope of the plan names"
            ),
            complexity="O(copies^2 x reads) variables; the search is exponential",
            use="proofs for about 100 ops; auto uses it in windows of larger plans",
        ),
        PlannerInfo(
            "checkmate",
            "checkmate",
            source="Jain 2020",
            summary="mixed-integer program over stages (HiGHS), in the given order",
            guarantee=(
                "the least time of recomputations in stages, in the given order, up to the "
                "tolerance of HiGHS"
            ),
            complexity="n^2 + (n x reads) binary variables; the search is exponential",
            use="to compare, on graphs of some tens of ops",
        ),
        PlannerInfo(
            "checkmate_rounding",
            "checkmate",
            source="Jain 2020, section 5",
            summary="its linear relaxation, rounded; may miss the budget, and says so",
            guarantee="none",
            complexity="a linear program of n^2 + (n x reads) variables",
            use="to compare",
        ),
    )
}


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
