"""Values that tiles make again: which can be dropped, and what is held instead.

A dropped value is made again, in tiles, of what is held where it is read. That may be far back: of
a block whose end alone is held nothing is there but its input, and all of it would be made again.
So something small is held instead: of all sets of values between those that are held anyway and the
dropped one, that whose bytes, and the time to make the dropped one from there, cost least. It is a
minimum cut. Each op between is made again (its nanoseconds are cut) or not, and a value that one
which is made again reads of one that is not is held (its bytes are cut, once for all readers).
"""

from collections.abc import Collection

from onnxremat.tiling.sequence import Sequence

PRICE = 1.0
"""Holding as much as the model's peak costs so many runs."""
WORTHWHILE = 0.6
"""What is held instead has at most this share of the bytes of what is dropped."""
MOST_OPS_AGAIN = 1_000
"""Made again are at most so many of the last ops before a value."""
MOST_ASKED = 40
"""So many of the largest values are asked for what would be held instead."""
_FORCED = 1 << 50


def dropping(sequence: Sequence, tensors: Collection[int], uncut: Collection[int]) -> Sequence:
    """The sequence without some values behind the gaps in their lives, and with what is held
    instead of them. `uncut`: ops that tiles do not make again."""
    made = sequence.without(tensors)
    for t in tensors:
        if t in made.dropped:
            found = held_instead(made, t, uncut)
            made = made.keeping(found or (), sequence.imported.graph.readers[t][-1])
    return made


def droppable(sequence: Sequence, uncut: Collection[int]) -> list[int]:
    """Of the `MOST_ASKED` largest tensors with a gap in their life those of which little is held
    instead, the largest first; ties by the length of the gap."""
    graph, found = sequence.imported.graph, []
    for t in range(len(graph.tensors)):
        near = sequence.gap(t)
        if near is not None and sequence.nbytes[t]:
            found.append((-sequence.nbytes[t], near - graph.readers[t][-1], t))
    return [t for *_, t in sorted(found)[:MOST_ASKED] if _pays(sequence, t, uncut)]


def _pays(sequence: Sequence, t: int, uncut: Collection[int]) -> bool:
    held = held_instead(sequence.without([t]), t, uncut)
    if held is None:
        return False
    return sum(sequence.nbytes[u] for u in held) <= WORTHWHILE * sequence.nbytes[t]


def held_instead(sequence: Sequence, t: int, uncut: Collection[int]) -> tuple[int, ...] | None:
    """The values to hold until a dropped one is read for the last time, beside those that are; None
    if it cannot be made again. O(minimum cut among its last `MOST_OPS_AGAIN` ancestors)."""
    # Here, because it takes longer to import than most models to plan.
    from ortools.graph.python import max_flow  # type: ignore[import-untyped]

    graph = sequence.imported.graph
    until = graph.readers[t][-1]
    per_byte = PRICE * graph.total_cost() / max(1, *sequence.step_bytes)
    ops = _ancestors(sequence, t, until)
    flow, sink = max_flow.SimpleMaxFlow(), len(graph.ops)
    aside = sink + 1
    for v in ops:
        cost = _FORCED if v in uncut else max(1, graph.ops[v].cost)
        flow.add_arc_with_capacity(v, sink, cost)
    read = {u for v in ops for u in graph.ops[v].inputs if not _is_there(sequence, u, until)}
    for u in read:
        never = u in sequence.dropped or sequence.nbytes[u] > WORTHWHILE * sequence.nbytes[t]
        holding = _FORCED if never else 1 + round(per_byte * sequence.nbytes[u])
        made = graph.producer[u]
        flow.add_arc_with_capacity(aside + u, made if made in ops else sink, holding)
        for v in ops & set(graph.readers[u]):
            flow.add_arc_with_capacity(v, aside + u, _FORCED)
    if flow.solve(graph.producer[t], sink) != flow.OPTIMAL or flow.optimal_flow() >= _FORCED:
        return None
    again = set(flow.get_source_side_min_cut())
    return tuple(sorted(u for u in read if aside + u in again and graph.producer[u] not in again))


def _is_there(sequence: Sequence, u: int, until: int) -> bool:
    """Whether a value is held at op `until` anyway."""
    return sequence.imported.graph.producer[u] < 0 or sequence.last_read[u] >= until


def _ancestors(sequence: Sequence, t: int, until: int) -> set[int]:
    """The op that makes a value, and the last of those before it that make what is not there."""
    graph = sequence.imported.graph
    found, pending = set[int](), [graph.producer[t]]
    while pending and len(found) < MOST_OPS_AGAIN:
        pending.sort()
        v = pending.pop()
        if v not in found:
            found.add(v)
            pending += [
                graph.producer[u] for u in graph.ops[v].inputs if not _is_there(sequence, u, until)
            ]
    return found
