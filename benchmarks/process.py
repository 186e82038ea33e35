"""What the whole process holds, nothing set: originals against the files that are made of them.

    python -m benchmarks.process [--shared FOLDER] [--packages FOLDER] [--models NAME,NAME]
                                 [--portable] [--processes 5] [--node FOLDER]
                                 [--chromium PROGRAM] [--versions FOLDER] [--markdown FILE]

Each file is made by `rewrite --session stock --mem-of process --mem min` with its weights outside,
packed for this processor or, with `--portable`, for any; `--max-slowdown` is a little less than
what the line allows (`MARGIN`).
Then original and file are each opened in five processes of their own, in turns, and run five times
by a program that knows nothing of onnxremat (`instruments/process_client.py`): with nothing set in
the environment, and with MALLOC_MMAP_THRESHOLD_=65536, which gives back at once what is freed.
Compared is the better of the original's two medians with the better of the file's. Time is that of
the processor for one thread, and on the wall for two, runs of both taken in turns in five
processes, of whose ratios the medians count, the larger one. A file that is the original, but for
what is recorded in it, as `rewrite` leaves it where nothing is better, is 1: two processes with one
file are up to 30% apart. A line FAILED if memory or time is not as asked, bits are none of those
that the original has under default options (some have others in another process), or loading takes
longer, in the median, and more than 50 ms; so is a group whose means are not, and so ends the
command.

With `--node`, a folder in which `npm install --ignore-scripts onnxruntime-node onnxruntime-web` was
run, five models are opened in node, too: in the C++ library, and portable ones in WebAssembly,
whose linear memory is compared, as it is asked for: how much more of it JavaScript gives, up to a
fifth, is chance, so that in copies of its code it gives no more. With `--chromium`, and
playwright-core in the same folder, portable ones are opened on a page as well. There bits have to
be those of the original in the same client, and memory no more. With `--versions`, a folder in
which `pip install --no-deps --target VERSION onnxruntime==VERSION.*` was run for some versions, the
same models are opened in each of them, with the bits of the original there; memory is told.

`--shared` and `--packages` are as for `benchmarks.limits`.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx

from benchmarks.process_lines import GROUPS, Line, lines
from benchmarks.tables import end, made_with, markdown
from onnxremat.commands.rewrite import rewrite
from onnxremat.core.errors import OnnxrematError
from onnxremat.importer import load
from onnxremat.options import Options
from onnxremat.ort.measuring.measure import measure_times
from onnxremat.ort.outside import Weights, data_beside
from onnxremat.ort.recipe import STOCK
from onnxremat.subject import feed_for
from onnxremat.targets.stock_target import how

INSTRUMENTS = Path(__file__).with_name("instruments")
CLIENT = INSTRUMENTS / "process_client.py"
SET = {"MALLOC_MMAP_THRESHOLD_": "65536"}
RUNS = 5
PAIRS = 9
"""Runs of both in turns, in each process."""
TIMED_SECONDS = 60.0
"""At most, in all processes of a number of threads: of runs of seconds there are fewer."""
MARGIN, LEAST_ASKED = 0.03, 0.02
"""So much less than a line allows is asked of its file, for that is asked of one thread in one
process: in two processes times of one file are up to 2% apart, and with two threads tiles cost up
to 2% more. Asked is `LEAST_ASKED` at least; in groups, where means count, and of portable files,
of whose times nothing is asked, all that is allowed."""
PORTABLE_SHARE = 0.6
"""Of the factor that is asked of files for this processor, where portable ones have one."""


@dataclass(frozen=True)
class Process:
    """What processes with a model took, in medians: bytes in all and after loading, with nothing
    set and with the threshold; bytes of the mapped file; seconds to load; bits of the outputs."""

    unset_bytes: float
    set_bytes: float
    loaded_bytes: float
    mapped_bytes: float
    load_seconds: float
    bits: frozenset[str]

    @property
    def better_bytes(self) -> float:
        """The better of the two, one page at least."""
        return max(4096.0, min(self.unset_bytes, self.set_bytes))


def processes(
    models: Sequence[Path], inputs: Path, count: int, more: Mapping[str, str] | None = None
) -> list[Process]:
    """Open and run models in `count` processes each for each environment, with `more` in both: in
    turns, since the machine is not as fast in one minute as in the next."""
    usual = {k: v for k, v in os.environ.items() if not k.startswith("MALLOC_")} | dict(more or {})
    answers: list[list[list[Any]]] = [[[], []] for _ in models]
    for number, extra in enumerate(({}, SET)):
        for _ in range(count):
            for model, answer in zip(models, answers, strict=True):
                command = [sys.executable, str(CLIENT), str(model), str(inputs), str(RUNS), "1"]
                done = subprocess.run(
                    command, env=usual | extra, check=True, capture_output=True, text=True
                )
                answer[number].append(json.loads(done.stdout))
    return [_medians(*answer) for answer in answers]


def _medians(unset: Sequence[Any], threshold: Sequence[Any]) -> Process:
    """What processes answered, with nothing set and with the threshold."""

    def median(key: str, answers: Sequence[Any] = unset) -> float:
        return statistics.median(one[key] for one in answers)

    return Process(
        median("bytes"),
        median("bytes", threshold),
        median("loaded_bytes"),
        median("mapped_bytes"),
        median("load_seconds"),
        frozenset(one["bits"] for one in (*unset, *threshold)),
    )


def time_ratios(
    original: Path, made: Path, inputs: Mapping[str, Any], count: int
) -> tuple[float, float]:
    """Time of a run of the file by that of the original, the median of so many processes: of the
    processor with one thread, on the wall with two."""
    one, two = (
        statistics.median(
            measure_times(
                [original, made],
                inputs,
                [STOCK.with_threads(threads)] * 2,
                PAIRS,
                seconds=TIMED_SECONDS / count,
            ).ratios[1]
            for _ in range(count)
        )
        for threads in (1, 2)
    )
    return one, two


def unchanged(original: Path, made: Path) -> bool:
    """Whether a file is its original, but for what is recorded in it, with no weights beside it."""
    if data_beside(made).exists():
        return False
    models = [onnx.load(path, load_external_data=False) for path in (original, made)]
    for model in models:
        del model.metadata_props[:]
    first, second = (model.SerializeToString(deterministic=True) for model in models)
    return first == second


HEADER = (
    "model", "original MB", "set MB", "file MB", "set MB", "mapped MB", "factor", "asked",
    "with nothing set", "CPU, 1 thread", "wall, 2", "allowed", "loading", "how", "minutes",
    "verdict",
)  # fmt: skip


@dataclass(frozen=True)
class Row:
    """A line of the table, those of clients, and what counts for its group."""

    cells: list[str]
    factor: float
    ratio: float
    clients: list[list[str]]


NODE_TYPES = {"float32", "float64", "int32", "int64", "bool", "uint8", "int8"}


@dataclass(frozen=True)
class ScriptClient:
    """A program of node that opens models: its name, its file, and what it is told behind model,
    inputs and number of runs."""

    name: str
    script: str
    arguments: tuple[str, ...]

    def answer(self, model: Path, inputs: Path) -> dict[str, Any]:
        """What it says of a model. Raises CalledProcessError if it fails."""
        command = ["node", "--expose-gc", str(INSTRUMENTS / self.script)]
        command += [str(model), str(inputs), str(RUNS), *self.arguments]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        found: dict[str, Any] = json.loads(said)
        return found


def in_library(modules: Path) -> ScriptClient:
    """The C++ library in node."""
    return ScriptClient("node", "process_client.cjs", ("onnxruntime-node", str(modules)))


def in_wasm(modules: Path) -> ScriptClient:
    """WebAssembly in node."""
    return ScriptClient("wasm in node", "process_client.cjs", ("onnxruntime-web", str(modules)))


def on_page(modules: Path, chromium: Path) -> ScriptClient:
    """WebAssembly on a page."""
    return ScriptClient("wasm on a page", "page_client.cjs", (str(chromium), str(modules)))


def store_inputs(folder: Path, inputs: Mapping[str, Any]) -> None:
    """Inputs as these clients read them."""
    folder.mkdir(exist_ok=True)
    listed = []
    for number, (name, value) in enumerate(inputs.items()):
        array = np.ascontiguousarray(value)
        assert array.dtype.name in NODE_TYPES, array.dtype
        array.tofile(folder / f"{number}.bin")
        listed.append({
            "name": name, "type": array.dtype.name, "dims": list(array.shape),
            "file": f"{number}.bin",
        })  # fmt: skip
    (folder / "inputs.json").write_text(json.dumps(listed), encoding="utf-8")


def in_client(
    line: Line, models: tuple[Path, Path], inputs: Mapping[str, Any], client: ScriptClient
) -> list[str]:
    """A line of the table: original and file in a client."""
    folder = models[1].parent / "inputs"
    store_inputs(folder, inputs)
    before = [client.answer(models[0], folder) for _ in range(3)]
    after = before
    if not unchanged(*models):
        after = [client.answer(models[1], folder) for _ in range(3)]
    sizes = [statistics.median(one["bytes"] for one in answers) for answers in (before, after)]
    seconds = [min(one["cpu_seconds"] for one in answers) for answers in (before, after)]
    wrong = []
    if len({one["bits"] for one in before + after}) > 1:
        wrong.append("bits")
    if sizes[1] > sizes[0]:
        wrong.append("more memory")
    return [
        f"{line.name}, {client.name}", f"{sizes[0] / 1e6:.1f}", "", f"{sizes[1] / 1e6:.1f}", "", "",
        f"{sizes[0] / max(sizes[1], 4096):.2f}", "1", "", f"{seconds[1] / seconds[0]:.3f}", "", "",
        "", "", "", ", ".join(wrong) + " FAILED" if wrong else "holds",
    ]  # fmt: skip


def in_version(line: Line, models: Sequence[Path], inputs: Path, version: Path) -> list[str]:
    """A line of the table: original and file in another version of the runtime."""
    name = f"{line.name}, onnxruntime {version.name}"
    try:
        before, after = processes(models, inputs, 1, {"PYTHONPATH": str(version)})
    except subprocess.CalledProcessError as error:
        last = (error.stderr.strip().splitlines() or ["no message"])[-1]
        return [name, *[""] * (len(HEADER) - 2), f"{last} FAILED"]
    same = len(before.bits | after.bits) == 1
    sizes = (before.unset_bytes, before.set_bytes, after.unset_bytes, after.set_bytes)
    return [
        name, *(f"{size / 1e6:.1f}" for size in sizes), "",
        f"{before.better_bytes / after.better_bytes:.2f}", *[""] * 8,
        "holds" if same else "bits FAILED",
    ]  # fmt: skip


@dataclass(frozen=True)
class Clients:
    """Where files are opened beside this Python: the folder of node's packages, a browser, and
    the folders with other versions of the runtime."""

    modules: Path | None
    chromium: Path | None
    versions: tuple[Path, ...]

    def rows(
        self,
        line: Line,
        models: tuple[Path, Path],
        inputs: Mapping[str, Any],
        stored: Path,
        *,
        portable: bool,
    ) -> list[list[str]]:
        """Lines of the table; `stored` has the inputs."""
        if not line.clients:
            return []
        opened = []
        if self.modules is not None:
            opened.append(in_library(self.modules))
            if portable:
                opened.append(in_wasm(self.modules))
                if self.chromium is not None:
                    opened.append(on_page(self.modules, self.chromium))
        return [
            *(in_client(line, models, inputs, one) for one in opened),
            *(in_version(line, models, stored, version) for version in self.versions),
        ]  # fmt: skip


def row(
    line: Line, path: Path, weights: Weights, count: int, scratch: Path, clients: Clients
) -> Row:
    """Make the file, measure both, and say what does not hold."""
    began = time.perf_counter()
    portable = weights is Weights.EXTERNAL
    margin = 0 if line.group or portable else MARGIN
    options = Options(
        session="stock", portable=portable, mem_of="process",
        max_slowdown=max(LEAST_ASKED, line.slowdown - 1 - margin), threads=1, dims=line.dims,
        verify=False,
    )  # fmt: skip
    output = scratch / "made.onnx"
    result = rewrite(path, "min", options, output=output)
    feed = feed_for(load(path), options)
    inputs = scratch / "inputs.npz"
    np.savez(inputs, **feed.inputs)
    if same := unchanged(path, output):
        print(*(f"{line.name}: {attempt}" for attempt in result.attempts), sep="\n", flush=True)
        (before,) = processes([path], inputs, count)
        after, ratios = before, (1.0, 1.0)
    else:
        before, after = processes([path, output], inputs, count)
        ratios = time_ratios(path, output, feed.inputs, count)
    factor = before.better_bytes / after.better_bytes
    unset = before.unset_bytes / max(4096.0, after.unset_bytes)
    wrong = []
    asked = line.factor
    if portable:
        asked = PORTABLE_SHARE * line.factor if line.portable and line.factor else 1.0
        wanted_unset = 1.6 if line.unset else 0.0
    else:
        wanted_unset = line.unset
    if line.group:
        asked = 1.0 if portable else GROUPS[line.group].least
    if factor < asked:
        wrong.append(f"memory {factor:.2f} times less")
    if unset < wanted_unset:
        wrong.append(f"{unset:.1f} times less with nothing set")
    if not line.group and not portable and max(ratios) > line.slowdown:
        wrong.append("time")
    if not after.bits <= before.bits:
        wrong.append("bits")
    if after.load_seconds > max(before.load_seconds, 0.05):
        wrong.append("loading takes longer")
    cells = [
        line.name,
        *(
            f"{size / 1e6:.1f}"
            for size in (
                before.unset_bytes, before.set_bytes, after.unset_bytes, after.set_bytes,
                after.mapped_bytes,
            )
        ),
        f"{factor:.2f}", f"{asked:g}", f"{unset:.2f}", *(f"{ratio:.3f}" for ratio in ratios),
        f"{line.slowdown:.2f}", f"{before.load_seconds:.2f} to {after.load_seconds:.2f} s",
        "unchanged" if same else how(result), f"{(time.perf_counter() - began) / 60:.1f}",
        ", ".join(wrong) + " FAILED" if wrong else "holds",
    ]  # fmt: skip
    more = clients.rows(line, (path, output), feed.inputs, inputs, portable=portable)
    output.unlink()
    data_beside(output).unlink(missing_ok=True)
    return Row(cells, factor, max(ratios), more)


def group_rows(rows: Mapping[str, list[Row]], *, portable: bool) -> Iterator[list[str]]:
    """The geometric means of each group."""
    for name, found in rows.items():
        wanted = GROUPS[name]
        factor, ratio = (
            prod(values) ** (1 / len(values))
            for values in ([one.factor for one in found], [one.ratio for one in found])
        )
        asked = wanted.factor
        if portable:
            asked = PORTABLE_SHARE * asked if name == "training" else 1.0
        wrong = [f"memory {factor:.2f} times less"] if factor < asked else []
        if ratio > wanted.slowdown and not portable:
            wrong.append("time")
        cells = [f"all {len(found)} of {name}, mean", *[""] * 5, f"{factor:.2f}", f"{asked:g}", ""]
        cells += [f"{ratio:.3f}", "", f"{wanted.slowdown:.2f}", "", "", ""]
        yield [*cells, ", ".join(wrong) + " FAILED" if wrong else "holds"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--models", help="only these, by what their names begin with")
    parser.add_argument("--portable", action="store_true")
    parser.add_argument("--node", type=Path, help="a folder with node_modules")
    parser.add_argument("--chromium", type=Path, help="the browser's program")
    parser.add_argument("--versions", type=Path, help="a folder with versions of onnxruntime")
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--markdown", type=Path)
    arguments = parser.parse_args()
    only = tuple(arguments.models.split(",")) if arguments.models else ("",)
    weights = Weights.EXTERNAL if arguments.portable else Weights.PACKED
    versions = [] if arguments.versions is None else sorted(arguments.versions.iterdir())
    clients = Clients(arguments.node, arguments.chromium, tuple(versions))
    began, table, left_out = time.perf_counter(), list[list[str]](), list[str]()
    load_before = os.getloadavg()[0]
    groups: dict[str, list[Row]] = {}

    def show(cells: list[str]) -> None:
        table.append(cells)
        print("  ".join(cell or "-" for cell in cells), flush=True)

    print("  ".join(HEADER), flush=True)
    with TemporaryDirectory() as scratch:
        for line in lines(arguments.shared, arguments.packages):
            if not line.name.startswith(only):
                continue
            path = line.make(Path(scratch))
            if path is None:
                left_out.append(f"{line.name}: no file")
                continue
            try:
                found = row(line, path, weights, arguments.processes, Path(scratch), clients)
            except OnnxrematError as error:
                show([line.name, *[""] * (len(HEADER) - 2), f"{error} FAILED"])
                continue
            for cells in (found.cells, *found.clients):
                show(cells)
            if line.group:
                groups.setdefault(line.group, []).append(found)
        for cells in group_rows(groups, portable=arguments.portable):
            show(cells)
    for text in left_out:
        print(f"left out: {text}", flush=True)
    text = (
        f"{made_with()}, {os.cpu_count()} cores, weights {weights.value}, medians of "
        f"{arguments.processes} processes, load before it started {load_before:.1f}; "
        f"{(time.perf_counter() - began) / 60:.0f} minutes in all. Memory is anonymous, from "
        "before the session is opened to after five runs, without the mapped file, inputs and "
        "outputs.\n\n" + markdown(HEADER, table) + "\n"
    )
    end(table, text, arguments.markdown)


if __name__ == "__main__":
    main()
