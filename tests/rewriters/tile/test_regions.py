"""Whole regions: networks cut into tiles give the same bits."""

from itertools import pairwise

import numpy as np
import onnx
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper

from onnxremat_rewriters.tile import (
    InstructionKind,
    Piece,
    Region,
    follow,
    plan_region,
    program,
    tile,
    view,
)
from tests.rewriters.tile.nets import (
    THREADS,
    Net,
    espcn,
    feeds,
    run,
    same_bits,
    tiled_exactly,
    types_of,
    unet,
    with_measured_types,
)


@pytest.mark.parametrize(
    "grid",
    [
        ((2, 3),),
        ((3, 5),),
        ((2, 4), (3, 2)),
        ((2, 96),),
        ((2, 1), (3, 3)),
        ((2, 3), (3, 1)),
        ((3, 1), (2, 1)),
    ],
)
def test_super_resolution_in_strips_and_in_two_dimensions(
    grid: tuple[tuple[int, int], ...],
) -> None:
    model = espcn()
    made = tiled_exactly(model, Region(("x",), (model.graph.output[0].name,), grid))
    tiles = {origin.tile for origin in made.origin if origin.node is not None}
    count = 1
    for _, k in grid:
        count *= k
    assert tiles == set(range(count))


@pytest.mark.parametrize(
    "grid",
    [((2, 3),), ((2, 7),), ((2, 6),), ((3, 5),), ((3, 2), (2, 6)), ((2, 3), (3, 4)), ((2, 1),)],
)
def test_super_resolution_in_tiles_that_carry_what_they_share(
    grid: tuple[tuple[int, int], ...],
) -> None:
    model = espcn()
    region = Region(("x",), (model.graph.output[0].name,), grid, carry=True)
    tiled_exactly(model, region)
    axis = grid[-1][0]
    made: dict[tuple[int, tuple[int, ...]], list[tuple[int, int]]] = {}
    for one in plan_region(view(model, types_of(model)), region, threads=THREADS).tiles:
        for node in one.nodes:
            if model.graph.node[node.node].op_type != "Conv":
                continue
            column = made.setdefault((node.node, one.place[:-1]), [])
            column.append(node.step.makes[axis])
    for ranges in made.values():
        assert ranges[0][0] == 0
        assert all(a[1] == b[0] for a, b in pairwise(ranges)), "computed once, without gaps"


@pytest.mark.parametrize("tiles", [48, 96])
def test_strips_that_carry_and_are_widened(tiles: int) -> None:
    model = espcn()
    out = model.graph.output[0].name
    tiled_exactly(model, Region(("x",), (out,), ((2, tiles),), carry=True))


@pytest.mark.parametrize("grid", [((2, 2),), ((2, 4),), ((2, 8),), ((3, 2), (2, 4))])
def test_a_unet_runs_in_strips_that_carry(grid: tuple[tuple[int, int], ...]) -> None:
    model, (*_, out) = unet()
    made = tiled_exactly(model, Region(("x",), (out,), grid, step=4, carry=True))
    assert {o.region for o in made.origin} == {0}


def test_what_every_tile_needs_whole_is_computed_once() -> None:
    net = Net()
    x = net.input("x", 1, 4, 64, 32)
    keys = net.add("Transpose", net.add("Tanh", x), perm=[0, 1, 3, 2])
    out = net.add("Relu", net.add("MatMul", net.add("Relu", x), keys))
    model = net.model(out)
    for carry, times in ((False, 8), (True, 1)):
        region = Region((x,), (out,), ((2, 8),), carry=carry)
        made = tiled_exactly(model, region)
        assert [o.node for o in made.origin].count(0) == times


