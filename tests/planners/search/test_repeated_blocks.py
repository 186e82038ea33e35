"""Repeated blocks: what is alike, valid plans, budgets met; and why parts are not planned alone."""

import dataclasses
import heapq
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.core.deadline import Deadline
from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.memory import PAPER_RULES, MemoryRules, profile
from onnxremat.core.problem import Limits, Problem
from onnxremat.core.schedule import check, given_order
from onnxremat.planners.search.engine import admissible
from onnxremat.planners.search.repeated_blocks import block_plan, colours, repeats, tightened
from tests.graphs import chain, graphs, memory_rules


def layered(layers: int) -> Graph:
    """A training graph: x -> wide -> act -> y, y + x goes on; backward reads wide, act and x.

    A layer's `act` is cheap to make again from `wide`, and `wide` is dear.
    """
    tensors = [Tensor("x", (), "float", 8, TensorKind.INPUT)]
    ops: list[Op] = []

    def add(op_type: str, nbytes: int, cost: int, *inputs: int) -> int:
        tensors.append(Tensor(f"t{len(tensors)}", (), "float", nbytes))
        ops.append(Op(f"op{len(ops)}", op_type, inputs, (len(tensors) - 1,), cost))
        return len(tensors) - 1

    x = 0
    saved = []
    for _ in range(layers):
        wide = add("MatMul", 64, 100, x)
        act = add("Gelu", 64, 5, wide)
        narrow = add("MatMul", 8, 100, act)
        saved.append((x, wide, act))
        x = add("Add", 8, 2, x, narrow)
    gradient = add("Loss", 8, 1, x)
    outputs = []
    for x, wide, act in reversed(saved):
        outputs.append(add("Gradient2", 1, 100, gradient, act))
        back = add("MatMul", 64, 100, gradient)
        back = add("GeluGradient", 64, 10, back, wide)
        outputs.append(add("Gradient1", 1, 100, back, x))
        back = add("MatMul", 8, 100, back)
        gradient = add("Add", 8, 2, gradient, back)
    return Graph(tuple(tensors), tuple(ops), (0,), (*outputs, gradient))


