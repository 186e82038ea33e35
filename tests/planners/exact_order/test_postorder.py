"""Depth-first orders against the runtime's search over every order of the file."""

import onnx
from hypothesis import given, settings

from onnxremat.core.deadline import ENDLESS, Deadline
from onnxremat.core.depth_first import DepthFirst
from onnxremat.core.graph import Graph
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.problem import Limits
from onnxremat.core.schedule import Schedule
from onnxremat.importer.execution_order import default_order
from onnxremat.planners.exact_order.postorder import best_post_order
from tests.graphs import graphs, memory_rules
from tests.planners.exact_order.test_rising_threshold import every_order


def as_the_runtime_runs(graph: Graph, file: Schedule) -> Schedule:
    """The DEFAULT order if the nodes stand in the file in a given order."""
    nodes = [
        onnx.helper.make_node(
            "Op",
            [str(t) for t in graph.ops[v].inputs],
            [str(t) for t in graph.ops[v].outputs],
        )
        for v in file.steps
    ]
    return Schedule(tuple(file.steps[i] for i in default_order(nodes)))


@settings(max_examples=300, deadline=None)
@given(graphs(max_ops=6), memory_rules())
def test_the_best_of_all_files(graph: Graph, rules: MemoryRules) -> None:
    reachable = {as_the_runtime_runs(graph, file) for file in every_order(graph)}
    for order in every_order(graph):
        assert DepthFirst.of(graph).gives(order.steps) == (order in reachable)
    smallest = min(profile(graph, order, rules).peak_bytes for order in reachable)
    found = best_post_order(graph, rules, 0, exact=ENDLESS, deadline=Deadline(Limits(seconds=0)))
    assert found.peak_bytes >= smallest
    assert Schedule(found.order) in reachable
    if found.complete:
        assert found.peak_bytes == smallest


@settings(max_examples=100, deadline=None)
@given(graphs(max_ops=12), memory_rules())
def test_a_search_cut_short_finds_an_order_that_a_file_gives(
    graph: Graph, rules: MemoryRules
) -> None:
    whole = best_post_order(graph, rules, 0, exact=ENDLESS, deadline=ENDLESS, most_states=5000)
    short = best_post_order(graph, rules, 0, exact=ENDLESS, deadline=ENDLESS, most_states=20)
    again = best_post_order(graph, rules, 0, exact=ENDLESS, deadline=ENDLESS, most_states=20)
    assert short == again
    assert DepthFirst.of(graph).gives(short.order)
    if whole.complete:
        assert whole.peak_bytes <= short.peak_bytes
    if short.complete:
        assert short.peak_bytes <= whole.peak_bytes
