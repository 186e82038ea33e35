"""What the proofs of Kumar et al. 2019 promise, checked on every step, and graphs to check it on.

The promises are those of the proofs with their constants, not those of the theorems' O-notation.
The benchmark of decompositions checks them on larger graphs.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import lru_cache

from models import TRAINING
from onnxremat.graph import Graph, Op, Tensor, TensorKind
from onnxremat.importer import bind_dimensions, from_proto, import_model, infer_types
from onnxremat.memory import MemoryRules, profile
from onnxremat.planners._decomposition import (
    Separators,
    check_tree,
    dependency_edges,
    separators,
    tree_decomposition,
)
from onnxremat.planners._recursion import Frame, tree_schedule
from onnxremat.schedule import Schedule, check, instances, without_unread


@lru_cache(maxsize=32)
def imported_graph(name: str, **options: object) -> Graph:
    """The graph of a builder's model, without running it."""
    loaded = from_proto(TRAINING[name](**options))
    return import_model(loaded, infer_types(loaded, bind_dimensions(loaded, {}))).graph


def random_graph(seed: int, most_ops: int = 60) -> Graph:
    """Ops with one or two outputs that read what was made not long before; every fourth graph has a
    second half that mirrors its first, as a training graph has. Some values are held outputs."""
    rng = random.Random(seed)
    tensors = [Tensor("x", (), "uint8", 1, TensorKind.INPUT)]
    ops: list[Op] = []
    count = rng.randint(1, most_ops)
    window = rng.randint(2, 8)
    half = (count + 1) // 2 if seed % 4 == 0 else count
    made: list[tuple[int, ...]] = []
    for v in range(count):
        reads = set()
        for _ in range(rng.randint(1, 3)):
            u = rng.randrange(max(0, v - window), v) if v else -1
            reads.add(rng.choice(made[u]) if u >= 0 else 0)
        if v >= half:
            reads |= {rng.choice(made[count - 1 - v]), rng.choice(made[v - 1])}
        outputs = tuple(range(len(tensors), len(tensors) + rng.choice((1, 1, 1, 2))))
        tensors += [Tensor(f"t{t}", (), "uint8", rng.randint(1, 9)) for t in outputs]
        made.append(outputs)
        ops.append(Op(f"op{v}", "Op", tuple(sorted(reads)), outputs, cost=rng.randint(1, 5)))
    every = [t for outputs in made for t in outputs]
    held = rng.sample(every, min(len(every), rng.randint(1, 4)))
    return Graph(tuple(tensors), tuple(ops), (0,), tuple(held))


def live_ops(graph: Graph, schedule: Schedule) -> Iterator[set[int]]:
    """For each step, the ops with an output that is held during it (section 2.1)."""
    starts: dict[int, list[tuple[int, int]]] = {}
    for number, made in enumerate(instances(graph, schedule)):
        end = len(schedule) if made.pinned else max(made.last_read, made.step) + 1
        starts.setdefault(made.step, []).append((number, graph.producer[made.tensor]))
        starts.setdefault(end, []).append((number, -1))
    held: dict[int, int] = {}
    for step in range(len(schedule)):
        for number, op in starts.get(step, ()):
            if op < 0:
                held.pop(number, None)
            else:
                held[number] = op
        yield set(held.values())


def decomposed(graph: Graph, *, own: bool = False) -> tuple[int, int, Separators]:
    """Width, bags and separators, all certified."""
    count, edges = len(graph.ops), dependency_edges(graph)
    found = tree_decomposition(count, edges, own=own)
    check_tree(count, edges, found)
    assert len(found.bags) <= count  # lemma 1
    parts = separators(count, found)
    check_separators(graph, parts, found.width, len(found.bags))
    return found.width, len(found.bags), parts


def check_separators(graph: Graph, parts: Separators, width: int, bags: int) -> None:
    """Lemma 3: every vertex is in one separator of at most width + 1, an edge leaves a piece only
    for separators above it, a piece has at most half the bags of the one above."""
    assert sorted(v for p in parts.pieces for v in p.separator) == list(range(len(graph.ops)))
    for index, piece in enumerate(parts.pieces):
        assert 0 < len(piece.separator) <= width + 1
        assert list(piece.separator) == sorted(piece.separator)
        assert all(parts.owner[v] == index for v in piece.separator)
        for child in piece.children:
            assert index < child < piece.end
            assert 2 * parts.pieces[child].bags <= piece.bags
            assert parts.pieces[child].depth == piece.depth + 1
    for u, v in dependency_edges(graph):
        a, b = sorted((parts.owner[u], parts.owner[v]))
        assert b < parts.pieces[a].end
    if bags:
        assert parts.depth <= math.ceil(math.log2(bags)) + 1


def check_tree_schedule(graph: Graph, parts: Separators, width: int, k: int, early: bool) -> int:
    """Theorem 5 on every step of TWRemat(k); the peak without unread repetitions.

    Live values are within: the separators on the stack; for each level, what one vertex of its
    separator reads; what each level's caller wants. (A piece that is not cut is one separator.)
    """
    allowed: list[set[int]] = []
    ran: list[int] = []
    cut = {}

    def watch(v: int, stack: Sequence[Frame]) -> None:
        within: set[int] = set()
        assert len(stack) <= parts.depth
        for frame in stack:
            if frame.leaf and frame.piece not in cut:
                cut[frame.piece] = parts.vertices(frame.piece)
            within.update(cut[frame.piece] if frame.leaf else parts.pieces[frame.piece].separator)
            within.update(frame.wanted)
            if frame.at >= 0:
                within.update(graph.predecessors(frame.at))
        ran.append(v)
        allowed.append(within)

    made = tree_schedule(graph, parts, k, early=early, watch=watch)
    assert made is not None
    assert list(made.steps) == ran
    wanted = {graph.producer[t] for t in graph.outputs}
    for step, live in enumerate(live_ops(graph, made)):
        assert live <= allowed[step] | wanted, step
    most = max(Counter(ran).values())
    assert most <= (width + 2) ** (parts.depth - 1)
    kept = without_unread(graph, made)
    check(graph, kept)
    peak = profile(graph, kept, MemoryRules()).peak_bytes
    assert peak <= profile(graph, made, MemoryRules()).peak_bytes
    return peak
