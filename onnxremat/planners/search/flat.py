"""Graph and MemoryRules as flat arrays, for the compiled kernels.

Tensors are renumbered: only activations are kept, the outputs of op v being the contiguous range
`op[OUTPUTS, v]` .. `op[OUTPUTS, v + 1] - 1`. A list of lists is one array of values and a row of
starts.
"""

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from onnxremat.core.graph import Graph, TensorKind
from onnxremat.core.memory import MemoryRules, inplace_allowed

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


# Rows of FlatGraph.op, by op and one more for the ends of the lists.
# INPUTS: start of the distinct activations it reads, in `input`. OUTPUTS: its first output.
# PAIRS: start of its in-place pairs, in `pair`. ONCE: it must not be recomputed.
INPUTS, OUTPUTS, PAIRS, WORKSPACE, COST, ONCE = range(6)
# Rows of FlatGraph.tensor, and one more column. READERS: start of its distinct readers, in
# `reader`. SIZE: aligned bytes. GRAPH_OUTPUT: it is one.
PRODUCER, READERS, SIZE, GRAPH_OUTPUT = range(4)
# Rows of FlatGraph.pair: the tensor read and the position of the output that may share its buffer.
SOURCE, TARGET = range(2)


class FlatGraph(NamedTuple):
    """The arrays; their rows are named above. `width` is the most outputs of one op."""

    op: Ints
    tensor: Ints
    input: Ints
    reader: Ints
    pair: Ints
    constant_bytes: int
    unread_held: bool
    width: int


def flatten(graph: Graph, rules: MemoryRules) -> FlatGraph:
    """The arrays of `graph` under `rules`. O(tensors + reads)."""
    number = {t: i for i, t in enumerate(t for op in graph.ops for t in op.outputs)}
    held = set(graph.outputs)
    inputs = [list(dict.fromkeys(number[t] for t in op.inputs if t in number)) for op in graph.ops]
    readers = [graph.readers[t] for t in number]
    pairs = [_inplace_pairs(graph, rules, v, number) for v in range(len(graph.ops))]
    return FlatGraph(
        np.array(
            [
                _starts(inputs),
                _starts([op.outputs for op in graph.ops]),
                _starts(pairs),
                [op.workspace_bytes if rules.count_workspace else 0 for op in graph.ops] + [0],
                [op.cost for op in graph.ops] + [0],
                [not op.recomputable or op.eager for op in graph.ops] + [0],
            ],
            dtype=np.int64,
        ),
        np.array(
            [
                [graph.producer[t] for t in number] + [0],
                _starts(readers),
                [rules.nbytes(graph.tensors[t]) for t in number] + [0],
                [t in held for t in number] + [0],
            ],
            dtype=np.int64,
        ),
        np.array([t for row in inputs for t in row], dtype=np.int64),
        np.array([v for row in readers for v in row], dtype=np.int64),
        np.array([p for row in pairs for p in row], dtype=np.int64).reshape(-1, 2).T.copy(),
        rules.constant_bytes(graph),
        rules.unread_held,
        max((len(op.outputs) for op in graph.ops), default=1) or 1,
    )


def _inplace_pairs(
    graph: Graph, rules: MemoryRules, v: int, number: dict[int, int]
) -> list[tuple[int, int]]:
    op = graph.ops[v]
    return [
        (number[op.inputs[i]], o)
        for i, o in rules.inplace.get(op.op_type, ())
        if i < len(op.inputs)
        and o < len(op.outputs)
        and graph.tensors[op.inputs[i]].kind is TensorKind.ACTIVATION
        and inplace_allowed(graph, op.inputs[i], op.outputs[o], op.inputs)
    ]


def _starts(rows: Sequence[Sequence[object]]) -> list[int]:
    return [0, *accumulate(len(row) for row in rows)]
