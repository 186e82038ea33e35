"""Ops between two convolutions do not end a region: tiles go through them, with the same bits."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxremat.prepare import Options, Subject, prepare
from onnxremat.runtimes.compare import different_names
from onnxremat.runtimes.measure import run_outputs
from onnxremat.tiling import choose_regions, tiled_subject
from tests.rewriters.tile.nets import Net

OPTIONS = Options(threads=2)
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


@pytest.mark.parametrize("name", MODELS)
def test_tiles_go_through_it(name: str, tmp_path: Path) -> None:
    before = subject(MODELS[name](), tmp_path)
    plan = choose_regions(before, None, threads=2, allow_rounding=False, seconds=30)
    assert plan.regions and plan.peak_bytes < 0.75 * plan.untiled_peak_bytes, plan.reasons
    after = tiled_subject(before, plan, OPTIONS)
    expected = run_outputs(before.feed.source(), before.feed.inputs, before.feed.recipe)
    got = run_outputs(after.released_source(), before.feed.inputs, before.feed.recipe)
    assert different_names(expected, got) == ()
