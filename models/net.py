"""A graph under construction: named operators, seeded weights, shapes known at once.

`Net` wraps an onnx-graphsurgeon graph. Every operator that is added gets its output shape from
ONNX's own inference for that one node, so that a builder can read `x.shape` while it builds and
the finished model carries a complete `value_info`, at a cost linear in the number of nodes.
(`gs.Graph.layer` scans the whole graph for each call; nodes are appended directly instead.)

Names: an operator and the tensor it makes share one readable name (`enc1/conv2`); a weight is
named after its operator and its kind (`enc1/conv2.weight`, see `models.weights.KINDS`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_graphsurgeon
from onnx import helper, numpy_helper, shape_inference

from models.weights import Array, draw

gs: Any = onnx_graphsurgeon  # it has no types

Dim = int | str
Value = Any  # a gs.Variable or gs.Constant

IR_VERSIONS = {17: 8, 18: 8, 19: 9, 20: 9, 21: 10}
"""The lowest IR version that may carry each supported opset: files load in old runtimes too."""


class Net:
    """One model while it is being built; all tensors are float32 unless made from an array.

    `batch` is the first dimension of every graph input, the symbol "batch" when
    `symbolic_batch`. Equal `seed`, names and shapes give equal weights.
    """

    def __init__(
        self,
        name: str,
        *,
        batch: int = 1,
        symbolic_batch: bool = False,
        opset: int = 17,
        seed: int = 0,
    ) -> None:
        if opset not in IR_VERSIONS:
            raise ValueError(f"opset {opset} is not one of {sorted(IR_VERSIONS)}")
        if batch < 1:
            raise ValueError(f"batch is {batch}, it must be at least 1")
        self.batch: Dim = "batch" if symbolic_batch else batch
        self.opset = opset
        self.seed = seed
        self._opsets = [helper.make_opsetid("", opset)]
        self._graph: Any = gs.Graph(
            name=name,
            opset=opset,
            ir_version=IR_VERSIONS[opset],
            producer_name="onnxremat-models",
        )
        self._types: dict[str, onnx.TypeProto] = {}
        self._constants: dict[str, Value] = {}
        self._constant_data: dict[str, onnx.TensorProto] = {}

    def input(self, name: str, shape: Sequence[int]) -> Value:
        """A float32 graph input of shape (batch, *shape). ValueError for a size below 1."""
        if min(shape) < 1:
            raise ValueError(f"input {name!r} has shape {tuple(shape)}: sizes must be positive")
        self._declare(name, helper.make_tensor_type_proto(1, [self.batch, *shape]))
        value: Value = self._variable(name)
        self._graph.inputs.append(value)
        return value

    def weight(self, owner: str, kind: str, shape: Sequence[int]) -> Value:
        """The stored weight `owner.kind`, drawn from the seed and that name."""
        name = f"{owner}.{kind}"
        return self._stored(name, draw(name, tuple(shape), self.seed))

    def constant(self, values: Array) -> Value:
        """A stored constant that is no weight (a shape, a scale, a bound); equal ones are one."""
        key = f"constants/{values.dtype}/{'x'.join(map(str, values.shape))}/{values.tolist()}"
        if key not in self._constants:
            name = f"constants/{len(self._constants) + 1}"
            self._constants[key] = self._stored(name, values)
            self._constant_data[name] = numpy_helper.from_array(values, name)
        return self._constants[key]

    def scalar(self, value: float) -> Value:
        """A float32 constant of rank 0."""
        return self.constant(np.array(value, np.float32))

    def ints(self, values: Sequence[int]) -> Value:
        """An int64 constant of rank 1."""
        return self.constant(np.array(values, np.int64))

    def op(
        self,
        op_type: str,
        inputs: Sequence[Value],
        name: str,
        *,
        known_shape: Sequence[Dim] | None = None,
        **attributes: Any,
    ) -> Value:
        """Append an operator with one output, both called `name`; returns the output.

        `known_shape` is for the operators whose symbolic dimensions ONNX loses. ValueError when
        the shape is not complete, or contradicts ONNX.
        """
        (inferred,) = self._infer(op_type, inputs, [name], attributes)
        self._declare(name, _completed(inferred, known_shape, name, op_type))
        output = self._variable(name)
        self._graph.nodes.append(gs.Node(op_type, name, attributes, list(inputs), [output]))
        return output

    def split(self, x: Value, parts: int, axis: int, name: str) -> list[Value]:
        """Append a Split into parts of one size, called `name/1`, `name/2`, ..."""
        attributes = {"axis": axis} | ({"num_outputs": parts} if self.opset >= 18 else {})
        names = [f"{name}/{number}" for number in range(1, parts + 1)]
        for made, kind in zip(names, self._infer("Split", [x], names, attributes), strict=True):
            self._declare(made, _completed(kind, None, made, "Split"))
        outputs = [self._variable(made) for made in names]
        self._graph.nodes.append(gs.Node("Split", name, attributes, [x], outputs))
        return outputs

    def model(self, outputs: Mapping[str, Value]) -> onnx.ModelProto:
        """The finished model; `outputs` maps the names of its graph outputs to values."""
        for name, value in outputs.items():
            if name in self._types:
                raise ValueError(f"the output name {name!r} is taken")
            value.name = name
        self._graph.outputs = list(outputs.values())
        exported: onnx.ModelProto = gs.export_onnx(self._graph)
        return exported

    def _declare(self, name: str, kind: onnx.TypeProto) -> None:
        if name in self._types:
            raise ValueError(f"the name {name!r} is used twice")
        self._types[name] = kind

    def _variable(self, name: str) -> Value:
        tensor = self._types[name].tensor_type
        shape = [dim.dim_param or dim.dim_value for dim in tensor.shape.dim]
        return gs.Variable(name, helper.tensor_dtype_to_np_dtype(tensor.elem_type), shape)

    def _stored(self, name: str, values: Array) -> Value:
        kind = helper.np_dtype_to_tensor_dtype(values.dtype)
        self._declare(name, helper.make_tensor_type_proto(kind, values.shape))
        return gs.Constant(name, values)

    def _infer(
        self,
        op_type: str,
        inputs: Sequence[Value],
        outputs: Sequence[str],
        attributes: Mapping[str, Any],
    ) -> list[onnx.TypeProto]:
        """ONNX's shape inference for one node, for each of its outputs."""
        names = [value.name for value in inputs]
        kinds: dict[str, onnx.TypeProto] = shape_inference.infer_node_outputs(
            onnx.defs.get_schema(op_type, self.opset, ""),
            helper.make_node(op_type, names, list(outputs), **attributes),
            {value: self._types[value] for value in names if value},
            {value: self._constant_data[value] for value in names if value in self._constant_data},
            opset_imports=self._opsets,
        )
        return [kinds[name] for name in outputs]


def _completed(
    kind: onnx.TypeProto, known: Sequence[Dim] | None, name: str, op_type: str
) -> onnx.TypeProto:
    """`kind` with the missing dimensions taken from `known`."""
    inferred = [dim.dim_param or dim.dim_value for dim in kind.tensor_type.shape.dim]
    shape = inferred if known is None else list(known)
    agrees = len(shape) == len(inferred) and all(
        not dim or dim == given for dim, given in zip(inferred, shape, strict=True)
    )
    if not kind.tensor_type.HasField("shape") or not all(shape) or not agrees:
        raise ValueError(f"{name!r} ({op_type}): ONNX infers {inferred}, the caller knows {known}")
    return helper.make_tensor_type_proto(kind.tensor_type.elem_type, shape)