def test_what_the_next_tile_takes_over_is_cut_off_behind_its_last_reader() -> None:
    model = espcn()
    region = Region(("x",), (model.graph.output[0].name,), ((2, 4),), carry=True)
    looked_at = view(model, types_of(model))
    steps = program(looked_at, plan_region(looked_at, region, threads=THREADS)).instructions
    serials = {one.makes.serial: i for i, one in enumerate(steps)}
    joins = [
        one for one in steps if one.kind is InstructionKind.JOIN and one.makes.tile is not None
    ]
    assert len(joins) == 3 * 3
    for join in joins:
        tail, own = join.reads
        assert isinstance(tail, Piece) and isinstance(own, Piece)
        assert (tail.tile, own.tile) == (join.makes.tile - 1, join.makes.tile)  # type: ignore[operator]
        assert tail.box[2][1] == own.box[2][0]
        (cut,) = [i for i, one in enumerate(steps) if one.makes == tail]
        (source,) = steps[cut].reads
        readers = [i for i, one in enumerate(steps) if source in one.reads]
        assert max(readers) == cut, "the larger piece is free once the tail is there"
        assert serials[source.serial] < cut  # type: ignore[union-attr]


@pytest.mark.parametrize("tiles", [2, 3, 4])
def test_unet_recomputes_its_skip_in_every_strip(tiles: int) -> None:
    model, (pooled, _, decoded, _, out) = unet()
    encoder = Region(("x",), (pooled,), ((2, tiles),), step=4)
    decoder = Region(("x", decoded), (out,), ((2, tiles),), step=8)
    made = tiled_exactly(model, encoder, decoder)
    assert all(o.region is not None for o in made.origin if o.node is not None and o.node < 4)
    assert {o.region for o in made.origin if o.node == 0} == {0, 1}


def test_weights_are_shared() -> None:
    model = espcn()
    made = tiled_exactly(model, Region(("x",), (model.graph.output[0].name,), ((2, 8),)))
    before = {t.name: t.SerializeToString() for t in model.graph.initializer}
    after = {t.name: t.SerializeToString() for t in made.model.graph.initializer}
    assert before.items() <= after.items()
    assert all(len(after[name]) < 200 for name in after.keys() - before.keys())


def test_constants_that_tiles_replaced_are_gone() -> None:
    net = Net()
    x = net.input("x", 1, 32, 8)
    split = net.constant(np.array([1, 32, 2, 4], np.int64))
    y = net.add("Relu", net.add("Reshape", net.add("Relu", x), split))
    model = net.model(y)
    unread = numpy_helper.from_array(np.zeros(2, np.float32), "unread before")
    model.graph.initializer.append(unread)
    made = tiled_exactly(model, Region((x,), (y,), ((1, 4),)))
    names = {t.name for t in made.model.graph.initializer}
    read = {name for node in made.model.graph.node for name in node.input}
    assert split not in names and "unread before" in names
    assert names - {"unread before"} <= read


def test_an_inner_value_that_is_read_outside_is_made_whole_too() -> None:
    model = espcn()
    inner = model.graph.node[1].output[0]
    model.graph.output.append(next(v for v in model.graph.value_info if v.name == inner))
    made = tiled_exactly(model, Region(("x",), (model.graph.output[0].name,), ((2, 4),)))
    wholes = [o.node for o in made.origin if o.node is not None and o.region is None]
    assert wholes == [0, 1]


def test_a_refused_region_stays_whole_and_names_node_and_reason() -> None:
    model = espcn()
    model.graph.node[1].op_type = "LRN"
    model.graph.node[1].attribute.append(helper.make_attribute("size", 3))
    region = Region(("x",), (model.graph.output[0].name,), ((2, 4),))
    made = tile(model, [region], types_of(model), threads=THREADS)
    assert [r.region for r in made.refused] == [0]
    assert "tanh1: LRN" in made.refused[0].reason
    assert [n.op_type for n in made.model.graph.node] == [n.op_type for n in model.graph.node]


