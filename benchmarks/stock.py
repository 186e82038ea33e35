"""What default options cost, and what `stock` saves of it: resident memory, one line a model.

    python -m benchmarks.stock [--shared FOLDER] [--packages FOLDER] [--only NAMES]
                               [--markdown FILE] [--threads N]

`--shared` has `training/*.onnx` and `inference.json`; `--packages` the inference files that ship in
registry packages, as NAME.onnx (see `models/README.md`). Without them only builders run.

Every figure is resident memory above the loaded level with all-default SessionOptions and default
allocators, outputs of earlier runs released: of the first run and of the fourth (steady). Three
files are compared: the original; the stock rewrite of the original in its own order, nothing
recomputed; for training graphs also the stock rewrite of a plan (PLANNERS["auto"], 10 s) whose
limit is a percentage of the original's activation peak under the recipe.

A line must hold: steady memory not above the original's (for a plan the first run neither, within
0.5 MB of noise), outputs the original's bit for bit, time within 10%; a plan saves at least 45% of
the steady memory. One that does not ends with FAILED, and so does the command.
"""

import argparse
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.tables import end, made_with, markdown
from models import BUILDERS
from onnxremat.commands.rewrite import rewrite
from onnxremat.core.errors import NoPlanFoundError, OnnxrematError
from onnxremat.core.problem import Limits, Problem
from onnxremat.core.schedule import given_order, with_eager_ops
from onnxremat.core.units import parse_limit
from onnxremat.options import Options
from onnxremat.ort.emulation.rules import RECIPE_RULES
from onnxremat.ort.measuring.measure import measure_activation
from onnxremat.ort.measuring.session_memory import SessionMemory
from onnxremat.planners import PLANNERS
from onnxremat.subject import prepare
from onnxremat.targets.stock_target import StockTarget
from onnxremat.targets.stock_trial import FIRST_RUN_NOISE_BYTES, LONGEST_TIME_RATIO, StockResult

