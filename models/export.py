"""A graph as `torch.onnx.export(..., dynamo=False)` writes one, for models with open sizes.

What sets such files apart from those of `Net`: every size is computed (Shape, Gather, Concat), `//`
leaves two Casts from int64 to int64 behind its Div, small constants are Constant nodes, names are
paths (`/blocks.0/attn/Div_2_output_0`), inner values have no stated shapes. The nodes stand as a
trace meets them. No shape is known while building.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models.weights import Array, draw

Dim = int | str


class Export:
    """One file while it is being written; values are names. `half`: weights are float16."""

    def __init__(
        self, name: str, *, opset: int = 17, ir_version: int = 8, seed: int = 0, half: bool = False
    ) -> None:
        if not 17 <= opset <= 21:
            raise ValueError(f"opset {opset} is not one of 17 to 21")
        self.opset = opset
        self.half = half
        self._seed = seed
        self._graph = onnx.GraphProto(name=name)
        self._ir_version = max(ir_version, {17: 8, 18: 8, 19: 9, 20: 9, 21: 10}[opset])
        self._scope: list[str] = []
        self._numbers: Counter[str] = Counter()

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """The module that the nodes inside the `with` block belong to."""
        self._scope.append(name)
        yield
        self._scope.pop()

    def input(self, name: str, shape: Sequence[Dim], kind: int = TensorProto.FLOAT) -> str:
        """A graph input; open dimensions are names."""
        self._graph.input.append(helper.make_tensor_value_info(name, kind, shape))
        return name

    def output(
        self, value: str, name: str, shape: Sequence[Dim], kind: int = TensorProto.FLOAT
    ) -> None:
        """Make a value a graph output under this name."""
        for node in self._graph.node:
            node.output[:] = [name if made == value else made for made in node.output]
            node.input[:] = [name if read == value else read for read in node.input]
        self._graph.output.append(helper.make_tensor_value_info(name, kind, shape))

    def weight(self, kind: str, *shape: int) -> str:
        """The stored weight of the module that is open, drawn from the seed and its name."""
        name = ".".join([*self._scope, kind])
        values = draw(name, shape, self._seed)
        stored = values.astype(np.float16) if self.half else values
        self._graph.initializer.append(numpy_helper.from_array(stored, name))
        return name

    def op(self, op_type: str, *inputs: str, outputs: int = 1, **attributes: Any) -> Any:
        """A node; its output, or a list of as many as asked for."""
        name = self._path(op_type)
        made = [f"{name}_output_{i}" for i in range(outputs)]
        self._graph.node.append(helper.make_node(op_type, inputs, made, name=name, **attributes))
        return made[0] if outputs == 1 else made

    def constant(self, values: Array) -> str:
        """A Constant node."""
        made: str = self.op("Constant", value=numpy_helper.from_array(values))
        return made

    def scalar(self, number: float) -> str:
        """A number of the weights' type."""
        return self.constant(np.array(number, np.float16 if self.half else np.float32))

    def integer(self, number: int) -> str:
        """An int64 of rank 0, as sizes are."""
        return self.constant(np.array(number, np.int64))

    def integers(self, *numbers: int) -> str:
        """An int64 vector."""
        return self.constant(np.array(numbers, np.int64))

    def size(self, value: str, axis: int) -> str:
        """`value.size(axis)`: Shape and Gather."""
        shape = self.op("Shape", value)
        made: str = self.op("Gather", shape, self.integer(axis), axis=0)
        return made

    def floor_divide(self, a: str, b: int) -> str:
        """`a // b` of sizes: a Div, and the two Casts that a trace leaves behind it."""
        quotient = self.op("Div", a, self.integer(b))
        once = self.op("Cast", quotient, to=TensorProto.INT64)
        made: str = self.op("Cast", once, to=TensorProto.INT64)
        return made

    def view(self, value: str, *sizes: str | int) -> str:
        """`value.view(sizes)`: every size is a vector of one, all of them concatenated."""
        made: str = self.op("Reshape", value, self.vector(*sizes))
        return made

    def vector(self, *sizes: str | int) -> str:
        """Sizes as one vector: Unsqueeze for those that are computed, and Concat."""
        parts = [
            self.integers(size)
            if isinstance(size, int)
            else self.op("Unsqueeze", size, self.integers(0))
            for size in sizes
        ]
        made: str = self.op("Concat", *parts, axis=0)
        return made

    def slice(self, value: str, axis: int, start: str | int, end: str | int) -> str:
        """`value[..., start:end]` along an axis."""
        bounds = [
            self.integers(at) if isinstance(at, int) else self.op("Unsqueeze", at, self.integers(0))
            for at in (start, end)
        ]
        made: str = self.op("Slice", value, *bounds, self.integers(axis), self.integers(1))
        return made

    def chunk(self, value: str, axis: int, parts: int = 2) -> list[str]:
        """`value.chunk(parts, axis)` where the size is not known: computed Slices."""
        extent = self.size(value, axis)
        rounded = self.op("Add", extent, self.integer(parts - 1))
        length = self.floor_divide(rounded, parts)
        bounds = [0, *(self.op("Mul", length, self.integer(i + 1)) for i in range(parts))]
        return [self.slice(value, axis, bounds[i], bounds[i + 1]) for i in range(parts)]

    def linear(self, x: str, features: int, to: int, *, kind: str = "weight") -> str:
        """`torch.nn.Linear` on more than two axes: MatMul and Add."""
        product = self.op("MatMul", x, self.weight(kind, features, to))
        made: str = self.op("Add", self.weight("bias", to), product)
        return made

    def layer_norm(self, x: str, features: int) -> str:
        """`torch.nn.LayerNorm` over the last axis."""
        operands = [self.weight(kind, features) for kind in ("scale", "bias")]
        made: str = self.op("LayerNormalization", x, *operands, axis=-1, epsilon=1e-5)
        return made

    def gelu(self, x: str) -> str:
        """`torch.nn.GELU`: five nodes."""
        error = self.op("Erf", self.op("Div", x, self.scalar(float(np.sqrt(2)))))
        product = self.op("Mul", x, self.op("Add", error, self.scalar(1.0)))
        made: str = self.op("Mul", product, self.scalar(0.5))
        return made

    def model(self) -> onnx.ModelProto:
        """The finished file."""
        return helper.make_model(
            self._graph,
            producer_name="onnxremat-models",
            ir_version=self._ir_version,
            opset_imports=[helper.make_opsetid("", self.opset)],
        )

    def _path(self, op_type: str) -> str:
        path = "/".join(["", *self._scope, op_type])
        number = self._numbers[path]
        self._numbers[path] += 1
        return f"{path}_{number}" if number else path