def mobilenet(net: Net, size: int = 56) -> str:
    """Inverted residuals: widths, strides and additions as in MobileNetV2's first blocks."""
    zero, six = net.constant(np.float32(0)), net.constant(np.float32(6))

    def relu6(x: str) -> str:
        return net.add("Clip", x, zero, six)

    a = relu6(net.conv(net.input("x", 1, 3, size, size), 3, 16, 3, 2))
    for cin, cout, stride in ((16, 24, 2), (24, 24, 1), (24, 32, 2), (32, 32, 1)):
        wide = relu6(net.conv(a, cin, 4 * cin, 1))
        wide = relu6(net.conv(wide, 4 * cin, 4 * cin, 3, stride, 4 * cin))
        made = net.conv(wide, 4 * cin, cout, 1)
        a = net.add("Add", made, a) if cin == cout and stride == 1 else made
    return a


@pytest.mark.parametrize("grid", [((2, 4),), ((2, 7),), ((2, 2), (3, 2))])
def test_inverted_residuals(grid: tuple[tuple[int, int], ...]) -> None:
    net = Net()
    out = mobilenet(net)
    tiled_exactly(net.model(out), Region(("x",), (out,), grid))


def attention(net: Net, sequence: int = 64, heads: int = 4, width: int = 16) -> tuple[str, ...]:
    """Names of q, k and v after their heads are split, of the context, and of the output."""
    total = heads * width
    x = net.input("x", 1, sequence, total)
    split = net.constant(np.array([0, 0, heads, width], np.int64))
    parts = []
    for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]):
        made = net.add("MatMul", x, net.weight(total, total, scale=0.2))
        parts.append(net.add("Transpose", net.add("Reshape", made, split), perm=perm))
    q, k, v = parts
    scores = net.add("Div", net.add("MatMul", q, k), net.constant(np.float32(4)))
    context = net.add("MatMul", net.add("Softmax", scores, axis=-1), v)
    turned = net.add("Transpose", context, perm=[0, 2, 1, 3])
    merged = net.add("Reshape", turned, net.constant(np.array([0, 0, total], np.int64)))
    made = net.add("MatMul", merged, net.weight(total, total, scale=0.2))
    return (
        q,
        k,
        v,
        context,
        net.add("Add", net.add("LayerNormalization", made, *_scale(net, total)), x),
    )


def _scale(net: Net, size: int) -> tuple[str, str]:
    return net.weight(size), net.weight(size)


@pytest.mark.parametrize("grid", [((1, 4),), ((1, 4), (2, 4)), ((2, 5),), ((2, 64),)])
def test_attention_by_heads_and_by_query_rows(grid: tuple[tuple[int, int], ...]) -> None:
    net = Net()
    q, k, v, context, out = attention(net)
    made = tiled_exactly(net.model(out), Region((q, k, v), (context,), grid))
    assert {o.region for o in made.origin if o.node is None} == {0}


def test_keys_and_values_of_a_head_are_cut_once_for_all_its_rows() -> None:
    net = Net()
    q, k, v, context, out = attention(net)
    made = tiled_exactly(net.model(out), Region((q, k, v), (context,), ((1, 4), (2, 8))))
    cuts = [n.input[0] for n in made.model.graph.node if n.op_type == "Slice"]
    assert (cuts.count(q), cuts.count(k), cuts.count(v)) == (32, 4, 4)


def test_encoder_block_by_rows_from_the_query_to_the_output() -> None:
    net = Net()
    q, _, _, _, out = attention(net)
    tiled_exactly(net.model(out), Region((q,), (out,), ((1, 8),)))


def test_heads_can_be_cut_through_their_merge() -> None:
    """A cut of the merged axis of heads and channels is a cut of the heads."""
    net = Net()
    q, k, v, context, out = attention(net)
    model = net.model(out)
    merged = [n.output[0] for n in model.graph.node if n.op_type == "Reshape"][-1]
    looked_at = view(model, types_of(model))
    reach = follow(looked_at, merged, [2], threads=THREADS, tiles=4)
    assert reach.axes[context] == (1,)
    assert reach.axes[q] == (1,)
    tiled_exactly(model, Region((q, k, v), (merged,), ((2, 4),)))


