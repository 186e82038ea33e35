"""The models whose processes are measured, and what is asked of each (`benchmarks.process`)."""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from models import BUILDERS

Made = Callable[[Path], Path | None]


@dataclass(frozen=True)
class Line:
    """A model; how many times less memory is asked, and how much more time allowed. `unset`: the
    factor where nothing is set for both. `portable`: whether a factor is asked of portable files,
    too. `group`: of those whose geometric means count. `clients`: whether it is opened in node,
    too."""

    name: str
    make: Made
    factor: float
    slowdown: float
    unset: float = 0.0
    portable: bool = False
    group: str = ""
    clients: bool = False
    dims: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Group:
    """What is asked of the geometric means of a group, and of each of it."""

    factor: float
    slowdown: float
    least: float


GROUPS: Mapping[str, Group] = {
    "packages": Group(2.5, 1.10, 1.0),
    "training": Group(2.5, 1.10, 0.0),
}
PACKAGES = (
    "ppocrv4_det", "ppocrv4_rec", "ddddocr_det_yolox", "basic_pitch_nmp", "dfn3_enc",
    "dfn3_df_dec", "slanet_plus", "tashkeel_rawi_v3_int8", "light_densenet121", "light_squeezenet",
)  # fmt: skip
TRAINING = (
    "xf_train_aot", "xf_train_onnxad", "resnetbn_train_aot", "vgg_train_onnxad", "unet_train_aot",
    "unetbn_train_aot",
)  # fmt: skip


def products(folder: Path) -> Path:
    """Ten products with weights of 1,600 x 1,600."""
    rng = np.random.default_rng(0)
    size, nodes, weights = 1600, [], []
    for i in range(10):
        weight = rng.standard_normal((size, size), dtype=np.float32) / np.float32(size**0.5)
        weights.append(numpy_helper.from_array(weight, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [f"h{i}", f"w{i}"], [f"h{i + 1}"], f"product{i}"))
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, size]) for n in ("h0", "h10"))
    graph = helper.make_graph(nodes, "products", [x], [y], weights)
    path = folder / "products.onnx"
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), path)
    return path


def built(name: str, **options: Any) -> Made:
    """A builder of `models/`."""

    def build(folder: Path) -> Path:
        path = folder / f"{name}.onnx"
        onnx.save(BUILDERS[name](**options), path)
        return path

    return build


def lines(shared: Path | None, packages: Path | None) -> Iterator[Line]:
    """All lines of the table."""

    def file(folder: Path | None, name: str) -> Made:
        path = None if folder is None else folder / f"{name}.onnx"
        return lambda _: path if path is not None and path.is_file() else None

    unet = built("unet", size=256)
    yield Line("unet 256, at most +15%", unet, 4, 1.15, portable=True, clients=True)
    yield Line("unet 256, at most +35%", unet, 5.5, 1.35, portable=True)
    espcn = built("espcn", size=256)
    yield Line("espcn 256", espcn, 4.5, 1.05, portable=True, clients=True)
    yield Line("espcn 1024", built("espcn", size=1024), 4.5, 1.05, portable=True)
    yield Line("dncnn 512", built("dncnn", size=512), 4, 1.15, portable=True)
    resnet = file(packages, "light_resnet50")
    yield Line("light_resnet50", resnet, 6, 1.02, unset=14, clients=True)
    yield Line("light_vgg19", file(packages, "light_vgg19"), 9, 1.02)
    yield Line("ten products", products, 25, 1.02)
    yield Line("mobilenet", built("mobilenet"), 2.8, 1.10)
    encoder = built("transformer", depth=6, width=512, sequence=512)
    yield Line("transformer 512 tokens", encoder, 4, 1.05, clients=True)
    encoder = built("transformer", sequence=2048, heads=8)
    yield Line("transformer 2048 tokens", encoder, 5, 1.05)
    known: dict[str, Any] = {}
    if shared is not None:
        listed = json.loads((shared / "inference.json").read_text(encoding="utf-8"))
        known = {one["name"]: one["input_shapes"] for one in listed}
    for name in PACKAGES:
        dims = {
            f"{value}:{axis}": size
            for value, shape in known.get(name, {}).items()
            for axis, size in enumerate(shape)
        }
        yield Line(name, file(packages, name), 0, 1.10, group="packages", dims=dims)
    training = None if shared is None else shared / "training"
    for name in TRAINING:
        clients = name == "unet_train_aot"
        path = file(training, name)
        yield Line(name, path, 0, 1.10, group="training", portable=True, clients=clients)
