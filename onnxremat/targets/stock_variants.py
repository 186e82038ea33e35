"""`PlannedModel`: the forms in which a planned model may be written for default options.

Which parts pay depends on the model. A training graph gains most from its plan, an inference model
of convolutions most from keeping the layout optimisation that hidden shapes would cost.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property, partial
from typing import Any

import onnx

from onnxremat.ort.child.process import ModelSource
from onnxremat.ort.measuring.executed_steps import OrderCheck, check_order
from onnxremat.ort.measuring.measure import in_memory, measure_activation
from onnxremat.ort.outside import ModelPair, Weights, optimized_outside, with_weights_outside
from onnxremat.ort.session_kernels import (
    convolved_in_blocks,
    fused_with_reader,
    pooled_in_blocks,
)
from onnxremat.targets.stock_original import StockOriginal
from onnxremat_rewriters.release import release
from onnxremat_rewriters.stock.body import Edges
from onnxremat_rewriters.stock.build import StockModel, stock, with_weights_in_function
from onnxremat_rewriters.stock.checked_sizes import Sizes
from onnxremat_rewriters.stock.opset import with_sequences
from onnxremat_rewriters.stock.optimized import in_plan_order


class Variant(StrEnum):
    """Which parts of the rewrite a candidate has; all but the first have wrap."""

    ORIGINAL = "original"
    """None: the model as it came, with its weights outside."""
    WRAP = "wrap"
    """Nothing else: order and optimisations stay the runtime's own."""
    CAPTURE = "capture"
    """Wrap, and all weights outside: no layout optimisation, which holds weights of its own."""
    CHAIN = "chain"
    """Chain, and a warm block; shapes stay known."""
    PLAN = "plan"
    """Hide and chain."""
    WARM_PLAN = "warm plan"
    """Hide and chain, and a warm block: the arena gets one region for all of the run."""


_PARTS: Mapping[Variant, Mapping[str, Any]] = {
    Variant.WRAP: {"hide": False, "chain": False},
    Variant.CAPTURE: {"hide": False, "chain": False, "local_weights": False},
    Variant.CHAIN: {"hide": False},
    Variant.PLAN: {},
    Variant.WARM_PLAN: {},
}
_WARM = frozenset({Variant.CHAIN, Variant.WARM_PLAN})
_CHAINED = _WARM | {Variant.PLAN}
IN_TILES = (Variant.CHAIN, Variant.PLAN, Variant.WARM_PLAN)
"""Those that keep the order of a plan, which tiles need: in another one they are held together."""


@dataclass(frozen=True)
class Written:
    """A variant as it would be written: the model, with its weights in a file beside it (`pair`) or
    in itself, and what was made of the plan. `order` tells of the steps of the plan, None where the
    variant does not keep it."""

    model: onnx.ModelProto
    source: ModelSource
    made: StockModel | None = None
    pair: ModelPair | None = None
    order: OrderCheck | None = None


