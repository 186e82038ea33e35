"""What is measured: heap, resident memory, times, outputs."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from onnxremat.core.errors import ModelError, UsageError
from onnxremat.ort.child import process
from onnxremat.ort.child.actions import MOST_ROUNDS
from onnxremat.ort.child.malloc import Malloc
from onnxremat.ort.measuring import measure
from onnxremat.ort.measuring.inputs import make_inputs
from onnxremat.ort.measuring.measure import (
    PeakMethod,
    in_memory,
    measure_activation,
    measure_resident,
    measure_times,
    run_outputs,
)
from onnxremat.ort.recipe import RECIPE, STOCK
from tests.ort.build import BOOL, FLOAT, model, node, value

pytestmark = pytest.mark.slow

RECIPE_1 = RECIPE.with_threads(1)
MEGABYTE_SHAPE = (512, 512)
MEGABYTES = 4 * 512 * 512


UNARY = ("Exp", "Sin", "Cos", "Tan", "Abs", "Neg", "Floor", "Ceil")


def ladder(rungs: int) -> onnx.ModelProto:
    """Up to eight different functions of x, all held for a Concat: so many 1 MiB tensors."""
    names = [f"a{i}" for i in range(rungs)]
    nodes = [node(op, ["x"], [name]) for op, name in zip(UNARY, names, strict=False)]
    nodes.append(node("Concat", names, ["y"], axis=0))
    return model(nodes, [value("x", FLOAT, MEGABYTE_SHAPE)], ["y"])


@pytest.fixture(scope="module")
def eight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("ladder") / "eight.onnx"
    onnx.save(ladder(8), path)
    return path


def test_the_heap_peak_is_exact(eight: Path) -> None:
    pytest.importorskip("memray", reason="the heap is counted by memray")
    found = measure_activation(eight, make_inputs(ladder(8)), RECIPE_1, runs=2)
    assert found.method is PeakMethod.HEAP
    assert found.reason == ""
    assert found.peak_bytes == max(found.run_peaks_bytes)
    for peak in found.run_peaks_bytes:
        assert 0 <= peak - 16 * MEGABYTES < 10_000


def test_without_memray_the_figure_is_resident_memory_and_says_so(
    eight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = process.execute

    def without_memray(folder: Path, *arguments: object) -> object:
        if ':heap"' in (folder / process.REQUEST).read_text(encoding="utf-8"):
            return {"unavailable": "memray cannot be imported: not on this system"}
        return execute(folder, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(process, "execute", without_memray)
    found = measure_activation(eight, make_inputs(ladder(8)), RECIPE_1, runs=2)
    assert found.method is PeakMethod.RESIDENT
    assert "not on this system; resident memory instead" in found.reason
    assert found.peak_bytes > 14 * MEGABYTES


def test_resident_memory_of_the_recipe_returns_to_the_system(eight: Path) -> None:
    found = measure_resident(eight, make_inputs(ladder(8)), RECIPE_1, runs=3)
    assert len(found.run_peaks_bytes) == 3
    assert found.peak_bytes >= found.steady_bytes
    assert 15 * MEGABYTES < found.first_bytes < 19 * MEGABYTES
    assert 15 * MEGABYTES < found.steady_bytes < 19 * MEGABYTES


def test_stock_settings_keep_more_resident_memory(eight: Path) -> None:
    inputs = make_inputs(ladder(8))
    stock = measure_resident(eight, inputs, STOCK.with_threads(1), malloc=Malloc.USUAL)
    assert stock.first_bytes > 15 * MEGABYTES
    assert stock.steady_bytes > 15 * MEGABYTES


def test_times_are_medians_and_ratios_of_the_same_round(eight: Path) -> None:
    inputs = make_inputs(ladder(8))
    half = in_memory(ladder(2), eight.parent)
    found = measure_times([eight, half, eight], inputs, [RECIPE_1, RECIPE_1, STOCK], pairs=5)
    assert 5 <= found.rounds <= 5 * MOST_ROUNDS
    assert len(found.median_seconds) == len(found.ratios) == 3
    assert found.ratios[0] == 1.0
    assert found.ratios[1] < 0.7
    assert all(seconds > 0 for seconds in found.median_seconds)


def test_the_bits_of_all_outputs(tmp_path: Path) -> None:
    graph = model(
        [
            node("Neg", ["x"], ["y"]),
            node("SequenceConstruct", ["x", "y"], ["s"]),
            node("Cast", ["x"], ["text"], to=TensorProto.STRING),
            node("Cast", ["x"], ["flag"], to=BOOL),
        ],
        [value("x", FLOAT, [2])],
        ["y", "s", "text", "flag"],
    )
    x = np.array([0.0, 2.5], np.float32)
    made = run_outputs(in_memory(graph, tmp_path), {"x": x}, RECIPE)
    assert list(made) == ["y", "s[0]", "s[1]", "text", "flag"]
    assert made["y"].tobytes() == (-x).tobytes()
    assert made["s[1]"].tobytes() == (-x).tobytes()
    assert made["text"].tolist() == ["0", "2.5"]
    assert made["flag"].tolist() == [False, True]


def test_bfloat16_and_text_go_in_and_out(tmp_path: Path) -> None:
    for elem_type in (TensorProto.BFLOAT16, TensorProto.FLOAT8E5M2, TensorProto.STRING):
        graph = model(
            [node("Identity", ["x"], ["y"])], [value("x", elem_type, [6])], ["y"], opset=21
        )
        graph.ir_version = 10
        inputs = make_inputs(graph)
        made = run_outputs(in_memory(graph, tmp_path), inputs, RECIPE)["y"]
        assert made.tobytes() == inputs["x"].astype(made.dtype, copy=False).tobytes() or (
            made.tobytes() == inputs["x"].tobytes()
        )
        assert measure_activation(in_memory(graph, tmp_path), inputs, RECIPE, runs=1).peak_bytes


def test_an_output_that_is_empty_is_refused(tmp_path: Path) -> None:
    kind = onnx.helper.make_tensor_type_proto(FLOAT, [2])
    optional = onnx.helper.make_optional_type_proto(kind)
    graph = model([node("Optional", [], ["y"], type=kind)], [], [], opset=18)
    graph.graph.output.append(onnx.helper.make_value_info("y", optional))
    with pytest.raises(ModelError, match="output 'y' is neither a tensor nor a list of tensors"):
        run_outputs(in_memory(graph, tmp_path), {}, RECIPE)


def test_measuring_nothing_is_refused(eight: Path) -> None:
    with pytest.raises(UsageError, match="0 runs"):
        measure_activation(eight, {}, RECIPE, runs=0)
    with pytest.raises(UsageError, match="1 models need as many recipes, not 2"):
        measure_times([eight], {}, [RECIPE, STOCK])


def test_models_are_paths_or_sources(eight: Path) -> None:
    assert measure.Model
    inputs = make_inputs(ladder(8))
    by_text = run_outputs(str(eight), inputs, RECIPE_1)
    assert by_text["y"].tobytes() == run_outputs(eight, inputs, RECIPE_1)["y"].tobytes()


@pytest.mark.parametrize(
    ("label", "made"),
    [
        ("INT4", [0x21, 0xF3]),
        ("UINT4", [0x21, 0x03]),
        ("INT2", [0b01001001]),
        ("UINT2", [0b00111001]),
        ("FLOAT8E8M0", [127, 128, 129]),
        ("FLOAT8E4M3FN", [0x38, 0x40, 0x44]),
    ],
)
def test_small_types_come_out_as_the_bytes_of_their_elements(
    label: str, made: list[int], tmp_path: Path
) -> None:
    """Bits of the last byte that belong to no element are 0."""
    values = {
        "INT4": [1, 2, 3, -1], "UINT4": [1, 2, 3], "INT2": [1, -2, 0, 1], "UINT2": [1, 2, 3],
        "FLOAT8E8M0": [1, 2, 4], "FLOAT8E4M3FN": [1, 2, 3],
    }[label]  # fmt: skip
    cast = node("Cast", ["x"], ["y"], to=TensorProto.DataType.Value(label))
    graph = model([cast], [value("x", FLOAT, ["n"])], ["y"], opset=25)
    graph.ir_version = 13
    found = run_outputs(in_memory(graph, tmp_path), {"x": np.array(values, np.float32)}, RECIPE)
    assert found["y"].tolist() == made
