"""Every op of the table: cut on random axes into random tiles, the bits are those of the whole."""

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from onnxremat_rewriters.tile import Region, tails, tile
from onnxremat_rewriters.tile.blocked import TRANSPARENT
from onnxremat_rewriters.tile.table import ROWS, WHOLE
from tests.rewriters.tile import cases, fused
from tests.rewriters.tile.cases import Case, Draw
from tests.rewriters.tile.nets import tiled_exactly, types_of

pytestmark = pytest.mark.slow

EXAMPLES = 20
CASES = {**cases.CASES, **fused.CASES}
AMONG_BLOCKS = {f"{op}, in blocks": (fused.among_blocks(op),) for op in sorted(TRANSPARENT)}


def check(draw: Draw, case: Case) -> None:
    model = case.model()
    threads = draw.int(1, 4)
    output = model.graph.output[draw.int(0, len(model.graph.output) - 1)]
    shape = [d.dim_value for d in output.type.tensor_type.shape.dim]
    assume(shape and 0 not in shape)
    axes = [a for a in case.axes if shape[a] > 1]
    assume(axes)
    first = draw.one(axes)
    grid = [(first, draw.int(2, shape[first]))]
    rest = [a for a in axes if a != first]
    if rest and draw.int(0, 1):
        second = draw.one(rest)
        grid.append((second, draw.int(2, shape[second])))
    carry = bool(draw.int(0, 1))
    if carry:
        model = behind_identities(model)
    region = Region((*case.inputs, *case.given), (output.name,), tuple(grid), carry=carry)
    if ROWS[case.op].guard is tails.guard:
        refused = tile(model, [region], types_of(model), threads=threads).refused
        assume(not refused or "last elements" not in refused[0].reason)
    known = not case.op.startswith("Simplified")
    made = tiled_exactly(model, region, threads=threads, known=known, given=case.given)
    crops_only = case.op in ("Concat", "Split", "Slice")
    crops_only |= carry  # the first tile may have had to make all
    assert crops_only or len({o.tile for o in made.origin if o.tile is not None}) > 1


def behind_identities(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with its inputs passed on by nodes, whose values tiles can carry."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    inputs = [value.name for value in graph.input]
    for node in graph.node:
        for i, name in enumerate(node.input):
            if name in inputs:
                node.input[i] = f"{name}_same"
    for value in reversed(graph.input):
        graph.node.insert(0, helper.make_node("Identity", [value.name], [f"{value.name}_same"]))
        kind = graph.value_info.add()
        kind.CopyFrom(value)
        kind.name = f"{value.name}_same"
    return made


def test_every_row_of_the_table_has_a_case() -> None:
    assert set(CASES) == set(ROWS)
    assert not set(WHOLE) & set(ROWS)


def test_every_row_says_why_its_tiles_are_exact() -> None:
    assert all(len(row.why) > 20 for row in ROWS.values())


@pytest.mark.parametrize("op", CASES | AMONG_BLOCKS)
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.filter_too_much, HealthCheck.too_slow],
)
@given(data=st.data())
def test_tiles_have_the_bits_of_the_whole(op: str, data: st.DataObject) -> None:
    draw = Draw(data)
    check(draw, draw.one((CASES | AMONG_BLOCKS)[op])(draw))


