"""Recipes become session options, survive JSON, and open sessions without a word."""

import json
import subprocess
import sys

import pytest

from onnxremat.core.errors import UsageError
from onnxremat.ort.library import ort
from onnxremat.ort.recipe import RECIPE, STOCK, Recipe, providers, session_options


def test_recipe_turns_off_what_moves_nodes_and_buffers() -> None:
    options = session_options(RECIPE.with_threads(3))
    assert options.execution_order == ort.ExecutionOrder.PRIORITY_BASED
    assert options.graph_optimization_level == ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    assert not options.enable_mem_reuse
    assert not options.enable_mem_pattern
    assert not options.enable_cpu_mem_arena
    assert options.intra_op_num_threads == 3


def test_stock_is_what_the_runtime_does_by_itself() -> None:
    made, default = session_options(STOCK), ort.SessionOptions()
    for name in (
        "execution_order",
        "graph_optimization_level",
        "enable_mem_reuse",
        "enable_mem_pattern",
        "enable_cpu_mem_arena",
        "intra_op_num_threads",
    ):
        assert getattr(made, name) == getattr(default, name), name


@pytest.mark.parametrize(
    "recipe", [RECIPE, STOCK, RECIPE.with_threads(2).with_dimensions({"n": 4})]
)
def test_a_recipe_survives_json(recipe: Recipe) -> None:
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"threads": "two"}, "'two' is not of type int"),
        ({"mem_reuse": 1}, "1 is not of type bool"),
        ({"execution_order": "file"}, "'file' is not a valid ExecutionOrder"),
        ({"free_dimensions": {"n": None}}, "None is not of type int"),
    ],
)
def test_a_damaged_recipe_says_what_is_wrong(change: dict[str, object], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Recipe.from_dict(RECIPE.to_dict() | change)
    with pytest.raises(UsageError, match="has no 'provider'"):
        Recipe.from_dict({})


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="0 threads"):
        session_options(RECIPE.with_threads(0))
    with pytest.raises(UsageError, match="dimension 'n' is -1"):
        session_options(RECIPE.with_dimensions({"n": -1}))
    with pytest.raises(UsageError, match="this ONNX Runtime has no 'NoSuchProvider'"):
        providers(Recipe(provider="NoSuchProvider"))


def test_importing_and_running_the_runtime_prints_nothing() -> None:
    code = """
from onnxremat.ort.library import ort
from onnxremat.ort.recipe import RECIPE, providers, session_options
from tests.ort.build import model, node, value
import numpy as np
m = model([node("Relu", ["x"], ["y"])], [value("x", 1, [2])], ["y"])
session = ort.InferenceSession(
    m.SerializeToString(), session_options(RECIPE), providers=providers(RECIPE)
)
session.run(None, {"x": np.ones(2, np.float32)})
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout + done.stderr == ""
