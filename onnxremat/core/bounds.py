"""Lower bounds that hold for every schedule of a graph, repetitions included.

A bound proves that a limit is impossible, so it must never be too high; that it is not is tested
against exhaustive search. Time needs no function: every op runs once (`Graph.total_cost`).
"""

from dataclasses import dataclass

from onnxremat.core.graph import Graph, TensorKind
from onnxremat.core.memory import MemoryRules, inplace_allowed


@dataclass(frozen=True, slots=True)
class PeakBound:
    """No schedule has a peak below `nbytes`; `op` sets it (None: the outputs held together)."""

    nbytes: int
    op: int | None
    reason: str


def peak_bound(graph: Graph, rules: MemoryRules) -> PeakBound:
    """The larger of the single-op bound and the held-outputs bound. O(tensors + reads)."""
    return max(
        single_op_bound(graph, rules),
        held_outputs_bound(graph, rules),
        key=lambda bound: bound.nbytes,
    )


def op_bytes(graph: Graph, rules: MemoryRules) -> tuple[int, ...]:
    """For each op the least bytes held while it runs, whatever the schedule: its distinct inputs
    and its outputs, less what it can write in place, plus its workspace. O(tensors + reads).

    An input that is a graph output can only be given up in place if its producer may run again.
    An output that nobody reads is held during its op in any case.
    """
    size = [rules.nbytes(t) for t in graph.tensors]
    constant, held = rules.constant_bytes(graph), frozenset(graph.outputs)
    return tuple(
        constant + _variable_bytes(graph, rules, v, size, held) for v in range(len(graph.ops))
    )


def _variable_bytes(
    graph: Graph, rules: MemoryRules, v: int, size: list[int], held: frozenset[int]
) -> int:
    op = graph.ops[v]
    read = {t for t in op.inputs if graph.tensors[t].kind is TensorKind.ACTIVATION}
    total = sum(size[t] for t in read) + sum(size[t] for t in op.outputs)
    if rules.count_workspace:
        total += op.workspace_bytes
    return total - sum(size[t] for t in could_be_taken_over(graph, rules, v, held))


def could_be_taken_over(
    graph: Graph, rules: MemoryRules, v: int, held: frozenset[int] | None = None
) -> set[int]:
    """The inputs whose buffers some execution of op v may take over, in whatever schedule. `held`:
    the graph's outputs, for who asks of many ops."""
    op = graph.ops[v]
    held = frozenset(graph.outputs) if held is None else held
    taken: set[int] = set()
    filled: set[int] = set()
    for i, o in rules.inplace.get(op.op_type, ()):
        if i >= len(op.inputs) or o >= len(op.outputs) or o in filled:
            continue
        source, target = op.inputs[i], op.outputs[o]
        if source in taken or graph.tensors[source].kind is not TensorKind.ACTIVATION:
            continue
        once = not graph.ops[graph.producer[source]].recomputable
        if (source in held and once) or (target in held and not op.recomputable):
            continue
        if inplace_allowed(graph, source, target, op.inputs):
            filled.add(o)
            taken.add(source)
    return taken


def single_op_bound(graph: Graph, rules: MemoryRules) -> PeakBound:
    """The largest working set of one op."""
    best = PeakBound(rules.constant_bytes(graph), None, "bytes held throughout")
    for v, (op, nbytes) in enumerate(zip(graph.ops, op_bytes(graph, rules), strict=True)):
        if nbytes > best.nbytes:
            best = PeakBound(
                nbytes, v, f"inputs, outputs and workspace of {op.name} ({op.op_type})"
            )
    return best


def held_outputs_bound(graph: Graph, rules: MemoryRules) -> PeakBound:
    """All graph outputs together, and what the op that completes them needs beside.

    While the execution that makes the last of the pinned outputs runs, every other graph output
    is held, and so are the inputs of that op that are not outputs themselves, and its workspace.
    Which op comes last is free, so the least of them counts. An output made there is pinned, so it
    takes over nothing in place.
    """
    size = [rules.nbytes(t) for t in graph.tensors]
    constant = rules.constant_bytes(graph)
    held = {t for t in graph.outputs if graph.tensors[t].kind is TensorKind.ACTIVATION}
    if not held:
        return PeakBound(constant, None, "bytes held throughout")
    together = sum(size[t] for t in held)
    beside = min(_beside_outputs(graph, rules, graph.producer[t], size, held) for t in held)
    return PeakBound(
        constant + together + beside, None, "graph outputs, all held at the end of the run"
    )


def _beside_outputs(
    graph: Graph, rules: MemoryRules, v: int, size: list[int], held: set[int]
) -> int:
    op = graph.ops[v]
    read = {t for t in op.inputs if graph.tensors[t].kind is TensorKind.ACTIVATION} - held
    unpinned = [t for t in op.outputs if t not in held]
    shared = sum(size[t] for t in could_be_taken_over(graph, rules, v) - held)
    total = sum(size[t] for t in read) + sum(size[t] for t in unpinned) - shared
    return max(total, 0) + (op.workspace_bytes if rules.count_workspace else 0)
