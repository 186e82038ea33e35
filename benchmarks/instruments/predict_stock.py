"""How much memory a model will take in a session with nothing but default options.

    model -> optimized model, as the runtime writes it -> (branch inlined) -> RunProfile -> predict
          -> less what loading leaves to the allocator (slack)

The runtime's file has the nodes in the order in which its default order runs them, which is what a
session that optimizes for itself executes; opened again, the same file would run in another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from benchmarks.instruments.slack import load_slack
from onnxremat.importer.nodes import is_constant, reads
from onnxremat.ort.branches import (
    early_outputs,
    taken_branch,
    with_branch_inlined,
    working_branch,
)
from onnxremat.ort.child.wire import Array
from onnxremat.ort.emulation.predict import Prediction, predict
from onnxremat.ort.measuring.profile import RunProfile, profile_run
from onnxremat.ort.measuring.provable import ProvableType, provable_types
from onnxremat.ort.optimize import Optimized, optimize_offline
from onnxremat.ort.recipe import STOCK, OptimizationLevel, Recipe
from onnxremat.ort.settle import settled


@dataclass(frozen=True)
class StockSession:
    """What a session with default options runs: a flat model, and everything a prediction needs.

    `optimized` is the file of the runtime. `model` is the same, with the working branch in its
    place if there is one (`in_branch`); `order` are its nodes as they execute; `recipe` is what
    the settings amount to for it; `early_outputs` are outputs allocated before the branch runs.
    """

    optimized: Optimized
    model: onnx.ModelProto
    in_branch: bool
    profile: RunProfile
    types: Mapping[str, ProvableType]
    order: tuple[int, ...]
    recipe: Recipe
    early_outputs: tuple[str, ...] = ()

    def predict(self) -> Prediction:
        """Memory of the first run and of later ones."""
        return predict(
            self.model, self.profile, self.recipe, self.types,
            order=self.order, early_outputs=self.early_outputs,
        )  # fmt: skip


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
    return tuple(_session(one, base_dir, inputs, settings) for one in distinct.values())


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


def _session(
    optimized: Optimized, base_dir: Path | str, inputs: Mapping[str, Array], settings: Recipe
) -> StockSession:
    """What a session whose optimizations gave `optimized` runs."""
    recipe = replace(settings, optimization=OptimizationLevel.NONE)
    flat = optimized.model
    early: tuple[str, ...] = ()
    branch = working_branch(flat)
    if branch is not None:
        taken = taken_branch(flat, base_dir, inputs, recipe, branch)
        early = early_outputs(flat.graph.node[branch], taken)
        flat = with_branch_inlined(flat, branch, taken)
        recipe = replace(recipe, mem_pattern=False)
    measured = replace(recipe, cpu_arena=False, mem_pattern=False)
    profile = profile_run(flat, base_dir, inputs, measured)
    if not profile.is_of(flat, measured.execution_order):
        flat = settled(flat, base_dir, measured)
        profile = profile_run(flat, base_dir, inputs, measured)
    types = provable_types(flat, base_dir, recipe, profile)
    order = tuple(v for v, node in enumerate(flat.graph.node) if not is_constant(node))
    return StockSession(optimized, flat, branch is not None, profile, types, order, recipe, early)
