"""Files that carry a plan open with its recipe, and refuse other sizes."""

import json
import os
import re
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import onnx
import pytest

from onnxremat.core.errors import ModelError, OnnxrematError, UsageError
from onnxremat.ort.library import RUNTIME_VERSION, ort
from onnxremat.ort.recipe import RECIPE
from onnxremat.ort.record import METADATA_KEY, PlanRecord, attach_record, file_record, read_record
from onnxremat.ort.session import PlannedSession, open_session
from onnxremat_rewriters.recompute import MARK
from onnxremat_rewriters.stock import STOCK_KEY
from tests.ort.build import FLOAT, model, node, value

PLAIN = model([node("Neg", ["x"], ["y"])], [value("x", FLOAT, ["n", 3])], ["y"])
RECORD = PlanRecord.of(
    RECIPE.with_threads(2).with_dimensions({"n": 2}),
    input_shapes={"x": (2, 3)},
    figure="activation peak",
    limit_bytes=4_000_000,
    planned_peak_bytes=3_900_000,
    measured_peak_bytes=3_950_000,
    planner="auto",
    recomputed=7,
    original_sha256="ab" * 32,
    executed=("first", "second"),
)
NAMES_IN_FILES = {"record": "onnxremat.plan", "stock": "onnxremat.stock", "mark": "__onnxremat_dup"}
"""They stay as they are, whatever becomes of the modules: files with them are where models run."""
GOOD = np.arange(6, dtype=np.float32).reshape(2, 3)
BAD = np.ones((4, 3), np.float32)
REFUSED = r"input 'x' has shape \[4, 3\], but this file was planned for \[2, 3\]"


@pytest.fixture
def planned(tmp_path: Path) -> Path:
    path = tmp_path / "planned.onnx"
    onnx.save(attach_record(PLAIN, RECORD), path)
    return path


def test_names_in_files_are_those_of_earlier_files() -> None:
    assert {"record": METADATA_KEY, "stock": STOCK_KEY, "mark": MARK} == NAMES_IN_FILES
    made = attach_record(PLAIN, RECORD)
    assert [entry.key for entry in made.metadata_props] == ["onnxremat.plan"]


def test_a_record_survives_json() -> None:
    assert PlanRecord.from_json(RECORD.to_json()) == RECORD
    assert RECORD.threads == 2
    assert RECORD.runtime_version == RUNTIME_VERSION


