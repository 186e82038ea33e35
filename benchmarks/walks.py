"""How far a value is handed on: the functions that take it.

    python -m benchmarks.walks [--root FOLDER] [--before FOLDER]

A *station* is a function with a parameter for the value, or a class that keeps it in a field. Two
values are followed:

- `options`, by that name, from `rewrite` down: every call in which a station hands them on, as
  `options` or as `self.options`. Calls are resolved by the name that is called: where several
  functions have it, all that take the value count. A call into a module that the walk came from
  and left again is a step back.
- a plan, by its type: whatever takes a `Plan`, also as a part (`tuple[Plan, ...]`).

With `--before`, a checkout of an older commit, the walks there stand beside these, and the command
fails where one is longer than two thirds of what it was, or has a step back.
"""

import argparse
import ast
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGE = "onnxremat"
MOST = 2 / 3
"""How long a walk may be, as a share of the one before."""

Function = ast.FunctionDef | ast.AsyncFunctionDef
Taken = Callable[[ast.arg | ast.AnnAssign], bool]
"""Whether a parameter or a field takes the value."""


@dataclass(frozen=True)
class Station:
    """A function, or a class that keeps the value, in a module."""

    module: str
    name: str
    body: ast.AST


def is_options(one: ast.arg | ast.AnnAssign) -> bool:
    """Whether it has that name."""
    name = one.arg if isinstance(one, ast.arg) else getattr(one.target, "id", "")
    return name == "options"


def is_plan(one: ast.arg | ast.AnnAssign) -> bool:
    """Whether `Plan` is its type or a part of that."""
    parts = [] if one.annotation is None else list(ast.walk(one.annotation))
    names = [part.id for part in parts if isinstance(part, ast.Name)]
    texts = [part.value for part in parts if isinstance(part, ast.Constant)]
    return "Plan" in names or "Plan" in texts


def parameters(function: Function) -> list[ast.arg]:
    """All of them."""
    given = function.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def taking(kind: ast.ClassDef) -> list[ast.arg | ast.AnnAssign]:
    """Fields, and parameters of the method that makes an instance."""
    found: list[ast.arg | ast.AnnAssign] = []
    for one in kind.body:
        if isinstance(one, ast.AnnAssign):
            found.append(one)
        elif isinstance(one, Function) and one.name == "__init__":
            found += parameters(one)
    return found


def stations(root: Path, taken: Taken) -> Iterator[Station]:
    """All that take a value."""
    for path in sorted((root / PACKAGE).rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            given: list[ast.arg | ast.AnnAssign] = []
            if isinstance(node, ast.ClassDef):
                given = taking(node)
            elif isinstance(node, Function) and node.name != "__init__":
                given += parameters(node)
            if any(map(taken, given)):
                yield Station(module, node.name, node)


def handed_on(station: Station, value: str) -> Iterator[str]:
    """The names of what a station calls with the value, in the order of the text."""
    calls = [node for node in ast.walk(station.body) if isinstance(node, ast.Call)]
    for call in sorted(calls, key=lambda one: (one.lineno, one.col_offset)):
        given = [*call.args, *(one.value for one in call.keywords)]
        names = [one.id for one in given if isinstance(one, ast.Name)]
        names += [one.attr for one in given if isinstance(one, ast.Attribute)]
        if value in names:
            called = call.func
            if isinstance(called, ast.Name):
                yield called.id
            elif isinstance(called, ast.Attribute):
                yield called.attr


def options_walk(root: Path) -> tuple[list[Station], list[str]]:
    """The stations of the options from `rewrite` down, depth first, and the steps back."""
    by_name: dict[str, list[Station]] = {}
    for station in stations(root, is_options):
        by_name.setdefault(station.name, []).append(station)
    found: list[Station] = []
    back: list[str] = []
    waiting = [(one, (one.module,)) for one in reversed(by_name.get("rewrite", []))]
    while waiting:
        station, way = waiting.pop()
        if station in found:
            continue
        found.append(station)
        called = dict.fromkeys(handed_on(station, "options"))
        for one in (one for name in reversed(called) for one in by_name.get(name, [])):
            if one.module != station.module and one.module in way:
                back.append(f"{station.name} -> {one.name} in {one.module}")
            waiting.append((one, (*way, one.module)))
    return found, back


def walks(root: Path) -> dict[str, tuple[list[Station], list[str]]]:
    """Each walk with its steps back."""
    return {
        "options, from rewrite down": options_walk(root),
        "a plan": (list(stations(root, is_plan)), []),
    }


def main() -> None:
    """Print the stations of each value and count them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    parser.add_argument("--before", type=Path)
    given = parser.parse_args()
    before = None if given.before is None else walks(given.before)
    failed = False
    for name, (found, back) in walks(given.root).items():
        line = f"{name}: {len(found)} stations"
        if before is not None:
            old = len(before[name][0])
            longer = len(found) > MOST * old or bool(back)
            failed = failed or longer
            line += f", {old} before ({100 * len(found) / old:.0f}%)" + " FAILED" * longer
        print(line)
        module = ""
        for station in found:
            if station.module != module:
                module = station.module
                print(f"  {module}")
            print(f"    {station.name}")
        for step in back:
            print(f"  a step back: {step}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
