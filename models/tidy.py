"""Remove the scaffolding that automatic differentiation leaves in a training graph.

onnx-ad carries a trailing seed axis through the backward pass, here of extent 1. What it emits for
that axis (Expand to the same shape, Transpose that only moves it, Unsqueeze, Reshape) copies whole
activations in a runtime and makes half of the graph. `tidy` removes it:

1. an operator that only shows the same elements in another shape (a *view*) disappears: its
   readers read the value it shows (its *root*), through one Reshape where their shape differs,
2. elementwise, reducing and multiplying operators drop an axis of extent 1 where that spares a
   Reshape,
3. operators that no output needs, and constants that no operator reads, disappear.

Named operators (those of the forward pass and the loss) stay as they are. Results agree to
rounding.
"""

import math
from collections.abc import Iterable, Iterator

import numpy as np
import onnx
from onnx import NodeProto, helper, numpy_helper

from models.folding import Shape, rebuilt, value_shapes
from models.weights import Array

ELEMENTWISE = frozenset(
    ("Add", "Cast", "Div", "Exp", "Max", "Min", "Mul", "Neg", "Pow", "Sqrt", "Sub", "Sum", "Where")
)
REDUCTIONS = frozenset({"ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin"})
VIEWS = frozenset({"Flatten", "Identity", "Reshape", "Squeeze", "Unsqueeze"})


