"""Small training graphs for the tests of planners that tell forward from backward."""

import random

from onnxremat.core.graph import Graph, Op, Tensor, TensorKind


class Net:
    """A graph under construction."""

    def __init__(self) -> None:
        self.tensors = [Tensor("x", (4,), "float", 16, TensorKind.INPUT)]
        self.ops: list[Op] = []
        self.outputs: list[int] = []

    def add(
        self, name: str, reads: list[int], nbytes: int, *, scalar: bool = False, **options: object
    ) -> int:
        """One op that makes one tensor; its index."""
        shape = () if scalar else (nbytes // 4,)
        self.tensors.append(Tensor(name, shape, "float", 4 if scalar else nbytes))
        t = len(self.tensors) - 1
        self.ops.append(Op(f"op_{name}", "Op", tuple(reads), (t,), **options))  # type: ignore[arg-type]
        return t

    def graph(self) -> Graph:
        return Graph(tuple(self.tensors), tuple(self.ops), (0,), tuple(self.outputs))


def training_net(
    layers: int, *, skips: int = 0, seed: int = 0, inputs_too: bool = True, gradients: bool = True
) -> Graph:
    """A chain of layers, `skips` from the first half to the second as in a U-Net, a loss, and the
    gradient of every layer, with a weight gradient of each as output."""
    source = random.Random(seed)
    net = Net()
    made = [0]
    for i in range(layers):
        reads = [made[-1]]
        if i >= layers - skips:
            reads.append(made[layers - i])
        cost = source.randint(1, 9)
        made.append(net.add(f"a{i}", reads, 4 * source.randint(10, 60), cost=cost))
    loss = net.add("loss", [made[-1]], 4, scalar=True)
    net.outputs.append(loss)
    above = net.add("grad_a_last", [made[-1]], net.tensors[made[-1]].nbytes)
    arriving = {layers: [above]}
    for i in reversed(range(layers)):
        flowing = arriving[i + 1]
        gradient = flowing[0]
        if len(flowing) > 1:
            gradient = net.add(f"grad_sum{i}", flowing, net.tensors[made[i + 1]].nbytes)
        reads = [gradient, made[i + 1], *([made[i]] if inputs_too else [])]
        net.outputs.append(net.add(f"grad_w{i}", reads, 8))
        for source_layer in [i] + ([layers - i] if i >= layers - skips else []):
            if source_layer > 0:
                nbytes = net.tensors[made[source_layer]].nbytes
                flow = net.add(f"grad_a{i}_{source_layer}", reads, nbytes, cost=5)
                arriving.setdefault(source_layer, []).append(flow)
    if not gradients:
        kept = [op for op in net.ops if "grad" not in op.name]
        count = 1 + len(kept)
        return Graph(tuple(net.tensors[:count]), tuple(kept), (0,), (loss,))
    return net.graph()
