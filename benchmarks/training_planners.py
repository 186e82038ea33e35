"""Planners of training graphs: the papers' examples, Kusumoto's graphs, and what they really save.

    python -m benchmarks.training_planners chains [--chains 3000] [--long]
    python -m benchmarks.training_planners lower-sets --shared FOLDER [--only NAME]
    python -m benchmarks.training_planners measured --shared FOLDER [--only NAME] [--seconds 10]
                                                    [--planners a,b,c]

`--shared` has `graphs/kus_*.json` and `models/training/*.onnx`. `chains`: table 2 and figure 4 of
Beaumont et al. 2024, random chains against exhaustive search, and the time of the dynamic programs.
`lower-sets`: the smallest budget by equation 2 of Kusumoto et al. 2019 as a share of 2 M(V), which
is its value without recomputation; and the peak of its strategies after liveness analysis, as a
share of the same graph run without recomputation, for two rules of what the backward of a node
reads: its successors' values only, or their other inputs, too; MC and TC are the memory- and
time-centric strategies of the smallest budget, "best" are those of all budgets tried.
`measured`: rewritten files in ONNX Runtime, every planner with the same seconds: the smallest peak
as a share of the original's, and the time within 60% and 40% of it, in times of one pass: by the
cost model, by which planners are compared, and (in parentheses) measured. The last columns say
whether all files give the bits of the original, and whether `auto` is the best, or equal best:
behind by at most 0.5% of the peak, 0.2% of the time. What is done goes to stderr at once; a line
takes minutes, so give `--only` where time is short.
The exit code is 1 if anything fails.
"""

import argparse
import json
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.tables import commit, markdown, row
from onnxremat.commands.rewrite import rewrite
from onnxremat.core.errors import (
    InfeasibleError,
    NoPlanFoundError,
    OnnxrematError,
    VerificationError,
)
from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.schedule import given_order
from onnxremat.core.training import Stages, TrainingSplit, split_training
from onnxremat.options import Options
from onnxremat.planners.chains.chain_dp import (
    FloatingTable,
    PersistentTable,
    floating_sequence,
    persistent_sequence,
)
from onnxremat.planners.chains.chain_model import chain_of, simulate
from onnxremat.planners.chains.chain_stages import canonical_schedule
from onnxremat.planners.chains.strategies import (
    Family,
    ForwardGraph,
    all_lower_sets,
    equation_1,
    equation_2,
    members,
    reachability_family,
)
from tests.planners.chain_search import least_makespan, random_chain
from tests.planners.test_chain import counter_example, toy

RULES = MemoryRules()
"""Bytes as they are, no workspace known, nothing in place."""

MORE_BUDGETS = tuple(1 + k / 8 for k in range(1, 17))
"""Budgets by equation 2 in times of the smallest one: liveness often gains more at larger ones."""

SCANNED_SETS = 5000
"""Families of more lower sets are looked at with the smallest budget only."""

SMALLEST = "min"
LIMITS = (SMALLEST, "60%", "40%")
IMPOSSIBLE = "impossible (proved)"

TIE_PEAK, TIE_TIME = 0.005, 0.002
"""`auto` is equal best if it is behind the best by no more than this share."""

NETWORKS = {"vgg19": 0.36, "unet": 0.48, "resnet50": 0.62, "densenet": 0.81, "googlenet": 0.39}
"""The largest reduction in table 1 of Kusumoto et al. 2019, weights included."""

MOST_SECONDS = {("exact", "googlenet"): 60.0}
"""For the budget and both strategies together; one second for all others."""

MODELS = ("vgg_train_aot", "unet_train_aot", "resnetbn_train_aot", "xf_train_aot")
PLANNERS = (
    "chain", "lower_sets", "chen", "chen_sqrt", "revolve", "greedy", "local_search", "twremat",
    "pwremat", "auto",
)  # fmt: skip


