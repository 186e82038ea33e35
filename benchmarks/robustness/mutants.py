"""Damaged model files through the commands of the product: an answer, in time, and never a crash.

Mutant number i of a seed is always the same: the model that is damaged, how, and the command. Where
a rewrite ends well its outputs are compared in ONNX Runtime without the product.
"""

import json
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError

from benchmarks.robustness import direct
from benchmarks.robustness.judging import (
    MOST_PEAK_BYTES,
    Line,
    faults,
    in_parallel,
    run_product,
    temporary_left,
)
from benchmarks.robustness.mutations import RECORD, mutate
from benchmarks.robustness.processes import Ended, environment_of_users, forked, spawned
from benchmarks.robustness.seeds import Seed, seeds, written_seed

MUTANT_SECONDS = 60.0
"""So long may a command take on a damaged file of a small model."""

COMPARE_SECONDS = 20.0

_ENDS = ("--run-limit", "10", "--run-memory", "1.5GB")
"""A loop that a mutant made endless is ended after so many seconds, long before MUTANT_SECONDS, or
where it holds so much, below MOST_PEAK_BYTES."""
_QUICK = ("--time-limit", "0.3", *_ENDS)
_REWRITE = ("rewrite", "--session=recipe")
COMMANDS: tuple[tuple[float, tuple[str, ...]], ...] = (
    (0.34, (*_REWRITE, "--mem", "min", *_QUICK, "--no-verify")),
    (0.08, (*_REWRITE, "--mem", "60%", *_QUICK)),
    (0.04, (*_REWRITE, "--mem", "min", *_QUICK, "--no-tiling", "--optimize", "extended")),
    (0.04, ("rewrite", "--mem", "min", *_QUICK, "--runtime", "generic", "--no-verify")),
    (0.04, (*_REWRITE, "--mem", "min", *_QUICK, "--no-verify", "--allow-rounding")),
    (0.26, ("audit", *_ENDS)),
    (0.10, ("verify", *_ENDS)),
    (0.10, ("open",)),
)
"""Shares of the commands, and their options."""


_SIZED_TYPES = frozenset(
    kind for kind in onnx.TensorProto.DataType.values() if kind not in (0, onnx.TensorProto.STRING)
)


@dataclass(frozen=True)
class Mutant:
    """What was tried, and how it ended; `wrong` is empty if that was right."""

    number: int
    seed: str
    damage: str
    command: str
    code: int | None
    seconds: float
    peak_bytes: int
    wrong: tuple[str, ...]
    message: str


@dataclass(frozen=True)
class Plan:
    """Everything that makes mutants: the seeds, a number that all random choices depend on, the
    folder, and from which number on mutants run as processes of their own."""

    seeds: tuple[Seed, ...]
    seed: int
    root: Path
    own_process_from: int


def try_mutant(plan: Plan, number: int) -> Mutant:
    """Make a mutant, run its command on it and judge."""
    rng = np.random.default_rng([plan.seed, number])
    seed = plan.seeds[int(rng.integers(len(plan.seeds)))]
    command = list(COMMANDS[int(rng.choice(len(COMMANDS), p=[share for share, _ in COMMANDS]))][1])
    dims = [word for dim in seed.dims for word in ("--dim", dim)] if rng.random() < 0.8 else []
    model, damage = mutate(seed.model, rng)
    folder = Path(tempfile.mkdtemp(dir=plan.root, prefix=f"{number}-"))
    seed.write(folder, model)
    ended, arguments = _run(plan, number, seed, command, dims, folder)
    wrong = _judge(ended, arguments, model, folder)
    if not wrong:
        shutil.rmtree(folder)
    return Mutant(
        number, seed.name, damage, " ".join(arguments), ended.code, ended.seconds,
        ended.peak_bytes, tuple(wrong), ended.last_line,
    )  # fmt: skip


def _run(
    plan: Plan, number: int, seed: Seed, command: list[str], dims: list[str], folder: Path
) -> tuple[Ended, list[str]]:
    if command[0] == "open":
        (folder / "tmp").mkdir()
        run = partial(_open, folder / "model.onnx")
        return forked(run, folder, seconds=MUTANT_SECONDS, temporary=folder / "tmp"), command
    if command[0] == "verify":
        original = seed.original or "model.onnx"
        arguments = ["verify", original, "model.onnx", *command[1:], *dims]
    else:
        arguments = [command[0], "model.onnx", *command[1:], *dims]
        if command[0] == "rewrite":
            arguments += ["-o", "out.onnx"]
    if number < plan.own_process_from:
        return run_product(arguments, folder, seconds=MUTANT_SECONDS), arguments
    (folder / "tmp").mkdir()
    environment = environment_of_users(TMPDIR=str(folder / "tmp"))
    own = [sys.executable, "-m", "onnxremat", *arguments]
    ended = spawned(own, folder, seconds=MUTANT_SECONDS, environment=environment)
    return ended, arguments


def _open(path: Path) -> int:
    """`open_session` and its errors as the command line has them. What the runtime logs beside
    them in the caller's process is the caller's to set."""
    import onnxruntime

    import onnxremat

    onnxruntime.set_default_logger_severity(4)
    try:
        onnxremat.open_session(path)
    except onnxremat.OnnxrematError as error:
        sys.stderr.write(f"onnxremat: {error}\n")
        return error.exit_code
    return 0


