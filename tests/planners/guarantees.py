"""What the proofs of Kumar et al. 2019 promise, checked on every step, and graphs to check it on.

The promises are those of the proofs with their constants, not those of the theorems' O-notation.
The benchmark of decompositions checks them on larger graphs.
"""

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache, lru_cache

from models import TRAINING
from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.schedule import Schedule, check, instances, without_unread
from onnxremat.importer import bind_dimensions, from_proto, import_model, infer_types
from onnxremat.planners.decompositions.path_decomposition import Spined
from onnxremat.planners.decompositions.recursion import Frame, tree_schedule, wanted_ops
from onnxremat.planners.decompositions.spine_recursion import (
    Interleaved,
    Item,
    Spine,
    SpinePart,
    Stretch,
    Whole,
)
from onnxremat.planners.decompositions.tree_decomposition import (
    Separators,
    check_tree,
    dependency_edges,
    separators,
    tree_decomposition,
)

LIGHT = tuple(name for name in TRAINING if name not in {"nasnet_train", "mobilenet_train"})
"""Training graphs that the tests look at; the benchmark looks at all of them."""


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


def most_steps(p: int, bags: int) -> int:
    """The most steps of PWRemat with bags of at most p vertices (theorem 22, derived anew).

    An interleaved schedule on b bags has at most 2p tuples in its inner part, the j-th of j
    schedules from fewer than b / 2 bags of at most p - 1 vertices (lemma 23): p (2p + 1) of them.
    The published proof counts (2p)^2 for them, drops that to 2 p^2 with the size of their stretch,
    and sums both sides of PWRemat as one, which is right only if time grows at least linearly.
    """
    return _most_whole(p, bags)


