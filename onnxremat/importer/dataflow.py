"""From a model and the types of its values to the Graph that planners work on.

What is an Op: every node that computes at run time. What is not: Constant nodes, with
`fold_constants` also pure nodes on constants alone (a session that optimises has folded them), and
views (see views.py). Without `fold_constants` a node on weights alone is an ordinary Op: a session
that does not optimise runs it each time, and its output takes memory like any other.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from onnx import ModelProto, NodeProto

from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.importer.constants import Constants, find_constants
from onnxremat.importer.costs import DEFAULT_COSTS, CostModel, op_ns
from onnxremat.importer.load import LoadedModel, given_inputs
from onnxremat.importer.nodes import captured, op_key
from onnxremat.importer.purity import inference_dropout, is_recomputable
from onnxremat.importer.sizes import check_sizes
from onnxremat.importer.values import ValueType
from onnxremat.importer.views import (
    VIEW_OPS,
    View,
    find_views,
    operands,
    roots,
    training_mode,
)


@dataclass(frozen=True)
class ImportedModel:
    """A model and its Graph, with what leads from one to the other.

    `op_nodes[v]` is the index in `model.graph.node` of op v. `views` are the values that are no
    tensors of their own. `tensor_of` leads from the name of a value to the index of the tensor
    whose bytes it is; the one kind of value it lacks is an output of a view node that nobody reads
    (Dropout's mask). `constant_nodes` never are Ops. `input_shapes` are the sizes that the Graph
    holds for.
    """

    model: ModelProto
    graph: Graph
    op_nodes: tuple[int, ...]
    views: Mapping[str, View]
    tensor_of: Mapping[str, int]
    constant_nodes: frozenset[int]
    input_shapes: Mapping[str, tuple[int, ...]]


def import_model(
    loaded: LoadedModel,
    types: Mapping[str, ValueType],
    *,
    view_ops: Collection[str] = VIEW_OPS,
    eager_ops: Collection[str] = (),
    fold_constants: bool = False,
    workspace: Mapping[int, int] | None = None,
    costs: CostModel = DEFAULT_COSTS,
    measured_ns: Mapping[int, int] | None = None,
    allow_recompute: Collection[str] = (),
    kept_single: Collection[int] = (),
) -> ImportedModel:
    """The Graph of a model's top-level nodes; bodies of subgraphs are not looked into.

    `types` come from `infer_types`. `workspace` and `measured_ns` map node indices to bytes of
    kernel workspace and to durations; a measured duration wins over the cost model.
    `allow_recompute` names op types (bare, or `domain::type`) that may be recomputed although
    their purity is unknown; `kept_single` are node indices that never may. `view_ops` and
    `eager_ops` are the runtime's.

    An Op reads, in this order and without absent ones: the roots of its node's inputs, the roots of
    values that its subgraphs capture, and the roots of what views on the way needed. Values added
    after the inputs stand once, and what a view needs is left out if it is a weight.

    Raises ModelError, naming the value, if the size of one that a runtime allocates is unknown or
    if it is no tensor. O(nodes + reads).
    """
    nodes = loaded.model.graph.node
    constants = find_constants(loaded, fold_constants)
    views = find_views(loaded, constants, types, view_ops)
    view_nodes = {view.node for view in views.values()}
    op_nodes = tuple(
        index
        for index in range(len(nodes))
        if index not in constants.nodes and index not in view_nodes
    )
    tensors = _tensors(loaded, types, constants, op_nodes)
    index_of = {tensor.name: index for index, tensor in enumerate(tensors)}
    root = roots(views)
    reader = _Reader(index_of, root, operands(views, nodes, constants.names))
    names = _unique_names(nodes)
    ops = tuple(
        Op(
            name=names[index],
            op_type=op_key(nodes[index]),
            inputs=reader.reads(nodes[index]),
            outputs=tuple(index_of[name] for name in nodes[index].output if name),
            cost=_cost(index, nodes[index], types, costs, measured_ns or {}),
            workspace_bytes=(workspace or {}).get(index, 0),
            recomputable=index not in kept_single
            and _recomputable(nodes[index], loaded, constants, eager_ops, allow_recompute),
            eager=op_key(nodes[index]) in eager_ops,
        )
        for index in op_nodes
    )
    inputs = [value.name for value in given_inputs(loaded.model.graph)]
    graph = Graph(
        tensors=tensors,
        ops=ops,
        inputs=tuple(index_of[name] for name in inputs),
        outputs=tuple(index_of[value.name] for value in loaded.model.graph.output),
    )
    tensor_of = index_of | {name: index_of[root[name]] for name in views}
    return ImportedModel(
        model=loaded.model,
        graph=graph,
        op_nodes=op_nodes,
        views=views,
        tensor_of=tensor_of,
        constant_nodes=constants.nodes,
        input_shapes={name: types[name].shape for name in inputs},
    )


@dataclass(frozen=True)
class _Reader:
    """Finds which tensors a node reads: `roots` and `operands` are those of views."""

    index_of: Mapping[str, int]
    roots: Mapping[str, str]
    operands: Mapping[str, tuple[str, ...]]

    def reads(self, node: NodeProto) -> tuple[int, ...]:
        own = [self.roots.get(name, name) for name in node.input if name]
        behind = captured(node)
        added = dict.fromkeys(self.roots.get(name, name) for name in behind)
        for name in (*node.input, *behind):
            added.update(dict.fromkeys(self.operands.get(name, ())))
        present = set(own)
        extra = [name for name in added if name not in present]
        return tuple(self.index_of[name] for name in (*own, *extra))


def _tensors(
    loaded: LoadedModel,
    types: Mapping[str, ValueType],
    constants: Constants,
    op_nodes: Iterable[int],
) -> tuple[Tensor, ...]:
    """Graph inputs, then weights, then what the ops make, each in the file's order."""
    graph = loaded.model.graph
    folded = (
        name
        for index in sorted(constants.nodes)
        for name in graph.node[index].output
        if name and name not in constants.types
    )
    made = (name for index in op_nodes for name in graph.node[index].output if name)
    kinds = {
        TensorKind.INPUT: [value.name for value in given_inputs(graph)],
        TensorKind.WEIGHT: [*constants.types, *folded],
        TensorKind.ACTIVATION: list(made),
    }
    check_sizes([name for names in kinds.values() for name in names], loaded, types)
    return tuple(
        Tensor(name, types[name].shape, types[name].dtype, types[name].nbytes, kind)
        for kind, names in kinds.items()
        for name in names
    )


def _cost(
    index: int,
    node: NodeProto,
    types: Mapping[str, ValueType],
    costs: CostModel,
    measured_ns: Mapping[int, int],
) -> int:
    if index in measured_ns:
        return measured_ns[index]
    inputs = [types.get(name) for name in node.input]
    outputs = [types.get(name) for name in node.output]
    return op_ns(node, inputs, outputs, costs)


def _recomputable(
    node: NodeProto,
    loaded: LoadedModel,
    constants: Constants,
    eager_ops: Collection[str],
    allowed: Collection[str],
) -> bool:
    """Eager ops run at once, wherever they stand: to run one again gains nothing."""
    if op_key(node) in eager_ops:
        return False
    mode = training_mode(node, loaded, constants)
    return inference_dropout(node, loaded.opset, mode) or is_recomputable(node, allowed)


def _unique_names(nodes: Sequence[NodeProto]) -> list[str]:
    """A readable name for every node: its own, or its op type and index; suffixed if taken."""
    taken: set[str] = set()
    counts: dict[str, int] = {}
    names = []
    for index, node in enumerate(nodes):
        wanted = node.name or f"{node.op_type}_{index}"
        name = wanted
        while name in taken:
            counts[wanted] = counts.get(wanted, 1) + 1
            name = f"{wanted}_{counts[wanted]}"
        taken.add(name)
        names.append(name)
    return names
