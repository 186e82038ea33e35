"""Model-local functions, expanded as ONNX Runtime does it.

onnx's inliner does the renaming. It does not know of defaults: an attribute of a function that has
one, and that a call does not give, it drops where the body refers to it, so that the operator's own
default holds there. And it refuses functions that name other operator sets than the model, where
the runtime keeps to those that each names.
"""

from collections.abc import Iterable

import onnx
from onnx import FunctionProto, ModelProto, NodeProto, inliner

from onnxremat.core.errors import ModelError
from onnxremat.importer.calls import Key, call_key, function_key, nodes_at_any_depth
from onnxremat.importer.inference import ONNX_ERRORS
from onnxremat.importer.nodes import DEFAULT_DOMAINS, schema_domain

_NOT_LOOKED_AT = (*DEFAULT_DOMAINS, "ai.onnx.ml", "ai.onnx.training")
"""Domains in which ONNX Runtime takes its own operators, and has none where it has none."""

_RUNTIME_DOMAINS = ("com.microsoft", "com.ms.internal", "org.pytorch.aten")
"""Domains, and beginnings of domains, of ONNX Runtime's own operators."""


def with_functions_expanded(model: ModelProto) -> ModelProto:
    """The model without functions, nodes in the place of calls. `model` stays as it is.

    ONNX Runtime does not look at a function in a domain of standard operators, nor at one that
    nothing calls. Where it may have an operator of its own it runs that, and the function
    otherwise. Raises ModelError for those, and where a function needs other operators than the
    model's operator sets have. `check_calls` has said that calls end. O(nodes x depth of calls).
    """
    for function in model.functions:
        if _may_be_an_operator(function):
            raise ModelError(
                f"its function {function.name!r} is in the domain {function.domain!r}, where ONNX "
                "Runtime may have an operator of that name: which of the two it runs, depends on it"
            )
    made = ModelProto()
    made.CopyFrom(model)
    del made.functions[:]
    made.functions.extend(_called(model))
    _take_opsets(made)
    with_defaults = any(function.attribute_proto for function in made.functions)
    while made.functions:
        functions = list(made.functions)
        outer = _called_by_none(functions) if with_defaults else functions
        by_key = {function_key(function): function for function in outer}
        for node in nodes_at_any_depth(made.graph.node):
            _give_defaults(node, by_key)
        try:
            made = inliner.inline_selected_functions(
                made, [(one.domain, one.name) for one in outer]
            )
        except ONNX_ERRORS as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ModelError(f"its model-local functions cannot be expanded: {reason}") from None
        del made.functions[:]
        made.functions.extend(one for one in functions if function_key(one) not in by_key)
    return made


def _may_be_an_operator(function: FunctionProto) -> bool:
    """Whether a build of ONNX Runtime may have an operator of a function's name, so that the name
    alone does not say which of the two it runs."""
    domain = function.domain
    if domain in _NOT_LOOKED_AT:
        return False
    own = any(domain == one or domain.startswith(f"{one}.") for one in _RUNTIME_DOMAINS)
    return own or bool(onnx.defs.has(function.name, domain))


def _called(model: ModelProto) -> list[FunctionProto]:
    """The functions that the runtime looks at and the graph calls, itself or by another one."""
    known = {
        function_key(function): function
        for function in model.functions
        if function.domain not in _NOT_LOOKED_AT
    }
    found: dict[Key, FunctionProto] = {}
    waiting: list[Iterable[NodeProto]] = [model.graph.node]
    while waiting:
        for key in map(call_key, nodes_at_any_depth(waiting.pop())):
            if key in known and key not in found:
                found[key] = known[key]
                waiting.append(known[key].node)
    return list(found.values())


def _called_by_none(functions: list[FunctionProto]) -> list[FunctionProto]:
    """The functions that no other one calls: calls of them have values for their attributes, not
    references to another function's. The inliner takes all overloads of a name together."""
    inner = {call_key(node)[:2] for one in functions for node in nodes_at_any_depth(one.node)}
    outer = [one for one in functions if function_key(one)[:2] not in inner]
    if not outer:
        name = functions[0].name
        raise ModelError(f"an overload of its function {name!r} calls another one: not supported")
    return outer


def _give_defaults(node: NodeProto, functions: dict[Key, FunctionProto]) -> None:
    """Give a call all attributes that its function has values for, where it names none itself."""
    function = functions.get(call_key(node))
    if function is None:
        return
    given = {attribute.name for attribute in node.attribute}
    node.attribute.extend(one for one in function.attribute_proto if one.name not in given)


def _take_opsets(model: ModelProto) -> None:
    """Let functions name the operator sets of the model, where their operators are the same in
    both. Raises ModelError where one is not."""
    local = {function_key(function) for function in model.functions}
    here = {schema_domain(opset.domain): opset.version for opset in model.opset_import}
    for function in model.functions:
        own = {schema_domain(opset.domain): opset.version for opset in function.opset_import}
        for node in nodes_at_any_depth(function.node):
            key = call_key(node)
            if key not in local:
                _require_same_operator(function.name, node.op_type, key[0], own, here)
        for opset in function.opset_import:
            opset.version = here.get(schema_domain(opset.domain), opset.version)


def _require_same_operator(
    function: str, op_type: str, domain: str, own: dict[str, int], here: dict[str, int]
) -> None:
    if domain not in own or domain not in here or own[domain] == here[domain]:
        return
    since = {_since(op_type, domain, version) for version in (own[domain], here[domain])}
    if len(since) > 1 or None in since:
        raise ModelError(
            f"its function {function!r} has {op_type} of operator set {own[domain]}, in a model of "
            f"operator set {here[domain]}, where that is another operator"
        )


def _since(op_type: str, domain: str, version: int) -> int | None:
    """The operator set that an operator of a later one comes from; None if none is known."""
    try:
        return int(onnx.defs.get_schema(op_type, version, domain).since_version)
    except onnx.defs.SchemaError:
        return None