def test_attaching_changes_nothing_else_and_replaces_an_older_record() -> None:
    graph = onnx.ModelProto()
    graph.CopyFrom(PLAIN)
    graph.metadata_props.add(key="author", value="me")
    once = attach_record(graph, RECORD)
    assert read_record(once) == RECORD
    assert read_record(graph) is None
    twice = attach_record(once, RECORD)
    assert [entry.key for entry in twice.metadata_props] == ["author", METADATA_KEY]
    del twice.metadata_props[1]
    assert twice == graph


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ("{}", "has no 'version'"),
        ('{"version": 99}', "has version 99"),
        ('{"version": 2}', "has no "),
    ],
)
def test_a_damaged_record_says_what_is_wrong(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        PlanRecord.from_json(text)


def with_value(*path: str, to: object) -> str:
    """The record with one value changed."""
    record = json.loads(RECORD.to_json())
    *outer, last = path
    place = record
    for key in outer:
        place = place[key]
    place[last] = to
    return json.dumps(record)


def without(key: str) -> str:
    record = json.loads(RECORD.to_json())
    del record[key]
    return json.dumps(record)


ABSURD = {
    "many threads": with_value("recipe", "threads", to=10**9),
    "huge threads": with_value("recipe", "threads", to=10**12),
    "no threads": with_value("recipe", "threads", to=0),
    "threads of truth": with_value("recipe", "threads", to=True),
    "huge dimension": with_value("recipe", "free_dimensions", to={"n": 2**80}),
    "negative dimension": with_value("recipe", "free_dimensions", to={"n": -1}),
    "half a dimension": with_value("recipe", "free_dimensions", to={"n": 1.5}),
    "dimensions as a list": with_value("recipe", "free_dimensions", to=[1]),
    "name that is no text": with_value("recipe", "free_dimensions", to={"\ud800": 1}),
    "infinite size": with_value("input_shapes", to={"x": [float("inf")]}),
    "size that is none": with_value("input_shapes", to={"x": [float("nan")]}),
    "huge size": with_value("input_shapes", to={"x": [10**30]}),
    "negative size": with_value("input_shapes", to={"x": [-1]}),
    "no list of sizes": with_value("input_shapes", to={"x": "23"}),
    "no shapes": with_value("input_shapes", to=None),
    "another order": with_value("recipe", "execution_order", to=[]),
    "another level": with_value("recipe", "optimization", to={}),
    "recipe as a list": with_value("recipe", to=[1, 2]),
    "provider as a number": with_value("recipe", "provider", to=1),
    "unknown provider": with_value("recipe", "provider", to="\x1b[2J\ud800"),
    "optimized for nothing": with_value("optimized", to={}),
    "optimized for more": with_value(
        "optimized", to={"level": 1, "provider": 2, "layout_width": 3}
    ),
    "a peak in words": with_value("planned_peak_bytes", to="many"),
    "a limit in parts": with_value("limit_bytes", to=1.5),
    "executed numbers": with_value("executed", to=[1]),
    "a version in words": with_value("version", to="two"),
    **{f"without {key}": without(key) for key in json.loads(RECORD.to_json()) if key != "any_size"},
    "any size in words": with_value("any_size", to="yes"),
    "brackets": "[" * 100_000,
    "objects": '{"a":' * 50_000,
    "a record in a list": f"[{RECORD.to_json()}]",
    "digits": '{"version": ' + "9" * 5000 + "}",
}


@pytest.mark.parametrize("case", ABSURD)
def test_an_absurd_record_is_an_error_of_onnxremat(case: str, tmp_path: Path) -> None:
    made = attach_record(PLAIN, RECORD)
    made.metadata_props[-1].value = ABSURD[case]
    onnx.save(made, tmp_path / "absurd.onnx")
    with pytest.raises(OnnxrematError) as raised:
        open_session(tmp_path / "absurd.onnx")
    assert str(raised.value).isprintable()
    assert raised.value.exit_code in (UsageError.exit_code, ModelError.exit_code)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"threads": 10**9}, "1000000000 threads: at most"),
        ({"provider": "Foo\n\x1b[31m"}, "this ONNX Runtime has no 'Foo"),
    ],
)
def test_a_record_that_no_session_can_have_is_told_before_one_is_opened(
    changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    recipe = replace(RECORD.recipe, **changed)
    onnx.save(attach_record(PLAIN, replace(RECORD, recipe=recipe)), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=re.escape(said)) as raised:
        file_record(onnx.load(tmp_path / "m.onnx"), tmp_path / "m.onnx")
    assert str(raised.value).isprintable()


def test_a_record_that_is_no_text_is_damaged(tmp_path: Path) -> None:
    data = attach_record(PLAIN, RECORD).SerializeToString()
    (tmp_path / "bytes.onnx").write_bytes(
        data.replace(b'"planner": "auto"', b'"planner": "\xffuto"')
    )
    with pytest.raises(OnnxrematError, match="record is damaged"):
        open_session(tmp_path / "bytes.onnx")


def test_threads_are_bounded(planned: Path) -> None:
    with pytest.raises(UsageError, match="5000 threads: at most"):
        open_session(planned, threads=5000)


def test_the_recipe_is_applied(planned: Path) -> None:
    session = open_session(planned)
    assert isinstance(session, ort.InferenceSession)
    assert session.plan == RECORD
    options = session.get_session_options()
    assert options.execution_order == ort.ExecutionOrder.PRIORITY_BASED
    assert not options.enable_cpu_mem_arena
    assert options.intra_op_num_threads == 2
    assert session.get_inputs()[0].shape == [2, 3]
    assert open_session(planned, threads=1).get_session_options().intra_op_num_threads == 1
    assert open_session(planned, ["CPUExecutionProvider"]).get_providers() == [
        "CPUExecutionProvider"
    ]


def test_planned_shapes_run_and_others_are_refused(planned: Path) -> None:
    session = open_session(planned)
    assert np.array_equal(session.run(None, {"x": GOOD})[0], -GOOD)
    (made,) = session.run_with_ort_values(["y"], {"x": ort.OrtValue.ortvalue_from_numpy(GOOD)})
    assert np.array_equal(made.numpy(), -GOOD)
    with pytest.raises(UsageError, match=REFUSED):
        session.run(None, {"x": BAD})
    with pytest.raises(UsageError, match=REFUSED):
        session.run(None, {"x": BAD.tolist()})
    with pytest.raises(UsageError, match=REFUSED):
        session.run_with_ort_values(["y"], {"x": ort.OrtValue.ortvalue_from_numpy(BAD)})
    with pytest.raises(UsageError, match=REFUSED):
        session.run_async(None, {"x": BAD}, lambda *_: None, None)


def test_bindings_take_planned_shapes_only(planned: Path) -> None:
    session = open_session(planned)
    binding = session.io_binding()
    with pytest.raises(UsageError, match=REFUSED):
        binding.bind_cpu_input("x", BAD)
    with pytest.raises(UsageError, match=REFUSED):
        binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(BAD))
    with pytest.raises(UsageError, match=REFUSED):
        binding.bind_input("x", "cpu", 0, np.float32, [4, 3], BAD.ctypes.data)
    binding.bind_input("x", "cpu", 0, np.float32, [2, 3], GOOD.ctypes.data)
    binding.bind_output("y")
    session.run_with_iobinding(binding)
    assert np.array_equal(binding.get_outputs()[0].numpy(), -GOOD)
    with pytest.raises(UsageError, match="io_binding"):
        session.run_with_iobinding(ort.IOBinding(session))


