"""Names of values and nodes: which are taken, and renaming what a node reads."""

from collections.abc import Iterable, Mapping

import onnx

from onnxremat.importer.nodes import local_names, subgraphs


def rename_reads(node: onnx.NodeProto, names: Mapping[str, str]) -> None:
    """Change, in place, the names of values that `node` and its subgraphs read from outside."""
    for i, name in enumerate(node.input):
        if name in names:
            node.input[i] = names[name]
    for body in subgraphs(node):
        inner = {old: new for old, new in names.items() if old not in local_names(body)}
        if not inner:
            continue
        for child in body.node:
            rename_reads(child, inner)
        for value in body.output:
            if value.name in inner:
                value.name = inner[value.name]


def value_names(graph: onnx.GraphProto) -> set[str]:
    """The name of every value of a graph, those inside its subgraphs included."""
    names = {value.name for value in (*graph.input, *graph.output, *graph.value_info)}
    names.update(tensor.name for tensor in graph.initializer)
    names.update(tensor.values.name for tensor in graph.sparse_initializer)
    for node in graph.node:
        names.update(node.input)
        names.update(node.output)
        for body in subgraphs(node):
            names |= value_names(body)
    return names


def node_names(graph: onnx.GraphProto) -> set[str]:
    """The name of every node of a graph, those inside its subgraphs included."""
    names = {node.name for node in graph.node}
    for node in graph.node:
        for body in subgraphs(node):
            names |= node_names(body)
    return names


class NameSource:
    """Gives out names that are not taken yet."""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)

    def fresh(self, wanted: str) -> str:
        """`wanted`, or `wanted_2`, `wanted_3`, ... if it is taken; the result then is."""
        name = wanted
        count = 2
        while name in self._taken:
            name = f"{wanted}_{count}"
            count += 1
        self._taken.add(name)
        return name
