"""Types of what ONNX Runtime's training ops make, and of what stands behind them.

onnx has no rules for these ops and mainline ONNX Runtime does not know most of them, so that
neither inference nor a run tells their types. The rules here are those of the schemas in ONNX
Runtime's `training_op_defs.cc`; gradients have the shape of what they are gradients of. A rule
says nothing where it would have to guess.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, TypeProto, helper, numpy_helper
from onnx.defs import OpSchema, SchemaError
from onnx.shape_inference import infer_node_outputs

from onnxremat.importer.inference import ONNX_ERRORS
from onnxremat.importer.nodes import attribute, has_subgraph, op_key, schema_domain
from onnxremat.importer.small_values import Array, small_value
from onnxremat.importer.values import ValueType, concrete_type, dtype_name

Found = Sequence[ValueType | None]
"""Types of a node's outputs by position; None, and what is missing at the end, is unknown."""


def opaque_types(copy: ModelProto, known: Mapping[str, ValueType]) -> dict[str, ValueType]:
    """Complete types of values that are not among `known`: by the rules and by onnx, node by node.

    `copy` is an `inference_copy`, its nodes in topological order. Empty if no op with a rule makes
    one of them. About 0.1 ms for every node whose type is unknown.
    """
    if not any(op_key(node) in _RULES and _unknown(node, known) for node in copy.graph.node):
        return {}
    walk = _OpaqueWalk(copy, dict(known))
    for node in copy.graph.node:
        walk.visit(node)
    return {name: kind for name, kind in walk.types.items() if name not in known}


def _unknown(node: NodeProto, types: Mapping[str, ValueType]) -> bool:
    """Whether the type of one of the node's outputs is unknown."""
    return any(name and name not in types for name in node.output)


class _OpaqueWalk:
    """One pass over the nodes: `types` by name, and the `values` of small integer tensors."""

    def __init__(self, copy: ModelProto, types: dict[str, ValueType]) -> None:
        self.types = types
        self.values: dict[str, Array] = {}
        for tensor in copy.graph.initializer:
            value = numpy_helper.to_array(tensor)
            if np.issubdtype(value.dtype, np.integer):
                self.values[tensor.name] = value
        self.producer = {name: node for node in copy.graph.node for name in node.output if name}
        self._opsets = list(copy.opset_import)
        self._versions = {o.domain: o.version for o in copy.opset_import}

    def visit(self, node: NodeProto) -> None:
        """Find the types of the node's outputs, and the value of a computed shape."""
        if _unknown(node, self.types):
            for name, kind in zip(node.output, self._found(node), strict=False):
                if name and kind is not None:
                    self.types.setdefault(name, kind)
        value = small_value(node, self.values, self.types)
        if value is not None and np.issubdtype(value.dtype, np.integer):
            self.values[node.output[0]] = value

    def _found(self, node: NodeProto) -> Found:
        schema = self._schema(node)
        if schema is not None:
            return self._by_onnx(node, schema)
        rule = _RULES.get(op_key(node))
        return () if rule is None else rule(_Site(node, self))

    def _schema(self, node: NodeProto) -> OpSchema | None:
        domain = schema_domain(node.domain)
        try:
            return onnx.defs.get_schema(node.op_type, self._versions.get(domain, 1), domain)
        except SchemaError:
            return None

    def _by_onnx(self, node: NodeProto, schema: OpSchema) -> Found:
        """What onnx infers for one node, if the types of all that it reads are known."""
        inputs = [name for name in node.input if name]
        if has_subgraph(node) or any(name not in self.types for name in inputs):
            return ()
        data = {n: numpy_helper.from_array(self.values[n], n) for n in inputs if n in self.values}
        types = {name: _type_proto(self.types[name]) for name in inputs}
        try:
            found = infer_node_outputs(schema, node, types, data, opset_imports=self._opsets)
        except ONNX_ERRORS:
            # onnx finds the node invalid: its outputs stay unknown, and are named where they matter
            return ()
        return [concrete_type(found[n], {}) if n in found else None for n in node.output]


def _type_proto(kind: ValueType) -> TypeProto:
    return helper.make_tensor_type_proto(TensorProto.DataType.Value(kind.dtype.upper()), kind.shape)


@dataclass(frozen=True)
class _Site:
    """A node and what a rule may ask of its inputs, by position."""

    node: NodeProto
    walk: _OpaqueWalk

    def name(self, position: int) -> str:
        """The name of an input, empty if it is absent."""
        return self.node.input[position] if position < len(self.node.input) else ""

    def type(self, position: int) -> ValueType | None:
        """The type of an input; None if it is absent or unknown."""
        return self.walk.types.get(self.name(position))

    def flag(self, name: str) -> bool:
        """Whether an integer attribute is there and not 0."""
        return bool(attribute(self.node, name, 0))


Rule = Callable[[_Site], Found]


def _like(*positions: int) -> Rule:
    """Output i has the type of input `positions[i]`."""
    return lambda site: [site.type(position) for position in positions]


def _conv_grad(site: _Site) -> Found:
    """ConvGrad(dY, X, W): dX, dW, and dB of one element for each filter."""
    filters = site.type(2)
    bias = ValueType(filters.dtype, filters.shape[:1]) if filters and filters.shape else None
    return [site.type(1), filters, bias]


