"""Forms that tiles can go through: the same bits, or close to them, and no longer in the way."""

from collections.abc import Callable
from math import prod
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.ort.recipe import RECIPE
from onnxremat.ort.settle import settled
from onnxremat_rewriters.release import release
from onnxremat_rewriters.tile import Region, follow, view
from onnxremat_rewriters.tileable import Tileable, tileable
from onnxremat_rewriters.tileable.flat_gemm import fine_axes
from tests.rewriters.tile.nets import (
    Array,
    Net,
    feeds,
    run,
    same_bits,
    tiled_exactly,
    types_of,
    with_measured_types,
)


def formed(model: onnx.ModelProto, rounding: bool = False) -> Tileable:
    """`tileable` of all nodes, released, with the types of all values."""
    before = model.SerializeToString()
    nodes = range(len(model.graph.node)) if rounding else ()
    made = tileable(model, types_of(model), nodes)
    assert model.SerializeToString() == before
    inferred = with_measured_types(release(made.model).model)
    onnx.checker.check_model(inferred)
    return Tileable(inferred, made.replaced)


def gemm(
    image: tuple[int, ...], inner: int, columns: int, after: tuple[int, ...], **options: int
) -> onnx.ModelProto:
    """A Gemm of an image as a matrix, between a Relu and a Relu."""
    net = Net()
    a = net.add("Relu", net.input("x", *image))
    p = net.add("Reshape", a, net.constant(np.array([-1, inner])))
    turned = options.get("turned", 0)
    weight = net.weight(*((columns, inner) if turned else (inner, columns)))
    bias = [net.weight(columns)] if options.get("bias") else []
    q = net.add("Gemm", p, weight, *bias, transB=turned)
    return net.model(net.add("Relu", net.add("Reshape", q, net.constant(np.array(after)))))


@pytest.mark.parametrize("bias", [0, 1])
@pytest.mark.parametrize("turned", [0, 1])
@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_a_gemm_of_pieces_of_lines_runs_in_tiles_of_rows(
    bias: int, turned: int, threads: int
) -> None:
    image = (1, 6, 24, 32)
    model = gemm(image, 16, 16, image, bias=bias, turned=turned)
    out = model.graph.output[0].name
    reach = follow(view(model, types_of(model)), out, [2], threads=threads)
    assert 0 not in reach.nodes, "the Reshapes end the cut"
    made = formed(model)
    assert [(one.op_type, one.exact) for one in made.replaced] == [("Gemm", True)]
    given = feeds(model)
    (a,), (b,) = run(model, given, threads), run(made.model, given, threads)
    assert same_bits(a, b)
    for grid in (((2, 5),), ((2, 3), (1, 2))):
        tiled_exactly(made.model, Region(("x",), (out,), grid), threads=threads)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_whatever_gemm_has_another_form_has_the_same_bits(data: st.DataObject) -> None:
    pick = data.draw
    inner, columns = pick(st.sampled_from([1, 4, 16, 128])), pick(st.sampled_from([1, 4, 16, 33]))
    image = (1, *(pick(st.sampled_from([2, 3, 4, 8])) for _ in range(2)), 4 * inner)
    rows = prod(image) // inner
    after = pick(st.sampled_from([(rows, columns), (1, rows, columns), (image[1], -1, columns)]))
    bias, turned = pick(st.integers(0, 1)), pick(st.integers(0, 1))
    model = gemm(image, inner, columns, after, bias=bias, turned=turned)
    made, given = formed(model), feeds(model)
    (a,), (b,) = run(model, given), run(made.model, given)
    assert same_bits(a, b)


@pytest.mark.parametrize(
    ("why", "model"),
    [
        ("the bias is added between blocks", gemm((1, 2, 4, 400), 200, 8, (1, 2, 8, 8), bias=1)),
        ("rows are merged only", gemm((1, 2, 4, 16), 16, 8, (1, 2, 4, 8))),
    ],
)
def test_other_gemms_stay(why: str, model: onnx.ModelProto) -> None:
    made = tileable(model, types_of(model))
    assert not made.changed and made.model == model, why


@settings(max_examples=100, deadline=None, derandomize=True)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    others=st.lists(st.integers(1, 40), max_size=4),
)
def test_fine_axes_make_all_rows(sizes: list[int], others: list[int]) -> None:
    ends = frozenset(prod(sizes[a:]) for a in range(len(sizes)))
    found = fine_axes(prod(sizes), (ends, frozenset(others)))
    assert prod(found) == prod(sizes)
    assert all(size > 1 for size in found)


CHANNELS, SIDE = 8, 24


def instance(net: Net, a: str) -> str:
    return net.add("InstanceNormalization", a, net.weight(CHANNELS), net.weight(CHANNELS))