@pytest.mark.parametrize("tiles", [2, 5, 10])
def test_small_tiles_of_wide_convolutions_are_widened(tiles: int) -> None:
    net = Net()
    a = net.input("x", 1, 32, 20, 20)
    for cin in (32, 32):
        a = net.conv(a, cin, 32, 3)
    model = net.model(a)
    region = Region(("x",), (a,), ((2, tiles),))
    plan = plan_region(view(model, types_of(model)), region, threads=THREADS)
    least = 64 * THREADS + 1  # pixels: with 64 for a thread, it would sum in longer blocks
    assert all(one.shape[2] * one.shape[3] >= least for t in plan.tiles for one in t.nodes)
    tiled_exactly(model, region)


def test_rounding_is_reported_where_it_is_allowed() -> None:
    net = Net()
    a = net.add("Softplus", net.conv(net.input("x", 1, 32, 20, 20), 32, 32, 3))
    model = net.model(a)
    region = Region(("x",), (a,), ((2, 10),))
    made = tile(model, [region], types_of(model), threads=THREADS, allow_rounding=True)
    assert made.refused == ()
    assert made.rounded == (0, 1)
    fed = feeds(model)
    (exact,), (near,) = run(model, fed), run(made.model, fed)
    assert np.allclose(exact, near, rtol=1e-4, atol=1e-5)


def test_the_program_says_what_is_written() -> None:
    model = espcn()
    region = Region(("x",), (model.graph.output[0].name,), ((2, 3), (3, 2)))
    types = types_of(model)
    looked_at = view(model, types)
    steps = program(looked_at, plan_region(looked_at, region, threads=THREADS)).instructions
    made = tile(model, [region], types, threads=THREADS)
    written = onnx.shape_inference.infer_shapes(made.model, data_prop=True)
    shapes = {name: kind.shape for name, kind in types_of(written).items()}
    assert {name: kind for name, kind in types_of(written).items() if name in made.types} == {
        name: kind for name, kind in made.types.items() if name in types_of(written)
    }
    assert [s.makes.shape for s in steps] == [shapes[n.output[0]] for n in made.model.graph.node]
    kinds = {InstructionKind.SLICE: "Slice", InstructionKind.JOIN: "Concat"}
    for step, node in zip(steps, made.model.graph.node, strict=True):
        assert step.kind not in kinds or kinds[step.kind] == node.op_type


def test_shapes_that_are_computed_from_a_tiled_value_become_constants() -> None:
    net = Net()
    a = net.conv(net.input("x", 1, 3, 16, 16), 3, 8, 3)
    sizes = net.add(
        "Slice", net.add("Shape", a), net.constant([2]), net.constant([4]), net.constant([0])
    )
    double = net.add("Mul", sizes, net.constant(np.array([2, 2], np.int64)))
    target = net.add("Concat", net.constant(np.array([1, 8], np.int64)), double, axis=0)
    b = net.add(
        "Resize",
        a,
        "",
        "",
        target,
        mode="nearest",
        coordinate_transformation_mode="asymmetric",
        nearest_mode="floor",
    )
    out = net.conv(b, 8, 3, 3)
    made = tiled_exactly(net.model(out), Region(("x",), (out,), ((2, 4),)))
    assert "Shape" not in {n.op_type for n in made.model.graph.node}
    assert all(o.region == 0 for o in made.origin)


def test_follow_names_where_a_cut_ends_and_why() -> None:
    net = Net()
    a = net.conv(net.input("x", 1, 8, 16, 16), 8, 8, 3)
    b = net.add("InstanceNormalization", a, net.weight(8), net.weight(8))
    c = net.conv(net.add("Relu", b), 8, 8, 3)
    model = net.model(c)
    reach = follow(view(model, types_of(model)), c, [2], threads=THREADS)
    assert reach.nodes == (2, 3)
    assert list(reach.boundary) == [b]
    assert "statistics" in reach.boundary[b]
    assert reach.axes[b] == (2,)


