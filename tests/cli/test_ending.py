"""How commands end: by signals at any moment, with outputs that cannot be printed, in any locale."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnxremat.cli.schemas import schema_name
from onnxremat.system.interrupts import Interrupts

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent.parent
QUICK = ("--session=recipe", "--mem", "1GB", "--time-limit", "1", "--no-tiling", "--no-verify")
MAIN = "from onnxremat.__main__ import main; main()"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return saved(tmp_path / "m.onnx", [helper.make_node("Relu", ["x"], ["y"], "r")])


def saved(
    path: Path, nodes: list[onnx.NodeProto], weights: list[TensorProto] | None = None
) -> Path:
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [4]) for name in "xy"]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], weights or [])
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path
    )
    return path


def slow(path: Path) -> Path:
    """A model that runs for minutes."""
    kinds = {"turn": TensorProto.INT64, "go": TensorProto.BOOL, "again": TensorProto.BOOL}
    info = {n: helper.make_tensor_value_info(n, t, []) for n, t in kinds.items()}
    state = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in ("v", "next")]
    body = helper.make_graph(
        [helper.make_node("Identity", ["go"], ["again"]), helper.make_node("Add", ["v", "v"], ["next"])],
        "body", [info["turn"], info["go"], state[0]], [info["again"], state[1]],
    )  # fmt: skip
    turns = numpy_helper.from_array(np.array(10**9), "turns")
    return saved(
        path, [helper.make_node("Loop", ["turns", "", "x"], ["y"], "l", body=body)], [turns]
    )


def environment(tmp_path: Path, **more: str) -> dict[str, str]:
    """With a temporary folder of the test's own, `tmp`."""
    (tmp_path / "tmp").mkdir(exist_ok=True)
    paths = f"{ROOT}:{ROOT / 'rewriters'}"
    return {"PATH": "", "PYTHONPATH": paths, "TMPDIR": str(tmp_path / "tmp"), "HOME": os.environ.get("HOME", "/"), **more}  # fmt: skip


def temporary_files(tmp_path: Path) -> list[str]:
    """Those that are ours: the runtime leaves a hidden one."""
    return [path.name for path in (tmp_path / "tmp").iterdir() if not path.name.startswith(".")]


def run(*arguments: object, tmp_path: Path, code: str = MAIN, env: dict[str, str] | None = None, **options: object) -> subprocess.CompletedProcess[str]:  # fmt: skip
    command = [sys.executable, "-c", code, *map(str, arguments)]
    options = {"stdout": subprocess.PIPE, **options}
    done: subprocess.CompletedProcess[str] = subprocess.run(  # type: ignore[call-overload]
        command, env=environment(tmp_path, **(env or {})), cwd=tmp_path,
        stderr=subprocess.PIPE, text=True, errors="replace", check=False, timeout=300, **options,
    )  # fmt: skip
    done.stderr = without_progress(done.stderr)
    return done


def without_progress(errors: str) -> str:
    """What a command said on standard error, without what it says every ten seconds of a stage."""
    lines = errors.splitlines(keepends=True)
    return "".join(line for line in lines if not re.search(r" \(\d+ s\)$", line))


