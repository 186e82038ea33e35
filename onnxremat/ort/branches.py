"""A model that does all its work in a branch, with the branch's nodes put in its place.

A branch that captures a value which is no tensor gets no memory pattern (see `pattern`); the
stock rewriter of onnxremat puts whole models into such a branch. It has a frame of its own, but
the arena, and the session's options, are those of the outer graph. As long as the outer graph
makes nothing of size, memory is that of one flat graph without a pattern.
"""

import json
from collections.abc import Mapping
from pathlib import Path

import onnx

from onnxremat.core.errors import ModelError
from onnxremat.importer.nodes import attribute, reads
from onnxremat.ort.child import actions as worker_actions
from onnxremat.ort.child.process import ModelSource, run_job
from onnxremat.ort.child.wire import Array
from onnxremat.ort.measuring.profile import executed_inner_nodes, inner_nodes, named_copy
from onnxremat.ort.recipe import Recipe

_SEQUENCE_MAKERS = frozenset(
    {"SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert", "SplitToSequence"}
)


def working_branch(model: onnx.ModelProto) -> int | None:
    """The index of the `If` that does all the work: the last node, the only one with subgraphs,
    all outputs of the model are its own, and one of its branches captures a sequence. None if the
    model is not of this form."""
    nodes = model.graph.node
    if not nodes or nodes[-1].op_type != "If" or nodes[-1].domain not in ("", "ai.onnx"):
        return None
    if any(a.HasField("g") or a.graphs for node in nodes[:-1] for a in node.attribute):
        return None
    made = set(nodes[-1].output)
    outer = {name for node in nodes[:-1] for name in node.output}
    sequences = {n for node in nodes if node.op_type in _SEQUENCE_MAKERS for n in node.output}
    captured = set(reads(nodes[-1]))
    outputs = {value.name for value in model.graph.output}
    if outputs & outer or not outputs & made or not captured & sequences:
        return None
    return len(nodes) - 1


def with_branch_inlined(model: onnx.ModelProto, index: int, branch: str) -> onnx.ModelProto:
    """A copy in which the nodes of a branch stand instead of the `If` at `index`.

    `branch` is the one that is taken, `then_branch` or `else_branch`. The condition is still
    computed. Names must be unique over both graphs, as ONNX demands. Raises ModelError if an
    output of the branch is a value of the outer graph, or one twice.
    """
    node = model.graph.node[index]
    body: onnx.GraphProto = attribute(node, branch)
    inner = [value.name for value in body.output]
    made = {name for one in body.node for name in one.output}
    if len(set(inner)) < len(inner) or not made.issuperset(inner):
        raise ModelError("a branch whose outputs it does not make itself cannot be put in place")
    names = {a: b for a, b in zip(inner, node.output, strict=True) if b}
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    before, behind = model.graph.node[:index], model.graph.node[index + 1 :]
    del copy.graph.node[:]
    copy.graph.node.extend(before)
    copy.graph.node.extend(_renamed(one, names) for one in body.node)
    copy.graph.node.extend(behind)
    copy.graph.initializer.extend(body.initializer)
    copy.graph.sparse_initializer.extend(body.sparse_initializer)
    copy.graph.value_info.extend(v for v in body.value_info if v.name not in names)
    return copy


def early_outputs(node: onnx.NodeProto, branch: str) -> tuple[str, ...]:
    """The outputs of an `If` that are allocated before its branch runs: those whose sizes the
    branch states (the runtime's file states what it infers). Others are when they are made."""
    body: onnx.GraphProto = attribute(node, branch)
    return tuple(
        name
        for name, value in zip(node.output, body.output, strict=True)
        if value.type.tensor_type.HasField("shape")
        and all(d.HasField("dim_value") for d in value.type.tensor_type.shape.dim)
    )


def _renamed(node: onnx.NodeProto, names: dict[str, str]) -> onnx.NodeProto:
    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    for field in (copy.input, copy.output):
        for i, name in enumerate(field):
            field[i] = names.get(name, name)
    for one in copy.attribute:
        for graph in ([one.g] if one.HasField("g") else []) + list(one.graphs):
            for i, inner in enumerate(list(graph.node)):
                graph.node[i].CopyFrom(_renamed(inner, names))
    return copy


def taken_branch(
    model: onnx.ModelProto,
    base_dir: Path | str,
    inputs: Mapping[str, Array],
    recipe: Recipe,
    index: int,
) -> str:
    """The attribute of the branch of the `If` at `index` that a run takes. Runs the model once, in
    a child. Raises ModelError if the runtime refuses, or if neither branch has a node that ran.
    """
    source = ModelSource(model=named_copy(model), base_dir=Path(base_dir))
    with run_job(worker_actions.profile, [source], [recipe], inputs, options={"runs": 1}) as job:
        events = json.loads((job.folder / job.answer["profile"]).read_text(encoding="utf-8"))
    ran = set(executed_inner_nodes(events, index))
    number = 0
    for body in model.graph.node[index].attribute:
        count = sum(1 for _ in inner_nodes(onnx.NodeProto(attribute=[body])))
        if not ran.isdisjoint(range(number, number + count)):
            return str(body.name)
        number += count
    raise ModelError("no node of either branch ran")
