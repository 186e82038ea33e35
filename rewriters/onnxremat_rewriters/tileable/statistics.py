"""Normalization over images or groups of channels: sums by rows first, then all of them.

    InstanceNormalization; also of [batch, groups, elements] that a Reshape made of pictures, which
    is how PyTorch exports GroupNorm; and (x - mean) / sqrt(mean(x x) - mean mean + epsilon), which
    the runtime makes of GroupNormalization

A tile of rows has whole rows: their means and sums of squares of differences from these are made in
tiles. All rows together give mean and variance (Chan, Golub and LeVeque, "Algorithms for computing
the sample variance", The American Statistician 1983, formula 2.1), and a second pass of tiles
normalizes. The result is rounded differently; a large mean does no harm, unlike with sums of
squares. With a single axis behind the channels its elements are taken in runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from onnxremat.importer.nodes import DEFAULT_DOMAINS, attribute
from onnxremat_rewriters.tileable.draft import Draft, Form

LONGEST_RUN = 1024
SHORTEST_RUN = 16


@dataclass(frozen=True)
class _Norm:
    """What is normalized: `source` in `groups` of each image; then times `scale`, plus `bias`, a
    vector of an element for each group, if there are any."""

    source: str
    groups: int
    epsilon: float
    scale: str = ""
    bias: str = ""


def sum_by_rows(draft: Draft, index: int) -> None:
    """Give a normalization that form, if it is one and the form applies."""
    node = draft.nodes[index]
    if node.domain not in DEFAULT_DOMAINS or draft.opset < 13:
        return
    found = _instance(draft, index) if node.op_type != "Div" else _quotient(draft, index)
    if found is None or not draft.is_float(found.source):
        return
    shape = draft.shape(found.source)
    fine = _fine_shape(shape, found.groups)
    if fine is None:
        return
    kind = "GroupNormalization" if node.op_type == "Div" else None
    form = draft.form(index, "statistics-by-rows", False, kind)
    form.finish(_written(form, found, fine))


def _instance(draft: Draft, index: int) -> _Norm | None:
    node = draft.nodes[index]
    shape = draft.shape(node.input[0])
    epsilon = float(attribute(node, "epsilon", 1e-5))
    source = _pictures(draft, node.input[0])
    if source is None:
        return None
    return _Norm(source, shape[1], epsilon, node.input[1], node.input[2])


def _pictures(draft: Draft, name: str) -> str | None:
    """The value with the most axes that a value [batch, groups, ...] is a view of, image by image
    and group by group: the value itself if there is none; None if it has no such shape."""
    shape = draft.shape(name)
    if len(shape) < 3:
        return None
    source = draft.root(name)
    before = draft.shape(source)
    if len(before) > 2 and before[0] == shape[0] and before[1] % shape[1] == 0:
        return source
    return name


def _quotient(draft: Draft, index: int) -> _Norm | None:
    """Of the body of GroupNormalization: its Div."""
    node = draft.nodes[index]
    deviation, root = draft.maker(node.input[0], "Sub"), draft.maker(node.input[1], "Sqrt")
    total = root and draft.maker(root.input[0], "Add")
    variance = total and draft.maker(total.input[0], "Sub")
    if deviation is None or total is None or variance is None:
        return None
    x, mean = deviation.input
    squares, square = draft.maker(variance.input[0], "ReduceMean"), variance.input[1]
    means, shape = draft.maker(mean, "ReduceMean"), draft.shape(x)
    if squares is None or means is None or means.input[0] != x or len(shape) != 3:
        return None
    of_mean, of_x = draft.maker(square, "Mul"), draft.maker(squares.input[0], "Mul")
    if of_mean is None or of_x is None or {*of_mean.input} != {mean} or {*of_x.input} != {x}:
        return None
    kept = (*shape[:2], 1)
    if draft.shape(mean) != kept or draft.shape(squares.output[0]) != kept:
        return None
    source = _pictures(draft, x)
    epsilon = draft.number(total.input[1])
    if source is None or epsilon is None:
        return None
    return _Norm(source, shape[1], epsilon)


def _fine_shape(shape: Sequence[int], groups: int) -> tuple[int, ...] | None:
    """[batch, groups, channels of a group, rows, ..., elements of a row]."""
    spatial = list(shape[2:])
    if len(spatial) == 1:
        run = next((n for n in range(LONGEST_RUN, SHORTEST_RUN - 1, -1) if spatial[0] % n == 0), 0)
        if not run or spatial[0] == run:
            return None
        spatial = [spatial[0] // run, run]
    return (shape[0], groups, shape[1] // groups, *spatial)


def _written(form: Form, found: _Norm, fine: tuple[int, ...]) -> str:
    last, rest = len(fine) - 1, list(range(2, len(fine)))
    x = form.reshape(found.source, fine)
    means = form.reduce("ReduceMean", x, [last])
    squares = form.reduce("ReduceSumSquare", form.add("Sub", [x, means]), [last])
    # As one value: then no order of the nodes has anything between both and their reader.
    rows = form.add("Concat", [means, squares], axis=last)
    means, squares = (form.add("Gather", [rows, form.integers([i])], axis=last) for i in (0, 1))
    mean = form.reduce("ReduceMean", means, rest)
    off = form.add("Sub", [means, mean])
    between = form.reduce("ReduceMean", form.add("Mul", [off, off]), rest)
    share = form.number(1 / fine[-1])
    within = form.add("Mul", [form.reduce("ReduceMean", squares, rest), share])
    variance = form.add("Add", [form.add("Add", [within, between]), form.number(found.epsilon)])
    deviation = form.add("Sqrt", [variance])
    vector = [1, found.groups, *[1] * (len(fine) - 2)]
    if not found.scale:
        return form.add("Div", [form.add("Sub", [x, mean]), deviation])
    factor = form.add("Div", [form.reshape(found.scale, vector), deviation])
    scaled = form.add("Mul", [form.add("Sub", [x, mean]), factor])
    return form.add("Add", [scaled, form.reshape(found.bias, vector)])