@pytest.fixture(params=[{"n": 2}, {}], ids=["named", "without a name"])
def any_size(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A file that leaves its first size open, which the session knows by name or not at all."""
    recipe = RECORD.recipe.with_dimensions(request.param)
    path = tmp_path / "open.onnx"
    onnx.save(attach_record(PLAIN, replace(RECORD, recipe=recipe, any_size=True)), path)
    return path


def test_other_sizes_are_one_warning_where_the_file_leaves_them_open(any_size: Path) -> None:
    session = open_session(any_size)
    said = "shape [4, 3]: its activation peak of 3.95 MB was promised for [2, 3] only"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        session.run(None, {"x": GOOD})
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for feed in (BAD, GOOD, BAD[:3], BAD):
            assert np.array_equal(session.run(None, {"x": feed})[0], -feed)
            value = ort.OrtValue.ortvalue_from_numpy(feed)
            (made,) = session.run_with_ort_values(["y"], {"x": value})
            assert np.array_equal(made.numpy(), -feed)
            done, answers = Event(), []

            def note(results: list[np.ndarray], *_: object, done=done, answers=answers) -> None:  # type: ignore[no-untyped-def]
                answers.extend(results)
                done.set()

            session.run_async(None, {"x": feed}, note, None)
            assert done.wait(20) and np.array_equal(answers[0], -feed)
    assert [said in str(w.message) for w in caught] == [True]
    assert caught[0].filename == __file__
    for wrong in (np.ones((2, 4), np.float32), np.ones((2, 3, 1), np.float32)):
        with pytest.raises(UsageError, match="planned for"):
            session.run(None, {"x": wrong})


def test_a_binding_takes_other_sizes_where_the_file_leaves_them_open(any_size: Path) -> None:
    session = open_session(any_size)
    planned, binding = session.io_binding(), session.io_binding()
    for one in (planned, binding):
        one.bind_output("y")
        one.bind_cpu_input("x", GOOD)
    with pytest.warns(UserWarning, match="promised for"):
        binding.bind_cpu_input("x", BAD)
    for feed in (BAD, GOOD, BAD[:3]):
        binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(feed))
        binding.bind_output("y")
        session.run_with_iobinding(binding)
        assert np.array_equal(binding.get_outputs()[0].numpy(), -feed)
    session.run_with_iobinding(planned)
    assert np.array_equal(planned.get_outputs()[0].numpy(), -GOOD)
    binding.clear_binding_inputs()
    binding.clear_binding_outputs()
    target = np.zeros((4, 3), np.float32)
    binding.bind_input("x", "cpu", 0, np.float32, [4, 3], BAD.ctypes.data)
    binding.bind_output("y", "cpu", 0, np.float32, [4, 3], target.ctypes.data)
    session.run_with_iobinding(binding)
    assert np.array_equal(target, -BAD)
    with pytest.raises(UsageError, match="planned for"):
        binding.bind_cpu_input("x", np.ones((2, 4), np.float32))


def test_files_without_a_plan_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plain.onnx"
    with pytest.raises(UsageError, match="no such file"):
        open_session(path)
    onnx.save(PLAIN, path)
    with pytest.raises(UsageError, match="holds no onnxremat plan"):
        open_session(path)
    path.write_bytes(b"\x00garbage")
    with pytest.raises(ModelError, match="not an ONNX model"):
        open_session(path)


def test_a_model_that_the_runtime_refuses_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "refused.onnx"
    graph = model([node("NoSuchOp", ["x"], ["y"])], [value("x", FLOAT, [2, 3])], [value("y")])
    onnx.save(attach_record(graph, RECORD), path)
    with pytest.raises(ModelError, match=r"ONNX Runtime refuses .*NoSuchOp") as raised:
        open_session(path)
    assert "\n" not in str(raised.value)


def test_opening_prints_nothing(planned: Path) -> None:
    code = (
        "import sys, numpy; from onnxremat.ort.session import open_session;"
        "open_session(sys.argv[1]).run(None, {'x': numpy.ones((2, 3), numpy.float32)})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(planned)], capture_output=True, text=True, check=True
    )
    assert done.stdout + done.stderr == ""


def test_a_session_is_a_planned_session(planned: Path) -> None:
    assert type(open_session(planned)) is PlannedSession


def test_telemetry_of_the_runtime_is_off_unless_the_environment_says_otherwise(
    tmp_path: Path,
) -> None:
    code = "import onnxremat.ort.session, os; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    kept = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    for given, seen in (({}, "1"), ({"ORT_DISABLE_TELEMETRY": "0"}, "0")):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**kept, **given, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.strip() == seen
        if seen == "1":
            assert list(tmp_path.iterdir()) == []
