"""Static offsets: published hard instances under their capacity, real models, and random ones.

    python -m benchmarks.offsets [--shared FOLDER] [--models FOLDER] [--packages FOLDER]
                                 [--seconds 60] [--markdown FILE]

`--shared` has `offsets/NAME.CAPACITY.csv` (id, lower, upper, size), the instances of MiniMalloc;
without it only the random ones run. Published instances run twice: until the arena is within the
capacity, and for the smallest arena. Random ones, the kinds of `KINDS`, run for the smallest.
`--models` has `training/*.onnx` and `inference.json`, `--packages` the inference files as
NAME.onnx. As `--runtime generic` does it, each model's own order, and a plan for 75% of its peak
where 5 s find one, are placed and must lie within 2% of the live peak; so is the smallest plan
found in 5 s, for comparison. First fit is by size; supermalloc is that of the package omnimalloc,
if it is installed, on one thread, as ours. A published instance that does not get under its
capacity, or a model that is more than 2% above its live peak, fails the command.
"""

import argparse
import csv
import importlib.util
import itertools
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from onnxremat.core.memory import profile
from onnxremat.core.problem import Limits, Problem
from onnxremat.core.schedule import given_order, with_eager_ops
from onnxremat.offsets import Block, check_placement, live_peak_bytes, place
from onnxremat.options import Options
from onnxremat.planners import PLANNERS
from onnxremat.subject import prepare
from onnxremat.targets.static_plan import static_blocks
from onnxremat.targets.static_target import StaticTarget

SUPERMALLOC_SECONDS = 10.0
PLANNING_SECONDS = 5.0
SHARE = 0.75
MOST_ABOVE = 0.02
HEADER = (
    "instance",
    "blocks",
    "live peak",
    "capacity",
    "first fit",
    "supermalloc",
    "ours",
    "above live peak",
    "seconds",
    "method",
    "verdict",
)


@dataclass(frozen=True)
class Instance:
    """Blocks to place; `capacity_bytes` None asks for the smallest arena. `most_above` is the share
    by which it may be above the live peak, None for any."""

    name: str
    blocks: tuple[Block, ...]
    capacity_bytes: int | None = None
    most_above: float | None = None


def published(shared: Path) -> Iterator[Instance]:
    """Every instance file, once with its capacity and once without."""
    for path in sorted((shared / "offsets").glob("*.csv")):
        with path.open(newline="") as file:
            blocks = tuple(
                Block(int(row["size"]), int(row["lower"]), int(row["upper"]))
                for row in csv.DictReader(file)
            )
        name, capacity, _ = path.name.split(".")
        yield Instance(name, blocks, int(capacity))
        yield Instance(name, blocks)