def test_regions_must_not_wait_for_each_other_or_share_an_output() -> None:
    model, (pooled, _, _, _, out) = unet()
    whole = Region(("x",), (pooled, out), ((2, 2),))
    with pytest.raises(ValueError, match="output of two regions"):
        tile(model, [whole, whole], types_of(model), threads=THREADS)
    later = model.graph.node[-3].output[0]
    first = Region(("x", later), (pooled, out), ((2, 2),))
    with pytest.raises(ValueError, match="wait for each other"):
        tile(model, [first], types_of(model), threads=THREADS)


def test_an_input_may_be_cut_to_the_size_of_an_output() -> None:
    """As the mask of an attention to the keys that go into the cache."""
    net = Net()
    x = net.input("x", 1, 4, 8, 8)
    keys = net.add("Relu", x)
    extent = net.add("Shape", keys)
    mask = net.add("Expand", net.add("Abs", net.input("m", 1, 1, 1, 8)), extent)
    y = net.add("Add", net.add("Sigmoid", keys), mask)
    model = net.model(keys, y)
    region = Region((x, mask), (keys, y), ((1, 2),))
    made = tiled_exactly(model, region)
    assert "Shape" not in [node.op_type for node in made.model.graph.node]


@pytest.mark.parametrize(
    ("grid", "why"),
    [(((2, 97),), "cannot be cut into 97"), (((1, 2),), "channels"), (((7, 2),), "no axis 7")],
)
def test_a_grid_that_does_not_fit_is_refused(grid: tuple[tuple[int, int], ...], why: str) -> None:
    net = Net()
    out = net.conv(net.input("x", 1, 3, 16, 16), 3, 8, 3)
    model = net.model(out)
    made = tile(model, [Region(("x",), (out,), grid)], types_of(model), threads=THREADS)
    assert why in made.refused[0].reason


def test_outputs_of_different_sizes_are_cut_at_the_same_places() -> None:
    model, (pooled, *_) = unet()
    skip = next(n.input[0] for n in model.graph.node if n.op_type == "MaxPool")
    tiled_exactly(model, Region(("x",), (skip, pooled), ((2, 3), (3, 2))))


def test_initializers_that_a_caller_can_replace_are_no_constants() -> None:
    model = espcn(16)
    weight = model.graph.initializer[0]
    kind = helper.make_tensor_value_info(weight.name, weight.data_type, weight.dims)
    model.graph.input.append(kind)
    out = model.graph.output[0].name
    made = tile(model, [Region(("x",), (out,), ((2, 2),))], types_of(model), threads=THREADS)
    fed = feeds(model)
    pairs = zip(run(model, fed), run(made.model, fed), strict=True)
    assert all(same_bits(a, b) for a, b in pairs)


def test_a_tiled_model_can_be_tiled_again() -> None:
    model = espcn()
    middle, out = model.graph.node[3].output[0], model.graph.output[0].name
    first = tiled_exactly(model, Region((middle,), (out,), ((2, 3),)))
    types = {**types_of(model), **first.types}
    second = tile(first.model, [Region(("x",), (middle,), ((2, 4),))], types, threads=THREADS)
    assert second.refused == ()
    fed = feeds(model)
    pairs = zip(run(model, fed), run(second.model, fed), strict=True)
    assert all(same_bits(a, b) for a, b in pairs)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(data=st.data())
def test_wherever_follow_says_that_a_cut_goes_it_goes(data: st.DataObject) -> None:
    net = Net()
    which = data.draw(st.sampled_from(["unet", "mobilenet", "attention"]))
    if which == "unet":
        model = unet(32, 4)[0]
    else:
        build = mobilenet if which == "mobilenet" else lambda n: attention(n)[-1]
        model = net.model(build(net))
    looked_at = view(model, types_of(model))
    made = [name for node in model.graph.node for name in node.output]
    out = data.draw(st.sampled_from(made))
    shape = looked_at.types[out].shape
    axes = data.draw(
        st.lists(st.sampled_from(range(len(shape))), min_size=1, max_size=2, unique=True)
    )
    assume(all(shape[a] > 1 for a in axes))
    grid = tuple((a, data.draw(st.integers(2, min(4, shape[a])))) for a in axes)
    reach = follow(looked_at, out, axes, threads=THREADS, tiles=4)
    assume(reach.nodes)
    region = Region(tuple(reach.boundary), (out,), grid, carry=data.draw(st.booleans()))
    tiled = tile(model, [region], types_of(model), threads=THREADS)
    assume(not tiled.refused)  # other bounds than those that were tried may fall within a head
    tiled_exactly(model, region)