@dataclass
class PlannedModel:
    """A model whose nodes are in plan order, and what its variants have in common: the size of the
    warm block, by default the most that the model holds at once, and the shapes of inputs that it
    is for, where it does not declare them. `weights`: where they are to lie."""

    original: StockOriginal
    model: onnx.ModelProto
    weights: Weights
    warm_bytes: int | None
    sizes: Sizes

    @cached_property
    def optimizes_first(self) -> bool:
        """Whether it is optimized before it is chained: where nothing is left to be laid out in
        blocks when the file is opened, which an edge, or weights elsewhere, hinder."""
        return self.weights is Weights.PACKED or (
            self.weights is Weights.EXTERNAL and not convolved_in_blocks(self.original.kernels)
        )

    def offers(self, variant: Variant) -> bool:
        """Whether a variant is neither the original itself nor WRAP: weights that are laid out
        already lie outside of every branch."""
        if self.weights is Weights.EMBEDDED:
            return variant is not Variant.ORIGINAL
        return variant is not Variant.CAPTURE or not self.optimizes_first

    def written(self, variant: Variant) -> Written:
        """A variant. Raises ModelError if it cannot be made."""
        original = self.original
        if variant is Variant.ORIGINAL:
            pair = original.pair
            if pair is None:
                return Written(original.model, original.source)
            return Written(pair.model, pair.source(), pair=pair)
        return self._optimized_as(variant) if self.optimizes_first else self._opened_as(variant)

    def _opened_as(self, variant: Variant) -> Written:
        """A variant of the planned model, which the runtime optimizes when it opens the file: then
        its nodes stand elsewhere, so that all edges are needed."""
        parts: dict[str, Any] = {}
        if self.weights is Weights.EXTERNAL and variant is not Variant.CAPTURE:
            # What is laid out when the file is opened needs its weights, and shapes, there.
            parts = {"local_weights": True, "stated": True}
        written = self._written_outside(self._chained(self.model, variant, **parts))
        if parts:
            written = replace(written, order=self.in_order(variant, written))
            if written.order is not None and not written.order.as_planned:
                made = self._chained(self.model, variant, cover_all=True, **parts)
                written = self._written_outside(made)
        return written

    def _written_outside(self, made: StockModel) -> Written:
        """A file with its weights outside, if they are to be, and can."""
        original = self.original
        if self.weights is not Weights.EMBEDDED:
            pair = with_weights_outside(
                made.model, original.base_dir, original.recipe, self.weights
            )
            if pair is not None:
                pair = self._with_weights_in_function(pair)
                return Written(pair.model, pair.source(), made, pair)
        return Written(made.model, in_memory(made.model, original.base_dir), made)

    def _with_weights_in_function(self, pair: ModelPair) -> ModelPair:
        """With large weights laid out first, where opening then leaves less. The model of `pair` is
        changed."""
        by_size = replace(pair, model=onnx.ModelProto())
        by_size.model.CopyFrom(pair.model)
        sorted_ = with_weights_in_function(by_size.model, by_size=True)
        with_weights_in_function(pair.model)
        if sorted_ and self.original.opens_in_less(pair.source(), by_size.source()):
            return by_size
        return pair

    def in_order(self, variant: Variant, written: Written) -> OrderCheck | None:
        """Whether the steps of the plan run in its order; None for a variant that keeps none."""
        made, pair, original = written.made, written.pair, self.original
        if variant not in _CHAINED or made is None:
            return None
        # What was optimized before is the file itself, other steps are those that were planned.
        of_file = pair is not None and pair.model is made.model
        folder = pair.base_dir if pair is not None and of_file else original.base_dir
        return check_order(made, folder, original.inputs, threads=original.threads)

    def warm_block_bytes(self, variant: Variant) -> int:
        """The size of the warm block that a variant has."""
        return (self.warm_bytes or 0) if variant in _WARM else 0

    def _chained(self, model: onnx.ModelProto, variant: Variant, **parts: Any) -> StockModel:
        """A form of the planned model as a variant."""
        if variant in _WARM and self.warm_bytes is None:
            self.warm_bytes = self._most_held()
        warm_bytes = self.warm_block_bytes(variant)
        return stock(model, warm_bytes=warm_bytes, sizes=self.sizes, **{**_PARTS[variant], **parts})

    def _optimized_as(self, variant: Variant) -> Written:
        """A variant of what the runtime makes of the planned model, with its weights outside. With
        all edges, where those that the emulated order needs do not keep it in the runtime: what
        it still changes when it loads the file stands elsewhere."""
        pair, ordered = self._optimized
        stated = len(ordered.graph.value_info) > 0
        parts = {"local_weights": False, "stated": stated}
        tries = ((Edges.NEEDED, False), (Edges.NEEDED, stated), (Edges.ALL, stated))
        for edges, cover_all in dict.fromkeys(tries):
            made = self._chained(ordered, variant, edges=edges, cover_all=cover_all, **parts)
            file = pair.guarded(made.model)
            written = Written(file.model, file.source(), made, file)
            written = replace(written, order=self.in_order(variant, written))
            if written.order is None or written.order.as_planned:
                break
        return written

    @cached_property
    def _optimized(self) -> tuple[ModelPair, onnx.ModelProto]:
        """The planned model as optimized, with its weights outside, and with its nodes in the order
        of the plan. It states of inner values what the original does: by that things are fused;
        and what was made by itself there has a second reader, if a fusion took it for one's own."""
        original, flat = self.original, with_sequences(self.model)
        made = {name for node in flat.graph.node for name in node.output}
        del flat.graph.value_info[:]
        flat.graph.value_info.extend(v for v in original.model.graph.value_info if v.name in made)
        optimized = partial(
            optimized_outside,
            base_dir=original.base_dir,
            recipe=original.recipe,
            weights=self.weights,
            packs=original.packs,
        )
        pair = optimized(flat)
        if apart := fused_with_reader(original.kernels, flat, pair.model):
            flat = release(flat, apart).model
            pair = optimized(flat)
        if original.optimized_otherwise(pair.model):
            # A pool without its indices lies in blocks, for one, and with them it does not.
            plain = optimized(flat, blocks=False)
            pair = pair if original.optimized_otherwise(plain.model) else plain
        ordered = in_plan_order(pair.model, flat)
        if self.weights is Weights.EXTERNAL and pooled_in_blocks(original.kernels):
            # Pools are laid out in blocks when the file is opened, by what is stated.
            ordered.graph.value_info.extend(self.model.graph.value_info)
        return pair, ordered

    def _most_held(self) -> int:
        """The most that the planned model holds at once, arena off."""
        source = in_memory(stock(self.model).model, self.original.base_dir)
        recipe = replace(self.original.recipe, cpu_arena=False)
        return measure_activation(source, self.original.inputs, recipe, 2).peak_bytes
