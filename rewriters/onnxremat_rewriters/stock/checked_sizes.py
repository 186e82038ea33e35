"""A check that a file is run at the sizes that it was made for.

What a runtime fuses depends on the sizes that inputs declare, and so do the bits. A file that has
to have those of an original that leaves sizes open leaves them open, too. It compares the shapes of
its inputs with the planned ones when it runs. Where these are not as many, they cannot be
subtracted; where they are others, an element is looked up behind the end of a table: both are
errors in a node whose name says for which sizes the file is.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx import numpy_helper

from onnxremat_rewriters.stock.forms import Forms

Sizes = Mapping[str, Sequence[int]]
"""The planned shapes of inputs that leave sizes open, by name."""

_NAMED = 3
"""So many inputs are named in the error."""


def sizes_checked(sizes: Sizes, ranked: frozenset[str], forms: Forms) -> list[onnx.NodeProto]:
    """Nodes whose last output is 0 (an int64 scalar) for inputs of these shapes, and an error for
    others. `sizes` must not be empty; those of the inputs that are `ranked` declare their number of
    dimensions: a runtime compares that itself.

    One node for each input (two for those without a rank) and six.
    """
    nodes: list[onnx.NodeProto] = []
    ranks: list[str] = []
    shapes: list[str] = []
    expected_ranks: list[int] = []
    expected: list[int] = []

    def add(op_type: str, inputs: list[str], wanted: str, **attributes: int) -> str:
        nodes.append(forms.node(op_type, inputs, forms.fresh(wanted), **attributes))
        made: str = nodes[-1].output[0]
        return made

    for name, shape in sizes.items():
        shapes.append(add("Shape", [name], f"shape__{name}"))
        expected += shape
        if name not in ranked:
            # In front of all shapes, so that no dimension can stand for another one.
            ranks.append(add("Shape", [shapes[-1]], f"rank__{name}"))
            expected_ranks.append(len(shape))
    found = add("Concat", [*ranks, *shapes], "sizes", axis=0)
    wanted = numpy_helper.from_array(np.array([*expected_ranks, *expected], np.int64))
    table = numpy_helper.from_array(np.zeros(1, np.int64))
    for value, name in ((wanted, "planned_sizes"), (table, "table")):
        nodes.append(forms.node("Constant", [], forms.fresh(name), value=value))
    planned, rows = (node.output[0] for node in nodes[-2:])
    others = add("Sub", [found, planned], "other_sizes")
    nodes[-1].name = forms.label(_said(sizes))
    farthest = add("ReduceMax", [add("Abs", [others], "apart")], "farthest", keepdims=0)
    add("Gather", [rows, farthest], "as_planned", axis=0)
    nodes[-1].name = forms.label(_said(sizes))
    return nodes


def _said(sizes: Sizes) -> str:
    named = [
        f"{name} of {'x'.join(map(str, shape)) or 'one element'}" for name, shape in sizes.items()
    ]
    more = " and others" if len(named) > _NAMED else ""
    return f"onnxremat: this file is for {', '.join(named[:_NAMED])}{more}"
