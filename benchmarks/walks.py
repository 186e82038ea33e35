"""How far a value is handed on: the functions that take it, from one function down.

    python -m benchmarks.walks [--root FOLDER]

A *station* is a function that has a parameter of that name and is called with the value, or a class
that keeps it in a field of that name. The walk follows every call in which a station hands the
value on, as `options` or as `self.options`. Calls are resolved by the name that is called: where
several functions have it, all that take the value count. Stations stand under their modules in the
order in which they are reached, depth first; "back to" is a module that was left before. `options`
is walked from `rewrite`; `plan` from the targets' `forecast`, where a plan that was made sets out.
"""

import argparse
import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

WALKS = (("options", "rewrite"), ("plan", "forecast"))
PACKAGES = ("onnxremat", "rewriters/onnxremat_rewriters")

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Station:
    """A function, or a class that keeps the value, in a module."""

    module: str
    name: str
    body: ast.AST


def parameters(function: Function) -> list[str]:
    """Their names."""
    given = function.args
    return [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]


def fields(kind: ast.ClassDef) -> list[str]:
    """The names of annotated class attributes."""
    found = [one.target for one in kind.body if isinstance(one, ast.AnnAssign)]
    return [one.id for one in found if isinstance(one, ast.Name)]


def stations(root: Path, value: str) -> Iterator[tuple[str, Station]]:
    """All that take a value, by the name under which they are called."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            module = ".".join(path.relative_to((root / package).parent).with_suffix("").parts)
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef):
                    made = [one for one in node.body if isinstance(one, Function)]
                    init = [one for one in made if one.name == "__init__"]
                    if value in fields(node) or any(value in parameters(one) for one in init):
                        yield node.name, Station(module, node.name, node)
                elif isinstance(node, Function) and value in parameters(node):
                    yield node.name, Station(module, node.name, node)


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


def walk(root: Path, value: str, start: str) -> list[Station]:
    """The stations from `start` down, depth first."""
    by_name: dict[str, list[Station]] = {}
    for name, station in stations(root, value):
        by_name.setdefault(name, []).append(station)
    found: list[Station] = []
    waiting = list(reversed(by_name.get(start, [])))
    while waiting:
        station = waiting.pop()
        if station in found:
            continue
        found.append(station)
        called = dict.fromkeys(handed_on(station, value))
        waiting += [one for name in reversed(called) for one in by_name.get(name, [])]
    return found


def main() -> None:
    """Print the walk of each value and count its stations."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    given = parser.parse_args()
    for value, start in WALKS:
        found = walk(given.root, value, start)
        every = {station for _, station in stations(given.root, value)}
        print(f"{value}: {len(found)} stations from {start} down, {len(every)} in all")
        seen: list[str] = []
        for station in found:
            if not seen or seen[-1] != station.module:
                back = "back to " if station.module in seen else ""
                print(f"  {back}{station.module}")
                seen.append(station.module)
            print(f"    {station.name}")


if __name__ == "__main__":
    main()
