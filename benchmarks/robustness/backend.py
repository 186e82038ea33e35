"""The ONNX backend suite through `rewrite`, compared in ONNX Runtime without the product.

For each model: does ONNX Runtime run it on the inputs of its test, what does `onnxremat rewrite`
make of it, and does the file give the same bits on those inputs?
"""

import pickle
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.robustness import direct
from benchmarks.robustness.judging import (
    Line,
    examples,
    faults,
    in_parallel,
    run_product,
    temporary_left,
)
from benchmarks.robustness.limits import stated
from benchmarks.robustness.processes import Ended, forked
from benchmarks.robustness.suite import KINDS, BackendTest, store

RUN_SECONDS = 60.0
"""So long may ONNX Runtime take for one run of a model of the suite."""

REWRITE_SECONDS = 120.0
"""So long may a rewrite of a model of the suite take, on a busy machine."""

OPTIONS = ("--session=recipe", "--mem", "min", "--time-limit", "0.5")

SLACK_BYTES = 64 * 1024
"""By so much the peak that is measured may be above that of the original: pages touched first."""

REDUCED, WRITTEN, REFUSED, NOT_RUN, WRONG = "reduced", "written", "refused", "not run", "wrong"
OUTCOMES = {
    REDUCED: "rewritten, needs less memory",
    WRITTEN: "rewritten, cannot be reduced",
    REFUSED: "refused for a stated limit",
    NOT_RUN: "ONNX Runtime does not run it: refused",
    WRONG: "does not hold",
}


@dataclass(frozen=True)
class Verdict:
    """What became of a model. `detail` is the message of a refusal, or what is wrong."""

    name: str
    kind: str
    outcome: str
    detail: str
    seconds: float
    code: int | None = None
    limit: str = ""


def judge(test: BackendTest) -> Verdict:
    """Run, rewrite and compare one model."""
    why = _runtime_refusal(test)
    rewritten = test.folder / "out.onnx"
    arguments = ["rewrite", "model.onnx", *OPTIONS, "-o", rewritten.name, "--json"]
    arguments += _given_inputs(test)
    ended = run_product(arguments, test.folder, seconds=REWRITE_SECONDS)

    def verdict(outcome: str, detail: str, limit: str = "") -> Verdict:
        return Verdict(test.name, test.kind, outcome, detail, ended.seconds, ended.code, limit)

    wrong = faults(ended) + [f"left in TMPDIR: {name}" for name in temporary_left(test.folder)]
    if (ended.code == 0) != rewritten.is_file():
        wrong.append(f"exit {ended.code}, and the file is {'' if ended.code else 'not '}there")
    if wrong:
        return verdict(WRONG, "; ".join(wrong))
    if why is not None:
        return verdict(NOT_RUN, why) if ended.code else verdict(WRONG, f"ONNX Runtime: {why}")
    if ended.code == 0:
        wrong = _compared(test, rewritten)
        return verdict(WRONG, "; ".join(wrong)) if wrong else verdict(*_success(ended))
    limit = stated(ended.code, ended.last_line)
    if limit is None:
        return verdict(WRONG, f"exit {ended.code}: {ended.last_line}")
    return verdict(REFUSED, ended.last_line, limit.name)


def _success(ended: Ended) -> tuple[str, str]:
    import json

    result = json.loads(ended.stdout)
    before, after = (result[key]["peak_bytes"] for key in ("original", "rewritten"))
    if after > before + SLACK_BYTES:
        return WRONG, f"needs more memory than before: {before} -> {after} bytes"
    return (REDUCED if after < before else WRITTEN), f"{before} -> {after}"


def _runtime_refusal(test: BackendTest) -> str | None:
    """Run the original as its test does; its outputs are stored. Why it cannot be, else None."""
    ended = forked(_runner(test, test.model, "expected.pickle"), test.folder, seconds=RUN_SECONDS)
    if ended.code == 0:
        return None
    return "no end" if ended.hang else ended.last_line or f"ended with {ended.code}"


