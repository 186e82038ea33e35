"""Which runs a sweep has, what each is called, and when one is another."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxremat.commands.sweep_plan import (
    chosen_targets,
    model_content_digest,
    model_file_sha256,
    options_of,
    plain_options,
    planned_runs,
)
from onnxremat.core.errors import UsageError
from onnxremat.core.units import parse_limit
from onnxremat.options import Options
from tests.commands.sweeps import QUICK, chain
from tests.commands.test_rewrite import diamond

HALF = parse_limit("50%")


def key(model: Path, options: Options = QUICK, mem: str = "50%", keep: Path | None = None) -> str:
    (run,) = planned_runs([model], [parse_limit(mem)], [options], keep)
    return run.key


def test_a_key_is_of_content_limit_and_options_not_of_places(tmp_path: Path) -> None:
    model = chain(tmp_path / "a.onnx", "Exp", "Sin")
    own = key(model)
    assert key(chain(tmp_path / "other" / "b.onnx", "Exp", "Sin")) == own
    others = [
        key(chain(tmp_path / "c.onnx", "Exp", "Cos")),
        key(model, mem="40%"),
        key(model, replace(QUICK, seed=1)),
        key(model, replace(QUICK, session="stock")),
        key(model, replace(QUICK, dims={"n": 1})),
        key(model, keep=tmp_path),
    ]
    assert len({own, *others}) == 7


def test_external_data_and_inputs_are_content(tmp_path: Path) -> None:
    model = diamond(tmp_path / "m.onnx", external=True)
    own, size = key(model), model_content_digest(model).nbytes
    weights = tmp_path / "weights.bin"
    assert size > weights.stat().st_size > 0
    content = bytearray(weights.read_bytes())
    content[0] ^= 1
    weights.write_bytes(content)
    assert key(model) != own
    weights.unlink()
    assert key(model) != own, "the run will say that they are missing"
    inputs = tmp_path / "x.npz"
    options = replace(QUICK, inputs=inputs)
    keys = []
    for value in (0, 1):
        np.savez(inputs, x=np.full((64, 64), value, np.float32))
        keys.append(key(model, options))
    assert keys[0] != keys[1]


def test_damaged_models_have_keys_and_missing_ones_are_refused(tmp_path: Path) -> None:
    bad, empty = tmp_path / "bad.onnx", tmp_path / "empty.onnx"
    bad.write_bytes(b"hello")
    empty.touch()
    assert key(bad) != key(empty)
    for model in (bad, empty):
        assert model_file_sha256(model) == model_content_digest(model).file_sha256
    with pytest.raises(UsageError, match="no such file"):
        key(tmp_path / "none.onnx")
    with pytest.raises(UsageError, match="cannot read"):
        key(bad, replace(QUICK, inputs=tmp_path / "none.npz"))


def test_runs_are_all_models_limits_and_targets_each_once(tmp_path: Path) -> None:
    models = [
        chain(tmp_path / f"{name}.onnx", "Exp", op)
        for name, op in zip("ab", ("Sin", "Cos"), strict=True)
    ]
    both = [replace(QUICK, session=name) for name in ("stock", "recipe")]
    runs = planned_runs([*models, models[0]], [HALF, parse_limit("min"), HALF], both)
    assert [(run.model.stem, run.limit.text, run.options.session) for run in runs] == [
        (model, mem, session)
        for model in "ab" for mem in ("50%", "min") for session in ("stock", "recipe")
    ]  # fmt: skip
    assert len({run.key for run in runs}) == 8


def test_kept_files_are_named_after_model_limit_and_target(tmp_path: Path) -> None:
    models = [
        chain(tmp_path / "x" / "model.onnx", "Exp"),
        chain(tmp_path / "y" / "Model.onnx", "Sin"),
        chain(tmp_path / "y" / "net.onnx", "Sin"),
    ]
    static = replace(QUICK, runtime="generic", session=None)
    runs = planned_runs(models, [HALF], [QUICK, static], tmp_path / "kept")
    names = [str(run.file.relative_to(tmp_path / "kept")) for run in runs if run.file]
    first, second = (model_content_digest(model).sha256[:8] for model in models[:2])
    assert names == [
        f"model-{first}/model-{first}.50pct.recipe.onnx",
        f"model-{first}/model-{first}.50pct.static.onnx",
        f"Model-{second}/Model-{second}.50pct.recipe.onnx",
        f"Model-{second}/Model-{second}.50pct.static.onnx",
        "net/net.50pct.recipe.onnx",
        "net/net.50pct.static.onnx",
    ]
    assert [run.plan_file is not None for run in runs] == [False, True] * 3


def test_of_several_models_each_has_its_own_dimensions(tmp_path: Path) -> None:
    (tmp_path / "bad.onnx").write_bytes(b"hello")
    models = [tmp_path / "bad.onnx"]
    for name in ("n", "k"):
        file = chain(tmp_path / f"{name}.onnx", "Exp")
        proto = onnx.load(file)
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = name
        onnx.save(proto, file)
        models.append(file)
    sized = replace(QUICK, dims={"n": 2, "m": 3})
    runs = planned_runs(models, [HALF], [sized])
    assert [run.options.dims for run in runs] == [{"n": 2, "m": 3}, {"n": 2}, {}]
    (alone,) = planned_runs(models[2:], [HALF], [sized])
    assert alone.options == sized


def test_options_come_back_as_they_were(tmp_path: Path) -> None:
    options = Options(
        dims={"n": 2}, inputs=tmp_path / "x.npz", allow_ops=("A",), max_slowdown=0.1, run_memory=9
    )
    assert options_of(plain_options(options)) == options


@pytest.mark.parametrize(
    ("sessions", "runtimes", "names"),
    [
        ([], [], ["stock"]),
        (["recipe", "stock"], [], ["recipe", "stock"]),
        ([], ["generic"], ["static"]),
        ([], ["ort-cpu", "generic"], ["stock", "static"]),
        (["recipe"], ["ort-cpu", "generic"], ["recipe", "static"]),
    ],
)
def test_sessions_and_runtimes_choose_targets(
    sessions: list[str], runtimes: list[str], names: list[str]
) -> None:
    assert [info.name for info in chosen_targets(sessions, runtimes)] == names


@pytest.mark.parametrize(
    ("sessions", "runtimes", "said"),
    [
        (["no"], [], "--session: 'no'"),
        ([], ["no"], "--runtime: 'no'"),
        (["stock"], ["generic"], "of another runtime"),
        (["recipe", "stock"], ["generic"], "of another runtime"),
        (["stock"], ["ort-cpu", "generic"], "of another runtime"),
    ],
)
def test_what_chooses_no_target_is_refused(
    sessions: list[str], runtimes: list[str], said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        chosen_targets(sessions, runtimes)
