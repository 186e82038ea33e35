"""Exhaustive searches over the sequences of small chains, to test the dynamic programs.

They know Table 1 of Beaumont et al. 2024 and nothing of theorems: Dijkstra's search over what is
stored, with every operation allowed whose inputs are stored and whose output is not. As in the
table, only operations let go of values (definition 3.1): to hold abar[i] without a[i] would
sometimes be faster, but F_all keeps its input.
"""

import heapq
import random
from collections.abc import Iterator
from typing import NamedTuple

from onnxremat.planners.chains.chain_model import Chain


class State(NamedTuple):
    """Bit i of `plain`: a[i] is stored; of `saved`: abar[i]; of `kept`: F_ck or F_all of stage i
    ran and its backward has not. delta[gradient] is the one stored."""

    gradient: int
    plain: int
    saved: int
    kept: int


def held(chain: Chain, state: State) -> int:
    plain = sum(size for i, size in enumerate(chain.activation_bytes) if state.plain >> i & 1)
    saved = sum(size for i, size in enumerate(chain.saved_bytes) if state.saved >> i & 1)
    return plain + saved + chain.gradient_bytes[state.gradient]


def moves(chain: Chain, state: State, persistent: bool) -> Iterator[tuple[State, int, int]]:
    """What can follow: the next state, the time, and the bytes needed beside what is stored."""
    gradient, plain, saved, kept = state
    lowest = kept.bit_length() - 1 if persistent else 0
    for i in range(max(lowest, 0), gradient):
        is_plain, is_inside = plain >> i & 1, i > 0 and saved >> (i - 1) & 1
        if not is_plain and not is_inside:
            continue
        bit, following = 1 << i, 1 << (i + 1)
        time = chain.forward_times[i]
        if not plain & following and not saved & bit:
            need = chain.keeping_bytes(i)
            if is_plain and not (persistent and kept & bit):
                yield State(gradient, plain & ~bit | following, saved, kept), time, need
            yield State(gradient, plain | following, saved, kept | bit), time, need
        if not saved & bit:
            need = chain.saving_bytes(i)
            yield State(gradient, plain, saved | bit, kept | bit), time, need
        if saved & bit and gradient == i + 1:
            need = chain.gradient_bytes[i] + chain.backward_overhead_bytes[i]
            after = State(i, plain & ~bit, saved & ~bit, kept & ~bit)
            yield after, chain.backward_times[i], need


def least_makespan(chain: Chain, limit_bytes: int, *, persistent: bool) -> int | None:
    """Of all valid sequences (or all memory-persistent ones, definition 4.1) within a limit."""
    start = State(chain.stages, 1, 0, 0)
    best = {start: 0}
    queue = [(0, start)]
    while queue:
        time, state = heapq.heappop(queue)
        if state.gradient == 0:
            return time
        if time > best[state]:
            continue
        now = held(chain, state)
        if now > limit_bytes:
            continue
        for after, cost, need in moves(chain, state, persistent):
            later = time + cost
            if now + need > limit_bytes or best.get(after, later + 1) <= later:
                continue
            if not persistent:
                after = after._replace(kept=0)
                if best.get(after, later + 1) <= later:
                    continue
            best[after] = later
            heapq.heappush(queue, (later, after))
    return None


def random_chain(source: random.Random, stages: int) -> tuple[Chain, int]:
    """A chain, and a limit between what its largest operation needs and what saving all takes."""
    activation = [source.randint(0, 6) for _ in range(stages + 1)]
    saved = [size + source.choice([0, 0, 1, 3]) for size in activation[1:]]
    gradient = [source.choice([a, a, 0, 4]) for a in activation]

    def overhead() -> list[int]:
        return [source.choice([0, 0, 0, 1, 4]) for _ in range(stages)]

    forward = overhead()
    chain = Chain(
        tuple(source.randint(0, 9) for _ in range(stages)),
        tuple(source.randint(0, 9) for _ in range(stages)),
        tuple(activation),
        tuple(saved),
        tuple(gradient),
        tuple(forward),
        tuple(f + source.choice([0, 0, 2]) for f in forward),
        tuple(overhead()),
    )
    operations = [
        chain.activation_bytes[i] + max(chain.backing_bytes(i), chain.keeping_bytes(i))
        for i in range(stages)
    ]
    low, high = max(operations), sum(activation) + sum(saved) + 8
    return chain, source.randint(low, max(low, high))
