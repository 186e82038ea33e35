"""The benchmark of robustness: that it finds what is wrong, and a small sample of it on the product."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

ROOT = Path(__file__).parent.parent.parent

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        sys.platform != "linux", reason="the benchmark of robustness needs Linux (pidfd, subreaper)"
    ),
]

if sys.platform == "linux":
    from benchmarks.robustness import direct, limits, mutations, seeds
    from benchmarks.robustness.judging import Line, faults
    from benchmarks.robustness.processes import Ended
    from benchmarks.robustness.table import document

FINE = {"code": 0, "seconds": 0.1, "peak_bytes": 1 << 20, "stdout": "", "stderr": ""}


def benchmark(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks.robustness", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


# The product


@pytest.mark.parametrize(
    "words",
    [
        ("backend", "--every", "80"),
        ("mutants", "--mutants", "160", "--own-processes", "4"),
        ("kills", "--kills", "6"),
        ("environments", "--only", "stdout"),
    ],
    ids=lambda words: words[0],
)
def test_a_sample_holds(words: tuple[str, ...], tmp_path: Path) -> None:
    results = tmp_path / "results.json"
    done = benchmark(*words, "--json", str(results))
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(results.read_text())[words[0]]
    assert len(found) >= 3


# How commands end


@pytest.fixture
def in_a_process() -> Iterator[Any]:
    """`forked` in a process of its own, for it adopts orphans and ends its children."""

    def run(code: str, folder: Path) -> dict[str, Any]:
        text = (
            "import json, os, sys, time\nfrom pathlib import Path\n"
            "from dataclasses import asdict\n"
            "from benchmarks.robustness.processes import adopt_orphans, forked\n"
            "adopt_orphans()\n"
            f"def work():\n{code}\n"
            "print(json.dumps(asdict(forked(work, Path(sys.argv[1]), seconds=3))))\n"
        )
        done = subprocess.run(
            [sys.executable, "-c", text, str(folder)],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=True,
        )
        return dict(json.loads(done.stdout))

    yield run


def test_a_fork_ends_as_a_program_does(in_a_process: Any, tmp_path: Path) -> None:
    ended = in_a_process(" print('out'); sys.exit(5)", tmp_path)
    assert (ended["code"], ended["stdout"], ended["stderr"]) == (5, "out\n", "")
    ended = in_a_process(" raise KeyError('x')", tmp_path)
    assert ended["code"] == 1
    assert "KeyError: 'x'" in ended["stderr"]
    assert faults(Ended(**ended)) == ["traceback: KeyError: 'x'"]


def test_a_hang_and_a_crash_are_found(in_a_process: Any, tmp_path: Path) -> None:
    assert faults(Ended(**in_a_process(" time.sleep(100)", tmp_path))) == ["hang: no end after 3 s"]
    ended = Ended(**in_a_process(" os.kill(os.getpid(), 11)", tmp_path))
    assert ended.code == -11
    assert faults(ended) == ["exit -11: no message"]


def test_what_a_command_leaves_running_is_found_and_ended(
    in_a_process: Any, tmp_path: Path
) -> None:
    code = (
        " import subprocess\n"
        " child = subprocess.Popen(['sleep', '600'], start_new_session=True)\n"
        " Path('pid').write_text(str(child.pid))\n"
        " os._exit(0)"
    )
    ended = Ended(**in_a_process(code, tmp_path))
    assert ended.orphans == 1
    assert faults(ended) == ["1 processes left"]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text()), 0)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"code": 1, "stderr": "boom"}, "exit 1: boom"),
        ({"code": 5, "stderr": "one\ntwo"}, "2 lines on stderr: two"),
        ({"code": 5}, "0 lines on stderr: "),
        ({"peak_bytes": 3 << 30}, "memory: 3.0 GiB"),
        ({"code": -9}, "exit -9: no message"),
    ],
)
def test_what_is_wrong_of_an_end(change: dict[str, Any], fault: str) -> None:
    assert faults(Ended(**FINE)) == []
    assert faults(replace(Ended(**FINE), **change)) == [fault]


# Models without the product


def test_outputs_are_compared_bit_for_bit() -> None:
    zero, minus = np.float32([0.0]), np.float32([-0.0])
    quiet, other = np.uint32([0x7FC00000]).view("f4"), np.uint32([0x7FC00001]).view("f4")
    assert direct.same(zero, zero.copy())
    assert not direct.same(zero, minus)
    assert direct.same(quiet, quiet.copy())
    assert not direct.same(quiet, other)
    assert not direct.same(zero, zero.reshape(1, 1))
    assert not direct.same([zero], [zero, zero])
    assert direct.same(np.array(["a"], object), np.array(["a"], object))
    assert not direct.same(np.array(["a"], object), np.array(["b"], object))
    assert direct.differences({"a": zero, "b": zero}, {"a": zero, "b": minus}) == ["b"]


def test_types_that_numpy_lacks_are_run_and_compared(tmp_path: Path) -> None:
    nodes = [helper.make_node("Cast", ["x"], ["y"], to=TensorProto.BFLOAT16)]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])],
        [helper.make_tensor_value_info("y", TensorProto.BFLOAT16, [2])],
    )
    opset = [helper.make_opsetid("", 19)]
    onnx.save(helper.make_model(graph, opset_imports=opset, ir_version=9), tmp_path / "m.onnx")
    made = direct.run(tmp_path / "m.onnx", {"x": np.float32([1.0, -2.0])})
    assert made["y"].tolist() == [0x3F80, 0xC000]


@pytest.mark.parametrize(
    "seed", seeds.seeds() if sys.platform == "linux" else [], ids=lambda s: s.name
)
def test_seeds_are_models_that_run(seed: Any, tmp_path: Path) -> None:
    path = seed.write(tmp_path)
    onnx.checker.check_model(str(path))
    sizes = dict(dim.split("=") for dim in seed.dims)
    asked = [
        (i.name, i.type, [int(sizes.get(d, 0)) if isinstance(d, str) else d for d in i.shape])
        for i in direct.session(path).get_inputs()
    ]
    assert direct.run(path, direct.random_feed(asked, seed=0))


# Damage


def test_a_mutant_is_made_again_from_its_number() -> None:
    for seed in seeds.seeds():
        first = [mutations.mutate(seed.model, np.random.default_rng([7, i])) for i in range(20)]
        again = [mutations.mutate(seed.model, np.random.default_rng([7, i])) for i in range(20)]
        assert first == again
        assert sum(model != seed.model for model, _ in first) >= 10


def test_every_kind_of_damage_changes_something() -> None:
    proto = onnx.ModelProto.FromString(seeds.functions().SerializeToString())
    proto.graph.initializer.append(seeds.chain().graph.initializer[0])
    proto.metadata_props.add(key=mutations.RECORD, value=json.dumps({"version": 2, "a": [1]}))
    before = proto.SerializeToString()
    for damage in (*mutations.MUTATIONS, mutations.any_field):
        changed = 0
        for i in range(30):
            copy = onnx.ModelProto.FromString(before)
            damage(copy, np.random.default_rng(i))
            changed += copy.SerializeToString() != before
        assert changed >= 5, damage.__name__


# The table


def test_a_line_with_a_fault_fails() -> None:
    lines = [Line("part", "good", 3, "x"), Line("part", "bad", 2, "y", ("it | broke\n",))]
    text = document(lines, "", 60)
    assert "| part | good | 3 | x | 0 | holds |" in text
    assert "| part | bad | 2 | y | 1 | FAILED |" in text
    assert "- it \\| broke" in text


def test_a_refusal_is_right_only_for_a_stated_limit() -> None:
    said = "onnxremat: graph input 'x' is a sequence: only tensors are supported"
    assert limits.stated(5, said) is not None
    assert limits.stated(6, said) is None
    assert limits.stated(5, "onnxremat: out of luck") is None


def test_the_command_fails_with_a_fault(tmp_path: Path) -> None:
    done = benchmark("nonsense")
    assert done.returncode == 2
    assert "there is no part 'nonsense'" in done.stderr