def exported_group(net: Net, a: str) -> str:
    """GroupNorm as PyTorch exports it."""
    groups = net.add("Reshape", a, net.constant(np.array([0, 4, -1])))
    ones, zeros = net.constant(np.ones(4, np.float32)), net.constant(np.zeros(4, np.float32))
    b = net.add("InstanceNormalization", groups, ones, zeros)
    b = net.add("Reshape", b, net.constant(np.array([1, CHANNELS, SIDE, SIDE])))
    return net.add("Mul", b, net.weight(CHANNELS, 1, 1))


def group(net: Net, a: str) -> str:
    """The op, which the runtime expands into its body."""
    weights = net.weight(CHANNELS), net.weight(CHANNELS)
    return net.add("GroupNormalization", a, *weights, num_groups=4)


NORMS: dict[str, Callable[[Net, str], str]] = {
    "InstanceNormalization": instance,
    "GroupNormalization, exported": exported_group,
    "GroupNormalization": group,
}


def normalized(name: str) -> onnx.ModelProto:
    net = Net()
    a = net.conv(net.input("x", 1, 3, SIDE, SIDE), 3, CHANNELS, 3)
    net.weights[net.nodes[-1].input[2]] += np.float32(100)  # statistics must bear a large mean
    model = net.model(net.conv(NORMS[name](net, a), CHANNELS, 2, 3), opset=21)
    expanded = settled(model, Path.cwd(), RECIPE)
    return model if expanded is model else with_measured_types(expanded)


def close(a: Array, b: Array) -> bool:
    return bool(np.abs(a - b).max() <= 1e-3 * np.abs(a).max())


@pytest.mark.parametrize("name", NORMS)
def test_sums_by_rows_are_close_and_let_tiles_through(name: str) -> None:
    model = normalized(name)
    assert not tileable(model, types_of(model)).changed, "only where rounding is allowed"
    made = formed(model, rounding=True)
    ((op_type, exact),) = [(one.op_type, one.exact) for one in made.replaced]
    assert op_type.endswith("Normalization") and not exact
    given = feeds(model)
    (a,), (b,) = run(model, given), run(made.model, given)
    assert close(a, b)
    looked_at = view(made.model, types_of(made.model))
    out = made.model.graph.output[0].name
    reach = follow(looked_at, out, [2], threads=2, allow_rounding=True)
    image = made.model.graph.node[0].output[0]
    assert image in reach.axes and reach.axes[image] == (2,), reach.boundary
    rows = [n.output[0] for n in made.model.graph.node if n.op_type == "ReduceSumSquare"]
    sums = follow(looked_at, rows[0], [3], threads=2, allow_rounding=True)
    assert sums.axes[image] == (2,), "sums of rows are made in tiles, too"


def test_sums_by_rows_are_not_further_from_the_truth_than_the_kernel() -> None:
    net = Net()
    x = net.input("x", 1, 2, 32, 32)
    one, zero = net.constant(np.ones(2, np.float32)), net.constant(np.zeros(2, np.float32))
    model = net.model(net.add("InstanceNormalization", x, one, zero))
    given = {"x": feeds(model)["x"] + np.float32(1000)}
    exact = given["x"].astype(np.float64)
    mean, spread = exact.mean((2, 3), keepdims=True), exact.var((2, 3), keepdims=True)
    truth = (exact - mean) / np.sqrt(spread + 1e-5)
    (made,) = run(formed(model, rounding=True).model, given)
    assert np.abs(made - truth).max() < 1e-3


@pytest.mark.parametrize("length", [4096, 3000])
def test_a_single_axis_is_summed_in_runs(length: int) -> None:
    net = Net()
    x = net.input("x", 1, 4, length)
    weights = net.weight(4), net.weight(4)
    out = net.add("InstanceNormalization", net.add("Relu", x), *weights)
    model = net.model(net.add("Relu", out))
    made, given = formed(model, rounding=True), feeds(model)
    (a,), (b,) = run(model, given), run(made.model, given)
    assert made.changed and close(a, b)
    name = made.model.graph.output[0].name
    looked_at = view(made.model, types_of(made.model))
    reach = follow(looked_at, name, [2], threads=2, allow_rounding=True, tiles=2)
    assert 0 in reach.nodes


def test_a_quotient_that_is_no_normalization_stays() -> None:
    net = Net()
    x = net.input("x", 1, 4, 64)
    mean = net.add("ReduceMean", x, axes=[2])
    root = net.add("Sqrt", net.add("Add", net.add("Mul", mean, mean), net.constant(np.float32(1))))
    model = net.model(net.add("Div", net.add("Sub", x, mean), root))
    assert not tileable(model, types_of(model), range(9)).changed
