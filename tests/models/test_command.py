"""`python -m models`."""

from pathlib import Path

import onnx
import pytest

from models import BUILDERS
from models.__main__ import main


def test_a_model_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.onnx"
    options = ["--blocks", "1", "2", "--size", "16", "--base", "4", "--no-bottleneck"]
    assert main(["resnet", *options, "--symbolic-batch", "-o", str(path)]) == 0
    expected = BUILDERS["resnet"](
        blocks=(1, 2), size=16, base=4, bottleneck=False, symbolic_batch=True
    )
    assert onnx.load(path) == expected
    assert f"{len(expected.graph.node)} nodes" in capsys.readouterr().out


def test_a_value_that_does_not_fit_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "net.onnx"
    assert main(["unet", "--size", "30", "-o", str(path)]) == 2
    assert "divisible" in capsys.readouterr().err
    assert not path.exists()


@pytest.mark.parametrize("arguments", [["nothing", "-o", "x"], ["unet"], ["mlp", "--size", "3"]])
def test_usage_errors_end_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage:" in capsys.readouterr().err


@pytest.mark.parametrize("name", BUILDERS)
def test_every_builder_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([name, "--help"])
    assert ended.value.code == 0
    assert "--seed" in capsys.readouterr().out
