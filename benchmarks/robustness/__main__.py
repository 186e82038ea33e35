"""Try the product on what breaks programs, and print a table of what holds.

    python -m benchmarks.robustness [PART ...] [--mutants 20000] [--own-processes 1000]
                                    [--kills 200] [--every 1] [--only NAME] [--jobs 4] [--seed 0]
                                    [--keep FOLDER] [--markdown FILE] [--json FILE]

Parts: backend, mutants, kills, environments; all of them if none is named. A line that does not
hold ends with FAILED, and so does the command, with exit code 1. `--every 20` takes every twentieth
model of the backend suite, `--only` those whose name contains a word. `--keep` is where mutants
with faults are copied to. Linux only.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.robustness import backend, environments, kills, mutants, seeds
from benchmarks.robustness.judging import Line
from benchmarks.robustness.processes import adopt_orphans, load_product
from benchmarks.robustness.table import document, reason_rows

PARTS = ("backend", "mutants", "kills", "environments")


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The options of the command."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.robustness",
        description="Backend suite, mutants, kills and environments: what does not hold.",
    )
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--mutants", type=int, default=20_000)
    parser.add_argument("--own-processes", type=int, default=1_000, help="of the mutants")
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--every", type=int, default=1, help="every so many-th model of the suite")
    parser.add_argument("--only", default="", help="models of the suite, and places, by name")
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="a folder for mutants with faults")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path, help="every single result")
    given = parser.parse_args(words)
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        parser.error(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    given.parts = given.parts or list(PARTS)
    given.own_processes = min(given.own_processes, given.mutants)
    return given


def run(part: str, given: argparse.Namespace) -> tuple[list[Any], list[Line]]:
    """All results of a part, and its lines of the table."""
    if part == "backend":
        verdicts = backend.run_suite(given.jobs, every=given.every, only=given.only, report=_said)
        return list(verdicts), list(backend.lines(verdicts))
    if part == "mutants":
        tried = mutants.run_mutants(
            given.mutants, given.own_processes, given.jobs, seed=given.seed, keep=given.keep,
            report=_said,
        )  # fmt: skip
        return list(tried), list(mutants.lines(tried, given.own_processes))
    if part == "kills":
        killed = kills.run_kills(given.kills, given.jobs, seed=given.seed, report=_said)
        return list(killed), list(kills.lines(killed))
    places = environments.run_environments(given.jobs, given.only, report=_said)
    return list(places), list(environments.lines(places))


def _said(result: Any) -> None:
    """One line for a result that does not hold."""
    wrong = getattr(result, "wrong", ())
    if isinstance(result, backend.Verdict) and result.outcome == backend.WRONG:
        wrong = (result.detail,)
    if wrong:
        words = "; ".join(wrong)[:300]
        print(f"{_label(result)}: {words}".encode("ascii", "backslashreplace").decode(), flush=True)


def _label(result: Any) -> str:
    if isinstance(result, mutants.Mutant):
        return f"mutant {result.number} of {result.seed} ({result.command})"
    if isinstance(result, kills.Kill):
        return f"kill {result.number}, {result.signal}, {result.command}"
    return str(getattr(result, "name", getattr(result, "place", "")))


def main() -> None:
    """Run the parts that were asked for, and print the table."""
    given = arguments()
    if sys.platform != "linux":
        sys.exit("the benchmark of robustness needs Linux")
    started = time.monotonic()
    adopt_orphans()
    with tempfile.TemporaryDirectory(prefix="robustness-") as name:
        path = Path(name) / "model.onnx"
        path.write_bytes(seeds.chain().SerializeToString())
        load_product(path)
    if given.keep is not None:
        given.keep.mkdir(parents=True, exist_ok=True)
    results: dict[str, list[Any]] = {}
    lines: list[Line] = []
    for part in given.parts:
        results[part], more = run(part, given)
        lines += more
    reasons = reason_rows(backend.reasons(results.get("backend", [])))
    text = document(lines, reasons, time.monotonic() - started)
    print(text)
    if given.markdown is not None:
        given.markdown.write_text(text, encoding="utf-8")
    if given.json is not None:
        plain = {part: [asdict(one) for one in found] for part, found in results.items()}
        given.json.write_text(json.dumps(plain, indent=1), encoding="utf-8")
    if not all(line.holds for line in lines):
        print("FAILED")
        sys.exit(1)


if __name__ == "__main__":
    main()
