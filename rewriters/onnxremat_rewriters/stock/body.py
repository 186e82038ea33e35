"""Hide and chain: the nodes of a plan, written so that a runtime must run them as planned.

Terms. A *step* is a node that computes at run time: neither constant nor a view. Two steps are
*linked* if the later one reads the earlier one, directly or through views; then no order can swap
them. An *edge* makes two consecutive steps linked: the later one reads one of its inputs through
an empty vector that exists once the earlier one has run.

If all consecutive steps are linked, the plan is the only topological order there is, whatever a
runtime's own order is and however its optimisations number the nodes that they make. With fewer
edges (`Edges.NEEDED`) the order holds as long as the runtime numbers nodes as the file does: they
stand at positions from which its search comes to them in the order of the plan (`embed`), as far as
there are such positions, and edges are written for the rest. A third of them does, or less.

An edge must survive the runtime's optimisations. Two would cut it: where the shape of the earlier
step's output is known (a scalar loss, a Size), the empty vector is folded to a constant; where
that step is a Transpose, its shape is taken from before the Transpose instead. There the output is
read through the token first, which no optimisation looks behind.
"""

from collections import Counter
from collections.abc import Collection, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise

import onnx

from onnxremat.importer.execution_order import default_order
from onnxremat.importer.nodes import DEFAULT_DOMAINS, is_constant, reads
from onnxremat.importer.views import VIEW_OPS
from onnxremat_rewriters.embed import placed
from onnxremat_rewriters.naming import rename_reads
from onnxremat_rewriters.recompute import MARK
from onnxremat_rewriters.stock.facts import RuntimeConstants, inferred_types, is_tensor
from onnxremat_rewriters.stock.forms import Forms

_SHAPED_BY_INPUT = frozenset({"Reshape", "Expand"})
_SHAPED_BY_FIRST = frozenset(
    {"Conv", "ConvTranspose", "FusedConv", "Gemm", "FusedGemm", "MatMul", "FusedMatMul"}
)
"""Ops whose other inputs are weights: nothing is known of the output's shape where nothing is known
of the first input's."""
_VIEWS = VIEW_OPS - {"Dropout", "Cast"}


class Edges(StrEnum):
    """Which consecutive steps get an edge."""

    NONE = "none"
    NEEDED = "needed"
    """Those without which the runtime's default order would leave the plan, wherever nodes
    stand."""
    ALL = "all"
    """All that are not linked anyway."""


@dataclass(frozen=True)
class Body:
    """`nodes` as they stand in the file; `steps` are the indices of the steps of the plan, in its
    order.

    `edges` counts the edges written; `loose` are the names of steps that could not be tied to
    the step before (no tensor to read through).
    """

    nodes: tuple[onnx.NodeProto, ...]
    steps: tuple[int, ...]
    edges: int
    loose: tuple[str, ...]


@dataclass(frozen=True)
class BodyPlan:
    """What is written: a model's nodes in order, and what is known of its values."""

    model: onnx.ModelProto
    constants: RuntimeConstants
    types: dict[str, onnx.TypeProto] = field(repr=False)

    @classmethod
    def of(cls, model: onnx.ModelProto, constants: RuntimeConstants) -> "BodyPlan":
        """The plan that a model in plan order is."""
        return cls(model, constants, inferred_types(model, model.graph.node))


def write_body(
    plan: BodyPlan, forms: Forms, token: str, *, hide: bool, edges: Edges, cover_all: bool = False
) -> Body:
    """The nodes of `plan.model`, hidden and chained. `token` is an empty vector's name.
    `cover_all`: whether the runtime may know the shape of any value.

    The same `forms` must not be used for another body of the same model. O(nodes) for NONE and
    ALL, O(nodes x rounds) for NEEDED, with a round for each layer of edges found.
    """
    hidden = _hidden(plan, forms, token) if hide else _as_it_is(plan)
    if cover_all:
        hidden = replace(hidden, shapes_hidden=False)
    if edges is Edges.NONE:
        return Body(tuple(hidden.nodes), hidden.steps, 0, ())
    chain = _Chain(hidden, plan, forms, token)
    return chain.tied(chain.unlinked(), forms) if edges is Edges.ALL else chain.needed()


@dataclass(frozen=True)
class _Hidden:
    """Nodes before they are chained. `constant` are names of values without edges through them.
    `shapes_hidden`: whether the shapes that can be inferred here are all that the runtime knows."""

    nodes: list[onnx.NodeProto]
    steps: tuple[int, ...]
    constant: frozenset[str]
    shapes_hidden: bool


