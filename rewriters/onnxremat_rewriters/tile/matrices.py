"""Matrix products, and ops that are whole along one axis: Softmax, normalisations, reductions."""

from collections.abc import Iterable, Sequence

from onnxremat_rewriters.tile.boxes import Box, Range, extent, whole
from onnxremat_rewriters.tile.pointwise import broadcast_box, read
from onnxremat_rewriters.tile.view import CannotTile, Given, Rule, Site, TileStep, ValuePart

_SUM = 3
"""The output of SkipLayerNormalization that is the sum of its inputs."""


def _weights_stay_whole(site: Site, columns: Range, size: int) -> None:
    if site.fixed[1] and columns != (0, size):
        raise CannotTile(f"{site.op}: its columns cannot be cut without cutting the weights")


def matmul(site: Site) -> Rule:
    """MatMul, MatMulInteger: rows, columns of a computed right side, and leading axes."""
    left, right = site.shape(0), site.shape(1)
    if min(len(left), len(right)) < 2:
        raise CannotTile(f"{site.op}: a vector as an operand is not handled")
    inner = (0, left[-1])
    others = {i: None for i in range(2, len(site.node.input)) if site.has(i)}
    if any(len(site.shape(i)) > 0 and site.shape(i) != (1,) for i in others):
        raise CannotTile(f"{site.op}: a zero point of its own for every row is not handled")

    def rule(_: int, box: Box) -> TileStep:
        *leading, rows, columns = box
        _weights_stay_whole(site, columns, right[-1])
        one = (*broadcast_box(left[:-2], tuple(leading)), rows, inner)
        two = (*broadcast_box(right[:-2], tuple(leading)), inner, columns)
        return TileStep(box, {0: read(site, 0, one), 1: read(site, 1, two), **others})

    return rule


def qlinear_matmul(site: Site) -> Rule:
    """QLinearMatMul: a, its scale and zero point, b, ..., scale and zero point of the result."""
    left, right = site.shape(0), site.shape(3)
    if len(right) != 2 or len(left) < 2:
        raise CannotTile(f"{site.op}: only a right side with two axes is handled")
    others = {i: None for i in range(1, len(site.node.input))}
    if len(site.shape(1)) > 0 and site.shape(1) != (1,):
        raise CannotTile(f"{site.op}: a scale of its own for every row is not handled")

    def rule(_: int, box: Box) -> TileStep:
        if box[-1] != (0, right[-1]):
            raise CannotTile(f"{site.op}: its columns cannot be cut without cutting the weights")
        return TileStep(box, {**others, 0: (*box[:-1], (0, left[-1]))})

    return rule


def gemm(site: Site) -> Rule:
    """Gemm: rows, and columns of a computed right side."""
    left, right = site.shape(0), site.shape(1)
    turn_left = bool(site.attributes.get("transA", 0))
    turn_right = bool(site.attributes.get("transB", 0))
    columns_of = right[0] if turn_right else right[1]
    inner = (0, left[0] if turn_left else left[1])

    def rule(_: int, box: Box) -> TileStep:
        rows, columns = box
        _weights_stay_whole(site, columns, columns_of)
        one = (inner, rows) if turn_left else (rows, inner)
        two = (columns, inner) if turn_right else (inner, columns)
        reads = {0: read(site, 0, one), 1: read(site, 1, two)}
        if site.has(2):
            reads[2] = read(site, 2, broadcast_box(site.shape(2), box))
        return TileStep(box, reads)

    return rule


def einsum(site: Site) -> Rule:
    """Einsum of one operand, whose axes change places, or of two: by the letters of its result."""
    operands, result = terms_of(site)

    def rule(_: int, box: Box) -> TileStep:
        ranges = dict(zip(result, box, strict=True))
        reads = {}
        for i, letters in enumerate(operands):
            shape = site.shape(i)
            part = tuple(ranges.get(c, (0, size)) for c, size in zip(letters, shape, strict=True))
            if site.fixed[i] and part != whole(shape):
                raise CannotTile(f"{site.op}: it cannot be cut there without cutting the weights")
            reads[i] = read(site, i, part)
        return TileStep(box, reads)

    return rule


def terms_of(site: Site) -> tuple[tuple[str, ...], str]:
    """The letters of an Einsum's operands and of its result. Raises CannotTile if a letter stands
    twice in a term, is broadcast, or is summed within one operand."""
    text = site.attributes["equation"].decode().replace(" ", "")
    left, arrow, result = text.partition("->")
    operands = tuple(left.split(","))
    if not arrow or len(operands) > 2 or not "".join((*operands, result)).isalpha():
        raise CannotTile(f"{site.op}: {text!r} is not one or two plain operands and a result")
    if any(len(set(term)) < len(term) for term in (*operands, result)):
        raise CannotTile(f"{site.op}: a letter of {text!r} stands twice in a term")
    sizes: dict[str, int] = {}
    for i, letters in enumerate(operands):
        others = {c for term in (*operands[:i], *operands[i + 1 :], result) for c in term}
        if not others.issuperset(letters):
            raise CannotTile(f"{site.op}: {text!r} sums over a letter of one operand alone")
        for c, size in zip(letters, site.shape(i), strict=True):
            if sizes.setdefault(c, size) != size:
                raise CannotTile(f"{site.op}: {c!r} of {text!r} is broadcast")
    return operands, result


