"""Inspections that no runtime made: the pages of any number of nodes, with any names."""

from dataclasses import replace
from pathlib import Path

from onnxremat.commands.attribution import Holder, MeasuredPeak
from onnxremat.commands.audit import Audit, find_floor, find_peak
from onnxremat.commands.inspection import ACTIVATIONS, PROCESS, Inspection, Lever, Portrait
from onnxremat.commands.timeline import graph_timeline
from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.schedule import given_order
from onnxremat.ort.emulation.rules import RECIPE_RULES
from onnxremat.ort.measuring.session_memory import SessionMemory
from onnxremat.tiling import TilingPlan

MARK = "private"
"""In each name."""


def training_graph(nodes: int) -> Graph:
    """Half of the nodes make a chain, the other half reads its values from the end on."""
    depth = nodes // 2
    tensors = [
        Tensor("private_input", (64,), "float", 256, TensorKind.INPUT),
        Tensor("private_weight", (64,), "float", 4096, TensorKind.WEIGHT),
    ]
    ops = []
    for i in range(2 * depth):
        half, layer = ("forward", i) if i < depth else ("backward", 2 * depth - 1 - i)
        name = f"/private/{half}/encoder.layer.{layer // 8}/part{layer % 8}/Op_{i}"
        shape = (1 + layer % 7, 64)
        tensors.append(Tensor(f"{name}_output_0", shape, "float", 256 * shape[0]))
        reads = (len(tensors) - 2,) if i < depth else (len(tensors) - 2, layer + 2)
        kind = ("MatMul", "Add", "private.ops::Secret")[i % 3]
        work = 64 if i % 5 == 0 else 0
        ops.append(Op(name, kind, reads, (len(tensors) - 1,), 1000 + i % 9, work, i % 4 > 0))
    return Graph(tuple(tensors), tuple(ops), (0,), (len(tensors) - 1,))


def inspection(nodes: int = 60, *, second: bool = False) -> Inspection:
    """Of a training graph, with a timeline for each of two sessions."""
    graph = training_graph(nodes)
    order = given_order(graph)
    recipe = graph_timeline(graph, order, RECIPE_RULES, "as written")
    default = replace(recipe, session="default options")
    peak = find_peak(graph, order, RECIPE_RULES)
    memory = SessionMemory(40_000_000, (9_000_000, 12_000_000), 0.1, None, 60_000_000, 55_000_000)
    memory = replace(memory, returning=replace(memory, loaded_bytes=35_000_000))
    said = "the reason of /private/forward/encoder"
    measured = MeasuredPeak(
        peak.nbytes + 100_000, peak.nbytes, graph.ops[3].name, "MatMul", 10, 0,
        (Holder(graph.ops[2].name, "MatMul", ("private_value",), 9000, 0),), 0, said,
    )  # fmt: skip
    tiling = TilingPlan((), peak.nbytes, peak.nbytes, 0, 1000, 0, 1, False, reasons=(said,))
    file = Path("/private/folder/private_model.onnx")
    audit = Audit(
        file, nodes, nodes, 2, 4096, 256, peak.nbytes + 100_000, peak.nbytes, peak,
        find_floor(graph, RECIPE_RULES), peak.nbytes - 1, peak.nbytes // 2, tiling, "50%",
        peak.nbytes // 2, 1, recipe, measured, (graph.ops[5].name,), said,
    )  # fmt: skip
    levers = (
        Lever("without an arena", "enable_cpu_mem_arena = False", PROCESS, 52_000_000, 44_000_000, True),
        Lever("weights in a file beside", "rewrite", PROCESS, 52_000_000, None, True, reason=said),
        Lever("nodes computed again", "rewrite", ACTIVATIONS, peak.nbytes, peak.nbytes // 2, False, 0.12),
    )  # fmt: skip
    first = Portrait(file, nodes, (default, recipe), memory, (said,))
    other = replace(first, file=Path("/private/private_second.onnx"), timelines=(default,))
    return Inspection(audit, first, levers, other if second else None)
