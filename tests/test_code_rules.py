"""The rules of the project that a machine can check: layers, lint, types."""

import ast
import os
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from pkgutil import iter_modules

import pytest

import onnxremat

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "onnxremat"
MODULES = sorted(PACKAGE.rglob("*.py")) + sorted((ROOT / "rewriters").rglob("*.py"))
LINT_IMPORTS = (
    "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True))"
)


def test_imports_keep_to_the_layers_of_the_project_file() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LINT_IMPORTS],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT / "rewriters")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_module_has_a_layer() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    placed = {name.strip() for layer in layers for name in layer.split("|")}
    there = {"onnxremat_rewriters"}
    for module in iter_modules([str(PACKAGE)]):
        name = f"onnxremat.{module.name}"
        parts = {f"{name}.{part.name}" for part in iter_modules([str(PACKAGE / module.name)])}
        there |= {name} if name in placed else parts or {name}
    assert placed == there


def test_only_the_command_line_prints_or_exits() -> None:
    for path in MODULES:
        if path.name in {"cli.py", "worker.py"}:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"print", "exit", "quit"}, f"{path}:{node.lineno}"


def test_no_two_modules_share_a_name() -> None:
    names = Counter(path.stem for path in MODULES if path.name != "__init__.py")
    assert not [name for name, count in names.items() if count > 1]


def test_no_two_public_classes_share_a_name() -> None:
    found = Counter(
        node.name
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert not [name for name, count in found.items() if count > 1]


@pytest.mark.parametrize("name", onnxremat.__all__)
def test_a_public_name_is_where_the_package_says(name: str) -> None:
    assert getattr(onnxremat, name)


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