def tidy(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy of `model` without views, new nodes named, shapes complete.

    Every value of `model` must have a static shape (`models.folding.fold`); KeyError otherwise.
    """
    values = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    resolver = _Resolver(model.graph, value_shapes(model), values)
    for node in model.graph.node:
        resolver.add(node)
    nodes = _needed(resolver.finished(), [output.name for output in model.graph.output])
    return rebuilt(model, nodes, values)


class _Resolver:
    """Collects nodes in order, reading through views.

    `_shapes` is the shape a value had in the original graph: what its readers expect. `_actual`
    is the shape of a root in the new graph, which lacks the axes that were dropped.
    """

    def __init__(
        self, graph: onnx.GraphProto, shapes: dict[str, Shape], values: dict[str, Array]
    ) -> None:
        self._outputs = [output.name for output in graph.output]
        self._inputs = {value.name for value in graph.input}
        self._shapes = shapes
        self._values = values
        self._roots: dict[str, str] = {}
        self._actual: dict[str, Shape] = {}
        self._reshaped: dict[tuple[str, Shape], str] = {}
        self._nodes: list[NodeProto] = []

    def add(self, node: NodeProto) -> None:
        """Append `node` to the new graph, or only remember what it shows when it is a view."""
        if node.name:
            self._nodes.append(self._reading(node, [self._shapes.get(n, ()) for n in node.input]))
        elif self._is_view(node):
            self._roots[node.output[0]] = self._root(node.input[0])
        else:
            self._add_unnamed(node)

    def finished(self) -> list[NodeProto]:
        """All nodes, with graph outputs that are views made from their roots at once."""
        renamed: dict[str, str] = {}
        made: dict[str, list[NodeProto]] = {}
        for output in self._outputs:
            root = self._root(output)
            if root == output:
                continue
            if self._shape_now(root) == self._shapes[output] and self._may_rename(root, renamed):
                renamed[root] = output
            else:
                made.setdefault(root, []).append(self._reshape_node(root, output))
        early = [n for root, nodes in made.items() if self._is_given(root) for n in nodes]
        return [*early, *_with_outputs(self._nodes, renamed, made)]

    def _may_rename(self, root: str, renamed: dict[str, str]) -> bool:
        taken = self._is_given(root) or root in self._outputs
        return not taken and root not in renamed

    def _is_given(self, root: str) -> bool:
        return root in self._inputs or root in self._values

    def _add_unnamed(self, node: NodeProto) -> None:
        wanted = [self._shapes.get(name, ()) for name in node.input]
        narrow = self._narrower(node, wanted)
        if narrow is not None:
            wanted, self._actual[node.output[0]] = narrow
        new = self._reading(node, wanted)
        new.name = f"backward/{node.output[0]}"
        self._nodes.append(new)

    def _root(self, name: str) -> str:
        return self._roots.get(name, name)

    def _shape_now(self, root: str) -> Shape:
        return self._actual.get(root, self._shapes[root])

    def _reading(self, node: NodeProto, wanted: list[Shape]) -> NodeProto:
        new = NodeProto()
        new.CopyFrom(node)
        for index, (name, shape) in enumerate(zip(node.input, wanted, strict=True)):
            if name:
                new.input[index] = self._shown(name, shape)
        return new

    def _shown(self, name: str, shape: Shape) -> str:
        """A value with the elements of `name` in `shape`: its root, or one shared Reshape of it."""
        root = self._root(name)
        if self._shape_now(root) == shape:
            return root
        key = (root, shape)
        if key not in self._reshaped:
            self._reshaped[key] = f"{root}/{'x'.join(map(str, shape)) or 'scalar'}"
            self._store_reshaped(root, shape, self._reshaped[key])
        return self._reshaped[key]

    def _store_reshaped(self, root: str, shape: Shape, name: str) -> None:
        self._shapes[name] = shape
        if root in self._values:
            self._values[name] = self._values[root].reshape(shape)
        else:
            self._nodes.append(self._reshape_node(root, name))

    def _reshape_node(self, root: str, output: str) -> NodeProto:
        shape = self._shapes[output]
        constant = f"shapes/{'x'.join(map(str, shape)) or 'scalar'}"
        self._values[constant] = np.array(shape, np.int64)
        return helper.make_node("Reshape", [root, constant], [output], f"backward/{output}")

    def _is_view(self, node: NodeProto) -> bool:
        """Whether the output holds the elements of the first input, in the same order."""
        if node.op_type in VIEWS:
            return True
        before, after = self._shapes[node.input[0]], self._shapes[node.output[0]]
        if node.op_type == "Transpose":
            perm = next(iter(node.attribute)).ints if node.attribute else range(len(before))[::-1]
            moved = [axis for axis in perm if before[axis] != 1]
            return moved == sorted(moved)
        if node.op_type in ("ReduceSum", "ReduceMean", "Expand"):
            return math.prod(before) == math.prod(after)
        if node.op_type == "Slice":
            return before == after and not np.any(self._values[node.input[1]])
        return False

    def _narrower(self, node: NodeProto, wanted: list[Shape]) -> tuple[list[Shape], Shape] | None:
        """Shapes of the inputs and the output without an axis of extent 1, where that spares a
        Reshape; None where it does not, or changes the meaning."""
        output = self._shapes[node.output[0]]
        for axis, shapes in (
            (-1, self._without_last(node, wanted, output)),
            (0, self._without_first(node, wanted, output)),
        ):
            if shapes is not None and any(
                narrow != shape and self._shape_now(self._root(name)) == narrow
                for name, shape, narrow in zip(node.input, wanted, shapes, strict=True)
            ):
                return shapes, _drop(output, axis)
        return None

    def _without_last(
        self, node: NodeProto, wanted: list[Shape], output: Shape
    ) -> list[Shape] | None:
        if not output or output[-1] != 1:
            return None
        if node.op_type in REDUCTIONS and len(node.input) == 2:
            axes = self._values.get(node.input[1])
            inside = axes is not None and axes.min() >= 0 and axes.max() < len(wanted[0]) - 1
            return [_drop(wanted[0], -1), wanted[1]] if inside and wanted[0][-1] == 1 else None
        if node.op_type not in ELEMENTWISE or any(shape and shape[-1] != 1 for shape in wanted):
            return None
        return [_drop(shape, -1) for shape in wanted]

    def _without_first(
        self, node: NodeProto, wanted: list[Shape], output: Shape
    ) -> list[Shape] | None:
        rank = len(output)
        least = 3 if node.op_type == "MatMul" else 1
        if node.op_type not in ELEMENTWISE | {"MatMul"} or rank < least or output[0] != 1:
            return None
        return [_drop(shape, 0) if len(shape) == rank else shape for shape in wanted]


def _drop(shape: Shape, axis: int) -> Shape:
    return shape[:-1] if axis else shape[1:]


def _with_outputs(
    nodes: Iterable[NodeProto], renamed: dict[str, str], made: dict[str, list[NodeProto]]
) -> Iterator[NodeProto]:
    """The nodes with values `renamed`, each followed by the outputs `made` from its results."""
    for node in nodes:
        followers = [follower for name in node.output for follower in made.get(name, ())]
        for new in (node, *followers):
            for names in (new.input, new.output):
                names[:] = [renamed.get(name, name) for name in names]
            yield new


def _needed(nodes: list[NodeProto], outputs: Iterable[str]) -> list[NodeProto]:
    """The nodes that the outputs depend on, in their order."""
    needed = set(outputs)
    kept = []
    for node in reversed(nodes):
        if needed.intersection(node.output):
            needed.update(node.input)
            kept.append(node)
    return kept[::-1]
