"""The lower bound on time against every schedule with two copies, and what it sees."""

from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.core.deadline import Deadline
from onnxremat.core.graph import Graph, Op, Tensor
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.problem import Limits
from onnxremat.core.schedule import Schedule, given_order
from onnxremat.planners.retention.time_bound import extra_time_bound
from tests.core.test_bounds import every_schedule
from tests.graphs import graphs, memory_rules


@settings(max_examples=300, deadline=None)
@given(graphs(max_ops=4), memory_rules(), st.sampled_from([50, 70, 80, 90]), st.booleans())
def test_no_schedule_is_faster(
    graph: Graph, rules: MemoryRules, share: int, fixed_order: bool
) -> None:
    budget = profile(graph, given_order(graph), rules).peak_bytes * share // 100
    bound = extra_time_bound(graph, rules, budget, fixed_order=fixed_order)
    for schedule in every_schedule(graph):
        firsts = list(dict.fromkeys(schedule.steps))
        if fixed_order and firsts != sorted(firsts):
            continue
        if profile(graph, schedule, rules).peak_bytes <= budget:
            assert graph.total_cost() + bound <= schedule.cost(graph)


def skip(costs: tuple[int, int]) -> Graph:
    """Two wide values made first and read last, with a wide pair of ops between."""
    sizes = (40, 40, 50, 50, 1)
    tensors = tuple(Tensor(f"t{i}", (), "uint8", n) for i, n in enumerate(sizes))
    ops = (
        Op("a", "Op", (), (0,), cost=costs[0]),
        Op("b", "Op", (), (1,), cost=costs[1]),
        Op("wide", "Op", (0, 1), (2,), cost=1),
        Op("on", "Op", (2,), (3,), cost=1),
        Op("end", "Op", (0, 1, 3), (4,), cost=1),
    )
    return Graph(tensors, ops, (), (4,))


def test_the_cheaper_value_is_made_again() -> None:
    """100 bytes run, 80 are held beside: with 150 one of them goes, whatever the order."""
    for fixed_order in (False, True):
        for costs, least in (((7, 9), 6), ((9, 3), 3)):
            found = extra_time_bound(skip(costs), MemoryRules(), 150, fixed_order=fixed_order)
            assert least * 0.7 <= found <= min(costs)
    assert extra_time_bound(skip((7, 9)), MemoryRules(), 180, fixed_order=False) == 0


def test_an_output_that_is_made_again_at_the_end_may_be_taken_over_before() -> None:
    """The sequence u w v z u has a peak of 8 and costs 1 more."""
    sizes = (4, 4, 4, 0)
    tensors = tuple(Tensor(f"t{i}", (), "uint8", n) for i, n in enumerate(sizes))
    ops = (
        Op("u", "Op", (), (0,), cost=1),
        Op("w", "Op", (), (1,), cost=100),
        Op("v", "InPlace", (0,), (2,), cost=1),
        Op("z", "Op", (2,), (3,), cost=1),
    )
    graph, rules = Graph(tensors, ops, (), (0, 1)), MemoryRules(inplace={"InPlace": ((0, 0),)})
    assert profile(graph, Schedule((0, 1, 2, 3, 0)), rules).peak_bytes == 8
    for fixed_order in (False, True):
        assert extra_time_bound(graph, rules, 8, fixed_order=fixed_order) <= 1


def test_it_may_stop_at_once() -> None:
    assert (
        extra_time_bound(
            skip((7, 9)),
            MemoryRules(),
            150,
            fixed_order=False,
            deadline=Deadline(Limits(seconds=0)),
        )
        == 0
    )
