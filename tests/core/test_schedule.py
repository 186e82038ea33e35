import dataclasses

import pytest

from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.schedule import (
    Schedule,
    ScheduleError,
    check,
    given_order,
    with_eager_ops,
    without_unread,
)
from tests.graphs import chain

A, B = Tensor("a", (), "uint8", 1), Tensor("b", (), "uint8", 1)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Graph((A, B), (Op("p", "P", (1,), (0,)), Op("q", "Q", (), (1,))), (), (0,)), "reads 'b' before it is made"),
        (lambda: Graph((A,), (Op("p", "P", (), (0,)), Op("q", "Q", (), (0,))), (), (0,)), "'a' has two producers"),
        (lambda: Graph((A, B), (Op("p", "P", (), (0,)),), (), (0,)), "no op makes 'b'"),
        (lambda: Graph((A,), (Op("p", "P", (), (3,)),), (), (0,)), "names tensor 3"),
        (lambda: Graph((A,), (Op("p", "P", (), (0,)),), (), (9,)), "names tensor 9"),
        (lambda: Graph((Tensor("a", (), "uint8", -1),), (), (), ()), "'a' has a negative size"),
        (lambda: Graph((A,), (Op("p", "P", (), (0,), cost=-1),), (), ()), "'p' has a negative cost"),
        (lambda: Graph((Tensor("w", (), "uint8", 1, TensorKind.WEIGHT),), (Op("p", "P", (), (0,)),), (), ()), "'w' is made by an op"),
    ],
)  # fmt: skip
def test_graph_names_what_is_wrong(build, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_graph_is_frozen_and_knows_its_edges() -> None:
    graph = chain([1, 2, 3])
    assert graph.producer == (-1, 0, 1, 2)
    assert graph.readers == ((0,), (1,), (2,), ())
    assert graph.predecessors(2) == (1,)
    assert graph.total_cost() == 3
    with pytest.raises(dataclasses.FrozenInstanceError):
        graph.ops = ()


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((0, 1), "'op2' is never executed"),
        ((0, 2, 1), "'op2' reads 't1' before it is made"),
        ((0, 1, 2, 9), "executes op 9"),
        ((0, 1, 2, 2, 0), "nobody reads this execution of 'op2'"),
        ((0, 0, 1, 2), "nobody reads this execution of 'op0'"),
    ],
)
def test_check_names_what_is_wrong(steps: tuple[int, ...], message: str) -> None:
    with pytest.raises(ScheduleError, match=message):
        check(chain([1, 1, 1]), Schedule(steps))


def test_check_keeps_random_ops_single() -> None:
    graph = chain([1, 1])
    ops = (dataclasses.replace(graph.ops[0], recomputable=False), graph.ops[1])
    graph = dataclasses.replace(graph, ops=ops)
    check(graph, given_order(graph))
    with pytest.raises(ScheduleError, match="'op0' must not be executed again"):
        check(graph, Schedule((0, 0, 1)))


def test_counts() -> None:
    schedule = Schedule((0, 1, 0, 1, 2))
    assert schedule.recomputations() == 2
    assert schedule.cost(chain([1, 1, 1])) == 5
    assert len(schedule) == 5


def test_unread_repetitions_go_and_what_only_they_read_goes_too() -> None:
    graph = chain([1, 1, 1])
    assert without_unread(graph, Schedule((0, 1, 0, 1, 0, 1, 2, 0, 1))) == Schedule((0, 1, 2))


def test_an_op_that_nobody_reads_runs_once() -> None:
    graph = Graph((A, B), (Op("p", "P", (), (0,)), Op("dead", "D", (0,), (1,))), (), (0,))
    assert without_unread(graph, Schedule((0, 1, 1))) == Schedule((0, 1))


def test_eager_ops_run_as_soon_as_their_inputs_exist() -> None:
    """p -> Shape -> Size and q, with the eager ops written last."""
    tensors = tuple(Tensor(n, (), "uint8", 1) for n in "pqsz")
    ops = (Op("p", "P", (), (0,)), Op("q", "Q", (), (1,)), Op("s", "Shape", (0,), (2,), eager=True),
           Op("z", "Size", (2,), (3,), eager=True))  # fmt: skip
    graph = Graph(tensors, ops, (), (1, 3))
    assert with_eager_ops(graph, given_order(graph)) == Schedule((0, 2, 3, 1))
    assert with_eager_ops(graph, Schedule((1, 0, 2, 3))) == Schedule((1, 0, 2, 3))
    assert with_eager_ops(graph, given_order(graph), more=[1]) == Schedule((1, 0, 2, 3))


def test_a_repetition_that_only_an_eager_op_read_goes() -> None:
    """p -> Shape: planned behind the second execution of p, it is started behind the first."""
    tensors = (A, B, Tensor("c", (), "uint8", 1))
    ops = (Op("p", "P", (), (0,)), Op("q", "Q", (0,), (1,)), Op("s", "Shape", (0,), (2,), eager=True))  # fmt: skip
    graph = Graph(tensors, ops, (), (1, 2))
    planned = Schedule((0, 1, 0, 2))
    check(graph, planned)
    executed = with_eager_ops(graph, planned)
    assert executed == Schedule((0, 2, 1))
    check(graph, executed)
