"""`StockOriginal`: the model that people run today, in the session that they run it in.

What is made of it is compared with it: its outputs, the kernels that make them, the memory and the
time that it takes, all with default options.
"""

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import onnx

from onnxremat.core.errors import ModelError
from onnxremat.importer.nodes import values_of_nodes
from onnxremat.ort.child.process import ModelSource
from onnxremat.ort.child.wire import Array
from onnxremat.ort.measuring.compare import different_names
from onnxremat.ort.measuring.measure import in_memory, run_outputs
from onnxremat.ort.measuring.session_memory import (
    HEAP_SECONDS,
    HeapNeed,
    SessionMemory,
    measure_one_heap,
    measure_opening,
    measure_session,
)
from onnxremat.ort.outside import ModelPair, Weights, with_weights_outside
from onnxremat.ort.recipe import STOCK, OptimizationLevel, Recipe
from onnxremat.ort.session_kernels import (
    Kernels,
    convolved_in_blocks,
    kernels_of,
    other_kernels,
    session_kernels,
)
from onnxremat_rewriters.stock.build import is_stock

WORTHWHILE_LOADING = 0.9
"""The share of what loading leaves that another order of the weights may leave at most."""
_COMPARED_LEVELS = (OptimizationLevel.NONE, OptimizationLevel.ALL)


class ExpectedOutputs(NamedTuple):
    """The outputs of a model without optimizations and with default options."""

    reference: onnx.ModelProto
    unoptimized: Mapping[str, Array]
    optimized: Mapping[str, Array]


class _World(NamedTuple):
    """What a session runs, and what comes out."""

    recipe: Recipe
    kernels: Kernels
    outputs: Mapping[str, Array]


