"""Models as people export them, rewritten: the runtime executes what the written file says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from models import EXPORTED
from onnxremat import subject as preparing
from onnxremat.cli.report import rewrite_text
from onnxremat.commands.audit import audit
from onnxremat.commands.frontier import frontier
from onnxremat.commands.rewrite import RewriteResult, rewrite
from onnxremat.core.errors import VerificationError
from onnxremat.options import FrontierOptions, ModelOptions, Options
from onnxremat.ort.settle import settled
from onnxremat.stages import PLANNING
from onnxremat.subject import UNSETTLED
from onnxremat.verification import require, verify_files
from tests.ort.build import FLOAT, model, node, value
from tests.ort.test_settle import swish

pytestmark = pytest.mark.slow

QUICK = Options(session="recipe", time_limit=1, threads=1)

CASES: dict[str, tuple[str, dict[str, Any], dict[str, int], str]] = {
    "decoder with a cache": (
        "gpt_cache",
        {"depth": 1, "width": 32, "heads": 4, "vocabulary": 16, "context": 256},
        {"batch": 1, "sequence": 192, "past": 64},
        "60%",
    ),
    "windowed attention": (
        "sam_encoder",
        {"depth": 2, "global_every": 2, "width": 64, "heads": 2, "window": 5, "size": 512},
        {"batch": 1},
        "60%",
    ),
    "float16": ("half_attention", {"width": 32, "heads": 4, "sequence": 128}, {}, "60%"),
    "float16 throughout": (
        "half_attention",
        {"width": 32, "heads": 4, "sequence": 128, "softmax": "half"},
        {},
        "60%",
    ),
    "open sizes": (
        "open_encoder",
        {"depth": 1, "width": 32, "heads": 4},
        {"batch": 1, "sequence": 128},
        "60%",
    ),
}


def written(name: str, folder: Path) -> tuple[Path, Options, str]:
    builder, options, sizes, limit = CASES[name]
    path = folder / "model.onnx"
    onnx.save(EXPORTED[builder](**options), path)
    return path, Options(session="recipe", dims=sizes, time_limit=30, threads=2), limit


def require_kept(result: RewriteResult) -> None:
    assert result.limit_bytes is not None and result.verification is not None
    assert result.rewritten.peak_bytes <= result.limit_bytes
    assert result.verification.identical and result.verification.order_as_planned


@pytest.mark.parametrize("name", CASES)
def test_exported_models_are_rewritten(name: str, tmp_path: Path) -> None:
    path, options, limit = written(name, tmp_path)
    output = tmp_path / "out.onnx"
    result = rewrite(path, limit, options, output=output)
    require_kept(result)
    assert "as planned" in rewrite_text(result)
    again = verify_files(path, output, ModelOptions(threads=2))
    assert again.identical and again.order_as_planned
    require(again, result.limit_bytes)


def test_the_other_ways_to_plan_take_them_too(tmp_path: Path) -> None:
    path, options, _ = written("decoder with a cache", tmp_path)
    options = replace(options, time_limit=2)
    assert audit(path, ModelOptions(dims=options.dims, threads=2)).peak.nbytes > 0
    each = FrontierOptions(dims=options.dims, threads=2, time_limit=0.3)
    assert frontier(path, each, planners=("reorder",), budgets=1).points
    basic = rewrite(path, "90%", replace(options, optimize="basic"))
    require_kept(basic)


def test_what_cannot_be_compared_is_said_before_planning(tmp_path: Path) -> None:
    told: list[str] = []
    graph = model(
        [
            node("RandomNormalLike", ["x"], ["r"]),
            node("Add", ["x", "r"], ["a"]),
            node("Neg", ["a"], ["y"]),
        ],
        [value("x", FLOAT, [64])],
        ["y"],
    )
    path = tmp_path / "random.onnx"
    onnx.save(graph, path)
    with pytest.raises(VerificationError, match="gives different bits in two runs"):
        rewrite(path, "min", QUICK, progress=lambda stage, detail="": told.append(stage))
    assert PLANNING not in told
    assert rewrite(path, "100%", replace(QUICK, verify=False)).rewritten.peak_bytes > 0


def test_a_settled_model_with_other_bits_is_left_unsettled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(graph: onnx.ModelProto, *rest: Any) -> onnx.ModelProto:
        made = onnx.ModelProto()
        made.CopyFrom(settled(graph, *rest))
        made.graph.node[-1].op_type = "Sub"
        return made

    monkeypatch.setattr(preparing, "settled", wrong)
    path = tmp_path / "swish.onnx"
    onnx.save(swish(alpha=2.0), path)
    told: list[str] = []
    result = rewrite(path, "100%", QUICK, progress=lambda stage, detail="": told.append(stage))
    assert UNSETTLED in told
    assert result.verification is not None and result.verification.identical


def test_a_model_that_cannot_be_settled_is_rewritten_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the runtime could not write the graph that it executes: it is said at once, and what is
    measured decides."""
    monkeypatch.setattr(preparing, "settled", lambda model, *_: model)
    path, output = tmp_path / "swish.onnx", tmp_path / "out.onnx"
    onnx.save(swish(alpha=2.0), path)
    told: list[str] = []
    result = rewrite(
        path, "100%", QUICK, output=output, progress=lambda stage, detail="": told.append(stage)
    )
    assert UNSETTLED in told
    assert result.verification is not None and result.verification.identical
    assert not result.verification.order_as_planned
    assert "not as planned" in rewrite_text(result)
    again = verify_files(path, output, ModelOptions(threads=1))
    require(again, None)
    missed = replace(again, promised_bytes=again.rewritten.peak_bytes // 2 - 2**20)
    with pytest.raises(VerificationError, match="in another order than planned"):
        require(missed, None)


def test_layers_are_cut_in_the_order_they_were_written_in(tmp_path: Path) -> None:
    """A search finds an order of 6% less, in which what can be cut together lies apart."""
    path = tmp_path / "model.onnx"
    onnx.save(EXPORTED["open_encoder"](depth=3, width=64, heads=4), path)
    sizes = {"batch": 1, "sequence": 128}
    options = Options(
        session="recipe", dims=sizes, time_limit=8, iterations=300, threads=2, verify=False
    )
    result = rewrite(path, "60%", options)
    assert result.tiling is not None and len(result.tiling.regions) >= 3
