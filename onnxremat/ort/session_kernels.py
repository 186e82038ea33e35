"""Which kernels a session runs for the values of a model, and where two models differ in them.

Equal outputs of one run prove little: an ArgMax hides the last bits of what it reads, a picture of
zeros hides everything. Two models that run the same kernels for the same values give the same bits
as far as those of a tile are those of the whole (`onnxremat_rewriters.tile.table`), whatever the
inputs are. What optimizations make of a model depends on its shapes and on what stands beside what,
so that a convolution of a tile may be fused with others, or laid out otherwise, than in the whole.

A value is known by its name; tiles and repetitions of it have its name and more
(`NAME__region0_tile1`, `NAME__recompute1`), and the runtime calls what it lays out in blocks
`NAME_nchwc`. Fused ops have the name of the last value of theirs.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

import onnx

from onnxremat.importer.calls import all_graphs
from onnxremat.importer.nodes import (
    LAYOUT_DOMAIN,
    is_constant,
    made_value,
    reads,
    values_of_nodes,
)
from onnxremat.ort.child import actions as worker_actions
from onnxremat.ort.child.process import ModelSource, run_job
from onnxremat.ort.optimize import optimizing
from onnxremat.ort.recipe import OptimizationLevel, Recipe

_ADDED = re.compile(r"(?:__region\d+_.*|__recompute\d+)$")
_OURS = ("stock__", "onnxremat_guard")
_INNER = "stock__inner__"
_VARIADIC = frozenset({"Concat", "Max", "Min", "Sum", "Mean"})

MOVES = frozenset(
    [
        "Concat",
        "Constant",
        "ConstantOfShape",
        "Expand",
        "Flatten",
        "Gather",
        "Identity",
        "If",
        "Pad",
        "ReorderInput",
        "ReorderOutput",
        "Reshape",
        "Shape",
        "Size",
        "Slice",
        "Split",
        "Squeeze",
        "Transpose",
        "Unsqueeze",
    ]
)
"""Ops that compute no element: which of them stand where is of no consequence for bits."""


_OUT_OF_BLOCKS = "ReorderOutput"

RESIZES = frozenset({"Resize", "Upsample"})
"""They copy elements, too, in the mode that is nearest."""


class Kernel(NamedTuple):
    """What runs: an op of a domain, the activation that is fused into it, and how many inputs it
    reads (a fused addition is one more)."""

    domain: str
    op_type: str
    activation: str
    inputs: int

    def __str__(self) -> str:
        fused = f"+{self.activation}" if self.activation else ""
        domain = f"{self.domain}." if self.domain else ""
        return f"{domain}{self.op_type}{fused}({self.inputs})"


Kernels = Mapping[str, frozenset[Kernel]]
"""By the name of a value, those that make it, in whole or in parts."""


def session_kernels(
    source: ModelSource,
    recipe: Recipe,
    level: OptimizationLevel,
    values: Mapping[str, str] = MappingProxyType({}),
) -> Kernels:
    """What a session that optimizes up to a level runs for each value. `values` are those that the
    nodes of the model make, by their names: of nodes in blocks nothing else is known.

    Raises ModelError if the runtime refuses the model.
    """
    settings = optimizing(recipe, level)
    with run_job(worker_actions.optimize, [source], [settings], {}) as job:
        made = onnx.load(job.folder / job.answer["optimized"], load_external_data=False)
    return kernels_of(made, values)


def kernels_of(
    optimized: onnx.ModelProto, values: Mapping[str, str] = MappingProxyType({})
) -> Kernels:
    """What is run for each value of a model that the runtime has optimized; `values` as there."""
    found: dict[str, set[Kernel]] = {}
    for graph in all_graphs(optimized.graph):
        for value, kernel in _made(graph, values):
            found.setdefault(value, set()).add(kernel)
    return {value: frozenset(kernels) for value, kernels in found.items()}


def other_kernels(original: Kernels, candidate: Kernels, *, more: bool = False) -> str:
    """The first value for which a candidate runs another kernel than the original does, in words,
    or "". `more`: whether it may have values of its own that others make."""
    known = frozenset(kernel for kernels in original.values() for kernel in kernels)
    for value, kernels in candidate.items():
        allowed = original.get(value, known)
        if all(one.op_type == _OUT_OF_BLOCKS for one in allowed):
            allowed |= known  # What made it is a node of the runtime's own, without a known name.
        if more and value not in original:
            continue
        others = sorted(one for one in kernels - allowed if one.op_type not in MOVES)
        if others:
            usual = sorted(original.get(value, frozenset()))
            instead = f" instead of {', '.join(map(str, usual))}" if usual else ""
            return f"{value} is made by {others[0]}{instead}"
    return ""


def fused_with_reader(
    original: Kernels, planned: onnx.ModelProto, optimized: onnx.ModelProto
) -> frozenset[str]:
    """The values of a planned model that its session does not make by themselves, as that of the
    original does: there they have more readers. The others have gone, or read a repetition."""
    nodes, values = planned.graph.node, values_of_nodes(planned.graph)
    made = {value for graph in all_graphs(optimized.graph) for value, _ in _makers(graph, values)}
    readers = Counter(name for node in nodes for name in set(reads(node)))
    return frozenset(
        name
        for node in nodes
        if not is_constant(node)
        for name in node.output
        if readers[name] == 1 and name not in made and _whole(name) in original
    )


def fused_later(planned: Kernels, executed: Kernels) -> frozenset[str]:
    """The values whose kernels read more where they are `executed` than where they are `planned`:
    an addition was fused into them."""

    def most(kernels: frozenset[Kernel]) -> int:
        return max((one.inputs for one in kernels if one.op_type not in MOVES), default=0)

    return frozenset(
        value
        for value, kernels in planned.items()
        if most(executed.get(value, kernels)) > most(kernels)
    )


def convolved_in_blocks(executed: Kernels) -> bool:
    """Whether any convolution runs in blocks."""
    return bool(_made_in_blocks(executed, "Conv"))


def averaged_in_blocks(executed: Kernels) -> frozenset[str]:
    """The values that are sums over blocks: of what lies otherwise they are added up otherwise."""
    return _made_in_blocks(executed, "AveragePool")


def pooled_in_blocks(executed: Kernels) -> frozenset[str]:
    """The values that pools make in blocks, averages among them."""
    return _made_in_blocks(executed, "Pool")


def _made_in_blocks(executed: Kernels, part: str) -> frozenset[str]:
    """The values that are made in blocks by ops with a part in their names."""
    return frozenset(
        value
        for value, kernels in executed.items()
        if any(one.domain == LAYOUT_DOMAIN and part in one.op_type for one in kernels)
    )


def _makers(
    graph: onnx.GraphProto, values: Mapping[str, str]
) -> Iterator[tuple[str, onnx.NodeProto]]:
    """The values that a graph makes, by their names in the planned model, and the nodes."""
    for node in graph.node:
        name = made_value(node, values).removeprefix(_INNER)
        if not name.startswith(_OURS):
            yield name, node


def _made(graph: onnx.GraphProto, values: Mapping[str, str]) -> Iterator[tuple[str, Kernel]]:
    for name, node in _makers(graph, values):
        texts = {a.name: a.s.decode(errors="replace") for a in node.attribute if a.s}
        if node.op_type in RESIZES and texts.get("mode", "nearest") == "nearest":
            continue
        activation = texts.get("activation", "")
        inputs = 0 if node.op_type in _VARIADIC else sum(map(bool, node.input))
        kernel = Kernel(node.domain, node.op_type, activation, inputs)
        yield _whole(name), kernel


def _whole(name: str) -> str:
    """The value that a tile or a repetition is of."""
    shorter = _ADDED.sub("", name)
    return name if shorter == name else _whole(shorter)
