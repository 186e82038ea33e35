"""What planning of tiles answers, and the rule that bounds its size."""

from dataclasses import dataclass

from onnxremat_rewriters.tile import Region

LEAST_NODES = 4_000
"""A tiled model may always have this many nodes."""
NODES_PER_NODE = 8
"""Beyond that, at most so many for each node that it had."""


def most_nodes(nodes: int) -> int:
    """The most nodes that a model of `nodes` nodes may have once it is tiled."""
    return max(LEAST_NODES, NODES_PER_NODE * nodes)


@dataclass(frozen=True)
class TilingPlan:
    """Regions for `onnxremat_rewriters.tile.tile`, and what they lead to in the file's order.

    `peak_bytes`: predicted activation peak, with the runtime's bookkeeping of the nodes added;
    `untiled_peak_bytes`: the peak of the model as it is.
    `extra_ns`: nanoseconds of `onnxremat.importer.costs` that halos, Slices, Concats and
    the start of kernels add to a run, of which `one_pass_ns` is the time. `nodes_added`: how many
    more nodes the file has. `threads`, `allow_rounding`: what it was planned for. `recomputed`:
    values that are made again in each tile that reads them rather than kept. `reasons`: why there
    are no regions, or no more of them, one line each. `late`: the time was over before all had been
    tried.
    """

    regions: tuple[Region, ...]
    peak_bytes: int
    untiled_peak_bytes: int
    extra_ns: int
    one_pass_ns: int
    nodes_added: int
    threads: int
    allow_rounding: bool
    recomputed: tuple[str, ...] = ()
    reasons: tuple[str, ...] = ()
    late: bool = False

    @property
    def extra_time(self) -> float:
        """The share of a run that tiling adds, by the cost model."""
        return self.extra_time_with(0)

    def extra_time_with(self, recomputed_ns: int) -> float:
        """The same where that much is recomputed beside it."""
        return (self.extra_ns + recomputed_ns) / self.one_pass_ns if self.one_pass_ns else 0.0

    def meets(self, budget_bytes: int | None) -> bool:
        """Whether the predicted peak is within the budget; always true without one."""
        return budget_bytes is None or self.peak_bytes <= budget_bytes
