"""Whether a machine is of the kind that a file was made for."""

from pathlib import Path

import onnx
import pytest

from onnxremat.cli.report import check_text
from onnxremat.commands import fitness as module
from onnxremat.commands.fitness import check, require_fit
from onnxremat.commands.rewrite import rewrite
from onnxremat.core.errors import ModelError, UsageError, VerificationError
from onnxremat.importer import load
from onnxremat.options import Options
from onnxremat.ort.blocked_layout import layout_width
from onnxremat.ort.outside import SUFFIX, Weights, name_data, with_weights_outside
from onnxremat.ort.recipe import STOCK
from onnxremat.ort.record import PlanRecord, attach_record
from tests.rewriters.tile.nets import Net


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A file with its weights packed beside it: a convolution that is laid out in blocks, where
    there are any, and a product."""
    net = Net()
    x = net.conv(net.input("x", 1, 3, 16, 16), 3, 32, 3)
    x = net.add("Flatten", net.add("GlobalAveragePool", x))
    model = net.model(net.add("MatMul", x, net.weight(32, 64)))
    recipe = STOCK.with_threads(1)
    pair = with_weights_outside(model, Path(), recipe, Weights.PACKED)
    assert pair is not None
    record = PlanRecord.of(
        recipe, input_shapes={"x": (1, 3, 16, 16)}, figure="memory", limit_bytes=None,
        planned_peak_bytes=1, measured_peak_bytes=1, planner="auto", recomputed=0,
        original_sha256="", optimized=pair.optimized_for,
    )  # fmt: skip
    file = tmp_path / "packed.onnx"
    named = attach_record(pair.model, record)
    name_data(named, file.name + SUFFIX)
    file.with_name(file.name + SUFFIX).write_bytes(pair.data.path.read_bytes())
    onnx.save(named, file)
    return file


def test_a_file_fits_where_it_was_made(packed: Path) -> None:
    found = check(packed)
    assert found.optimized is not None
    assert found.optimized.packed
    assert found.optimized.layout_width == layout_width() == found.layout_width
    assert (found.problem, found.packed_alike) == ("", True)
    assert "open it with" not in check_text(found)
    assert found.data_bytes == packed.with_name(packed.name + SUFFIX).stat().st_size
    require_fit(packed, found)


def test_weights_that_are_packed_otherwise_are_told_of(packed: Path) -> None:
    """Another processor's packing has another hash; the model runs all the same."""
    model = onnx.load(packed, load_external_data=False)
    entries = [e for t in model.graph.initializer for e in t.external_data if "packed" in e.key]
    assert entries
    for entry in entries:
        entry.value = entry.value.replace("MatMul+1", "MatMul+2").replace("MatMul+", "MatMul+1")
    onnx.save(model, packed)
    found = check(packed)
    assert (found.problem, found.packed_alike) == ("", False)


@pytest.mark.skipif(layout_width() is None, reason="this processor has no blocked layout")
def test_other_blocks_are_no_fit(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "layout_width", lambda: 4)
    found = check(packed)
    with pytest.raises(VerificationError, match=r"with blocks of \d+ channels, and this one has 4"):
        require_fit(packed, found)
    monkeypatch.setattr(module, "layout_width", lambda: None)
    assert "this one has none" in check(packed).problem


def test_what_the_runtime_refuses_is_no_fit(packed: Path) -> None:
    model = onnx.load(packed, load_external_data=False)
    node = next(one for one in model.graph.node if one.op_type == "MatMul")
    node.op_type, node.domain = "OfAnotherVersion", "com.microsoft"
    onnx.save(model, packed)
    found = check(packed)
    assert "OfAnotherVersion" in found.problem
    with pytest.raises(VerificationError, match="is not for this machine"):
        require_fit(packed, found)


def test_weights_that_are_cut_short_are_damaged(packed: Path) -> None:
    with packed.with_name(packed.name + SUFFIX).open("r+b") as file:
        file.truncate(4000)
    with pytest.raises(ModelError, match=r"packed\.onnx\.data is damaged: it has 4000 bytes"):
        check(packed)


def test_weights_that_are_missing_are_named(packed: Path) -> None:
    packed.with_name(packed.name + SUFFIX).unlink()
    with pytest.raises(ModelError, match=r"packed\.onnx\.data"):
        check(packed)


def test_any_processor_for_what_holds_no_optimizations(tmp_path: Path) -> None:
    net = Net()
    y = net.add("Relu", net.add("Sigmoid", net.input("x", 1, 8, 16, 16)))
    original, file = tmp_path / "m.onnx", tmp_path / "made.onnx"
    onnx.save(net.model(y), original)
    with pytest.raises(UsageError, match="it was not made by onnxremat"):
        check(original)
    rewrite(original, "100%", Options(session="recipe", time_limit=0.5, threads=1), output=file)
    found = check(file)
    assert (found.optimized, found.problem, found.packed_alike) == (None, "", None)
    assert found.record.original_sha256 == load(original).sha256
    assert "open it with  onnxremat.open_session" in check_text(found)
