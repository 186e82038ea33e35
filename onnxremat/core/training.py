"""Training graphs: forward and backward told apart, and the forward cut into a chain of stages.

Terms. The *forward* ops are the ancestors of the loss; all others are *backward*, the gradients of
the loss and what only they need (masks, indices). A *stage* is a run of forward ops; what crosses
from one stage to the next is its *boundary*. After an *articulation point* exactly one value
crosses, as between the stages of Beaumont et al. 2024 (section 3). A training graph whose forward
has skip connections has few of them; `cut` says which part could not be made a chain, and cuts such
a part too, on request, where several values cross (a boundary is then a bundle, which the chain
model counts as one value).

A backward op belongs to the stage in whose backward step it runs: the last one in the forward's
order at which all it reads is at hand, so that gradients flow from stage to stage.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from heapq import heapify, heappop, heappush

from onnxremat.core.errors import ModelError
from onnxremat.core.graph import Graph

FLOATS = frozenset({"float", "float16", "bfloat16", "double"})

_GRADIENT = re.compile(
    r"(?<![a-z])(?:grad(?:s|ients?)?|adj(?:oints?)?)(?![a-z])|(?<=[a-z])(?-i:Grad)(?![a-z])", re.I
)
"""A word of a name that says gradient: `w.grad`, `adjoint/w`, `wGrad`, but no `upgraded`."""


class NotTraining(StrEnum):
    """Why a graph is not a training graph that can be split."""

    NO_LOSS = "no loss"
    SEVERAL_LOSSES = "several losses"
    NO_BACKWARD = "no backward part"
    GRADIENT_IN_FORWARD = "a gradient feeds the forward part"


class NotTrainingError(ModelError):
    """A graph cannot be split into forward and backward; `reason` says why, the message what of."""

    def __init__(self, reason: NotTraining, message: str) -> None:
        super().__init__(f"{reason.value}: {message}")
        self.reason = reason


@dataclass(frozen=True)
class TrainingSplit:
    """Forward and backward of a training graph; ops by index.

    `forward` and `backward` are in the graph's order. `reads[v]` are the tensors made by forward
    ops that a backward op v reads, ascending: what a plan must have at hand then. `is_forward[v]`
    tells the two apart.
    """

    graph: Graph
    loss: int
    forward: tuple[int, ...]
    backward: tuple[int, ...]
    reads: dict[int, tuple[int, ...]]
    is_forward: tuple[bool, ...]

    def forward_readers(self, tensor: int) -> tuple[int, ...]:
        """The forward ops that read a tensor."""
        return tuple(v for v in self.graph.readers[tensor] if self.is_forward[v])


def split_training(graph: Graph, loss: str | None = None) -> TrainingSplit:
    """Tell forward from backward. `loss` names the output that is the loss; None: it is found.

    It is found among the graph outputs that an op makes of floating-point type with one element:
    the only one; else the only one not named like a gradient, of those the only one with "loss" in
    its name, of those the only one of rank 0. Raises NotTrainingError. O(ops + reads).
    """
    index = _named_loss(graph, loss) if loss is not None else _found_loss(graph)
    ancestors = _ancestors(graph, index)
    is_forward = tuple(v in ancestors for v in range(len(graph.ops)))
    _refuse_gradients(graph, index, is_forward)
    backward = tuple(v for v, own in enumerate(is_forward) if not own)
    reads = {
        v: tuple(sorted({t for t in graph.ops[v].inputs if _made_by(graph, t, is_forward)}))
        for v in backward
    }
    if not any(reads.values()):
        raise NotTrainingError(
            NotTraining.NO_BACKWARD,
            f"nothing outside of what leads to {graph.tensors[index].name!r} reads its values, so "
            "there are no gradients; give a graph with forward, loss and gradients",
        )
    forward = tuple(v for v, own in enumerate(is_forward) if own)
    return TrainingSplit(graph, index, forward, backward, reads, is_forward)


def _made_by(graph: Graph, tensor: int, chosen: Sequence[bool]) -> bool:
    return graph.producer[tensor] >= 0 and chosen[graph.producer[tensor]]


def _named_loss(graph: Graph, name: str) -> int:
    for t in graph.outputs:
        if graph.tensors[t].name == name and graph.producer[t] >= 0:
            return t
    raise NotTrainingError(
        NotTraining.NO_LOSS, f"no graph output that an op makes is called {name!r}"
    )


def _found_loss(graph: Graph) -> int:
    candidates = [t for t in graph.outputs if graph.producer[t] >= 0 and _is_scalar(graph, t)]
    if not candidates:
        raise NotTrainingError(
            NotTraining.NO_LOSS, "no graph output is a floating-point value of one element"
        )
    names = {t: graph.tensors[t].name for t in candidates}
    rules = (
        [t for t in candidates if not _like_a_gradient(names[t])],
        [t for t in candidates if "loss" in names[t].lower()],
        [t for t in candidates if not graph.tensors[t].shape],
    )
    for kept in rules:
        if len(candidates) > 1:
            candidates = [t for t in candidates if t in kept] or candidates
    if len(candidates) > 1:
        listed = ", ".join(repr(names[t]) for t in candidates[:4])
        raise NotTrainingError(
            NotTraining.SEVERAL_LOSSES,
            f"the graph outputs {listed} may be it; let 'loss' be in the name of one only",
        )
    return candidates[0]


def _is_scalar(graph: Graph, t: int) -> bool:
    tensor = graph.tensors[t]
    return tensor.dtype in FLOATS and all(extent == 1 for extent in tensor.shape)


def _like_a_gradient(name: str) -> bool:
    return _GRADIENT.search(name) is not None


def _ancestors(graph: Graph, tensor: int) -> set[int]:
    found = {graph.producer[tensor]}
    todo = [graph.producer[tensor]]
    while todo:
        for u in graph.predecessors(todo.pop()):
            if u not in found:
                found.add(u)
                todo.append(u)
    return found


def _refuse_gradients(graph: Graph, loss: int, is_forward: Sequence[bool]) -> None:
    for t in graph.outputs:
        name = graph.tensors[t].name
        if t != loss and _made_by(graph, t, is_forward) and _like_a_gradient(name):
            raise NotTrainingError(
                NotTraining.GRADIENT_IN_FORWARD,
                f"the loss {graph.tensors[loss].name!r} depends on the graph output {name!r}, "
                "which is named like a gradient (a gradient penalty?); this cannot be split",
            )
    for v, op in enumerate(graph.ops):
        if is_forward[v] and op.op_type.endswith("Grad"):
            raise NotTrainingError(
                NotTraining.GRADIENT_IN_FORWARD,
                f"the loss {graph.tensors[loss].name!r} depends on {op.name!r}, a {op.op_type}; "
                "this cannot be split",
            )


def forward_order(split: TrainingSplit) -> tuple[int, ...]:
    """The forward ops, each as late as its readers allow: depth first from the loss, deepest input
    first.

    What does not depend on the main path (transposed weights, masks made of inputs) thus stands
    right before its first reader and not at the front, where it would cross every boundary.
    """
    graph = split.graph
    depth: dict[int, int] = {}
    for v in split.forward:
        depth[v] = 1 + max((depth[u] for u in graph.predecessors(v)), default=0)
    done: set[int] = set()
    order: list[int] = []
    todo = [(graph.producer[split.loss], False)]
    while todo:
        v, ready = todo.pop()
        if ready:
            order.append(v)
        elif v not in done:
            done.add(v)
            todo.append((v, True))
            shallow_first = sorted(graph.predecessors(v), key=lambda u: (depth[u], -u))
            todo += [(u, False) for u in shallow_first if u not in done]
    return tuple(order)


@dataclass(frozen=True)
class Stages:
    """A training graph as a chain of stages, the loss in the last one.

    `forward[i]` and `backward[i]` are the ops of stage i in the order to run them. `boundaries[i]`
    are the tensors that cross into stage i, `boundaries[0]` and the last one being empty.
    `gradients[i]` are those made by the backward of stages from i on that are read by the backward
    of stages below i, or held to the end.
    `notes` say, for people, which parts of the forward are no chain.
    """

    split: TrainingSplit
    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]
    boundaries: tuple[tuple[int, ...], ...]
    gradients: tuple[tuple[int, ...], ...]
    notes: tuple[str, ...]


def cut(
    split: TrainingSplit,
    order: Sequence[int] | None = None,
    *,
    most: int = 200,
    bundles: bool = False,
) -> Stages:
    """Cut the forward into at most `most` stages, in `order` (None: `forward_order`).

    Without `bundles` at articulation points only; with them anywhere. Too many stages are merged:
    again and again the boundary goes that has the most bytes for the time of the two stages that
    it parts. O(ops * log ops), and what crosses, summed over all places.
    """
    order = tuple(forward_order(split) if order is None else order)
    crossing = _crossings(split, order)
    places = [p for p, tensors in enumerate(crossing[:-1]) if bundles or len(tensors) == 1]
    places = _merged(split.graph, order, crossing, places, most)
    ends = [*(p + 1 for p in places), len(order)]
    forward = tuple(order[a:b] for a, b in zip([0, *ends[:-1]], ends, strict=True))
    boundaries = ((), *(tuple(sorted(crossing[p])) for p in places), ())
    notes = () if bundles else _notes(split.graph, forward, order, crossing)
    return stages_of(split, forward, boundaries, notes)


def stages_of(
    split: TrainingSplit,
    forward: tuple[tuple[int, ...], ...],
    boundaries: tuple[tuple[int, ...], ...],
    notes: tuple[str, ...] = (),
) -> Stages:
    """Stages of given forward ops, with the backward ops that belong to each."""
    levels = backward_levels(split, forward)
    backward: list[list[int]] = [[] for _ in forward]
    for v in split.backward:
        backward[levels[v]].append(v)
    gradients = _gradients(split.graph, levels, len(forward))
    return Stages(split, forward, tuple(map(tuple, backward)), boundaries, gradients, notes)


def _crossings(split: TrainingSplit, order: Sequence[int]) -> list[set[int]]:
    """By position: the tensors made up to it that forward ops behind it read."""
    place = {v: p for p, v in enumerate(order)}
    crossing: list[set[int]] = [set() for _ in order]
    for p, v in enumerate(order):
        for t in split.graph.ops[v].outputs:
            last = max((place[u] for u in split.forward_readers(t)), default=p)
            for q in range(p, last):
                crossing[q].add(t)
    return crossing


def _merged(
    graph: Graph, order: Sequence[int], crossing: Sequence[set[int]], places: list[int], most: int
) -> list[int]:
    sums = [0]
    for v in order:
        sums.append(sums[-1] + graph.ops[v].cost)
    nbytes = {p: 1 + sum(graph.tensors[t].nbytes for t in crossing[p]) for p in places}
    ends = [-1, *places, len(order) - 1]
    before = dict(zip(places, ends, strict=False))
    behind = dict(zip(places, ends[2:], strict=False))

    def time_for_bytes(p: int) -> float:
        return (sums[behind[p] + 1] - sums[before[p] + 1] + 1) / nbytes[p]

    worth = {p: time_for_bytes(p) for p in places}
    queue = [(worth[p], p) for p in places]
    heapify(queue)
    while len(worth) >= most and worth:
        value, worst = heappop(queue)
        if worth.get(worst) != value:
            continue
        del worth[worst]
        low, high = before[worst], behind[worst]
        for p, neighbour, end in ((low, behind, high), (high, before, low)):
            if p in worth:
                neighbour[p] = end
                worth[p] = time_for_bytes(p)
                heappush(queue, (worth[p], p))
    return sorted(worth)


def _notes(
    graph: Graph,
    forward: Sequence[Sequence[int]],
    order: Sequence[int],
    crossing: Sequence[set[int]],
) -> tuple[str, ...]:
    """What could not be cut, largest part first: stages inside of which several values cross."""
    total = max(1, sum(graph.ops[v].cost for v in order))
    parts = []
    begin = 0
    for stage in forward:
        inside = crossing[begin : begin + len(stage) - 1]
        begin += len(stage)
        narrowest = min(inside, key=len, default=set())
        if len(narrowest) < 2:
            continue
        time = sum(graph.ops[v].cost for v in stage)
        names = ", ".join(repr(graph.tensors[t].name) for t in sorted(narrowest)[:3])
        parts.append(
            (
                -time,
                f"{len(stage)} ops from {graph.ops[stage[0]].name!r} to "
                f"{graph.ops[stage[-1]].name!r} ({100 * time / total:.0f}% of the forward time) "
                f"are one stage: at every point inside {len(narrowest)} or more values cross, "
                f"such as {names}",
            )
        )
    return tuple(text for _, text in sorted(parts))


def backward_levels(split: TrainingSplit, forward: Iterable[Sequence[int]]) -> dict[int, int]:
    """The stage of each backward op.

    At most that of every backward op it reads, and of the last forward reader (the maker, if there
    is none) of every forward value it reads: there the value is at hand. Masks, which read forward
    values only, wait for their first reader, at most until the stage that made the values.
    """
    graph = split.graph
    stages = [tuple(stage) for stage in forward]
    of = {v: i for i, stage in enumerate(stages) for v in stage}
    levels: dict[int, int] = {}
    masks: list[int] = []
    masked: set[int] = set()
    for v in split.backward:
        made = [graph.producer[t] for t in graph.ops[v].inputs if graph.producer[t] >= 0]
        gradients = {u for u in made if not split.is_forward[u]}
        limits = [levels[u] for u in gradients]
        for t in split.reads[v]:
            readers = split.forward_readers(t)
            limits.append(max((of[u] for u in readers), default=of[graph.producer[t]]))
        levels[v] = min(limits, default=len(stages) - 1)
        if gradients <= masked and (not gradients or len(made) == 1):
            masks.append(v)
            masked.add(v)
    for v in reversed(masks):
        wanted = [levels[u] for t in graph.ops[v].outputs for u in graph.readers[t]]
        lowest = [of[graph.producer[t]] for t in split.reads[v]]
        if wanted:
            levels[v] = min(levels[v], max([*wanted, *lowest]))
    return levels


def _gradients(graph: Graph, levels: dict[int, int], count: int) -> tuple[tuple[int, ...], ...]:
    held = set(graph.outputs)
    result: list[list[int]] = [[] for _ in range(count + 1)]
    for v, level in levels.items():
        for t in graph.ops[v].outputs:
            last = (
                0
                if t in held
                else min((levels[u] + 1 for u in graph.readers[t]), default=level + 1)
            )
            for i in range(last, level + 1):
                result[i].append(t)
    return tuple(tuple(sorted(tensors)) for tensors in result)