def fused_matmul(site: Site) -> Rule:
    """FusedMatMul: MatMul of operands whose last two axes may be turned."""
    if any(site.attributes.get(name, 0) for name in ("transBatchA", "transBatchB")):
        raise CannotTile(f"{site.op}: batches that are turned are not handled")
    left, right = site.shape(0), site.shape(1)
    if min(len(left), len(right)) < 2:
        raise CannotTile(f"{site.op}: a vector as an operand is not handled")
    turn_left = bool(site.attributes.get("transA", 0))
    turn_right = bool(site.attributes.get("transB", 0))
    inner = (0, left[-2] if turn_left else left[-1])

    def rule(_: int, box: Box) -> TileStep:
        *leading, rows, columns = box
        _weights_stay_whole(site, columns, site.made()[-1])
        one = (inner, rows) if turn_left else (rows, inner)
        two = (columns, inner) if turn_right else (inner, columns)
        first = (*broadcast_box(left[:-2], tuple(leading)), *one)
        second = (*broadcast_box(right[:-2], tuple(leading)), *two)
        return TileStep(box, {0: read(site, 0, first), 1: read(site, 1, second)})

    return rule


def skip_layer_norm(site: Site) -> Rule:
    """SkipLayerNormalization: of the sum of two values, over the last axis. The sum is an output,
    too; a tile of it is an Add."""
    shape = site.shape(0)
    skip = site.shape(1)
    others = {i: None for i in range(2, len(site.node.input)) if site.has(i)}

    bias = (
        4 if site.op == "SkipLayerNormalization" else 3
    )  # behind scale, and shift if there is one

    def rule(output: int, box: Box) -> TileStep:
        added: dict[int, Box | None] = {0: box, 1: read(site, 1, broadcast_box(skip, box))}
        if output == _SUM and not site.has(bias):
            parts = (ValuePart("Add", (Given(0), Given(1)), extent(box)),)
            return TileStep(box, added, parts=parts)
        if output:
            raise CannotTile(f"{site.op}: output {output} cannot be cut")
        if box[-1] != (0, shape[-1]):
            raise CannotTile(f"{site.op}: it needs all of axis {len(shape) - 1}")
        return TileStep(box, {**added, **others})

    return rule


def _along(site: Site, axes: Iterable[int], shape: Sequence[int]) -> Rule:
    """The same shape in and out; `axes` must be whole; other inputs are whole."""
    kept_whole = tuple(axes)
    others = {i: None for i in range(1, len(site.node.input)) if site.has(i)}

    def rule(output: int, box: Box) -> TileStep:
        if output:
            raise CannotTile(f"{site.op}: output {output} cannot be cut")
        for axis in kept_whole:
            if box[axis] != (0, shape[axis]):
                raise CannotTile(f"{site.op}: it needs all of axis {axis}")
        return TileStep(box, {0: box, **others})

    return rule


def softmax(site: Site) -> Rule:
    """Softmax, LogSoftmax, Hardmax: before opset 13 over all axes from the given one."""
    shape = site.shape(0)
    rank = len(shape)
    old = site.opset < 13
    axis = site.attributes.get("axis", 1 if old else -1) % rank
    return _along(site, range(axis, rank) if old else (axis,), shape)


def layer_norm(site: Site) -> Rule:
    """LayerNormalization, RMSNormalization: over all axes from the given one."""
    shape = site.shape(0)
    rank = len(shape)
    axis = site.attributes.get("axis", -1) % rank
    for i in range(1, len(site.node.input)):
        if site.has(i) and len(site.shape(i)) > rank - axis:
            raise CannotTile(f"{site.op}: its scale has axes that are not normalised")
    return _along(site, range(axis, rank), shape)


def one_axis(site: Site) -> Rule:
    """LpNormalization, CumSum: whole along one axis."""
    shape = site.shape(0)
    if site.op == "CumSum":
        axis = int(site.constant(1).ravel()[0])
    else:
        axis = site.attributes.get("axis", -1)
    return _along(site, (axis % len(shape),), shape)


def instance_norm(site: Site) -> Rule:
    """InstanceNormalization: the statistics need whole images, so images and channels are cut."""
    shape = site.shape(0)
    spatial = range(2, len(shape))

    def rule(_: int, box: Box) -> TileStep:
        if any(box[a] != (0, shape[a]) for a in spatial):
            raise CannotTile(f"{site.op}: its statistics need whole images")
        return TileStep(box, {0: box, **{i: read(site, i, (box[1],)) for i in (1, 2)}})

    return rule


def reduction(site: Site) -> Rule:
    """ReduceX, ArgMax, ArgMin: not along the axes that are reduced."""
    shape = site.shape(0)
    rank = len(shape)
    keep = bool(site.attributes.get("keepdims", 1))
    axes = reduced_axes(site, rank)
    others = {i: None for i in range(1, len(site.node.input)) if site.has(i)}

    def rule(_: int, box: Box) -> TileStep:
        source: list[Range] = []
        rest = list(box)
        for axis in range(rank):
            if axis in axes:
                source.append((0, shape[axis]))
                if keep:
                    rest.pop(0)
            else:
                source.append(rest.pop(0))
        return TileStep(box, {0: tuple(source), **others})

    return rule


def reduced_axes(site: Site, rank: int) -> frozenset[int]:
    """The axes that a reduction goes over. Raises CannotTile if they are not constant."""
    if site.op in ("ArgMax", "ArgMin"):
        return frozenset({site.attributes.get("axis", 0) % rank})
    if site.has(1):
        axes = [int(a) for a in site.constant(1).ravel()]
    else:
        axes = list(site.integers("axes"))
    if not axes:
        nothing = site.attributes.get("noop_with_empty_axes", 0)
        return frozenset() if nothing else frozenset(range(rank))
    return frozenset(a % rank for a in axes)