@cache
def _most_whole(p: int, bags: int) -> int:
    if bags <= 0:
        return 0
    if p <= 2:
        return p * bags
    return p + max(
        _most_parts(p, low) + _most_parts(p, bags - 1 - low) for low in range((bags + 1) // 2)
    )


@cache
def _most_parts(p: int, bags: int) -> int:
    if bags <= 0:
        return 0
    inner, outer = (bags + 1) // 2 - 1, bags - (bags + 1) // 2
    repeated = p * (2 * p + 1) * _most_whole(p - 1, inner)
    return repeated + _most_parts(p, inner) + _most_parts(p, outer) + p


def most_steps_closed(p: int, bags: int) -> float:
    """A closed form above `most_steps`: 2 b times q (l (q + 1/2) + 1) for each q from 3 to p, where
    l = floor(log2 b) + 1 are the levels: O(2^p (p!)^2 b log^(p - 2) b), as in theorem 22."""
    levels = math.floor(math.log2(bags)) + 1
    return 2.0 * bags * math.prod(q * (levels * (q + 0.5) + 1) for q in range(3, p + 1))


def most_live(p: int, bags: int, reads: int) -> int:
    """The most live values of PWRemat, outputs held for the caller aside, if an op reads at most
    `reads` others.

    For each width q from 2 to p: a bag, and what one vertex reads; at each of l = floor(log2 b) + 1
    levels of the stretch two bags and what one vertex reads; and for the interleaved schedules that
    wait meanwhile, one on the other side and one beyond, two bags at each level. That is
    O(p^2 log b) values. The published bound has 2^p log^(p - 2) b, because it adds up the peaks of
    schedules that run one after another; of one that has ended only what is read later stays.
    """
    levels = math.floor(math.log2(bags)) + 1
    return 3 + sum(q + reads + levels * (6 * q + reads) for q in range(2, p + 1))


def check_path_schedule(graph: Graph, spined: Spined, most_checked: int = 4000) -> int | None:
    """Theorem 22 on the full schedule, and that `pruned` is that schedule without what nobody
    reads. The number of steps, or None if there are too many to be looked at one by one.

    Claim 1: a schedule of PWRemat is valid, given its known vertices and those outside of its bags;
    claim 2: an interleaved schedule, given also the earlier vertices of its bag and of the bags in
    which it was condensed. (Property 18 leaves out the latter: what has been condensed away is read
    by later tuples.) Lemma 23: bags shrink from call to call. Live values are within the bags of
    the calls in progress and of the interleaved schedules that wait, and what one vertex reads.
    """
    spine = Spine(graph, spined)
    top = spine.top()
    p, bags = spined.path.width + 1, len(spine.bags)
    if _steps(spine, top, {}, most_checked) > most_checked:
        return None
    steps: list[int] = []
    allowed: list[set[int]] = []
    _walk(spine, top, steps, allowed, set(), p)
    assert len(steps) <= most_steps(p, bags) <= most_steps_closed(p, bags)
    full = Schedule(tuple(spine.ops[v] for v in steps))
    held = {graph.producer[t] for t in graph.outputs}
    reads = max(len(r) for r in spine.reads)
    for step, live in enumerate(live_ops(graph, full)):
        within = {spine.ops[v] for v in allowed[step]}
        assert live <= within | held, step
        assert len(live - held) <= most_live(p, bags, reads)
    kept = spine.pruned(wanted_ops(graph), most_steps=10**9, most_items=10**9)
    assert kept == without_unread(graph, full)
    check(graph, kept)
    return len(steps)


def _steps(spine: Spine, item: Item, known: dict[Item, int], most: int) -> int:
    """The steps of an item; some number above `most` if there are more."""
    if isinstance(item, int):
        return 1
    if item not in known:
        total = 0
        for part in spine.items(item):
            total += _steps(spine, part, known, most)
            if total > most:
                break
        known[item] = total
    return known[item]


def _waiting(spine: Spine, of: Interleaved, done: int) -> set[int]:
    """The vertices that an interleaved schedule may still read, of those that it has made for
    itself: its middle bag, and so on for the part at work. It has been executed up to the tuple of
    the last vertex of its bag that is not after `done`."""
    last = _last(of.bag, done)
    if last < 0 or of.stretch.last < of.stretch.first or of.known.issuperset(of.bag):
        return set()
    split = spine.split(of)
    found = {y for y in split.through if y <= last}
    return found | _waiting(spine, split.beyond if last < split.latest else split.beneath, last)


def _last(bag: Sequence[int], most: int) -> int:
    """The last vertex of a bag that is not after `most`; -1: none."""
    return max((y for y in bag if y <= most), default=-1)


def _done(items: Sequence[Item], of: Interleaved) -> int:
    """The vertex of the last tuple of an interleaved schedule among the items; -1: none."""
    return max(
        (part.x for part in items if isinstance(part, SpinePart) and part.of == of), default=-1
    )


def _walk(
    spine: Spine, item: Item, steps: list[int], allowed: list[set[int]], above: set[int], p: int
) -> None:
    """Append the steps of an item with what may be live at each, and check the claims."""
    if isinstance(item, int):
        steps.append(item)
        allowed.append({*above, item})
        return
    begin, items = len(steps), spine.items(item)
    if isinstance(item, Whole):
        sizes = [len(spine.bag(i, item.u)) for i in range(item.first, item.last + 1)]
        assert max(sizes, default=0) <= p, "lemma 23"
        p = max(sizes, default=0)
        stretch, given = Stretch(item.first, item.last, item.u), item.known | item.held
    else:
        of, x = item.of, item.x
        stretch = of.stretch
        given = of.known | of.held | {*of.bag[: of.bag.index(x)]} | _waiting(spine, of, x - 1)
    for index, part in enumerate(items):
        held = _held(spine, item, items, index)
        less = p - 1 if isinstance(item, SpinePart) and isinstance(part, Whole) else p
        _walk(spine, part, steps, allowed, above | held, less)
    done: set[int] = set()
    ran = [*steps[begin:], *([item.x] if isinstance(item, SpinePart) else [])]
    for v in ran:
        for u in spine.reads[v]:
            known = u in given or u in done or not spine.within(u, stretch)
            assert v in given or known, f"{item} executes {v} before {u}"
        done.add(v)
    if isinstance(item, Whole) and spine.within(item.u, stretch):
        assert item.u in given or item.u in done


def _held(spine: Spine, item: Whole | SpinePart, items: Sequence[Item], index: int) -> set[int]:
    """What a call holds while the item at `index` of its items runs."""
    part = items[index]
    last = item.u if isinstance(item, Whole) else item.x
    target = next((y for y in items[index:] if isinstance(y, int)), last)
    held = set(spine.reads[target])
    if isinstance(item, Whole):
        for side in {other.of for other in items if isinstance(other, SpinePart)}:
            held.update(side.bag)
            if not isinstance(part, SpinePart) or side != part.of:
                held |= _waiting(spine, side, _done(items[:index], side))
        if not any(isinstance(other, SpinePart) for other in items):
            stretch = Stretch(item.first, item.last, item.u)
            shared = range(max(item.first, spine.left[target]), min(item.last, spine.right[target]))
            for i in (*shared, min(item.last, spine.right[target])):
                held.update(spine.bag(i, stretch.cut))
        return held
    split = spine.split(item.of)
    held |= {*split.through, *item.of.bag}
    if not isinstance(part, SpinePart):
        for after in (split.beyond, split.beneath):
            done = _done(items[:index], after)
            held |= _waiting(spine, after, max(done, _last(item.of.bag, item.x - 1)))
    return held
