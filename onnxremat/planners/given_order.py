"""The order of the file, every op once: the baseline that everything is compared with."""

from onnxremat.bounds import peak_bound
from onnxremat.plan import Limits, Plan, Problem, make_plan
from onnxremat.schedule import given_order as order_of_file


def given_order(problem: Problem, limits: Limits) -> Plan:
    """The ops in the order of the file. O(steps + reads); `limits` are not needed."""
    del limits
    bound = peak_bound(problem.graph, problem.rules).nbytes
    return make_plan(problem, order_of_file(problem.graph), "given_order", peak_bound_bytes=bound)