def chain_rows(count: int, *, long: bool) -> Iterator[tuple[str, ...]]:
    """What was tried, what came out, what it has to be, whether it is."""
    solvers = (("C_MP", persistent_sequence), ("C_FL", floating_sequence))
    for name, solve in solvers:
        for limit, expected in ((9000, "47.42 ms, 86.75 MiB"), (11000, "37.38 ms")):
            run = simulate(toy(), solve(toy(), limit) or ())
            found = f"{run.makespan / 100:.2f} ms, {run.peak_bytes / 100:.2f} MiB"
            what = f"table 2 at {limit / 100:g} MiB, {name}"
            yield what, found, expected, verdict(found.startswith(expected))
    for n in (4, 5, 10, 20):
        spans = [
            simulate(counter_example(n), solve(counter_example(n), 15) or ()).makespan
            for _, solve in solvers
        ]
        yield (
            f"figure 4, n = {n}, C_MP and C_FL",
            f"{spans[0]}, {spans[1]}",
            f"{3 * n - 2}, {2 * n + 2}",
            verdict(spans == [3 * n - 2, 2 * n + 2]),
        )
    source = random.Random(0)
    wrong = better = 0
    for _ in range(count):
        chain, limit = random_chain(source, source.randint(1, 5))
        spans_found = []
        for _, solve in solvers:
            sequence = solve(chain, limit)
            span = None if sequence is None else simulate(chain, sequence).makespan
            wrong += span != least_makespan(chain, limit, persistent=solve is persistent_sequence)
            spans_found.append(span)
        better += spans_found[0] != spans_found[1]
    yield (
        f"{count} random chains of up to 5 stages against exhaustive search",
        f"{wrong} differ; C_FL better than C_MP on {better}",
        "0 differ",
        verdict(wrong == 0),
    )
    tasks = [("C_MP", 339, 500, 3.5), ("C_FL", 30, 100, 60.0)]
    for name, stages, slots, most in [*tasks, *([("C_MP", 1000, 500, 90.0)] if long else [])]:
        seconds = solve_seconds(name, stages, slots)
        yield (
            f"{name}, {stages} stages, {slots} slots",
            f"{seconds:.2f} s",
            f"{most:g} s",
            verdict(seconds <= most),
        )