def _as_it_is(plan: BodyPlan) -> _Hidden:
    outputs = {value.name for value in plan.model.graph.output}
    nodes: list[onnx.NodeProto] = []
    steps = []
    for index, node in enumerate(plan.model.graph.node):
        if index not in plan.constants.nodes and not _is_view(node, outputs):
            steps.append(len(nodes))
        nodes.append(_copy(node))
    return _Hidden(nodes, tuple(steps), plan.constants.names, shapes_hidden=False)


def _hidden(plan: BodyPlan, forms: Forms, token: str) -> _Hidden:
    """Inputs and constant shapes read through the token; copies of constant nodes merged. Inputs
    that are weights of other values only stay: they say no more than a stored weight does.

    A Transpose that several nodes read is read through the token too: a runtime would fuse it into
    some of them, and make it for the others when they run, later than planned.
    """
    graph = plan.model.graph
    constants = plan.constants
    outputs = {value.name for value in graph.output}
    stored = {tensor.name for tensor in graph.initializer}
    readers = Counter(name for node in graph.node for name in set(reads(node)))
    nodes: list[onnx.NodeProto] = []
    names: dict[str, str] = {}
    weights = _weights_only(graph, constants)
    for value in graph.input:
        if (
            value.name in stored
            or value.name not in readers
            or value.name in weights
            or not is_tensor(value.name, plan.types)
        ):
            continue
        nodes += forms.through(value.name, token, f"hidden__{value.name}")
        names[value.name] = nodes[-1].output[0]
    vectors: dict[str, str] = {}
    folded: dict[bytes, Sequence[str]] = {}
    steps = []
    for index, original in enumerate(graph.node):
        node = _copy(original)
        rename_reads(node, names)
        if index in constants.nodes:
            if not outputs.intersection(node.output) and _seen(node, folded, names):
                continue
        else:
            shape = _constant_shape(node, constants)
            if shape is not None:
                if shape not in vectors:
                    nodes.append(forms.hidden_vector(shape, token))
                    vectors[shape] = nodes[-1].output[0]
                node.input[1] = vectors[shape]
            if not _is_view(node, outputs):
                steps.append(len(nodes))
        nodes.append(node)
        if (
            node.op_type == "Transpose"
            and index not in constants.nodes
            and readers[node.output[0]] > 1
        ):
            nodes += forms.through(node.output[0], token, f"kept__{node.output[0]}")
            names[node.output[0]] = nodes[-1].output[0]
    return _Hidden(nodes, tuple(steps), constants.names, shapes_hidden=True)


def _weights_only(graph: onnx.GraphProto, constants: RuntimeConstants) -> frozenset[str]:
    """Values that are read as weights of values of unknown shape, and by nothing else."""
    weights, others = set[str](), set[str]()
    for node in graph.node:
        first = node.input[0] if node.input else ""
        weighs = node.op_type in _SHAPED_BY_FIRST and first not in constants.names
        for name in reads(node):
            (weights if weighs and name != first else others).add(name)
    return frozenset(weights - others)


def _is_sized(kind: onnx.TypeProto) -> bool:
    """Whether all sizes of a value are known before the run."""
    tensor = kind.tensor_type
    return tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)


def _seen(node: onnx.NodeProto, folded: dict[bytes, Sequence[str]], names: dict[str, str]) -> bool:
    """Whether a constant node was written before (a recomputed one is folded, and held, twice).

    Its outputs are then read from there.
    """
    bare = onnx.NodeProto(op_type=node.op_type, domain=node.domain, input=node.input)
    bare.attribute.extend(a for a in node.attribute if a.name != MARK)
    if node.op_type == "Constant":
        return False
    before = folded.setdefault(bare.SerializeToString(deterministic=True), list(node.output))
    if list(before) == list(node.output):
        return False
    names.update(zip(node.output, before, strict=False))
    return True


def _constant_shape(node: onnx.NodeProto, constants: RuntimeConstants) -> str | None:
    """The name of the constant that says the shape of the node's output, if one does."""
    if node.domain not in DEFAULT_DOMAINS or node.op_type not in _SHAPED_BY_INPUT:
        return None
    return node.input[1] if node.input[1] in constants.names else None


