"""What ONNX Runtime computes of weights alone when it opens a model, and whether that has the same
bits on every processor.

Nodes that depend on no input of the graph are executed when a session is opened (constant folding),
by the kernels of whoever opens it. What is optimized here and stored has the bits of this
processor. For ops that move elements, compare, compute on integers, or round once by the rules of
IEEE 754 these are everybody's; sums, and functions that each library approximates in its own way,
have others elsewhere: a product of two weights, or the sine of positions, differs between x86 and
WebAssembly (seen on 1.31.1 and onnxruntime-web 1.30).
"""

from collections.abc import Collection, Iterator, Mapping

import onnx
from onnx import TensorProto

from onnxremat.importer.calls import all_graphs
from onnxremat.importer.nodes import (
    has_subgraph,
    is_constant,
    op_key,
    reads,
    replaceable,
    subgraphs,
)
from onnxremat.importer.purity import is_pure


def _ops(names: str) -> frozenset[str]:
    return frozenset(names.split())


MOVES = _ops(
    "Cast CastLike Compress Concat Constant ConstantOfShape DepthToSpace Expand EyeLike Flatten "
    "Gather GatherElements GatherND Identity NonZero OneHot Pad Reshape ReverseSequence "
    "ScatterElements ScatterND Shape Size Slice SpaceToDepth Split Squeeze Tile "
    "TopK Transpose Trilu Unique Unsqueeze"
)
"""Ops that copy elements, convert them, or count them."""
ROUND_ONCE = _ops(
    "Abs Add And ArgMax ArgMin BitShift BitwiseAnd BitwiseNot BitwiseOr BitwiseXor Ceil "
    "DequantizeLinear Div Equal Floor Greater GreaterOrEqual IsInf IsNaN Less LessOrEqual "
    "Mod Mul Neg Not Or QuantizeLinear Reciprocal Round Sign Sqrt Sub Where Xor"
)
"""Ops whose elements are compared, or the rounded result of one exact operation or two. Of zeros of
both signs the larger is one or the other, by where in a vector they lie: no Max, Min, Clip, Relu.
"""
_SIZES = _ops("Shape Size")
_HANDED_ON = _ops("Dropout")
_MAKE_FLOATS = _ops("ConstantOfShape DequantizeLinear")
"""Of integers, unless they say otherwise."""
INTEGERS: frozenset[int] = frozenset(
    (
        TensorProto.BOOL,
        TensorProto.INT8,
        TensorProto.INT16,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.UINT8,
        TensorProto.UINT16,
        TensorProto.UINT32,
        TensorProto.UINT64,
    )
)


def computed_otherwise(model: onnx.ModelProto) -> str:
    """The first node that the runtime executes when it opens a model, and that may have other bits
    on another processor, as `OP (name)`; "" if there is none. O(nodes + reads)."""
    graph = model.graph
    given = replaceable(model)
    weights = {t.name: t.data_type for t in graph.initializer if t.name not in given}
    stated = {v.name: v.type.tensor_type.elem_type for v in graph.value_info}
    found = next(_otherwise(graph, weights, stated), None)
    return "" if found is None else _label(found)


def folded_otherwise(before: onnx.ModelProto, after: onnx.ModelProto) -> str:
    """The same for what the runtime made of a model: the first node whose result it stored, or
    computed others from that it stored. Constant may be more than what depends on weights alone:
    sizes of inputs, what a branch or a Dropout hands on. O(nodes + reads)."""
    culprits: dict[str, str] = {}
    given = replaceable(before)
    weights = {t.name: t.data_type for t in before.graph.initializer if t.name not in given}
    _trace(before.graph, weights, culprits)
    stored = {
        name
        for graph in all_graphs(after.graph)
        for name in (
            *(t.name for t in graph.initializer),
            *(node.output[0] for node in graph.node if is_constant(node)),
        )
    }
    return next((said for name, said in culprits.items() if name in stored), "")


def _trace(graph: onnx.GraphProto, known: dict[str, int], culprits: dict[str, str]) -> None:
    """Which values of a graph and its bodies may be constant, and which op before them computes
    otherwise elsewhere. `known`: element types of what may be constant."""
    for node in graph.node:
        for body in subgraphs(node):
            inner = known | {t.name: t.data_type for t in body.initializer}
            _trace(body, inner, culprits)
        names = reads(node)
        kinds = {known.get(name) for name in names}
        sized = op_key(node) in _SIZES
        if not is_constant(node) and not sized and (not kinds or None in kinds):
            continue
        found = next((culprits[name] for name in names if name in culprits), "")
        exact = op_key(node) in MOVES | ROUND_ONCE | _HANDED_ON or has_subgraph(node)
        if not found and not exact and not kinds <= INTEGERS:
            found = _label(node)
        kind = _made_type(node, {one for one in kinds if one is not None})
        for name in filter(None, node.output):
            known[name] = kind
            if found and not sized:
                culprits[name] = found


def _label(node: onnx.NodeProto) -> str:
    return f"{node.op_type} ({node.name or node.output[0]})"


def _otherwise(
    graph: onnx.GraphProto, known: dict[str, int], stated: Mapping[str, int]
) -> Iterator[onnx.NodeProto]:
    """Those of a graph and its bodies. `known`: element types of what is stored, by name, for
    bodies see what is stored around them; values that are computed of it are added. `stated`: types
    of values."""
    for node in graph.node:
        for body in subgraphs(node):
            inner = known | {t.name: t.data_type for t in body.initializer}
            yield from _otherwise(body, inner, stated)
        kinds = {known.get(name) for name in node.input if name}
        if not is_constant(node) and (
            not kinds or None in kinds or has_subgraph(node) or not is_pure(node)
        ):
            continue
        if op_key(node) not in MOVES | ROUND_ONCE and not kinds <= INTEGERS:
            yield node
        kind = _made_type(node, {one for one in kinds if one is not None})
        known.update((name, stated.get(name, kind)) for name in node.output if name)


def _made_type(node: onnx.NodeProto, kinds: Collection[int]) -> int:
    """The element type that a node makes of these: of integers integers, unless it says others.
    Where it cannot be told, floats."""
    said = next((a.i for a in node.attribute if a.name in {"to", "dtype"}), None)
    if said is not None:
        return int(said)
    stored = next((a.t for a in node.attribute if a.name == "value"), None)
    if stored is not None:
        return int(stored.data_type)
    if node.op_type in {"Shape", "Size", "NonZero", "ArgMax", "ArgMin"}:
        return TensorProto.INT64
    if kinds and set(kinds) <= INTEGERS and node.op_type not in _MAKE_FLOATS:
        return next(iter(kinds))
    return TensorProto.FLOAT
