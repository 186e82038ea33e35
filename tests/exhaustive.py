"""The least time of any schedule within a budget, by shortest paths over what has run and is held.

For the memory rules of the papers: no in-place, unread values are not held. Unlike a sum over
schedules this has no limit on how often an op runs. A state is the set of ops that have run and the
set of tensors held; executing an op needs its inputs, holds its outputs beside all that is held, and
then keeps any part of it. What may be kept but is not needed any more is never better than less.
"""

import heapq

from onnxremat.core.graph import Graph, TensorKind
from onnxremat.core.memory import MemoryRules


def least_time(
    graph: Graph, rules: MemoryRules, budget_bytes: int, *, fixed_order: bool = False
) -> int | None:
    """The least time within the budget, None if there is no schedule. With `fixed_order` first
    executions come in the order of the ops. O(4^n) states for n tensors: for up to 8 ops."""
    if rules.inplace or rules.unread_held:
        raise ValueError("only for rules without in-place, where unread values are not held")
    tensors = [t for op in graph.ops for t in op.outputs]
    bit = {t: 1 << i for i, t in enumerate(tensors)}
    size = {bit[t]: rules.nbytes(graph.tensors[t]) for t in tensors}
    reads = [
        sum(bit[t] for t in set(op.inputs) if graph.tensors[t].kind is TensorKind.ACTIVATION)
        for op in graph.ops
    ]
    makes = [sum(bit[t] for t in op.outputs) for op in graph.ops]
    scratch = [op.workspace_bytes if rules.count_workspace else 0 for op in graph.ops]
    outputs = sum(bit[t] for t in graph.outputs if t in bit)
    everything = (1 << len(graph.ops)) - 1
    room = budget_bytes - rules.constant_bytes(graph)

    def nbytes(held: int) -> int:
        return sum(n for b, n in size.items() if held & b)

    queue = [(0, 0, 0)]
    best = {(0, 0): 0}
    while queue:
        time, done, held = heapq.heappop(queue)
        if best[done, held] < time:
            continue
        if done == everything and held & outputs == outputs:
            return time
        for v, op in enumerate(graph.ops):
            first = not done >> v & 1
            if reads[v] & ~held or (not first and not op.recomputable):
                continue
            if first and fixed_order and done != (1 << v) - 1:
                continue
            during = held | makes[v]
            if nbytes(during) + scratch[v] > room:
                continue
            after = done | (1 << v)
            kept = during
            while True:
                known = best.get((after, kept))
                if known is None or time + op.cost < known:
                    best[after, kept] = time + op.cost
                    heapq.heappush(queue, (time + op.cost, after, kept))
                if not kept:
                    break
                kept = (kept - 1) & during
    return None


def least_peak(graph: Graph, rules: MemoryRules, *, fixed_order: bool = False) -> int:
    """The smallest budget with a schedule, by bisection."""
    low, high = (
        -1,
        sum(rules.nbytes(t) for t in graph.tensors)
        + max((op.workspace_bytes for op in graph.ops), default=0),
    )
    while high - low > 1:
        middle = (low + high) // 2
        if least_time(graph, rules, middle, fixed_order=fixed_order) is None:
            low = middle
        else:
            high = middle
    return high
