"""Models that several tests run, built once."""

from pathlib import Path

import onnx
import pytest

from models import BUILDERS


@pytest.fixture(scope="session")
def unet_train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small U-Net training graph: the kind of model that recomputation is for."""
    pytest.importorskip("onnx_ad", reason="training graphs are made with onnx-ad")
    path = tmp_path_factory.mktemp("models") / "unet_train.onnx"
    onnx.save(BUILDERS["unet_train"](size=32, levels=3, base=8), path)
    return path


@pytest.fixture(scope="session")
def large_unet_train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same at a size at which resident memory tells something (about 20 MB)."""
    pytest.importorskip("onnx_ad", reason="training graphs are made with onnx-ad")
    path = tmp_path_factory.mktemp("models") / "large_unet_train.onnx"
    onnx.save(BUILDERS["unet_train"](size=128, levels=3, base=16), path)
    return path


@pytest.fixture(scope="session")
def unet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small U-Net for inference: its peak is at the bound of one op."""
    path = tmp_path_factory.mktemp("models") / "unet.onnx"
    onnx.save(BUILDERS["unet"](size=32, levels=2, base=8), path)
    return path
