"""Fast orders without recomputation: starting points for the search, and good enough for small
graphs. All are O(reads x log ops) and topological by construction.
"""

import heapq
import random
from collections.abc import Callable, Iterator

from onnxremat.core.graph import Graph, TensorKind
from onnxremat.core.memory import MemoryRules
from onnxremat.core.schedule import Schedule

Rank = Callable[[int], float]


def candidate_orders(graph: Graph, rules: MemoryRules, seed: int, tries: int) -> Iterator[Schedule]:
    """Greedy and depth-first orders, then `tries` randomised greedy orders."""
    count = len(graph.ops)
    yield greedy_order(graph, rules, lambda v: v)
    yield greedy_order(graph, rules, lambda v: -v)
    yield greedy_order(graph, rules, None)
    yield depth_first_order(graph, rules, largest_first=True)
    yield depth_first_order(graph, rules, largest_first=False)
    source = random.Random(seed)
    for _ in range(tries):
        noise = [source.random() for _ in range(count)]
        yield greedy_order(graph, rules, noise.__getitem__, blur=source.choice((0.0, 0.02, 0.1)))


def greedy_order(
    graph: Graph, rules: MemoryRules, rank: Rank | None, blur: float = 0.0
) -> Schedule:
    """Always run the ready op that adds the fewest bytes once its inputs are freed.

    Ties go by `rank`, lowest first; None prefers the op that became ready last. `blur` rounds
    the bytes to that share of the largest tensor, so that near ties are ties.
    """
    size = [rules.nbytes(t) for t in graph.tensors]
    grain = max(1, int(blur * max(size, default=1)))
    readers_left = [len(readers) for readers in graph.readers]
    held = set(graph.outputs)
    missing = [len(graph.predecessors(v)) for v in range(len(graph.ops))]
    freed_by: dict[int, set[int]] = {}
    serial = 0
    heap: list[tuple[int, float, int]] = []

    def growth(v: int) -> int:
        op = graph.ops[v]
        made = sum(size[t] for t in op.outputs if readers_left[t] or t in held or rules.unread_held)
        freed = sum(size[t] for t in freed_by.get(v, ()))
        return (made - freed) // grain

    def push(v: int) -> None:
        nonlocal serial
        serial += 1
        heapq.heappush(heap, (growth(v), rank(v) if rank else -serial, v))

    def note_last_reader(t: int) -> None:
        if readers_left[t] == 1 and t not in held and graph.producer[t] >= 0:
            for v in graph.readers[t]:
                if v not in done:
                    freed_by.setdefault(v, set()).add(t)
                    if missing[v] == 0:
                        push(v)

    done: set[int] = set()
    steps = []
    for v, count in enumerate(missing):
        if count == 0:
            push(v)
    while heap:
        v = heapq.heappop(heap)[2]
        if v in done:
            continue
        done.add(v)
        steps.append(v)
        op = graph.ops[v]
        for t in dict.fromkeys(op.inputs):
            if graph.tensors[t].kind is TensorKind.ACTIVATION:
                readers_left[t] -= 1
                note_last_reader(t)
        successors = {r for t in op.outputs for r in graph.readers[t]}
        for t in op.outputs:
            note_last_reader(t)
        for r in sorted(successors):
            missing[r] -= 1
            if missing[r] == 0:
                push(r)
    return Schedule(tuple(steps))


def depth_first_order(graph: Graph, rules: MemoryRules, *, largest_first: bool) -> Schedule:
    """A post-order of the graph from its sinks, visiting the producers of large (or small)
    inputs first.
    """
    size = [rules.nbytes(t) for t in graph.tensors]
    sign = -1 if largest_first else 1

    def producers(v: int) -> list[int]:
        inputs = sorted(graph.ops[v].inputs, key=lambda t: (sign * size[t], t), reverse=True)
        return [graph.producer[t] for t in inputs if graph.producer[t] >= 0]

    done = [False] * len(graph.ops)
    steps = []
    sinks = [v for v, op in enumerate(graph.ops) if not any(graph.readers[t] for t in op.outputs)]
    for sink in sinks:
        stack = [(sink, False)]
        while stack:
            v, expanded = stack.pop()
            if done[v]:
                continue
            if expanded:
                done[v] = True
                steps.append(v)
                continue
            stack.append((v, True))
            stack.extend((u, False) for u in producers(v) if not done[u])
    return Schedule(tuple(steps))
