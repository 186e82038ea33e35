"""Offsets for blocks: greedy rules first, then attempts of a search."""

from collections.abc import Sequence

from onnxremat.offsets._best import Best
from onnxremat.offsets._problem import as_problem
from onnxremat.offsets.blocks import Block, Placement


def place(
    blocks: Sequence[Block],
    *,
    alignment_bytes: int = 64,
    seconds: float = 10.0,
    capacity_bytes: int | None = None,
    iterations: int | None = None,
    seed: int = 0,
) -> Placement:
    """A placement of `blocks` in a small arena, the smallest if it says `proved`.

    The greedy rules always run. With `capacity_bytes` the work then ends as soon as the arena is
    no larger, or that is proved to be impossible (`bound_bytes` is above the capacity); without,
    when the arena is proved the smallest. It also ends after `seconds` with the best found, and
    after `iterations` attempts of the search (None: only the time limits). The same blocks,
    options, seed and iterations give the same placement; the clock only cuts it short. Compiling
    on first use takes some ten seconds, which are not counted, and is cached on disk.

    Raises ValueError if the alignment is not positive. The greedy rules are O(n^2); the search is
    exponential at worst, and one dive of it O(n * the sections of all blocks).
    """
    if alignment_bytes < 1:
        raise ValueError(f"the alignment is {alignment_bytes} bytes, but must be positive")
    problem = as_problem(blocks, alignment_bytes)
    enough = None if capacity_bytes is None else capacity_bytes // problem.unit_bytes
    best = Best(problem, enough, seconds)
    if not best.is_smallest:
        # Only here: these modules load the compiler.
        from onnxremat.offsets._attempts import attempt
        from onnxremat.offsets._greedy import greedy

        greedy(problem, best)
        attempt(problem, best, iterations, seed)
    offsets = [0] * len(blocks)
    for i, offset in zip(problem.source, best.offsets, strict=True):
        offsets[i] = int(offset) * problem.unit_bytes
    return Placement(
        tuple(offsets),
        best.arena * problem.unit_bytes,
        best.bound * problem.unit_bytes,
        best.method,
        alignment_bytes,
    )