@pytest.mark.parametrize("grid", [((1, 4),), ((1, 3), (0, 2))])
def test_a_fused_sum_is_made_by_itself(grid: tuple[tuple[int, int], ...]) -> None:
    """Of SkipLayerNormalization both outputs are read, as in blocks that normalize first."""
    net = Net()
    x, skip = net.input("x", 2, 24, 40), net.input("z", 2, 24, 40)
    inputs, outputs = [x, skip, net.weight(40), net.weight(40)], ["norm", "", "", "sum"]
    domain = "com.microsoft"
    net.nodes.append(
        helper.make_node("SkipLayerNormalization", inputs, outputs, "skip", domain=domain)
    )
    out = net.add("Add", net.add("MatMul", "norm", net.weight(40, 40)), net.add("Relu", "sum"))
    model = with_measured_types(net.model(out))
    made = tiled_exactly(model, Region((x, skip), (out,), grid))
    assert [n.op_type for n in made.model.graph.node].count("SkipLayerNormalization") > 1


def two_stages(*, reads_whole: bool = False) -> tuple[onnx.ModelProto, str, str]:
    """Convolutions, of which a value in the middle is read behind one more, too."""
    net = Net()
    middle = net.add("Relu", net.conv(net.input("x", 1, 3, 48, 40), 3, 8, 3))
    x = net.add("Tanh", net.conv(net.add("Relu", net.conv(middle, 8, 6, 5)), 6, 8, 3))
    out = net.add("Add", x, middle)
    others = [net.add("ReduceSum", middle)] if reads_whole else []
    return net.model(out, *others), middle, out


def joined(made: onnx.ModelProto, name: str) -> bool:
    return any(node.op_type == "Concat" and node.output[0] == name for node in made.graph.node)


@pytest.mark.parametrize("carry", [False, True])
@pytest.mark.parametrize(
    ("first", "second"),
    [
        (((2, 4),), ((2, 4),)),
        (((2, 3),), ((2, 8),)),
        (((2, 5),), ((3, 4),)),
        (((2, 4), (3, 2)), ((2, 3), (3, 3))),
        (((2, 1), (3, 4)), ((2, 6),)),
    ],
)
def test_what_only_regions_read_may_stay_in_strips(
    first: tuple[tuple[int, int], ...], second: tuple[tuple[int, int], ...], carry: bool
) -> None:
    model, middle, out = two_stages()
    behind = Region((middle,), (out,), second, carry=carry)
    for opened in ((), (middle,)):
        made = tiled_exactly(model, Region(("x",), (middle,), first, opened=opened), behind)
        assert not made.refused
        assert joined(made.model, middle) is not bool(opened)


def test_what_is_read_whole_is_joined() -> None:
    model, middle, out = two_stages(reads_whole=True)
    regions = (
        Region(("x",), (middle,), ((2, 4),), opened=(middle,)),
        Region((middle,), (out,), ((2, 4),)),
    )
    assert joined(tiled_exactly(model, *regions).model, middle)
    model, middle, out = two_stages()
    made = tiled_exactly(model, Region(("x",), (middle,), ((2, 4),), opened=(middle,)))
    assert joined(made.model, middle), "nodes outside of regions read it"
    made = tiled_exactly(model, Region(("x",), (out,), ((2, 4),), opened=(out,)))
    assert joined(made.model, out), "it is an output"
