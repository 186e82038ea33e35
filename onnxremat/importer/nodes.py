"""What can be said of one node by looking at it alone."""

from collections.abc import Iterator, Mapping
from typing import Any

from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, helper

DEFAULT_DOMAINS = ("", "ai.onnx")
LAYOUT_DOMAIN = "com.microsoft.nchwc"
FIRST_IR_WITH_FREE_INITIALIZERS = 4
"""From this version of the format on initializers need not be inputs."""
"""Of the ops that ONNX Runtime puts in for the blocked layout of convolutions."""
_BLOCKED = "_nchwc"
_IN_BLOCKS = "reorder_token"

_BARE_DOMAINS = (*DEFAULT_DOMAINS, "com.microsoft")


def schema_domain(domain: str) -> str:
    """A domain by the name that onnx keeps its schemas under: the default one has two."""
    return "" if domain in DEFAULT_DOMAINS else domain


def op_key(node: NodeProto) -> str:
    """How tables name an op: `Conv`, `FusedConv`; `domain::type` for all other domains.

    ONNX Runtime's own domain has no op that shares a name with a standard one and differs in how
    it uses memory, so both are named alike.
    """
    return node.op_type if node.domain in _BARE_DOMAINS else f"{node.domain}::{node.op_type}"


def is_constant(node: NodeProto) -> bool:
    """Whether a node is a Constant: it becomes an initializer at load and does not execute."""
    return node.op_type == "Constant" and node.domain in DEFAULT_DOMAINS


def attribute(node: NodeProto, name: str, default: Any = None) -> Any:
    """The value of an attribute, or `default` if the node has none of that name."""
    for candidate in node.attribute:
        if candidate.name == name:
            return helper.get_attribute_value(candidate)
    return default


def subgraphs(node: NodeProto) -> Iterator[GraphProto]:
    """The bodies of If, Loop, Scan and the like."""
    for candidate in node.attribute:
        if candidate.type == AttributeProto.GRAPH:
            yield candidate.g
        elif candidate.type == AttributeProto.GRAPHS:
            yield from candidate.graphs


def has_subgraph(node: NodeProto) -> bool:
    """Whether the node runs other nodes."""
    return any(True for _ in subgraphs(node))


def captured(node: NodeProto) -> tuple[str, ...]:
    """Names of outer values that the node's subgraphs read, in the order met, without repetition.

    Names are looked up as ONNX scopes them: a body hides outer values of the same name.
    """
    found: dict[str, None] = {}
    for body in subgraphs(node):
        found.update(dict.fromkeys(_free_names(body)))
    return tuple(found)


def reads(node: NodeProto) -> tuple[str, ...]:
    """Every value the node reads: its inputs, then what its subgraphs capture."""
    return (*(name for name in node.input if name), *captured(node))


def replaceable(model: ModelProto) -> set[str]:
    """The inputs of which an initializer of their name is only a default: since IR version 4.
    Before, all initializers are inputs, and none can be replaced."""
    if model.ir_version < FIRST_IR_WITH_FREE_INITIALIZERS:
        return set()
    return {value.name for value in model.graph.input}


def available_names(graph: GraphProto) -> set[str]:
    """Values of a graph that exist before any of its nodes runs: inputs and initializers."""
    names = {value.name for value in graph.input}
    names.update(tensor.name for tensor in graph.initializer)
    names.update(tensor.values.name for tensor in graph.sparse_initializer)
    return names


def local_names(body: GraphProto) -> set[str]:
    """The values that a graph defines itself: outer values of these names are hidden in it."""
    names = available_names(body)
    names.update(name for node in body.node for name in node.output if name)
    return names


def _free_names(graph: GraphProto) -> Iterator[str]:
    local = local_names(graph)
    for node in graph.node:
        yield from (name for name in reads(node) if name not in local)
    yield from (value.name for value in graph.output if value.name not in local)


def made_value(node: NodeProto, values: Mapping[str, str]) -> str:
    """The name of the first value that a node makes. What ONNX Runtime lays out in blocks has
    another name there each time: a convolution is called `NAME_nchwc` after the one that it had;
    other nodes keep the name of their own, by which `values` knows them (`values_of_nodes`)."""
    if node.domain == LAYOUT_DOMAIN and node.name.endswith(_BLOCKED):
        return str(node.name.removesuffix(_BLOCKED))
    value = next((str(name) for name in node.output if name), "")
    return values.get(node.name, value) if value.startswith(_IN_BLOCKS) else value


def values_of_nodes(graph: GraphProto) -> dict[str, str]:
    """The first value that each node of a graph makes, by the name of the node, if it has one."""
    return {
        node.name: name
        for node in graph.node
        if node.name
        for name in reversed(node.output)
        if name
    }
