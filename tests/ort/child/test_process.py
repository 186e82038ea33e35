"""Children: refusals and crashes are one line, external data stays, interrupts kill."""

import os
import signal
import sys
import threading
import time
from pathlib import Path

import numpy as np
import onnx
import pytest

from onnxremat.core.errors import ModelError
from onnxremat.ort.child.process import one_line
from onnxremat.ort.measuring.measure import in_memory, measure_activation, run_outputs
from onnxremat.ort.recipe import RECIPE
from tests.ort.build import FLOAT, INT64, model, node, value

SMALL = model([node("Neg", ["x"], ["y"])], [value("x", FLOAT, [2])], ["y"])
X = {"x": np.array([1, -2], np.float32)}


def test_a_model_that_does_not_load_is_one_line(tmp_path: Path) -> None:
    graph = model([node("NoSuchOp", ["x"], ["y"])], [value("x", FLOAT, [2])], [value("y")])
    with pytest.raises(ModelError) as raised:
        run_outputs(in_memory(graph, tmp_path), X, RECIPE)
    text = str(raised.value)
    assert text.startswith("ONNX Runtime refuses the model: ")
    assert "NoSuchOp" in text
    assert "\n" not in text
    assert "ONNXRuntimeError" not in text


def test_a_node_that_fails_is_one_line_with_its_name(tmp_path: Path) -> None:
    graph = model(
        [node("Gather", ["x", "i"], ["y"])],
        [value("x", FLOAT, [2]), value("i", INT64, [1])],
        ["y"],
    )
    graph.graph.node[0].name = "the gather"
    inputs = {**X, "i": np.array([9], np.int64)}
    for run in (run_outputs, measure_activation):
        with pytest.raises(ModelError, match=r"'the gather'.*out of data bounds") as raised:
            run(in_memory(graph, tmp_path), inputs, RECIPE)
        assert "/onnxruntime_src/" not in str(raised.value)


def test_a_missing_input_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no value was given for input 'x'"):
        run_outputs(in_memory(SMALL, tmp_path), {}, RECIPE)


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    file = tmp_path / "broken.onnx"
    file.write_bytes(b"\x00garbage")
    with pytest.raises(ModelError, match=r"ONNX Runtime refuses .*broken\.onnx: "):
        run_outputs(file, X, RECIPE)
    with pytest.raises(ModelError, match="there is no file"):
        run_outputs(tmp_path / "absent.onnx", X, RECIPE)


def fake_python(folder: Path, script: str) -> str:
    """A program that stands in for Python, so that a child does what `script` says."""
    program = folder / "python"
    program.write_text(f"#!/bin/sh\n{script}\n", encoding="ascii")
    program.chmod(0o755)
    return str(program)


@pytest.mark.skipif(sys.platform == "win32", reason="the child is a shell script")
@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 'the last word' >&2; kill -SEGV $$", "ended by SIGSEGV; the last word"),
        ("kill -KILL $$", r"ended by SIGKILL \(out of memory\?\); it left no message"),
        ("echo first >&2; echo last >&2; exit 3", "ended with code 3; last"),
        ("exit 0", "failed on the model: it left no message"),
    ],
)
def test_a_child_that_dies_is_one_line(
    script: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path, script))
    with pytest.raises(ModelError, match=said):
        run_outputs(in_memory(SMALL, tmp_path), X, RECIPE)


@pytest.mark.skipif(sys.platform == "win32", reason="the child is a shell script")
def test_an_interrupt_kills_the_child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pid_file = tmp_path / "pid"
    script = f"echo $$ > '{pid_file}'; exec sleep 60"
    monkeypatch.setattr(sys, "executable", fake_python(tmp_path, script))

    def interrupt() -> None:
        while not (pid_file.exists() and pid_file.read_text(encoding="ascii").strip()):
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    waiter = threading.Thread(target=interrupt)
    waiter.start()
    with pytest.raises(KeyboardInterrupt):
        run_outputs(in_memory(SMALL, tmp_path), X, RECIPE)
    waiter.join()
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text(encoding="ascii")), 0)


def test_external_data_is_read_where_it_is(tmp_path: Path) -> None:
    weights = {"w": np.arange(1000, dtype=np.float32)}
    graph = model([node("Add", ["x", "w"], ["y"])], [value("x", FLOAT, [1])], ["y"], weights)
    onnx.save(graph, tmp_path / "m.onnx", save_as_external_data=True, location="w.bin",
              size_threshold=0)  # fmt: skip
    slim = onnx.load(tmp_path / "m.onnx", load_external_data=False)
    assert slim.ByteSize() < 1000
    one = {"x": np.ones(1, np.float32)}
    for source in (tmp_path / "m.onnx", in_memory(slim, tmp_path)):
        assert np.array_equal(run_outputs(source, one, RECIPE)["y"], weights["w"] + 1)
    (tmp_path / "elsewhere").mkdir()
    with pytest.raises(ModelError, match=r"w\.bin"):
        run_outputs(in_memory(slim, tmp_path / "elsewhere"), one, RECIPE)


def test_messages_lose_codes_paths_and_line_breaks() -> None:
    said = (
        "[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : Non-zero status code returned while running "
        "Reshape node. Name:'r' Status Message: /onnxruntime_src/onnxruntime/core/providers/cpu/"
        "tensor/reshape_helper.h:45 onnxruntime::ReshapeHelper::ReshapeHelper(const onnxruntime::"
        "TensorShape&, onnxruntime::TensorShapeVector&, bool) size != 0 was false.\nInput shape: {2}"
    )
    assert one_line(said) == (
        "Non-zero status code returned while running Reshape node. Name:'r' Status Message: "
        "size != 0 was false. Input shape: {2}"
    )
    assert one_line("") == "no reason given"
    assert len(one_line("x" * 5000)) == 400