def _judge(ended: Ended, arguments: Sequence[str], model: bytes, folder: Path) -> list[str]:
    wrong = faults(ended, most_bytes=MOST_PEAK_BYTES + _stated_bytes(model))
    wrong += [f"left in TMPDIR: {name}" for name in temporary_left(folder)]
    if (folder / "model.onnx").read_bytes() != model:
        wrong.append("the model was changed")
    target = folder / "out.onnx"
    if arguments[0] == "rewrite" and (ended.code == 0) != target.is_file():
        wrong.append(f"exit {ended.code}, and the file is {'' if ended.code else 'not '}there")
    elif arguments[0] == "rewrite" and ended.code == 0 and "--allow-rounding" not in arguments:
        wrong.extend(_differences(folder, arguments))
    return wrong


def _stated_bytes(model: bytes) -> int:
    """What the values of the inputs take, by the sizes that the file itself states. A job in a fork
    has those of the process that it came from, beside its own."""
    try:
        inputs = onnx.load_model_from_string(model).graph.input
    except DecodeError:
        return 0
    total = 0
    for value in inputs:
        tensor = value.type.tensor_type
        elements = prod(max(dim.dim_value, 1) for dim in tensor.shape.dim)
        if tensor.elem_type in _SIZED_TYPES:
            total += elements * onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize
    return total


def _differences(folder: Path, arguments: Sequence[str]) -> list[str]:
    """What is wrong with a file that was written, by runs of original and file on random values."""
    if "--optimize" in arguments or "generic" in arguments:
        return []  # other kernels, or an order that only another runtime keeps
    ended = forked(partial(_compare, folder), folder, seconds=COMPARE_SECONDS)
    if ended.hang or ended.code == 0:
        return []
    return [ended.last_line] if ended.code == 3 else [f"comparison: {ended.last_line}"]


def _compare(folder: Path) -> int:
    """Exit code 3 and a line if the outputs differ or the file does not run."""
    original, written = folder / "model.onnx", folder / "out.onnx"
    try:
        shapes = _planned_shapes(written)
        asked = [(i.name, i.type, shapes[i.name]) for i in direct.session(original).get_inputs()]
        feed = direct.random_feed(asked, seed=1)
        expected = direct.run(original, feed)
        again = direct.run(original, feed)
    except direct.REFUSALS:
        return 0  # the original does not run on these values: nothing to compare with
    if direct.differences(expected, again):
        return 0
    try:
        names = direct.differences(expected, direct.run(written, feed))
    except direct.REFUSALS as error:
        sys.stderr.write(f"the file that was written does not run: {error}\n")
        return 3
    if names:
        sys.stderr.write(f"WRONG: outputs differ: {names}\n")
    return 3 if names else 0


def _planned_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    for entry in onnx.load(path, load_external_data=False).metadata_props:
        if entry.key == RECORD:
            return dict(json.loads(entry.value)["input_shapes"])
    raise ValueError("no record")


def all_seeds(root: Path) -> tuple[Seed, ...]:
    """The seeds, and files that the product writes of some of them."""
    plain = seeds()
    made = []
    for seed in plain:
        if seed.name in ("attention", "convolutions", "loops", "chain"):
            folder = root / f"seed-{seed.name}"
            folder.mkdir()
            seed.write(folder)
            arguments = [*_REWRITE, "model.onnx", "--mem", "min", *_QUICK, "-o", "out.onnx"]
            ended = run_product(arguments, folder, seconds=MUTANT_SECONDS)
            if ended.code != 0:
                raise RuntimeError(f"{seed.name} is not rewritten: {ended.stderr}")
            made.append(written_seed(seed, (folder / "out.onnx").read_bytes()))
    return (*plain, *made)


def run_mutants(
    count: int,
    own_processes: int,
    jobs: int,
    *,
    seed: int = 0,
    keep: Path | None = None,
    report: Callable[[Mutant], None] = print,
) -> list[Mutant]:
    """Try so many mutants, the last `own_processes` of them as processes of their own. Those with
    faults are kept in `keep`."""
    with tempfile.TemporaryDirectory(prefix="robustness-") as name:
        root = Path(name)
        plan = Plan(all_seeds(root), seed, root, count - own_processes)
        found = []
        for mutant in in_parallel(partial(try_mutant, plan), range(count), jobs, chunk=4):
            report(mutant)
            found.append(mutant)
            if mutant.wrong and keep is not None:
                keep_mutant(root, mutant, keep)
    return sorted(found, key=lambda one: one.number)


def keep_mutant(root: Path, mutant: Mutant, keep: Path) -> None:
    """Copy what shows a fault to a folder."""
    (source,) = root.glob(f"{mutant.number}-*")
    shutil.copytree(source, keep / f"mutant{mutant.number}", dirs_exist_ok=True)
    words = [mutant.command, mutant.seed, mutant.damage, *mutant.wrong]
    (keep / f"mutant{mutant.number}" / "what.txt").write_text("\n".join(words) + "\n")


def lines(mutants: Sequence[Mutant], own_processes: int) -> Iterator[Line]:
    """The lines of the table: mutants by exit code, by way of starting, and the extremes."""
    codes = Counter(mutant.code for mutant in mutants)
    words = ", ".join(f"{code}: {codes[code]}" for code in sorted(codes, key=str))
    first_own = len(mutants) - own_processes
    for what, these in (
        ("in forked servers", mutants[:first_own]),
        ("as processes of their own", mutants[first_own:]),
    ):
        wrong = tuple(
            f"mutant {m.number} ({m.seed}): {'; '.join(m.wrong)}" for m in these if m.wrong
        )
        slowest = max((m.seconds for m in these), default=0.0)
        largest = max((m.peak_bytes for m in these), default=0) / 2**20
        found = f"at most {slowest:.1f} s and {largest:.0f} MiB"
        yield Line("mutants", what, len(these), found, wrong)
    compared = sum(m.code == 0 and m.command.startswith("rewrite") for m in mutants)
    yield Line("mutants", "exit codes", len(mutants), words)
    yield Line("mutants", "rewritten and compared", compared, "")