def training(layers: int, rng: random.Random) -> tuple[Block, ...]:
    """A forward and a backward pass: saved activations, skips, short-lived values, gradients.

    Sizes halve three times over the depth, with factors of two and some odd sizes between.
    """
    steps = 2 * layers
    blocks = []
    for i in range(layers):
        width = 2 ** (20 - 4 * i // layers)

        def nbytes(width: int = width) -> int:
            odd = rng.uniform(0.8, 1.2) if rng.random() < 0.3 else 1.0
            return int(width * rng.choice((0.25, 0.5, 1, 2)) * odd)

        for _ in range(rng.randint(1, 3)):
            blocks.append(Block(nbytes(), i, steps - i))
        if rng.random() < 0.3:
            blocks.append(Block(nbytes(), i, min(i + rng.randint(2, 5), steps)))
        for _ in range(rng.randint(0, 2)):
            blocks.append(Block(nbytes(), i, i + 1))
        for _ in range(rng.randint(1, 2)):
            start = steps - 1 - i
            blocks.append(Block(nbytes(), start, min(start + rng.randint(1, 3), steps)))
    return tuple(blocks)


def recomputing(layers: int, rng: random.Random) -> tuple[Block, ...]:
    """The same with recomputation: most saved activations live twice, briefly, instead of once."""
    steps = 2 * layers
    blocks = []
    for block in training(layers, rng):
        if block.end - block.start > 4 and rng.random() < 0.7:
            again = max(block.end - rng.randint(1, 4), block.start + 3)
            blocks.append(Block(block.nbytes, block.start, block.start + rng.randint(1, 3)))
            blocks.append(Block(block.nbytes, again, min(block.end, steps)))
        else:
            blocks.append(block)
    return tuple(blocks)


def scattered(count: int, rng: random.Random) -> tuple[Block, ...]:
    """Starts anywhere, lifetimes from one step to half of all, log-uniform, sizes of all scales."""
    blocks = []
    for _ in range(count):
        length = int((count / 2) ** rng.random())
        start = rng.randrange(count)
        nbytes = 64 * rng.randint(1, 15) * 2 ** rng.randint(0, 5)
        blocks.append(Block(nbytes, start, min(start + length, count + 1)))
    return tuple(blocks)


def packed(count: int, rng: random.Random) -> tuple[Block, ...]:
    """A full arena of 1 MiB cut into blocks by straight cuts: the live peak can be reached."""
    pieces = [(0, 4 * count, 2**14)]
    while len(pieces) < count:
        areas = [(end - start) * size for start, end, size in pieces]
        start, end, size = pieces.pop(rng.choices(range(len(pieces)), areas)[0])
        if rng.random() < 0.5 and end - start > 1:
            cut = rng.randint(start + 1, end - 1)
            pieces += [(start, cut, size), (cut, end, size)]
        elif size > 1:
            cut = rng.randint(1, size - 1)
            pieces += [(start, end, cut), (start, end, size - cut)]
        else:
            pieces.append((start, end, size))
    return tuple(Block(64 * size, start, end) for start, end, size in pieces)


KINDS: dict[str, tuple[Callable[[int, random.Random], tuple[Block, ...]], tuple[int, ...]]] = {
    "training": (training, (25, 100, 400, 1000)),
    "recomputing": (recomputing, (25, 100, 400)),
    "scattered": (scattered, (100, 400, 1500, 5000)),
    "packed": (packed, (100, 300, 1000)),
}


def generated() -> Iterator[Instance]:
    for kind, (make, sizes) in KINDS.items():
        for size in sizes:
            yield Instance(f"{kind} {size}", make(size, random.Random(size)))


def of_models(models: Path, packages: Path | None, only: str | None) -> Iterator[Instance]:
    """Every model of the acceptance list (or those named), in its own order and by two plans."""
    wanted = None if only is None else only.split(",")
    for path in sorted((models / "training").glob("*.onnx")):
        if not path.stem.endswith("_ortgrad") and (wanted is None or path.stem in wanted):
            yield from of_model(path, {})
    if packages is None:
        return
    for entry in json.loads((models / "inference.json").read_text(encoding="utf-8")):
        path = packages / f"{entry['name']}.onnx"
        if wanted is not None and entry["name"] not in wanted:
            continue
        if path.is_file() and entry["name"] != "silero_vad":  # five nodes, all in branches
            dims = {
                f"{name}:{axis}": size
                for name, shape in entry["input_shapes"].items()
                for axis, size in enumerate(shape)
            }
            yield from of_model(path, dims)


def of_model(path: Path, dims: Mapping[str, int]) -> Iterator[Instance]:
    graph = prepare(path, Options(runtime="generic", dims=dims)).imported.graph
    own = with_eager_ops(graph, given_order(graph))
    rules = StaticTarget.rules
    planner, limits = PLANNERS["auto"].function, Limits(seconds=PLANNING_SECONDS)
    budget = int(SHARE * profile(graph, own, rules).peak_bytes)
    plan = planner(Problem(graph, rules, budget_bytes=budget, starts=(own,)), limits)
    smallest = planner(Problem(graph, rules, starts=(own,)), limits)
    lines = [("own order", own, MOST_ABOVE), ("smallest plan", smallest.schedule, None)]
    if plan.meets(budget):
        lines.insert(1, (f"plan at {SHARE:.0%}", plan.schedule, MOST_ABOVE))
    for words, schedule, most_above in lines:
        blocks = static_blocks(graph, schedule, rules)
        yield Instance(f"{path.stem}, {words}", tuple(blocks), most_above=most_above)


def supermalloc_bytes(blocks: Sequence[Block]) -> int | None:
    """The arena that omnimalloc's supermalloc finds, None without the package."""
    if importlib.util.find_spec("omnimalloc") is None:
        return None
    from omnimalloc import Allocation
    from omnimalloc.allocators import SupermallocAllocator

    allocations = tuple(
        Allocation(id=i, size=b.nbytes, start=b.start, end=b.end) for i, b in enumerate(blocks)
    )
    solver = SupermallocAllocator(timeout=SUPERMALLOC_SECONDS, num_threads=1)
    return int(solver.solve(allocations).peak)


def first_fit_bytes(blocks: Sequence[Block]) -> int:
    """The arena of first fit by size, written down as plainly as possible."""
    placed: list[tuple[int, Block]] = []
    arena = 0
    for block in sorted(blocks, key=lambda b: -b.nbytes):
        offset = 0
        for low, other in placed:
            if other.start < block.end and block.start < other.end:
                if low - offset >= block.nbytes:
                    break
                offset = max(offset, low + other.nbytes)
        placed.append((offset, block))
        placed.sort(key=lambda p: p[0])
        arena = max(arena, offset + block.nbytes)
    return arena


def row_of(instance: Instance, seconds: float) -> tuple[tuple[str, ...], bool]:
    """The line of the table, and whether it is as it must be."""
    blocks = [Block(-(-b.nbytes // 64) * 64, b.start, b.end) for b in instance.blocks]
    started = time.perf_counter()
    placement = place(blocks, seconds=seconds, capacity_bytes=instance.capacity_bytes)
    took = time.perf_counter() - started
    check_placement(blocks, placement)
    peak = live_peak_bytes(blocks)
    other = supermalloc_bytes(blocks)
    verdict = "smallest, proved" if placement.proved else "smallest unknown"
    fine = True
    if instance.capacity_bytes is not None:
        fine = placement.arena_bytes <= instance.capacity_bytes
        verdict = "under capacity" if fine else "FAILED"
    if instance.most_above is not None:
        fine = placement.arena_bytes <= (1 + instance.most_above) * peak
        verdict = f"within {instance.most_above:.0%}; {verdict}" if fine else "FAILED"
    cells = (
        instance.name,
        str(len(blocks)),
        str(peak),
        "" if instance.capacity_bytes is None else str(instance.capacity_bytes),
        str(first_fit_bytes(blocks)),
        "" if other is None else str(other),
        str(placement.arena_bytes),
        f"{placement.arena_bytes / peak - 1:.2%}",
        f"{took:.2f}",
        placement.method,
        verdict,
    )
    return cells, fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shared", type=Path, help="folder with offsets/*.csv")
    parser.add_argument("--models", type=Path, help="folder with training/ and inference.json")
    parser.add_argument("--packages", type=Path, help="folder with inference files")
    parser.add_argument("--only", help="names of models, with commas between them")
    parser.add_argument("--seconds", type=float, default=60.0, help="time limit of an instance")
    parser.add_argument("--markdown", type=Path, help="write the table there as well")
    arguments = parser.parse_args()
    instances = itertools.chain(
        published(arguments.shared) if arguments.shared else (),
        of_models(arguments.models, arguments.packages, arguments.only) if arguments.models else (),
        generated(),
    )
    # The first use compiles, which is not what the table is about.
    place(packed(50, random.Random(0)), seconds=5.0)
    lines = [f"| {' | '.join(HEADER)} |", "|" + " --- |" * len(HEADER)]
    print("\n".join(lines), flush=True)
    all_fine = True
    for instance in instances:
        cells, fine = row_of(instance, arguments.seconds)
        all_fine &= fine
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if arguments.markdown is not None:
        arguments.markdown.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return 0 if all_fine else 1


if __name__ == "__main__":
    sys.exit(main())
