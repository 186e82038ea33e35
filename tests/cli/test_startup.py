"""What loads nothing heavy, and what starting needs of the machine."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from onnxremat.core.errors import UsageError
from onnxremat.options import Options
from onnxremat.planners import PLANNERS
from onnxremat.subject import prepare_feed

HEAVY = [
    *("memray", "networkx", "numba", "numpy", "onnx", "onnx_graphsurgeon", "onnxruntime"),
    *("ortools", "pandas", "scipy", "sympy"),
]
CALLS = [
    ["--help"],
    ["--version"],
    ["planners"],
    *([name, "--help"] for name in ("rewrite", "audit", "frontier", "verify", "planners", "sweep")),
]
AFTER_EACH_CALL = """
import contextlib, io, json, sys
calls, heavy = json.loads(sys.argv[1])
from onnxremat.__main__ import main
for call in calls:
    sys.argv = ["onnxremat", *call]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main()
    print(json.dumps([len(said.getvalue()), sorted(sys.modules.keys() & set(heavy))]))
"""


def test_help_and_lists_load_no_model_library_and_no_solver() -> None:
    text = json.dumps([CALLS, HEAVY])
    done = subprocess.run(
        [sys.executable, "-c", AFTER_EACH_CALL, text], capture_output=True, text=True, check=True
    )
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(answers) == len(CALLS), done.stderr
    for call, (written, loaded) in zip(CALLS, answers, strict=True):
        assert written > 10, call
        assert loaded == [], call


def test_the_package_loads_nothing_before_a_name_is_used() -> None:
    code = "import onnxremat, sys; print(dir(onnxremat), sys.modules.keys() & set(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", code, *HEAVY], capture_output=True, text=True, check=True
    )
    assert "'rewrite'" in done.stdout
    assert done.stdout.strip().endswith("set()")


def test_every_planner_of_the_table_is_where_the_table_says() -> None:
    for name, info in PLANNERS.items():
        assert (info.name, info.function.__name__) == (name, name)
        assert info.function.__module__ == f"onnxremat.planners.{info.module}"


def test_without_a_folder_for_temporary_files_it_ends_in_one_line(
    monkeypatch: pytest.MonkeyPatch, unet: Path
) -> None:
    def none() -> str:
        raise FileNotFoundError("no usable temporary directory")

    monkeypatch.setattr(tempfile, "gettempdir", none)
    with pytest.raises(UsageError, match="TMPDIR"):
        prepare_feed(unet, Options())
