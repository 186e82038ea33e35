"""Small graphs for the tests, as hypothesis strategies and by hand."""

from collections.abc import Sequence

from hypothesis import strategies as st

from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.memory import MemoryRules
from onnxremat.core.schedule import Schedule, without_unread


def chain(sizes: Sequence[int]) -> Graph:
    """x -> op0 -> op1 -> ...; op i makes `sizes[i]` bytes; the last one is the output."""
    tensors = [Tensor("x", (), "uint8", 1, TensorKind.INPUT)]
    ops = []
    for i, nbytes in enumerate(sizes):
        tensors.append(Tensor(f"t{i}", (nbytes,), "uint8", nbytes))
        ops.append(Op(f"op{i}", "Op", (i,), (i + 1,)))
    return Graph(tuple(tensors), tuple(ops), (0,), (len(sizes),))


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 7) -> Graph:
    """Random graphs: several outputs an op, repeated reads, workspace, held graph outputs."""
    tensors = [
        Tensor("x", (), "float", 4, TensorKind.INPUT),
        Tensor("w", (), "float", 8, TensorKind.WEIGHT),
    ]
    ops = []
    for v in range(draw(st.integers(1, max_ops))):
        reads = draw(st.lists(st.integers(0, len(tensors) - 1), min_size=1, max_size=3))
        makes = []
        for k in range(draw(st.sampled_from([1, 1, 1, 2]))):
            nbytes = draw(st.integers(0, 6))
            makes.append(len(tensors))
            tensors.append(Tensor(f"t{v}_{k}", (nbytes,), "uint8", nbytes))
        ops.append(
            Op(
                f"op{v}",
                draw(st.sampled_from(["Plain", "Plain", "InPlace"])),
                tuple(reads),
                tuple(makes),
                cost=draw(st.integers(0, 5)),
                workspace_bytes=draw(st.sampled_from([0, 0, 0, 3])),
                recomputable=draw(st.sampled_from([True, True, True, False])),
            )
        )
    made = [t for op in ops for t in op.outputs]
    outputs = draw(st.lists(st.sampled_from(made), min_size=1, max_size=3, unique=True))
    return Graph(tuple(tensors), tuple(ops), (0,), tuple(outputs))


@st.composite
def memory_rules(draw: st.DrawFn) -> MemoryRules:
    return MemoryRules(
        alignment_bytes=draw(st.sampled_from([1, 4])),
        inplace=draw(st.sampled_from([{}, {"InPlace": ((0, 0),)}, {"InPlace": ((0, 1), (1, 0))}])),
        unread_held=draw(st.booleans()),
        count_inputs=draw(st.booleans()),
        count_weights=draw(st.booleans()),
        count_workspace=draw(st.booleans()),
    )


@st.composite
def schedules(draw: st.DrawFn, graph: Graph) -> Schedule:
    """A topological order with some recomputations that somebody reads."""
    waiting = set(range(len(graph.ops)))
    steps: list[int] = []
    while waiting:
        done = set(steps)
        ready = sorted(v for v in waiting if done.issuperset(graph.predecessors(v)))
        v = draw(st.sampled_from(ready))
        for u in graph.predecessors(v):
            if graph.ops[u].recomputable and draw(st.integers(0, 3)) == 0:
                steps.append(u)
        steps.append(v)
        waiting.discard(v)
    return without_unread(graph, Schedule(tuple(steps)))
