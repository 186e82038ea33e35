"""How much memory a model will take in a session with nothing but default options.

    model -> optimized model, as the runtime writes it -> (branch inlined) -> RunProfile -> predict

The runtime's file has the nodes in the order in which its default order runs them, which is what a
session that optimizes for itself executes; opened again, the same file would run in another.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from onnxremat.runtimes.branches import (
    early_outputs,
    taken_branch,
    with_branch_inlined,
    working_branch,
)
from onnxremat.runtimes.functions import expand_functions
from onnxremat.runtimes.optimize import Optimized, optimize_offline
from onnxremat.runtimes.order import is_constant
from onnxremat.runtimes.predict import Prediction, predict
from onnxremat.runtimes.profiling import RunProfile, profile_run
from onnxremat.runtimes.provable import ProvableType, provable_types
from onnxremat.runtimes.recipe import STOCK, OptimizationLevel, Recipe
from onnxremat.runtimes.wire import Array


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

    `threads` is the only option that may differ. `order` indexes the nodes of
    `stock_session(...).model`. Runs the optimized model a few times, in children, without the
    arena. Raises like `stock_session`.
    """
    return stock_session(model, base_dir, inputs, threads=threads).predict()


def stock_session(
    model: onnx.ModelProto,
    base_dir: Path | str,
    inputs: Mapping[str, Array],
    *,
    threads: int | None = None,
) -> StockSession:
    """Optimize `model` as default options do, and learn what it runs.

    Raises ModelError if the runtime refuses the model, or the optimized one exceeds 2 GB.
    """
    settings = STOCK.with_threads(threads)
    optimized = optimize_offline(model, base_dir, settings.optimization, settings)
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
    if profile.expanded:
        flat = expand_functions(flat, profile.expanded)
        profile = profile_run(flat, base_dir, inputs, measured)
    types = provable_types(flat, base_dir, recipe, profile)
    order = tuple(v for v, node in enumerate(flat.graph.node) if not is_constant(node))
    return StockSession(optimized, flat, branch is not None, profile, types, order, recipe, early)
