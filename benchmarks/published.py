"""The published graphs (see the benchmarks that take `--shared`), as `Graph`s."""

import json
from pathlib import Path

from onnxremat.core.graph import Graph, Op, Tensor, TensorKind


def load_published(path: Path) -> Graph:
    """A graph of `graphs/*.json`: each node makes one tensor; ops are in the file's `order`.

    Nodes that nobody reads are the outputs. Their sizes stand for bytes, durations for costs.
    """
    data = json.loads(path.read_text(encoding="utf-8"))
    nodes = {node["id"]: node for node in data["nodes"]}
    made = {v: i + 1 for i, v in enumerate(data["order"])}
    reads: dict[int, list[int]] = {v: [] for v in nodes}
    read = set()
    for source, target in data["edges"]:
        reads[target].append(made[source])
        read.add(source)
    tensors = [Tensor("input", (), "uint8", 0, TensorKind.INPUT)]
    ops = []
    for v in data["order"]:
        node = nodes[v]
        tensors.append(Tensor(str(node["name"]), (node["size"],), "uint8", node["size"]))
        inputs = tuple(dict.fromkeys(reads[v])) or (0,)
        ops.append(Op(str(node["name"]), "Op", inputs, (made[v],), cost=node["duration"]))
    outputs = tuple(made[v] for v in data["order"] if v not in read)
    return Graph(tuple(tensors), tuple(ops), (0,), outputs)
