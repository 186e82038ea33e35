"""A randomly wired network. Source: Xie, Kirillov, Girshick & He 2019, "Exploring Randomly Wired
Neural Networks for Image Recognition", section 3 and table 2 (the small regime).
"""

import networkx
import onnx

from models import layers
from models.net import Net, Value

_NEIGHBOURS, _REWIRED = 4, 0.75
"""K and P of the Watts-Strogatz graphs that did best in the paper (figure 3)."""


def randwire(
    *,
    nodes: int = 32,
    first: int = 0,
    channels: int = 78,
    size: int = 224,
    classes: int = 1000,
    wiring: int = 1,
    batch: int = 1,
    symbolic_batch: bool = False,
    opset: int = 17,
    seed: int = 0,
) -> onnx.ModelProto:
    """RandWire-WS(4, 0.75) (Xie 2019): image (batch, 3, size, size) to logits (batch, classes). The
    operators of a stage stand in the order of the graph's numbers, as an exporter writes them.

    nodes: of the random graph of each of the last two stages. first: of that of the first stage,
    half as many if 0.
    channels: of the first stage; each next one has twice as many. size: pixels a side. wiring:
    seed of the random graphs.
    """
    net = Net("randwire", batch=batch, symbolic_batch=symbolic_batch, opset=opset, seed=seed)
    x = net.input("image", (3, size, size))
    x = layers.conv_norm_relu(net, x, max(1, channels // 2), 3, "conv1", stride=2)
    for stage, count in enumerate((first or nodes // 2, nodes, nodes)):
        x = _stage(net, x, channels * 2**stage, count, wiring + stage, f"stage{stage + 1}")
    x = layers.conv_norm_relu(net, x, 16 * channels, 1, "last")
    return net.model({"logits": layers.classifier(net, x, classes, "head")})


def _stage(net: Net, x: Value, channels: int, count: int, wiring: int, name: str) -> Value:
    """A random graph, its edges from lower to higher numbers; the mean of its last nodes."""
    wires = networkx.connected_watts_strogatz_graph(count, _NEIGHBOURS, _REWIRED, seed=wiring)
    made: list[Value] = []
    for i in range(count):
        sources = sorted(j for j in wires[i] if j < i)
        inputs = [made[j] for j in sources] or [x]
        stride = 1 if sources else 2
        made.append(_node(net, inputs, channels, stride, f"{name}/node{i}"))
    last = [made[i] for i in range(count) if all(j < i for j in wires[i])]
    total = last[0]
    for k, value in enumerate(last[1:]):
        total = net.op("Add", [total, value], f"{name}/sum{k}")
    return net.op("Mul", [total, net.scalar(1 / len(last))], f"{name}/mean")


def _node(net: Net, inputs: list[Value], channels: int, stride: int, name: str) -> Value:
    """A weighted sum, ReLU, a separable 3x3 convolution and a batch normalisation (figure 2)."""
    weighted = [
        net.op("Mul", [x, net.weight(f"{name}/input{k}", "scale", (1,))], f"{name}/input{k}")
        for k, x in enumerate(inputs)
    ]
    total = weighted[0]
    for k, value in enumerate(weighted[1:]):
        total = net.op("Add", [total, value], f"{name}/add{k}")
    return layers.separable(net, total, channels, 3, name, stride=stride)
