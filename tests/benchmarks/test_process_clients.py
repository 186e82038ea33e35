"""Portable files in the clients that people deploy with: the bits of the original there, and no more
memory. ONNXREMAT_NODE names a folder with node_modules (see `benchmarks.process`), without which
these are skipped; a browser is looked for where Debian has it, or ONNXREMAT_CHROMIUM says where."""

import os
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.process import ScriptClient, in_library, in_wasm, on_page, store_inputs
from models import BUILDERS
from onnxremat.commands.rewrite import rewrite
from onnxremat.importer import load
from onnxremat.options import Options
from onnxremat.ort.outside import SUFFIX
from onnxremat.subject import feed_for

pytestmark = pytest.mark.slow

MODULES = os.environ.get("ONNXREMAT_NODE", "")
CHROMIUM = os.environ.get("ONNXREMAT_CHROMIUM") or shutil.which("chromium") or ""

MODELS = {
    "unet": {"size": 128, "base": 16, "levels": 3},
    "espcn": {"size": 128},
    "resnet": {"size": 64, "depth": 50},
    "transformer": {"depth": 2, "sequence": 512, "width": 128},
    "unet_train": {"size": 128, "levels": 3, "base": 16},
}
"""Sizes at which a second of planning is enough."""


def client(name: str) -> ScriptClient:
    if not MODULES or shutil.which("node") is None:
        pytest.skip("no node, or ONNXREMAT_NODE names no folder with its packages")
    modules = Path(MODULES)
    if name == "node":
        return in_library(modules)
    if name == "wasm":
        return in_wasm(modules)
    if not CHROMIUM or not (modules / "node_modules" / "playwright-core").exists():
        pytest.skip("no chromium, or no playwright-core in node_modules")
    return on_page(modules, Path(CHROMIUM))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    """Original and file of each model, once one is asked for."""
    return {}


def made(
    name: str, files: dict[str, tuple[Path, Path]], folders: pytest.TempPathFactory
) -> tuple[Path, Path]:
    if name not in files:
        if name.endswith("_train"):
            pytest.importorskip("onnx_ad", reason="training graphs are made with onnx-ad")
        folder = folders.mktemp(name)
        path, output = folder / "m.onnx", folder / "small.onnx"
        onnx.save(BUILDERS[name](**MODELS[name]), path)
        options = Options(
            session="stock", mem_of="process", threads=1, time_limit=4,
            verify=False, max_slowdown=0.15,
        )  # fmt: skip
        rewrite(path, "min", options, output=output)
        inputs = feed_for(load(path), options).inputs
        store_inputs(folder / "inputs", {k: np.asarray(v) for k, v in inputs.items()})
        files[name] = path, output
    return files[name]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("where", ["node", "wasm", "page"])
def test_a_portable_file_in_another_client(
    where: str,
    model: str,
    files: dict[str, tuple[Path, Path]],
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    opened = client(where)
    original, file = made(model, files, tmp_path_factory)
    assert file.with_name(file.name + SUFFIX).exists()
    inputs = original.parent / "inputs"
    before, after = (opened.answer(one, inputs) for one in (original, file))
    assert after["bits"] == before["bits"]
    assert 0 < after["bytes"] <= before["bytes"]
    assert min(before["cpu_seconds"], after["cpu_seconds"]) > 0