def at(graph: Graph, percent: int, rules: MemoryRules = PAPER_RULES) -> Problem:
    peak = profile(graph, given_order(graph), rules).peak_bytes
    return Problem(graph, rules, peak * percent // 100)


def test_layers_have_the_same_colours_but_near_the_ends() -> None:
    colour = colours(layered(20), PAPER_RULES, depth=2)
    assert colour[4 * 5 : 4 * 6] == colour[4 * 12 : 4 * 13]
    assert colour[0] != colour[4 * 5]
    assert len(set(colour[20:24])) == 4


def test_colours_tell_sizes_times_and_places_apart() -> None:
    tensors = [Tensor(f"t{i}", (), "float", 8 + (i == 2)) for i in range(6)]
    ops = [Op(f"op{i}", "Op", (), (i,), cost=1 + (i == 3)) for i in range(4)]
    ops += [Op("a", "Sub", (0, 1), (4,)), Op("b", "Sub", (1, 0), (5,))]
    colour = colours(Graph(tuple(tensors), tuple(ops), (), (4, 5)), PAPER_RULES, depth=3)
    assert colour[0] == colour[1]
    assert len({colour[0], colour[2], colour[3]}) == 3


def test_what_repeats() -> None:
    assert repeats(layered(50), PAPER_RULES)
    assert not repeats(layered(10), PAPER_RULES), "small"
    source = random.Random(0)
    assert not repeats(chain([source.randint(1, 10**6) for _ in range(500)]), PAPER_RULES)


@pytest.mark.parametrize("fixed_order", [True, False])
@pytest.mark.parametrize(("percent", "most_extra"), [(80, 0.01), (60, 0.012)])
def test_what_is_cheap_is_made_again_in_every_layer(
    percent: int, most_extra: float, fixed_order: bool
) -> None:
    problem = dataclasses.replace(at(layered(60), percent), fixed_order=fixed_order)
    found = block_plan(problem, given_order(problem.graph))
    assert found is not None
    assert admissible(problem, found)
    assert profile(problem.graph, found, PAPER_RULES).peak_bytes <= (problem.budget_bytes or 0)
    assert found.cost(problem.graph) <= (1 + most_extra) * problem.graph.total_cost()


def test_no_more_layers_than_needed() -> None:
    problem = at(layered(60), 80)
    found = block_plan(problem, given_order(problem.graph))
    assert found is not None
    assert 20 <= found.recomputations() <= 32, "64 of 136 bytes of a layer are given up"


def test_no_budget_no_copies_no_ops_no_time() -> None:
    problem = at(layered(20), 50)
    order = given_order(problem.graph)
    assert block_plan(dataclasses.replace(problem, budget_bytes=None), order) is None
    assert block_plan(dataclasses.replace(problem, max_copies=1), order) is None
    assert block_plan(problem, order, deadline=Deadline(Limits(seconds=0))) is None
    empty = Graph((), (), (), ())
    assert block_plan(Problem(empty, PAPER_RULES, 1), given_order(empty)) is None


def test_a_small_comparison_moves_to_its_large_input() -> None:
    sizes = [("x", 100), ("y", 1), ("z", 1), ("mask", 10), ("out", 1)]
    tensors = tuple(Tensor(name, (), "float", n) for name, n in sizes)
    ops = (
        Op("x", "Op", (), (0,)),
        Op("y", "Op", (0,), (1,)),
        Op("z", "Op", (1,), (2,)),
        Op("mask", "Greater", (0,), (3,)),
        Op("out", "Op", (2, 3), (4,)),
    )
    problem = Problem(Graph(tensors, ops, (), (4,)), PAPER_RULES, 0)
    assert tightened(problem, given_order(problem.graph)).steps == (0, 3, 1, 2, 4)


@settings(max_examples=80, deadline=None)
@given(graph=graphs(max_ops=12), rules=memory_rules(), data=st.data())
def test_plans_are_schedules_of_the_problem(
    graph: Graph, rules: MemoryRules, data: st.DataObject
) -> None:
    problem = dataclasses.replace(
        at(graph, data.draw(st.sampled_from([30, 60, 90])), rules),
        fixed_order=data.draw(st.booleans()),
        max_copies=data.draw(st.sampled_from([None, 2, 3])),
    )
    order = given_order(graph)
    check(graph, tightened(problem, order))
    found = block_plan(problem, order)
    assert found is not None
    assert admissible(problem, found)
    assert profile(graph, found, rules).peak_bytes <= profile(graph, order, rules).peak_bytes, (
        "not worse than the order itself"
    )


def test_nine_thousand_ops() -> None:
    problem = at(layered(1000), 60)
    found = block_plan(problem, given_order(problem.graph))
    assert found is not None
    assert profile(problem.graph, found, PAPER_RULES).peak_bytes <= (problem.budget_bytes or 0)


# Parts on both sides of a cut: one value x crosses, all behind depends on it.


def least_time(graph: Graph, budget: int) -> float:
    """By search over what is held and what ran; every op of the graphs here leads to an output."""
    size = [t.nbytes for t in graph.tensors]
    start: frozenset[int] = frozenset(graph.inputs)
    best: dict[frozenset[int], int] = {start: 0}
    queue: list[tuple[int, int, frozenset[int]]] = [(0, 0, start)]
    serial = 0

    def reach(cost: int, held: frozenset[int]) -> None:
        nonlocal serial
        if cost < best.get(held, 1 << 60):
            best[held] = cost
            serial += 1
            heapq.heappush(queue, (cost, serial, held))

    while queue:
        cost, _, held = heapq.heappop(queue)
        if cost > best[held]:
            continue
        if held.issuperset(graph.outputs):
            return cost
        for t in held:
            reach(cost, held - {t})
        for op in graph.ops:
            after = held.union(op.outputs)
            if held.issuperset(op.inputs) and sum(size[t] for t in after) <= budget:
                reach(cost + op.cost, after)
    return float("inf")


def parts(graph: Graph, x: int) -> tuple[Graph, Graph]:
    """The ops up to the one that makes tensor x, and those behind, which are given x."""
    count = graph.producer[x] + 1
    made = {t for op in graph.ops[:count] for t in op.outputs}
    kept = [t for t in range(len(graph.tensors)) if t in made]
    number = {t: i for i, t in enumerate(kept)}
    front = Graph(
        tuple(graph.tensors[t] for t in kept),
        tuple(_renamed(op, number) for op in graph.ops[:count]),
        (),
        (number[x],),
    )
    behind = [x, *(t for t in range(len(graph.tensors)) if t not in made)]
    number = {t: i for i, t in enumerate(behind)}
    given_x = dataclasses.replace(graph.tensors[x], kind=TensorKind.INPUT)
    back = Graph(
        (given_x, *(graph.tensors[t] for t in behind[1:])),
        tuple(_renamed(op, number) for op in graph.ops[count:]),
        (0,),
        tuple(number[t] for t in graph.outputs),
    )
    return front, back


def _renamed(op: Op, number: dict[int, int]) -> Op:
    inputs = tuple(number[t] for t in op.inputs)
    return dataclasses.replace(op, inputs=inputs, outputs=tuple(number[t] for t in op.outputs))


def cut_graph(cost: int) -> Graph:
    """x is all that crosses, w alone reads it; y is read before and after the peak at b."""
    sizes = {"x": 4, "y": 6, "s": 1, "b": 15, "c": 1, "out": 1}
    tensors = tuple(Tensor(name, (), "uint8", n) for name, n in sizes.items())
    reads = ((), (0,), (1,), (2,), (3,), (4, 1))
    ops = tuple(
        Op(f"op{v}", "Op", read, (v,), cost if v == 0 else 1) for v, read in enumerate(reads)
    )
    return Graph(tensors, ops, (), (5,))


def test_parts_alone_can_be_worse_than_the_whole() -> None:
    """Even where one value crosses and one op reads it: the whole makes x again, which the part
    behind it cannot."""
    graph = cut_graph(cost=1)
    front, back = parts(graph, 0)
    assert least_time(graph, 19) == 8, "x and y are made again"
    assert least_time(front, 19) == 1
    assert least_time(back, 19) == float("inf"), "x or y has to be held beside b"
    assert least_time(back, 20) == 6, "y alone is made again"


@st.composite
def cut_graphs(draw: st.DrawFn) -> tuple[Graph, int]:
    """A graph and a tensor x that alone crosses: all before leads to it, all behind depends on it."""
    tensors: list[Tensor] = []
    ops: list[Op] = []

    def add(inputs: tuple[int, ...]) -> int:
        nbytes, cost = draw(st.integers(1, 5)), draw(st.integers(1, 4))
        tensors.append(Tensor(f"t{len(tensors)}", (), "uint8", nbytes))
        ops.append(Op(f"op{len(ops)}", "Op", inputs, (len(tensors) - 1,), cost))
        return len(tensors) - 1

    def grow(begin: tuple[int, ...], count: int) -> int:
        made = list(begin)
        for _ in range(count):
            reads = draw(st.sets(st.sampled_from(made), max_size=2)) if made else set()
            if begin and not reads:
                reads = {begin[0]}
            made.append(add(tuple(sorted(reads))))
        read = {t for op in ops for t in op.inputs}
        return add(tuple(t for t in made if t not in read or t == made[-1]))

    x = grow((), draw(st.integers(0, 2)))
    out = grow((x,), draw(st.integers(1, 3)))
    return Graph(tuple(tensors), tuple(ops), (), (out,)), x


@settings(max_examples=150, deadline=None)
@given(cut=cut_graphs(), percent=st.integers(50, 100))
def test_parts_alone_are_exact_if_the_second_repeats_less_than_x_costs(
    cut: tuple[Graph, int], percent: int
) -> None:
    """Either x is made once, and the plan is one for each part; or making it again is paid for."""
    graph, x = cut
    budget = at(graph, percent).budget_bytes or 0
    front, back = parts(graph, x)
    whole, first, second = (least_time(g, budget) for g in (graph, front, back))
    assert whole <= first + second
    if second - back.total_cost() <= graph.ops[graph.producer[x]].cost:
        assert whole == first + second
