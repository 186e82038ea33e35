"""Training graphs: forward told from backward, stages, and clear messages where it cannot be."""

import pytest

from models import BUILDERS
from onnxremat.core.graph import Graph
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.schedule import check
from onnxremat.core.training import (
    NotTraining,
    NotTrainingError,
    cut,
    forward_order,
    split_training,
)
from onnxremat.importer import bind_dimensions, from_proto, import_model, infer_types
from onnxremat.planners.chain import store_all
from onnxremat.planners.chains.chain_model import simulate
from onnxremat.planners.chains.chain_stages import chain_of_stages, schedule_of
from tests.models.sizes import tiny
from tests.training_graphs import Net, training_net


def built(name: str) -> Graph:
    loaded = from_proto(BUILDERS[name](**tiny(name)))
    return import_model(loaded, infer_types(loaded, bind_dimensions(loaded, {}), {})).graph


def test_forward_and_backward_of_a_chain() -> None:
    graph = training_net(6)
    split = split_training(graph)
    assert graph.tensors[split.loss].name == "loss"
    assert [graph.ops[v].name for v in split.forward] == [f"op_a{i}" for i in range(6)] + [
        "op_loss"
    ]
    last = next(v for v, op in enumerate(graph.ops) if op.name == "op_grad_w3")
    assert [graph.tensors[t].name for t in split.reads[last]] == ["a2", "a3"]
    stages = cut(split)
    assert [len(ops) for ops in stages.forward] == [1] * 7
    assert stages.notes == ()
    assert [len(b) for b in stages.boundaries] == [0, 1, 1, 1, 1, 1, 1, 0]


def test_skips_are_no_chain_and_said_so() -> None:
    split = split_training(training_net(8, skips=3))
    stages = cut(split)
    assert len(stages.forward) < 9
    assert "are one stage" in stages.notes[0]
    assert len(cut(split, bundles=True).forward) == 9


@pytest.mark.parametrize("most", [1, 2, 4, 7])
def test_stages_are_merged_to_a_number(most: int) -> None:
    stages = cut(split_training(training_net(12)), most=most)
    assert len(stages.forward) == most
    assert sum(len(ops) for ops in stages.forward) == 13


@pytest.mark.parametrize("most", [2, 5, 9])
def test_the_boundary_with_most_bytes_for_its_time_goes_first(most: int) -> None:
    graph = training_net(20, seed=most)
    costs = [op.cost for op in graph.ops[:21]]
    kept = list(range(1, 21))  # Stage i begins with op i, and reads tensor i.
    while len(kept) >= most:
        ends = [0, *kept, 21]
        worth = [
            (sum(costs[low:high]) + 1) / (graph.tensors[p].nbytes + 1)
            for low, p, high in zip(ends, kept, ends[2:], strict=False)
        ]
        del kept[worth.index(min(worth))]
    stages = cut(split_training(graph), most=most)
    assert [ops[0] for ops in stages.forward] == [0, *kept]


@pytest.mark.parametrize("skips", [0, 3])
@pytest.mark.parametrize("bundles", [False, True])
def test_every_op_has_one_stage_and_the_model_covers_the_real_peak(
    skips: int, bundles: bool
) -> None:
    graph = training_net(9, skips=skips, seed=skips)
    split = split_training(graph)
    stages = cut(split, bundles=bundles)
    placed = [v for ops in (*stages.forward, *stages.backward) for v in ops]
    assert sorted(placed) == list(range(len(graph.ops)))
    rules = MemoryRules()
    everything = store_all(len(stages.forward))
    schedule = schedule_of(stages, everything, None)
    check(graph, schedule)
    model = simulate(chain_of_stages(stages, rules), everything)
    assert profile(graph, schedule, rules).peak_bytes <= model.peak_bytes
    assert model.makespan == graph.total_cost()


@pytest.mark.parametrize(
    "name", ["vgg_train", "unet_train", "resnet_train", "transformer_train", "mlp_train"]
)
def test_built_training_graphs_are_split(name: str) -> None:
    graph = built(name)
    split = split_training(graph)
    assert graph.tensors[split.loss].name == "loss"
    assert sorted(forward_order(split)) == sorted(split.forward)
    stages = cut(split)
    assert len(stages.forward) > 2
    check(graph, schedule_of(stages, store_all(len(stages.forward)), None))


def reason(graph: Graph, loss: str | None = None) -> NotTraining:
    with pytest.raises(NotTrainingError) as caught:
        split_training(graph, loss)
    assert str(caught.value).startswith(caught.value.reason.value)
    return caught.value.reason


def test_no_loss() -> None:
    net = Net()
    net.outputs.append(net.add("y", [0], 40))
    assert reason(net.graph()) is NotTraining.NO_LOSS
    assert reason(training_net(3), "elsewhere") is NotTraining.NO_LOSS


def test_several_losses_and_one_named() -> None:
    graph = training_net(4)
    net = Net()
    net.tensors, net.ops, net.outputs = list(graph.tensors), list(graph.ops), list(graph.outputs)
    net.outputs.append(net.add("loss_of_style", [1], 4, scalar=True))
    assert reason(net.graph()) is NotTraining.SEVERAL_LOSSES
    assert len(split_training(net.graph(), "loss").forward) == 5


def test_a_loss_is_known_by_its_name_rather_than_its_rank() -> None:
    net = Net()
    a = net.add("a", [0], 40)
    loss = net.add("loss", [a], 4)
    accuracy = net.add("accuracy", [a], 4, scalar=True)
    net.outputs += [accuracy, loss, net.add("grad_x", [a, loss], 40)]
    assert split_training(net.graph()).loss == loss


def test_a_gradient_of_one_element_is_no_loss() -> None:
    graph = training_net(4)
    net = Net()
    net.tensors, net.ops, net.outputs = list(graph.tensors), list(graph.ops), list(graph.outputs)
    net.outputs.insert(0, net.add("bias.grad", [1], 4, scalar=True))
    assert net.graph().tensors[split_training(net.graph()).loss].name == "loss"


def test_no_backward_part() -> None:
    assert reason(training_net(4, gradients=False)) is NotTraining.NO_BACKWARD


@pytest.mark.parametrize(
    ("name", "is_one"),
    [("w.grad", True), ("adjoint/w", True), ("wGrad", True), ("upgraded", False),
     ("adjacency", False)],
)  # fmt: skip
def test_names_of_gradients(name: str, is_one: bool) -> None:
    """An output that the loss depends on may have any name but one that says gradient."""
    net = Net()
    a = net.add("a", [0], 40)
    inner = net.add(name, [a], 40)
    loss = net.add("loss", [inner], 4, scalar=True)
    net.outputs += [loss, inner, net.add("grad_w", [a, loss], 40)]
    if is_one:
        assert reason(net.graph()) is NotTraining.GRADIENT_IN_FORWARD
    else:
        assert split_training(net.graph()).loss == loss


def test_gradients_that_feed_the_forward_part() -> None:
    net = Net()
    a = net.add("a", [0], 40)
    gradient = net.add("grad_x", [a], 40)
    loss = net.add("loss", [a, gradient], 4, scalar=True)
    net.outputs += [loss, gradient, net.add("grad_w", [a, gradient], 40)]
    assert reason(net.graph()) is NotTraining.GRADIENT_IN_FORWARD
