"""Substitutions put into a model."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import onnx

from onnxremat.importer.nodes import (
    DEFAULT_DOMAINS,
    FIRST_IR_WITH_FREE_INITIALIZERS,
    attribute,
    reads,
)
from onnxremat.importer.values import ValueType, tensor_type
from onnxremat_rewriters.naming import NameSource, node_names, rename_reads, value_names
from onnxremat_rewriters.substitutes.site import KernelSite, NotSubstitutable, Substitution


@dataclass(frozen=True)
class Replaced:
    """A node that was replaced: its index and name in the argument, how, whether exactly, and
    whether for its sizes only."""

    node: int
    name: str
    op_type: str
    substitution: str
    exact: bool
    sized: bool


@dataclass(frozen=True)
class Refused:
    """A node that was to be replaced and stays; `reason` says why."""

    node: int
    name: str
    op_type: str
    reason: str


@dataclass(frozen=True)
class Substituted:
    """A model in which nodes were replaced.

    `origin[i]` is the index of the node of the argument that node i stands for: all nodes that
    replace one node have its index. `dropped_weights` are initializers that nobody reads any more.
    """

    model: onnx.ModelProto
    origin: tuple[int, ...]
    replaced: tuple[Replaced, ...]
    refused: tuple[Refused, ...]
    dropped_weights: tuple[str, ...]

    @property
    def changed(self) -> bool:
        """Whether any node was replaced."""
        return bool(self.replaced)

    @property
    def exact(self) -> bool:
        """Whether the model computes the same bits as the argument."""
        return all(one.exact for one in self.replaced)

    @property
    def sized(self) -> bool:
        """Whether the model holds for the sizes in `types` only."""
        return any(one.sized for one in self.replaced)


def apply_substitutions(
    model: onnx.ModelProto,
    nodes: Collection[int],
    types: Mapping[str, ValueType],
    substitutions: Sequence[Substitution],
) -> Substituted:
    """A copy of `model` in which the first fitting of `substitutions` replaces each of `nodes`.

    `nodes` are indices of top-level nodes; one with an op type that no substitution is for is
    refused. `types` are of values by name; those of constants are added. The nodes must be in a
    valid order. O(nodes + reads + bytes of filters that are turned).
    """
    result = onnx.ModelProto()
    result.CopyFrom(model)
    graph = result.graph
    site_of = _site_maker(model, types)
    made: list[onnx.NodeProto] = []
    origin: list[int] = []
    weights: list[onnx.TensorProto] = []
    replaced: list[Replaced] = []
    refused: list[Refused] = []
    for index, node in enumerate(model.graph.node):
        new: Sequence[onnx.NodeProto] = [node]
        if index in nodes:
            site = site_of(node)
            try:
                chosen = _choose(node, substitutions)
                chosen.replace(site)
            except NotSubstitutable as error:
                refused.append(Refused(index, node.name, node.op_type, str(error)))
            else:
                new = site.nodes
                weights += site.initializers
                replaced.append(_replaced(index, node, chosen))
        made += new
        origin += [index] * len(new)
    del graph.node[:]
    graph.node.extend(made)
    _store(result, weights)
    dropped = _drop_unread(graph, {name for one in replaced for name in _reads_of(model, one)})
    return Substituted(result, tuple(origin), tuple(replaced), tuple(refused), dropped)


def _replaced(index: int, node: onnx.NodeProto, chosen: Substitution) -> Replaced:
    return Replaced(index, node.name, node.op_type, chosen.name, chosen.exact, chosen.sized)


def _store(model: onnx.ModelProto, weights: Sequence[onnx.TensorProto]) -> None:
    """Add new weights, in place: equal ones once, and as inputs too in old formats."""
    graph = model.graph
    kept: dict[bytes, str] = {}
    names: dict[str, str] = {}
    for tensor in weights:
        bare = onnx.TensorProto()
        bare.CopyFrom(tensor)
        bare.ClearField("name")
        key = bare.SerializeToString(deterministic=True)
        names[tensor.name] = kept.setdefault(key, tensor.name)
        if names[tensor.name] != tensor.name:
            continue
        graph.initializer.append(tensor)
        if model.ir_version < FIRST_IR_WITH_FREE_INITIALIZERS:
            graph.input.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )
    for node in graph.node:
        rename_reads(node, names)


def _choose(node: onnx.NodeProto, substitutions: Sequence[Substitution]) -> Substitution:
    for one in substitutions:
        if node.op_type in one.op_types and node.domain in DEFAULT_DOMAINS:
            return one
    raise NotSubstitutable("there is no substitution for it")


def _site_maker(
    model: onnx.ModelProto, types: Mapping[str, ValueType]
) -> Callable[[onnx.NodeProto], KernelSite]:
    graph = model.graph
    given = {value.name for value in graph.input}
    constants = {t.name: tensor_type(t) for t in graph.initializer}
    for node in graph.node:
        tensor = attribute(node, "value") if node.op_type == "Constant" else None
        if tensor is not None:
            constants[node.output[0]] = tensor_type(tensor)
    known = {**constants, **types}
    stored = {
        t.name: t
        for t in graph.initializer
        if t.name not in given and t.data_location != onnx.TensorProto.EXTERNAL
    }
    opset = max((o.version for o in model.opset_import if o.domain in DEFAULT_DOMAINS), default=1)
    values, labels = NameSource(value_names(graph)), NameSource(node_names(graph))
    return lambda node: KernelSite(node, opset, known, stored, values, labels)


def _reads_of(model: onnx.ModelProto, one: Replaced) -> Sequence[str]:
    return reads(model.graph.node[one.node])


def _drop_unread(graph: onnx.GraphProto, candidates: Collection[str]) -> tuple[str, ...]:
    """Remove, in place, those initializers among `candidates` that nobody reads."""
    used = {name for node in graph.node for name in reads(node)}
    used.update(value.name for value in (*graph.output, *graph.input))
    unread = [t.name for t in graph.initializer if t.name in candidates and t.name not in used]
    kept = [t for t in graph.initializer if t.name not in unread]
    if unread:
        copies = [onnx.TensorProto.FromString(t.SerializeToString()) for t in kept]
        del graph.initializer[:]
        graph.initializer.extend(copies)
    return tuple(unread)