REQUIRED_SAVING = 0.45
PLANNING_SECONDS = 10.0
TRAINING = (
    ("unet_train_aot", "65%"),
    ("unetbn_train_aot", "65%"),
    ("resnetbn_train_aot", "75%"),
    ("xf_train_aot", "55%"),
    ("xf_train_onnxad", "45%"),
    ("vgg_train_onnxad", "65%"),
)
BUILT = ("unet", "resnet", "mobilenet")
HEADER = (
    "model", "file", "variant", "loaded MB", "first run MB", "steady MB", "steady saved",
    "in all MB", "time", "bits as", "executed order", "verdict",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A model file, and the limits of the plan to try (None: its own order alone)."""

    name: str
    path: Path
    limit: str | None = None
    shapes: Mapping[str, tuple[int, ...]] | None = None


def cases(shared: Path | None, packages: Path | None, scratch: Path) -> Iterator[Case]:
    """The models of the acceptance list that are there."""
    if shared is not None:
        for name, limit in TRAINING:
            yield Case(name, shared / "training" / f"{name}.onnx", limit)
    if packages is not None and shared is not None:
        listed = json.loads((shared / "inference.json").read_text(encoding="utf-8"))
        for entry in listed:
            shapes = {name: tuple(dims) for name, dims in entry["input_shapes"].items()}
            yield Case(entry["name"], packages / f"{entry['name']}.onnx", None, shapes)
    for name in BUILT:
        path = scratch / f"{name}.onnx"
        onnx.save(BUILDERS[name](), path)
        yield Case(name, path)
    for name, model in (("weights_matmul", matmul_weights()), ("weights_conv", conv_weights())):
        path = scratch / f"{name}.onnx"
        onnx.save(model, path)
        yield Case(name, path)


def matmul_weights() -> onnx.ModelProto:
    """105 MB of weights in four layers: what is held twice would show."""
    rng = np.random.default_rng(0)
    size, rows = 2560, 2048
    weights, nodes, last = [], [], "x"
    for i in range(4):
        matrix = (rng.standard_normal((size, size)) * 0.02).astype(np.float32)
        weights.append(numpy_helper.from_array(matrix, f"w{i}"))
        nodes.append(helper.make_node("MatMul", [last, f"w{i}"], [f"m{i}"], f"m{i}"))
        nodes.append(helper.make_node("Tanh", [f"m{i}"], [f"t{i}"], f"t{i}"))
        last = f"t{i}"
    return _model(nodes, weights, [rows, size], last)


def conv_weights() -> onnx.ModelProto:
    """94 MB of weights in ten convolutions."""
    rng = np.random.default_rng(0)
    channels, weights, nodes, last = 512, [], [], "x"
    for i in range(10):
        kernel = (rng.standard_normal((channels, channels, 3, 3)) * 0.02).astype(np.float32)
        weights.append(numpy_helper.from_array(kernel, f"w{i}"))
        conv = helper.make_node(
            "Conv", [last, f"w{i}"], [f"c{i}"], f"c{i}", kernel_shape=[3, 3], pads=[1] * 4
        )
        nodes += [conv, helper.make_node("Relu", [f"c{i}"], [f"r{i}"], f"r{i}")]
        last = f"r{i}"
    return _model(nodes, weights, [1, channels, 28, 28], last)


def _model(
    nodes: list[onnx.NodeProto], weights: list[TensorProto], shape: list[int], output: str
) -> onnx.ModelProto:
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", output))
    graph = helper.make_graph(nodes, "weights", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def megabytes(nbytes: int) -> str:
    return f"{nbytes / 1e6:.1f}"


def original_row(name: str, memory: SessionMemory) -> tuple[str, ...]:
    figures = (memory.loaded_bytes, memory.first_bytes, memory.steady_bytes)
    total = megabytes(memory.total_bytes)
    return (name, "original", "", *map(megabytes, figures), "", total, "", "", "", "")


def result_row(name: str, file: str, result: StockResult, required: float) -> tuple[str, ...]:
    """One rewritten file beside the original's row."""
    memory, chosen = result.memory, result.chosen
    figures = (memory.loaded_bytes, memory.first_bytes, memory.steady_bytes)
    wrong = []
    if result.saved < required:
        wrong.append(f"saves less than {100 * required:.0f}%")
    if required and memory.first_bytes > result.original.first_bytes + FIRST_RUN_NOISE_BYTES:
        wrong.append("first run above the original's")
    bits, order, time = "", "", ""
    if chosen is not None:
        same = {"unoptimised": chosen.same_as_unoptimized, "default": chosen.same_as_stock}
        bits = " and ".join(option for option, holds in same.items() if holds)
        if required and not chosen.same_as_unoptimized:
            wrong.append("bits are not the unoptimised original's")
        time = f"{100 * ((chosen.time_ratio or 0) - 1):+.1f}%"
        if required and (chosen.time_ratio or 0) > LONGEST_TIME_RATIO:
            wrong.append("time above 10%")
        if chosen.order is not None and chosen.made is not None:
            fused = f"{len(chosen.order.vanished)} of {len(chosen.made.steps)} fused"
            order = f"as planned, {fused}" if chosen.order.as_planned else "differs"
    return (
        name,
        file,
        "unchanged" if chosen is None else chosen.variant.value,
        *map(megabytes, figures),
        f"{100 * result.saved:.0f}%",
        megabytes(memory.total_bytes),
        time,
        bits,
        order,
        ", ".join(wrong) + " FAILED" if wrong else "holds",
    )


def why(name: str, result: StockResult) -> str:
    """A line on what each variant took and why it was not taken."""
    parts = []
    for candidate in result.candidates:
        memory = candidate.memory
        took = ""
        if memory is not None:
            loaded, first, steady = map(
                megabytes, (memory.loaded_bytes, memory.first_bytes, memory.steady_bytes)
            )
            took = f" {loaded} + {first}/{steady}"
        parts.append(f"{candidate.variant.value}{took} {candidate.reason}".strip())
    return f"    {name}: " + "; ".join(parts)


def planned(path: Path, limit: str, options: Options) -> tuple[StockResult, int]:
    """The file that the command makes of a plan for a limit of the activation peak (the command
    itself limits resident memory), and how many executions the plan adds."""
    subject = prepare(path, options)
    feed, graph = subject.feed, subject.imported.graph
    peak = measure_activation(feed.source(), feed.inputs, feed.recipe).peak_bytes
    own = with_eager_ops(graph, given_order(graph))
    budget = parse_limit(limit).resolve(peak)
    problem = Problem(graph, RECIPE_RULES, budget_bytes=budget, starts=(own,))
    plan = PLANNERS["auto"].function(problem, Limits(seconds=options.time_limit))
    if not plan.meets(budget):
        raise NoPlanFoundError(f"no plan for {limit}")
    target = StockTarget.of(subject)
    made = target.make(subject, target.forecast(subject, plan))
    assert isinstance(made.details, StockResult)
    return made.details, made.rewritten.recomputed


def variant_rows(name: str, result: StockResult, weight_bytes: int) -> list[tuple[str, ...]]:
    """What loading takes in each variant: weights that are held twice would show."""
    rows = []
    for candidate in result.candidates:
        memory = candidate.memory
        if memory is None:
            continue
        figures = (memory.loaded_bytes, memory.first_bytes, memory.steady_bytes)
        twice = memory.loaded_bytes > result.original.loaded_bytes + weight_bytes / 2
        rows.append((
            name, f"{weight_bytes / 1e6:.0f} MB of weights", f"{candidate.variant.value} (tried)",
            *map(megabytes, figures), "", megabytes(memory.total_bytes), "", "", "",
            "weights held twice FAILED" if twice else "weights held once",
        ))  # fmt: skip
    return rows


def silero_inputs(folder: Path) -> Path:
    """The sample rate is an input, and decides which of two branches runs."""
    rng = np.random.default_rng(0)
    path = folder / "silero.npz"
    np.savez(
        path,
        input=rng.standard_normal((1, 576)).astype(np.float32),
        state=np.zeros((2, 1, 128), np.float32),
        sr=np.array(16000, np.int64),
    )
    return path


def run(case: Case, threads: int | None, scratch: Path) -> list[tuple[str, ...]]:
    """The lines of one model."""
    dims = {
        f"{name}:{axis}": size
        for name, shape in (case.shapes or {}).items()
        for axis, size in enumerate(shape)
    }
    options = Options(
        session="stock",
        embed_weights=True,
        dims=dims,
        time_limit=PLANNING_SECONDS,
        threads=threads,
        tiling=False,
    )
    if case.name == "silero_vad":
        options = replace(options, dims={}, inputs=silero_inputs(scratch))
    same = rewrite(case.path, "min", replace(options, recompute=False)).details
    assert same is not None
    print(why(case.name, same), flush=True)
    rows = [original_row(case.name, same.original)]
    rows.append(result_row(case.name, "--no-recompute --mem min", same, 0.0))
    if case.name.startswith("weights_"):
        weight_bytes = sum(len(t.raw_data) for t in onnx.load(case.path).graph.initializer)
        rows += variant_rows(case.name, same, weight_bytes)
    if case.limit is not None:
        result, recomputed = planned(case.path, case.limit, options)
        print(why(case.name, result), flush=True)
        label = f"plan at {case.limit}, {recomputed} recomputed"
        rows.append(result_row(case.name, label, result, REQUIRED_SAVING))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shared", type=Path)
    parser.add_argument("--packages", type=Path)
    parser.add_argument("--only")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--threads", type=int)
    arguments = parser.parse_args()
    rows: list[tuple[str, ...]] = []
    with TemporaryDirectory() as scratch:
        for case in cases(arguments.shared, arguments.packages, Path(scratch)):
            if arguments.only and not any(n in case.name for n in arguments.only.split(",")):
                continue
            if not case.path.is_file():
                print(f"{case.name}: no file, left out", flush=True)
                continue
            try:
                made = run(case, arguments.threads, Path(scratch))
            except OnnxrematError as error:
                made = [(case.name, *[""] * 10, f"{error} FAILED")]
            rows += made
            print("\n".join("  ".join(row) for row in made), flush=True)
    text = (
        f"{made_with()}, {os.cpu_count()} cores. Resident memory above the loaded "
        "level, all-default SessionOptions and allocators, outputs of earlier runs released; "
        "means of two processes.\n\n" + markdown(HEADER, rows) + "\n"
    )
    end(rows, text, arguments.markdown)


if __name__ == "__main__":
    main()
