"""Ops between two convolutions do not end a region: tiles go through them, with the same bits."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from models import BUILDERS
from onnxremat.core.memory import profile
from onnxremat.core.problem import Limits
from onnxremat.core.schedule import given_order
from onnxremat.options import Options
from onnxremat.ort.emulation.predict import BOOKKEEPING_BYTES, BOOKKEEPING_NODE_BYTES
from onnxremat.ort.emulation.rules import RECIPE_RULES
from onnxremat.ort.measuring.compare import different_names
from onnxremat.ort.measuring.measure import measure_activation, run_outputs
from onnxremat.subject import Subject, prepare
from onnxremat.tiling import Tiling, TilingPlan, choose_regions, tiled_subject
from tests.rewriters.tile.nets import Net

pytestmark = pytest.mark.slow

OPTIONS = Options(session="recipe", threads=2)
CHANNELS, SIDE = 16, 96
Middle = Callable[[Net, str], str]


def between(middle: Middle) -> onnx.ModelProto:
    net = Net()
    a = net.conv(net.input("x", 1, 3, SIDE, SIDE), 3, CHANNELS, 3)
    return net.model(net.conv(middle(net, a), CHANNELS, 1, 3), opset=20)


def aligned(net: Net, a: str) -> str:
    size = net.constant(np.array([1, CHANNELS, 2 * SIDE, 2 * SIDE]))
    mode = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    return net.add("Resize", a, "", "", size, **mode)


def einsum(net: Net, a: str) -> str:
    return net.add("Einsum", a, net.weight(CHANNELS, CHANNELS), equation="bchw,cd->bdhw")


def grid_sample(net: Net, a: str) -> str:
    return net.add("GridSample", a, net.weight(1, SIDE, SIDE, 2))


def along_time() -> onnx.ModelProto:
    """Convolutions of [batch, channels, time]."""
    net = Net()
    a = net.input("x", 1, 2, 20_000)
    for cin, cout in ((2, 16), (16, 2)):
        a = net.add("Relu", net.add("Conv", a, net.weight(cout, cin, 3), pads=[1, 1]))
    return net.model(a)


def in_three_dimensions() -> onnx.ModelProto:
    net = Net()
    a = net.input("x", 1, 2, 8, 8, 256)
    for cin, cout in ((2, 16), (16, 2)):
        a = net.add("Conv", a, net.weight(cout, cin, 3, 3, 3), pads=[1] * 6)
    return net.model(a)


MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    "align_corners": lambda: between(aligned),
    "Elu": lambda: between(lambda net, a: net.add("Elu", a)),
    "Einsum": lambda: between(einsum),
    "GridSample": lambda: between(grid_sample),
    "one dimension": along_time,
    "three dimensions": in_three_dimensions,
}


def subject(made: onnx.ModelProto, folder: Path, options: Options = OPTIONS) -> Subject:
    onnx.save(made, folder / "model.onnx")
    return prepare(folder / "model.onnx", options)


def within(share: float, of: Subject) -> TilingPlan:
    """A plan of tiles within that share of the peak of whole ops."""
    graph = of.imported.graph
    budget = int(share * profile(graph, given_order(graph), RECIPE_RULES).peak_bytes)
    tiling = Tiling(RECIPE_RULES, BOOKKEEPING_NODE_BYTES, 2, False)
    plan = choose_regions(of, budget, tiling, Limits(30))
    assert plan.regions and plan.meets(budget), plan.reasons
    return plan


@pytest.mark.parametrize("name", MODELS)
def test_tiles_go_through_it(name: str, tmp_path: Path) -> None:
    before = subject(MODELS[name](), tmp_path)
    plan = within(0.75, before)
    after = tiled_subject(before, plan)
    expected = run_outputs(before.feed.source(), before.feed.inputs, before.feed.recipe)
    got = run_outputs(after.released_source(), before.feed.inputs, before.feed.recipe)
    assert different_names(expected, got) == ()


OPTIMIZED: dict[str, tuple[Callable[[], onnx.ModelProto], float]] = {
    "espcn": (lambda: BUILDERS["espcn"](size=96), 0.5),
    "mobilenet": (lambda: BUILDERS["mobilenet"](size=128), 0.75),
    "unet": (lambda: BUILDERS["unet"](size=96, base=24, levels=2), 0.75),
    "transformer": (
        lambda: BUILDERS["transformer"](depth=1, sequence=256, heads=4, width=64), 0.6
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", OPTIMIZED)
def test_tiles_go_through_what_optimizations_make(name: str, tmp_path: Path) -> None:
    build, share = OPTIMIZED[name]
    options = Options(session="recipe", threads=2, optimize="all")
    before = subject(build(), tmp_path, options)
    plan = within(share, before)
    after = tiled_subject(before, plan)
    measured = measure_activation(after.released_source(), before.feed.inputs, before.feed.recipe)
    nodes = len(after.released.model.graph.node)
    bookkeeping = BOOKKEEPING_BYTES + BOOKKEEPING_NODE_BYTES * nodes
    assert measured.peak_bytes <= plan.peak_bytes * 1.02 + bookkeeping
    expected = run_outputs(before.feed.source(), before.feed.inputs, before.feed.recipe)
    got = run_outputs(after.released_source(), before.feed.inputs, before.feed.recipe)
    assert different_names(expected, got) == ()


def test_what_only_tiles_read_is_left_in_strips(tmp_path: Path) -> None:
    """Classes at a quarter of the size are read by one region alone."""
    before = subject(BUILDERS["deeplab"](size=256), tmp_path)
    plan = within(0.35, before)
    assert [name for region in plan.regions for name in region.opened] == ["logits"]
    after = tiled_subject(before, plan)
    nodes = after.released.model.graph.node
    assert not any("logits" in node.output for node in nodes)
    measured = measure_activation(after.released_source(), before.feed.inputs, before.feed.recipe)
    bookkeeping = BOOKKEEPING_BYTES + BOOKKEEPING_NODE_BYTES * len(nodes)
    assert measured.peak_bytes <= plan.peak_bytes * 1.02 + bookkeeping
    expected = run_outputs(before.feed.source(), before.feed.inputs, before.feed.recipe)
    got = run_outputs(after.released_source(), before.feed.inputs, before.feed.recipe)
    assert different_names(expected, got) == ()
