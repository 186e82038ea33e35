"""The examples in the docstrings of the core types are true."""

import doctest
from importlib import import_module
from pkgutil import iter_modules

import pytest

from onnxremat import core

MODULES = sorted(module.name for module in iter_modules(core.__path__))
WITH_EXAMPLES = {"graph", "memory", "problem", "schedule", "units"}


@pytest.mark.parametrize("name", MODULES)
def test_examples_are_true(name: str) -> None:
    result = doctest.testmod(import_module(f"onnxremat.core.{name}"))
    assert result.failed == 0
    assert result.attempted > 0 or name not in WITH_EXAMPLES
