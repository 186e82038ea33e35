"""A model while ops in it are given another form."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from onnxremat.importer.nodes import DEFAULT_DOMAINS, attribute, reads
from onnxremat.importer.values import ValueType, tensor_type
from onnxremat_rewriters.naming import NameSource, node_names, value_names
from onnxremat_rewriters.substitutes import Replaced

_AXES_AS_INPUT = {"ReduceMean": 18, "ReduceSumSquare": 18}


@dataclass(frozen=True)
class Tileable:
    """The model, and the nodes that were given another form."""

    model: onnx.ModelProto
    replaced: tuple[Replaced, ...]

    @property
    def changed(self) -> bool:
        """Whether it is another model than the argument."""
        return bool(self.replaced)


class Draft:
    """The nodes of a model by what they make, and what shall stand for some of them."""

    def __init__(self, model: onnx.ModelProto, types: Mapping[str, ValueType]) -> None:
        graph = model.graph
        self._model = model
        self.nodes = tuple(graph.node)
        self.opset = max(
            (o.version for o in model.opset_import if o.domain in DEFAULT_DOMAINS), default=1
        )
        given = {value.name for value in graph.input}
        self.stored = {
            t.name: t
            for t in graph.initializer
            if t.name not in given and t.data_location != onnx.TensorProto.EXTERNAL
        }
        for node in graph.node:
            value = attribute(node, "value") if node.op_type == "Constant" else None
            if value is not None:
                self.stored[node.output[0]] = value
        self.types = {**{name: tensor_type(t) for name, t in self.stored.items()}, **types}
        self.producer = {name: i for i, node in enumerate(graph.node) for name in node.output}
        self._values, self._labels = NameSource(value_names(graph)), NameSource(node_names(graph))
        self._put: dict[int, list[onnx.NodeProto]] = {}
        self._fine: dict[str, str] = {}
        self._initializers: list[onnx.TensorProto] = []
        self._replaced: list[Replaced] = []

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a value; () if it is not known."""
        kind = self.types.get(name)
        return () if kind is None else kind.shape

    def is_float(self, name: str) -> bool:
        """Whether the value is known to be float32."""
        kind = self.types.get(name)
        return kind is not None and kind.dtype == "float"

    def maker(self, name: str, op: str) -> onnx.NodeProto | None:
        """The node that makes a value, if it is one of that op."""
        index = self.producer.get(name)
        node = None if index is None else self.nodes[index]
        standard = node is not None and node.domain in DEFAULT_DOMAINS
        return node if node is not None and standard and node.op_type == op else None

    def root(self, name: str) -> str:
        """The value that a value is a view of, as far as Reshapes, and Casts to the same type, go
        back."""
        while True:
            node = self.maker(name, "Reshape") or self.maker(name, "Cast")
            if node is None:
                return name
            before, after = self.types.get(node.input[0]), self.types.get(name)
            if before is None or after is None or before.dtype != after.dtype:
                return name
            name = node.input[0]

    def number(self, name: str) -> float | None:
        """The value of a stored scalar, through views; None if it is none."""
        tensor = self.stored.get(self.root(name))
        if tensor is None or prod(tensor.dims) != 1:
            return None
        return float(numpy_helper.to_array(tensor).ravel()[0])

    def form(self, index: int, name: str, exact: bool, op_type: str | None = None) -> "Form":
        """Begin a form of a node, called `name`; `op_type`: of the op that it is a part of."""
        node = self.nodes[index]
        op_type = op_type or node.op_type
        self._replaced.append(Replaced(index, node.name, op_type, name, exact, sized=True))
        return Form(self, index)

    def fresh(self, base: str) -> str:
        """A name for a new value."""
        return self._values.fresh(base)

    def label(self, base: str) -> str:
        """A name for a new node."""
        return self._labels.fresh(base)

    def constant(self, base: str, value: NDArray[Any]) -> str:
        """The name of a new initializer."""
        name = self.fresh(base)
        self._initializers.append(numpy_helper.from_array(value, name))
        return name

    def put(self, index: int, nodes: Sequence[onnx.NodeProto], made: str) -> None:
        """`nodes` stand for a node from now on; what it made is a view of `made`, and so are, under
        their own shapes, views of that."""
        self._put[index] = list(nodes)
        self._fine[self.nodes[index].output[0]] = made

    def finish(self) -> Tileable:
        """The model as it is now."""
        model = onnx.ModelProto()
        model.CopyFrom(self._model)
        del model.graph.node[:]
        for node in self._all():
            model.graph.node.append(node)
        model.graph.initializer.extend(self._initializers)
        return Tileable(model, tuple(self._replaced))

    def _all(self) -> Iterator[onnx.NodeProto]:
        kept = {value.name for value in self._model.graph.output}
        kept.update(
            name
            for node in self.nodes
            for name in (reads(node)[1:] if node.op_type == "Reshape" else reads(node))
        )
        for index, node in enumerate(self.nodes):
            if index in self._put:
                output = node.output[0]
                yield from self._put[index]
                if output in kept:
                    yield self._view(node, self._fine[output], output)
            elif node.op_type == "Reshape" and node.input[0] in self._fine:
                yield self._view(node, self._fine[node.input[0]], node.output[0])
            elif self._has_computed_shape(node):
                yield self._view(node, node.input[0], node.output[0])
            else:
                yield node

    def _has_computed_shape(self, node: onnx.NodeProto) -> bool:
        """Whether a Reshape reads its shape from others: what those read is held for it, though the
        sizes are known."""
        if node.op_type != "Reshape" or node.domain not in DEFAULT_DOMAINS or not self._replaced:
            return False
        known = self.types.get(node.output[0])
        return len(node.input) > 1 and node.input[1] not in self.stored and known is not None

    def _view(self, node: onnx.NodeProto, source: str, made: str) -> onnx.NodeProto:
        size = self.constant(f"{made}__shape", np.array(self.shape(made), np.int64))
        label = node.name if node.op_type == "Reshape" else self.label(f"{node.name or made}__view")
        return helper.make_node("Reshape", [source, size], [made], label)


