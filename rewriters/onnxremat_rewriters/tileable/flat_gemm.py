"""Gemm of a picture or sequence that a Reshape made a matrix of: MatMul with all of its axes.

A tile of rows of the picture is no run of rows of the matrix, where axes are split or merged across
what is multiplied: [1, 16, 128, 128] as [16384, 16], say. With [16, 128, 8, 16] it is a box again.

Exact where the bits were the same (400 random products at 1 to 4 threads): the right side is
stored, so that both kernels pack it; alpha and beta are 1; without a bias, or with a bias for the
columns and at most 128 terms in a sum. With more the kernel adds the bias in the middle.
"""

from collections.abc import Sequence
from math import prod

import numpy as np
from onnx import numpy_helper

from onnxremat.importer.nodes import DEFAULT_DOMAINS, attribute
from onnxremat_rewriters.tileable.draft import Draft

MOST_TERMS = 128


def unflatten_gemm(draft: Draft, index: int) -> None:
    """Give a Gemm that form, if it applies and helps."""
    node = draft.nodes[index]
    if node.domain not in DEFAULT_DOMAINS or attribute(node, "transA", 0) or draft.opset < 13:
        return
    left, right = node.input[0], node.input[1]
    source, matrix, made = draft.root(left), draft.shape(left), draft.shape(node.output[0])
    before, after = draft.shape(source), _later_shape(draft, node.output[0])
    if right not in draft.stored or not draft.is_float(left) or len(matrix) != 2 or not before:
        return
    if attribute(node, "alpha", 1.0) != 1 or attribute(node, "beta", 1.0) != 1:
        return
    bias = node.input[2] if len(node.input) > 2 else ""
    if bias and (matrix[1] > MOST_TERMS or draft.shape(bias) not in ((made[1],), (1, made[1]))):
        return
    if _ends_alike(before, matrix[1]) and _ends_alike(after, made[1]):
        return
    rows = fine_axes(matrix[0], (_ends(before, matrix[1]), _ends(after, made[1])))
    if len(rows) < 2:
        return
    form = draft.form(index, "gemm-of-all-axes", True)
    if attribute(node, "transB", 0):
        stored = numpy_helper.to_array(draft.stored[right])
        right = form.array(np.ascontiguousarray(stored.T))
    result = form.add("MatMul", [form.reshape(source, [*rows, matrix[1]]), right])
    form.finish(form.add("Add", [result, bias]) if bias else result)


def _later_shape(draft: Draft, name: str) -> tuple[int, ...]:
    """The shape under which a value is read: of its only Reshape, or its own."""
    readers = [n for n in draft.nodes if name in n.input]
    if len(readers) == 1 and readers[0].op_type == "Reshape":
        return draft.shape(readers[0].output[0])
    return draft.shape(name)


def _ends_alike(shape: Sequence[int], last: int) -> bool:
    """Whether the last axis stays, so that a Reshape merges only what is before it."""
    return bool(shape) and shape[-1] == last


def _ends(shape: Sequence[int], last: int) -> frozenset[int]:
    """How many rows of `last` elements the inner axes of a shape have together, where they have
    whole rows."""
    inner = [prod(shape[a:]) for a in range(len(shape))]
    return frozenset(n // last for n in inner if n % last == 0 and n > last)


def fine_axes(rows: int, ends: Sequence[frozenset[int]]) -> tuple[int, ...]:
    """Axes for so many rows in which both shapes begin and end with whole axes: of the places where
    either does, those that divide each other."""
    found: list[int] = []
    inner = 1
    for size in sorted(frozenset().union(*ends) | {rows}):
        if size > 1 and size % inner == 0 and rows % size == 0:
            found.append(size // inner)
            inner = size
    return tuple(reversed([size for size in found if size > 1]))
