"""The compiled state of the search is the simulator, step for step, after any edits.

Thousands of sequences: random graphs (several outputs an op, repeated reads, workspace, held
outputs), all memory rules, insertions, removals and undoing.
"""

import random
from collections import Counter

import numpy as np
import pytest

from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.schedule import Schedule
from onnxremat.planners.search import arrays as _layout
from onnxremat.planners.search import arrays as at
from onnxremat.planners.search import edit as _edit
from onnxremat.planners.search import state as _state
from onnxremat.planners.search.arrays import SearchState
from onnxremat.planners.search.flat import FlatGraph, Ints, flatten
from onnxremat.planners.search.kernels import entry

pytestmark = pytest.mark.slow

GRAPHS = 250
EDITS = 24


@entry
def load(graph: FlatGraph, state: SearchState, steps: Ints) -> None:
    _edit.load(graph, state, steps)


@entry
def insert(graph: FlatGraph, state: SearchState, op: int, after: int) -> None:
    e = _edit.insert(graph, state, op, after)
    _edit.log_insertion(state, e)
    _state.refresh(state)


@entry
def remove(graph: FlatGraph, state: SearchState, execution: int) -> None:
    _edit.log_removal(state, execution)
    _edit.remove(graph, state, execution)
    _state.refresh(state)


@entry
def undo(graph: FlatGraph, state: SearchState) -> None:
    _edit.undo(graph, state)


def random_graph(source: random.Random) -> Graph:
    """Up to 14 ops with anything a graph may have; sizes often equal, so that in-place applies."""
    tensors = [
        Tensor("x", (), "float", source.choice((0, 4, 100)), TensorKind.INPUT),
        Tensor("w", (), "float", 7, TensorKind.WEIGHT),
    ]
    ops = []
    for v in range(source.randint(1, 14)):
        recent = range(max(0, len(tensors) - 8), len(tensors))
        reads = tuple(source.choice(recent) for _ in range(source.randint(0, 3)))
        made = []
        for _ in range(source.choice((1, 1, 1, 2, 3))):
            made.append(len(tensors))
            nbytes = source.choice((0, 1, 4, 4, 4, 7, 100))
            tensors.append(
                Tensor(f"t{len(tensors)}", (), source.choice(("float", "float", "int")), nbytes)
            )
        ops.append(
            Op(
                f"op{v}", source.choice("ABC"), reads, tuple(made),
                source.randint(0, 5), source.choice((0, 0, 3, 50)),
            )
        )  # fmt: skip
    outputs = tuple(t for t in range(2, len(tensors)) if source.random() < 0.2)
    return Graph(tuple(tensors), tuple(ops), (0,), outputs)


def random_rules(source: random.Random) -> MemoryRules:
    pairs = {
        op_type: tuple(
            (source.randint(0, 2), source.randint(0, 2)) for _ in range(source.randint(1, 4))
        )
        for op_type in "ABC"
        if source.random() < 0.7
    }
    flags = [source.random() < 0.5 for _ in range(4)]
    return MemoryRules(source.choice((1, 1, 4, 64)), pairs, *flags)


def executions(state: SearchState) -> list[int]:
    return [int(e) for e in state.slot[at.EXECUTION] if e != at.NONE]


def steps_of(state: SearchState) -> list[int]:
    return [int(state.run[at.OP, e]) for e in executions(state)]


def is_valid(graph: Graph, steps: list[int]) -> bool:
    done: set[int] = set()
    for v in steps:
        if not done.issuperset(graph.predecessors(v)):
            return False
        done.add(v)
    return len(done) == len(graph.ops)


def compare(graph: Graph, rules: MemoryRules, state: SearchState) -> None:
    """Everything the state keeps up to date, against the simulator."""
    steps = steps_of(state)
    expected = profile(graph, Schedule(tuple(steps)), rules)
    held = state.slot[at.HELD] + np.repeat(state.block[at.ADDED], at.BLOCK)
    held = held[state.slot[at.EXECUTION] != at.NONE]
    assert tuple(held.tolist()) == expected.live_bytes
    total = state.total
    assert total[at.PEAK] == expected.peak_bytes
    over = sum(max(0, x - total[at.TARGET]) for x in expected.live_bytes)
    assert total[at.EXCESS] == over
    assert total[at.TIME] == Schedule(tuple(steps)).cost(graph)
    assert total[at.EXECUTIONS] == len(steps)
    runs = Counter(steps)
    repeated = state.run[at.REPEATED, : total[at.REPEATED_COUNT]]
    assert sorted(state.run[at.OP, repeated]) == sorted(v for v in steps if runs[v] > 1)


def random_edit(source: random.Random, graph: Graph, flat: FlatGraph, state: SearchState) -> None:
    steps = steps_of(state)
    if source.random() < 0.55 and len(steps) < 4 * len(graph.ops) + 20:
        j, v = source.randint(0, len(steps)), source.randrange(len(graph.ops))
        if is_valid(graph, [*steps[:j], v, *steps[j:]]):
            insert(flat, state, v, executions(state)[j - 1] if j else at.NONE)
    else:
        j = source.randrange(len(steps))
        if is_valid(graph, steps[:j] + steps[j + 1 :]):
            remove(flat, state, executions(state)[j])


@pytest.mark.parametrize("block", range(5))
def test_state_equals_the_simulator_after_every_edit(block: int) -> None:
    for seed in range(block * GRAPHS // 5, (block + 1) * GRAPHS // 5):
        source = random.Random(seed)
        graph, rules = random_graph(source), random_rules(source)
        flat = flatten(graph, rules)
        state = _layout.make_state(flat, 4 * len(graph.ops) + 40)
        state.total[at.TARGET] = source.choice((0, 10, 100, 300))
        load(flat, state, np.arange(len(graph.ops)))
        compare(graph, rules, state)
        for _ in range(EDITS):
            before = steps_of(state)
            state.total[at.JOURNAL_COUNT] = 0
            for _ in range(source.randint(1, 3)):
                random_edit(source, graph, flat, state)
                compare(graph, rules, state)
            if source.random() < 0.4:
                undo(flat, state)
                assert steps_of(state) == before
                compare(graph, rules, state)


def test_loading_any_valid_sequence_equals_the_simulator() -> None:
    for seed in range(300):
        source = random.Random(seed)
        graph, rules = random_graph(source), random_rules(source)
        steps = list(range(len(graph.ops)))
        for _ in range(source.randint(0, 10)):
            v = source.randrange(len(graph.ops))
            steps.insert(source.randint(steps.index(v) + 1, len(steps)), v)
        flat = flatten(graph, rules)
        state = _layout.make_state(flat, len(steps) + source.choice((8, 60)))
        load(flat, state, np.array(steps))
        compare(graph, rules, state)