def _runner(test: BackendTest, model: Path, target: str) -> Callable[[], int]:
    def run() -> int:
        import sys

        try:
            made = direct.run(model, feed_of(test))
        except direct.REFUSALS as error:
            sys.stderr.write(f"{type(error).__name__}: {' '.join(str(error).split())[:300]}\n")
            return 1
        Path(target).write_bytes(pickle.dumps(made))
        return 0

    return run


def feed_of(test: BackendTest) -> dict[str, Any]:
    """The test's inputs less those that have a value in the model."""
    graph = onnx.load(test.model).graph
    stored = {tensor.name for tensor in graph.initializer}
    return {name: value for name, value in test.feed().items() if name not in stored}


def _given_inputs(test: BackendTest) -> list[str]:
    """Options that give the product the test's inputs; none if they are not tensors."""
    feed = feed_of(test)
    if not all(isinstance(value, (np.ndarray, np.generic)) for value in feed.values()):
        return []
    np.savez(test.folder / "inputs.npz", **{name: _stored(v) for name, v in feed.items()})
    return ["--inputs", "inputs.npz"]


def _stored(value: Any) -> Any:
    """As the README says: text as text, types that numpy does not know as unsigned integers."""
    array = np.asarray(value)
    if array.dtype.kind in "OSU":
        return array.astype(np.str_)
    foreign = array.dtype.isbuiltin == 2 or array.dtype.kind == "V"
    return array.view(f"u{array.dtype.itemsize}") if foreign else array


def _compared(test: BackendTest, rewritten: Path) -> list[str]:
    """What is wrong with the file that was written."""

    def compare() -> int:
        expected = pickle.loads((test.folder / "expected.pickle").read_bytes())
        got = pickle.loads((test.folder / "got.pickle").read_bytes())
        names = direct.differences(expected, got)
        before, after = direct.executed_nodes(rewritten, test.folder / "executed.onnx")
        print(f"outputs differ: {names}" if names else "", end="")
        if before != after:
            print(f"ONNX Runtime executes other nodes than the file has: {before} {after}", end="")
        return 0

    ended = forked(_runner(test, rewritten, "got.pickle"), test.folder, seconds=RUN_SECONDS)
    if ended.code != 0:
        return [f"the file that was written does not run: {ended.last_line}"]
    ended = forked(compare, test.folder, seconds=RUN_SECONDS)
    if ended.code != 0:
        return [f"the outputs cannot be compared: {ended.last_line}"]
    return [ended.stdout] if ended.stdout else []


def run_suite(
    jobs: int, *, every: int = 1, only: str = "", report: Callable[[Verdict], None] = print
) -> list[Verdict]:
    """The verdict of each model, or of every so many-th, or of those whose name contains `only`."""
    with tempfile.TemporaryDirectory(prefix="robustness-") as root:
        tests = store(Path(root), every=every, only=only)
        found = []
        for verdict in in_parallel(judge, tests, jobs):
            report(verdict)
            found.append(verdict)
    return sorted(found, key=lambda one: (KINDS.index(one.kind), one.name))


def lines(verdicts: Sequence[Verdict]) -> Iterator[Line]:
    """The lines of the table: one an outcome."""
    for outcome, words in OUTCOMES.items():
        these = [one for one in verdicts if one.outcome == outcome]
        wrong = tuple(f"{one.name}: {one.detail}" for one in these) if outcome == WRONG else ()
        seconds = max((one.seconds for one in these), default=0.0)
        yield Line("backend suite", words, len(these), f"at most {seconds:.1f} s each", wrong)


def reasons(verdicts: Sequence[Verdict]) -> list[tuple[str, int, int, str]]:
    """Limit, exit code, how many models, examples: of what is refused though it runs."""
    refused = [one for one in verdicts if one.outcome == REFUSED]
    counts = Counter((one.limit, one.code or 0) for one in refused)
    return [
        (limit, code, count, examples([one.name for one in refused if one.limit == limit]))
        for (limit, code), count in counts.most_common()
    ]