RNG = np.random.default_rng(0)
SIZES: dict[str, tuple[Case, tuple[tuple[int, int], ...]]] = {
    "ReduceMean, fewer rows than threads": (
        Case("ReduceMean", {"x": (1, 8, 16, 25)}, [], attributes={"axes": [2]}), ((1, 4),)
    ),
    "ReduceSum, fewer images than threads": (
        Case("ReduceSum", {"x": (2, 4, 18, 36)}, [], {"a": np.array([2])}), ((0, 2), (1, 3))
    ),
    "ReduceSum, fewer rows than threads": (
        Case("ReduceSum", {"x": (5, 7, 16)}, [], {"a": np.array([0, 2])}), ((1, 5),)
    ),
    "AveragePool, a tile of one window": (
        Case("AveragePool", {"x": (1, 16, 5, 3)}, [], attributes={"kernel_shape": [3, 3]}),
        ((2, 3),),
    ),
    "AveragePool, one window in a row": (
        Case("AveragePool", {"x": (1, 8, 33)}, [], attributes={"kernel_shape": [9]}), ((2, 25),)
    ),
    "AveragePool, long rows": (
        Case("AveragePool", {"x": (1, 1, 4, 4100)}, [], attributes={"kernel_shape": [3, 3]}),
        ((3, 3),),
    ),
    "AveragePool, rows as long as the buffer": (
        Case("AveragePool", {"x": (1, 1, 4, 2046)}, [], attributes={"kernel_shape": [3, 3]}),
        ((3, 3),),
    ),
    "ConvTranspose, one filter, pixel by pixel": (
        Case("ConvTranspose", {"x": (1, 20, 4, 2)}, [], {"w": RNG.random((20, 1, 1, 1), "f")}),
        ((2, 4), (3, 2)),
    ),
    "Gemm, a row and a turned matrix": (
        Case("Gemm", {"x": (1, 300), "w": (33, 300)}, [], attributes={"transB": 1}), ((1, 10),)
    ),
    "Pow, the same power of each element": (
        Case("Pow", {"x": (3, 32, 8, 8)}, [], {"w": np.float32(3)}), ((3, 8),)
    ),
    "Pow, a power of each row": (
        Case("Pow", {"x": (1, 8, 34, 18)}, [], {"w": np.full((34, 1), 0.5, np.float32)}),
        ((3, 18),),
    ),
}  # fmt: skip
"""Tiles of sizes for which the runtime has another kernel."""


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", SIZES)
def test_tiles_that_another_kernel_would_take_are_widened(name: str, threads: int) -> None:
    case, grid = SIZES[name]
    tiled_exactly(case.model(), Region(("x",), ("y",), grid), threads=threads)


def refused_cases() -> dict[str, tuple[Case, int, str]]:
    """Cases that must not be cut on an axis, and words of the reason."""
    x = {"x": (4, 6, 10, 10)}
    norm = {"s": np.ones(6, np.float32), "b": np.ones(6, np.float32)}
    filters = {"w": np.ones((6, 6, 3, 3), np.float32)}
    roi = {"r": np.zeros(0, np.float32), "s": np.array([1, 1, 1.5, 1.5], np.float32)}
    corners = {"r": roi["r"], "s": np.array([1, 1, 2, 2], np.float32)}
    align = {"mode": "cubic", "coordinate_transformation_mode": "align_corners"}
    odd = {"x": (1, 3, 5, 7)}
    doubles = TensorProto.DOUBLE
    return {
        **{op: (Case(op, odd, []), 2, "last elements") for op in ("Elu", "Log", "Sin", "Softplus")},
        **{
            f"{op}, double": (Case(op, x, [], dtype=doubles), 2, "double were not measured")
            for op in ("Exp", "Sigmoid", "Softmax", "Tanh")
        },
        "Conv, channels": (Case("Conv", x, [], filters), 1, "channels"),
        "Conv, double": (
            Case("Conv", x, [], {"w": np.ones((6, 6, 3, 3))}, dtype=TensorProto.DOUBLE),
            2, "double were not measured",
        ),
        "Softmax": (Case("Softmax", x, [], attributes={"axis": 2}), 2, "all of axis 2"),
        "InstanceNormalization": (Case("InstanceNormalization", x, [], norm), 2, "whole images"),
        "LRN": (Case("LRN", x, [], attributes={"size": 3}), 2, "channels"),
        "Resize, other scale": (
            Case("Resize", x, [], roi, {"mode": "cubic"}), 2, "scale of 1.5 round"
        ),
        "Einsum, a sum of one operand": (
            Case("Einsum", x, [], attributes={"equation": "abcd->abc"}), 1, "one operand alone"
        ),
        "Einsum, weights": (
            Case(
                "Einsum", x, [], {"w": np.ones((10, 8), np.float32)}, {"equation": "abcd,de->abce"}
            ),
            3, "cutting the weights",
        ),
        "Resize, corners": (Case("Resize", x, [], corners, align), 2, "depend on the whole length"),
        "Pad, wrap": (
            Case("Pad", x, [], {"p": np.ones(8, np.int64)}, {"mode": "wrap"}, opset=19), 2, "wrap",
        ),
        "ReduceSum, odd": (
            Case("ReduceSum", x, [], {"a": np.array([3])}), 2, "odd addresses"
        ),
    }  # fmt: skip


@pytest.mark.parametrize("name", refused_cases())
def test_what_cannot_be_cut_exactly_is_refused_with_the_reason(name: str) -> None:
    case, axis, reason = refused_cases()[name]
    model = case.model()
    region = Region(("x",), ("y",), ((axis, 2),))
    made = tile(model, [region], types_of(model), threads=2)
    assert len(made.refused) == 1
    assert made.refused[0].reason.startswith("node: ")
    assert reason in made.refused[0].reason
    assert len(made.model.graph.node) == 1