class Form:
    """The nodes of a form while it is written: each has one output, with a new name."""

    def __init__(self, draft: Draft, index: int) -> None:
        self._draft = draft
        self._index = index
        node = draft.nodes[index]
        self._base, self._label = node.output[0], node.name or node.output[0]
        self._nodes: list[onnx.NodeProto] = []

    def add(self, op: str, inputs: Sequence[str], **attributes: Any) -> str:
        """Append a node; what it makes."""
        made = self._draft.fresh(f"{self._base}__{op.lower()}")
        label = self._draft.label(f"{self._label}__{op.lower()}")
        self._nodes.append(helper.make_node(op, list(inputs), [made], label, **attributes))
        return made

    def reshape(self, name: str, shape: Sequence[int]) -> str:
        """A view."""
        return self.add("Reshape", [name, self.integers(shape)])

    def reduce(self, op: str, name: str, axes: Sequence[int]) -> str:
        """A reduction that keeps its axes."""
        if self._draft.opset >= _AXES_AS_INPUT[op]:
            return self.add(op, [name, self.integers(axes)], keepdims=1)
        return self.add(op, [name], axes=list(axes), keepdims=1)

    def integers(self, values: Sequence[int]) -> str:
        """A constant of type int64."""
        return self._draft.constant(f"{self._base}__integers", np.array(values, np.int64))

    def number(self, value: float) -> str:
        """A constant of type float."""
        return self._draft.constant(f"{self._base}__number", np.array(value, np.float32))

    def array(self, values: NDArray[Any]) -> str:
        """A constant."""
        return self._draft.constant(f"{self._base}__weight", values)

    def finish(self, made: str) -> None:
        """`made` has the elements of what the node made."""
        self._draft.put(self._index, self._nodes, made)