@dataclass
class _Chain:
    """Writes edges between the steps of a list of nodes."""

    hidden: _Hidden
    plan: BodyPlan
    forms: Forms
    token: str

    def __post_init__(self) -> None:
        nodes, steps = self.hidden.nodes, self.hidden.steps
        self._outlet = {s: self._tensor_made(nodes[s]) for s in steps}
        self._covered = self._values_to_cover()
        self._inlet = {s: self._tensor_read(nodes[s]) for s in steps}

    def unlinked(self) -> set[int]:
        """Steps that do not read the step before them."""
        reached: dict[str, frozenset[int]] = {}
        steps = set(self.hidden.steps)
        previous, found = -1, set()
        for index, node in enumerate(self.hidden.nodes):
            behind = frozenset[int]().union(*(reached.get(n, frozenset()) for n in reads(node)))
            if index not in steps:
                reached.update(dict.fromkeys(node.output, behind))
                continue
            if previous >= 0 and previous not in behind:
                found.add(index)
            reached.update(dict.fromkeys(node.output, frozenset({index})))
            previous = index
        return found

    def needed(self) -> Body:
        """Edges added, where the emulated default order leaves the plan, until it does not."""
        unlinked = self.unlinked()
        tied: set[int] = set()
        while True:
            body = _placed(self.tied(tied, deepcopy(self.forms)))
            place = {index: i for i, index in enumerate(default_order(body.nodes))}
            where = [place[index] for index in body.steps]
            compared = zip(self.hidden.steps[1:], pairwise(where), strict=True)
            early = {step for step, (before, own) in compared if own < before}
            if not (early & unlinked) - tied:
                return _placed(self.tied(tied, self.forms))
            tied |= early & unlinked

    def tied(self, chosen: Collection[int], forms: Forms) -> Body:
        """The nodes with an edge from the step before to each step in `chosen`."""
        nodes: list[onnx.NodeProto] = []
        steps, loose, edges = [], [], 0
        outlet: str | None = None
        wanted = set(self.hidden.steps)
        for index, original in enumerate(self.hidden.nodes):
            node = original
            if index in chosen:
                position = self._inlet[index]
                if outlet is None or position is None:
                    loose.append(node.name or node.op_type)
                else:
                    node = _copy(original)
                    nodes += self._edge(node, position, outlet, edges, forms)
                    edges += 1
            if index in wanted:
                steps.append(len(nodes))
                outlet = self._outlet[index] or outlet
            nodes.append(node)
        return Body(tuple(nodes), tuple(steps), edges, tuple(loose))

    def _edge(
        self, node: onnx.NodeProto, position: int, outlet: str, number: int, forms: Forms
    ) -> list[onnx.NodeProto]:
        """Let `node`, in place, read an input through an empty vector after `outlet`."""
        added, seen = [], outlet
        if outlet in self._covered:
            added = forms.through(outlet, self.token, f"seen{number}")
            seen = added[-1].output[0]
        added += forms.empty_after(seen, f"after{number}")
        added += forms.through(node.input[position], added[-1].output[0], f"edge{number}")
        node.input[position] = added[-1].output[0]
        return added

    def _values_to_cover(self) -> Collection[str]:
        """Those of which an edge that begins at them would be cut: of known shape, or transposed.
        All, where that cannot be told."""
        nodes, types = self.hidden.nodes, dict[str, onnx.TypeProto]()
        if self.hidden.shapes_hidden:
            types = inferred_types(self.plan.model, [*self.forms.prelude, *nodes])
        if not types:
            return {name for node in nodes for name in node.output}
        transposed = {n for node in nodes if node.op_type == "Transpose" for n in node.output}
        return transposed | {name for name, kind in types.items() if _is_sized(kind)}

    def _tensor_made(self, node: onnx.NodeProto) -> str | None:
        names = (name for name in node.output if name and is_tensor(name, self.plan.types))
        return next(names, None)

    def _tensor_read(self, node: onnx.NodeProto) -> int | None:
        """The input to read through: one that is not constant, or else one that is no weight."""
        constant = self.hidden.constant
        tensors = [
            i for i, name in enumerate(node.input) if name and is_tensor(name, self.plan.types)
        ]
        varying = [i for i in tensors if node.input[i] not in constant]
        if varying:
            return varying[0]
        spare = [i for i in tensors if i == 0 or node.op_type not in _SHAPED_BY_FIRST]
        return spare[0] if spare else None


def _placed(body: Body) -> Body:
    """The same with its nodes where the runtime's search comes to the steps in their order, if
    there are such positions."""
    steps = set(body.steps)
    free = {v for v, node in enumerate(body.nodes) if v not in steps and not is_constant(node)}
    origin = placed(body.nodes, free).origin
    if origin is None:
        return body
    position = {v: i for i, v in enumerate(origin)}
    nodes = tuple(body.nodes[v] for v in origin)
    return replace(body, nodes=nodes, steps=tuple(position[v] for v in body.steps))


def _is_view(node: onnx.NodeProto, outputs: set[str]) -> bool:
    return (
        node.op_type in _VIEWS
        and node.domain in DEFAULT_DOMAINS
        and not outputs.intersection(node.output)
    )


def _copy(node: onnx.NodeProto) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    return copy
