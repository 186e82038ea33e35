"""Values that tiles make again: which can be dropped, and what is held instead.

A dropped value is made again, in tiles, of what is held where it is read. That may be far back: of
a block whose end alone is held nothing is there but its input, and all of it would be made again.
So something small is held instead: of all sets of values between those that are held anyway and the
dropped one, that whose bytes, and the time to make the dropped one from there, cost least. It is a
minimum cut. Each op between is made again (its nanoseconds are cut) or not, and a value that one
which is made again reads of one that is not is held (its bytes are cut, once for all readers).
"""

from collections.abc import Collection, Iterable
from collections.abc import Sequence as Many

from onnxremat.tiling.sequence import Drop, Sequence

PRICE = 1.0
"""Holding as much as the model's peak costs so many runs."""
WORTHWHILE = 0.6
"""What is held instead has at most this share of the bytes of what is dropped."""
MOST_OPS_AGAIN = 1_000
"""Made again are at most so many of the last ops before a value."""
MOST_ASKED = 40
"""So many of the largest values are asked for what would be held instead."""
_FORCED = 1 << 50


def dropping(sequence: Sequence, drops: Collection[Drop], uncut: Collection[int]) -> Sequence:
    """The sequence without some values, and with what is held instead of them. `uncut`: ops that
    tiles do not make again."""
    made = sequence.without(drops)
    for t in dict.fromkeys(t for t, _ in drops):
        found = held_instead(made, t, uncut)
        made = made.keeping(found or (), sequence.imported.graph.readers[t][-1])
    return made


def droppable(sequence: Sequence, uncut: Collection[int]) -> list[Drop]:
    """Of the `MOST_ASKED` largest tensors with a gap in their life those of which little is held
    instead, behind their widest gap; the largest first, ties by the length of the gap."""
    found = []
    for t, nbytes in enumerate(sequence.nbytes):
        gaps = sequence.gaps(t) if nbytes else []
        if gaps:
            last, far = max(gaps, key=lambda gap: gap[1] - gap[0])
            found.append((-nbytes, last - far, t, last))
    drops = [(t, last) for *_, t, last in sorted(found)[:MOST_ASKED]]
    return [drop for drop in drops if saved_bytes(sequence, (), drop, uncut) is not None]


def blocking(
    sequence: Sequence,
    drops: Many[Drop],
    cuts: Iterable[int],
    least_bytes: float,
    uncut: Collection[int],
) -> Drop | None:
    """What to drop beside `drops` so that less is held at one of some cuts: what saves most there,
    of values of at least so many bytes. None if nothing saves anything."""
    large = [
        (t, gaps)
        for t, nbytes in enumerate(sequence.nbytes)
        if nbytes >= max(1, least_bytes) and (gaps := sequence.gaps(t))
    ]
    asked = dict[Drop, None]()
    for c in cuts:
        for t, gaps in large:
            held_until = sequence.last_read[t]
            if sequence.imported.graph.producer[t] < c <= held_until:
                before = [last for last, _ in gaps if last < min(c, held_until)]
                if before:
                    asked.setdefault((t, before[-1]))
    savings = [(saved_bytes(sequence, drops, drop, uncut), drop) for drop in asked]
    known = [(saved, drop) for saved, drop in savings if saved is not None]
    return max(known, key=lambda one: one[0])[1] if known else None


def saved_bytes(
    sequence: Sequence, drops: Many[Drop], drop: Drop, uncut: Collection[int]
) -> int | None:
    """Bytes that are held no longer when a value is dropped, without those that are held instead of
    it; None if those are too many, or it cannot be made again."""
    (t, _), nbytes, last = drop, sequence.nbytes, sequence.last_read
    held = held_instead(sequence.without((*drops, drop)), t, uncut)
    if held is None:
        return None
    more = sum(nbytes[u] for u in held if last[u] < sequence.imported.graph.readers[t][-1])
    return nbytes[t] - more if more <= WORTHWHILE * nbytes[t] else None


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
