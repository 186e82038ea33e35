"""Children that would run for ever are ended; none may ask for more memory than there is."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnxremat.core.errors import ModelError, UsageError
from onnxremat.options import Options
from onnxremat.ort.child.children import run_child
from onnxremat.ort.child.machine import memory_bytes
from onnxremat.ort.child.run_limit import LATER, RUN_SECONDS, RunLimit, current_limit, limit_runs
from onnxremat.ort.measuring.measure import in_memory, run_outputs
from onnxremat.ort.recipe import RECIPE
from tests.ort.build import BOOL, FLOAT, INT64, model, node, value
from tests.ort.child.test_children import ends, worker

pytestmark = pytest.mark.slow

SLEEPER = "import os, time; open('pid', 'w').write(str(os.getpid())); time.sleep(120)"


@pytest.fixture(autouse=True)
def as_before() -> object:
    """Tests change what later children may take."""
    yield
    limit_runs(RUN_SECONDS)


def endless(length: int = 4, *, keeps: bool = False) -> onnx.ModelProto:
    """A Loop that goes on until its condition, which is always true, is false. It may keep what it
    makes in each round."""
    kept = ["all"] if keeps else []
    body = helper.make_graph(
        [
            node("Identity", ["go"], ["on"]),
            node("Abs", ["a"], ["b"]),
            *(node("Neg", ["b"], [name]) for name in kept),
        ],
        "body",
        [value("i", INT64, []), value("go", BOOL, []), value("a", FLOAT, [length])],
        [value(name, FLOAT, [length]) for name in ("b", *kept)],
    )
    body.output.insert(0, value("on", BOOL, []))
    loop = node("Loop", ["", "true", "x"], ["y", *kept], body=body)
    made = model([loop], [value("x", FLOAT, [length])], ["y", *kept])
    made.graph.initializer.append(numpy_helper.from_array(np.array(True), "true"))
    return made


def test_a_loop_without_an_end_is_ended(tmp_path: Path) -> None:
    limit_runs(3)
    with pytest.raises(ModelError, match="did not come to an end in 3 s") as raised:
        run_outputs(in_memory(endless(), tmp_path), {"x": np.ones(4, np.float32)}, RECIPE)
    assert "--run-limit" in str(raised.value)
    assert str(raised.value).isprintable()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts what a process asks for")
def test_a_loop_that_keeps_what_it_makes_has_a_limit_of_memory(tmp_path: Path) -> None:
    limit_runs(120, 600 << 20)
    source = in_memory(endless(1 << 20, keeps=True), tmp_path)
    with pytest.raises(ModelError, match=r"more than --run-memory, 629\.1 MB"):
        run_outputs(source, {"x": np.ones(1 << 20, np.float32)}, RECIPE)
    with pytest.raises(ModelError, match=r"more than --run-memory, 1\.05 MB"):
        limit_runs(120, 1 << 20)
        run_outputs(source, {"x": np.ones(1 << 20, np.float32)}, RECIPE)


def test_where_earlier_processes_give_more_time_that_is_said(tmp_path: Path) -> None:
    limit_runs(0.1)
    current_limit().learn(0.05)
    with pytest.raises(ModelError, match=r"an end in 1 s \(20 times what a process .* before\)"):
        run_child(worker(tmp_path, SLEEPER), tmp_path / "job")


def test_no_process_stays(tmp_path: Path) -> None:
    limit_runs(2)
    with pytest.raises(ModelError, match="did not come to an end"):
        run_child(worker(tmp_path, SLEEPER), tmp_path / "job")
    assert ends(int((tmp_path / "job" / "pid").read_text(encoding="ascii")))


def test_what_a_child_is_told_to_spend_comes_on_top(tmp_path: Path) -> None:
    limit_runs(0)
    code = "import time; time.sleep(0.1)"
    assert run_child(worker(tmp_path, code), tmp_path / "job", budget_seconds=120).returncode == 0
    assert current_limit().longest_seconds == 0


def test_later_runs_have_what_earlier_ones_took_many_times_over() -> None:
    limit = RunLimit(600)
    assert limit.seconds() == 600
    limit.learn(1)
    assert limit.seconds() == 600
    limit.learn(100)
    limit.learn(50)
    assert limit.seconds() == 100 * LATER


def test_children_that_end_are_learned_from(tmp_path: Path) -> None:
    limit_runs(100)
    run_child(worker(tmp_path, ""), tmp_path / "job")
    assert 0 < current_limit().longest_seconds < 100
    limit_runs(100)
    assert current_limit().longest_seconds == 0


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_limits_are_numbers_of_seconds(seconds: float) -> None:
    with pytest.raises(UsageError, match="--run-limit"):
        Options(session="recipe", run_limit=seconds)
    with pytest.raises(UsageError, match="--time-limit"):
        Options(session="recipe", time_limit=seconds)


@pytest.mark.parametrize("memory", [0, -1, 1.5, True, float("nan"), "1GB"])
def test_memory_is_a_number_of_bytes_above_zero(memory: Any) -> None:
    with pytest.raises(UsageError, match="--run-memory"):
        Options(session="recipe", run_memory=memory)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts what a process asks for")
@pytest.mark.parametrize("megabytes", [1, 14, 30, 60])
def test_where_nothing_can_start_the_limit_of_memory_is_named(
    megabytes: int, tmp_path: Path
) -> None:
    """The libraries themselves end in other ways where they get no memory for their threads."""
    limit_runs(120, megabytes << 20)
    with pytest.raises(ModelError, match="--run-memory"):
        run_outputs(in_memory(endless(), tmp_path), {"x": np.ones(4, np.float32)}, RECIPE)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux counts what a process asks for")
def test_a_child_is_refused_more_memory_than_there_is(tmp_path: Path) -> None:
    code = (
        "import resource\n"
        "from onnxremat.ort.child.machine import memory_bytes\n"
        "soft = resource.getrlimit(resource.RLIMIT_DATA)[0]\n"
        "try:\n    bytearray(soft)\nexcept MemoryError:\n    open('said', 'w').write(str(soft))"
    )
    assert run_child(worker(tmp_path, code), tmp_path / "job").returncode == 0
    assert int((tmp_path / "job" / "said").read_text(encoding="ascii")) >= memory_bytes()