def solve_seconds(name: str, stages: int, slots: int) -> float:
    """Seconds to fill a table for a third of the memory of keeping all, and to read a sequence."""
    source = random.Random(stages)
    sizes = [source.randint(1000, 4000) for _ in range(stages + 1)]
    saved = [size * source.randint(2, 6) for size in sizes[1:]]
    forward = [source.randint(1, 20) for _ in range(stages)]
    chain = chain_of(forward, [2 * f for f in forward], sizes, saved)
    make = PersistentTable if name == "C_MP" else FloatingTable
    PersistentTable(chain_of([1], [1], [1, 1]), 9)  # Loads the compiled loops.
    begin = time.perf_counter()
    make(chain, sum(saved) // 3, slots).sequence()
    return time.perf_counter() - begin


def forward_graph(path: Path) -> ForwardGraph:
    """A graph of `kus_*.json`; convolutions take 10, all else 1, as in the paper (section 3)."""
    data = json.loads(path.read_text(encoding="utf-8"))
    made: dict[int, list[int]] = {node["id"]: [] for node in data["nodes"]}
    for source, target in data["edges"]:
        made[target].append(source)
    place: dict[int, int] = {}
    while len(place) < len(made):
        for v, reads in made.items():
            if v not in place and all(u in place for u in reads):
                place[v] = len(place)
    nodes = sorted(data["nodes"], key=lambda node: place[node["id"]])
    return ForwardGraph(
        tuple(node["size"] for node in nodes),
        tuple(10 if "Convolution" in node["op"] else 1 for node in nodes),
        tuple(tuple(sorted(place[u] for u in made[node["id"]])) for node in nodes),
    )


def training_graph(forward: ForwardGraph, *, inputs_too: bool) -> TrainingSplit:
    """Forward, a loss that reads what nobody reads, and for each node v the gradient of its value,
    which reads the gradients and values of its successors, and with `inputs_too` all that those
    were made of."""
    n = len(forward.sizes)
    tensors = [Tensor("x", (), "float", 0, TensorKind.INPUT)]
    tensors += [Tensor(f"v{v}", (), "float", size) for v, size in enumerate(forward.sizes)]
    tensors.append(Tensor("loss", (), "float", 0))
    tensors += [Tensor(f"g{v}", (), "float", size) for v, size in enumerate(forward.sizes)]
    ops = [
        Op(f"v{v}", "Op", tuple(1 + u for u in made) or (0,), (1 + v,), forward.times[v])
        for v, made in enumerate(forward.predecessors)
    ]
    ends = [v for v in range(n) if not forward.after[v]]
    ops.append(Op("loss", "Loss", tuple(1 + v for v in ends), (n + 1,), 0))
    for v in reversed(range(n)):
        successors = members(forward.after[v])
        reads = {n + 2 + w for w in successors} | {1 + w for w in successors}
        if inputs_too:
            reads |= {1 + u for w in successors for u in members(forward.before[w])}
        ops.append(Op(f"g{v}", "Op", tuple(sorted(reads)) or (n + 1, 1 + v), (n + 2 + v,), 0))
    return split_training(Graph(tuple(tensors), tuple(ops), (0,), (n + 1,)), "loss")


def live_peak(forward: ForwardGraph, split: TrainingSplit, sequence: Sequence[int]) -> int:
    """The peak of the canonical strategy with each value freed behind its last reader."""
    n, lower, cached = len(forward.sizes), 0, 0
    segments = []
    for following in sequence:
        segments.append(members(following & ~lower))
        cached |= forward.boundary(following)
        lower = following
    ops = [tuple(nodes) for nodes in segments[:-1]] + [(*segments[-1], n)]
    backward = tuple(tuple(2 * n - v for v in reversed(nodes)) for nodes in segments)
    nothing = ((),) * (len(segments) + 1)
    stages = Stages(split, tuple(ops), backward, nothing, nothing, ())
    schedule = canonical_schedule(stages, set(members(cached)), None)
    return profile(split.graph, schedule, RULES).peak_bytes


def lower_set_rows(folder: Path, only: str) -> Iterator[tuple[str, ...]]:
    """A line for each graph and family."""
    chain = ForwardGraph((1, 1, 1), (1, 1, 1), ((), (0,), (1,)))
    Family(chain, reachability_family(chain)).strategy(9, slowest=True)  # Loads the compiled loops.
    for name, published in NETWORKS.items():
        if only not in name:
            continue
        forward = forward_graph(folder / f"kus_{name}.json")
        splits = [training_graph(forward, inputs_too=both) for both in (False, True)]
        plain = [profile(s.graph, given_order(s.graph), RULES).peak_bytes for s in splits]
        known: list[int] | None = None
        smallest = []
        for kind in ("approximate", "exact"):
            begin = time.perf_counter()
            sets = reachability_family(forward) if known is None else all_lower_sets(forward)
            family = Family(forward, sets or [forward.everything])
            budget, known = family.smallest_budget(known)
            smallest.append(budget)
            seconds = [time.perf_counter() - begin]
            shares: list[str] = []
            overheads: list[str] = []
            best = list(plain)
            for slowest in (True, False):
                begin = time.perf_counter()
                strategy = family.strategy(budget, slowest=slowest) or [forward.everything]
                seconds.append(time.perf_counter() - begin)
                overheads.append(f"{equation_1(forward, strategy) / sum(forward.times):.0%}")
                peaks = [live_peak(forward, split, strategy) for split in splits]
                shares += [f"{peak / own:.1%}" for peak, own in zip(peaks, plain, strict=True)]
                best = list(map(min, best, peaks))
                larger = MORE_BUDGETS if len(family.sets) <= SCANNED_SETS else ()
                for factor in larger:
                    wider = family.strategy(int(budget * factor), slowest=slowest) or strategy
                    best = list(map(min, best, (live_peak(forward, s, wider) for s in splits)))
            yield (
                name,
                kind,
                str(len(family.sets) - 1),
                f"{budget / equation_2(forward, [forward.everything]):.1%}",
                *shares,
                *(f"{peak / own:.1%}" for peak, own in zip(best, plain, strict=True)),
                *overheads,
                *(f"{one:.2f}" for one in seconds),
                verdict(
                    smallest[-1] == min(smallest)
                    and sum(seconds) <= MOST_SECONDS.get((kind, name), 1.0)
                    and all(1 - p / own >= published for p, own in zip(best, plain, strict=True))
                ),
            )


@dataclass(frozen=True)
class Measured:
    """What a planner's file did in the runtime: its peak as a share of the original's, its time in
    times of one pass, by the cost model and measured, and whether its bits are the original's.
    Without a file, `why` says why there is none."""

    share: float = 0.0
    slowdown: float = 0.0
    ran: float = 0.0
    identical: bool = True
    why: str = ""

    @property
    def failed(self) -> bool:
        """Whether something is wrong; it is not if a limit is impossible, or no plan was found."""
        return not self.identical or self.why.startswith("FAILED")

    def figure(self, mem: str) -> float:
        """What planners are compared by: the smaller, the better."""
        return self.share if mem == SMALLEST else self.slowdown

    def cell(self, mem: str) -> str:
        """For the table; what planners are compared by comes first."""
        if self.why:
            return self.why
        share, slowdown = f"{self.share:.1%}", f"{self.slowdown:.3f} ({self.ran:.2f})"
        return f"{share} at {slowdown}" if mem == SMALLEST else f"{slowdown} at {share}"


def measured_rows(
    folder: Path, only: str, names: Sequence[str], seconds: float
) -> Iterator[tuple[str, ...]]:
    """A line for each model and limit."""
    for model in MODELS:
        if only not in model:
            continue
        for mem in LIMITS:
            done = {}
            for name in names:
                done[name] = measured(folder / f"{model}.onnx", mem, name, seconds)
                print(f"{model} {mem} {name}: {done[name].cell(mem)}", file=sys.stderr, flush=True)
            cells = (one.cell(mem) for one in done.values())
            same = "identical" if all(one.identical for one in done.values()) else "FAILED"
            yield model, "smallest" if mem == SMALLEST else mem, *cells, same, judged(done, mem)


def measured(path: Path, mem: str, planner: str, seconds: float) -> Measured:
    """Plan, rewrite, run and compare bits."""
    options = Options(session="recipe", planner=planner, time_limit=seconds, tiling=False)
    try:
        done = rewrite(path, mem, options)
    except InfeasibleError:
        return Measured(why=IMPOSSIBLE)
    except NoPlanFoundError:
        return Measured(why="none found")
    except VerificationError as error:
        return Measured(identical=False, why=f"FAILED {error}")
    except OnnxrematError as error:
        return Measured(why=f"FAILED {type(error).__name__}")
    assert done.verification is not None
    share = done.rewritten.peak_bytes / done.original.peak_bytes
    ran = done.verification.time_ratio or 0.0
    return Measured(share, 1 + done.plan.extra_time, ran, done.verification.identical)


def judged(done: Mapping[str, Measured], mem: str) -> str:
    """Whether nothing failed, and `auto`, if it ran, is the best or equal best."""
    if any(one.failed for one in done.values()):
        return "FAILED"
    others = {k: one.figure(mem) for k, one in done.items() if k != "auto" and not one.why}
    auto = done.get("auto")
    if auto is None:
        return "ok, without auto"
    if auto.why:
        return f"FAILED: {', '.join(others)} met it" if others else f"ok: {auto.why}"
    if not others:
        return "ok: best"
    best = min(others, key=others.__getitem__)
    excess = auto.figure(mem) / others[best] - 1
    if excess > (TIE_PEAK if mem == SMALLEST else TIE_TIME):
        return f"FAILED: {best} is better by {excess:.2%}"
    return "ok: best" if excess <= 0 else f"ok: equal best ({best} is ahead by {excess:.2%})"


def verdict(good: bool) -> str:
    """For the last column."""
    return "ok" if good else "FAILED"


HEADERS = {
    "chains": ("what", "found", "to be", ""),
    "lower-sets": (
        "graph", "search", "lower sets", "equation 2", "MC, outputs", "MC, inputs too",
        "TC, outputs", "TC, inputs too", "best, outputs", "best, inputs too", "MC overhead",
        "TC overhead", "budget s", "MC s", "TC s", "",
    ),
    "measured": ("model", "limit", *PLANNERS, "bits", ""),
}  # fmt: skip


def main() -> int:
    """Print one of the tables, a line as soon as it is there. 1 if a line failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("table", choices=HEADERS)
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--only", default="")
    parser.add_argument("--chains", type=int, default=3000)
    parser.add_argument("--long", action="store_true")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--planners", default=",".join(PLANNERS))
    arguments = parser.parse_args()
    if arguments.table == "chains":
        rows = chain_rows(arguments.chains, long=arguments.long)
    elif arguments.shared is None:
        parser.error("--shared is needed")
    elif arguments.table == "lower-sets":
        rows = lower_set_rows(arguments.shared / "graphs", arguments.only)
    else:
        names = arguments.planners.split(",")
        folder = arguments.shared / "models" / "training"
        rows = measured_rows(folder, arguments.only, names, arguments.seconds)
    header = HEADERS[arguments.table]
    if arguments.table == "measured":
        header = (*header[:2], *arguments.planners.split(","), *header[-2:])
    print(f"At commit {commit()}: {' '.join(sys.argv[1:])}\n")
    print(markdown(header, ()), flush=True)
    failed = False
    for cells in rows:
        failed |= not cells[-1].startswith("ok")
        print(row(cells), flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
