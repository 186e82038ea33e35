"""The nodes that stock adds, in the form that each operator set has for them.

*Empty*: an int64 vector without elements, as the runtime finds out when it runs. *Through*: a
value read through an empty vector, which is the same value, without a copy, but depends on the
empty vector and has no shape that is known before the run:

- from set 13 on `Unsqueeze(x, empty)`, which adds no axis;
- before, `Reshape(x, Concat(Shape(x), empty))`, to the shape that x has.

An empty vector *after* a value depends on that value and on nothing else of it:

- from set 15 on `Shape(x, start=0, end=0)`;
- before, `Slice(Shape(x), [0], [0])`.

Each costs the runtime about half a microsecond.
"""

from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnxremat_rewriters.naming import NameSource

_UNSQUEEZE_INPUT = 13
_SHAPE_RANGE = 15
PREFIX = "stock__"
THROUGH = frozenset({"Reshape", "Unsqueeze"})
"""What a value is read by, through an empty vector."""


class Forms:
    """Makes nodes for one graph of a model; new names are not taken in any of its graphs."""

    def __init__(self, opset: int, values: NameSource, labels: NameSource) -> None:
        self._opset = opset
        self._values = values
        self._labels = labels
        self._vectors: dict[int, str] = {}
        self.prelude: list[onnx.NodeProto] = []
        """Nodes that the others read; they go in front of all."""

    def fresh(self, wanted: str) -> str:
        """A value name that nobody has."""
        return self._values.fresh(PREFIX + wanted)

    def label(self, wanted: str) -> str:
        """A node name that nobody has."""
        return self._labels.fresh(wanted)

    def node(
        self, op_type: str, inputs: list[str], output: str, **attributes: Any
    ) -> onnx.NodeProto:
        """A node with one output, named after it."""
        return helper.make_node(op_type, inputs, [output], self.label(output), **attributes)

    def sequence(self) -> onnx.NodeProto:
        """A sequence without elements."""
        return self.node("SequenceEmpty", [], self.fresh("sequence"))

    def token(self, sequence: str, warm_bytes: int = 0) -> str:
        """The name of an empty vector that no optimisation can tell to be empty: as long as
        `sequence` is. Its nodes are added to the prelude.

        `warm_bytes` are allocated, and freed at once, before it exists.
        """
        length, shape = self.fresh("length"), self.fresh("shape")
        self.prelude += [
            self.node("SequenceLength", [sequence], length),
            self.node("Reshape", [length, self._vector(1)], shape),
        ]
        if warm_bytes:
            size, block = self.fresh("warm_size"), self.fresh("warm")
            seen, rest = self.fresh("warm_seen"), self.fresh("warm_rest")
            amount = self._vector(warm_bytes)
            byte = numpy_helper.from_array(np.zeros(1, np.int8))
            self.prelude += [
                self.node("Add", [shape, amount], size),
                self.node("ConstantOfShape", [size], block, value=byte),
                self.node("Shape", [block], seen),
                self.node("Sub", [seen, amount], rest),
            ]
            shape = rest
        token = self.fresh("token")
        zero = numpy_helper.from_array(np.zeros(1, np.int64))
        self.prelude.append(self.node("ConstantOfShape", [shape], token, value=zero))
        return token

    def through(self, value: str, empty: str, wanted: str) -> list[onnx.NodeProto]:
        """Nodes that read `value` through `empty`; the last one's output is the value."""
        output = self.fresh(wanted)
        if self._opset >= _UNSQUEEZE_INPUT:
            return [self.node("Unsqueeze", [value, empty], output)]
        shape, joined = self.fresh(wanted + "_shape"), self.fresh(wanted + "_joined")
        return [
            self.node("Shape", [value], shape),
            self.node("Concat", [shape, empty], joined, axis=0),
            self.node("Reshape", [value, joined], output),
        ]

    def empty_after(self, value: str, wanted: str) -> list[onnx.NodeProto]:
        """Nodes that make an empty vector once `value` exists; the last one's output is it.

        If the runtime knows the shape of `value` before the run, it folds them away.
        """
        output = self.fresh(wanted)
        if self._opset >= _SHAPE_RANGE:
            return [self.node("Shape", [value], output, start=0, end=0)]
        shape, zero = self.fresh(wanted + "_shape"), self._vector(0)
        return [
            self.node("Shape", [value], shape),
            self.node("Slice", [shape, zero, zero], output),
        ]

    def hidden_vector(self, vector: str, token: str) -> onnx.NodeProto:
        """The int64 vector `vector` itself, but not as a constant."""
        return self.node("Concat", [token, vector], self.fresh("vector"), axis=0)

    def _vector(self, element: int) -> str:
        """A constant int64 vector of one element, made once."""
        if element not in self._vectors:
            name = self.fresh(f"vector{element}")
            value = numpy_helper.from_array(np.array([element], np.int64))
            self.prelude.append(self.node("Constant", [], name, value=value))
            self._vectors[element] = name
        return self._vectors[element]
