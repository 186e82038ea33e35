"""Memory budgets: what is measured, what is above, and what keeps no verdict from the others."""

from dataclasses import replace
from pathlib import Path

import onnx
import pytest

from onnxremat.commands.budget import (
    FIGURES,
    Budget,
    check_budget,
    parse_budget,
    require_within,
)
from onnxremat.commands.sweep_plan import planned_runs
from onnxremat.core.errors import LimitExceededError, ModelError, UsageError
from onnxremat.core.units import parse_limit
from onnxremat.options import ModelOptions, Options
from onnxremat.ort.recipe import RECIPE
from onnxremat.ort.record import PlanRecord, attach_record
from tests.commands.small_models import perceptron, saved_perceptron, wide

pytestmark = pytest.mark.slow

ONE_THREAD = ModelOptions(threads=1)
LARGE = parse_budget("1GB")


@pytest.fixture(scope="module")
def wide_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("wide") / "wide.onnx"
    onnx.save(wide(), path)
    return path


def test_a_budget_is_of_what_rewrite_limits_by_default() -> None:
    assert parse_budget("4MB") == Budget("4MB", 4_000_000, "runs")
    assert parse_budget("4MB").figure == Options().figure
    assert parse_budget("4MiB", "process").figure == Options(mem_of="process").figure
    assert parse_budget(4096, "activations").figure == Options(session="recipe").figure
    with pytest.raises(UsageError, match="--mem-of: 'rss' is none of runs, process, activations"):
        parse_budget("4MB", "rss")
    with pytest.raises(UsageError, match="--fail-above: '60%' is not a size"):
        parse_budget("60%")


@pytest.mark.parametrize("mem_of", FIGURES)
def test_the_figure_is_that_of_a_run(mem_of: str, wide_model: Path) -> None:
    report = check_budget([wide_model], replace(LARGE, mem_of=mem_of), ONE_THREAD)
    (one,) = report.checks
    assert one.measured_bytes is not None and not one.exceeded and one.peak is None
    require_within(report)
    # Three values of 4 MiB are held by the nodes; default sessions keep two blocks of that.
    assert 12_500_000 < one.measured_bytes < 30_000_000, one


def test_a_model_above_the_budget_is_told_with_where_most_is_held(wide_model: Path) -> None:
    report = check_budget([wide_model], parse_budget("1MB", "activations"), ONE_THREAD)
    (above,) = report.checks
    assert above.exceeded and above.peak is not None
    assert (above.peak.op, len(above.peak.held)) == ("mix", 3)
    with pytest.raises(
        LimitExceededError, match=r"^the activation peak, 12\.\d+ MB, is above --fail"
    ):
        require_within(report)


def test_a_model_that_cannot_be_measured_keeps_no_other_from_it(
    wide_model: Path, tmp_path: Path
) -> None:
    (tmp_path / "bad.onnx").write_text("text")
    open_sizes = saved_perceptron(tmp_path / "open.onnx")
    paths = [tmp_path / "none.onnx", tmp_path / "bad.onnx", open_sizes, wide_model]
    report = check_budget(paths, parse_budget("1GB"), ONE_THREAD)
    assert [one.exit_code for one in report.checks] == [2, 5, 2, 0]
    assert "--dim n=" in report.checks[2].error
    assert not report.exceeded and report.checks[3].measured_bytes
    with pytest.raises(UsageError, match=r"no such file: .* \(and 2 more could not be measured\)"):
        require_within(report)
    with pytest.raises(ModelError, match=r"bad\.onnx"):
        require_within(replace(report, checks=report.checks[1:2]))
    with pytest.raises(UsageError, match=r"^\S*open\.onnx: .*--dim n="):
        require_within(replace(report, checks=report.checks[2:]))


def test_a_file_is_run_as_it_was_planned(tmp_path: Path) -> None:
    record = PlanRecord.of(
        RECIPE.with_threads(1),
        input_shapes={"x": (64, 64)},
        figure="activation peak",
        limit_bytes=100_000,
        planned_peak_bytes=32_768,
        measured_peak_bytes=32_768,
        planner="given_order",
        recomputed=0,
        original_sha256="0" * 64,
        any_size=True,
    )
    path = tmp_path / "made.onnx"
    onnx.save(attach_record(perceptron(), record), path)
    (one,) = check_budget([path], parse_budget("100kB", "activations")).checks
    assert one.measured_bytes is not None and 32_000 < one.measured_bytes < 50_000, one
    (above,) = check_budget([path], parse_budget("1KB", "activations")).checks
    assert above.exceeded and above.peak is None
    (larger,) = check_budget(
        [path], parse_budget("1KB", "activations"), ModelOptions(dims={"n": 640})
    ).checks
    assert larger.measured_bytes is not None
    assert larger.measured_bytes > 5 * one.measured_bytes


def test_no_report_is_written_over_a_model(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(perceptron(), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    link = tmp_path / "link"
    link.symlink_to(path)
    for target, said in (
        (path, "it is a model"),
        (link, "it is a model"),
        (tmp_path / "w.bin", "external data of the model"),
        (tmp_path, "it is a folder"),
        (tmp_path / "none" / "r.xml", "there is no folder"),
    ):
        with pytest.raises(UsageError, match=said):
            check_budget([path], LARGE, ONE_THREAD, reports=[target])
    twice = tmp_path / "r"
    with pytest.raises(UsageError, match="each report needs a file of its own"):
        check_budget([path], LARGE, ONE_THREAD, reports=[twice, twice])
    with pytest.raises(UsageError, match="name a model"):
        check_budget([], LARGE)


def test_each_of_several_models_has_the_sizes_of_its_own_dimensions(
    wide_model: Path, tmp_path: Path
) -> None:
    open_sizes = saved_perceptron(tmp_path / "open.onnx")
    options = replace(ONE_THREAD, dims={"n": 4})
    assert not check_budget([open_sizes, wide_model], LARGE, options).failed
    (alone,) = check_budget([wide_model], LARGE, options).failed
    assert "no dimension 'n'" in alone.error
    runs = planned_runs([open_sizes, wide_model], [parse_limit("50%")], [Options(dims={"n": 4})])
    assert [one.options.dims for one in runs] == [{"n": 4}, {}]
