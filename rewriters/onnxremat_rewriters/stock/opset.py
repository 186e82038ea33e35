"""The operator set: sequences, which the token and the wrap are made of, exist from 11 on.

A model of an older set is raised to 11 if every one of its ops means the same there. What is
compared is the schema: the parameters it had keep their place, type and default, and what was
added is optional. An op that was given another form (Clip, Pad, Slice, TopK, ...) is refused.
"""

from collections.abc import Collection, Iterator, Sequence

import onnx
from onnx.defs import OpSchema

from onnxremat.core.errors import ModelError
from onnxremat.importer.nodes import DEFAULT_DOMAINS, subgraphs

SEQUENCES = 11
"""First standard operator set with sequences."""
OLDEST = 9
"""First standard operator set with ConstantOfShape; nothing older is taken."""


def standard_opset(model: onnx.ModelProto) -> int:
    """The version of the standard operator set, 0 if the model does not import it."""
    return next((o.version for o in model.opset_import if o.domain in DEFAULT_DOMAINS), 0)


def with_sequences(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `model` whose standard operator set is at least 11, with nothing else changed.

    Raises ModelError, naming the op, if that would change what the model means.
    """
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    version = standard_opset(model)
    if version >= SEQUENCES:
        return copy
    if version < OLDEST:
        raise ModelError(
            f"the model uses operator set {version}: stock needs {OLDEST} or later "
            f"(onnx.version_converter can raise it)"
        )
    nodes = list(_all_nodes(model.graph))
    read = {name for node in nodes for name in node.input}
    read |= {value.name for graph in _all_graphs(model.graph) for value in graph.output}
    for node in nodes:
        if node.domain in DEFAULT_DOMAINS and not _same_meaning(node, version, read):
            raise ModelError(
                f"the model uses operator set {version}, and {node.op_type} has another form in "
                f"{SEQUENCES}, which stock needs: raise it first (onnx.version_converter)"
            )
    for entry in copy.opset_import:
        if entry.domain in DEFAULT_DOMAINS:
            entry.version = SEQUENCES
    return copy


def _all_graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    yield graph
    for node in graph.node:
        for body in subgraphs(node):
            yield from _all_graphs(body)


def _all_nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for part in _all_graphs(graph):
        yield from part.node


def _same_meaning(node: onnx.NodeProto, version: int, read: Collection[str]) -> bool:
    """Whether the node says in set 11 what it says in set `version`.

    An output that nobody reads says nothing (the mask of a Dropout has another type).
    """
    if not onnx.defs.has(node.op_type, version, ""):
        return True  # an op of the runtime's own in the standard domain
    old = onnx.defs.get_schema(node.op_type, version, "")
    if not onnx.defs.has(node.op_type, SEQUENCES, ""):
        return False
    new = onnx.defs.get_schema(node.op_type, SEQUENCES, "")
    if old.since_version == new.since_version:
        return True
    outputs = max((i for i, name in enumerate(node.output, 1) if name in read), default=0)
    return (
        not new.deprecated
        and _attributes_kept(old, new)
        and _parameters_kept(old.inputs, new.inputs, len(node.input))
        and _parameters_kept(old.outputs, new.outputs, outputs)
    )


def _attributes_kept(old: OpSchema, new: OpSchema) -> bool:
    for name, was in old.attributes.items():
        now = new.attributes.get(name)
        if now is None or now.type != was.type:
            return False
        if was.default_value.type and was.default_value != now.default_value:
            return False
    added = set(new.attributes) - set(old.attributes)
    return not any(new.attributes[name].required for name in added)


def _parameters_kept(
    old: Sequence[OpSchema.FormalParameter], new: Sequence[OpSchema.FormalParameter], present: int
) -> bool:
    """The parameters that the node has keep place and types, and none was added that it needs."""
    for was, now in zip(old[:present], new[:present], strict=False):
        if now.option not in (was.option, OpSchema.FormalParameterOption.Optional):
            return False
        if not set(was.types) <= set(now.types):
            return False
    required = OpSchema.FormalParameterOption.Single
    return min(present, len(old)) <= len(new) and not any(
        parameter.option == required for parameter in new[len(old) :]
    )
