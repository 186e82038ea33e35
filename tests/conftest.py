"""Models that several tests run, built once."""

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from models import BUILDERS

STATUS = Path("/proc/self/status")
"""What Linux knows about this process."""


@pytest.fixture(autouse=True)
def ctrl_c_is_left_as_it_was() -> Iterator[None]:
    """A CP-SAT solver that catches Ctrl-C leaves the process without a handler, which Python does
    not notice: the next test that interrupts itself would end the whole run."""
    yield
    if STATUS.exists() and callable(signal.getsignal(signal.SIGINT)):
        caught = re.search(r"^SigCgt:\s*(\w+)$", STATUS.read_text(encoding="ascii"), re.MULTILINE)
        assert caught is not None
        if not int(caught[1], 16) >> (signal.SIGINT - 1) & 1:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            pytest.fail("SIGINT has no handler any more")


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