@contextmanager
def working(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A command whose model runs in a child: both, the child by its number."""
    command = [sys.executable, "-c", MAIN, "audit", str(slow(tmp_path / "slow.onnx")), "--json"]
    with subprocess.Popen(
        command, env=environment(tmp_path), cwd=tmp_path, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        while not (children := list_children(process.pid)):
            assert process.poll() is None
            time.sleep(0.02)
        try:
            yield process, children[0]
        finally:
            process.kill()


def list_children(parent: int) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                words = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if int(words[1]) == parent and words[0] != "Z":
                found.append(int(entry))
    return found


def gone(process: int) -> bool:
    """Whether a process ends within a minute."""
    for _ in range(600):
        try:
            if Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.1)
    return False


linux = pytest.mark.skipif(
    not os.path.exists("/proc/self/stat"), reason="processes are looked up in /proc"
)


@linux
@pytest.mark.parametrize(
    ("number", "said", "whole_group"),
    [
        (signal.SIGINT, "interrupted", False),
        (signal.SIGINT, "interrupted", True),
        (signal.SIGTERM, "terminated", False),
        (signal.SIGTERM, "terminated", True),
        (signal.SIGHUP, "terminated", False),
    ],
)
def test_a_signal_ends_a_command_with_one_line_and_leaves_nothing(
    number: signal.Signals, said: str, whole_group: bool, tmp_path: Path
) -> None:
    with working(tmp_path) as (process, child):
        if whole_group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 128 + number
        assert without_progress(err) == f"onnxremat: {said}, nothing was written\n"
        assert json.loads(out) == {
            "schema": schema_name("error"),
            "error": f"{said}, nothing was written",
            "exit_code": 128 + number,
            "attempts": [],
        }
        assert gone(child)
        assert temporary_files(tmp_path) == []


@linux
def test_what_a_killed_command_leaves_is_gone_after_the_next_start(tmp_path: Path) -> None:
    with working(tmp_path) as (process, child):
        process.kill()
        process.communicate()
        assert gone(child)
        assert temporary_files(tmp_path) != []
    assert run("audit", "none.onnx", tmp_path=tmp_path).returncode == 2
    assert temporary_files(tmp_path) == []


SIGNALLED = """
import os, signal, sys

class Signal:
    def find_spec(self, name, path=None, target=None):
        if name == wanted:
            os.kill(os.getpid(), signal.SIGINT)

wanted = sys.argv.pop(1)
from onnxremat.__main__ import main
sys.meta_path.insert(0, Signal())
main()
"""
"""Ctrl-C when the module that is the first argument is looked for."""


@pytest.mark.parametrize(
    "module",
    ["onnxremat.cli.app", "typer", "onnx", "onnxremat.subject", "onnxremat.commands.frontier"],
)
def test_ctrl_c_while_modules_are_imported(module: str, small: Path, tmp_path: Path) -> None:
    done = run(module, "frontier", small, tmp_path=tmp_path, code=SIGNALLED)
    assert done.returncode == 130
    assert done.stderr == "onnxremat: interrupted, nothing was written\n"
    assert done.stdout == ""


AT = """
import os, signal, sys
from onnxremat.commands import files
method, number = sys.argv.pop(1).split(":")
original = getattr(files._Writing, method)

def signalled(*arguments):
    original(*arguments)
    os.kill(os.getpid(), int(number))

setattr(files._Writing, method, signalled)
from onnxremat.__main__ import main
main()
"""
"""A signal to itself right after a step of writing."""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_before_files_are_put_in_place_leaves_none_and_later_all(
    number: signal.Signals, small: Path, tmp_path: Path
) -> None:
    target, plan = tmp_path / "out.onnx", tmp_path / "plan.json"
    words = ["rewrite", small, *QUICK, "-o", target, "--emit-plan", plan]
    before = set(tmp_path.iterdir()) | {tmp_path / "tmp"}
    done = run(f"stage:{int(number)}", *words, tmp_path=tmp_path, code=AT)
    assert done.returncode == 128 + number
    assert set(tmp_path.iterdir()) == before
    done = run(f"place:{int(number)}", *words, tmp_path=tmp_path, code=AT)
    assert (done.returncode, done.stderr) == (0, "")
    assert set(tmp_path.iterdir()) == before | {target, plan}
    assert temporary_files(tmp_path) == []


full = pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full")


@full
def test_a_file_that_was_written_is_success_whatever_becomes_of_the_report(
    small: Path, tmp_path: Path
) -> None:
    for number, words in enumerate(((), ("--json",))):
        target = tmp_path / f"full{number}.onnx"
        with open("/dev/full", "w") as device:
            done = run(
                "rewrite", small, *QUICK, "-o", target, *words, tmp_path=tmp_path, stdout=device
            )
        assert done.returncode == 0
        assert (
            done.stderr
            == f"onnxremat: cannot write to standard output: No space left on device; {target} was written\n"
        )
        assert target.is_file()


def test_a_report_that_cannot_be_printed_for_want_of_an_output_says_so(
    small: Path, tmp_path: Path
) -> None:
    closed = "import os, sys; os.close(1); sys.stdout = None\n" + MAIN
    target = tmp_path / "closed.onnx"
    done = run("rewrite", small, *QUICK, "-o", target, tmp_path=tmp_path, code=closed)
    assert done.returncode == 0 and target.is_file()
    said = "onnxremat: cannot write to standard output: Bad file descriptor"
    assert done.stderr == f"{said}; {target} was written\n"
    done = run("planners", tmp_path=tmp_path, code=closed)
    assert (done.returncode, done.stderr) == (2, f"{said}\n")


def test_a_current_folder_that_was_removed_is_one_line(small: Path, tmp_path: Path) -> None:
    gone = "import os; os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n" + MAIN
    done = run("rewrite", small, *QUICK, "-o", "z.onnx", tmp_path=tmp_path, code=gone)
    assert done.returncode == 2
    assert done.stderr == "onnxremat: cannot write z.onnx: No such file or directory\n"


@full
@pytest.mark.parametrize(
    "words", [("planners",), ("planners", "--json"), ("--help",), ("--version",)]
)
def test_a_result_that_cannot_be_printed_is_one_line(
    words: tuple[str, ...], tmp_path: Path
) -> None:
    with open("/dev/full", "w") as device:
        done = run(*words, tmp_path=tmp_path, stdout=device)
    assert (done.returncode, done.stderr) == (
        2,
        "onnxremat: cannot write to standard output: No space left on device\n",
    )
    reading, writing = os.pipe()
    os.close(reading)
    done = run(*words, tmp_path=tmp_path, stdout=writing)
    os.close(writing)
    assert "Traceback" not in done.stderr
    assert done.returncode != 0


def test_standard_streams_that_are_closed_do_no_harm(small: Path, tmp_path: Path) -> None:
    """What is opened next must not get their numbers: libraries would print into it."""
    target = tmp_path / "out.onnx"
    line = f"exec {sys.executable} -c '{MAIN}' rewrite {small} {' '.join(QUICK)} -o {target} <&- >&- 2>&-"
    done = subprocess.run(
        ["/bin/sh", "-c", line], env=environment(tmp_path), cwd=tmp_path, check=False
    )
    assert done.returncode == 0
    onnx.checker.check_model(target)


def test_paths_that_are_not_ascii_in_a_locale_that_is(tmp_path: Path) -> None:
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    weight = numpy_helper.from_array(np.ones(4, "f"), "w")
    path = saved(tmp_path / "m.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], [weight])
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    for name, words in ((os.fsencode("ü 文"), ["--optimize", "basic"]), (b"latin1 \xfc", [])):
        folder = tmp_path / os.fsdecode(name)
        (folder / "out").mkdir(parents=True)
        for file in ("m.onnx", "w.bin"):
            shutil.copy(tmp_path / file, folder)
        target = folder / "out" / "ö.onnx"
        command = ["rewrite", folder / "m.onnx", *QUICK, *words, "-o", target]
        done = run(*command, tmp_path=tmp_path, env=plain)
        assert (done.returncode, done.stderr) == (0, "")
        code = "import sys, onnxremat; onnxremat.open_session(sys.argv[1])"
        done = run(target, tmp_path=tmp_path, env=plain, code=code)
        assert (done.returncode, done.stderr) == (0, "")


def test_what_the_output_cannot_print_is_escaped(small: Path, tmp_path: Path) -> None:
    target = tmp_path / "ü.onnx"
    ascii_only = {"PYTHONIOENCODING": "ascii"}
    done = run("rewrite", small, *QUICK, "-o", target, tmp_path=tmp_path, env=ascii_only)
    assert (done.returncode, done.stderr) == (0, "")
    assert r"\xfc.onnx" in done.stdout
    words = ["rewrite", small, *QUICK, "-o", target, "--json"]
    done = run(*words, tmp_path=tmp_path, env=ascii_only)
    assert json.loads(done.stdout)["output"] == str(target)


def test_outputs_that_name_inputs_are_refused_before_anything_runs(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.ones(4, "f"), "w")
    path = saved(tmp_path / "m.onnx", [helper.make_node("Add", ["x", "w"], ["y"])], [weight])
    onnx.save(onnx.load(path), path, save_as_external_data=True, location="w.bin", size_threshold=0)
    np.savez(tmp_path / "in.npz", x=np.ones(4, "f"))
    before = {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()}
    no_child = f"from onnxremat.ort.child import children; children.run_child = None; {MAIN}"
    for words in (
        ["rewrite", path, *QUICK, "-o", "w.bin"],
        ["rewrite", path, *QUICK, "--inputs", "in.npz", "--emit-plan", "in.npz"],
        ["frontier", path, "--html", "w.bin"],
    ):
        done = run(*words, tmp_path=tmp_path, code=no_child)
        assert done.returncode == 2, done.stderr
        assert "which stays untouched" in done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert before == {
        entry.name: entry.read_bytes() for entry in tmp_path.iterdir() if entry.is_file()
    }


def test_the_first_ctrl_c_while_planning_is_a_request_and_the_end_is_not_interrupted() -> None:
    interrupts = Interrupts()
    interrupts.polite = interrupts.planning = True
    interrupts(signal.SIGINT, None)
    assert interrupts.requested
    code = (
        "import os, signal, sys; from onnxremat.system.interrupts import INTERRUPTS as i; i.install(); "
        "i.clean_up = lambda: print('cleaned', flush=True); i.polite = i.planning = True; {}; print('on')"
    )
    kill = "os.kill(os.getpid(), signal.{})"
    for steps, expected in (
        (kill.format("SIGINT"), (0, "on\n")),
        (f"{kill.format('SIGINT')}; {kill.format('SIGINT')}", (130, "cleaned\n")),
        (kill.format("SIGTERM"), (143, "cleaned\n")),
        (f"i.finish(); {kill.format('SIGINT')}; {kill.format('SIGTERM')}", (0, "on\n")),
    ):
        done = subprocess.run(
            [sys.executable, "-c", code.format(steps)], env={"PYTHONPATH": str(ROOT)},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == expected
    aside = code.replace("i.install()", "signal.signal(signal.SIGHUP, signal.SIG_IGN); i.install()")
    done = subprocess.run(
        [sys.executable, "-c", aside.format(kill.format("SIGHUP"))], env={"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "on\n")