def _max_pool_grad(site: _Site) -> Found:
    """MaxPoolGrad(dY, Indices): dX like the input of the MaxPool that made the indices."""
    name = site.name(1)
    maker = site.walk.producer.get(name)
    while maker is not None and op_key(maker) == "Identity":
        name = maker.input[0]
        maker = site.walk.producer.get(name)
    if maker is None or op_key(maker) != "MaxPool" or name not in maker.output[1:]:
        return ()
    gradient, pooled = site.type(0), site.walk.types.get(maker.input[0])
    return [ValueType(gradient.dtype, pooled.shape)] if gradient and pooled else ()


def _shape_given(data: int, shape: int) -> Rule:
    """The element type of input `data`, in the shape that input `shape` holds."""

    def rule(site: _Site) -> Found:
        kind, value = site.type(data), site.walk.values.get(site.name(shape))
        if kind is None or value is None or value.ndim != 1:
            return ()
        sizes = tuple(int(size) for size in value)
        return [ValueType(kind.dtype, sizes)] if min(sizes, default=0) >= 0 else ()

    return rule


def _loss_grad(site: _Site) -> Found:
    """A loss's gradient(dY, log_prob, ...): d_logits like log_prob, if both are of one type."""
    gradient, log_prob = site.type(0), site.type(1)
    if gradient is None or log_prob is None or gradient.dtype != log_prob.dtype:
        return ()
    return [log_prob]


def _accumulator(site: _Site) -> Found:
    """InPlaceAccumulatorV2(buffer, value, overwrite): a flag, and on request the buffer."""
    return [ValueType("bool", (1,)), site.type(0)]


def _layer_norm(statistics: int) -> Rule:
    """Y like X, then `statistics` outputs of one number for each row, of type `stash_type`."""

    def rule(site: _Site) -> Found:
        data, scale = site.type(0), site.type(1)
        if data is None or scale is None or data.dtype != scale.dtype:
            return ()
        axis, rank = int(attribute(site.node, "axis", -1)), len(data.shape)
        if not -rank <= axis < rank:
            return ()
        kept = axis % rank
        dtype = dtype_name(attribute(site.node, "stash_type", TensorProto.FLOAT))
        row = ValueType(dtype, data.shape[:kept] + (1,) * (rank - kept))
        return [data, *[row] * statistics]

    return rule


def _fused_matmul(site: _Site) -> Found:
    """MatMul of A and B, each transposed first as the attributes say."""
    a, b = site.type(0), site.type(1)
    if a is None or b is None or not a.shape or not b.shape:
        return ()
    left = _transposed(a.shape, batch=site.flag("transBatchA"), matrix=site.flag("transA"))
    right = _transposed(b.shape, batch=site.flag("transBatchB"), matrix=site.flag("transB"))
    rows = left if len(left) > 1 else (1, *left)
    columns = right if len(right) > 1 else (*right, 1)
    if rows[-1] != columns[-2]:
        return ()
    try:
        batch = np.broadcast_shapes(rows[:-2], columns[:-2])
    except ValueError:
        return ()
    ends = (*(rows[-2:-1] if len(left) > 1 else ()), *(columns[-1:] if len(right) > 1 else ()))
    return [ValueType(a.dtype, (*batch, *ends))]


def _transposed(shape: tuple[int, ...], *, batch: bool, matrix: bool) -> tuple[int, ...]:
    """`batch`: the first axis becomes the last but one; `matrix`: the last two change places.

    A vector stays as it is.
    """
    if len(shape) < 2:
        return shape
    if batch:
        shape = (*shape[1:-1], shape[0], shape[-1])
    return (*shape[:-2], shape[-1], shape[-2]) if matrix else shape


_LIKE_FIRST = [
    "ReluGrad",
    "SigmoidGrad",
    "TanhGrad",
    "GeluGrad",
    "FastGeluGrad",
    "BiasGeluGrad_dX",
    "BiasFastGeluGrad_dX",
    "SoftmaxGrad",
    "SoftmaxGrad_13",
    "LogSoftmaxGrad",
    "LogSoftmaxGrad_13",
    "DropoutGrad",
    "InPlaceAccumulator",
    "Scale",
    "Gelu",
    "FastGelu",
    "QuickGelu",
    "BiasGelu",
]

_RULES: dict[str, Rule] = {
    **dict.fromkeys(_LIKE_FIRST, _like(0)),
    "ConvGrad": _conv_grad,
    "MaxPoolGrad": _max_pool_grad,
    "DivGrad": _like(1, 2),
    "LayerNormalizationGrad": _like(1, 2, 2),
    "SimplifiedLayerNormalizationGrad": _like(1, 2),
    "InvertibleLayerNormalizationGrad": _like(1, 2, 2),
    "BatchNormalizationGrad": _like(1, 2, 2),
    "GatherGrad": _shape_given(data=2, shape=0),
    "GatherElementsGrad": _shape_given(data=0, shape=1),
    "GatherNDGrad": _shape_given(data=2, shape=0),
    "SliceGrad": _shape_given(data=0, shape=1),
    "SoftmaxCrossEntropyLossGrad": _loss_grad,
    "InPlaceAccumulatorV2": _accumulator,
    "LayerNormalization": _layer_norm(2),
    "SimplifiedLayerNormalization": _layer_norm(1),
    "FusedMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
}
"""Rules by `op_key`, for nodes of which onnx has no schema in the model's opset."""
