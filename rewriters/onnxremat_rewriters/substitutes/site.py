"""What a substitution sees of the node it replaces, and what it answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from onnxremat.importer.nodes import attribute
from onnxremat.importer.values import ValueType
from onnxremat_rewriters.naming import NameSource


class NotSubstitutable(Exception):
    """A node that a substitution does not handle; the message says why."""


@dataclass
class KernelSite:
    """One node, the types of the values around it, and names that are free.

    `types` has what is known by name. `stored` are the initializers whose data is in the model and
    cannot be overridden. `nodes` and `initializers` collect what replaces the node: `add` and
    `constant` fill them; the node itself is never changed.
    """

    node: onnx.NodeProto
    opset: int
    types: Mapping[str, ValueType]
    stored: Mapping[str, onnx.TensorProto]
    values: NameSource
    labels: NameSource
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    initializers: list[onnx.TensorProto] = field(default_factory=list)

    def type_of(self, name: str) -> ValueType:
        """The type of a value. Raises NotSubstitutable if it is not known."""
        found = self.types.get(name)
        if found is None:
            raise NotSubstitutable(f"the shape of {name!r} is not known")
        return found

    def attribute(self, name: str, default: Any = None) -> Any:
        """The value of an attribute of the node."""
        return attribute(self.node, name, default)

    def integers(self, name: str) -> tuple[int, ...]:
        """An attribute that is a list of integers; empty if the node does not have it."""
        found = attribute(self.node, name, ())
        return tuple(int(value) for value in found)

    def need_opset(self, version: int) -> None:
        """Raise NotSubstitutable if the model's opset is older than `version`."""
        if self.opset < version:
            raise NotSubstitutable(f"opset {self.opset}: at least {version} is needed")

    def add(self, op: str, inputs: list[str], output: str | None = None, **attributes: Any) -> str:
        """Append a node; its output, which has a new name unless `output` gives one."""
        base = self.node.output[0]
        made = output or self.values.fresh(f"{base}__{op.lower()}")
        label = self.labels.fresh(f"{self.node.name or base}__{op.lower()}")
        self.nodes.append(helper.make_node(op, inputs, [made], label, **attributes))
        return made

    def constant(self, what: str, value: NDArray[np.generic]) -> str:
        """The name of a new initializer."""
        name = self.values.fresh(f"{self.node.output[0]}__{what}")
        self.initializers.append(numpy_helper.from_array(value, name))
        return name

    def integers_constant(self, what: str, values: list[int]) -> str:
        """The name of a new initializer of type int64."""
        return self.constant(what, np.array(values, np.int64))


@dataclass(frozen=True)
class Substitution:
    """A way to replace nodes. `replace` fills a Site or raises NotSubstitutable; the last node it
    adds makes the node's output. `exact`: whether the bits of the result are the same. `sized`:
    whether what it makes holds for the sizes in `types` only."""

    name: str
    op_types: frozenset[str]
    exact: bool
    replace: Callable[[KernelSite], None]
    sized: bool
