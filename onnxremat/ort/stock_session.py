"""What a session with nothing but default options runs, as one flat model with its profile.

    file as the runtime writes it -> (branch inlined) -> one profiled run, of settled nodes
          -> what is provable of its sizes -> StockSession

The runtime's file has the nodes in the order in which its default order runs them, which is what a
session that optimizes for itself executes; opened again, the same file would run in another. A
file that was rewritten for such sessions does its work in a branch (`branches`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import onnx

from onnxremat.core.errors import ModelError
from onnxremat.importer.nodes import is_constant
from onnxremat.ort.branches import (
    early_outputs,
    taken_branch,
    with_branch_inlined,
    working_branch,
)
from onnxremat.ort.child.watching import Listener
from onnxremat.ort.child.wire import Array
from onnxremat.ort.emulation.predict import Prediction, predict
from onnxremat.ort.measuring.measure_time import MEASURE_SECONDS
from onnxremat.ort.measuring.profile import RunProfile, profile_run
from onnxremat.ort.measuring.provable import ProvableType, provable_types
from onnxremat.ort.optimize import Optimized
from onnxremat.ort.recipe import OptimizationLevel, Recipe
from onnxremat.ort.settle import settled


@dataclass(frozen=True)
class StockSession:
    """What a session with default options runs: a flat model, and everything a prediction needs.

    `optimized` is the file of the runtime. `model` is the same, with the working branch in its
    place if there is one (`in_branch`); `order` are its nodes as they execute; `recipe` is what
    the settings amount to for it: no optimization any more, and no memory pattern in a branch.
    `early_outputs` are outputs allocated before the branch runs.
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


def stock_session(
    optimized: Optimized,
    base_dir: Path | str,
    inputs: Mapping[str, Array],
    settings: Recipe,
    *,
    seconds: float = MEASURE_SECONDS,
    listener: Listener | None = None,
) -> StockSession:
    """What a session whose optimizations gave `optimized` runs; `settings` are those it was made
    with.

    The model is opened and run in children, without the arena; profiling it takes `seconds` at most
    beyond the runs that have to be made. Raises ModelError if the runtime refuses it, or executes
    other nodes than it writes down.
    """
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

    def profiled() -> RunProfile:
        return profile_run(flat, base_dir, inputs, measured, seconds=seconds, listener=listener)

    profile = profiled()
    if not profile.is_of(flat, measured.execution_order):
        flat = settled(flat, base_dir, measured)
        profile = profiled()
    if profile.expanded:
        raise ModelError("ONNX Runtime executes other nodes than it writes down")
    types = provable_types(flat, base_dir, recipe, profile)
    order = tuple(v for v, node in enumerate(flat.graph.node) if not is_constant(node))
    return StockSession(optimized, flat, branch is not None, profile, types, order, recipe, early)
