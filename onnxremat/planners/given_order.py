"""The order of the file, every op once: the baseline that everything is compared with."""

from onnxremat.core.bounds import peak_bound
from onnxremat.core.depth_first import DepthFirst
from onnxremat.core.problem import Limits, Plan, Problem, make_plan
from onnxremat.core.schedule import Schedule
from onnxremat.core.schedule import given_order as order_of_file


def given_order(problem: Problem, limits: Limits) -> Plan:
    """The ops in the order of the file, or, with `depth_first`, as the search from the leaves runs
    them in it. O(steps + reads); `limits` are not needed."""
    del limits
    graph = problem.graph
    order = order_of_file(graph)
    if problem.depth_first:
        order = Schedule(DepthFirst.of(graph).default().order)
    bound = peak_bound(graph, problem.rules).nbytes
    return make_plan(problem, order, "given_order", peak_bound_bytes=bound)
