"""Memory step by step: it adds up, and its peak is that of the simulator."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onnxremat.commands.timeline import Stacking, Timeline, graph_timeline, scopes
from onnxremat.core.graph import Graph
from onnxremat.core.memory import MemoryRules, live_at, profile
from onnxremat.core.schedule import Schedule, given_order
from tests.graphs import chain, graphs, memory_rules, schedules


@st.composite
def runs(draw: st.DrawFn) -> tuple[Graph, Schedule, MemoryRules]:
    graph = draw(graphs())
    rules = replace(draw(memory_rules()), count_inputs=False, count_weights=False)
    return graph, draw(schedules(graph)), rules


def timeline_of(run: tuple[Graph, Schedule, MemoryRules]) -> Timeline:
    return graph_timeline(*run, "as written")


@given(runs())
def test_the_bytes_of_each_step_are_those_of_the_simulator(
    run: tuple[Graph, Schedule, MemoryRules],
) -> None:
    timeline, expected = timeline_of(run), profile(*run)
    assert timeline.live_bytes == expected.live_bytes
    assert (timeline.peak_bytes, timeline.peak_step) == (expected.peak_bytes, expected.peak_step)
    for step in range(len(timeline.steps)):
        held = [timeline.values[i].nbytes for i in timeline.held_at(step)]
        assert held == [one.nbytes for one in live_at(*run, step)]


@settings(max_examples=50)
@given(runs(), st.sampled_from(Stacking), st.integers(1, 20))
def test_layers_add_up_to_what_is_held(
    run: tuple[Graph, Schedule, MemoryRules], by: Stacking, most: int
) -> None:
    timeline = timeline_of(run)
    stack = timeline.stacked(by, most)
    layers = timeline.layers(stack)
    assert len(layers) == len(stack.labels) <= most + 1
    assert stack.others == (len(stack.labels) > most)
    assert tuple(map(sum, zip(*layers, strict=True))) == timeline.value_bytes
    at_peak = [layer[timeline.peak_step] for layer in layers[:most]]
    assert at_peak == sorted(at_peak, reverse=True)


@settings(max_examples=50)
@given(runs())
def test_steps_say_what_they_read_and_make(run: tuple[Graph, Schedule, MemoryRules]) -> None:
    graph, schedule, _ = run
    timeline = timeline_of(run)
    for number, (v, step) in enumerate(zip(schedule, timeline.steps, strict=True)):
        made = [graph.tensors[t].name for t in graph.ops[v].outputs]
        assert [timeline.values[i].name for i in step.makes] == made
        read = {graph.tensors[t].name for t in graph.ops[v].inputs if graph.producer[t] >= 0}
        assert {timeline.values[i].name for i in step.reads} == read
        assert all(timeline.values[i].start < number for i in step.reads)
        for i in step.makes:
            assert timeline.missing(i, number) <= len(step.reads)
    assert not timeline.times_measured


def test_what_making_a_value_again_needs_is_there_or_gone() -> None:
    timeline = graph_timeline(chain([4, 4, 9]), given_order(chain([4, 4, 9])), MemoryRules(), "")
    assert timeline.peak_step == 2
    assert [timeline.missing(i, 2) for i in range(3)] == [0, 1, 0]
    assert [value.last_read for value in timeline.values] == [1, 2, None]
    assert [value.kept for value in timeline.values] == [False, False, True]


def test_without_steps_nothing_is_held() -> None:
    timeline = Timeline("", (), (), 8, 4, False)
    assert (timeline.peak_bytes, timeline.peak_step, timeline.time_ns) == (0, 0, 0)
    assert timeline.stacked().labels == ()


@pytest.mark.parametrize(
    ("names", "most", "expected"),
    [
        (["/n/a/X", "/n/b/X", "/n/b/Y"], 4, {"n/a", "n/b"}),
        (["/n/a/X", "/n/b/X", "/n/b/Y"], 1, {"n"}),
        (["a.b.c", "a.d.e"], 2, {"a.b", "a.d"}),
        (["plain", "other"], 2, {"(top level)"}),
        ([], 2, set()),
    ],
)
def test_scopes_are_as_deep_as_the_number_of_layers_allows(
    names: list[str], most: int, expected: set[str]
) -> None:
    found = scopes(names, most)
    assert set(found.values()) == expected and list(found) == names
