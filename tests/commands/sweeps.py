"""Models of a few nodes, and a sweep of them that takes seconds."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from onnxremat.commands.sweep_plan import SweepRun
from onnxremat.commands.sweep_row import SweepRow
from onnxremat.options import Options

TOY = "tests.commands.toy_run"
"""The worker of runs that take no time."""

QUICK = Options(
    session="recipe",
    planner="greedy",
    iterations=5,
    threads=1,
    measure_limit=0,
    tiling=False,
    verify=False,
)


def chain(path: Path, *ops: str, size: int = 64) -> Path:
    """A model of ops in a row."""
    names = [f"v{i}" for i in range(len(ops) + 1)]
    nodes = [helper.make_node(op, [names[i]], [names[i + 1]], f"n{i}") for i, op in enumerate(ops)]
    ends = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, size])
        for name in (names[0], names[-1])
    ]
    graph = helper.make_graph(nodes, "chain", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, path)
    return path


class Watched:
    """A SweepWatch that keeps what it was told: the places of runs that were done."""

    def __init__(self) -> None:
        self.before: set[int] = set()
        self.done: list[int] = []

    def planned(self, runs: Sequence[SweepRun], rows: Mapping[int, SweepRow]) -> None:
        self.before = set(rows)

    def started(self, place: int) -> None:
        """What has begun may not end."""

    def finished(self, place: int, row: SweepRow) -> None:
        self.done.append(place)
