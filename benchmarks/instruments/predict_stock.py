"""How much memory a model will take in a session with nothing but default options.

model -> optimized model, as the runtime writes it -> StockSession -> predict
      -> less what loading leaves to the allocator (slack)
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import onnx

from benchmarks.instruments.slack import load_slack
from onnxremat.importer.nodes import reads
from onnxremat.ort.child.wire import Array
from onnxremat.ort.emulation.predict import Prediction
from onnxremat.ort.optimize import optimize_offline
from onnxremat.ort.recipe import STOCK, Recipe
from onnxremat.ort.stock_session import StockSession, stock_session


def predict_stock(
    model: onnx.ModelProto,
    base_dir: Path | str,
    inputs: Mapping[str, Array],
    *,
    threads: int | None = None,
) -> Prediction:
    """Memory of `model` with default options, on the CPU; `resident_bytes` is what counts there.

    `threads` is the only option that may differ. The worst of what the runtime makes of the model
    in a few tries (see `stock_sessions`); `order` indexes the nodes of that session's model. Runs
    the optimized model a few times, in children, without the arena. Raises like `stock_sessions`.
    """
    sessions = stock_sessions(model, base_dir, inputs, threads=threads)
    worst = max((one.predict() for one in sessions), key=lambda found: found.resident_bytes)
    return less_slack(worst, model, base_dir, inputs, STOCK.with_threads(threads))


def less_slack(
    prediction: Prediction,
    model: onnx.ModelProto,
    base_dir: Path | str,
    inputs: Mapping[str, Array],
    recipe: Recipe,
) -> Prediction:
    """The prediction for a session of `model` with `recipe`, less what its loading left to the
    allocator (see `slack`). Opens the session once, in a child, and does not run it."""
    runs = (prediction.first, prediction.later)
    slack = load_slack(model, base_dir, inputs, recipe, [run.regions for run in runs])
    first, later = (
        replace(run, resident_bytes=run.resident_bytes - nbytes)
        for run, nbytes in zip(runs, slack, strict=True)
    )
    return replace(prediction, first=first, later=later)


def stock_sessions(
    model: onnx.ModelProto,
    base_dir: Path | str,
    inputs: Mapping[str, Array],
    *,
    threads: int | None = None,
    tries: int = 3,
) -> tuple[StockSession, ...]:
    """What default options make of `model`, and what it runs: every result of `tries` processes.

    Where the runtime's optimizations have a choice, they follow addresses in memory, which differ
    from process to process: some models, mostly ones with blocked convolutions, run in one of
    several graphs. Raises ModelError if the runtime refuses the model, or the optimized one
    exceeds 2 GB.
    """
    settings = STOCK.with_threads(threads)
    made = (
        optimize_offline(model, base_dir, settings.optimization, settings) for _ in range(tries)
    )
    distinct = {_form(optimized.model): optimized for optimized in made}
    return tuple(stock_session(one, base_dir, inputs, settings) for one in distinct.values())


def _form(model: onnx.ModelProto) -> tuple[object, ...]:
    """What is the same for graphs that differ in names alone: ops in order, and who reads whom."""
    number: dict[str, int] = {}
    return tuple(
        (
            node.domain,
            node.op_type,
            *(number.setdefault(name, len(number)) for name in (*reads(node), *node.output)),
        )
        for node in model.graph.node
    )
