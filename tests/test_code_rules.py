"""The rules of the project that a machine can check: layers, lint, types, packaging."""

import ast
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "onnxremat"
PROTOBUF_FREE = [
    "graph.py",
    "schedule.py",
    "memory.py",
    "bounds.py",
    "plan.py",
    "units.py",
    "errors.py",
]


def imported_modules(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(name.name.split(".")[0] for name in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module.split(".")[0])
    return found


def test_core_types_and_planners_know_neither_onnx_nor_a_runtime() -> None:
    files = [PACKAGE / name for name in PROTOBUF_FREE] + sorted(
        (PACKAGE / "planners").rglob("*.py")
    )
    assert len(files) > len(PROTOBUF_FREE)
    for path in files:
        forbidden = imported_modules(path) & {"onnx", "onnxruntime", "onnx_graphsurgeon"}
        assert not forbidden, f"{path.relative_to(ROOT)} imports {forbidden}"


def test_only_the_command_line_prints_or_exits() -> None:
    for path in sorted(PACKAGE.rglob("*.py")) + sorted((ROOT / "rewriters").rglob("*.py")):
        if path.name in {"cli.py", "worker.py"}:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"print", "exit", "quit"}, f"{path}:{node.lineno}"


@pytest.mark.parametrize(
    "command",
    [["ruff", "check", "."], ["ruff", "format", "--check", "."], ["mypy"]],
    ids=["lint", "format", "types"],
)
def test_lint_format_and_types(command: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_wheel_holds_the_packages_and_runs_outside_the_checkout(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        archive.extractall(site)
    assert "onnxremat/py.typed" in names
    assert "onnxremat_rewriters/recompute.py" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not any(name.startswith(("models/", "tests/", "benchmarks/")) for name in names)
    code = "import onnxremat, onnxremat_rewriters, sys; print(onnxremat.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={"PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout.strip()).is_relative_to(site)