@dataclass(frozen=True)
class StockOriginal:
    """A model with default options, and what is asked for of its weights.

    External data is found in `base_dir`. `threads` is the only session option that may differ from
    the runtime's own; every memory figure is the median of `repeats` processes. `heap_seconds`: as
    long as it may take to tell what a file needs of one heap. Raises ModelError
    if the model was made by `stock`, and, where it is run, if the runtime refuses it.
    """

    model: onnx.ModelProto
    base_dir: Path
    inputs: Mapping[str, Array]
    _: KW_ONLY
    weights: Weights = Weights.EMBEDDED
    threads: int | None = None
    repeats: int = 2
    heap_seconds: float = HEAP_SECONDS
    _expected: dict[int, ExpectedOutputs] = field(default_factory=dict, init=False, repr=False)
    """By the id of the reference, which is kept so that no other model can have it."""
    _values: dict[str, str] = field(default_factory=dict, init=False, repr=False)
    """What the nodes of the model, and of all that were planned of it, make."""

    _opens_in_less: list[bool] = field(default_factory=list, init=False, repr=False)
    """What was found, once it was asked for."""

    def __post_init__(self) -> None:
        if is_stock(self.model):
            raise ModelError("the model was already rewritten for stock options")
        self.knows(self.model)

    @property
    def recipe(self) -> Recipe:
        """The session options of the result."""
        return STOCK.with_threads(self.threads)

    @cached_property
    def source(self) -> ModelSource:
        """The model, to be run."""
        return in_memory(self.model, self.base_dir)

    @cached_property
    def memory(self) -> SessionMemory:
        """What it takes."""
        return self.measured(self.source)

    def measured(self, source: ModelSource) -> SessionMemory:
        """What a file takes in the same session."""
        return measure_session(
            source, self.inputs, self.recipe, repeats=self.repeats, returning=True
        )

    def opening(self, source: ModelSource) -> tuple[float, ...]:
        """How many seconds it takes to open it, and a file."""
        return measure_opening([self.source, source], self.inputs, self.recipe)

    def opens_in_less(self, plain: ModelSource, by_size: ModelSource) -> bool:
        """Whether a session of one's weights in another order leaves that much less when it is
        opened, nothing set, that it is no chance. Asked once: the weights of all plans are the
        model's."""
        if not self._opens_in_less:
            loaded = [
                measure_session(source, self.inputs, self.recipe, runs=1, repeats=2).loaded_bytes
                for source in (plain, by_size)
            ]
            self._opens_in_less.append(loaded[1] < WORTHWHILE_LOADING * loaded[0])
        return self._opens_in_less[0]

    @cached_property
    def one_heap(self) -> HeapNeed | None:
        """What it needs of one heap."""
        return self.of_one_heap(self.source)

    def of_one_heap(self, source: ModelSource) -> HeapNeed | None:
        """What a file needs of one heap; None where that cannot be told, for whatever reason."""
        try:
            return measure_one_heap(source, self.inputs, self.recipe, seconds=self.heap_seconds)
        except ModelError:
            return None

    @cached_property
    def kernels(self) -> Kernels:
        """What it runs."""
        return self._kernels(self.source, self.recipe)

    @cached_property
    def _without_blocks(self) -> _World | None:
        """What it runs, and what comes out, on a processor without blocks, where files are for any
        processor and this one has some."""
        if self.weights is not Weights.EXTERNAL or not convolved_in_blocks(self.kernels):
            return None
        recipe = replace(self.recipe, blocks=False)
        outputs = run_outputs(self.source, self.inputs, recipe)
        return _World(recipe, self._kernels(self.source, recipe), outputs)

    def _kernels(self, source: ModelSource, recipe: Recipe) -> Kernels:
        return session_kernels(source, recipe, OptimizationLevel.ALL, self._values)

    @cached_property
    def packs(self) -> bool:
        """Whether it runs with packed weights: the runtime ends with some models then (PP-OCR's
        recognition, 1.31.1), which run as they are and are packed by whoever opens them."""
        try:
            if self.weights is Weights.PACKED and self._packed is not None:
                self.outputs(self._packed.source())
        except ModelError:
            return False
        return True

    @property
    def pair(self) -> ModelPair | None:
        """It with its weights outside, packed if that runs; None for one without large weights."""
        return self._packed if self.packs else self._not_packed

    @cached_property
    def _packed(self) -> ModelPair | None:
        return self._outside(packs=True)

    @cached_property
    def _not_packed(self) -> ModelPair | None:
        return self._outside(packs=False)

    def _outside(self, *, packs: bool) -> ModelPair | None:
        return with_weights_outside(
            self.model, self.base_dir, self.recipe, self.weights, packs=packs
        )

    def knows(self, planned: onnx.ModelProto) -> None:
        """Nodes of a planned model are told by what they make, from now on."""
        self._values.update(values_of_nodes(planned.graph))

    def optimized_otherwise(self, optimized: onnx.ModelProto) -> bool:
        """Whether an optimized model has other kernels than this one runs."""
        return bool(other_kernels(self.kernels, kernels_of(optimized, self._values), more=True))

    def runs_otherwise(self, source: ModelSource, *, more: bool) -> str:
        """Where a session of a file runs other kernels than one of this model, or ""; it may run
        `more` of them."""
        if other := other_kernels(self.kernels, self._kernels(source, self.recipe), more=more):
            return other
        plain = self._without_blocks
        if plain is None:
            return ""
        other = other_kernels(plain.kernels, self._kernels(source, plain.recipe), more=more)
        if not other and different_names(
            plain.outputs, run_outputs(source, self.inputs, plain.recipe)
        ):
            other = "outputs differ"
        return other and f"without blocks of channels {other}"

    def outputs(
        self, source: ModelSource, level: OptimizationLevel = OptimizationLevel.ALL
    ) -> Mapping[str, Array]:
        """Those of a file in the same session, or at another level of optimization."""
        return run_outputs(source, self.inputs, replace(self.recipe, optimization=level))

    def expected(self, reference: onnx.ModelProto) -> ExpectedOutputs:
        """The outputs of a model whose bits count."""
        if id(reference) not in self._expected:
            source = in_memory(reference, self.base_dir)
            made = (self.outputs(source, level) for level in _COMPARED_LEVELS)
            self._expected[id(reference)] = ExpectedOutputs(reference, *made)
        return self._expected[id(reference)]
