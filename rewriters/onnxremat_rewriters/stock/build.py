"""`stock`: one model in, one model out; nothing is run."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import onnx

from onnxremat.core.errors import ModelError
from onnxremat.importer.nodes import attribute
from onnxremat_rewriters.naming import NameSource, node_names, value_names
from onnxremat_rewriters.stock.body import Body, BodyPlan, Edges, write_body
from onnxremat_rewriters.stock.checked_sizes import Sizes
from onnxremat_rewriters.stock.facts import find_constants
from onnxremat_rewriters.stock.forms import PREFIX, THROUGH, Forms
from onnxremat_rewriters.stock.largest_first import largest_first
from onnxremat_rewriters.stock.opset import standard_opset, with_sequences
from onnxremat_rewriters.stock.weights import in_function
from onnxremat_rewriters.stock.wrap import wrapped

STOCK_KEY = "onnxremat.stock"
"""Metadata entry of a file that this rewriter made; its value says with which parts (JSON)."""


@dataclass(frozen=True)
class StockModel:
    """A model that keeps its order and memory in a session with default options.

    `steps` are the steps of the plan in its order, each by the first value that it makes (names as
    in `planned_graph(model)`). `edges` counts the edges between consecutive steps. `notes` say
    what could not be done.
    """

    model: onnx.ModelProto
    steps: tuple[str, ...]
    edges: int
    notes: tuple[str, ...]


def is_stock(model: onnx.ModelProto) -> bool:
    """Whether this rewriter made the model."""
    return any(entry.key == STOCK_KEY for entry in model.metadata_props)


def stock(
    model: onnx.ModelProto,
    *,
    hide: bool = True,
    chain: bool = True,
    wrap: bool = True,
    edges: Edges = Edges.ALL,
    warm_bytes: int = 0,
    local_weights: bool | None = None,
    stated: bool | None = None,
    cover_all: bool = False,
    sizes: Sizes = MappingProxyType({}),
) -> StockModel:
    """`model`, whose nodes are in plan order, made to keep its plan under default options.

    The parts are those of the package's description; `edges` says which edges `chain` writes.
    `local_weights` keeps weights of convolutions where layout optimisations find them (see
    `weights`), `stated` what is declared of inner values; both by default where shapes are not
    hidden (only with `wrap`; else inner value_info goes). Behind an edge no shape is inferred, and
    what the runtime optimizes by shape it does where they are stated. With `cover_all` edges begin
    behind a node that hides the shape of any value, not only of those whose shapes are found here:
    from what is stated the runtime may infer more. `sizes` are shapes of inputs outside of which
    the model has to fail, though it declares less (module `checked_sizes`; only with `wrap`).
    Declared inputs, outputs, initializers and metadata stay. Values are the same bit for bit as far
    as the runtime executes the nodes as they are.

    Raises ModelError if the model was made by `stock` already, is of an operator set that cannot
    be raised to one with sequences, or has an output whose type no branch can make.
    """
    if sizes and not wrap:
        raise ValueError("only a model in a branch can be made to fail at other sizes")
    if is_stock(model):
        raise ModelError("the model was already rewritten for stock options")
    result = with_sequences(model)
    constants = find_constants(result)
    plan = BodyPlan.of(result, constants)
    forms = Forms(
        standard_opset(result),
        NameSource(value_names(result.graph)),
        NameSource(node_names(result.graph)),
    )
    sequence = forms.sequence()
    token = forms.token(sequence.output[0], warm_bytes)
    stated = not hide if stated is None else stated
    body = write_body(
        plan, forms, token, hide=hide, edges=edges if chain else Edges.NONE, cover_all=cover_all
    )
    if stated:
        _state_edges(result.graph, body)
    steps = [body.nodes[index] for index in body.steps]
    uses_token = hide or body.edges > 0
    nodes = [*(forms.prelude if uses_token else ()), *body.nodes]
    if wrap:
        local = not hide if local_weights is None else local_weights
        weights = constants.names if local else frozenset[str]()
        graph = wrapped(
            result, nodes, sequence, forms, plan.types,
            local_weights=weights, stated=stated, sizes=sizes,
        )  # fmt: skip
        result.graph.CopyFrom(graph)
    else:
        del result.graph.node[:], result.graph.value_info[:]
        result.graph.node.extend([sequence, *nodes] if uses_token else nodes)
    made = tuple(next(name for name in node.output if name) for node in steps)
    parts = {"hide": hide, "chain": chain, "wrap": wrap, "edges": body.edges, "steps": made}
    result.metadata_props.add(key=STOCK_KEY, value=json.dumps(parts, sort_keys=True))
    return StockModel(result, made, body.edges, tuple(_notes(model, result, body)))


def _state_edges(graph: onnx.GraphProto, body: Body) -> None:
    """State of what is read through an edge what is stated of the value itself, in place: pools are
    laid out in blocks where the shape of what they read is known."""
    stated = {value.name: value.type for value in graph.value_info}
    for node in body.nodes:
        name = node.output[0]
        if name.startswith(PREFIX) and node.op_type in THROUGH and node.input[0] in stated:
            graph.value_info.add(name=name, type=stated[node.input[0]])


def read_stock(model: onnx.ModelProto) -> StockModel | None:
    """What `stock` answered when it made the model of a file (without the notes), or None."""
    if not is_stock(model):
        return None
    parts = _parts(model)
    return StockModel(model, tuple(parts["steps"]), parts["edges"], ())


def with_weights_in_function(model: onnx.ModelProto, *, by_size: bool = False) -> bool:
    """Let weights in the branch of a stock model that lie in a file come from a local function, in
    place (see `weights`); `by_size`: and be laid out from the largest down (`largest_first`), where
    that can be done. Whether it was."""
    branch = planned_graph(model)
    if branch is model.graph:
        return False
    sorted_ = by_size and largest_first(model, branch)
    in_function(model, branch)
    return sorted_


def planned_graph(model: onnx.ModelProto) -> onnx.GraphProto:
    """The graph of a stock model that does the work: the branch, or the model's own."""
    if not _parts(model)["wrap"]:
        return model.graph
    branch: onnx.GraphProto = attribute(model.graph.node[-1], "then_branch")
    return branch


def _parts(model: onnx.ModelProto) -> dict[str, Any]:
    parts: dict[str, Any] = next(
        json.loads(entry.value) for entry in model.metadata_props if entry.key == STOCK_KEY
    )
    return parts


def _notes(before: onnx.ModelProto, after: onnx.ModelProto, body: Body) -> Iterator[str]:
    if standard_opset(before) != standard_opset(after):
        yield f"operator set raised from {standard_opset(before)} to {standard_opset(after)}"
    if body.loose:
        named = ", ".join(body.loose[:3]) + (" ..." if len(body.loose) > 3 else "")
        yield f"{len(body.loose)} steps read no tensor and may run early: {named}"
