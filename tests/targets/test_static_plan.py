"""The static plan: its JSON satisfies the schema, and running it never spoils what is still needed."""

import json
from importlib.resources import files
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.core.errors import NoPlanFoundError
from onnxremat.core.graph import Graph, Op, Tensor, TensorKind
from onnxremat.core.memory import MemoryRules, profile
from onnxremat.core.schedule import Schedule, ScheduleError, given_order, instances
from onnxremat.targets.static_plan import GENERIC_RULES, StaticPlan, emit_plan
from tests.graphs import chain, graphs, memory_rules, schedules

jsonschema: Any = pytest.importorskip("jsonschema", reason="the schema is checked with jsonschema")

SCHEMA = json.loads(files("onnxremat.targets").joinpath("plan.schema.json").read_text("utf-8"))
ENDLESS = 1e9


def plan_of(graph: Graph, schedule: Schedule, rules: MemoryRules, alignment: int = 4) -> StaticPlan:
    return emit_plan(
        graph, schedule, rules, alignment_bytes=alignment, iterations=10, seconds=ENDLESS
    )


def pattern(index: int, nbytes: int) -> bytes:
    """Bytes that tell buffers apart."""
    return bytes((index * 37 + i * 11 + 1) % 251 for i in range(nbytes))


class Interpreter:
    """Runs a plan, known only as parsed JSON, on one bytearray.

    A step checks that its inputs still have the bytes that they were made with, then scribbles
    over its workspace and writes its outputs, then checks that everything that lives on, and
    every input that it did not take over, is as it was.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.arena = bytearray(plan["arena_bytes"])

    def span(self, index: int) -> slice:
        buffer = self.plan["buffers"][index]
        return slice(buffer["offset"], buffer["offset"] + buffer["nbytes"])

    def holds(self, index: int) -> bool:
        nbytes = self.plan["buffers"][index]["nbytes"]
        return bytes(self.arena[self.span(index)]) == pattern(index, nbytes)

    def write(self, index: int) -> None:
        self.arena[self.span(index)] = pattern(index, self.plan["buffers"][index]["nbytes"])

    def run(self) -> None:
        for number, step in enumerate(self.plan["steps"]):
            inputs = {i for i in step["reads"] if isinstance(i, int)}
            assert all(self.holds(i) for i in inputs), f"step {number} reads spoiled bytes"
            if step["workspace"] is not None:
                self.write(step["workspace"])
            for i in step["writes"]:
                self.write(i)
            taken = {self.plan["buffers"][i]["takes_over"] for i in step["writes"]}
            for i, buffer in enumerate(self.plan["buffers"]):
                lives = buffer["start"] <= number < buffer["end"]
                if lives or (i in inputs and i not in taken):
                    assert self.holds(i), f"step {number} spoils {buffer['name']}"
        assert all(self.holds(o["buffer"]) for o in self.plan["outputs"] if o["buffer"] is not None)


def test_the_interpreter_notices_a_spoiled_buffer() -> None:
    graph = chain([8, 8, 8])
    plan = json.loads(plan_of(graph, given_order(graph), GENERIC_RULES).as_json())
    Interpreter(plan).run()
    plan["buffers"][1]["offset"] = plan["buffers"][0]["offset"] + 4
    with pytest.raises(AssertionError, match="step 1 spoils t0"):
        Interpreter(plan).run()


def check_steps(graph: Graph, schedule: Schedule, plan: dict[str, Any]) -> None:
    """The steps are the schedule, and every read is of the most recent instance."""
    made = instances(graph, schedule)
    assert len(plan["steps"]) == len(schedule)
    for number, (v, step) in enumerate(zip(schedule.steps, plan["steps"], strict=True)):
        op = graph.ops[v]
        assert (step["op"], step["op_type"]) == (op.name, op.op_type)
        assert step["execution"] == schedule.steps[:number].count(v)
        for t, read in zip(op.inputs, step["reads"], strict=True):
            latest = [i for i, m in enumerate(made) if m.tensor == t and m.step < number]
            assert read == (latest[-1] if latest else graph.tensors[t].name)
        for t, written in zip(op.outputs, step["writes"], strict=True):
            assert (made[written].tensor, made[written].step) == (t, number)
            buffer = plan["buffers"][written]
            assert (buffer["name"], buffer["nbytes"]) == (
                graph.tensors[t].name,
                graph.tensors[t].nbytes,
            )
            assert (buffer["start"], buffer["execution"]) == (number, step["execution"])


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_a_plan_satisfies_the_schema_and_runs(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    rules = data.draw(memory_rules())
    plan = plan_of(graph, schedule, rules)
    parsed = json.loads(plan.as_json())
    jsonschema.Draft202012Validator(SCHEMA).validate(parsed)
    check_steps(graph, schedule, parsed)
    Interpreter(parsed).run()
    peak = profile(graph, schedule, rules).peak_bytes - rules.constant_bytes(graph)
    assert plan.live_peak_bytes == peak
    assert plan.arena_bytes >= plan.bound_bytes >= peak
    assert all(b.offset % 4 == 0 for b in plan.buffers)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_buffers_are_taken_over_as_the_simulator_says(data: st.DataObject) -> None:
    graph = data.draw(graphs())
    schedule = data.draw(schedules(graph))
    plan = plan_of(graph, schedule, MemoryRules(inplace={"InPlace": ((0, 1), (1, 0), (0, 0))}), 1)
    taken = [b.takes_over for b in plan.buffers if b.takes_over is not None]
    assert len(taken) == len(set(taken))
    for buffer in plan.buffers:
        if buffer.takes_over is not None:
            source = plan.buffers[buffer.takes_over]
            assert (source.offset, source.nbytes) == (buffer.offset, buffer.nbytes)
            assert source.end == buffer.start
            assert buffer.takes_over in plan.steps[buffer.start].reads
    live = [
        sum(b.nbytes for b in plan.buffers if b.start <= step < b.end)
        for step in range(len(schedule))
    ]
    assert max(live) == plan.live_peak_bytes


def test_the_schema_itself_is_valid() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)


def test_the_schema_refuses_what_it_does_not_know() -> None:
    plan = json.loads(plan_of(chain([8, 8]), given_order(chain([8, 8])), GENERIC_RULES).as_json())
    validator = jsonschema.Draft202012Validator(SCHEMA)
    assert validator.is_valid(plan)
    for change in ({"extra": 1}, {"version": 2}, {"arena_bytes": -1}, {"steps": [{"op": "x"}]}):
        assert not validator.is_valid(plan | change)


def test_a_chain_needs_two_buffers_or_one_in_place() -> None:
    graph = chain([64, 64, 64, 64])
    plain = plan_of(graph, given_order(graph), GENERIC_RULES)
    assert plain.arena_bytes == plain.live_peak_bytes == 128
    inplace = plan_of(graph, given_order(graph), MemoryRules(inplace={"Op": ((0, 0),)}))
    # The last instance is the graph's output: it has a buffer of its own.
    assert inplace.arena_bytes == inplace.live_peak_bytes == 128
    assert [b.offset for b in inplace.buffers[:3]] == [inplace.buffers[0].offset] * 3
    assert [b.takes_over for b in inplace.buffers] == [None, 0, 1, None]


def test_inputs_weights_and_workspace_are_told_apart() -> None:
    tensors = (
        Tensor("x", (4,), "float", 16, TensorKind.INPUT),
        Tensor("w", (8,), "float", 32, TensorKind.WEIGHT),
        Tensor("y", (4,), "float", 16),
    )
    op = Op("conv", "Conv", (0, 1), (2,), workspace_bytes=100)
    graph = Graph(tensors, (op,), (0,), (2, 0))
    plan = json.loads(plan_of(graph, given_order(graph), GENERIC_RULES, alignment=64).as_json())
    assert plan["inputs"] == [{"name": "x", "nbytes": 16}]
    assert plan["weights"] == [{"name": "w", "nbytes": 32}]
    assert plan["outputs"] == [{"name": "y", "buffer": 0}, {"name": "x", "buffer": None}]
    assert plan["steps"][0]["reads"] == ["x", "w"]
    assert plan["steps"][0]["workspace"] == 1
    assert plan["buffers"][1]["kind"] == "workspace"
    assert (plan["buffers"][1]["name"], plan["buffers"][1]["nbytes"]) == ("conv", 100)
    assert (plan["live_peak_bytes"], plan["arena_bytes"]) == (116, 192)
    without = plan_of(graph, given_order(graph), MemoryRules(count_workspace=False))
    assert [b.kind for b in without.buffers] == ["tensor"]


def test_a_recomputation_has_a_place_of_its_own() -> None:
    tensors = (
        Tensor("x", (), "uint8", 1, TensorKind.INPUT),
        *(Tensor(f"t{i}", (64,), "uint8", 64) for i in range(4)),
    )
    ops = (
        Op("a", "Op", (0,), (1,)),
        Op("b", "Op", (1,), (2,)),
        Op("c", "Op", (2,), (3,)),
        Op("d", "Op", (1, 3), (4,)),
    )
    graph = Graph(tensors, ops, (0,), (4,))
    plan = plan_of(graph, Schedule((0, 1, 2, 0, 3)), GENERIC_RULES)
    assert [(b.name, b.execution) for b in plan.buffers] == [
        ("t0", 0), ("t1", 0), ("t2", 0), ("t0", 1), ("t3", 0)]  # fmt: skip
    assert plan.steps[4].reads == (3, 2)


def test_capacity_is_a_limit_and_says_what_is_proved() -> None:
    graph = chain([64, 128, 64])
    schedule = given_order(graph)
    assert emit_plan(graph, schedule, GENERIC_RULES, capacity_bytes=192).arena_bytes == 192
    with pytest.raises(NoPlanFoundError, match=r"at least .*192 bytes, proved.*capacity is 191"):
        emit_plan(graph, schedule, GENERIC_RULES, capacity_bytes=191)


def test_a_sequence_that_is_no_schedule_is_refused() -> None:
    with pytest.raises(ScheduleError):
        emit_plan(chain([1, 1]), Schedule((1, 0)), GENERIC_RULES)


def test_same_seed_same_json() -> None:
    graph = chain([640, 64, 1280, 64, 320])
    first, again = (
        emit_plan(
            graph, given_order(graph), GENERIC_RULES, iterations=5, seconds=ENDLESS, seed=3
        ).as_json()
        for _ in range(2)
    )
    assert first == again
