"""Graphs within a model: bodies of If, Loop and Scan, and functions that call functions.

A short file can hold bodies nested without end, functions that call themselves, and calls that
stand for more nodes than there are atoms. Each is found here before anything follows it.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping

from onnx import FunctionProto, GraphProto, ModelProto, NodeProto

from onnxremat.core.errors import ModelError
from onnxremat.importer.nodes import schema_domain, subgraphs

MOST_NESTED = 33
"""Bodies within bodies. A file of protobuf nests 100 messages, of which a body takes three."""

MOST_CALLS = 100
"""Functions that call functions that call ...: so deep."""

MOST_EXPANDED_NODES = 2_000_000
"""A model's nodes, its functions expanded."""

Key = tuple[str, str, str]
"""Domain, name and overload: of a function, or of what a node calls."""


def all_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    """A graph and the bodies in it, at every depth. Raises ModelError where there are more than
    MOST_NESTED."""
    waiting = [(graph, 0)]
    while waiting:
        one, depth = waiting.pop()
        if depth > MOST_NESTED:
            raise ModelError(f"bodies of subgraphs are nested more than {MOST_NESTED} deep")
        yield one
        for node in one.node:
            waiting.extend((body, depth + 1) for body in subgraphs(node))


def check_calls(model: ModelProto) -> None:
    """Raise ModelError if functions call themselves, nest too deep or expand into too much.

    Bottom up: a function is looked at when all that it calls have been. O(nodes + calls).
    """
    if not model.functions:
        return
    known = {function_key(function) for function in model.functions}
    calls = {function_key(function): _called(function.node, known) for function in model.functions}
    size, depth = _sizes(calls)
    if len(size) < len(calls):
        name = min(name for _, name, _ in calls.keys() - size.keys())
        raise ModelError(f"its function {name!r} calls itself, or one that does")
    total = _expanded(_called(model.graph.node, known), size)
    if total > MOST_EXPANDED_NODES:
        shown = f"{total:,}" if total < 10**18 else "over 10^18"
        raise ModelError(
            f"its functions expand into {shown} nodes, of which at most {MOST_EXPANDED_NODES:,} "
            "can be read"
        )
    if max(depth.values()) > MOST_CALLS:
        raise ModelError(f"its functions call each other more than {MOST_CALLS} deep")


_Calls = tuple[int, Mapping[Key, int]]
"""How many nodes are no calls, and how often which function is called."""


def _sizes(calls: Mapping[Key, _Calls]) -> tuple[dict[Key, int], dict[Key, int]]:
    """Nodes that a function expands into, and how deep it calls. Without those that wait for
    themselves."""
    callers: dict[Key, list[Key]] = {key: [] for key in calls}
    for key, (_, callees) in calls.items():
        for callee in callees:
            callers[callee].append(key)
    waiting = {key: len(callees) for key, (_, callees) in calls.items()}
    ready = [key for key, count in waiting.items() if count == 0]
    size: dict[Key, int] = {}
    depth: dict[Key, int] = {}
    while ready:
        key = ready.pop()
        size[key] = _expanded(calls[key], size)
        depth[key] = 1 + max((depth[callee] for callee in calls[key][1]), default=0)
        for caller in callers[key]:
            waiting[caller] -= 1
            if waiting[caller] == 0:
                ready.append(caller)
    return size, depth


def _expanded(calls: _Calls, size: Mapping[Key, int]) -> int:
    own, callees = calls
    return own + sum(count * size[callee] for callee, count in callees.items())


def _called(nodes: Iterable[NodeProto], known: Collection[Key]) -> _Calls:
    found = Counter(map(call_key, nodes_at_any_depth(nodes)))
    calls = {key: count for key, count in found.items() if key in known}
    return found.total() - sum(calls.values()), calls


def nodes_at_any_depth(nodes: Iterable[NodeProto]) -> Iterator[NodeProto]:
    """Nodes, and those in their bodies."""
    for node in nodes:
        yield node
        for body in subgraphs(node):
            for graph in all_graphs(body):
                yield from graph.node


def function_key(function: FunctionProto) -> Key:
    """What nodes call a function by."""
    return schema_domain(function.domain), function.name, function.overload


def call_key(node: NodeProto) -> Key:
    """What a node calls a function by, if there is one of that name."""
    return schema_domain(node.domain), node.op_type, node.overload
